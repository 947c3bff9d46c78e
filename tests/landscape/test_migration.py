"""A control plane moves to the other seed while somebody reads and writes: nodes, pods and data are the same after."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.probe import Probe, await_pods, running
from tests.landscape.shoots import CREATION, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_MOVE_SECONDS = 240.0


@dataclass(frozen=True)
class Moved:
    """A Shoot before and after its control plane went to the other seed."""

    shoot: Shoot
    source: str
    destination: str
    before: dict[str, Any]
    after: dict[str, Any]
    probe: Probe
    phases: list[dict[str, Any]]


@pytest.fixture(scope="module")
def moved(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    shoot = Shoot(landscape, "mover", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest())
    try:
        shoot.wait_for_state("Succeeded", CREATION)
        await_pods(shoot)
        source = shoot.seed
        destination = {"seed-1": "seed-2", "seed-2": "seed-1"}[source]
        before = running(shoot)
        with Probe(shoot).running() as probe:
            eventually(lambda: len(probe.answered) > 20, "the probe is answered", 30)
            move = ["shoot", "move", shoot.reference, "--to", destination, "--follow", "-o", "json"]
            text = shoot.gardener(*move, timeout=_MOVE_SECONDS)
            answered = len(probe.answered)
            eventually(lambda: len(probe.answered) > answered + 20, "the probe is answered after the move", 60)
        for asked_once in ("seed", "kubeconfig"):
            del shoot.__dict__[asked_once]
        yield Moved(shoot, source, destination, before, running(shoot), probe, _lines(text))
    finally:
        shoot.remove()


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_control_plane_is_in_the_other_seed_and_nowhere_else(moved: Moved, landscape: Landscape) -> None:
    status = moved.shoot.get()["status"]
    assert status["seedName"] == moved.destination
    assert (status["lastOperation"]["type"], status["lastOperation"]["state"]) == ("Restore", "Succeeded")
    namespaces = landscape.kubectl(moved.source, "get", "namespaces", "-o", "name").split()
    assert f"namespace/{moved.shoot.technical_id}" not in namespaces
    assert [each.partition("/")[0] for each in moved.shoot.backups()] == [
        landscape.kubectl("garden", "get", "seed", moved.destination, "-o", "jsonpath={.metadata.uid}")
    ]


def test_no_node_is_replaced_and_no_pod_restarted(moved: Moved) -> None:
    assert moved.after == moved.before


def test_no_acknowledged_write_is_lost(moved: Moved) -> None:
    assert not moved.probe.lost


def test_the_silence_is_short(moved: Moved) -> None:
    """The longest time without an answer; the machine of the tests is small, and busy."""
    print(f"longest silence {moved.probe.longest_silence:.1f} s, {moved.probe.failed} requests failed")
    print(json.dumps(moved.phases, indent=1))
    assert moved.probe.longest_silence < 60


def test_it_works_where_it_is(moved: Moved) -> None:
    for condition in ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy"):
        moved.shoot.garden(
            "wait", f"--for=condition={condition}", f"shoot/{moved.shoot.name}", "--timeout=60s", timeout=70
        )
    assert moved.shoot.address_of(moved.shoot.host_names[0])
    assert moved.shoot.kubectl("-n", "kube-system", "logs", "-l", "app=vpn-shoot", "--tail=1")

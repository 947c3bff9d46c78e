"""A control plane moves to the other seed while clients read and write: nodes, pods and data are the same after.

``GARDENER_TEST_MOVES=10`` has it go there and back as often, for the figures.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.landscape import wire
from tests.landscape.audit import AuditLogs, assert_one_after_the_other
from tests.landscape.conftest import Landscape
from tests.landscape.probe import Moved, Probe, await_pods, inventory, running
from tests.landscape.shoots import MOVES, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_MOVE_SECONDS = 240.0


@dataclass(frozen=True)
class Planned(Moved):
    revision: int
    """Revision of etcd, just before the move."""
    hashes: tuple[str, str]
    """Hashes of etcd's content at that revision, in the one seed and in the other."""
    audit: AuditLogs
    probe: Probe
    late: Probe
    """Goes to the seed of before all the time, as if the DNS had not changed."""
    phases: list[dict[str, Any]]


@pytest.fixture(scope="module")
def moves(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Planned]]:
    shoot = Shoot(landscape, "mover", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created():
        await_pods(shoot)
        assert MOVES > 0, "these tests would look at nothing"
        yield [_move(shoot, number) for number in range(MOVES)]


def _move(shoot: Shoot, number: int) -> Planned:
    source, destination = shoot.seed, shoot.other_seed
    before, held = running(shoot), inventory(shoot)
    probe = Probe(shoot, f"probe{number}")
    late = Probe(shoot, f"late{number}", shoot.landscape.address(source))
    with AuditLogs(shoot).followed() as audit, probe.running(), late.running():
        eventually(lambda: min(len(probe.answered), len(late.answered)) > 20, "the probes are answered", 30)
        revision, there = wire.content(shoot, shoot.directory)
        move = ["shoot", "move", shoot.reference, "--to", destination, "--follow", "-o", "json"]
        text = shoot.gardener(*move, timeout=_MOVE_SECONDS)
        answered = max(len(probe.answered), len(late.answered))
        eventually(lambda: min(len(probe.answered), len(late.answered)) > answered + 20, "both are after the move", 60)
        shoot.has_moved()
        hashes = there, wire.content(shoot, shoot.directory, revision)[1]
    return Planned(
        shoot, source, destination, before, running(shoot), held - inventory(shoot),
        revision, hashes, audit, probe, late, _lines(text),
    )  # fmt: skip


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_control_plane_is_in_the_other_seed_and_nowhere_else(moves: list[Planned], landscape: Landscape) -> None:
    moved = moves[-1]
    status = moved.shoot.get()["status"]
    assert status["seedName"] == moved.destination
    assert (status["lastOperation"]["type"], status["lastOperation"]["state"]) == ("Restore", "Succeeded")
    assert not moved.shoot.is_in(moved.source)
    assert [each.partition("/")[0] for each in moved.shoot.backups()] == [
        landscape.kubectl("garden", "get", "seed", moved.destination, "-o", "jsonpath={.metadata.uid}")
    ]


def test_no_node_is_replaced_and_no_pod_restarted(moves: list[Planned]) -> None:
    for moved in moves:
        assert moved.after == moved.before


def test_no_acknowledged_write_is_lost(moves: list[Planned]) -> None:
    for moved in moves:
        assert not moved.probe.lost
        assert not moved.late.lost
        assert not moved.gone


def test_etcd_has_the_same_content_after_the_move(moves: list[Planned]) -> None:
    """Clients continue from the revision that they know."""
    for moved in moves:
        there, here = moved.hashes
        print(f"hash at revision {moved.revision}: {there[:12]} in {moved.source}, {here[:12]} in {moved.destination}")
        assert here == there


def test_the_seeds_accept_changes_one_after_the_other(moves: list[Planned]) -> None:
    for moved in moves:
        assert_one_after_the_other(moved.audit, moved.source, moved.destination)


def test_the_silence_is_short(moves: list[Planned]) -> None:
    """The longest time without an answer; the machine of the tests is small, and busy."""
    for moved in moves:
        phases = ", ".join(f"{each['phase']} {each['seconds']}" for each in moved.phases)
        for name, probe in (("longest silence", moved.probe), ("by the old address", moved.late)):
            print(f"{name} {probe.longest_silence:.1f} s, {probe.failed} requests failed; {phases}")
            assert probe.longest_silence < 60


def test_it_works_where_it_is(moves: list[Planned]) -> None:
    moved = moves[-1]
    for condition in ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy"):
        moved.shoot.garden(
            "wait", f"--for=condition={condition}", f"shoot/{moved.shoot.name}", "--timeout=60s", timeout=70
        )
    assert moved.shoot.address_of(moved.shoot.host_names[0])
    assert moved.shoot.kubectl("-n", "kube-system", "logs", "-l", "app=vpn-shoot", "--tail=1")

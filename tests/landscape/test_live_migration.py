"""A control plane moves live: clients read and write all the time, no request fails, and gardenlets are killed.

Then it moves back, and cannot do so live: it moves as planned, and says why.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.gardenlets import replaced, silent
from tests.landscape.kills import kill
from tests.landscape.probe import Moved, Probe, await_pods, inventory, running
from tests.landscape.shoots import Shoot, background, eventually, refused, started, temporal

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(900, func_only=True)]

_MOVE_SECONDS = 600.0
_PATIENCE_SECONDS = 10.0
"""Seconds that a probe waits for an answer; the machine of the tests is small, and busy."""
_TOLERANT = {"highAvailability": {"failureTolerance": {"type": "node"}}}
_LIVE = "migration.gardener.cloud/live-migrate"
_KILLED_IN = (
    "join_etcd_there",
    "wait_apiserver_beside_there",
    "forward_apiserver_sni",
    "let_other_seed_lead",
    "remove_other_etcd_members_there",
    "migrate_backup_entry",
)
"""Tasks in which a gardenlet is killed: that of the destination in those that run there, else that of the source."""


@dataclass(frozen=True)
class Live(Moved):
    probes: tuple[Probe, ...]
    """By the DNS, and by the address of the source's gateway all the time."""
    status: dict[str, Any]
    members: list[str]
    phases: list[str]


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "mover-live", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.manifest(controlPlane=_TOLERANT)):
        await_pods(shoot)
        shoot.garden("annotate", "shoot", shoot.name, f"{_LIVE}=true")
        yield shoot


@pytest.fixture(scope="module")
def moved(shoot: Shoot) -> Live:
    return _move(shoot, "live", _KILLED_IN)


def _move(shoot: Shoot, name: str, killed_in: tuple[str, ...] = (), silent_from: str = "") -> Live:
    source, destination = shoot.seed, shoot.other_seed
    before, held = running(shoot), inventory(shoot)
    probes = tuple(
        Probe(shoot, f"{name}-{kind}", address, timeout=_PATIENCE_SECONDS, reconnects=True)
        for kind, address in (("dns", ""), ("old", shoot.landscape.address(source)))
    )
    with ExitStack() as stack:
        for probe in probes:
            stack.enter_context(probe.running())
        _answered(probes)
        move = ("shoot", "move", shoot.reference, "--to", destination, "--follow")
        argv = ("env", f"GARDENER_LANDSCAPE={shoot.landscape.name}", str(shoot.landscape.bin / "gardener"), *move)
        following = stack.enter_context(background(argv))
        for task in killed_in:
            _await_begin(shoot, task)
            kill(shoot.landscape, f"{destination if task.endswith('_there') else source}/gardenlet")
        if silent_from:
            _await_begin(shoot, silent_from)
            stack.enter_context(silent(shoot.landscape, source))
        said = following.communicate(timeout=_MOVE_SECONDS)[0]
        assert following.returncode == 0, said
        _answered(probes[:1] if silent_from else probes)
        shoot.has_moved()
    etcd = json.loads(shoot.control_plane("get", "etcds.druid.gardener.cloud", "etcd-main", "-o", "json"))
    return Live(
        shoot, source, destination, before, running(shoot), held - inventory(shoot), probes, shoot.get()["status"],
        [f"{etcd['spec'].get('memberNamePrefix', '')}{each['name']}" for each in etcd["status"]["members"]],
        said.splitlines(),
    )  # fmt: skip


def _await_begin(shoot: Shoot, task: str) -> None:
    async def begun() -> None:
        await started(await temporal(shoot.landscape), shoot, task, "LiveMigrate", _MOVE_SECONDS)

    asyncio.run(begun())


def _answered(probes: tuple[Probe, ...]) -> None:
    counts = [len(each.answered) for each in probes]
    eventually(
        lambda: all(len(each.answered) > count + 20 for each, count in zip(probes, counts, strict=True)),
        "the probes are answered",
        60,
    )


def test_no_request_fails(moved: Live) -> None:
    for probe in moved.probes:
        print(
            f"{probe.name}: {len(probe.answered)} answered, {probe.failed} failed, {len(probe.broken)} repeated on a "
            f"new connection, longest silence {probe.longest_silence:.1f} s, slowest request {probe.longest:.1f} s"
        )
        print(probe.broken)
    print("\n".join(moved.phases))
    for probe in moved.probes:
        assert not probe.faults
        assert probe.failed == 0


def test_no_acknowledged_write_is_lost(moved: Live) -> None:
    for probe in moved.probes:
        assert not probe.lost
    assert not moved.gone


def test_no_node_is_replaced_and_no_pod_restarted(moved: Live) -> None:
    assert moved.after == moved.before


def test_the_control_plane_is_in_the_other_seed_and_nowhere_else(moved: Live, landscape: Landscape) -> None:
    assert moved.status["seedName"] == moved.destination
    [condition] = moved.status["liveMigration"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "Moved")
    assert not moved.shoot.is_in(moved.source)
    assert [each.partition("/")[0] for each in moved.shoot.backups()] == [
        landscape.kubectl("garden", "get", "seed", moved.destination, "-o", "jsonpath={.metadata.uid}")
    ]
    assert len(moved.members) == 3
    assert not any(each.startswith("etcd-main") for each in moved.members), "they are the destination's own"
    left = moved.shoot.control_plane(
        "get", "services,configmaps,endpointslices", "-l", "networking.gardener.cloud/etcd-between-seeds", "-o", "name"
    )
    assert not left


def test_it_works_where_it_is(moved: Live) -> None:
    for condition in ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy"):
        moved.shoot.garden(
            "wait", f"--for=condition={condition}", f"shoot/{moved.shoot.name}", "--timeout=60s", timeout=70
        )
    assert moved.shoot.kubectl("-n", "kube-system", "logs", "-l", "app=vpn-shoot", "--tail=1")


def test_a_move_that_cannot_be_live_is_a_planned_one_and_says_why(moved: Live, tmp_path: Path) -> None:
    """All six members are in the cluster when it turns out, and the API server of the destination has begun."""
    task = tmp_path / "task"
    task.write_text("wait_apiserver_beside_there")
    with replaced(moved.shoot.landscape, "tests.landscape.refusing_gardenlet", task):
        back = _move(moved.shoot, "back")
    probe = back.probes[0]
    print(f"longest silence {probe.longest_silence:.1f} s, {probe.failed} requests failed")
    [condition] = back.status["liveMigration"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "FellBack")
    assert "wait_apiserver_beside_there: a test's" in condition["message"]
    assert back.status["seedName"] == back.destination == moved.source
    assert not back.shoot.is_in(back.source)
    assert back.members == [f"etcd-main-{number}" for number in range(3)]
    for each in back.probes:
        assert not each.lost
    assert not back.gone
    assert back.after == back.before


def test_a_source_that_falls_silent_takes_no_data_along(moved: Live) -> None:
    """API servers of both seeds serve at that moment. It is taken for lost, but its members of etcd still answer."""
    away = _move(moved.shoot, "silent", silent_from="forward_apiserver_sni")
    for each in away.probes:
        print(f"{each.name}: {len(each.answered)} answered, {each.failed} failed, silence {each.longest_silence:.1f} s")
    print("\n".join(away.phases))
    [condition] = away.status["liveMigration"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "FellBack")
    assert condition["message"] == f"seed {away.source} is lost"
    assert away.status["seedName"] == away.destination
    assert not any(each.startswith("etcd-main") for each in away.members), "they are those that joined"
    for each in away.probes:
        assert not each.lost
    assert not away.gone
    assert away.after == away.before
    eventually(lambda: not away.shoot.is_in(away.source), "the source is clean", 180)


def test_another_value_of_the_annotation_is_refused(landscape: Landscape, moved: Live) -> None:
    argv = landscape.argv("garden", "-n", "garden-local", "annotate", "shoot", moved.shoot.name, "--overwrite")
    assert "Unsupported value" in refused(*argv, f"{_LIVE}=maybe")

"""A landscape of an earlier version is upgraded in place, and its Shoot notices nothing.

Makes a checkout of the earlier version and its virtual environment (`make test-upgrade`); other runs leave these tests
out. ``GARDENER_TEST_EARLIER=DIRECTORY`` uses a checkout that has its environment already.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api import constants
from tests.landscape import pods, probe
from tests.landscape.clients import Access, Clients, Session, table
from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.upgrade, pytest.mark.timeout(600, func_only=True)]

EARLIER = "f486b8a"
"""Its backups have tokens in place of S3 keys, its Temporal has no certificates, and its garden no front door."""
_ROOT = Path(__file__).parents[2]
_SEEDS = ("seed-1", "seed-2")
_PERIOD = 1.0
_RECONCILIATION = 300.0
_HEALTHY = 120.0

_CLIENT = """
import time, urllib.request
while True:
    begun = time.monotonic()
    try:
        with urllib.request.urlopen("http://web:80/", timeout=5) as answer:
            print("answered by", answer.read().decode())
    except OSError as error:
        print(f"failed after {time.monotonic() - begun:.1f} s: {error}")
    time.sleep(1)  # the period of a client
"""


class OnceASecond(Clients):
    """Three requests a second, each on a new connection: a read, a write, and one of the workload by its Service.

    Connections that are kept end with the pod of the earlier gateway, and clients open others.
    """

    def kinds(self) -> list[tuple[str, float, Callable[[Session], str | None]]]:
        return [("read", _PERIOD, self._read), ("write", _PERIOD, self._write), ("Service", _PERIOD, self._service)]

    def _read(self, session: Session) -> str:
        session.close()
        return session.fault("GET", "/api/v1/namespaces/default")

    def _write(self, session: Session) -> str:
        session.close()
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "written"}}
        written = config_map | {"data": {"at": datetime.now(UTC).isoformat()}}
        return session.fault(
            "PATCH", f"/api/v1/namespaces/{pods.PROBE}/configmaps/written?fieldManager=clients&force=true", written
        )

    def _service(self, session: Session) -> str:
        session.close()
        return session.fault("GET", f"/api/v1/namespaces/{pods.PROBE}/services/web:80/proxy/")


@dataclass(frozen=True)
class Upgraded:
    """A Shoot after the upgrade, and what its clients saw meanwhile."""

    shoot: Shoot
    clients: Clients
    before: dict[str, Any]
    """Nodes, machines and pods before the upgrade."""
    members: dict[str, str]
    """Uids of the etcds' pods before the upgrade."""
    flows: list[str]
    """Ids of the operations of the earlier version."""


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    checkout = _checkout(tmp_path_factory.mktemp("earlier"))
    landscape = Landscape("earlier", checkout / ".venv/bin")
    try:
        landscape.up()
        yield _upgrade(Shoot(landscape, "upgraded", tmp_path_factory.mktemp("kubeconfigs")))
    finally:
        replace(landscape, bin=BIN).down()


def _checkout(place: Path) -> Path:
    """The earlier version with its virtual environment."""
    if made := os.environ.get("GARDENER_TEST_EARLIER"):
        return Path(made)
    run("git", "clone", "--quiet", "--no-checkout", _ROOT, place)
    run("git", "-C", place, "checkout", "--quiet", EARLIER)
    run("make", "-C", place, "venv", timeout=600)
    return place


def _upgrade(shoot: Shoot) -> Upgraded:
    shoot.apply(shoot.manifest())
    shoot.wait_for_state("Succeeded", 240)
    _serve(shoot)
    _await_health(shoot)
    before, members = probe.running(shoot), _members(shoot)
    clients = OnceASecond("client", Access(shoot, shoot.kubeconfig))
    with ExitStack() as running:
        running.callback(lambda: print(table([clients]), *clients.failed, sep="\n"))
        running.enter_context(clients.running())
        clients.await_answers()
        shoot.landscape = replace(shoot.landscape, bin=BIN)
        shoot.landscape.up()
        flows = [each["workflowId"] for each in shoot.flows()]
        for seed in _SEEDS:
            _reconcile(shoot.landscape, "seed", seed)
        _reconcile(shoot.landscape, "-n", "garden-local", "shoot", shoot.name)
        _await_health(shoot)
        eventually(lambda: not _ending(shoot), "no pod of the control plane ends any more", 120)
        clients.await_answers()
    return Upgraded(shoot, clients, before, members, flows)


def _serve(shoot: Shoot) -> None:
    """A workload of two pods, and a client of its Service in the cluster; all on one node."""
    web = pods.python("web", 2, pods.WEB)
    del web["spec"]["template"]["spec"]["affinity"]
    client = pods.python("client", 1, _CLIENT, ready=pods.ALIVE)
    # The client asks as soon as it runs, and would be refused before the Service has pods.
    for name, items in (("web", [pods.namespace(), web, pods.service("web", 80)]), ("client", [client])):
        shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        shoot.kubectl("-n", pods.PROBE, "rollout", "status", f"deployment/{name}", "--timeout=90s")


def _reconcile(landscape: Landscape, *which: str) -> None:
    """Have a Seed or Shoot reconciled, and wait until an operation that began later has succeeded."""

    def look() -> dict[str, Any]:
        live: dict[str, Any] = json.loads(landscape.kubectl("garden", "get", *which, "-o", "json"))
        return live

    asked_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    landscape.kubectl(
        "garden", "annotate", *which, f"{constants.OPERATION}={constants.OPERATION_RECONCILE}", "--overwrite"
    )

    def reconciled() -> bool:
        live = look()
        later = live["status"]["lastOperation"]
        asked = constants.OPERATION in (live["metadata"].get("annotations") or {})
        return not asked and later["state"] == "Succeeded" and later["lastUpdateTime"] > asked_at

    eventually(reconciled, f"{which[-1]} is reconciled", _RECONCILIATION)


def _await_health(shoot: Shoot) -> None:
    def healthy() -> bool:
        live = shoot.get()
        conditions = live["status"].get("conditions") or []
        label = (live["metadata"].get("labels") or {}).get(constants.SHOOT_STATUS)
        return label == "healthy" and bool(conditions) and all(each["status"] == "True" for each in conditions)

    eventually(healthy, f"{shoot.reference} is healthy", _HEALTHY)


def _control_plane_pods(shoot: Shoot) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shoot.control_plane("get", "pods", "-o", "json"))["items"]
    return found


def _ending(shoot: Shoot) -> list[str]:
    return [each["metadata"]["name"] for each in _control_plane_pods(shoot) if "deletionTimestamp" in each["metadata"]]


def _members(shoot: Shoot) -> dict[str, str]:
    found = {each["metadata"]["name"]: each["metadata"]["uid"] for each in _control_plane_pods(shoot)}
    return {name: uid for name, uid in found.items() if name.startswith("etcd-")}


def test_no_request_fails(upgraded: Upgraded) -> None:
    assert upgraded.clients.failed == []
    assert min(tally.answered for tally in upgraded.clients.tallies.values()) > 60


def test_no_request_of_a_pod_to_a_service_fails(upgraded: Upgraded) -> None:
    said = upgraded.shoot.kubectl("-n", pods.PROBE, "logs", "deployment/client", "--tail=-1").splitlines()

    assert [each for each in enumerate(said) if not re.fullmatch(r"answered by web-\S+", each[1])] == []
    assert len(said) > 60


def test_nodes_and_workload_stay(upgraded: Upgraded) -> None:
    after = probe.running(upgraded.shoot)

    assert (after["nodes"], after["machines"]) == (upgraded.before["nodes"], upgraded.before["machines"])
    ours = [name for name in upgraded.before["pods"] if name.startswith(("web-", "client-"))]
    assert len(ours) == 3
    assert {name: after["pods"].get(name) for name in ours} == {name: upgraded.before["pods"][name] for name in ours}


def test_the_etcds_run_the_new_version(upgraded: Upgraded) -> None:
    """And so their pods were replaced while requests came."""
    members = _members(upgraded.shoot)

    assert members.keys() == upgraded.members.keys()
    assert not set(members.values()) & set(upgraded.members.values())


def test_histories_of_the_earlier_version_replay(upgraded: Upgraded) -> None:
    shoot = upgraded.shoot
    assert upgraded.flows
    for flow in (*upgraded.flows, f"shoot/{shoot.reference}/{shoot.uid}"):
        assert "all decisions are the same" in shoot.gardener("flow", "replay", shoot.reference, "--id", flow)

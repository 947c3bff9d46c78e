"""Worker pools that may grow: machines come for pods that find no room, and go when no pod needs them.

The tests run in the order in which they stand, each on what the one before has left. How long it took is printed:
``pytest -rP``. What the autoscaler does while its cluster sleeps is in test_hibernation.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from api.machine.names import TRIGGER_DELETION
from tests.landscape import pods
from tests.landscape.conftest import Landscape
from tests.landscape.pods import PROBE
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(300, func_only=True)]

GROWTH = 180
"""Seconds; 25 where the machine has nothing else to do."""
RECONCILIATION = 180
IMPATIENT = {"scanInterval": "2s", "scaleDownUnneededTime": "10s", "scaleDownDelayAfterAdd": "10s"}


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot with a pool that stays as it is, one that may grow, and one that has no machine."""
    shoot = Shoot(landscape, "elastic", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest()
    [first] = manifest["spec"]["provider"]["workers"]
    manifest["spec"]["provider"]["workers"] = [
        first,
        {**first, "name": "web", "minimum": 1, "maximum": 2},
        {**first, "name": "batch", "minimum": 0, "maximum": 1, "taints": [_TAINT], "labels": {"for": "batch"}},
    ]
    manifest["spec"]["kubernetes"]["clusterAutoscaler"] = IMPATIENT
    with shoot.created(manifest):
        shoot.kubectl("apply", "-f", "-", stdin=json.dumps(pods.namespace()))
        yield shoot


_TAINT = {"key": "for", "value": "batch", "effect": "NoSchedule"}


def test_the_autoscaler_leaves_pools_of_the_right_size_alone(shoot: Shoot) -> None:
    shoot.control_plane("rollout", "status", "deployment/cluster-autoscaler", "--timeout=90s")
    assert _sizes(shoot) == {"pool": 1, "web": 1}


def test_a_pool_grows_for_a_pod_that_finds_no_room(shoot: Shoot) -> None:
    before = shoot.nodes()
    with _timed("from the second pod to its node"):
        _apply(shoot, pods.python("web", 2, _IDLE, pool="web", ready=pods.ALIVE))
        shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/web", f"--timeout={GROWTH}s", timeout=GROWTH + 10)

    assert _sizes(shoot) == {"pool": 1, "web": 2}
    assert before["web"] < shoot.nodes()["web"], "the machine that was there stays"
    assert before["pool"] == shoot.nodes()["pool"]


def test_an_operation_leaves_the_size_to_the_autoscaler(shoot: Shoot) -> None:
    before = shoot.nodes()

    shoot.change({"provider": {"workers": _pools(shoot, web={"labels": {"for": "web"}})}})
    shoot.wait_until_reconciled(RECONCILIATION)

    assert shoot.nodes() == before


def test_a_move_leaves_the_size_to_the_autoscaler(shoot: Shoot) -> None:
    before = shoot.nodes()

    shoot.gardener("shoot", "move", shoot.reference, "--to", shoot.other_seed, "--follow", timeout=RECONCILIATION)
    shoot.has_moved()

    assert shoot.nodes() == before
    shoot.control_plane("rollout", "status", "deployment/cluster-autoscaler", "--timeout=90s")


def test_the_autoscaler_deletes_the_machine_that_no_pod_needs(shoot: Shoot) -> None:
    with _timed("from the end of its pod to the end of its node"):
        shoot.kubectl("-n", PROBE, "scale", "deployment/web", "--replicas=1")
        eventually(lambda: _sizes(shoot)["web"] == 1, "a machine less", GROWTH)

    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/web", "--timeout=60s")
    assert _nodes_of_pods(shoot, "web") == shoot.nodes()["web"]
    eventually(lambda: TRIGGER_DELETION not in _annotations(shoot, "web"), "no machine is chosen any more", 60)
    assert _deployment(shoot, "web")["spec"]["replicas"] == 1


def test_a_pool_without_machines_gets_one(shoot: Shoot) -> None:
    """The autoscaler knows such a node from its machine class alone, also the room for the requests of the pod."""
    batch = pods.python("batch", 1, _IDLE, pool="batch", ready=pods.ALIVE)
    batch["spec"]["template"]["spec"]["tolerations"] = [{**_TAINT, "operator": "Equal"}]
    batch["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "50m", "memory": "64Mi"}}
    with _timed("from a pod to the first node of its pool"):
        _apply(shoot, batch)
        shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/batch", f"--timeout={GROWTH}s", timeout=GROWTH + 10)
    assert _sizes(shoot) == {"pool": 1, "web": 1, "batch": 1}


def test_a_restarted_autoscaler_scales_down_to_no_machine(shoot: Shoot) -> None:
    """The previous autoscaler checks a node that a pod needed again only after five minutes."""
    shoot.kubectl("-n", PROBE, "delete", "deployment", "batch", "--wait")
    shoot.control_plane("delete", "pods", "-l", "app=cluster-autoscaler", "--wait=false")

    with _timed("from the start of another one to no node"):
        eventually(lambda: "batch" not in _sizes(shoot), "no machine of the pool", GROWTH)


def test_the_autoscaler_is_removed_if_no_pool_may_grow(shoot: Shoot) -> None:
    shoot.change({"provider": {"workers": _pools(shoot, web={"maximum": 1}, batch=None)}})
    shoot.wait_until_reconciled(RECONCILIATION)

    kinds = "deployments,poddisruptionbudgets,serviceaccounts,roles,rolebindings,configmaps,secrets,managedresources"

    def left() -> list[str]:
        names = shoot.control_plane("get", kinds, "-o", "name").split()
        in_shoot = shoot.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()
        return [each for each in [*names, *in_shoot] if "cluster-autoscaler" in each]

    eventually(lambda: left() == [], "nothing is left", 60)


# What the tests do with the Shoot

_IDLE = "import signal; signal.pause()"


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s")


def _apply(shoot: Shoot, manifest: dict[str, Any]) -> None:
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def _pools(shoot: Shoot, **changes: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The pools as they are, but for some; None: without it."""
    pools = shoot.get()["spec"]["provider"]["workers"]
    return [
        {**pool, **(changes.get(pool["name"]) or {})} for pool in pools if changes.get(pool["name"], {}) is not None
    ]


def _sizes(shoot: Shoot) -> dict[str, int]:
    return {pool: len(nodes) for pool, nodes in shoot.nodes().items()}


def _nodes_of_pods(shoot: Shoot, app: str) -> set[str]:
    found = json.loads(shoot.kubectl("-n", PROBE, "get", "pods", "-l", f"app={app}", "-o", "json"))["items"]
    return {each["spec"]["nodeName"] for each in found if not each["metadata"].get("deletionTimestamp")}


def _annotations(shoot: Shoot, pool: str) -> dict[str, str]:
    return dict(_deployment(shoot, pool)["metadata"].get("annotations") or {})


def _deployment(shoot: Shoot, pool: str) -> dict[str, Any]:
    label = f"worker.gardener.cloud/name={pool}"
    [found] = json.loads(shoot.control_plane("get", "machinedeployments", "-l", label, "-o", "json"))["items"]
    made: dict[str, Any] = found
    return made

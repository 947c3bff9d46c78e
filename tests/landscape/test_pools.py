"""Worker pools of a running cluster: they grow, change in place, roll under load, and go.

The tests run in the order in which they stand, each on what the one before has left.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.secrets.crypto import KeyAlgorithm, self_signed_ca
from tests.landscape import pods
from tests.landscape.bastions import in_cloud
from tests.landscape.conftest import Landscape
from tests.landscape.load import apply, check_all_answered, counted, nodes_by_pod, run_under_load, web
from tests.landscape.pods import PROBE
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(420, func_only=True)]

RECONCILIATION = 270
DRAIN = 120
"""Seconds that the pool which never drains is given: enough to see that it is reported before it is cut off."""


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot with two pools of one machine: ``pool`` stays as it is while ``web`` changes."""
    shoot = Shoot(landscape, "pools", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(_with_pools(shoot.manifest(), web={})):
        yield shoot


def test_a_pool_grows_and_another_one_comes(shoot: Shoot) -> None:
    before = shoot.nodes()
    assert {pool: len(nodes) for pool, nodes in before.items()} == {"pool": 1, "web": 1}

    stubborn = {"machineControllerManager": {"machineDrainTimeout": f"{DRAIN}s"}}
    _change(shoot, web={"minimum": 2, "maximum": 2}, stubborn=stubborn)

    after = shoot.nodes()
    assert {pool: len(nodes) for pool, nodes in after.items()} == {"pool": 1, "web": 2, "stubborn": 1}
    assert after["pool"] == before["pool"]
    assert before["web"] < after["web"], "the machine that was there stays"


def test_settings_of_a_pool_reach_nodes_that_run(shoot: Shoot) -> None:
    before, authority = shoot.nodes(), _authority()

    _change(shoot, web={"kubernetes": {"kubelet": {"maxPods": 90}}, "caBundle": authority})

    assert shoot.nodes() == before, "no machine was replaced"
    for node in before["web"]:
        eventually(lambda: _room(shoot, node) == 90, f"the kubelet of {node} to take 90 pods", 30)
        eventually(lambda: authority in _trusted(shoot, node), f"machine {node} to trust the pool's authority", 30)
    (other,) = before["pool"]
    assert _room(shoot, other) == 110
    assert authority not in _trusted(shoot, other)


def test_a_service_behind_a_budget_answers_every_request_while_its_pool_rolls(shoot: Shoot) -> None:
    run_under_load(shoot, "web", client="pool")
    before, replicas = shoot.nodes(), nodes_by_pod(shoot, "web")
    assert set(replicas.values()) == before["web"], "one replica on each machine"
    eventually(lambda: counted(shoot)["answered"] > 50, "the client's first requests", 60)

    _change(shoot, web={"kubernetes": {"kubelet": {"maxPods": 90, "kubeReserved": {"cpu": "90m"}}}})

    after = shoot.nodes()
    assert len(after["web"]) == 2
    assert not after["web"] & before["web"], "each machine was replaced"
    assert after["pool"] == before["pool"]
    seen = check_all_answered(shoot)
    replaced = nodes_by_pod(shoot, "web")
    assert not replaced.keys() & replicas.keys()
    assert replaced.keys() <= set(seen["by"]), "the new replicas answer"


def test_a_pool_that_can_never_drain_is_named_with_its_pods_and_cut_off(shoot: Shoot) -> None:
    apply(shoot, web("stubborn", 1), pods.budget("stubborn", maxUnavailable=0))
    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/stubborn", "--timeout=90s")
    (pod,) = nodes_by_pod(shoot, "stubborn")
    eventually(lambda: _get(shoot, "pdb", "stubborn")["status"].get("currentHealthy") == 1, "a healthy pod", 30)
    (node,) = shoot.nodes()["stubborn"]

    _change(shoot, wait=False, stubborn=None)

    def complaint() -> str:
        errors = shoot.get()["status"].get("lastErrors") or []
        return next((each["description"] for each in errors if pod in each["description"]), "")

    told = eventually(complaint, "an error of the Shoot that names the pod", DRAIN - 10)
    for expected in ("pool stubborn", node, f"{PROBE}/{pod}: PodDisruptionBudget {PROBE}/stubborn"):
        assert expected in told, told
    assert "requires zero voluntary evictions" in told
    assert shoot.kubectl("get", "node", node, "-o", "jsonpath={.spec.unschedulable}") == "true"
    assert pod in nodes_by_pod(shoot, "stubborn"), "until then it is left alone"

    shoot.wait_until_reconciled(RECONCILIATION)
    assert shoot.nodes().keys() == {"pool", "web"}
    assert not shoot.get()["status"].get("lastErrors")


# What the tests do with the Shoot


def _with_pools(manifest: dict[str, Any], **pools: dict[str, Any] | None) -> dict[str, Any]:
    """The spec with pools added or changed next to the first one; None: without that pool."""
    manifest = deepcopy(manifest)
    workers = manifest["spec"]["provider"]["workers"]
    first = workers[0]
    for name, fields in pools.items():
        known = next((each for each in workers if each["name"] == name), None)
        if fields is None:
            workers.remove(known)
        elif known is not None:
            known.update(fields)
        else:
            workers.append(
                {"name": name, "machine": {"type": first["machine"]["type"]}, "minimum": 1, "maximum": 1, **fields}
            )
    return manifest


def _change(shoot: Shoot, *, wait: bool = True, **pools: dict[str, Any] | None) -> None:
    """Change pools of the running Shoot, and wait until it is so."""
    changed = _with_pools(shoot.get(), **pools)
    shoot.change({"provider": {"workers": changed["spec"]["provider"]["workers"]}})
    if wait:
        shoot.wait_until_reconciled(RECONCILIATION)


def _room(shoot: Shoot, node: str) -> int:
    """How many pods its kubelet takes."""
    live = json.loads(shoot.kubectl("get", "node", node, "-o", "json"))
    return int(live["status"]["capacity"]["pods"])


def _authority() -> str:
    """Certificate of a new authority."""
    validity = timedelta(days=1)
    made = self_signed_ca("registry", algorithm=KeyAlgorithm.P256, now=datetime.now(UTC), validity=validity)
    return made.certificate.decode().strip()


def _trusted(shoot: Shoot, node: str) -> str:
    """Certificates of the authorities that programs on a machine trust, such as containerd."""
    return in_cloud(shoot, "exec", node, "--", "cat", "/etc/ssl/certs/ca-certificates.crt")


def _get(shoot: Shoot, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shoot.kubectl("-n", PROBE, "get", kind, name, "-o", "json"))
    return found

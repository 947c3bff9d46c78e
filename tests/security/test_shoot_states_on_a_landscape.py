"""A seed that writes more into a ShootState than it should, on a landscape: the other seed does not do it."""

import json
from collections.abc import Iterator

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_BINDING = "gardener-test-intruder"
_MOVE_SECONDS = 240.0


@pytest.fixture(scope="module")
def mover(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "intruder", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created():
        yield shoot


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
def test_a_move_with_a_cluster_role_binding_in_the_shoot_state_binds_nothing_in_the_other_seed(mover: Shoot) -> None:
    """The Shoot's own seed may write the ShootState. The operation fails, and says what it refused."""
    source, destination = mover.seed, mover.other_seed
    _plant(mover, source)
    mover.gardener("shoot", "move", mover.reference, "--to", destination)

    eventually(lambda: _failed(mover), "the operation fails", _MOVE_SECONDS)

    for seed in (source, destination):
        listed = mover.landscape.argv(seed, "get", "clusterrolebinding", _BINDING)
        assert "not found" in refused(*listed)
    mover.garden("patch", "shootstate", mover.name, "--type=json", "-p", json.dumps(_removal(mover)))
    mover.garden("annotate", "shoot", mover.name, "gardener.cloud/operation=retry")
    eventually(lambda: _restored(mover), "it moves", _MOVE_SECONDS)
    mover.has_moved()


def _restored(shoot: Shoot) -> bool:
    operation = shoot.get()["status"]["lastOperation"]
    return (operation["type"], operation["state"]) == ("Restore", "Succeeded")


def _plant(shoot: Shoot, source: str) -> None:
    """Write what a compromised gardenlet of the source would: a migration adds to it."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _BINDING},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "intruder"}],
    }
    reference = {"apiVersion": binding["apiVersion"], "kind": binding["kind"], "name": _BINDING}
    owner = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "name": shoot.name, "uid": shoot.uid}
    entry = {"kind": "Network", "name": shoot.name, "resources": [{"name": "it", "resourceRef": reference}]}
    state = {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "ShootState",
        "metadata": {
            "name": shoot.name,
            "annotations": {"shoot.gardener.cloud/migrating-from": source},
            "ownerReferences": [owner],
        },
        "spec": {"extensions": [entry], "resources": [{**reference, "data": binding}]},
    }
    shoot.garden("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(state))


def _removal(shoot: Shoot) -> list[dict[str, object]]:
    spec = json.loads(shoot.garden("get", "shootstate", shoot.name, "-o", "json"))["spec"]
    return [
        {"op": "replace", "path": f"/spec/{part}", "value": [each for each in spec[part] if kept(each)]}
        for part, kept in {
            "extensions": lambda each: each["kind"] != "Network",
            "resources": lambda each: each["name"] != _BINDING,
        }.items()
    ]


def _failed(shoot: Shoot) -> bool:
    status = shoot.get()["status"]
    errors = " ".join(each["description"] for each in status.get("lastErrors") or ())
    return status["lastOperation"]["state"] in ("Failed", "Error") and f"ShootState {shoot.reference}" in errors

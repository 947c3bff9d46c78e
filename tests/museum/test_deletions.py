"""Deletions that did not end.

Activities run against API servers in memory.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.shoot import cleanup
from api import resources
from api.contracts.operations import OperationType, ShootTask
from api.resources import Resource
from kube.errors import NotFound
from tests.unit.cleanup.conftest import OneShoot, activities, clusters, shoot, task
from tests.unit.cleanup.test_cleanup import GRACE, put
from tests.unit.components.test_control_plane import DEPLOYMENTS, NAMESPACE, SHOOT, TASK, World, world
from tests.unit.kube.api_server import ApiServer as Memory
from tests.unit.kube.api_server import refuse

__all__ = ["activities", "clusters", "shoot", "task", "world"]

DELETE = TASK.model_copy(update={"operation": OperationType.DELETE})


def outlast_their_namespace(shoot: Memory, *places: tuple[Resource, str]) -> None:
    """Put objects with a finalizer into namespaces that are gone: each change of them is answered with 404."""
    for kind, namespace in places:
        put(shoot, kind, "left", namespace, finalizers=["example.org/no-controller-removes-this"])

    def answer(request: Any) -> Any:
        if request.path == "/apis/snapshot.storage.k8s.io/v1":
            return refuse(404, "NotFound", "no such group")
        _, _, rest = request.path.partition("/namespaces/")
        namespace, _, inside = rest.partition("/")
        gone = inside and shoot.find(resources.NAMESPACE.path(), namespace) is None
        return refuse(404, "NotFound", f'namespaces "{namespace}" not found') if gone and changes(request) else None

    shoot.answer = answer


def changes(request: Any) -> bool:
    return request.method in ("PATCH", "PUT", "POST")


@pytest.mark.exhibit(
    threads=["gardener/gardener#7762"],
    happened="An object that was created while its namespace was finalized outlasted the namespace, and each further "
    "attempt of the deletion failed because the namespace was not found.",
    here="The cleanup creates the namespace again, because the API server refuses each change of an object without it, "
    "and removes the finalizers of the object.",
)
async def test_gardener_7762_an_object_whose_namespace_is_gone(
    shoot: Memory, activities: cleanup.CleanupActivities, clusters: OneShoot, task: ShootTask
) -> None:
    outlast_their_namespace(shoot, (resources.SERVICE, "user"))
    client = await clusters.shoot(task.technical_id)
    with pytest.raises(NotFound):
        await client.patch(resources.SERVICE, "left", "user", {"metadata": {"finalizers": None}})
    clusters.annotations[GRACE] = "1"

    await activities.clean_kubernetes_resources(task)

    assert shoot.find(resources.SERVICE.path(), "left", "user") is None


@pytest.mark.exhibit(
    threads=["gardener/gardener#13847"],
    happened="Objects of several kinds in namespaces that were gone failed the cleanup again and again, so that "
    "deletions took hours longer than the time after which finalizers are removed.",
    here="One task of the deletion removes the finalizers of all kinds in all namespaces side by side, when the same "
    "grace period is over for them.",
)
async def test_gardener_13847_one_grace_period_for_all_kinds_and_namespaces(
    shoot: Memory, activities: cleanup.CleanupActivities, clusters: OneShoot, task: ShootTask
) -> None:
    grace, kinds = 4, (resources.SERVICE, resources.JOB, resources.PERSISTENT_VOLUME_CLAIM)
    places = [(kind, name) for kind in kinds for name in ("mission-control", "family-search", "search")]
    outlast_their_namespace(shoot, *places)
    clusters.annotations[GRACE] = str(grace)
    began = datetime.now(UTC)

    await activities.clean_kubernetes_resources(task)

    assert (datetime.now(UTC) - began).total_seconds() < len(places) * grace
    assert [each for each in places if shoot.find(each[0].path(), "left", each[1])] == []


def pinned(world: World, **server: Any) -> None:
    kubernetes = {**SHOOT["spec"]["kubernetes"], "kubeAPIServer": server}
    world.pin({**SHOOT, "spec": {**SHOOT["spec"], "kubernetes": kubernetes}})


def flag(world: World, name: str) -> str | None:
    """Value of a flag of the API server that was deployed; None if it has no such flag."""
    pod = world.seed.find(DEPLOYMENTS, "kube-apiserver", NAMESPACE)["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"][1:]
    return dict(each.removeprefix("--").split("=", 1) for each in command).get(name)


@pytest.mark.exhibit(
    threads=["gardener/gardener#5362"],
    happened="A feature gate that the new version locks kept kube-apiserver from starting, the deletion waited for "
    "kube-apiserver, and the owner could not mend the spec of a Shoot in deletion.",
    here="A deletion deploys kube-apiserver without the owner's settings that may keep it from starting.",
)
async def test_gardener_5362_a_deletion_with_settings_that_keep_the_api_server_from_starting(world: World) -> None:
    pinned(world, featureGates={"BoundServiceAccountTokenVolume": False}, runtimeConfig={"apps/v1": False})
    await world.control_plane.deploy_apiserver(TASK)
    assert "BoundServiceAccountTokenVolume=false" in (flag(world, "feature-gates") or "")

    await world.control_plane.deploy_apiserver(DELETE)

    assert "BoundServiceAccountTokenVolume" not in (flag(world, "feature-gates") or "")
    assert "apps/v1" not in (flag(world, "runtime-config") or "")


@pytest.mark.exhibit(
    threads=["gardener/gardener#3115"],
    happened="A deletion deployed kube-apiserver once more, and failed at an audit policy that its owner had deleted "
    "already.",
    here="A deletion does not read the audit policy.",
)
async def test_gardener_3115_a_deletion_without_its_audit_policy(world: World) -> None:
    pinned(world, auditConfig={"auditPolicy": {"configMapRef": {"name": "audit"}}})
    with pytest.raises(ApplicationError, match="audit policy of shoot"):
        await world.control_plane.deploy_apiserver(TASK)

    await world.control_plane.deploy_apiserver(DELETE)

    assert flag(world, "audit-policy-file") is not None

"""An extension tries to use the rights of a seed's resource manager, which may write every object of the seed.

Etcd, kube-apiserver and the resource manager are real.
"""

import asyncio
import base64
import functools
import json
from typing import Any

import pytest

from api import resources
from kube.client import KubeClient
from kube.errors import Forbidden
from tests.gardens import ApiServer
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.test_of_seed import EXTENSION, admin, config_map, running, server, write

__all__ = ["admin", "running", "server"]

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built", "running"),
    pytest.mark.timeout(180, func_only=True),
]

CONTROL_PLANE, MINE = "shoot--a--b", "one"
RBAC = "rbac.authorization.k8s.io"
ADMINISTRATOR: dict[str, Any] = {
    "apiVersion": f"{RBAC}/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "intruder"},
    "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": RBAC, "kind": "User", "name": EXTENSION}],
}
OF_THE_GARDEN_NAMESPACE = config_map("garden", by="intruder")
STOLEN = (("intruder", ADMINISTRATOR), ("wanted", OF_THE_GARDEN_NAMESPACE))


async def _has_rights(admin: KubeClient, extension: KubeClient) -> None:
    """Let the extension write Secrets and ManagedResources, also the status, of one control plane."""
    rules = [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]},
        {
            "apiGroups": [resources.MANAGED_RESOURCE.group],
            "resources": ["managedresources", "managedresources/status"],
            "verbs": ["*"],
        },
    ]
    place = {"name": "extension", "namespace": CONTROL_PLANE}
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "extension"}
    for each in (
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": place, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": place,
            "roleRef": reference,
            "subjects": ADMINISTRATOR["subjects"],
        },
    ):
        await admin.apply(each, manager="test")

    async def may_write() -> bool:
        try:
            await extension.find(resources.SECRET, MINE, CONTROL_PLANE)
        except Forbidden:
            await asyncio.sleep(0.05)  # the clock of a poll
            return False
        return True

    await until(may_write)


async def _condition(admin: KubeClient) -> dict[str, Any]:
    found = await admin.get(resources.MANAGED_RESOURCE, MINE, CONTROL_PLANE)
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == "ResourcesApplied"), {})


async def _is(admin: KubeClient, status: str, of: str = "") -> bool:
    condition = await _condition(admin)
    return condition.get("status") == status and of in condition["message"]


@pytest.mark.attack(actor="T4", asset="A2", finding=39)
async def test_an_extension_changes_the_secret_of_a_managed_resource_and_reaches_no_object_elsewhere(
    server: ApiServer, admin: KubeClient
) -> None:
    """The ManagedResource of class seed is that of another component, which keeps it in the control plane."""
    await write(admin, CONTROL_PLANE, config_map(CONTROL_PLANE, by="component"), **{"class": "seed"})
    await until(functools.partial(_is, admin, "True"), 60)
    async with server.client(EXTENSION) as extension:
        await _has_rights(admin, extension)
        for name, each in STOLEN:
            data = {"0.json": base64.b64encode(json.dumps(each).encode()).decode()}
            await extension.patch(resources.SECRET, MINE, CONTROL_PLANE, {"data": data})
            await until(functools.partial(_is, admin, "False", name), 30)

    assert "may hold only objects of this namespace" in (await _condition(admin))["message"]
    assert await admin.find(resources.CLUSTER_ROLE_BINDING, "intruder", None) is None
    assert await admin.find(resources.CONFIG_MAP, "wanted", "garden") is None
    assert (await admin.get(resources.CONFIG_MAP, "wanted", CONTROL_PLANE))["data"] == {"by": "component"}


@pytest.mark.attack(actor="T4", asset="A2", finding=39)
async def test_an_extension_writes_objects_into_a_status_and_the_resource_manager_deletes_none_of_them(
    server: ApiServer, admin: KubeClient
) -> None:
    """The resource manager deletes the objects of a deleted ManagedResource as the status names them."""
    await admin.apply(config_map("garden", by="component"), manager="test")
    await write(admin, CONTROL_PLANE, config_map(CONTROL_PLANE, by="component"), **{"class": "seed"})
    await until(functools.partial(_is, admin, "True"), 60)
    stolen = {"apiVersion": "v1", "kind": "ConfigMap", "name": "wanted", "namespace": "garden"}
    own = {**stolen, "namespace": CONTROL_PLANE}
    async with server.client(EXTENSION) as extension:
        await _has_rights(admin, extension)
        await extension.patch(
            resources.MANAGED_RESOURCE,
            MINE,
            CONTROL_PLANE,
            {"status": {"resources": [stolen, own]}},
            subresource="status",
        )
        await extension.delete(resources.MANAGED_RESOURCE, MINE, CONTROL_PLANE)

    async def is_gone() -> bool:
        return await admin.find(resources.MANAGED_RESOURCE, MINE, CONTROL_PLANE) is None

    await until(is_gone, 30)
    assert await admin.find(resources.CONFIG_MAP, "wanted", CONTROL_PLANE) is None
    assert (await admin.get(resources.CONFIG_MAP, "wanted", "garden"))["data"] == {"by": "component"}

"""Rules of kinds of a seed at a real API server: fields that are not supported, and what is decided at the creation."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from activities.components import etcd as component
from activities.provider_local.machines import machine_class, machine_deployment
from api.crds import crd
from api.druid.v1alpha1.etcd import Etcd
from api.meta import KubeObject
from api.resources import ETCD
from kube.client import KubeClient, Object
from kube.errors import ApiError
from tests.gardens import ApiServer
from tests.unit.api.test_fields import OF_SEED, REFUSED_BY_API_SERVER, changed, rule_of
from tests.unit.etcd.test_controller import SEVERAL, etcd
from tests.unit.provider_local.test_machines import pool
from tests.unit.provider_local.test_machines import wanted as wanted_machines
from workers.machine_controller_manager.machine_deployment import new_set
from workers.machine_controller_manager.machine_set import new_machine

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]


COPY: Object = {
    "apiVersion": "druid.gardener.cloud/v1alpha1",
    "kind": "EtcdCopyBackupsTask",
    "metadata": {"name": "copied", "namespace": "default"},
    "spec": {
        **{
            side: {"provider": "local", "container": side.lower(), "prefix": "one", "secretRef": {"name": side.lower()}}
            for side in ("sourceStore", "targetStore")
        },
        "waitForFinalSnapshot": {"enabled": True, "timeout": "5m"},
    },
}


def bases() -> dict[str, Object]:
    """An object of each kind, as the components write it."""
    [pool_of_one] = wanted_machines(pool())
    deployment = machine_deployment(pool_of_one, "default", "local", 1)
    owner = {**deployment, "metadata": {**deployment["metadata"], "uid": "uid-1"}}
    machines = new_set(owner, 1)
    machine = new_machine({**machines, "metadata": {**machines["metadata"], "uid": "uid-2"}}, "one")
    class_ = machine_class(pool_of_one, "default", {"name": "account", "namespace": "default"}, "local")
    objects = (wanted("etcd"), COPY, deployment, machines, machine, class_)
    return {each["kind"]: each for each in objects}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        asyncio.run(made.prepare_seed())
        yield made


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with server.client() as made:
        yield made


def wanted(name: str, **changes: Any) -> Object:
    made = etcd(**SEVERAL, **changes)
    made["metadata"] = {"name": name, "namespace": "default"}
    return made


def existing(*, pods: int = 3) -> Object:
    return component.existing_cluster(component.MAIN, "default", "", pods)


@pytest.mark.parametrize(
    ("kind", "field", "row"),
    REFUSED_BY_API_SERVER,
    ids=[f"{kind.__name__}-{field}" for kind, field, _ in REFUSED_BY_API_SERVER],
)
async def test_a_field_that_nothing_reads_is_refused(
    admin: KubeClient, kind: type[KubeObject], field: str, row: dict[str, Any]
) -> None:
    """A field that was accepted in silence would promise what no component does."""
    refused = changed(bases()[kind.__name__], field, row)
    with pytest.raises(ApiError, match=rf"{re.escape(row.get('under', field))}: Invalid value: .*not supported: "):
        await admin.create(refused)


@pytest.mark.parametrize("kind", OF_SEED, ids=lambda kind: kind.__name__)
async def test_the_fields_that_the_components_write_are_accepted_also_with_empty_ones(
    admin: KubeClient, kind: type[KubeObject]
) -> None:
    """An empty list means the same as none: clients that know all fields write one."""
    made = deepcopy(bases()[kind.__name__])
    for of_kind, field, row in REFUSED_BY_API_SERVER:
        if of_kind is kind and any(part in rule_of(kind, field, row)["rule"] for part in ("== 0", "!has(")):
            made = changed(made, field, {**row, "refused": type(row["refused"])()})
    await admin.create(made)


async def test_a_machine_deployment_of_an_extension_of_gardener_is_accepted(admin: KubeClient) -> None:
    """Gardener's library for extensions writes this period into each MachineDeployment."""
    made = bases()["MachineDeployment"]
    made["metadata"]["name"] = "of-an-extension"
    await admin.create({**made, "spec": {**made["spec"], "minReadySeconds": 500}})


@pytest.mark.parametrize("kind", ["MachineDeployment", "MachineSet"])
@pytest.mark.parametrize("template", [None, {"metadata": {}}], ids=["no template", "no spec"])
async def test_machines_without_a_template_are_refused(admin: KubeClient, kind: str, template: Object | None) -> None:
    """Their controller could create no machine."""
    made = bases()[kind]
    made["metadata"]["name"] = "without"
    with pytest.raises(ApiError, match=r"spec\.template(\.spec)?: Required value"):
        await admin.create({**made, "spec": {**made["spec"], "template": template}})


async def test_an_etcd_keeps_such_a_field_from_before_while_others_change(admin: KubeClient) -> None:
    definition = crd(Etcd)
    accepting = json.loads(json.dumps(definition), object_hook=without_refusals)
    await admin.apply(accepting, manager="test")
    older = wanted("older")
    older["spec"]["etcd"]["etcdDefragTimeout"] = "1m"
    await settled(lambda: admin.create(older))
    await admin.apply(definition, manager="test")
    await settled(lambda: refuses(admin, "newer"))

    found = await admin.patch(ETCD, "older", "default", {"spec": {"etcd": {"quota": "4Gi"}}})

    assert found["spec"]["etcd"]["etcdDefragTimeout"] == "1m"


def without_refusals(node: dict[str, Any]) -> dict[str, Any]:
    left = [each for each in node.get("x-kubernetes-validations") or () if "not supported" not in each["message"]]
    return {**node, "x-kubernetes-validations": left} if "x-kubernetes-validations" in node else node


async def refuses(admin: KubeClient, name: str) -> None:
    newer = wanted(name)
    newer["spec"]["etcd"]["etcdDefragTimeout"] = "1m"
    try:
        await admin.create(newer)
    except ApiError:
        return
    await admin.delete(ETCD, name, "default")
    raise AssertionError("it was accepted")


async def settled(act: Callable[[], Awaitable[object]]) -> None:
    """Wait until an API server that has a new definition does this."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ApiError, AssertionError):
                await act()
                return
            await asyncio.sleep(0.1)


async def test_a_cluster_to_join_can_be_removed_but_neither_changed_nor_added(admin: KubeClient) -> None:
    """An update that adds a cluster to join would replace data, and members cannot go from one cluster to another."""
    await admin.create(wanted("joins", member_prefix="seed2-", existing=existing()))
    other = {"spec": {"etcd": {"bootstrapWithExistingCluster": existing(pods=2)}}}
    for patch in (other, {"spec": {"memberNamePrefix": "seed3-"}}):
        with pytest.raises(ApiError, match=r"bootstrapWithExistingCluster|immutable"):
            await admin.patch(ETCD, "joins", "default", patch)
    await admin.patch(ETCD, "joins", "default", {"spec": {"etcd": {"bootstrapWithExistingCluster": None}}})
    with pytest.raises(ApiError, match="can only be set at the creation"):
        await admin.patch(ETCD, "joins", "default", other)


async def test_members_that_join_need_names_of_their_own(admin: KubeClient) -> None:
    with pytest.raises(ApiError, match="set memberNamePrefix"):
        await admin.create(wanted("same-names", existing=existing()))

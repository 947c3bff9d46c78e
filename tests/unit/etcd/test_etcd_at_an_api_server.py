"""Rules of ``Etcd`` objects at a real API server: which cluster members join is decided when the object is created."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from activities.components import etcd as component
from api.resources import ETCD
from kube.client import KubeClient, Object
from kube.errors import ApiError
from tests.gardens import ApiServer
from tests.unit.etcd.test_controller import SEVERAL, etcd

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]


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

"""Control planes that are there when an extension comes, against API servers in memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from activities.clusters import Clusters
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from tests.unit.seed.test_extension_access import (
    BINDING,
    CLUSTER_ROLES,
    CORE,
    REGISTRATIONS,
    ROLE_BINDINGS,
    ROLES,
    cluster_role,
    registration,
)
from workers.gardenlet.extension_access import ExtensionAccessController

NAMESPACES = "/api/v1/namespaces"
OLD, SOURCE = "shoot--a--old", "source-shoot--a--old--uid"


@dataclass
class Running:
    """A gardenlet's controller, in a seed with one control plane."""

    garden: ApiServer
    seed: ApiServer

    def namespace(self, name: str, *, uid: str | None = "uid", **metadata: Any) -> None:
        annotations = {"shoot.gardener.cloud/uid": uid} if uid else {}
        self.seed.put(NAMESPACES, {"metadata": {"name": name, "annotations": annotations, **metadata}})

    def bound(self, namespace: str = OLD) -> bool:
        return self.seed.find(ROLE_BINDINGS, BINDING, namespace) is not None

    def readable(self, secret: str) -> bool:
        """Whether a Secret of namespace garden is shared with an extension."""
        name = f"extension-secret:{secret}"
        return bool(self.seed.find(ROLES, name, "garden") and self.seed.find(ROLE_BINDINGS, name, "garden"))


@pytest.fixture
async def gardenlet() -> AsyncIterator[Running]:
    async with ApiServer().running() as garden, ApiServer().running() as seed:
        running = Running(garden, seed)
        running.namespace(OLD)
        spec = {"backup": {"provider": "x"}, "dns": {"provider": {"type": "x"}}, "ingress": {"domain": "test"}}
        garden.put(f"{CORE}/seeds", {"metadata": {"name": "seed-1", "uid": "5eed"}, "spec": spec})
        for name, seed_name in ((SOURCE, "seed-1"), ("source-other", "seed-2"), ("shoot--a--old--uid", "seed-1")):
            entry = {"metadata": {"name": name}, "spec": {"bucketName": "old", "seedName": seed_name}}
            garden.put(f"{CORE}/backupentries", entry, "garden-a")
        garden.put(f"{CORE}/backupbuckets", {"metadata": {"name": "old"}, "spec": {"provider": {"type": "x"}}})
        served = [(kind, "x") for kind in ("BackupBucket", "BackupEntry", "DNSRecord")]
        garden.put(REGISTRATIONS, registration("provider-x", *served))
        clusters = Clusters(garden.client(), seed.client(), "seed-1")
        controller = asyncio.create_task(ExtensionAccessController(clusters).run())
        yield running
        controller.cancel()
        await asyncio.gather(controller, return_exceptions=True)
        await clusters.close()
        await clusters.garden.close()
        await clusters.seed.close()


async def test_an_upgraded_extension_has_rights_in_existing_control_planes(
    gardenlet: Running,
) -> None:
    """Its chart takes the rights on the whole seed away in the same moment."""
    gardenlet.seed.put(CLUSTER_ROLES, cluster_role())

    await until(lambda: gardenlet.bound())
    await until(lambda: all(map(gardenlet.readable, ("backup-bucket", "dnsrecord-seed-ingress", SOURCE))))
    assert not gardenlet.readable("source-other"), "the way of another seed"
    assert not gardenlet.readable("shoot--a--old--uid")


async def test_rights_that_are_lost_come_back(gardenlet: Running) -> None:
    gardenlet.seed.put(CLUSTER_ROLES, cluster_role())
    await until(lambda: gardenlet.bound())

    gardenlet.seed.remove(ROLE_BINDINGS, BINDING, OLD)

    await until(lambda: gardenlet.bound())


async def test_an_extension_that_is_removed_loses_its_rights(gardenlet: Running) -> None:
    gardenlet.seed.put(CLUSTER_ROLES, cluster_role())
    await until(lambda: gardenlet.bound() and gardenlet.readable("backup-bucket"))

    gardenlet.seed.remove(CLUSTER_ROLES, "provider-x:control-planes")

    await until(lambda: not gardenlet.bound() and not gardenlet.readable("backup-bucket"))


async def test_no_extension_gets_rights_in_a_namespace_that_is_no_control_plane(gardenlet: Running) -> None:
    """Nor in one that is being deleted, where nothing can be made any more."""
    gardenlet.namespace("kube-system", uid=None)
    gardenlet.namespace("garden", uid=None, labels={"gardener.cloud/role": "shoot"})
    gardenlet.namespace("shoot--a--going", deletionTimestamp="2026-11-21T10:00:00Z", finalizers=["kubernetes"])
    gardenlet.seed.put(CLUSTER_ROLES, cluster_role())
    gardenlet.namespace("shoot--a--new")

    await until(lambda: gardenlet.bound() and gardenlet.bound("shoot--a--new"))
    for name in ("kube-system", "garden", "shoot--a--going"):
        assert not gardenlet.bound(name)

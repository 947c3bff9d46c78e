"""Flows that began again at the wrong place."""

import asyncio
from typing import Any, cast

import pytest

from activities.clusters import Clusters
from activities.seed.extensions import ExtensionActivities
from activities.seed.survey import SurveyActivities
from api import resources
from api.constants import SHOOT_UID
from api.contracts.flows import FlowInput, ShootFacts
from api.contracts.operations import OperationType, ShootTask
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from tests.unit.seed.test_extensions import EXTENSIONS, NAMESPACE, TASK, clusters, extensible, garden, seed
from workflows.shoot.base import ShootFlow
from workflows.shoot.delete import delete_flow

__all__ = ["clusters", "extensible", "garden", "seed"]

DELETE = TASK.model_copy(update={"operation": OperationType.DELETE})
NAMESPACES = "/api/v1/namespaces"


async def deletion(clusters: Any, seed: ApiServer, task: ShootTask = DELETE) -> ShootFlow:
    """The flow of a deletion for a control-plane namespace that is being deleted."""
    marks = {SHOOT_UID: task.shoot.uid}
    metadata = {"name": NAMESPACE, "annotations": marks, "labels": marks, "finalizers": ["kubernetes"]}
    seed.put(NAMESPACES, {"metadata": {**metadata, "deletionTimestamp": "2026-11-21T10:00:00Z"}})
    survey = await SurveyActivities(cast(Clusters, clusters)).survey(task)
    return delete_flow(FlowInput(task=task, facts=ShootFacts()), survey)


@pytest.mark.exhibit(
    threads=["gardener/gardener#3090"],
    happened="A deletion whose namespace did not end began again, and failed because nothing can be created in a "
    "namespace that is being deleted.",
    here="A deletion surveys its namespace first, deploys nothing into one that is being deleted, and continues at the "
    "wait for its end.",
)
async def test_gardener_3090_a_deletion_deploys_nothing_into_a_namespace_that_ends(
    clusters: Any, seed: ApiServer
) -> None:
    flow = await deletion(clusters, seed)

    runs = {name for name in flow.names if not flow.skipped(name)}
    assert {name for name in runs if name.startswith(("deploy_", "sync_", "init_", "ensure_"))} == set()
    assert "wait_namespace_deleted" in runs


@pytest.mark.exhibit(
    threads=["gardener/gardener#4640"],
    happened="A deletion did not wait for the object of an extension, found it in its next attempt when the control "
    "plane was gone, and could not end because the extension waited for that control plane.",
    here="The deletion lists the objects of extensions at the API server, and waits until they are gone before it "
    "deletes the API server; the watch cache cannot hide one.",
)
async def test_gardener_4640_a_deletion_waits_for_an_extension_that_its_cache_does_not_have(
    extensible: ExtensionActivities, clusters: Any, seed: ApiServer
) -> None:
    flow = await deletion(clusters, seed)
    wait = "wait_extensions_before_apiserver_deleted"
    assert not flow.skipped(wait)
    assert flow.comes_after("delete_apiserver", wait)

    cache = clusters.seed_caches.of(resources.EXTENSION)
    await cache.synced()
    seed.watches_flow.clear()
    spec = {"type": "late"}
    seed.put(EXTENSIONS, {"metadata": {"name": "late", "namespace": NAMESPACE, "finalizers": ["x/y"]}, "spec": spec})

    await extensible.delete_extensions_before_apiserver(DELETE)
    waiting = asyncio.ensure_future(extensible.wait_extensions_before_apiserver_deleted(DELETE))
    asked = ("GET", f"/apis/extensions.gardener.cloud/v1alpha1/namespaces/{NAMESPACE}/extensions/late")
    before = seed.requests.count(asked)
    await until(lambda: seed.requests.count(asked) > before or waiting.done())
    assert cache.get("late", NAMESPACE) is None
    assert not waiting.done()

    seed.watches_flow.set()
    seed.change(EXTENSIONS, "late", NAMESPACE, {"metadata": {"finalizers": None}})
    async with asyncio.timeout(10):
        await waiting

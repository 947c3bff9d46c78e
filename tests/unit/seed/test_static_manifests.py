"""Secrets of the seed with manifests for shoots: selection of the shoots, and removal."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.clusters import ClusterView
from activities.seed.static_manifests import StaticManifestActivities
from api.errors import ErrorCode
from tests.unit.kube.api_server import ApiServer
from tests.unit.seed.test_references import NAMESPACE, SECRETS, TASK

MANAGED = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
NAME = "static-manifests-from-seed"
SELECTOR = "static-manifests.shoot.gardener.cloud/selector"
PRODUCTION = {"environment": "production"}


class Seed:
    def __init__(self, server: ApiServer, activities: StaticManifestActivities) -> None:
        self.server = server
        self.populate = activities.populate_static_manifests

    def put(self, name: str, data: str = "bWFuaWZlc3Q=", selector: str | None = None, label: str = "true") -> None:
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": "garden",
            "labels": {"shoot.gardener.cloud/static-manifests": label},
        }
        if selector is not None:
            metadata["annotations"] = {SELECTOR: selector}
        self.server.put(SECRETS, {"metadata": metadata, "type": "Opaque", "data": {"manifests.yaml": data}})

    def copies(self) -> set[str]:
        return {name for path, place, name in self.server.objects if (path, place) == (SECRETS, NAMESPACE)}

    def references(self) -> list[str]:
        """Secrets that the ManagedResource refers to; empty without a ManagedResource."""
        found = self.server.find(MANAGED, NAME, NAMESPACE)
        return [each["name"] for each in found["spec"]["secretRefs"]] if found else []


@pytest.fixture
async def seed() -> AsyncIterator[Seed]:
    async with ApiServer().running() as server, server.client() as client:
        shoot = {"metadata": {"name": "demo", "labels": PRODUCTION}, "spec": {}}

        async def cluster(_: str) -> ClusterView:
            return ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})

        yield Seed(server, StaticManifestActivities(SimpleNamespace(seed=client, cluster=cluster)))  # type: ignore[arg-type]


async def test_selected_manifests_are_copied_and_handed_over(seed: Seed) -> None:
    seed.put("quotas")
    seed.put("rights", "cmlnaHRz")
    seed.put("unlabelled", label="false")
    result = await seed.populate(TASK)
    assert seed.references() == ["static-manifests-quotas", "static-manifests-rights"]
    assert seed.copies() == set(seed.references())
    assert result.note == "static-manifests-quotas, static-manifests-rights"
    copy = seed.server.find(SECRETS, "static-manifests-rights", NAMESPACE)
    assert copy is not None
    assert (copy["type"], copy["data"]) == ("Opaque", {"manifests.yaml": "cmlnaHRz"})
    managed = seed.server.find(MANAGED, NAME, NAMESPACE)
    assert managed is not None
    assert managed["metadata"]["labels"]["origin"] == "gardener"
    assert managed["spec"]["injectLabels"] == {"shoot.gardener.cloud/no-cleanup": "true"}


async def test_changed_manifests_are_copied_and_a_second_run_writes_nothing(seed: Seed) -> None:
    seed.put("quotas")
    await seed.populate(TASK)
    seed.put("quotas", "bmV3")
    await seed.populate(TASK)
    copy = seed.server.find(SECRETS, "static-manifests-quotas", NAMESPACE)
    assert copy is not None
    assert copy["data"] == {"manifests.yaml": "bmV3"}
    version = copy["metadata"]["resourceVersion"]
    await seed.populate(TASK)
    again = seed.server.find(SECRETS, "static-manifests-quotas", NAMESPACE)
    assert again is not None
    assert again["metadata"]["resourceVersion"] == version


async def test_removed_manifests_are_deleted_and_other_secrets_stay(seed: Seed) -> None:
    seed.server.put(SECRETS, {"metadata": {"name": "of-another-owner", "namespace": NAMESPACE}})
    seed.put("quotas")
    seed.put("rights")
    await seed.populate(TASK)
    del seed.server.objects[SECRETS, "garden", "quotas"]
    await seed.populate(TASK)
    assert seed.references() == ["static-manifests-rights"]
    assert seed.copies() == {"static-manifests-rights", "of-another-owner"}
    seed.put("rights", selector='{"matchLabels": {"environment": "development"}}')
    await seed.populate(TASK)
    assert seed.references() == []
    assert seed.server.find(MANAGED, NAME, NAMESPACE) is None
    assert seed.copies() == {"of-another-owner"}


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        ('{"matchLabels": {"environment": "production"}}', True),
        ('{"matchLabels": {"environment": "development"}}', False),
        ('{"matchExpressions": [{"key": "environment", "operator": "In", "values": ["production", "test"]}]}', True),
        ('{"matchExpressions": [{"key": "environment", "operator": "DoesNotExist"}]}', False),
        ("{}", True),
    ],
)
async def test_a_selector_says_which_shoots_are_meant(seed: Seed, selector: str, meant: bool) -> None:
    seed.put("quotas", selector=selector)
    await seed.populate(TASK)
    assert bool(seed.references()) == meant


@pytest.mark.parametrize(
    "selector",
    [
        "environment=production",
        '{"matchExpressions": [{"key": "environment", "operator": "Is"}]}',
        '{"matchLables": {"environment": "production"}}',
    ],
)
async def test_an_invalid_selector_is_reported_and_changes_nothing(seed: Seed, selector: str) -> None:
    seed.put("quotas")
    await seed.populate(TASK)
    seed.put("rights", selector=selector)
    with pytest.raises(
        ApplicationError, match=f"Secret garden/rights of the seed: its annotation {SELECTOR}"
    ) as raised:
        await seed.populate(TASK)
    assert raised.value.type == ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM
    assert not raised.value.non_retryable
    assert seed.references() == ["static-manifests-quotas"]

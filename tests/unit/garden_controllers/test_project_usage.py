"""Projects that are not in use are found and deleted; activity and limits are written."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api import resources
from api.meta import LabelSelector
from tests.unit.admission.webhooks import BINDING, SECRET
from tests.unit.api.shoots import PROJECT, SHOOT, changed
from tests.unit.api.test_quota import quota
from tests.unit.garden_controllers.conftest import CORE, SECURITY
from workers.controller_manager.project_quotas import run_project_quota_controllers
from workers.controller_manager.project_usage import (
    ProjectConfig,
    ProjectQuota,
    run_project_activity_controller,
    run_stale_project_controller,
)

NAMESPACE, PROJECTS = "garden-local", f"{CORE}/projects"
LIMITS = "/api/v1/resourcequotas"


def ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).strftime("%Y-%m-%dT%H:%M:%SZ")


def furnish(garden: Any, *, namespace: dict[str, str] | None = None, **status: str) -> None:
    """The Project is 100 days old."""
    project = changed(PROJECT, "metadata.creationTimestamp", ago(days=100))
    garden.api.put(PROJECTS, project | {"status": status})
    metadata = {"name": NAMESPACE, "annotations": namespace or {}}
    garden.api.put("/api/v1/namespaces", {"metadata": metadata})


def stale(obj: Any) -> bool:
    return bool((obj.get("status") or {}).get("staleSinceTimestamp"))


def not_stale(obj: Any) -> bool:
    return not stale(obj)


def checking(garden: Any, **config: Any) -> Any:
    return garden.running(run_stale_project_controller(garden.client, garden.caches, ProjectConfig(**config)))


async def test_a_project_without_anything_is_stale(garden):
    furnish(garden)
    async with checking(garden):
        project = await garden.becomes(resources.PROJECT, "local", None, lambda obj: stale(obj) and obj)
    assert "staleAutoDeleteTimestamp" not in project["status"], "the deletion is announced after the grace period"


async def test_the_project_of_the_garden_itself_is_never_stale(garden):
    """Its namespace holds the garden's own Secrets. A status that an earlier version wrote is removed."""
    project = changed(PROJECT, "metadata", {"name": "garden", "creationTimestamp": ago(days=100)})
    project = changed(project, "spec.namespace", "garden")
    garden.api.put(PROJECTS, project | {"status": {"staleSinceTimestamp": ago(days=91)}})
    garden.api.put("/api/v1/namespaces", {"metadata": {"name": "garden"}})
    async with checking(garden):
        await garden.becomes(resources.PROJECT, "garden", None, not_stale)


async def test_a_deletion_is_announced_and_then_done(garden):
    furnish(garden, staleSinceTimestamp=ago(days=91))
    garden.api.change(PROJECTS, "local", None, {"metadata": {"finalizers": ["gardener"]}})
    async with checking(garden):
        gone = await garden.becomes(
            resources.PROJECT, "local", None, lambda obj: obj["metadata"].get("deletionTimestamp") and obj
        )
        [(reason, message)] = await garden.events(1)
    assert gone["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"] == "true"
    assert reason == "ProjectStale"
    assert "it has not been used since" in message


async def test_a_project_in_its_grace_period_stays(garden):
    furnish(garden, staleSinceTimestamp=ago(days=20))
    async with checking(garden):
        project = await garden.becomes(
            resources.PROJECT, "local", None, lambda obj: obj["status"].get("staleAutoDeleteTimestamp") and obj
        )
    assert "deletionTimestamp" not in project["metadata"]


def with_shoot(garden: Any) -> None:
    garden.api.put(f"{CORE}/shoots", changed(SHOOT))


def with_backup(garden: Any) -> None:
    entry = {"metadata": {"name": "backup", "namespace": NAMESPACE}, "spec": {"bucketName": "b"}}
    garden.api.put(f"{CORE}/backupentries", entry)


def bound_elsewhere(garden: Any, **fields: Any) -> None:
    """A Shoot of another project uses a binding with these fields."""
    binding = changed(BINDING, "metadata", {"name": "theirs", "namespace": "garden-other"}) | fields
    garden.api.put(f"{SECURITY}/credentialsbindings", binding)
    shoot = changed(SHOOT, "spec.credentialsBindingName", "theirs")
    shoot["metadata"] |= {"namespace": "garden-other", "name": "other"}
    garden.api.put(f"{CORE}/shoots", shoot)


def with_credentials(garden: Any) -> None:
    bound_elsewhere(garden)


def with_quota(garden: Any) -> None:
    reference = changed(BINDING["credentialsRef"], "namespace", "garden-other")
    bound_elsewhere(garden, credentialsRef=reference, quotas=[{"namespace": NAMESPACE, "name": "trial"}])


@pytest.mark.parametrize("use", [with_shoot, with_backup, with_credentials, with_quota])
async def test_a_project_that_is_used_is_not_stale(garden, use):
    furnish(garden, staleSinceTimestamp=ago(days=91))
    use(garden)
    async with checking(garden):
        await garden.becomes(resources.PROJECT, "local", None, not_stale)


async def test_credentials_that_no_shoot_uses_do_not_count(garden):
    furnish(garden)
    garden.api.put(f"{SECURITY}/credentialsbindings", BINDING)
    async with checking(garden):
        await garden.becomes(resources.PROJECT, "local", None, stale)


async def test_a_namespace_can_be_exempt(garden):
    furnish(garden, namespace={"project.gardener.cloud/skip-stale-check": "true"}, staleSinceTimestamp=ago(days=91))
    async with checking(garden):
        await garden.becomes(resources.PROJECT, "local", None, not_stale)


async def test_recent_activity_makes_a_project_used(garden):
    furnish(garden, staleSinceTimestamp=ago(days=1), lastActivityTimestamp=ago(days=29))
    async with checking(garden):
        await garden.becomes(resources.PROJECT, "local", None, not_stale)


# Activity


def active(obj: Any) -> bool:
    return bool((obj.get("status") or {}).get("lastActivityTimestamp"))


def noting(garden: Any) -> Any:
    return garden.running(run_project_activity_controller(garden.client, garden.caches))


async def test_a_new_shoot_is_activity(garden):
    furnish(garden)
    async with noting(garden):
        garden.api.put(f"{CORE}/shoots", changed(SHOOT, "metadata.creationTimestamp", ago(seconds=1)))
        await garden.becomes(resources.PROJECT, "local", None, active)


LABELLED = changed(SECRET, "metadata.labels", {"reference.gardener.cloud/credentialsbinding": "true"})


@pytest.mark.parametrize(
    ("path", "obj", "change"),
    [
        (f"{CORE}/shoots", SHOOT, {"spec": {"purpose": "testing"}}),
        (f"{CORE}/quotas", quota(), {"spec": {"metrics": {"cpu": "1"}}}),
        ("/api/v1/secrets", LABELLED, {"data": {"key": "Yg=="}}),
    ],
    ids=["shoot", "quota", "credentials"],
)
async def test_changed_content_is_activity_and_a_label_is_none(garden, path: str, obj: Any, change: Any):
    furnish(garden)
    old = changed(obj, "metadata.creationTimestamp", ago(days=2))
    garden.api.put(path, old)
    async with noting(garden):
        cache = garden.caches.of(resources.PROJECT)
        for labels in ("", "reference.gardener.cloud/credentialsbinding=true"):
            await garden.caches.of(resources.resource_of(obj), labels=labels).synced()
        garden.api.change(path, obj["metadata"]["name"], NAMESPACE, {"metadata": {"annotations": {"a": "b"}}})
        resource = resources.resource_of(obj)
        await garden.becomes(
            resource, obj["metadata"]["name"], NAMESPACE, lambda obj: obj["metadata"].get("annotations")
        )
        assert not active(cache.get("local"))
        garden.api.change(path, obj["metadata"]["name"], NAMESPACE, change)
        await garden.becomes(resources.PROJECT, "local", None, active)


# Limits


def limiting(garden: Any, *templates: ProjectQuota) -> Any:
    return garden.running(run_project_quota_controllers(garden.client, garden.caches, templates))


def template(hard: dict[str, str], **labels: str) -> ProjectQuota:
    config = {"metadata": {"labels": {"a": "b"}}, "spec": {"hard": hard}}
    return ProjectQuota(config=config, project_selector=LabelSelector(match_labels=labels))


async def test_the_first_template_that_selects_the_project_is_applied(garden):
    furnish(garden)
    garden.api.change(PROJECTS, "local", None, {"metadata": {"labels": {"size": "small"}}})
    small, other = template({"count/secrets": "9"}, size="small"), template({"count/secrets": "5"})
    async with limiting(garden, template({"pods": "0"}, size="large"), small, other):
        found = await garden.becomes(
            resources.RESOURCE_QUOTA,
            "gardener",
            NAMESPACE,
            lambda obj: obj if obj and obj["metadata"].get("annotations") else None,
        )
    assert found["spec"]["hard"] == {"count/secrets": "9"}
    assert found["metadata"]["labels"] == {"a": "b"}
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Project"


async def test_a_template_adds_only_what_is_missing(garden):
    furnish(garden)
    existing = {"metadata": {"name": "gardener", "namespace": NAMESPACE}, "spec": {"hard": {"count/secrets": "3"}}}
    garden.api.put(LIMITS, existing)
    async with limiting(garden, template({"count/secrets": "9", "pods": "0"})):
        found = await garden.becomes(
            resources.RESOURCE_QUOTA, "gardener", NAMESPACE, lambda obj: "pods" in obj["spec"]["hard"] and obj
        )
    assert found["spec"]["hard"] == {"count/secrets": "3", "pods": "0"}


async def test_limits_in_namespaces_of_projects_are_raised(garden):
    furnish(garden)
    hard = {"count/shoots.core.gardener.cloud": "4", "count/secrets": "1"}
    garden.api.put(LIMITS, {"metadata": {"name": "own", "namespace": NAMESPACE}, "spec": {"hard": hard}})
    garden.api.put(LIMITS, {"metadata": {"name": "own", "namespace": "kube-system"}, "spec": {"hard": hard}})
    async with limiting(garden):
        await garden.becomes(
            resources.RESOURCE_QUOTA, "own", NAMESPACE, lambda obj: obj["spec"]["hard"]["count/secrets"] == "12"
        )
    assert garden.api.find(LIMITS, "own", "kube-system")["spec"]["hard"] == hard, "it is no namespace of a Project"


def test_a_template_needs_limits():
    with pytest.raises(ValueError, match=r"spec\.hard"):
        ProjectQuota(config={"spec": {}})

"""A Shoot is reconciled when an object by which its logins are configured changes."""

import base64
import secrets
from typing import Any

import pytest

from api import resources
from tests.unit.admission.test_logins import ISSUERS, NAMESPACE, SERVER, WEBHOOK
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE, Garden
from tests.unit.kube.waiting import until
from workers.controller_manager.logins import run_login_controller

OPERATION = "gardener.cloud/operation"
CONFIG_MAPS, SECRETS = "/api/v1/configmaps", "/api/v1/secrets"


def shoot(**status: Any) -> dict[str, Any]:
    made = changed(SHOOT, "spec.kubernetes.kubeAPIServer", SERVER)
    last = {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": "2999-01-01T00:00:00Z"}
    made["status"] = {"seedName": "seed-1", "lastOperation": last} | status
    return made


def asked(garden: Garden) -> str | None:
    found = garden.api.find(f"{CORE}/shoots", "demo", NAMESPACE)
    assert found is not None
    return (found["metadata"].get("annotations") or {}).get(OPERATION)


async def rewrite(garden: Garden, path: str, obj: dict[str, Any], key: str, value: str) -> None:
    garden.api.change(path, obj["metadata"]["name"], NAMESPACE, {"data": {key: value}})


@pytest.mark.parametrize(
    ("path", "obj", "key", "what"),
    [
        (CONFIG_MAPS, ISSUERS, "config.yaml", "ConfigMap issuers has changed"),
        (SECRETS, WEBHOOK, "kubeconfig", "Secret webhook has changed"),
    ],
)
async def test_a_changed_configuration_or_kubeconfig_is_applied(
    garden: Garden, path: str, obj: dict[str, Any], key: str, what: str
) -> None:
    garden.api.put(path, obj)
    garden.api.put(f"{CORE}/shoots", shoot())
    async with garden.running(run_login_controller(garden.client, garden.caches)):
        assert asked(garden) is None
        # A change before the controller subscribes to its caches is not followed: the last operation is later.
        await until(lambda: follows_change(garden, path, obj, key))
        [(reason, text), *_] = await garden.events(1)
        assert (reason, text.partition(":")[0]) == ("LoginsChanged", what)


async def follows_change(garden: Garden, path: str, obj: dict[str, Any], key: str) -> bool:
    await rewrite(garden, path, obj, key, base64.b64encode(secrets.token_bytes(6)).decode())
    return asked(garden) == "reconcile"


def watched(garden: Garden, path: str) -> bool:
    """Whether the controller has listed the objects and waits for events."""
    return garden.api.count("GET", path) > 1


async def test_a_change_while_nothing_watched_is_applied_afterwards(garden: Garden) -> None:
    written = changed(ISSUERS, "metadata.managedFields", [{"manager": "kubectl", "time": "2026-11-25T12:00:00Z"}])
    garden.api.put(CONFIG_MAPS, written)
    last = {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": "2026-11-25T11:00:00Z"}
    garden.api.put(f"{CORE}/shoots", shoot(lastOperation=last))
    async with garden.running(run_login_controller(garden.client, garden.caches)):
        await until(lambda: asked(garden) == "reconcile")


async def test_a_shoot_that_failed_by_its_configuration_is_retried(garden: Garden) -> None:
    failed = {"type": "Reconcile", "state": "Failed", "lastUpdateTime": "2026-11-25T11:00:00Z"}
    errors = [{"codes": ["ERR_CONFIGURATION_PROBLEM"], "description": "faults in key config.yaml"}]
    garden.api.put(CONFIG_MAPS, ISSUERS)
    garden.api.put(f"{CORE}/shoots", shoot(lastOperation=failed, lastErrors=errors))
    async with garden.running(run_login_controller(garden.client, garden.caches)):
        await until(lambda: asked(garden) == "retry")


async def test_other_changes_and_shoots_that_wait_for_their_window_are_left_alone(garden: Garden) -> None:
    confined = changed(shoot(), "spec.maintenance.confineSpecUpdateRollout", True)
    garden.api.put(CONFIG_MAPS, ISSUERS)
    other = changed(ISSUERS, "metadata.name", "other")
    garden.api.put(CONFIG_MAPS, other)
    garden.api.put(f"{CORE}/shoots", confined)
    async with garden.running(run_login_controller(garden.client, garden.caches)):
        await until(lambda: watched(garden, CONFIG_MAPS))
        await rewrite(garden, CONFIG_MAPS, ISSUERS, "config.yaml", "new")
        await rewrite(garden, CONFIG_MAPS, other, "config.yaml", "new")
        garden.api.change(CONFIG_MAPS, "issuers", NAMESPACE, {"metadata": {"labels": {"a": "b"}}})
        cache = garden.caches.of(resources.CONFIG_MAP)
        await cache.wait_for("issuers", NAMESPACE, lambda obj: obj and obj["metadata"].get("labels"), 10)
        assert asked(garden) is None

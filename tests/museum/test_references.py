"""Objects that a Shoot needs."""

from typing import Any

import pytest

from api import resources
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.garden_controllers.conftest import CORE, garden
from tests.unit.garden_controllers.test_protection import NAMESPACE, PROTECTION, deleting, protecting, put
from tests.unit.garden_controllers.test_references import gone, held_by

__all__ = ["garden"]

CONFIG_MAPS = "/api/v1/configmaps"


def audited(**status: Any) -> dict[str, Any]:
    """A Shoot with an audit policy."""
    policy = {"auditConfig": {"auditPolicy": {"configMapRef": {"name": "audit"}}}}
    return {**changed(SHOOT, "spec.kubernetes.kubeAPIServer", policy), "status": status}


@pytest.mark.exhibit(
    threads=["gardener/gardener#3071"],
    happened="An owner deleted the audit policy before the Shoot, and the deletion of the Shoot failed because it did "
    "not find the policy.",
    here="A finalizer keeps each object that a Shoot names until the Shoot is gone.",
)
async def test_gardener_3071_an_audit_policy_outlasts_its_shoot(garden: Any) -> None:
    put(garden, CONFIG_MAPS, "audit")
    garden.api.put(f"{CORE}/shoots", audited())
    async with protecting(garden):
        await garden.becomes(resources.CONFIG_MAP, "audit", NAMESPACE, held_by(PROTECTION))
        await garden.client.delete(resources.CONFIG_MAP, "audit", NAMESPACE)
        await garden.becomes(resources.CONFIG_MAP, "audit", NAMESPACE, deleting)
        assert garden.api.find(CONFIG_MAPS, "audit", NAMESPACE)
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(resources.CONFIG_MAP, "audit", NAMESPACE, gone)


@pytest.mark.exhibit(
    threads=["gardener/gardener#7955"],
    happened="The finalizer of an audit policy was set only after the creation of the Shoot, or was lost when the "
    "owner applied the object again, so that the policy could be deleted meanwhile.",
    here="A controller sets the finalizer as soon as the Shoot exists, whatever its state, and sets it again when it "
    "is lost.",
)
async def test_gardener_7955_an_audit_policy_is_held_while_its_shoot_is_created(garden: Any) -> None:
    put(garden, CONFIG_MAPS, "audit")
    garden.api.put(f"{CORE}/shoots", audited(lastOperation={"type": "Create", "state": "Processing", "progress": 1}))
    async with protecting(garden):
        await garden.becomes(resources.CONFIG_MAP, "audit", NAMESPACE, held_by(PROTECTION))
        put(garden, CONFIG_MAPS, "audit")
        garden.api.change(CONFIG_MAPS, "audit", NAMESPACE, {"metadata": {"finalizers": None}})
        await garden.becomes(resources.CONFIG_MAP, "audit", NAMESPACE, held_by(PROTECTION))

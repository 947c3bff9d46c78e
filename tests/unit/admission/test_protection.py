"""Finalizers of objects in use stay."""

from typing import Any

import pytest

from tests.unit.admission.webhooks import BINDING, SECRET, ask
from tests.unit.api.shoots import SEED, changed, complete
from workers.admission.protection import _may_write
from workers.lib.access import User

FOREIGN, PROTECTION = "gardener.cloud/gardener", "gardener.cloud/reference-protection"
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audit", "namespace": "garden-local"}}


async def refusal(client: Any, obj: dict[str, Any], finalizer: str) -> str:
    """Message of the refusal to remove a finalizer; empty if it is removed."""
    held = changed(obj, "metadata.finalizers", [finalizer, "another"])
    response = await ask(
        client, "/protect-references", "UPDATE", changed(obj, "metadata.finalizers", ["another"]), held
    )
    return "" if response["allowed"] else str(response["status"]["message"])


def with_audit_policy() -> dict[str, Any]:
    policy = {"auditPolicy": {"configMapRef": {"name": "audit"}}}
    return complete("spec.kubernetes.kubeAPIServer.auditConfig", policy).to_wire()


async def test_an_object_that_a_shoot_refers_to_keeps_its_finalizer(client, garden):
    assert await refusal(client, CONFIG_MAP, PROTECTION) == "", "no Shoot refers to it"
    garden.objects.append(with_audit_policy())
    assert await refusal(client, CONFIG_MAP, PROTECTION) == (
        'configmaps "audit" is forbidden: metadata.finalizers: gardener.cloud/reference-protection cannot be removed: '
        "Shoots refer to it: demo"
    )
    assert await refusal(client, changed(CONFIG_MAP, "metadata.namespace", "garden-other"), PROTECTION) == ""
    assert await refusal(client, CONFIG_MAP, "of.others/finalizer") == ""


async def test_an_object_that_a_seed_refers_to_keeps_its_finalizer(client, garden):
    named = [{"name": "a", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "local"}}]
    garden.objects[garden.objects.index(SEED)] = changed(SEED, "spec.resources", named)
    secret = changed(SECRET, "metadata.namespace", "garden")
    assert "a Seed refers to it" in await refusal(client, secret, PROTECTION)
    assert await refusal(client, SECRET, PROTECTION) == "", "Seeds refer to namespace garden alone"


@pytest.mark.parametrize("used", [True, False])
async def test_credentials_keep_their_finalizer_while_a_binding_needs_them(client, garden, used: bool):
    assert "bindings name it: delete them first" in await refusal(client, SECRET, FOREIGN)
    ending = changed(BINDING, "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")
    garden.objects[garden.objects.index(BINDING)] = ending
    if used:
        garden.objects.append(complete().to_wire())
    assert bool(await refusal(client, SECRET, FOREIGN)) is used, "a binding without Shoots releases its credentials"


BUNDLE = changed(CONFIG_MAP, "metadata.labels", {"gardener.cloud/update-restriction": "true"})


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
async def test_a_restricted_object_is_written_by_gardenlets_alone(client, operation: str):
    """A member who changes the CA bundle of a Shoot could let other members trust another API server."""
    unlabelled = {**CONFIG_MAP, "data": {"ca.crt": "other"}}
    response = await ask(
        client, "/protect-references", operation, unlabelled if operation == "UPDATE" else None, BUNDLE
    )
    assert response["status"]["message"] == (
        'configmaps "audit" is forbidden: user alice may not write objects with label '
        "gardener.cloud/update-restriction=true; gardenlets may"
    )


@pytest.mark.parametrize(
    "user",
    [
        User("gardener.cloud:system:seed:a", ("gardener.cloud:system:seeds",)),
        User("system:serviceaccount:kube-system:generic-garbage-collector", ("system:serviceaccounts:kube-system",)),
        User("system:kube-controller-manager"),
        User("root", ("system:masters",)),
    ],
    ids=lambda user: user.name,
)
def test_gardenlets_and_controllers_write_restricted_objects(user: User):
    assert _may_write(user)


def test_other_service_accounts_write_no_restricted_objects():
    user = User("system:serviceaccount:garden-local:robot", ("system:serviceaccounts:garden-local",))
    assert not _may_write(user)

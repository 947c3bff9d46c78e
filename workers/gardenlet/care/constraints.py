"""Constraints of a Shoot: what its owner should know although the cluster works today. Source: spec/flows.md 10.

A constraint that the owner has to act on is shown while it is False, and removed when it is True. Only those of
``webhooks.constraints`` stay.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from api.decisions import dual_stack
from api.decisions.conditions import WEBHOOK_CONSTRAINTS, Finding
from api.resources import ObjectView

CA_VALIDITY = timedelta(days=365)
KEPT = WEBHOOK_CONSTRAINTS
"""Constraints that are shown also when they are True."""


def certificate_authorities(secrets: Iterable[ObjectView], now: datetime) -> Finding:
    """CACertificateValiditiesAcceptable, from the Secrets that the secrets manager keeps for the shoot."""
    type_ = "CACertificateValiditiesAcceptable"
    ending = {}
    for each in secrets:
        labels = each["metadata"].get("labels") or {}
        name, until = labels.get("name", ""), labels.get("valid-until-time")
        if labels.get("managed-by") != "secrets-manager" or not until or not name.startswith("ca"):
            continue
        end = datetime.fromtimestamp(int(until), UTC)
        if end - now < CA_VALIDITY:
            ending[name] = end
    if not ending:
        return Finding(type_, "True", "NoExpiringCACertificates", "All CA certificates are valid for at least a year.")
    listed = ", ".join(f"{name} on {end:%Y-%m-%d}" for name, end in sorted(ending.items()))
    return Finding(
        type_, "False", "ExpiringCACertificates", f"these CA certificates expire soon: {listed}; rotate them"
    )


def outline_of_crd(definition: ObjectView) -> dict[str, Any] | None:
    """Fields that are read of a CRD whose objects of an old version need a webhook; None for other CRDs."""
    stored = (definition.get("status") or {}).get("storedVersions") or ()
    strategy = (definition["spec"].get("conversion") or {}).get("strategy")
    if strategy != "Webhook" or len(stored) < 2:
        return None
    return {
        "metadata": {"name": definition["metadata"]["name"]},
        "spec": {"conversion": {"strategy": strategy}},
        "status": {"storedVersions": list(stored[:2])},
    }


def crds(definitions: Iterable[ObjectView]) -> Finding:
    """CRDsWithProblematicConversionWebhooks: objects of an old version cannot be read without the webhook."""
    type_ = "CRDsWithProblematicConversionWebhooks"
    found = sorted(each["metadata"]["name"] for each in definitions if outline_of_crd(each))
    if not found:
        return Finding(type_, "True", "NoProblematicCRDs", "No CRD stores several versions behind a webhook.")
    text = (
        f"these CRDs have several stored versions and a conversion webhook: {', '.join(found)}; migrate their objects"
    )
    return Finding(type_, "False", "CRDsWithProblematicConversionWebhooks", text)


def in_place_updates(status: ObjectView) -> Finding:
    """ManualInPlaceWorkersUpdated."""
    type_ = "ManualInPlaceWorkersUpdated"
    pending = (status.get("inPlaceUpdates") or {}).get("pendingWorkerUpdates") or {}
    pools = sorted(pending.get("manualInPlaceUpdate") or ())
    if not pools:
        return Finding(type_, "True", "WorkerPoolsUpdated", "No pool waits for its owner to update its nodes in place.")
    return Finding(
        type_,
        "False",
        "WorkerPoolsPendingUpdate",
        f"the owner must update the nodes of these pools: {', '.join(pools)}",
    )


def ignored_managed_resources(objects: Iterable[ObjectView]) -> Finding:
    """HasIgnoredManagedResources."""
    type_ = "HasIgnoredManagedResources"
    found = sorted(
        each["metadata"]["name"]
        for each in objects
        if (each["metadata"].get("annotations") or {}).get("resources.gardener.cloud/ignore") == "true"
    )
    if not found:
        return Finding(type_, "True", "NoIgnoredManagedResources", "No ManagedResource is ignored.")
    return Finding(
        type_,
        "False",
        "IgnoredManagedResources",
        f"these ManagedResources are ignored and not kept applied: {', '.join(found)}",
    )


def preserved_machines(machines: Iterable[ObjectView]) -> Finding:
    """PreservedFailedMachinesAbsent."""
    type_ = "PreservedFailedMachinesAbsent"
    found = []
    for each in machines:
        current = (each.get("status") or {}).get("currentStatus") or {}
        if current.get("phase") == "Failed" and current.get("preserveExpiryTime"):
            found.append(each["metadata"]["name"])
    if not found:
        return Finding(type_, "True", "NoPreservedFailedMachines", "No failed machine is preserved.")
    return Finding(
        type_, "False", "PreservedFailedMachines", f"these failed machines are preserved: {', '.join(sorted(found))}"
    )


def shown(constraints: Iterable[ObjectView]) -> list[dict[str, Any]]:
    """The constraints to show: without those that are True, except the types in ``KEPT``.

    Reconciliations write those of a change of IP families, and remove them.
    """
    kept = (*KEPT, *dual_stack.CONSTRAINTS)
    return [dict(each) for each in constraints if each["status"] != "True" or each["type"] in kept]

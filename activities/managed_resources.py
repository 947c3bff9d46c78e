"""Keys, conditions and checksum on which the resource manager and the writers of ManagedResources must agree."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

CONDITION_APPLIED = "ResourcesApplied"
CONDITION_HEALTHY = "ResourcesHealthy"
CONDITION_PROGRESSING = "ResourcesProgressing"


def data_key(item: Mapping[str, Any]) -> str:
    """Key of a manifest in its Secret, for example ``deployment__kube-system__coredns.yaml``."""
    metadata = item["metadata"]
    name = f"{item['kind'].lower()}__{metadata.get('namespace', '')}__{metadata['name']}"
    return re.sub(r"[^-._a-zA-Z0-9]", "_", name) + ".yaml"


def secrets_checksum(secrets: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 over the data of the Secrets that a ManagedResource refers to, in the order of the references.

    The resource manager writes this checksum to ``status.secretsDataChecksum`` when it has applied the Secrets. A
    Secret may change while its name stays the same, so the ManagedResource's generation alone does not show whether
    the newest content has been applied.
    """
    digest = hashlib.sha256()
    for secret in secrets:
        data = secret.get("data") or {}
        digest.update(json.dumps([[key, data[key]] for key in sorted(data)]).encode())
    return digest.hexdigest()


def unfinished(
    managed_resource: Mapping[str, Any] | None, checksum: str = "", *, rolled_out: bool = True
) -> str | None:
    """Reason why a ManagedResource is not applied and healthy (and rolled out) yet; None if it is."""
    if managed_resource is None:
        return "does not exist"
    status = managed_resource.get("status") or {}
    if (status.get("observedGeneration") or 0) < (managed_resource["metadata"].get("generation") or 0):
        return "is not observed yet"
    if checksum and status.get("secretsDataChecksum") != checksum:
        return "has other Secrets applied than the current ones"
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    wanted = [(CONDITION_APPLIED, "True"), (CONDITION_HEALTHY, "True")]
    if rolled_out:
        wanted.append((CONDITION_PROGRESSING, "False"))
    for kind, value in wanted:
        condition = conditions.get(kind)
        if condition is None:
            return f"has no condition {kind} yet"
        if condition.get("status") != value:
            return f"{kind} is {condition.get('status')}: {condition.get('reason')}: {condition.get('message')}"
    return None

"""Webhooks of the garden's API: defaults and validations that a schema cannot express."""

from __future__ import annotations

from typing import Any

from api.constants import CORE, OPERATIONS, ROLE, ROLE_PROJECT, SECURITY, SEEDS_GROUP
from workers.admission.seed_writes import rules

Kinds = dict[tuple[str, str], tuple[str, ...]]
"""Plural names of kinds by group and version."""

MUTATE_PATH = "/mutate"
VALIDATE_PATH = "/validate"
RESTRICT_PATH = "/restrict-seeds"

# Kinds whose schemas do not suffice; their handlers are in ``workers.admission.kinds``.
MUTATED: Kinds = {
    (CORE, "v1beta1"): ("shoots", "projects", "seeds", "secretbindings", "internalsecrets"),
    (SECURITY, "v1alpha1"): ("credentialsbindings",),
    (OPERATIONS, "v1alpha1"): ("bastions",),
}
VALIDATED: Kinds = {
    (CORE, "v1beta1"): (
        "shoots",
        "projects",
        "seeds",
        "cloudprofiles",
        "secretbindings",
        "shootstates",
        "backupbuckets",
    ),
    (SECURITY, "v1alpha1"): ("credentialsbindings",),
    (OPERATIONS, "v1alpha1"): ("bastions",),
}

DELETION_VALIDATED: Kinds = {("", "v1"): ("namespaces",)}
"""Kinds whose deletion is validated; of namespaces, only those of Projects."""


def webhook_configurations(url: str, ca_bundle: str) -> list[dict[str, Any]]:
    """Webhook configurations with which an API server calls admission.

    ``url``: URL of admission, like ``https://198.18.0.1:9443``. ``ca_bundle``: PEM in base64.
    """

    def configuration(kind: str, path: str, kinds: Kinds, operations: list[str]) -> dict[str, Any]:
        webhook: dict[str, Any] = {
            "name": f"{path.strip('/')}.admission.gardener.cloud",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url + path, "caBundle": ca_bundle},
            # No write is accepted while admission is down: the order of deletions, and references, depend on it.
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": [
                {"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": list(plurals)}
                for (group, version), plurals in kinds.items()
            ],
        }
        if kind == "MutatingWebhookConfiguration":
            webhook["reinvocationPolicy"] = "IfNeeded"
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "gardener-admission"},
            "webhooks": [webhook],
        }

    mutating = configuration("MutatingWebhookConfiguration", MUTATE_PATH, MUTATED, ["CREATE", "UPDATE"])
    validating = configuration(
        "ValidatingWebhookConfiguration", VALIDATE_PATH, VALIDATED, ["CREATE", "UPDATE", "DELETE"]
    )
    namespaces = configuration("ValidatingWebhookConfiguration", VALIDATE_PATH, DELETION_VALIDATED, ["DELETE"])
    validating["webhooks"].append(
        namespaces["webhooks"][0]
        | {
            "name": "project-namespaces.admission.gardener.cloud",
            "objectSelector": {"matchLabels": {ROLE: ROLE_PROJECT}},
        }
    )
    restriction = configuration("ValidatingWebhookConfiguration", RESTRICT_PATH, {}, [])["webhooks"][0]
    validating["webhooks"].append(
        restriction
        | {
            "rules": rules(),
            # Writes of other users do not go through this webhook, and do not get slower.
            "matchConditions": [{"name": "gardenlets", "expression": f"'{SEEDS_GROUP}' in request.userInfo.groups"}],
        }
    )
    return [mutating, validating]

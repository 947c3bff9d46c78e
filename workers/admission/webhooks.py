"""Webhook configurations of the garden's API. Their rules are the kinds that have handlers in ``admission.kinds``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from api import resources
from api.access import OPERATORS
from api.constants import ROLE, ROLE_INTERNAL_DOMAIN, ROLE_PROJECT, SEEDS_GROUP, UPDATE_RESTRICTION
from api.crds import converted_crds
from api.resources import Resource
from api.validation.audit import POLICY_KEY
from api.validation.kubeconfigs import KUBECONFIG_KEY
from api.validation.logins import CONFIG_KEY
from workers.admission.kinds import DELETION_VALIDATORS, MUTATORS, REFERENCE_VALIDATORS, VALIDATORS
from workers.admission.limits import NO_LIMITS, ResourceAdmissionConfiguration
from workers.admission.protection import PROTECTED, REMOVES_FINALIZER
from workers.admission.seed_writes import rules

MUTATE_PATH = "/mutate"
VALIDATE_PATH = "/validate"
PROTECT_PATH = "/protect-references"
RESTRICT_PATH = "/restrict-seeds"
CONVERT_PATH = "/convert"
LIMIT_PATH = "/validate-resource-size"
INTERNAL_DOMAIN_PATH = "/validate-internal-domain"

_FILES = " || ".join(
    f"({each} != null && has({each}.data) && '{key}' in {each}.data)"
    for each in ("object", "oldObject")
    for key in (CONFIG_KEY, KUBECONFIG_KEY, POLICY_KEY)
)
"""Whether a ConfigMap or Secret has a key with a file of a Shoot's API server, or has just lost it."""


def converted_kinds(url: str, ca_bundle: str) -> list[dict[str, Any]]:
    """CustomResourceDefinitions of the kinds that admission converts. Arguments: see ``webhook_configurations``."""
    return converted_crds("garden", {"url": url + CONVERT_PATH, "caBundle": ca_bundle})


def webhook_configurations(
    url: str, ca_bundle: str, limits: ResourceAdmissionConfiguration = NO_LIMITS
) -> list[dict[str, Any]]:
    """Webhook configurations with which an API server calls admission.

    ``url``: URL of admission, like ``https://198.18.0.1:9443``. ``ca_bundle``: PEM in base64. ``limits``: limits of the
    operator, for which admission reviews more kinds.
    """

    def webhook(path: str, kinds: Iterable[Resource], operations: list[str], **more: Any) -> dict[str, Any]:
        """Webhook for operations on these kinds. ``more``: its other fields, and those that differ from the common."""
        return {
            "name": f"{path.strip('/')}.admission.gardener.cloud",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url + path, "caBundle": ca_bundle},
            # No write is accepted while admission is down: the order of deletions, and references, depend on it.
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            # A grant of a Quota is noted in a Lease, except for a dry run.
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 10,
            "rules": [
                {"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": plurals}
                for (group, version), plurals in _by_version(kinds).items()
            ],
            **more,
        }

    mutating = webhook(MUTATE_PATH, MUTATORS, ["CREATE", "UPDATE"], reinvocationPolicy="IfNeeded")
    validating = [
        webhook(VALIDATE_PATH, VALIDATORS, ["CREATE", "UPDATE", "DELETE"]),
        webhook(
            VALIDATE_PATH,
            DELETION_VALIDATORS,
            ["DELETE"],
            name="project-namespaces.admission.gardener.cloud",
            objectSelector={"matchLabels": {ROLE: ROLE_PROJECT}},
        ),
        webhook(
            PROTECT_PATH,
            PROTECTED,
            ["UPDATE"],
            matchConditions=[{"name": "removes-finalizer", "expression": REMOVES_FINALIZER}],
        ),
        webhook(
            PROTECT_PATH,
            PROTECTED,
            ["UPDATE", "DELETE"],
            name="restricted-updates.admission.gardener.cloud",
            objectSelector={"matchLabels": {UPDATE_RESTRICTION: "true"}},
        ),
        webhook(
            VALIDATE_PATH,
            REFERENCE_VALIDATORS,
            ["CREATE", "UPDATE"],
            name="references.admission.gardener.cloud",
            namespaceSelector={"matchLabels": {ROLE: ROLE_PROJECT}},
            # Other writes of Secrets and ConfigMaps do not go through this webhook, and do not get slower.
            matchConditions=[{"name": "files", "expression": _FILES}],
        ),
        webhook(
            RESTRICT_PATH,
            (),
            [],
            rules=rules(),
            # Writes of other users do not go through this webhook, and do not get slower.
            matchConditions=[{"name": "gardenlets", "expression": f"'{SEEDS_GROUP}' in request.userInfo.groups"}],
        ),
        webhook(
            INTERNAL_DOMAIN_PATH,
            (resources.SECRET,),
            ["CREATE", "UPDATE", "DELETE"],
            objectSelector={"matchLabels": {ROLE: ROLE_INTERNAL_DOMAIN}},
        ),
    ]
    if limits.limits:
        # Admission itself writes Secrets and Leases, also while it cannot answer yet.
        others = {"name": "not-of-the-garden", "expression": f"!('{OPERATORS}' in request.userInfo.groups)"}
        validating.append(webhook(LIMIT_PATH, (), [], rules=limits.rules(), matchConditions=[others]))
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "gardener-admission"},
            "webhooks": webhooks,
        }
        for kind, webhooks in (
            ("MutatingWebhookConfiguration", [mutating]),
            ("ValidatingWebhookConfiguration", validating),
        )
    ]


def _by_version(kinds: Iterable[Resource]) -> dict[tuple[str, str], list[str]]:
    """Plural names of the kinds by group and version."""
    plurals: dict[tuple[str, str], list[str]] = {}
    for each in kinds:
        plurals.setdefault((each.group, each.version), []).append(each.plural)
    return plurals

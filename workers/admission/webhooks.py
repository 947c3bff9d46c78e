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

    def by_version(kinds: Iterable[Resource]) -> dict[tuple[str, str], list[str]]:
        """Plural names of the kinds by group and version."""
        plurals: dict[tuple[str, str], list[str]] = {}
        for each in kinds:
            plurals.setdefault((each.group, each.version), []).append(each.plural)
        return plurals

    def configuration(kind: str, path: str, kinds: Iterable[Resource], operations: list[str]) -> dict[str, Any]:
        webhook: dict[str, Any] = {
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
                for (group, version), plurals in by_version(kinds).items()
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

    mutating = configuration("MutatingWebhookConfiguration", MUTATE_PATH, MUTATORS, ["CREATE", "UPDATE"])
    validating = configuration(
        "ValidatingWebhookConfiguration", VALIDATE_PATH, VALIDATORS, ["CREATE", "UPDATE", "DELETE"]
    )
    namespaces = configuration("ValidatingWebhookConfiguration", VALIDATE_PATH, DELETION_VALIDATORS, ["DELETE"])
    validating["webhooks"].append(
        namespaces["webhooks"][0]
        | {
            "name": "project-namespaces.admission.gardener.cloud",
            "objectSelector": {"matchLabels": {ROLE: ROLE_PROJECT}},
        }
    )
    protection, restricted = (
        configuration("ValidatingWebhookConfiguration", PROTECT_PATH, PROTECTED, operations)["webhooks"][0]
        for operations in (["UPDATE"], ["UPDATE", "DELETE"])
    )
    validating["webhooks"] += [
        protection | {"matchConditions": [{"name": "removes-finalizer", "expression": REMOVES_FINALIZER}]},
        restricted
        | {
            "name": "restricted-updates.admission.gardener.cloud",
            "objectSelector": {"matchLabels": {UPDATE_RESTRICTION: "true"}},
        },
    ]
    references = configuration(
        "ValidatingWebhookConfiguration", VALIDATE_PATH, REFERENCE_VALIDATORS, ["CREATE", "UPDATE"]
    )
    validating["webhooks"].append(
        references["webhooks"][0]
        | {
            "name": "references.admission.gardener.cloud",
            "namespaceSelector": {"matchLabels": {ROLE: ROLE_PROJECT}},
            # Other writes of Secrets and ConfigMaps do not go through this webhook, and do not get slower.
            "matchConditions": [{"name": "files", "expression": _FILES}],
        }
    )
    restriction = configuration("ValidatingWebhookConfiguration", RESTRICT_PATH, (), [])["webhooks"][0]
    validating["webhooks"].append(
        restriction
        | {
            "rules": rules(),
            # Writes of other users do not go through this webhook, and do not get slower.
            "matchConditions": [{"name": "gardenlets", "expression": f"'{SEEDS_GROUP}' in request.userInfo.groups"}],
        }
    )
    domains = configuration(
        "ValidatingWebhookConfiguration", INTERNAL_DOMAIN_PATH, (resources.SECRET,), ["CREATE", "UPDATE", "DELETE"]
    )
    validating["webhooks"].append(
        domains["webhooks"][0] | {"objectSelector": {"matchLabels": {ROLE: ROLE_INTERNAL_DOMAIN}}}
    )
    if limits.limits:
        limited = configuration("ValidatingWebhookConfiguration", LIMIT_PATH, (), [])["webhooks"][0]
        validating["webhooks"].append(
            limited
            | {
                "rules": limits.rules(),
                # Admission itself writes Secrets and Leases, also while it cannot answer yet.
                "matchConditions": [
                    {"name": "not-of-the-garden", "expression": f"!('{OPERATORS}' in request.userInfo.groups)"}
                ],
            }
        )
    return [mutating, validating]

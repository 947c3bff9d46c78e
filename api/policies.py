"""What may be deleted only with a second word, as admission policies: no server has to be up for them.

Source: spec/api-extensions.md 1.
"""

from __future__ import annotations

from typing import Any, Literal

from api.constants import CONFIRMATION_DELETION, DELETION_PROTECTED, DRUID, EXTENSIONS
from api.crds import kinds

_UNCONFIRMED = {"clusters", "etcdcopybackupstasks"}
"""Copies and orders: nothing is lost with them."""
_API = "admissionregistration.k8s.io/v1"


def deletion_protection(side: Literal["garden", "seed"]) -> list[dict[str, Any]]:
    """Policies, and their bindings, to apply in the garden or in a seed."""
    protected: dict[str, list[str]] = {}
    for served in (model.definition for model in kinds(side)):
        if served.group in (EXTENSIONS, DRUID) and served.plural not in _UNCONFIRMED:
            protected.setdefault(served.group, []).append(served.plural)
    ours = {"matchLabels": {DELETION_PROTECTED: "true"}}
    policies = _policy("kinds", {"apiextensions.k8s.io": ["customresourcedefinitions"]}, ours)
    return policies + (_policy("objects", protected, {}) if protected else [])


def _policy(suffix: str, protected: dict[str, list[str]], selector: dict[str, Any]) -> list[dict[str, Any]]:
    name = f"deletion-confirmation-{suffix}.gardener.cloud"
    annotations = "oldObject.metadata.annotations"
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["DELETE"], "resources": plurals}
        for group, plurals in protected.items()
    ]
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules, "objectSelector": selector},
        "validations": [
            {
                "expression": f"has({annotations}) && '{CONFIRMATION_DELETION}' in {annotations}"
                f" && {annotations}['{CONFIRMATION_DELETION}'] == 'true'",
                "message": f"annotate the object with {CONFIRMATION_DELETION}=true before you delete it",
                "reason": "Forbidden",
            }
        ],
    }
    return [
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]

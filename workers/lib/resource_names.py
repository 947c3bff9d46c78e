"""Annotations, labels and finalizers of ``resources.gardener.cloud``."""

from collections.abc import Mapping
from typing import Any

_PREFIX = "resources.gardener.cloud/"

FINALIZER = _PREFIX + "gardener-resource-manager"

IGNORE = _PREFIX + "ignore"
MODE = _PREFIX + "mode"
MODE_IGNORE = "Ignore"
KEEP_OBJECT = _PREFIX + "keep-object"
FINALIZE_DELETION_AFTER = _PREFIX + "finalize-deletion-after"
DELETE_ON_INVALID_UPDATE = _PREFIX + "delete-on-invalid-update"
PROPAGATION_ON_INVALID_UPDATE = _PREFIX + "deletion-propagation-on-invalid-update"
PRESERVE_REPLICAS = _PREFIX + "preserve-replicas"
PRESERVE_RESOURCES = _PREFIX + "preserve-resources"
SKIP_HEALTH_CHECK = _PREFIX + "skip-health-check"
ORIGIN = _PREFIX + "origin"
DESCRIPTION = _PREFIX + "description"
MANAGED_BY = _PREFIX + "managed-by"
GARBAGE_COLLECTABLE = _PREFIX + "garbage-collectable-reference"
REFERENCE_PREFIX = "reference.resources.gardener.cloud/"
PURPOSE = _PREFIX + "purpose"
PURPOSE_TOKEN_REQUESTOR = "token-requestor"
CLASS = _PREFIX + "class"
OPERATION = "gardener.cloud/operation"

SA_NAME = "serviceaccount.resources.gardener.cloud/name"
SA_NAMESPACE = "serviceaccount.resources.gardener.cloud/namespace"
SA_LABELS = "serviceaccount.resources.gardener.cloud/labels"
SA_TOKEN_DURATION = "serviceaccount.resources.gardener.cloud/token-expiration-duration"
SA_INJECT_CA = "serviceaccount.resources.gardener.cloud/inject-ca-bundle"
SA_RENEW_TIMESTAMP = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"
TARGET_SECRET_NAME = "token-requestor.resources.gardener.cloud/target-secret-name"
TARGET_SECRET_NAMESPACE = "token-requestor.resources.gardener.cloud/target-secret-namespace"

DO_NOT_EDIT = (
    "DO NOT EDIT - This resource is managed by gardener-resource-manager.\n"
    "Any modifications are discarded and the resource is returned to the original state."
)


def annotation(obj: Mapping[str, Any], key: str) -> str | None:
    """Value of an annotation of an object; None without it."""
    value: str | None = (obj["metadata"].get("annotations") or {}).get(key)
    return value

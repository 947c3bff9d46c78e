"""The Seed that a ManagedSeed describes, and when its gardenlet needs a bootstrap token."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from hashlib import sha256
from typing import Any

from api.resources import SEED, Object

CONFIG_API_VERSION, CONFIG_KIND = "gardenlet.config.gardener.cloud/v1alpha1", "GardenletConfiguration"
SHOOT_RECONCILED, SEED_REGISTERED = "ShootReconciled", "SeedRegistered"
"""Conditions of a ManagedSeed."""
SEED_CONDITIONS = frozenset(
    {
        "GardenletReady",
        "SeedSystemComponentsHealthy",
        "BackupBucketsReady",
        "ExtensionsReady",
        "EmergencyStopShootReconciliations",
    }
)
"""Conditions of a Seed, which its Shoot shows, too."""


def gardenlet_config(managed_seed: Mapping[str, Any]) -> Object:
    """GardenletConfiguration of a ManagedSeed; empty if it has none."""
    return dict((managed_seed["spec"].get("gardenlet") or {}).get("config") or {})


def seed_template(managed_seed: Mapping[str, Any]) -> Object:
    """The Seed that the gardenlet registers: it has the name of the ManagedSeed."""
    template = gardenlet_config(managed_seed).get("seedConfig") or {}
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": SEED.api_version,
        "kind": SEED.kind,
        "metadata": {
            "name": managed_seed["metadata"]["name"],
            **{each: dict(metadata[each]) for each in ("labels", "annotations") if metadata.get(each)},
        },
        "spec": deepcopy(template.get("spec") or {}),
    }


def shoot_name(managed_seed: Mapping[str, Any]) -> str:
    return str((managed_seed["spec"].get("shoot") or {}).get("name") or "")


def is_reconciled(shoot: Mapping[str, Any] | None) -> bool:
    """Whether the last operation of a Shoot has succeeded, and was for its present spec."""
    if shoot is None or "deletionTimestamp" in shoot["metadata"]:
        return False
    status = shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    return (
        last.get("state") == "Succeeded"
        and last.get("type") != "Delete"
        and status.get("observedGeneration") == shoot["metadata"].get("generation")
    )


def needs_token(seed: Mapping[str, Any] | None, now: datetime) -> bool:
    """Whether the gardenlet has no client certificate for the garden that is still valid."""
    until = ((seed or {}).get("status") or {}).get("clientCertificateExpirationTimestamp")
    return until is None or datetime.fromisoformat(until) <= now


def changes(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Object:
    """The fields of ``wanted`` that ``live`` has not, or has otherwise: a merge patch of ``live``."""
    patch: Object = {}
    for key, value in wanted.items():
        known = live.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if below := changes(value, known):
                patch[key] = below
        elif value != known:
            patch[key] = value
    return patch


# The identity that the garden side makes for the gardenlet of a managed seed

BOOTSTRAP_TOKEN, CODEC_KEY = "bootstrap-token", "codec-key"
TLS_CERTIFICATE, TLS_KEY, TLS_AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
"""Keys of the Secret with the identity of a gardenlet. ``ca.crt``: authorities of Temporal's server certificate."""
_IDENTITY = ".managed-seed"


def identity_name(managed_seed: str) -> str:
    """Name of the Secret of namespace ``garden`` with the identity of the gardenlet of a managed seed."""
    return f"{managed_seed}{_IDENTITY}"


def managed_seed_of_identity(secret: str) -> str:
    """Name of the ManagedSeed by the name of the Secret; empty for the name of another Secret."""
    return secret.removesuffix(_IDENTITY) if secret.endswith(_IDENTITY) else ""


def token_id(managed_seed: str) -> str:
    """Id of the bootstrap token of a managed seed; a seed has one token at a time."""
    return sha256(f"managed seed {managed_seed}".encode()).hexdigest()[:6]

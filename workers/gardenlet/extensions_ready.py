"""The Seed's condition ExtensionsReady, from its ControllerInstallations and the heartbeats of extensions that it uses.

Source: spec/api-core.md 12, "Seed extensions check"; spec/extensions.md 1.7.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.clusters import Clusters
from api import constants, resources
from api.decisions.conditions import Finding, find_condition
from kube.client import Object
from workers.gardenlet.garden_caches import BY_REGISTRATION, installations_here

_HEARTBEAT = "gardener-extension-heartbeat"
_RULES = (
    ("Valid", "True", "NotAllExtensionsValid", "is not valid"),
    ("Installed", "True", "NotAllExtensionsInstalled", "is not installed"),
    ("Healthy", "True", "NotAllExtensionsHealthy", "is not healthy"),
    ("Progressing", "False", "SomeExtensionsProgressing", "is progressing"),
)
"""Conditions of a ControllerInstallation: type, good status, and for any other status the reason and text in the Seed's
condition."""
_USED = (
    resources.BACKUP_BUCKET,
    resources.CONTROL_PLANE,
    resources.DNS_RECORD,
    resources.EXTENSION,
    resources.INFRASTRUCTURE,
    resources.NETWORK,
    resources.WORKER,
)
"""Kinds whose objects show which extensions a seed uses. Each Shoot has objects of all these kinds, except of some that
are optional."""


class Heartbeats:
    """Ages of the heartbeats of this seed's extensions, from their Leases."""

    def __init__(self, clusters: Clusters) -> None:
        self.leases = clusters.seed_caches.of(resources.LEASE, fields=f"metadata.name={_HEARTBEAT}")
        self.registrations = clusters.garden_caches.of(resources.CONTROLLER_REGISTRATION)
        self.installations = installations_here(clusters)

    def silence(self, registration: Mapping[str, Any], now: datetime) -> timedelta | None:
        """Time since the last heartbeat of a registered extension; None if there is no Lease.

        An installed extension has its Lease in namespace ``extension-<ControllerInstallation>``. An extension that was
        not installed by a ControllerInstallation has its Lease in namespace ``extension-<registration>``, or it runs
        beside the gardenlet, and has its Lease in namespace ``garden``.
        """
        name = registration["metadata"]["name"]
        installed = [each["metadata"]["name"] for each in self.installations.by_index(BY_REGISTRATION, name)]
        places = [*(f"extension-{each}" for each in (*installed, name)), constants.GARDEN_NAMESPACE]
        lease = next((found for each in places if (found := self._lease(each))), None)
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        return now - datetime.fromisoformat(renewed) if renewed else None

    def silences(self) -> dict[tuple[str, str], timedelta]:
        """Time since the last heartbeat of each extension that has one, by kind and type of its extension objects."""
        now = datetime.now(UTC)
        found: dict[tuple[str, str], timedelta] = {}
        for registration in self.registrations.list():
            if (silence := self.silence(registration, now)) is not None:
                found |= dict.fromkeys(kinds_of(registration), silence)
        return found

    def _lease(self, namespace: str) -> Object | None:
        return self.leases.get(_HEARTBEAT, namespace)


class UsedExtensions:
    """Extensions that a seed uses, by the extension objects in it."""

    def __init__(self, clusters: Clusters, longest_silence: timedelta) -> None:
        self._longest_silence = longest_silence
        self.heartbeats = Heartbeats(clusters)
        self._used = [clusters.seed_caches.of(kind) for kind in _USED]

    def faults(self) -> list[str]:
        """Faults of these extensions: no heartbeat, or one that is too old."""
        used = {
            (cache.resource.kind, (each.get("spec") or {}).get("type", ""))
            for cache in self._used
            for each in cache.list()
        }
        now, faults = datetime.now(UTC), []
        for registration in self.heartbeats.registrations.list():
            if used.isdisjoint(kinds_of(registration)):
                continue
            silence, name = self.heartbeats.silence(registration, now), registration["metadata"]["name"]
            if silence is None:
                faults.append(f"{name} has written no heartbeat")
            elif silence > self._longest_silence:
                faults.append(f"{name} has written no heartbeat for more than {self._longest_silence}")
        return sorted(faults)


def kinds_of(registration: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Kinds and types of extension objects that a registered extension reconciles."""
    return [(each["kind"], each["type"]) for each in registration["spec"].get("resources") or ()]


def extensions_ready(installations: Iterable[Mapping[str, Any]], silent: Iterable[str]) -> Finding:
    """The condition of a seed with these ControllerInstallations and these faults of extensions' heartbeats."""
    found = sorted(installations, key=lambda each: str(each["metadata"]["name"]))
    for type_, good, reason, fault in _RULES:
        bad = []
        for each in found:
            condition = find_condition(each, type_)
            status, message = condition.get("status", "Unknown"), condition.get("message", "")
            if status != good:
                bad.append(f"{each['metadata']['name']} {fault}" + (f": {message}" if message else ""))
        if bad:
            return Finding(constants.SEED_EXTENSIONS_READY, "False", reason, "; ".join(bad))
    if faults := "; ".join(silent):
        return Finding(constants.SEED_EXTENSIONS_READY, "False", "NotAllExtensionsHealthy", faults)
    text = "All extensions installed into the seed cluster are ready and healthy."
    return Finding(constants.SEED_EXTENSIONS_READY, "True", "AllExtensionsReady", text)

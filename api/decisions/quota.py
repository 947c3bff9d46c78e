"""Resources that Shoots may use by their Quotas: pure functions. Source: spec/api-core.md 5, 10.2.

Each pool counts with its maximum, also while the Shoot is hibernated: it may wake up at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from api.constants import CORE, SECURITY
from api.decisions.credentials import BINDINGS, Credentials
from api.quantities import parse_quantity
from api.resources import ObjectView, Resource

CPU, GPU, MEMORY, LOAD_BALANCER = "cpu", "gpu", "memory", "loadbalancer"
STORAGE_CLASSES = ("standard", "basic", "premium")
METRICS = (CPU, GPU, MEMORY, *(f"storage.{each}" for each in STORAGE_CLASSES), LOAD_BALANCER)
MAX_QUANTITY = Decimal(2**63 - 1)
"""Largest number that a quantity of Kubernetes can hold."""
PROJECT_SCOPE = (f"{CORE}/v1beta1", "Project")
CREDENTIALS_SCOPES = (("v1", "Secret"), (f"{SECURITY}/v1alpha1", "WorkloadIdentity"))

Amounts = Mapping[str, Decimal]
"""Amounts by metric; a metric that is missing is 0."""


class Uncountable(Exception):
    """A Shoot's resources cannot be counted. The message names no Shoot, so users of other projects may read it."""


class QuotaKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@lru_cache(4096)
def amount(quantity: str | int | float) -> Decimal:
    """A quantity from 0 to the largest one. Raises Uncountable for every other value."""
    try:
        value = parse_quantity(quantity)
    except (ValueError, ArithmeticError):
        raise Uncountable(f"{quantity!r} is not a quantity like 500m or 8Gi") from None
    if not 0 <= value <= MAX_QUANTITY:
        raise Uncountable(f"quantity {quantity!r} is not between 0 and 2^63-1")
    return value


# What a Shoot needs


def needed(shoot: ObjectView, profile: ObjectView | None) -> Amounts:
    """Amounts that a Shoot needs at most.

    ``profile``: spec of its CloudProfile. Raises Uncountable if the profile lacks a machine type or volume type.
    """
    spec = shoot["spec"]
    amounts = dict.fromkeys(METRICS, Decimal(0))
    nginx = (spec.get("addons") or {}).get("nginxIngress") or {}
    amounts[LOAD_BALANCER] = Decimal(2 if nginx.get("enabled") else 1)
    for pool in (spec.get("provider") or {}).get("workers") or ():
        for metric, each in _of_machine(pool, profile or {}):
            amounts[metric] = amounts.get(metric, Decimal(0)) + each * pool["maximum"]
    return amounts


def counted_in(shoot: ObjectView) -> object:
    """Fields of a Shoot on which the amounts, or the Quotas that hold for it, depend."""
    spec = shoot["spec"]
    pools = [
        (each["machine"]["type"], each["maximum"], each.get("volume"), each.get("dataVolumes"))
        for each in (spec.get("provider") or {}).get("workers") or ()
    ]
    nginx = (spec.get("addons") or {}).get("nginxIngress") or {}
    profile = (spec.get("cloudProfile"), spec.get("cloudProfileName"))
    return pools, bool(nginx.get("enabled")), profile, *(spec.get(each.shoot_field) for each in BINDINGS.values())


def _of_machine(pool: ObjectView, profile: ObjectView) -> Iterable[tuple[str, Decimal]]:
    """Amounts that one machine of a pool needs."""
    name = pool["machine"]["type"]
    kind = _named(profile.get("machineTypes"), name)
    if kind is None:
        raise Uncountable(f"machine type {name} is in no CloudProfile")
    for metric in (CPU, GPU, MEMORY):
        yield metric, amount(kind[metric])
    own = kind.get("storage") or {}
    root = pool.get("volume") or ({"size": own["size"]} if own.get("size") else None)
    for volume in (*([root] if root else []), *(pool.get("dataVolumes") or ())):
        yield f"storage.{_class_of(volume, own, profile)}", amount(volume["size"])


def _class_of(volume: ObjectView, own: ObjectView, profile: ObjectView) -> str:
    """Class of a volume: the class of its type, or else of the machine type's own storage; empty if none is known."""
    named = volume.get("type")
    found = (_named(profile.get("volumeTypes"), named) if named else None) or own
    return str(found.get("class") or "")


def _named(items: Iterable[ObjectView] | None, name: str | None) -> ObjectView | None:
    return next((each for each in items or () if each["name"] == name), None)


# Quotas of a binding


def named_quotas(binding: ObjectView) -> list[QuotaKey]:
    """Quotas that a binding names; their default namespace is the binding's. An entry without a name names none."""
    home, entries = binding["metadata"]["namespace"], binding.get("quotas") or ()
    return [QuotaKey(each.get("namespace") or home, each["name"]) for each in entries if each.get("name")]


def is_for_project(quota: ObjectView) -> bool:
    """Whether a Quota counts the Shoots of a project; otherwise it counts all Shoots with the same credentials."""
    return str((quota["spec"].get("scope") or {}).get("kind")) == PROJECT_SCOPE[1]


class Bound(NamedTuple):
    """A binding and its kind."""

    kind: Resource
    binding: ObjectView

    @property
    def key(self) -> tuple[Resource, str, str]:
        return self.kind, self.namespace, self.binding["metadata"]["name"]

    @property
    def credentials(self) -> Credentials:
        return BINDINGS[self.kind].credentials(self.binding)

    @property
    def namespace(self) -> str:
        return str(self.binding["metadata"]["namespace"])


def effective(
    alike: Sequence[Bound], for_project: Callable[[QuotaKey], bool]
) -> list[tuple[Bound, Collection[QuotaKey]]]:
    """Quotas that hold for the Shoots of each binding of the same credentials.

    A second binding to the same credentials is no way around a Quota. So these hold, too:
    - Quotas that other bindings of the same namespace name for the same credentials;
    - Quotas of the credentials' owner, unless a binding of the namespace names one of them: all Quotas for the use of
      credentials, from the namespace of the credentials, that any binding names for these credentials.

    ``alike``: all bindings of the garden with the same credentials. ``for_project``: whether a Quota is for a project.
    """
    named: dict[str, dict[QuotaKey, None]] = {}
    owners: dict[QuotaKey, None] = {}
    for each in alike:
        quotas = named_quotas(each.binding)
        named.setdefault(each.namespace, {}).update(dict.fromkeys(quotas))
        home = each.credentials.namespace
        owners |= dict.fromkeys(quota for quota in quotas if quota.namespace == home and not for_project(quota))
    return [
        (each, found if owners.keys() & found.keys() else found | owners)
        for each in alike
        for found in (named[each.namespace],)
    ]


# Use of a Quota


@dataclass(frozen=True)
class Reservation:
    """Amounts that admission has granted to a write of a Shoot, which may not be stored, or not be seen, yet."""

    namespace: str
    uid: str
    generation: int
    """Generation of the Shoot before the write; 0 for a new Shoot."""
    at: int
    """Unix time in seconds."""
    amounts: Amounts

    def is_settled(self, shoot: ObjectView | None) -> bool:
        """Whether the Shoot, as it is known now, is newer than the Shoot that the write changed."""
        return shoot is not None and shoot["metadata"].get("generation", 1) > self.generation

    def to_wire(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "uid": self.uid,
            "generation": self.generation,
            "at": self.at,
            "amounts": {metric: str(each) for metric, each in self.amounts.items() if each},
        }

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Reservation:
        amounts = {metric: Decimal(each) for metric, each in wire["amounts"].items()}
        return cls(wire["namespace"], wire["uid"], wire["generation"], wire["at"], amounts)

    def joined(self, other: Reservation) -> Reservation:
        """One reservation for two writes to the same version of a Shoot: only one of the two can be stored."""
        amounts = {metric: _greatest(metric, self.amounts, other.amounts) for metric in METRICS}
        return Reservation(self.namespace, self.uid, self.generation, max(self.at, other.at), amounts)


@dataclass(frozen=True)
class Use:
    """Amounts of a Quota that other Shoots use."""

    stored: Amounts
    """Amounts of the Shoots that are stored."""
    reserved: Amounts = field(default_factory=dict)
    """Amounts of writes that were granted in the last seconds and are not seen yet."""


def use(shoots: Mapping[str, tuple[ObjectView, Amounts]], reservations: Iterable[Reservation]) -> Use:
    """Sum of Shoots, by uid with what each needs, and of reservations for writes that they do not show yet."""
    stored = {metric: sum((each[metric] for _, each in shoots.values()), Decimal(0)) for metric in METRICS}
    reserved = dict.fromkeys(METRICS, Decimal(0))
    for each in reservations:
        known, present = shoots.get(each.uid, (None, {}))
        if each.is_settled(known):
            continue
        for metric in METRICS:
            reserved[metric] += _greatest(metric, each.amounts, present) - present.get(metric, Decimal(0))
    return Use(stored, reserved)


def _greatest(metric: str, *amounts: Amounts) -> Decimal:
    return max(each.get(metric, Decimal(0)) for each in amounts)


def exceeded(quota: ObjectView, others: Use, before: Amounts, after: Amounts) -> list[str]:
    """Metrics of a Quota that a write of a Shoot exceeds, each with the amounts used, asked and allowed.

    A metric of which the Shoot needs no more than before is not checked: a Shoot may always become smaller.
    ``before``: what the Shoot counts now; empty for a new one. Raises Uncountable for a limit that is no quantity.
    """
    found = []
    for metric, limit in sorted(quota["spec"].get("metrics", {}).items()):
        asked = after.get(metric, Decimal(0)) - before.get(metric, Decimal(0))
        if asked <= 0:
            continue
        allowed, reserved = amount(limit), others.reserved.get(metric, Decimal(0))
        used = others.stored.get(metric, Decimal(0)) + reserved + before.get(metric, Decimal(0))
        if used + asked <= allowed:
            continue
        waiting = f" ({shown(metric, reserved)} of it by requests of the last seconds)" if reserved else ""
        amounts = f"{shown(metric, used)} used{waiting}, {shown(metric, asked)} asked, {shown(metric, allowed)} allowed"
        found.append(f"{metric}: {amounts}")
    return found


def unclassed(quota: ObjectView, after: Amounts) -> str:
    """Storage of the Shoot that no metric counts although the Quota limits storage; empty if there is none."""
    if not any(each.startswith("storage.") for each in quota["spec"].get("metrics", {})):
        return ""
    found = sorted(set(after) - set(METRICS))
    return found[0].removeprefix("storage.") or "unknown" if found else ""


def shown(metric: str, value: Decimal) -> str:
    """An amount for messages, like ``8``, ``500m`` or ``64Gi``."""
    if metric == MEMORY or metric.startswith("storage."):
        for suffix, power in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
            if value and value % (1 << power) == 0:
                return f"{int(value) >> power}{suffix}"
    if value == value.to_integral_value():
        return str(int(value))
    return f"{int(value * 1000)}m" if value * 1000 == int(value * 1000) else f"{value.normalize():f}"

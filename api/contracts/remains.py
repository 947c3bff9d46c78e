"""Stale control planes: objects that a seed still holds of Shoots that other seeds took over while it was lost.

The gardenlet of that seed lists them in an annotation of its Seed, so that the controller-manager starts their cleanup.
Source: spec/flows.md 8.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from api.constants import SEED_REMAINS
from api.contracts.operations import MIGRATIONS, ShootRef
from api.model import ApiModel

MAX_REMAINS = 100
"""Maximum number of entries in the annotation, because all annotations of an object together may have 256 KiB. A
gardenlet with more stale control planes lists the others after the cleanup of the first ones."""

_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_UID = r"^[0-9A-Za-z][-0-9A-Za-z]{0,63}$"


class Remnant(ApiModel):
    """A Shoot with a stale control plane in a seed."""

    namespace: str = Field(pattern=_LABEL)
    name: str = Field(pattern=_LABEL)
    uid: str = Field(pattern=_UID)
    technical_id: str = Field(pattern=_LABEL, alias="technicalID")
    deleted: bool = False
    """The Shoot was deleted after another seed took it over. False: another seed has it."""

    @classmethod
    def of(cls, shoot: ShootRef, technical_id: str, *, deleted: bool) -> "Remnant":
        return cls(
            namespace=shoot.namespace, name=shoot.name, uid=shoot.uid, technical_id=technical_id, deleted=deleted
        )

    @property
    def shoot(self) -> ShootRef:
        return ShootRef(namespace=self.namespace, name=self.name, uid=self.uid)


class BadRemains(ValueError):
    """The annotation of a Seed is not a list of Shoots as the controller-manager reads it."""


_Remains = TypeAdapter(list[Remnant])


def remains_of(seed: Mapping[str, Any]) -> list[Remnant]:
    """Stale control planes that the gardenlet of a Seed reports.

    Raises:
        BadRemains: the annotation cannot be read.
    """
    text = (seed["metadata"].get("annotations") or {}).get(SEED_REMAINS)
    if not text:
        return []
    try:
        remains = _Remains.validate_json(text)
    except ValidationError as error:
        fields = sorted({re.sub(r"[^\w.]", "?", ".".join(map(str, each["loc"])))[:80] for each in error.errors()})
        raise BadRemains(f"annotation {SEED_REMAINS} cannot be read: {', '.join(fields[:5]) or 'no JSON'}") from None
    if len(remains) > MAX_REMAINS:
        raise BadRemains(f"annotation {SEED_REMAINS} has {len(remains)} entries, more than the maximum {MAX_REMAINS}")
    return remains


def written(remains: Sequence[Remnant]) -> str | None:
    """Value of the annotation; None if the annotation must be removed."""
    if not remains:
        return None
    ordered = sorted(remains, key=lambda each: (each.namespace, each.name, each.uid))[:MAX_REMAINS]
    return _Remains.dump_json(ordered).decode()


def is_elsewhere(shoot: Mapping[str, Any], seed: str) -> bool:
    """Whether another seed than ``seed`` is responsible for a Shoot, and has its complete control plane."""
    status = shoot.get("status") or {}
    responsible, last = status.get("seedName"), status.get("lastOperation") or {}
    if not responsible or not status.get("technicalID") or seed in (responsible, shoot["spec"].get("seedName")):
        return False
    unfinished = last.get("type") in MIGRATIONS or (last.get("type") == "Restore" and last.get("state") != "Succeeded")
    return not unfinished

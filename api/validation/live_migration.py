"""Validation of a live move of a control plane. Source: spec/api-core.md 10 (Live migration)."""

from __future__ import annotations

from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.live_migration import (
    ALLOW_DISTANT_REGIONS,
    ANNOTATIONS,
    DISTANCE,
    DISTANCE_THRESHOLD,
    LIVE_MIGRATE,
)
from api.labels import is_true
from api.validation.binding import is_moving
from api.validation.field import Faults, Path

_ANNOTATIONS = Path("metadata") / "annotations"


def changed(shoot: Shoot, old: Shoot | None) -> list[str]:
    """Names of the annotations about live moves that are new, changed or gone."""
    before = old.metadata.annotations if old else {}
    return [each for each in ANNOTATIONS if shoot.metadata.annotations.get(each) != before.get(each)]


def is_wanted(shoot: Shoot) -> bool:
    return is_true(shoot.metadata.annotations.get(LIVE_MIGRATE))


def check_annotations(shoot: Shoot, old: Shoot | None, *, offered: bool) -> Faults:
    """Faults of annotations about live moves that are new or changed; ``offered``: the garden moves live at all."""
    faults, names = Faults(), changed(shoot, old)
    for name in names:
        path, text = _ANNOTATIONS @ name, shoot.metadata.annotations.get(name)
        if text is not None and not offered:
            faults.forbidden(path, "not offered by this garden (liveMigration of admission): move it by spec.seedName")
        elif old is None:
            faults.forbidden(path, "can be set once the control plane exists, which is to move")
        elif is_moving(old):
            faults.forbidden(path, "the control plane moves: change this after the move")
        elif name == DISTANCE_THRESHOLD and text is not None and not (text.isdecimal() and text.isascii()):
            faults.invalid(path, text, "must be a number of milliseconds, like 180")
        elif name != DISTANCE_THRESHOLD and text not in (None, "true", "false"):
            faults.unsupported(path, text, ("true", "false"))
    if old is not None and LIVE_MIGRATE in names and is_wanted(shoot):
        _check_shoot(shoot, faults)
    return faults


def check_live_move(shoot: Shoot, source: Seed | None, destination: Seed | None, distance: int | None) -> Faults:
    """Faults of a new move that is to be live; ``distance``: in ms between the seeds' regions, None if unknown."""
    faults, path = Faults(), _ANNOTATIONS @ LIVE_MIGRATE
    if not is_wanted(shoot):
        return faults
    _check_shoot(shoot, faults)
    if source is None or destination is None:
        return faults  # other rules report a seed that does not exist
    here, there = source.spec.provider, destination.spec.provider
    if here.type != there.type:
        faults.forbidden(path, f"seed {source.metadata.name} has provider {here.type}, the other {there.type}")
    old, new = _version(source), _version(destination)
    if old != new:
        faults.forbidden(path, f"the gardenlets of the seeds have versions {old} and {new}: wait for the same one")
    annotations = shoot.metadata.annotations
    limit = int(annotations.get(DISTANCE_THRESHOLD) or DISTANCE)
    if not is_true(annotations.get(ALLOW_DISTANT_REGIONS)) and (distance is None or distance > limit):
        known = "unknown" if distance is None else f"{distance} ms"
        faults.forbidden(
            path,
            f"the distance of regions {here.region} and {there.region} is {known}, and etcd writes in both: at most "
            f"{limit} ms, unless {ALLOW_DISTANT_REGIONS} is true",
        )
    return faults


def _version(seed: Seed) -> str:
    gardener = seed.status.gardener if seed.status else None
    return (gardener.version or "") if gardener else ""


def _check_shoot(shoot: Shoot, faults: Faults) -> None:
    path, plane = _ANNOTATIONS @ LIVE_MIGRATE, shoot.spec.control_plane
    if plane is None or plane.high_availability is None:
        faults.forbidden(path, "needs spec.controlPlane.highAvailability: etcd must have three members")
    if shoot.spec.hibernation and shoot.spec.hibernation.enabled:
        faults.forbidden(path, "the cluster is hibernated: nothing serves that a move could interrupt")

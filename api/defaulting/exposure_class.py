"""Merges the scheduling of an ExposureClass into a new Shoot that names the class. Source: spec/api-core.md 10.3."""

from __future__ import annotations

from api.core.v1beta1.exposure_class import ExposureClass
from api.core.v1beta1.shoot import Shoot
from api.meta import SeedSelector
from api.validation.field import Faults, Path

_SPEC = Path("spec")


def merge_exposure_class(shoot: Shoot, exposure_class: ExposureClass) -> Faults:
    """Add the seed selector and the tolerations of a class to those of a Shoot; returns conflicts.

    A second call with the same class changes nothing: the API server may call admission twice for one Shoot.
    """
    faults, name = Faults(), exposure_class.metadata.name
    scheduling, spec = exposure_class.scheduling, shoot.spec
    if scheduling is None:
        return faults
    if (wanted := scheduling.seed_selector) is not None:
        own = spec.seed_selector or SeedSelector()
        labels, added = own.match_labels or {}, wanted.match_labels or {}
        for key in sorted(key for key in labels.keys() & added.keys() if labels[key] != added[key]):
            faults.forbidden(
                _SPEC / "seedSelector" / "matchLabels" @ key,
                f"ExposureClass {name} needs {added[key]}: leave the label out, or choose another ExposureClass",
            )
        expressions = own.match_expressions or []
        missing = [each for each in wanted.match_expressions or [] if each not in expressions]
        types = sorted({*(own.provider_types or []), *(wanted.provider_types or [])})
        spec.seed_selector = SeedSelector(
            match_labels={**labels, **added} or None,
            match_expressions=[*expressions, *missing] or None,
            provider_types=types or None,
        )
    tolerations = list(spec.tolerations or [])
    for each in scheduling.tolerations or []:
        if each in tolerations:
            continue
        if any(own.key == each.key for own in tolerations):
            faults.forbidden(
                _SPEC / "tolerations",
                f"ExposureClass {name} has another toleration of key {each.key}: leave it out of the Shoot",
            )
            continue
        tolerations.append(each)
    spec.tolerations = tolerations or spec.tolerations
    return faults

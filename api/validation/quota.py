"""Validation of Quotas, and of the Quotas of a binding. Source: spec/api-core.md 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.core.v1beta1.quota import Quota
from api.decisions.quota import CREDENTIALS_SCOPES, METRICS, PROJECT_SCOPE, Uncountable, amount, is_for_project
from api.validation.field import Faults, Path

SPEC = Path("spec")
_COUNTED = ("gpu", "loadbalancer")
"""Metrics of which there are only whole ones."""


def check_quota(quota: Quota, old: Quota | None) -> Faults:
    faults, spec = Faults(), quota.spec
    scope = (spec.scope.api_version, spec.scope.kind)
    if scope not in (PROJECT_SCOPE, *CREDENTIALS_SCOPES):
        known = [f"{version} {kind}" for version, kind in (PROJECT_SCOPE, *CREDENTIALS_SCOPES)]
        faults.unsupported(SPEC / "scope", f"{scope[0]} {scope[1]}", known)
    if old is not None:
        faults.fixed(SPEC / "scope", old.spec.scope.to_wire(), spec.scope.to_wire())
    for metric, quantity in spec.metrics.items():
        path = SPEC / "metrics" @ metric
        if metric not in METRICS:
            faults.unsupported(path, metric, METRICS)
            continue
        try:
            value = amount(quantity)
        except Uncountable as error:
            faults.invalid(path, quantity, str(error))
            continue
        if metric in _COUNTED and value != value.to_integral_value():
            faults.invalid(path, quantity, "must be a whole number")
    return faults


def check_quotas_of_binding(quotas: Sequence[Mapping[str, Any]]) -> Faults:
    """Faults of the Quotas that a new binding names: at most one for the project, and one for the credentials."""
    faults = Faults()
    for scope in (True, False):
        alike = [index for index, each in enumerate(quotas) if is_for_project(each) is scope]
        if len(alike) > 1:
            what = "the project" if scope else "the credentials"
            faults.forbidden(Path("quotas") @ alike[1], f"another Quota of scope {what} is named already: remove one")
    return faults

"""Rules of SeedAutoscalers that their schema does not hold. Source: GEP-13; decision record 21."""

from __future__ import annotations

from api.quantities import parse_quantity
from api.seedmanagement.v1alpha1.seed_autoscaler import MetricTarget, SeedAutoscaler
from api.validation.field import Faults, Path

SPEC = Path("spec")


def check_seed_autoscaler(scaler: SeedAutoscaler) -> Faults:
    faults, spec = Faults(), scaler.spec
    if spec.max_replicas < spec.min_replicas:
        faults.invalid(SPEC / "maxReplicas", spec.max_replicas, f"must be at least minReplicas, {spec.min_replicas}")
    for index, metric in enumerate(spec.metrics):
        _check_target(metric.resource.target, SPEC / "metrics" @ index / "resource" / "target", faults)
    return faults


def _check_target(target: MetricTarget, path: Path, faults: Faults) -> None:
    given = {"averageUtilization": target.average_utilization, "averageValue": target.average_value}
    wanted, other = ("averageUtilization", "averageValue")[:: 1 if target.type == "Utilization" else -1]
    if given[wanted] is None:
        faults.required(path / wanted, f"a target of type {target.type} needs it")
    if given[other] is not None:
        faults.forbidden(path / other, f"a target of type {target.type} has {wanted}")
    if target.average_value is None:
        return
    try:
        if parse_quantity(target.average_value) < 1:
            faults.invalid(path / "averageValue", target.average_value, "must be at least 1")
    except ValueError as error:
        faults.invalid(path / "averageValue", target.average_value, str(error))

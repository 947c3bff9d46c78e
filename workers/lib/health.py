"""Whether an object is healthy, and whether its rollout is still going on.

Source: spec/resource-manager.md 4. Each check returns what is wrong, or None.
"""

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Mapping[str, Any]], str | None]


def unhealthy(obj: Mapping[str, Any]) -> str | None:
    """Why the object is not healthy. Kinds without a check are healthy when they exist."""
    check = _HEALTH.get((_group(obj), obj["kind"]))
    return check(obj) if check else None


def progressing(obj: Mapping[str, Any]) -> str | None:
    """Why the object is not rolled out yet. For the number of pods of a Deployment see ``terminating_pods``."""
    check = _PROGRESS.get((_group(obj), obj["kind"]))
    return check(obj) if check else None


def terminating_pods(deployment: Mapping[str, Any]) -> int | None:
    """Number of pods that a rolled out Deployment has beyond those wanted; None if its status does not hold it."""
    status = deployment.get("status") or {}
    terminating = status.get("terminatingReplicas")
    if terminating is None:
        return None
    return int(terminating) + int(status.get("replicas") or 0) - wanted_replicas(deployment)


def wanted_replicas(obj: Mapping[str, Any]) -> int:
    replicas = (obj.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def _group(obj: Mapping[str, Any]) -> str:
    return str(obj["apiVersion"]).rpartition("/")[0]


def _condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return {}


def _is(obj: Mapping[str, Any], kind: str, status: str) -> bool:
    return _condition(obj, kind).get("status") == status


def _says(obj: Mapping[str, Any], kind: str) -> str:
    condition = _condition(obj, kind)
    if not condition:
        return f"condition {kind} is missing"
    text = f"condition {kind} is {condition.get('status')}"
    words = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
    return f"{text} ({words})" if words else text


def _not_observed(obj: Mapping[str, Any]) -> str | None:
    observed = (obj.get("status") or {}).get("observedGeneration") or 0
    generation = obj["metadata"].get("generation") or 0
    return f"observed generation outdated ({observed}/{generation})" if observed < generation else None


def _number(obj: Mapping[str, Any], field: str) -> int:
    return int((obj.get("status") or {}).get(field) or 0)


def _crd(obj: Mapping[str, Any]) -> str | None:
    for kind in ("NamesAccepted", "Established"):
        if not _is(obj, kind, "True"):
            return _says(obj, kind)
    return _says(obj, "Terminating") if _is(obj, "Terminating", "True") else None


def _deployment(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    if not _is(obj, "Available", "True"):
        return _says(obj, "Available")
    if _is(obj, "Progressing", "False"):
        return _says(obj, "Progressing")
    return _says(obj, "ReplicaFailure") if _is(obj, "ReplicaFailure", "True") else None


def _replicated(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    ready, wanted = _number(obj, "readyReplicas"), wanted_replicas(obj)
    return f"not enough ready replicas ({ready}/{wanted})" if ready < wanted else None


def _daemon_set(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    desired = _number(obj, "desiredNumberScheduled")
    scheduled = _number(obj, "currentNumberScheduled")
    if scheduled < desired:
        return f"not enough scheduled pods ({scheduled}/{desired})"
    if misscheduled := _number(obj, "numberMisscheduled"):
        return f"misscheduled pods found ({misscheduled})"
    allowed = _max_unavailable(obj, desired) if _number(obj, "updatedNumberScheduled") < desired else 0
    unavailable = _number(obj, "numberUnavailable")
    return (
        f"too many unavailable pods found ({unavailable}, only max. {allowed} allowed)"
        if unavailable > allowed
        else None
    )


def _max_unavailable(obj: Mapping[str, Any], desired: int) -> int:
    strategy = (obj.get("spec") or {}).get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return 0
    value = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    if isinstance(value, str) and value.endswith("%"):
        return -(-desired * int(value[:-1]) // 100)  # rounded up, as the DaemonSet controller does
    return int(value)


def _pod(obj: Mapping[str, Any]) -> str | None:
    phase = (obj.get("status") or {}).get("phase")
    return None if phase in ("Running", "Succeeded") else f"pod is in phase {phase}"


def _job(obj: Mapping[str, Any]) -> str | None:
    return _says(obj, "Failed") if _is(obj, "Failed", "True") else None


def _service(obj: Mapping[str, Any]) -> str | None:
    if (obj.get("spec") or {}).get("type") != "LoadBalancer":
        return None
    ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    return None if ingress else "service is missing ingress status"


def _vertical_pod_autoscaler(obj: Mapping[str, Any]) -> str | None:
    return _says(obj, "ConfigUnsupported") if _is(obj, "ConfigUnsupported", "True") else None


def _monitoring(obj: Mapping[str, Any]) -> str | None:
    condition = _condition(obj, "Available")
    if (condition.get("observedGeneration") or 0) < (obj["metadata"].get("generation") or 0):
        return "condition Available is outdated"
    if condition.get("status") != "True":
        return _says(obj, "Available")
    available, wanted = _number(obj, "availableReplicas"), wanted_replicas(obj)
    return f"not enough available replicas ({available}/{wanted})" if available < wanted else None


def _certificate(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    state = (obj.get("status") or {}).get("state")
    return None if state == "Ready" else f"state is {state}"


def _deployment_progress(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    condition = _condition(obj, "Progressing")
    if condition.get("reason") != "NewReplicaSetAvailable":
        return _says(obj, "Progressing")
    return None


def _stateful_set_progress(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    updated, wanted = _number(obj, "updatedReplicas"), wanted_replicas(obj)
    return f"{updated} of {wanted} replica(s) have been updated" if updated < wanted else None


def _daemon_set_progress(obj: Mapping[str, Any]) -> str | None:
    if outdated := _not_observed(obj):
        return outdated
    updated, wanted = _number(obj, "updatedNumberScheduled"), _number(obj, "desiredNumberScheduled")
    return f"{updated} of {wanted} replica(s) have been updated" if updated < wanted else None


def _monitoring_progress(obj: Mapping[str, Any]) -> str | None:
    condition = _condition(obj, "Reconciled")
    if condition.get("status") != "True":
        return _says(obj, "Reconciled")
    updated, wanted = _number(obj, "updatedReplicas"), wanted_replicas(obj)
    return f"{updated} of {wanted} replica(s) have been updated" if updated < wanted else None


_HEALTH: dict[tuple[str, str], Check] = {
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _crd,
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _replicated,
    ("apps", "ReplicaSet"): _replicated,
    ("", "ReplicationController"): _replicated,
    ("apps", "DaemonSet"): _daemon_set,
    ("", "Pod"): _pod,
    ("batch", "Job"): _job,
    ("", "Service"): _service,
    ("autoscaling.k8s.io", "VerticalPodAutoscaler"): _vertical_pod_autoscaler,
    ("monitoring.coreos.com", "Prometheus"): _monitoring,
    ("monitoring.coreos.com", "Alertmanager"): _monitoring,
    ("cert.gardener.cloud", "Certificate"): _certificate,
    ("cert.gardener.cloud", "Issuer"): _certificate,
}

_PROGRESS: dict[tuple[str, str], Check] = {
    ("apps", "Deployment"): _deployment_progress,
    ("apps", "StatefulSet"): _stateful_set_progress,
    ("apps", "DaemonSet"): _daemon_set_progress,
    ("monitoring.coreos.com", "Prometheus"): _monitoring_progress,
    ("monitoring.coreos.com", "Alertmanager"): _monitoring_progress,
    ("cert.gardener.cloud", "Certificate"): _not_observed,
    ("cert.gardener.cloud", "Issuer"): _not_observed,
}

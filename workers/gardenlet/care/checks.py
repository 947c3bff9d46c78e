"""Checks of a control plane and its cluster, as functions of their objects: one Finding per condition.

Source: spec/flows.md 10.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from api import constants
from api.decisions.conditions import Finding, find_condition
from api.errors import ErrorCode
from api.machine.codes import MachineCode
from api.machine.names import KUBELET_SAYS
from api.resources import ObjectView
from kube.errors import AnswerTooLarge
from workers.lib import health

_ALWAYS = ("gardener-resource-manager", "kube-apiserver", "kube-controller-manager")
_WITH_WORKERS = ("kube-scheduler", "machine-controller-manager")
_ETCDS = ("etcd-main", "etcd-events")
_OBSERVING = ("monitoring", "logging")
_NODE_FAULTS = ("DiskPressure", "MemoryPressure", "PIDPressure", "NetworkUnavailable")
_EXPIRED_NODES = 0.2
"""Fraction of nodes with expired leases from which on EveryNodeReady is False."""
_DEFAULT_LEASE_SECONDS = 40
_NODE_AGENT_LEASE = "gardener-node-agent-"
"""Prefix of the name of a node agent's lease; the name of the node follows."""
_REFUSED = "OperatingSystemConfigRefused"
_QUOTED = 300
"""Maximum number of characters that a finding quotes of a message in the status of a node or a machine."""


@dataclass(frozen=True)
class ControlPlane:
    """Objects of one shoot's control plane in the seed."""

    namespace: str
    workers: bool
    deployments: Sequence[ObjectView]
    etcds: Sequence[ObjectView]
    managed_resources: Sequence[ObjectView]
    stateful_sets: Sequence[ObjectView] = ()
    wanted: Sequence[str] = ()
    """Names of Deployments that this control plane must have, but not every control plane."""


@dataclass(frozen=True)
class Nodes:
    """Objects of the shoot's nodes, and the seed's MachineDeployments of the machines behind them."""

    pools: Sequence[ObjectView]
    version: str
    nodes: Sequence[ObjectView]
    leases: Sequence[ObjectView] = ()
    """Leases of the nodes, in namespace kube-node-lease."""
    agent_leases: Sequence[ObjectView] = ()
    """Leases of the node agents, in namespace kube-system."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Checksum of the operating system config that the nodes of a pool are to have, by name of the pool."""
    machine_deployments: Sequence[ObjectView] = ()
    machines: Sequence[ObjectView] = ()
    """The seed's Machines; those that failed say why nodes are missing."""
    checksum_annotation: str = "checksum/cloud-config-data"


def _named(objects: Iterable[ObjectView]) -> dict[str, ObjectView]:
    return {each["metadata"]["name"]: each for each in objects}


def too_large(type_: str, error: AnswerTooLarge) -> Finding:
    """Finding if the API server's answer is larger than care reads, so that the condition cannot be checked."""
    text = f"{error}; find out which objects fill it, and delete them: the next check then succeeds"
    return Finding(type_, "False", "AnswerTooLarge", text)


def source_seed(name: str) -> Finding:
    """Finding that a lost seed may still hold objects of a control plane. The cluster works: it is served from here."""
    text = (
        f"Seed {name} was lost when this seed took over the control plane. It deletes its remains of the control plane "
        "once it is back."
    )
    return Finding(constants.CONDITION_SOURCE_SEED_CLEANED_UP, "Progressing", "SourceSeedLost", text)


def control_plane(seen: ControlPlane, progressing_for: timedelta, now: datetime) -> Finding:
    """ControlPlaneHealthy."""
    type_ = constants.CONDITION_CONTROL_PLANE_HEALTHY
    deployments, etcds = _named(seen.deployments), _named(seen.etcds)
    for name in (*_ALWAYS, *(_WITH_WORKERS if seen.workers else ()), *seen.wanted):
        if name not in deployments:
            return Finding(type_, "False", "DeploymentMissing", f"Deployment {seen.namespace}/{name} does not exist")
    if stopped := sorted(name for name, each in deployments.items() if _annotation(each, constants.SCALED_DOWN)):
        message = f"stopped because the nodes cannot reach their API server: {', '.join(stopped)}"
        return Finding(type_, "False", "ControllersScaledDown", message)
    for name, deployment in sorted(deployments.items()):
        ours = name in _ALWAYS + _WITH_WORKERS or _label(deployment, constants.ROLE) == "controlplane"
        if ours and (fault := health.unhealthy(_kind(deployment, "apps/v1", "Deployment"))):
            return Finding(type_, "False", "DeploymentUnhealthy", f"Deployment {seen.namespace}/{name}: {fault}")
    for name in _ETCDS:
        if name not in etcds:
            return Finding(type_, "False", "EtcdMissing", f"Etcd {seen.namespace}/{name} does not exist")
        if fault := _etcd_fault(etcds[name]):
            return Finding(type_, "False", "EtcdUnhealthy", f"Etcd {seen.namespace}/{name} {fault}")
    well = Finding(type_, "True", "ControlPlaneRunning", "All control plane components are healthy.")
    return managed_resources(seen.managed_resources, type_, progressing_for, now) or well


def observability(seen: ControlPlane, purpose: str, progressing_for: timedelta, now: datetime) -> Finding:
    """ObservabilityComponentsHealthy."""
    type_ = constants.CONDITION_OBSERVABILITY_HEALTHY
    well = Finding(type_, "True", "ObservabilityComponentsRunning", "All observability components are healthy.")
    if purpose == constants.PURPOSE_TESTING:
        return well
    for kind, objects in (("Deployment", seen.deployments), ("StatefulSet", seen.stateful_sets)):
        for each in objects:
            if _label(each, constants.ROLE) not in _OBSERVING:
                continue
            if fault := health.unhealthy(_kind(each, "apps/v1", kind)):
                name = f"{seen.namespace}/{each['metadata']['name']}"
                return Finding(type_, "False", f"{kind}Unhealthy", f"{kind} {name}: {fault}")
    return managed_resources(seen.managed_resources, type_, progressing_for, now) or well


def system_components(seen: ControlPlane, tunnel: Finding | None, progressing_for: timedelta, now: datetime) -> Finding:
    """SystemComponentsHealthy; ``tunnel`` is the finding of the tunnel's probe, None if the tunnel works."""
    type_ = constants.CONDITION_SYSTEM_COMPONENTS_HEALTHY
    fault = managed_resources(seen.managed_resources, type_, progressing_for, now)
    well = Finding(type_, "True", "SystemComponentsRunning", "All system components are healthy.")
    return fault or tunnel or well


def managed_resources(
    objects: Iterable[ObjectView], type_: str, progressing_for: timedelta, now: datetime
) -> Finding | None:
    """Finding of the first ManagedResource with a fault, among those that count for this condition.

    It is a fault if the newest version is not observed, applied and healthy, or its rollout takes too long.
    """
    for each in sorted(objects, key=lambda one: one["metadata"]["name"]):
        default = (
            constants.CONDITION_CONTROL_PLANE_HEALTHY
            if each["spec"].get("class")
            else constants.CONDITION_SYSTEM_COMPONENTS_HEALTHY
        )
        if (_label(each, constants.CARE_CONDITION_TYPE) or default) != type_:
            continue
        if fault := managed_resource_fault(each, progressing_for, now):
            reason, message = fault
            metadata = each["metadata"]
            return Finding(
                type_, "False", reason, f"ManagedResource {metadata['namespace']}/{metadata['name']}: {message}"
            )
    return None


def managed_resource_fault(each: ObjectView, progressing_for: timedelta, now: datetime) -> tuple[str, str] | None:
    """Reason and message if a ManagedResource is not applied or not healthy, or if its rollout takes too long."""
    status = each.get("status") or {}
    if (status.get("observedGeneration") or 0) < (each["metadata"].get("generation") or 0):
        return "OutdatedStatus", "its newest version was not checked yet"
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    for wanted in ("ResourcesApplied", "ResourcesHealthy"):
        found = conditions.get(wanted)
        if found is None:
            return "ManagedResourceMissingCondition", f"condition {wanted} was not reported yet"
        if found["status"] != "True":
            return found.get("reason") or "Unhealthy", found.get("message") or f"{wanted} is {found['status']}"
    rolling = conditions.get("ResourcesProgressing")
    if rolling is not None and rolling["status"] == "True":
        since = _time(rolling.get("lastTransitionTime"))
        if since is not None and now - since > progressing_for:
            return "ProgressingRolloutStuck", f"rolling since {since:%Y-%m-%d %H:%M} UTC: {rolling.get('message', '')}"
    return None


def nodes(seen: Nodes, now: datetime) -> Finding:
    """EveryNodeReady."""
    type_ = constants.CONDITION_EVERY_NODE_READY

    def bad(reason: str, message: str, codes: tuple[str, ...] = ()) -> Finding:
        return Finding(type_, "False", reason, message, codes)

    agents = {each["metadata"]["name"].removeprefix(_NODE_AGENT_LEASE): each for each in seen.agent_leases}
    for node in seen.nodes:
        if fault := _node_fault(node, seen, agents, now):
            reason, message = fault
            codes: tuple[str, ...] = (ErrorCode.CONFIGURATION_PROBLEM,) if reason == _REFUSED else ()
            return bad(reason, f"node {node['metadata']['name']} {message}", codes)
    for pool in seen.pools:
        has = sum(_label(node, constants.WORKER_POOL) == pool["name"] for node in seen.nodes)
        if has < pool["minimum"]:
            why, codes = _failed_machines(seen.machines)
            text = f"pool {pool['name']}: {has} of at least {pool['minimum']} nodes have joined{why}"
            return bad("MissingNodes", text + _said_by_kubelet(seen, agents, now), codes)
    expired = sum(lease_expired(each, now) for each in seen.leases)
    if expired and expired >= _EXPIRED_NODES * len(seen.nodes):
        return bad("NodeUnhealthy", f"leases of {expired} of {len(seen.nodes)} nodes have expired")
    return _counted(seen, _said_by_kubelet(seen, agents, now)) or Finding(
        type_, "True", "EveryNodeReady", "All nodes are ready."
    )


def _node_fault(
    node: ObjectView, seen: Nodes, agents: Mapping[str, ObjectView], now: datetime
) -> tuple[str, str] | None:
    status = node.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    ready = conditions.get("Ready")
    if ready is None or ready["status"] != "True":
        return "NodeUnhealthy", f"is not ready: {ready['message'] if ready else 'it reports nothing'}"
    for each in _NODE_FAULTS:
        if conditions.get(each, {}).get("status") == "True":
            return "NodeUnhealthy", f"reports {each}: {conditions[each].get('message', '')}"
    if conditions.get("SystemdUnitsReady", {}).get("status") == "False":
        return "NodeUnhealthy", f"has units that do not run: {conditions['SystemdUnitsReady'].get('message', '')}"
    pool = next((each for each in seen.pools if each["name"] == _label(node, constants.WORKER_POOL)), None)
    if pool is None or node["metadata"].get("deletionTimestamp") or (node.get("spec") or {}).get("unschedulable"):
        return None  # the node is about to be deleted
    wanted = (pool.get("kubernetes") or {}).get("version") or seen.version
    runs = (status.get("nodeInfo") or {}).get("kubeletVersion", "")
    if runs.removeprefix("v").split("+")[0] != wanted:
        return "KubeletVersionMismatch", f"runs kubelet {runs}, wanted is v{wanted}"
    checksum = seen.checksums.get(pool["name"])
    if checksum and _annotation(node, seen.checksum_annotation) != checksum:
        refused, _, why = _annotation(node, constants.REFUSED_CONFIGURATION).partition(": ")
        if refused == checksum:
            told = "has taken back the newest configuration of its pool, because its kubelet does not start with it"
            return _REFUSED, f"{told}: {why}; correct the pool"
        return "OperatingSystemConfigOutdated", "has not applied the newest operating system config of its pool"
    agent = agents.get(node["metadata"]["name"])
    if agent is None:
        return "NodeAgentUnhealthy", "has no lease of a node agent"
    if lease_expired(agent, now):
        return "NodeAgentUnhealthy", "has a node agent that does not renew its lease"
    return None


def _counted(seen: Nodes, said: str) -> Finding | None:
    """Finding if the number of nodes differs from the number of wanted machines; None if it does not.

    ``said``: why a machine has not joined.
    """
    if not seen.machine_deployments:
        return None
    type_ = constants.CONDITION_EVERY_NODE_READY
    wanted = sum(int((each.get("spec") or {}).get("replicas") or 0) for each in seen.machine_deployments)
    has = len(seen.nodes)
    if has < wanted:
        why, codes = _failed_machines(seen.machines)
        text = f"{has} of {wanted} wanted nodes have joined{why}{said}"
        return Finding(type_, "False", "NodesScalingUp", text, codes)
    if has > wanted:
        return Finding(
            type_, "False", "NodesScalingDown", f"{has - wanted} nodes more than the {wanted} wanted are there"
        )
    return None


def _failed_machines(machines: Iterable[ObjectView]) -> tuple[str, tuple[str, ...]]:
    """Message about the machines whose last operation failed, and Gardener's codes of their errors."""
    why, codes = "", set()
    for each in sorted(machines, key=lambda one: one["metadata"]["name"]):
        last = (each.get("status") or {}).get("lastOperation") or {}
        if last.get("state") != "Failed":
            continue
        why = why or f"; machine {each['metadata']['name']}: {str(last.get('description', ''))[:_QUOTED]}"
        if (known := last.get("errorCode")) in set(MachineCode) and (code := MachineCode(known).error_code):
            codes.add(str(code))
    return why, tuple(sorted(codes))


def outline_of_node(node: ObjectView, checksum_annotation: str) -> dict[str, Any]:
    """Fields that the checks read of a node. The Shoot's owner decides how large a Node is; outlines are small."""
    metadata, status = node["metadata"], node.get("status") or {}
    read = ("Ready", *_NODE_FAULTS, "SystemdUnitsReady")
    conditions = [
        {"type": each["type"], "status": each["status"], "message": str(each.get("message", ""))[:_QUOTED]}
        for each in status.get("conditions") or ()
        if each["type"] in read
    ]
    return {
        "metadata": {
            **{key: metadata[key] for key in ("name", "deletionTimestamp") if key in metadata},
            "labels": {constants.WORKER_POOL: _label(node, constants.WORKER_POOL)},
            "annotations": {
                checksum_annotation: _annotation(node, checksum_annotation),
                constants.REFUSED_CONFIGURATION: _annotation(node, constants.REFUSED_CONFIGURATION)[:_QUOTED],
            },
        },
        "spec": {"unschedulable": (node.get("spec") or {}).get("unschedulable", False)},
        "status": {
            "conditions": conditions,
            "nodeInfo": {"kubeletVersion": (status.get("nodeInfo") or {}).get("kubeletVersion", "")},
        },
    }


def _said_by_kubelet(seen: Nodes, agents: Mapping[str, ObjectView], now: datetime) -> str:
    """The error of the kubelet of a machine that has no Node, as its node agent tells it; empty if none does."""
    known = {node["metadata"]["name"] for node in seen.nodes}
    for machine, lease in sorted(agents.items()):
        error = (lease["metadata"].get("annotations") or {}).get(constants.KUBELET_ERROR)
        if error and machine not in known and not lease_expired(lease, now):
            return f"; machine {machine}: {KUBELET_SAYS}: {error[:_QUOTED]}"
    return ""


def outline_of_lease(lease: ObjectView) -> dict[str, Any]:
    """Fields that the checks read of a lease."""
    spec = lease.get("spec") or {}
    return {
        "metadata": {"name": lease["metadata"]["name"]},
        "spec": {key: spec[key] for key in ("renewTime", "leaseDurationSeconds") if key in spec},
    }


def outline_of_agent_lease(lease: ObjectView) -> dict[str, Any] | None:
    """Fields that the checks read of a node agent's lease; None for other leases of the namespace."""
    if not lease["metadata"]["name"].startswith(_NODE_AGENT_LEASE):
        return None
    outline = outline_of_lease(lease)
    if error := (lease["metadata"].get("annotations") or {}).get(constants.KUBELET_ERROR):
        outline["metadata"]["annotations"] = {constants.KUBELET_ERROR: error}
    return outline


def lease_expired(lease: ObjectView, now: datetime) -> bool:
    """Whether the holder of a lease has not renewed it in time."""
    spec = lease.get("spec") or {}
    renewed = _time(spec.get("renewTime"))
    seconds = spec.get("leaseDurationSeconds") or _DEFAULT_LEASE_SECONDS
    return renewed is None or now - renewed > timedelta(seconds=seconds)


def extension_findings(
    objects: Iterable[ObjectView], types: Iterable[str], stale: Mapping[tuple[str, str], timedelta], limit: timedelta
) -> list[Finding]:
    """Findings from the conditions that extensions report on their objects, if these have a type in ``types``.

    ``stale``: time since the last heartbeat of an extension, by kind and type of its objects. If it is more than
    ``limit``, the condition becomes Unknown. Reports of an extension without a known heartbeat count.
    """
    asked, found = set(types), []
    for each in objects:
        kind, name = each.get("kind", ""), each["metadata"]["name"]
        silent = stale.get((kind, (each.get("spec") or {}).get("type", "")))
        for condition in (each.get("status") or {}).get("conditions") or ():
            if condition["type"] not in asked:
                continue
            what = f"{kind} {each['metadata'].get('namespace', '')}/{name}"
            if silent is not None and silent > limit:
                text = f"{what}: its extension was last heard of {int(silent.total_seconds())} s ago"
                found.append(Finding(condition["type"], "Unknown", f"{kind}OutdatedHealthCheckReport", text))
            elif condition["status"] != "True":
                status = "Unknown" if condition["status"] == "Unknown" else condition["status"]
                reason = condition.get("reason") or f"{kind}Unhealthy"
                text = f"{what}: {condition.get('message', '')}"
                codes = tuple(condition.get("codes") or ())
                found.append(Finding(condition["type"], status, reason, text, codes))
    return found


def _etcd_fault(etcd: ObjectView) -> str | None:
    status = etcd.get("status") or {}
    if errors := status.get("lastErrors"):
        return "; ".join(each.get("description", "") for each in errors)
    if not status.get("ready"):
        return str(find_condition(etcd, "Ready").get("message") or "is not ready")
    backups = find_condition(etcd, "BackupReady")
    return f"has no backups: {backups.get('message', '')}" if backups.get("status") == "False" else None


def _kind(obj: ObjectView, api_version: str, kind: str) -> dict[str, Any]:
    return {**obj, "apiVersion": api_version, "kind": kind}


def _label(obj: ObjectView, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name, ""))


def _annotation(obj: ObjectView, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

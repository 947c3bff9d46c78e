"""Findings about a cluster from its objects: one row per reason of spec/flows.md 10."""

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.decisions.conditions import Finding
from workers.gardenlet.care import checks
from workers.gardenlet.care.checks import ControlPlane, Nodes

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAMESPACE = "shoot--local--demo"


def condition(type_: str, status: str, **more: str) -> dict[str, str]:
    return {"type": type_, "status": status, "reason": "R", "message": "M", **more}


def deployment(name: str, available: str = "True", role: str = "", **annotations: str) -> dict[str, Any]:
    labels = {"gardener.cloud/role": role} if role else {}
    return {
        "metadata": {"name": name, "generation": 1, "labels": labels, "annotations": annotations},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 1, "conditions": [condition("Available", available)]},
    }


def etcd(name: str, ready: bool = True) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"ready": ready}}


def managed(name: str, class_: str = "", label: str = "", **conditions: str) -> dict[str, Any]:
    states = {"ResourcesApplied": "True", "ResourcesHealthy": "True", "ResourcesProgressing": "False"} | conditions
    since = (NOW - timedelta(hours=2)).isoformat()
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "generation": 1,
            "labels": {"care.gardener.cloud/condition-type": label} if label else {},
        },
        "spec": {"class": class_} if class_ else {},
        "status": {
            "observedGeneration": 1,
            "conditions": [condition(each, status, lastTransitionTime=since) for each, status in states.items()],
        },
    }


DEPLOYMENTS = [
    deployment(name)
    for name in (
        "gardener-resource-manager",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "machine-controller-manager",
    )
]
SCALER = "cluster-autoscaler"
ETCDS = [etcd("etcd-main"), etcd("etcd-events")]


def backed_up(status: str) -> dict[str, Any]:
    """The main etcd with condition BackupReady."""
    main = etcd("etcd-main")
    main["status"]["conditions"] = [{"type": "BackupReady", "status": status, "message": "access denied"}]
    return main


def plane(
    deployments: list[dict[str, Any]] | None = None,
    etcds: list[dict[str, Any]] | None = None,
    resources: list[dict[str, Any]] | None = None,
    workers: bool = True,
    wanted: Sequence[str] = (),
) -> ControlPlane:
    return ControlPlane(NAMESPACE, workers, deployments or DEPLOYMENTS, etcds or ETCDS, resources or [], wanted=wanted)


def with_deployment(changed: dict[str, Any]) -> list[dict[str, Any]]:
    name = changed["metadata"]["name"]
    return [*(each for each in DEPLOYMENTS if each["metadata"]["name"] != name), changed]


STOPPED = {"dependency-watchdog.gardener.cloud/meltdown-protection-active": "true"}


@pytest.mark.parametrize(
    ("seen", "status", "reason"),
    [
        (plane(), "True", "ControlPlaneRunning"),
        (plane(DEPLOYMENTS[:4]), "False", "DeploymentMissing"),
        (plane(DEPLOYMENTS[:3], workers=False), "True", "ControlPlaneRunning"),
        (plane(with_deployment(deployment("kube-scheduler", "False"))), "False", "DeploymentUnhealthy"),
        (plane([*DEPLOYMENTS, deployment(SCALER)], wanted=[SCALER]), "True", "ControlPlaneRunning"),
        (plane(wanted=[SCALER]), "False", "DeploymentMissing"),
        (plane([*DEPLOYMENTS, deployment("vpa", "False", "controlplane")]), "False", "DeploymentUnhealthy"),
        (plane([*DEPLOYMENTS, deployment("foreign", "False")]), "True", "ControlPlaneRunning"),
        (plane(with_deployment(deployment("kube-controller-manager", **STOPPED))), "False", "ControllersScaledDown"),
        (plane(etcds=ETCDS[:1]), "False", "EtcdMissing"),
        (plane(etcds=[ETCDS[0], etcd("etcd-events", ready=False)]), "False", "EtcdUnhealthy"),
        (plane(etcds=[backed_up("False"), ETCDS[1]]), "False", "EtcdUnhealthy"),
        (plane(etcds=[backed_up("Unknown"), ETCDS[1]]), "True", "ControlPlaneRunning"),
        (plane(resources=[managed("a", "seed", ResourcesHealthy="False")]), "False", "R"),
        (plane(resources=[managed("a", "seed", ResourcesProgressing="True")]), "False", "ProgressingRolloutStuck"),
        (plane(resources=[managed("a", "", ResourcesHealthy="False")]), "True", "ControlPlaneRunning"),
        (plane(resources=[managed("a", "", "ControlPlaneHealthy", ResourcesApplied="False")]), "False", "R"),
    ],
)
def test_control_plane(seen: ControlPlane, status: str, reason: str) -> None:
    finding = checks.control_plane(seen, HOUR, NOW)

    assert (finding.type, finding.status, finding.reason) == ("ControlPlaneHealthy", status, reason), finding.message


def test_an_unchecked_managed_resource_is_not_healthy() -> None:
    outdated, unreported = managed("a"), managed("b")
    outdated["metadata"]["generation"] = 2
    unreported["status"]["conditions"] = []

    reasons = [
        checks.system_components(plane(resources=[each]), None, HOUR, NOW).reason for each in (outdated, unreported)
    ]

    assert reasons == ["OutdatedStatus", "ManagedResourceMissingCondition"]


def test_a_broken_tunnel_makes_system_components_unhealthy() -> None:
    tunnel = Finding("SystemComponentsHealthy", "False", "TunnelConnectionBroken", "timeout")

    assert checks.system_components(plane(), tunnel, HOUR, NOW) == tunnel
    assert checks.system_components(plane(), None, HOUR, NOW).reason == "SystemComponentsRunning"


@pytest.mark.parametrize(("purpose", "status"), [("production", "False"), ("testing", "True")])
def test_observability_is_checked_only_if_it_is_wanted(purpose: str, status: str) -> None:
    seen = plane([*DEPLOYMENTS, deployment("plutono", "False", "monitoring")])

    assert checks.observability(seen, purpose, HOUR, NOW).status == status


# Nodes

POOL = {"name": "a", "minimum": 1}
NODE: dict[str, Any] = {
    "metadata": {
        "name": "n1",
        "labels": {"worker.gardener.cloud/pool": "a"},
        "annotations": {"checksum/cloud-config-data": "abc"},
    },
    "status": {"conditions": [condition("Ready", "True")], "nodeInfo": {"kubeletVersion": "v1.37.1"}},
}


def lease(name: str, ago: float = 5) -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=ago)).isoformat()
    return {"metadata": {"name": name}, "spec": {"leaseDurationSeconds": 40, "renewTime": renewed}}


AGENT = lease("gardener-node-agent-n1")


def node(**changes: Any) -> dict[str, Any]:
    """NODE with some leaves replaced; ``status__nodeInfo={}``."""
    changed = copy.deepcopy(NODE)
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        place = changed
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return changed


def nodes(*found: dict[str, Any], pools: list[dict[str, Any]] | None = None, **more: Any) -> Nodes:
    seen = {"agent_leases": [AGENT], "checksums": {"a": "abc"}} | more
    return Nodes(pools or [POOL], "1.37.1", found, **seen)


def wanted(replicas: int) -> list[dict[str, Any]]:
    return [{"spec": {"replicas": replicas}}]


@pytest.mark.parametrize(
    ("seen", "status", "reason"),
    [
        (nodes(NODE), "True", "EveryNodeReady"),
        (nodes(NODE, machine_deployments=wanted(1), leases=[lease("n1")]), "True", "EveryNodeReady"),
        (nodes(node(status__conditions=[condition("Ready", "False")])), "False", "NodeUnhealthy"),
        (nodes(node(status__conditions=[])), "False", "NodeUnhealthy"),
        (
            nodes(node(status__conditions=[condition("Ready", "True"), condition("DiskPressure", "True")])),
            "False",
            "NodeUnhealthy",
        ),
        (
            nodes(node(status__conditions=[condition("Ready", "True"), condition("SystemdUnitsReady", "False")])),
            "False",
            "NodeUnhealthy",
        ),
        (nodes(node(status__nodeInfo={"kubeletVersion": "v1.36.3"})), "False", "KubeletVersionMismatch"),
        (
            nodes(
                node(status__nodeInfo={"kubeletVersion": "v1.36.3"}),
                pools=[{**POOL, "kubernetes": {"version": "1.36.3"}}],
            ),
            "True",
            "EveryNodeReady",
        ),
        (
            nodes(node(status__nodeInfo={"kubeletVersion": "v1.36.3"}, spec__unschedulable=True)),
            "True",
            "EveryNodeReady",
        ),
        (nodes(pools=[POOL]), "False", "MissingNodes"),
        (nodes(NODE, pools=[POOL, {"name": "b", "minimum": 1}]), "False", "MissingNodes"),
        (nodes(node(metadata__annotations={})), "False", "OperatingSystemConfigOutdated"),
        (nodes(NODE, agent_leases=[]), "False", "NodeAgentUnhealthy"),
        (nodes(NODE, agent_leases=[lease("gardener-node-agent-n1", ago=60)]), "False", "NodeAgentUnhealthy"),
        (nodes(NODE, leases=[lease("n1", ago=60)]), "False", "NodeUnhealthy"),
        (nodes(NODE, machine_deployments=wanted(2)), "False", "NodesScalingUp"),
        (nodes(NODE, machine_deployments=wanted(0)), "False", "NodesScalingDown"),
    ],
)
def test_nodes(seen: Nodes, status: str, reason: str) -> None:
    finding = checks.nodes(seen, NOW)

    assert (finding.type, finding.status, finding.reason) == ("EveryNodeReady", status, reason), finding.message


@pytest.mark.parametrize(
    ("machine", "ago", "said"),
    [
        ("n2", 5, "; machine n2: its kubelet says: invalid reservation"),
        ("n2", 60, ""),  # of a machine that is gone
        ("n1", 5, ""),  # of a machine that has joined since
    ],
)
def test_a_missing_node_is_explained_by_its_kubelet(machine: str, ago: int, said: str) -> None:
    agent = lease(f"gardener-node-agent-{machine}", ago=ago)
    agent["metadata"]["annotations"] = {"node-agent.gardener.cloud/kubelet-error": "invalid reservation"}
    kept = checks.outline_of_agent_lease(agent)
    assert kept is not None

    finding = checks.nodes(nodes(NODE, pools=[POOL, {"name": "b", "minimum": 1}], agent_leases=[AGENT, kept]), NOW)

    if machine != "n1":
        assert finding.message == f"pool b: 0 of at least 1 nodes have joined{said}"
    else:
        assert "its kubelet says" not in finding.message


# Extensions

WORKER = {
    "kind": "Worker",
    "metadata": {"name": "demo", "namespace": NAMESPACE},
    "spec": {"type": "local"},
    "status": {
        "conditions": [
            {"type": "EveryNodeReady", "status": "False", "reason": "Theirs", "message": "m", "codes": ["ERR_X"]},
            {"type": "SystemComponentsHealthy", "status": "True"},
            {"type": "Foreign", "status": "False"},
        ]
    },
}
TYPES = ("EveryNodeReady", "SystemComponentsHealthy")


def test_conditions_of_extensions_count_if_their_type_is_mapped() -> None:
    (found,) = checks.extension_findings([WORKER], TYPES, {("Worker", "local"): timedelta(seconds=30)}, 5 * HOUR / 60)

    assert (found.type, found.status, found.reason, found.codes) == ("EveryNodeReady", "False", "Theirs", ("ERR_X",))


def test_conditions_of_a_silent_extension_become_unknown() -> None:
    """Its last word was that all is well."""
    found = checks.extension_findings([WORKER], TYPES, {("Worker", "local"): timedelta(minutes=6)}, 5 * HOUR / 60)

    assert {(each.status, each.reason) for each in found} == {("Unknown", "WorkerOutdatedHealthCheckReport")}
    assert len(found) == 2


def machine(name: str, state: str = "Failed", code: str = "", text: str = "no machine is left") -> dict[str, Any]:
    last = {"state": state, "errorCode": code, "description": text}
    return {"metadata": {"name": name}, "status": {"lastOperation": last}}


@pytest.mark.parametrize(
    ("machines", "codes", "text"),
    [
        (
            [machine("b", code="ResourceExhausted")],
            ("ERR_INFRA_RESOURCES_DEPLETED",),
            "; machine b: no machine is left",
        ),
        (
            [machine("b", code="Unauthenticated"), machine("a", code="PermissionDenied", text="denied")],
            ("ERR_INFRA_UNAUTHENTICATED", "ERR_INFRA_UNAUTHORIZED"),
            "; machine a: denied",
        ),
        ([machine("a", code="Internal")], (), "; machine a: no machine is left"),
        ([machine("a", state="Processing", code="ResourceExhausted")], (), "joined"),
    ],
)
def test_missing_nodes_carry_the_codes_of_machines_that_failed(
    machines: list[dict[str, Any]], codes: tuple[str, ...], text: str
) -> None:
    """The owner sees in EveryNodeReady whether the cloud, the credentials or the pool is the cause."""
    for seen in (nodes(pools=[POOL], machines=machines), nodes(NODE, machine_deployments=wanted(2), machines=machines)):
        found = checks.nodes(seen, NOW)
        assert (found.status, found.codes) == ("False", codes)
        assert found.message.endswith(text)


def test_a_configuration_that_a_node_has_taken_back_is_reported_with_the_reason() -> None:
    """The owner of the pool wrote the value, and must learn which one it is."""
    annotations = {
        "checksum/cloud-config-data": "old",
        "node-agent.gardener.cloud/refused-configuration": "abc: unknown label",
    }
    refusing = node(metadata__annotations=annotations)
    found = checks.nodes(nodes(checks.outline_of_node(refusing, "checksum/cloud-config-data")), NOW)
    assert (found.status, found.reason) == ("False", "OperatingSystemConfigRefused")
    assert found.codes == ("ERR_CONFIGURATION_PROBLEM",)
    assert "its kubelet does not start with it: unknown label; correct the pool" in found.message
    other = node(metadata__annotations=annotations | {"node-agent.gardener.cloud/refused-configuration": "xyz: a"})
    assert checks.nodes(nodes(other), NOW).reason == "OperatingSystemConfigOutdated"

"""Names that follow from objects: which changes of a Shoot mean new machines, and which do not."""

import copy
from typing import Any

import pytest

from api.names import dns_record_type, ingress_host, node_agent_secret_name, overlap, owner_of

POOL: dict[str, Any] = {
    "name": "a",
    "machine": {"type": "small", "image": {"name": "local", "version": "1.0.0"}},
    "minimum": 1,
    "maximum": 2,
    "cri": {"name": "containerd"},
}
SHOOT: dict[str, Any] = {
    "metadata": {"name": "demo", "namespace": "garden-local"},
    "spec": {"kubernetes": {"version": "1.36.3", "kubelet": {"kubeReserved": {"cpu": "80m"}, "maxPods": 110}}},
}


def changed(item: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(item)
    *path, last = dotted.split(".")
    place = result
    for name in path:
        place = place.setdefault(name, {})
    place[last] = value
    return result


@pytest.mark.parametrize(
    ("of", "field", "value", "rolls"),
    [
        ("shoot", "spec.kubernetes.version", "1.37.1", True),
        ("shoot", "spec.kubernetes.version", "1.36.4", False),
        ("pool", "kubernetes.version", "1.35.4", True),
        ("pool", "kubernetes.version", "1.36.3", False),
        ("pool", "machine.type", "large", True),
        ("pool", "machine.image.name", "other", True),
        ("pool", "machine.image.version", "1.0.1", True),
        ("pool", "volume", {"type": "fast", "size": "50Gi"}, True),
        ("pool", "cri.name", "other", True),
        ("pool", "cri.containerRuntimes", [{"type": "gvisor"}], False),
        ("shoot", "spec.kubernetes.kubelet.kubeReserved.cpu", "100m", True),
        ("shoot", "spec.kubernetes.kubelet.evictionHard", {"memoryAvailable": "200Mi"}, True),
        ("shoot", "spec.kubernetes.kubelet.cpuManagerPolicy", "static", True),
        ("shoot", "spec.kubernetes.kubelet.maxPods", 90, False),
        ("pool", "kubernetes", {"kubelet": {"maxPods": 90}}, False),
        ("pool", "kubernetes", {"kubelet": {"kubeReserved": {"cpu": "90m"}}}, True),
        ("shoot", "spec.kubernetes.kubelet.evictionSoft", {"memoryAvailable": "300Mi"}, False),
        ("shoot", "spec.kubernetes.kubelet.podPidsLimit", 1000, False),
        ("shoot", "spec.kubernetes.kubeProxy", {"mode": "IPVS"}, False),
        ("shoot", "status.credentials.rotation.certificateAuthorities.lastInitiationTime", "2026-11-21", True),
        ("shoot", "status.credentials.rotation.serviceAccountKey.lastInitiationTime", "2026-11-21", True),
        ("shoot", "status.credentials.rotation.sshKeypair.lastInitiationTime", "2026-11-21", False),
        ("pool", "minimum", 2, False),
        ("pool", "labels", {"new": "yes"}, False),
        ("pool", "taints", [{"key": "k", "effect": "NoSchedule"}], False),
        ("pool", "machineControllerManager", {"machineDrainTimeout": "1m"}, False),
    ],
)
def test_which_changes_need_new_machines(of: str, field: str, value: Any, rolls: bool) -> None:
    shoot, pool = (
        changed(item, field, value) if of == kind else item for kind, item in (("shoot", SHOOT), ("pool", POOL))
    )

    assert (node_agent_secret_name(shoot, pool) != node_agent_secret_name(SHOOT, POOL)) is rolls


@pytest.mark.parametrize("strategy", ["AutoInPlaceUpdate", "ManualInPlaceUpdate"])
def test_the_key_of_a_pool_with_in_place_updates_is_stable(strategy: str) -> None:
    """A new key would replace the machines that are to stay."""
    pool = {**POOL, "updateStrategy": strategy}
    newer = changed(SHOOT, "spec.kubernetes.version", "1.99.0")
    rotated = changed(SHOOT, "status.credentials.rotation.certificateAuthorities.lastInitiationTime", "2026-11-21")

    keys = {node_agent_secret_name(shoot, pool) for shoot in (SHOOT, newer, rotated)}

    assert keys == {f"gardener-node-agent-{POOL['name']}"}
    assert node_agent_secret_name(SHOOT, {**POOL, "updateStrategy": "AutoRollingUpdate"}) not in keys


def test_services_of_a_shoot_are_one_label_below_the_ingress_domain_of_the_seed() -> None:
    assert ingress_host("p", "dev", "demo", "ingress.seed-1.test") == "p-dev--demo.ingress.seed-1.test"


@pytest.mark.parametrize(
    ("address", "type_"), [("198.18.2.2", "A"), ("fd00::1", "AAAA"), ("gateway.example.org", "CNAME")]
)
def test_an_address_determines_the_type_of_its_record(address: str, type_: str) -> None:
    assert dns_record_type(address) == type_


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("api.demo.local.internal.example.org", "shoot--local--demo"),
        ("API.demo.local.Internal.example.org.", "shoot--local--demo"),
        ("api.demo.local.example.org", ""),
        ("api.local.internal.example.org", ""),
        ("api.x.demo.local.internal.example.org", ""),
        ("www.demo.local.internal.example.org", ""),
        ("api.demo.local.notinternal.example.org", ""),
        ("api.demo.local", ""),
    ],
)
def test_an_internal_name_tells_its_control_plane(host: str, owner: str) -> None:
    assert owner_of(host, "internal.example.org") == owner
    assert owner_of(host, "") == ""


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ("a.test", "a.test", True),
        ("x.a.test", "a.test", True),
        ("a.test", "x.a.test", True),
        ("A.test.", "*.a.TEST", True),
        ("xa.test", "a.test", False),
        ("a.test", "b.test", False),
    ],
)
def test_domains_overlap_by_whole_labels(one: str, other: str, overlaps: bool) -> None:
    assert overlap(one, other) is overlaps

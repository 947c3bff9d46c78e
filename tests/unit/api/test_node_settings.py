"""Values that a node, a component or systemd would refuse later: the smallest Shoot and the message."""

from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.decisions.scheduling import default_conflicts, unmet
from api.decisions.seed_ranking import Candidate
from api.validation.field import Path
from api.validation.garden import check_cloud_profile
from api.validation.references import check_references
from api.validation.shoot import check_shoot
from api.validation.values import amounts
from tests.unit.api.shoots import NOW, changed, complete, profile, seed, world

POOL = "spec.provider.workers.0"
SERVER = "spec.kubernetes.kubeAPIServer"
ENCRYPTED = f"{SERVER}.encryptionConfig.resources"
LONG = "x" * 64


def faults_of(path: str, value: Any) -> str:
    obj = changed(complete(bound=True).to_wire(), path, value)
    return str(check_shoot(Shoot.of(obj), None, "local") or "")


def taint(**fields: str) -> dict[str, str]:
    return {"key": "dedicated", "effect": "PreferNoSchedule"} | fields


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (f"{POOL}.labels", {"foo": "not/valid"}, 'workers[0].labels[foo]: Invalid value: "not/valid"'),
        (f"{POOL}.labels", {"a": LONG}, "labels[a]: Invalid value"),
        (f"{POOL}.labels", {LONG: "a"}, "must not be longer than 63 characters"),
        (f"{POOL}.labels", {"a": "b,c=d"}, 'labels[a]: Invalid value: "b,c=d"'),
        (f"{POOL}.labels", {"a": "x --fail-swap-on=false"}, "labels[a]: Invalid value"),
        (f"{POOL}.labels", {"a": "x\n"}, "labels[a]: Invalid value"),
        (f"{POOL}.labels", {"a b": "c"}, 'labels: Invalid value: "a b"'),
        (f"{POOL}.labels", {"Example.org/a": "c"}, "the part in front of '/' must be a lower-case DNS name"),
        (f"{POOL}.labels", {"/a": "c"}, "the part in front of '/' must be a lower-case DNS name"),
        (
            f"{POOL}.labels",
            {"kubernetes.io/hostname": "a"},
            "labels[kubernetes.io/hostname]: Forbidden: the kubelet sets",
        ),
        (f"{POOL}.labels", {"worker.gardener.cloud/pool": "a"}, "Forbidden: Gardener sets this label"),
        (f"{POOL}.annotations", {"bad key": "a"}, 'workers[0].annotations: Invalid value: "bad key"'),
        (f"{POOL}.taints", [taint(value="node-role.kubernetes.io/infra")], "workers[0].taints[0].value: Invalid value"),
        (f"{POOL}.taints", [taint(key="a b")], 'taints[0].key: Invalid value: "a b"'),
        (f"{POOL}.taints", [taint(value="a"), taint(value="b")], "taints[1]: Duplicate value"),
        (f"{POOL}.taints", [taint(effect="Never")], "taints[0].effect: Unsupported value"),
        (f"{POOL}.sysctls", {"a b": "1"}, 'workers[0].sysctls: Invalid value: "a b"'),
        (f"{POOL}.sysctls", {"net.ipv4.ip_forward": ""}, "must be one line with a value"),
        (f"{POOL}.sysctls", {"vm.swappiness": "1\nkernel.panic = 1"}, "sysctls[vm.swappiness]: Invalid value"),
        (f"{POOL}.caBundle", "x", "workers[0].caBundle: Invalid value"),
        (f"{POOL}.zones", ["a zone"], "workers[0].zones[0]: Invalid value"),
        (f"{POOL}.maxUnavailable", "150%", "must not be more than 100%"),
        (f"{POOL}.maxUnavailable", "１0%", "must be a number or a percentage like 10%"),
        (f"{POOL}.machineControllerManager", {"machineDrainTimeout": "-1m"}, "machineDrainTimeout: Invalid value"),
        (f"{POOL}.machineControllerManager", {"nodeConditions": ["A,B"]}, "nodeConditions[0]: Invalid value"),
        (f"{POOL}.clusterAutoscaler", {"scaleDownUnneededTime": "-1s"}, "scaleDownUnneededTime: Invalid value"),
        (
            "spec.kubernetes.kubelet.kubeReserved",
            {"cpu": "-100m"},
            'kubeReserved.cpu: Invalid value: "-100m": must not be',
        ),
        ("spec.kubernetes.kubelet.kubeReserved", {"memory": "1e1.5"}, "is not a quantity"),
        ("spec.kubernetes.kubelet.kubeReserved", {"memory": "1e99"}, "larger than a quantity can be"),
        ("spec.kubernetes.kubelet.maxPods", 2**31, "must not be greater than 2147483647"),
        (
            "spec.kubernetes.kubelet.evictionHard",
            {"memoryAvailable": "lots"},
            "evictionHard.memoryAvailable: Invalid value",
        ),
        ("spec.kubernetes.kubelet.evictionHard", {"imageFSAvailable": "120%"}, "must be at most 100%"),
        ("spec.kubernetes.kubelet.evictionSoft", {"memoryAvailable": "-1Mi"}, "evictionSoft.memoryAvailable: Invalid"),
        (
            "spec.kubernetes.kubelet.evictionSoftGracePeriod",
            {"memoryAvailable": "soon"},
            "evictionSoftGracePeriod.memory",
        ),
        ("spec.kubernetes.kubelet.evictionSoftGracePeriod", {"memoryAvailable": "-1s"}, "must not be negative"),
        ("spec.kubernetes.kubelet.evictionMinimumReclaim", {"memoryAvailable": "-1Mi"}, "must not be negative"),
        ("spec.kubernetes.kubelet.imageMaximumGCAge", "1m", "must be more than imageMinimumGCAge"),
        ("spec.kubernetes.clusterAutoscaler", {"startupTaints": ["a b"]}, "startupTaints[0]: Invalid value"),
        ("spec.kubernetes.clusterAutoscaler", {"scanInterval": "-1s"}, "clusterAutoscaler.scanInterval: Invalid value"),
        ("spec.kubernetes.clusterAutoscaler", {"maxDrainParallelism": -1}, "maxDrainParallelism: Invalid value: -1"),
        ("spec.kubernetes.verticalPodAutoscaler", {"enabled": True, "evictionTolerance": -0.5}, "must not be negative"),
        ("spec.kubernetes.verticalPodAutoscaler", {"enabled": True, "evictionRateLimit": -1}, ""),
        ("spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod", "-40s", "must not be negative"),
        ("spec.kubernetes.kubeControllerManager.horizontalPodAutoscaler", {"tolerance": -0.1}, "must not be negative"),
        (f"{SERVER}.apiAudiences", ["a,b"], "apiAudiences[0]: Invalid value"),
        (f"{SERVER}.serviceAccountConfig", {"issuer": "https://test.html# "}, "must be an https URL without blanks"),
        (f"{SERVER}.serviceAccountConfig", {"issuer": "https://[x"}, "must be an https URL without blanks"),
        (f"{SERVER}.serviceAccountConfig", {"acceptedIssuers": ["x", "x"]}, "acceptedIssuers[1]: Duplicate value"),
        (
            f"{SERVER}.serviceAccountConfig",
            {"issuer": "https://a.test", "acceptedIssuers": ["https://a.test"]},
            "must be another one than issuer",
        ),
        (
            f"{SERVER}.watchCacheSizes",
            {"resources": [{"resource": "Pods", "size": 1}]},
            "resources[0].resource: Invalid",
        ),
        (
            f"{SERVER}.watchCacheSizes",
            {"resources": [{"resource": "a", "apiGroup": "b#", "size": 1}]},
            "apiGroup: Invalid",
        ),
        (f"{SERVER}.eventTTL", "-1h", "kubeAPIServer.eventTTL: Invalid value"),
        (
            "spec.systemComponents",
            {"coreDNS": {"rewriting": {"commonSuffixes": ["a..b"]}}},
            "commonSuffixes[0]: Invalid",
        ),
        (ENCRYPTED, ["ConfigMaps"], "encryptionConfig.resources[0]: Invalid value"),
        (ENCRYPTED, ["foo."], "must be the plural name of a resource in lower case"),
        (ENCRYPTED, ["*.events.k8s.io"], "wildcards are not supported"),
        (ENCRYPTED, ["events"], "events are kept for a short time"),
        (ENCRYPTED, ["events.events.k8s.io"], "events are kept for a short time"),
        (ENCRYPTED, ["serviceipallocations"], "is no resource of the API"),
        (ENCRYPTED, ["serviceipallocations.networking.k8s.io"], "is no resource of the API"),
        (ENCRYPTED, ["deployments.extensions"], "nothing is stored in group extensions"),
        (ENCRYPTED, ["configmaps", "configmaps."], "resources[1]: Invalid value"),
        (ENCRYPTED, ["configmaps", "configmaps"], "resources[1]: Duplicate value"),
        (ENCRYPTED, ["pods.apps"], "Kubernetes 1.37.1 has no pods in group apps"),
        (ENCRYPTED, ["configmaps", "deployments.apps", "things.example.org"], ""),
        ("spec.networking.services", "10.0.0.0/29", "must have a prefix of at most /28"),
        ("spec.networking.services", "10.0.0.0/8", "must have a prefix of at least /12"),
        ("spec.networking.services", "10.0.0.0/28", ""),
        ("spec.networking.services", "10.0.0.0/12", ""),
        ("spec.networking.pods", "100.126.0.0/25", "is smaller than the share of one node (nodeCIDRMaskSize 24)"),
        ("spec.networking.pods", "10.0.0.0/7", "must have a prefix of at least /8"),
        ("spec.kubernetes.kubeControllerManager.nodeCIDRMaskSize", 28, "nodeCIDRMaskSize: Invalid value: 28"),
    ],
)
def test_a_value_that_a_component_would_refuse_is_refused_when_it_is_written(path, value, complaint):
    text = faults_of(path, value)
    assert (complaint in text) if complaint else not text


def nodes(pods: str, maximum: int) -> str:
    obj = changed(complete(bound=True).to_wire(), "spec.networking.pods", pods)
    return str(check_shoot(Shoot.of(changed(obj, f"{POOL}.maximum", maximum)), None, "local") or "")


def test_the_network_of_pods_has_a_share_for_each_node_that_the_pools_may_have():
    assert not nodes("100.126.0.0/17", 128)
    assert "the pools may have 129 nodes, but spec.networking.pods 100.126.0.0/17 has room for 128" in nodes(
        "100.126.0.0/17", 129
    )
    assert "has room for 2" in nodes("100.126.0.0/23", 3)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (["a", "b"], ["b", "a"], True),
        (["a", "b", "c"], ["b", "c"], True),
        (["a", "b"], ["a", "b", "c"], False),
        (None, ["a"], False),
    ],
)
def test_zones_of_a_pool_are_only_appended(before, after, refused):
    """Machines are named by the position of their zone: a moved zone would relabel nodes that run elsewhere."""
    first = changed(complete(bound=True).to_wire(), f"{POOL}.maximum", 3)
    old = Shoot.of(changed(first, f"{POOL}.zones", before) if before else first)
    new = Shoot.of(changed(old.to_wire(), f"{POOL}.zones", after))
    assert ("zones can only be appended to" in str(check_shoot(new, old, "local"))) == refused


def test_amounts_are_found_by_the_types_of_the_fields():
    found = {str(path): kind for path, kind, _ in amounts(complete(bound=True).spec, Path("spec"))}
    assert found["spec.kubernetes.kubelet.kubeReserved.cpu"] == "quantity"
    assert found["spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod"] == "duration"
    assert found["spec.provider.workers[0].maximum"] == "number"


# Against the cloud profile


def references_of(*changes: tuple[str, Any], offers: tuple[str, Any] = ("", None), old: Shoot | None = None) -> str:
    obj = complete(bound=True).to_wire()
    for path, value in changes:
        obj = changed(obj, path, value)
    return str(check_references(Shoot.of(obj), old, world(profile=profile(*offers))) or "")


@pytest.mark.parametrize(
    ("path", "reserved", "complaint"),
    [
        (
            "spec.kubernetes.kubelet",
            {"cpu": "2500m"},
            'spec.kubernetes.kubelet.kubeReserved.cpu: Invalid value: "2500m"',
        ),
        (
            "spec.kubernetes.kubelet",
            {"cpu": "2"},
            "machine type local of pool pool has 2: nothing would be left for pods",
        ),
        ("spec.kubernetes.kubelet", {"memory": "5Gi"}, "kubeReserved.memory: Invalid value"),
        (f"{POOL}.kubernetes.kubelet", {"memory": "4Gi"}, "workers[0].kubernetes.kubelet.kubeReserved.memory: Invalid"),
        ("spec.kubernetes.kubelet", {"cpu": "1999m", "memory": "3Gi"}, ""),
    ],
)
def test_resources_reserved_for_daemons_leave_some_for_pods(path, reserved, complaint):
    text = references_of((f"{path}.kubeReserved", reserved))
    assert (complaint in text) if complaint else not text


def test_reserved_resources_that_a_stored_shoot_has_do_not_hold_other_changes():
    old = Shoot.of(changed(complete(bound=True).to_wire(), "spec.kubernetes.kubelet.kubeReserved", {"cpu": "3"}))
    new = Shoot.of(changed(old.to_wire(), f"{POOL}.maximum", 3))
    assert not check_references(new, old, world())


VOLUMES = ("spec.volumeTypes", [{"name": "ssd", "class": "standard", "minSize": "20Gi"}])


@pytest.mark.parametrize(("size", "refused"), [("10Gi", True), ("20Gi", False), ("30G", False)])
def test_a_volume_has_the_smallest_size_of_its_type(size, refused):
    text = references_of((f"{POOL}.volume", {"type": "ssd", "size": size}), offers=VOLUMES)
    assert ("volume.size: Invalid value" in text) == refused


def test_a_volume_type_is_available_in_the_zones_of_its_pool():
    offered = changed(profile().to_wire(), *VOLUMES)
    offered = changed(offered, "spec.regions.0.zones.1", {"name": "1", "unavailableVolumeTypes": ["ssd"]})
    obj = changed(complete(bound=True).to_wire(), f"{POOL}.volume", {"type": "ssd", "size": "20Gi"})
    here, there = (
        str(
            check_references(
                Shoot.of(changed(obj, f"{POOL}.zones", zones)), None, world(profile=type(profile()).of(offered))
            )
        )
        for zones in (["0"], ["0", "1"])
    )
    assert "is not available in it" not in here
    assert 'workers[0].zones[1]: Invalid value: "1": volume type ssd is not available in it' in there


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("spec.machineTypes.0.name", "SCS-2V:4:100"),
        ("spec.machineTypes.0.name", "Small HD 4GB"),
        ("spec.machineImages.0.name", "a/b"),
        ("spec.regions.0.zones.0.name", "a:b"),
        ("spec.regions.0.name", "a b"),
    ],
)
def test_names_in_a_cloud_profile_are_values_of_labels(path, name):
    text = str(check_cloud_profile(profile(path, name), NOW))
    assert f'Invalid value: "{name}"' in text
    assert "it becomes the value of a label of nodes" in text


def test_amounts_in_a_cloud_profile_are_not_negative():
    assert 'machineTypes[0].cpu: Invalid value: "-2"' in str(
        check_cloud_profile(profile("spec.machineTypes.0.cpu", "-2"), NOW)
    )


def test_a_seed_whose_default_networks_overlap_the_shoots_own_is_not_chosen():
    """Networks are fixed once they are set: such a Shoot could never be bound to that seed, nor repaired."""
    wanted = complete("spec.networking.pods", "100.68.0.0/16")
    assert default_conflicts(wanted, seed()) == [("pods", "services")]
    told = unmet(wanted, profile(), Candidate(seed(), 0))
    assert any("default networks" in str(each) for each in told)
    fits = complete("spec.networking", {"type": "flannel", "pods": "100.68.0.0/16", "services": "100.69.0.0/16"})
    assert not default_conflicts(fits, seed())
    assert default_conflicts(complete("spec.networking.nodes", "100.112.0.0/16"), seed()) == [("nodes", "pods")]


def test_resources_that_cannot_be_encrypted_can_be_taken_back_while_they_are_rolled_out():
    """An API server that does not start ends no rollout: waiting for its end would hold the repair for ever."""
    wrong = complete(bound=True).to_wire()
    wrong["status"] = {"credentials": {"encryptionAtRest": {"provider": {"type": "aescbc"}, "resources": []}}}
    old = Shoot.of(changed(wrong, ENCRYPTED, ["ConfigMaps"]))
    assert not check_shoot(Shoot.of(changed(wrong, ENCRYPTED, [])), old, "local")
    good = Shoot.of(changed(wrong, ENCRYPTED, ["configmaps"]))
    told = str(check_shoot(Shoot.of(changed(wrong, ENCRYPTED, [])), good, "local"))
    assert "while the previous change is in progress" in told

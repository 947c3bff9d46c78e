"""Zones to which a control plane is pinned, from its Shoot to its pods."""

from activities.components.base import deployment
from activities.seed.zones import ZONE_PINNING, ZONES, affinity, annotations, pinned, pinned_zones

SHOOT = {"spec": {"controlPlane": {"zones": ["a", "b", "c"]}}}


def test_the_namespace_of_a_pinned_control_plane_has_its_zones():
    found = annotations(SHOOT)

    assert found == {ZONES: "a,b,c", ZONE_PINNING: "true"}
    assert pinned_zones({"metadata": {"annotations": found}}) == ["a", "b", "c"]


def test_other_control_planes_run_in_all_zones():
    assert annotations({"spec": {}}) == {}
    assert pinned_zones(None) == []
    assert pinned_zones({"metadata": {}}) == []
    assert pinned_zones({"metadata": {"annotations": {ZONES: "a"}}}) == []
    assert affinity([]) == {}


def test_pods_of_a_pinned_deployment_run_in_its_zones_alone():
    made = deployment("a", "b", select={"app": "a"}, replicas=1, pod={"containers": []})

    spec = pinned(made, ["a"])["spec"]["template"]["spec"]
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}
    assert pinned(made, []) == made

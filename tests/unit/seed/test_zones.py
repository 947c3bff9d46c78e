"""Zones of a control plane, from its Shoot to its namespace and its pods."""

import pytest

from activities.components.base import deployment
from activities.seed.zones import LABELS, affinity, annotations, pinned, pinned_zones
from api.high_availability import FAILURE_TOLERANCE_TYPE, ZONE_PINNING, ZONES

UID = "1d9f2c9e-1a6e-4a53-9f0a-6a4b0d9d6d11"
SEED = {"spec": {"provider": {"zones": ["a", "b", "c", "d"]}}}


def shoot(tolerance="", uid=UID, **control_plane):
    """A Shoot. ``tolerance``: failure that its control plane survives."""
    available = {"highAvailability": {"failureTolerance": {"type": tolerance}}} if tolerance else {}
    return {"metadata": {"uid": uid}, "spec": {"controlPlane": {**available, **control_plane}}}


def namespace(**annotations):
    return {"metadata": {"annotations": annotations}}


def zones_of(*args):
    return annotations(*args).get(ZONES, "").split(",")


def test_the_namespace_of_a_pinned_control_plane_has_its_zones():
    found = annotations(shoot(zones=["a", "b", "c"]), SEED, None)

    assert found == {ZONES: "a,b,c", ZONE_PINNING: "true", FAILURE_TOLERANCE_TYPE: ""}
    assert pinned_zones({"metadata": {"annotations": found}}) == ["a", "b", "c"]


@pytest.mark.row(
    "high availability", "namespaces of control planes: failure-tolerance-type is that of the Shoot, or empty"
)
def test_the_namespace_has_the_failure_tolerance_of_its_shoot():
    found = [annotations(shoot(each), SEED, None)[FAILURE_TOLERANCE_TYPE] for each in ("", "node", "zone")]

    assert found == ["", "node", "zone"]
    assert LABELS == {"high-availability-config.resources.gardener.cloud/consider": "true"}


@pytest.mark.row(
    "high availability", "namespaces of control planes: one zone of the seed, or three with failure tolerance zone"
)
def test_a_new_control_plane_gets_zones_of_its_seed():
    assert [len(zones_of(shoot(each), SEED, None)) for each in ("", "node", "zone")] == [1, 1, 3]
    of_many = {zones_of(shoot(uid=f"{number}"), SEED, None)[0] for number in range(40)}
    assert of_many == {"a", "b", "c", "d"}, "control planes are spread over the zones"
    assert annotations(shoot("node"), {"spec": {"provider": {}}}, None) == {FAILURE_TOLERANCE_TYPE: "node"}
    assert annotations(shoot(), None, None) == {FAILURE_TOLERANCE_TYPE: ""}


@pytest.mark.row(
    "high availability", "namespaces of control planes: zones stay; those of an older one are all of the seed"
)
def test_a_control_plane_keeps_its_zones():
    """Volumes cannot follow pods into another zone."""
    kept = namespace(**{ZONES: "z"})
    assert zones_of(shoot(), SEED, kept) == ["z"]
    more = zones_of(shoot("zone"), SEED, kept)
    assert more[0] == "z"
    assert len(more) == len(set(more)) == 3
    assert zones_of(shoot(), SEED, namespace()) == ["a", "b", "c", "d"]


def test_pods_of_the_gardenlet_are_pinned_to_no_zones_that_the_shoot_does_not_name():
    found = annotations(shoot(), SEED, None)
    assert pinned_zones({"metadata": {"annotations": found}}) == []
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

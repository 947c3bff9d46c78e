"""Amounts that Shoots count by their Quotas, and the Quotas that hold for a binding."""

from decimal import Decimal
from typing import Any

import pytest

from api import resources
from api.core.v1beta1.quota import Quota
from api.decisions.quota import (
    Bound,
    QuotaKey,
    Reservation,
    Uncountable,
    Use,
    effective,
    exceeded,
    needed,
    shown,
    unclassed,
    use,
)
from api.quantities import parse_quantity
from api.validation.quota import check_quota, check_quotas_of_binding
from tests.unit.api.shoots import PROFILE, SHOOT, changed

VOLUMES = [{"name": "fast", "class": "premium"}, {"name": "slow", "class": "standard"}, {"name": "odd", "class": "x"}]
OFFERS = changed(changed(PROFILE, "spec.volumeTypes", VOLUMES), "spec.machineTypes.0.gpu", "1")["spec"]


def quota(metrics: dict[str, Any] | None = None, kind: str = "Project") -> dict[str, Any]:
    versions = {"Project": "core.gardener.cloud/v1beta1", "Secret": "v1"}
    version = versions.get(kind, "security.gardener.cloud/v1alpha1")
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Quota",
        "metadata": {"name": "trial", "namespace": "garden-local", "uid": "q-1"},
        "spec": {"scope": {"apiVersion": version, "kind": kind}, "metrics": metrics or {}},
    }


def pool(**fields: Any) -> dict[str, Any]:
    return {"name": "pool", "machine": {"type": "local"}, "minimum": 1, "maximum": 3, **fields}


def needs(*pools: dict[str, Any], **spec: Any) -> dict[str, str]:
    """Amounts of a Shoot with these pools, without metrics that are 0."""
    shoot = changed(SHOOT, "spec.provider.workers", list(pools))
    shoot["spec"] |= spec
    return {metric: shown(metric, each) for metric, each in needed(shoot, OFFERS).items() if each}


def test_machines_count_with_the_maximum_of_their_pool():
    assert needs(pool(), pool(maximum=1)) == {"cpu": "8", "gpu": "4", "memory": "16Gi", "loadbalancer": "1"}


def test_a_hibernated_shoot_counts_in_full():
    """It may wake up at any time, and nothing is checked then."""
    assert needs(pool(), hibernation={"enabled": True})["cpu"] == "6"


def test_volumes_count_by_the_class_of_their_type():
    volumes = pool(volume={"type": "fast", "size": "10Gi"}, dataVolumes=[{"name": "a", "type": "slow", "size": "2Gi"}])
    found = needs(volumes)
    assert (found["storage.premium"], found["storage.standard"]) == ("30Gi", "6Gi")


def test_storage_of_a_machine_type_counts_if_the_pool_has_no_volume():
    kind = {**OFFERS["machineTypes"][0], "storage": {"class": "standard", "type": "disk", "size": "20Gi"}}
    offers = {**OFFERS, "machineTypes": [kind]}
    shoot = changed(SHOOT, "spec.provider.workers", [pool()])
    assert shown("storage.standard", needed(shoot, offers)["storage.standard"]) == "60Gi"
    shoot = changed(SHOOT, "spec.provider.workers", [pool(volume={"size": "30Gi"})])
    assert shown("storage.standard", needed(shoot, offers)["storage.standard"]) == "90Gi"


def test_nginx_needs_a_load_balancer_of_its_own():
    assert needs(addons={"nginxIngress": {"enabled": True}}) == {"loadbalancer": "2"}
    assert needs(addons={"nginxIngress": {"enabled": False}}) == {"loadbalancer": "1"}


def test_a_machine_type_that_no_profile_has_cannot_be_counted():
    with pytest.raises(Uncountable, match="machine type gone is in no CloudProfile"):
        needs(pool(machine={"type": "gone"}))
    with pytest.raises(Uncountable):
        needed(SHOOT, None)


@pytest.mark.parametrize("cpu", ["-8", "1e999999999", "1e30", "x"])
def test_a_machine_type_with_an_impossible_quantity_cannot_be_counted(cpu: str):
    """A negative amount would give room to other Shoots."""
    with pytest.raises(Uncountable):
        needed(SHOOT, changed(PROFILE, "spec.machineTypes.0.cpu", cpu)["spec"])


def test_volumes_of_other_classes_are_named_if_the_quota_limits_storage():
    odd = needed(changed(SHOOT, "spec.provider.workers", [pool(volume={"type": "odd", "size": "1Gi"})]), OFFERS)
    assert unclassed(quota({"storage.standard": "1Gi"}), odd) == "x"
    assert unclassed(quota({"cpu": "1"}), odd) == ""
    unknown = needed(changed(SHOOT, "spec.provider.workers", [pool(volume={"size": "1Gi"})]), OFFERS)
    assert unclassed(quota({"storage.standard": "1Gi"}), unknown) == "unknown"


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [("cpu", "500m", "500m"), ("cpu", "1e3", "1000"), ("memory", "2048Mi", "2Gi"), ("memory", "5", "5"),
     ("storage.premium", "3Ti", "3Ti"), ("memory", "0", "0"), ("cpu", "1u", "0.000001")],
)  # fmt: skip
def test_amounts_are_shown_like_quantities(metric: str, value: str, text: str):
    assert shown(metric, parse_quantity(value)) == text


# The use of a Quota

AFTER = {"cpu": Decimal(4), "memory": Decimal(8 << 30)}


def test_a_message_says_what_is_used_asked_and_allowed():
    limits = quota({"cpu": "5", "memory": "10Gi", "gpu": "0"})
    used = Use({"cpu": Decimal(2), "memory": Decimal(1 << 30)}, {"cpu": Decimal(1)})
    assert exceeded(limits, used, {}, AFTER) == [
        "cpu: 3 used (1 of it by requests of the last seconds), 4 asked, 5 allowed"
    ]


def test_the_limit_itself_is_allowed():
    assert exceeded(quota({"cpu": "6"}), Use({"cpu": Decimal(2)}), {}, AFTER) == []


def test_only_metrics_that_grow_are_checked():
    limits, used = quota({"cpu": "1", "memory": "1Gi"}), Use({})
    assert exceeded(limits, used, AFTER, AFTER) == []
    assert exceeded(limits, used, {**AFTER, "cpu": Decimal(5)}, AFTER) == [], "a Shoot may always become smaller"
    assert exceeded(limits, used, {**AFTER, "cpu": Decimal(3)}, AFTER) == ["cpu: 3 used, 1 asked, 1 allowed"]


def test_a_limit_that_is_no_quantity_allows_nothing():
    with pytest.raises(Uncountable):
        exceeded(quota({"cpu": "-1"}), Use({}), {}, AFTER)


def reservation(uid: str = "u-1", generation: int = 0, cpu: int = 4) -> Reservation:
    return Reservation("garden-local", uid, generation, 1, {"cpu": Decimal(cpu)})


def test_a_reservation_counts_until_the_shoot_shows_its_write():
    stored = {"u-1": (changed(SHOOT, "metadata.generation", 2), dict.fromkeys(needed(SHOOT, OFFERS), Decimal(1)))}
    assert use({}, [reservation()]).reserved["cpu"] == 4
    assert use(stored, [reservation(generation=1)]).reserved["cpu"] == 0
    growing = use(stored, [reservation(generation=2)])
    assert growing.stored["cpu"] == 1
    assert growing.reserved["cpu"] == 3, "what it has counts once"


def test_a_reservation_of_a_shoot_that_shrinks_keeps_what_is_stored():
    stored = {"u-1": (changed(SHOOT, "metadata.generation", 2), dict.fromkeys(needed(SHOOT, OFFERS), Decimal(6)))}
    assert use(stored, [reservation(generation=2)]).reserved["cpu"] == 0


def test_reservations_are_kept_as_json():
    assert Reservation.of(reservation().to_wire()) == reservation()
    assert reservation(cpu=1).joined(reservation(cpu=3)).amounts["cpu"] == 3


# Quotas of bindings

TRIAL, PROJECTS, OTHER = (QuotaKey(*each) for each in (("garden-owner", "trial"), ("garden-x", "own"), ("garden", "b")))


def bound(namespace: str, name: str, *quotas: QuotaKey) -> Bound:
    binding = {
        "metadata": {"name": name, "namespace": namespace},
        "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden-owner", "name": "cloud"},
        "quotas": [{"namespace": each.namespace, "name": each.name} for each in quotas],
    }
    return Bound(resources.CREDENTIALS_BINDING, binding)


def hold(*alike: Bound) -> list[set[QuotaKey]]:
    return [set(quotas) for _, quotas in effective(alike, lambda quota: quota == PROJECTS)]


def test_a_second_binding_of_the_namespace_is_held_to_the_quotas_of_the_first():
    first, second = hold(bound("garden-x", "a", PROJECTS, OTHER), bound("garden-x", "b"))
    assert first == second == {PROJECTS, OTHER}


def test_quotas_of_the_owner_of_credentials_hold_in_every_namespace():
    _, second, own = hold(
        bound("garden-owner", "a", TRIAL), bound("garden-x", "b"), bound("garden-y", "c", QuotaKey("garden-y", "mine"))
    )
    assert second == {TRIAL}
    assert own == {TRIAL, QuotaKey("garden-y", "mine")}, "a Quota of one's own is no way around that of the owner"


def test_the_owner_may_give_projects_different_quotas():
    large = QuotaKey("garden-owner", "large")
    assert hold(bound("garden-x", "a", TRIAL), bound("garden-y", "b", large)) == [{TRIAL}, {large}]


def test_quotas_of_one_project_do_not_hold_in_another():
    """Otherwise a project could hold up another one that uses the same credentials."""
    assert hold(bound("garden-x", "a", PROJECTS, OTHER), bound("garden-y", "b")) == [{PROJECTS, OTHER}, set()]


# The object


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        ({"cpus": "1"}, 'spec.metrics[cpus]: Unsupported value: "cpus": supported values: "cpu", "gpu"'),
        ({"storage.fast": "1Gi"}, 'spec.metrics[storage.fast]: Unsupported value: "storage.fast"'),
        ({"cpu": "-1"}, "spec.metrics[cpu]: Invalid value: \"-1\": quantity '-1' is not between 0 and 2^63-1"),
        ({"memory": "1e40"}, "is not between 0 and 2^63-1"),
        ({"memory": "1e99999999999"}, "is not a quantity like 500m or 8Gi"),
        ({"cpu": "1e1.5"}, "is not a quantity like 500m or 8Gi"),
        ({"gpu": "500m"}, 'spec.metrics[gpu]: Invalid value: "500m": must be a whole number'),
        ({"loadbalancer": "1.5"}, "spec.metrics[loadbalancer]: Invalid value"),
    ],
)
def test_metrics_of_a_quota_are_checked(metrics: dict[str, str], fault: str):
    assert fault in str(check_quota(Quota.of(quota(metrics)), None))


def test_every_metric_can_be_limited():
    metrics: dict[str, Any] = dict.fromkeys(("cpu", "gpu", "memory", "loadbalancer"), 1)
    metrics |= dict.fromkeys(("storage.standard", "storage.basic", "storage.premium"), "1Gi")
    for kind in ("Project", "Secret", "WorkloadIdentity"):
        assert not check_quota(Quota.of(quota(metrics, kind)), None)


def test_the_scope_of_a_quota_is_known_and_fixed():
    wrong = Quota.of(changed(quota(), "spec.scope.apiVersion", "v1"))
    assert 'spec.scope: Unsupported value: "v1 Project"' in str(check_quota(wrong, None))
    change = check_quota(Quota.of(quota(kind="Secret")), Quota.of(quota()))
    assert "spec.scope: Invalid value" in str(change)
    assert "field is immutable" in str(change)


def test_a_binding_names_one_quota_for_each_scope():
    assert not check_quotas_of_binding([quota(), quota(kind="Secret")])
    two = check_quotas_of_binding([quota(kind="Secret"), quota(), quota(kind="WorkloadIdentity")])
    assert "quotas[2]: Forbidden: another Quota of scope the credentials is named already" in str(two)

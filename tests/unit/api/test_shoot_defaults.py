"""Fields that a Shoot's owner may omit."""

import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.defaulting.shoot import default_shoot
from tests.unit.api.shoots import SHOOT, around, changed, complete, shoot


def spec_of(path: str = "", value: Any = None, *, bound: bool = False) -> Any:
    """Spec of a Shoot as admission leaves it, untyped: the tests read fields that the model declares as optional."""
    return complete(path, value, bound=bound).spec


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        pytest.param("1.37", "1.37.1", id="highest supported patch"),
        pytest.param("1", "1.37.1", id="previews are not chosen"),
        pytest.param("1.36", "1.36.3", id="unclassified counts as supported"),
        pytest.param("1.37.0", "1.37.0", id="a full version stands as it is"),
        pytest.param("1.35", "1.35", id="nothing fits, validation will say so"),
    ],
)
def test_a_partial_kubernetes_version_is_completed_from_the_cloud_profile(given, completed):
    assert complete("spec.kubernetes.version", given).spec.kubernetes.version == completed


@pytest.mark.parametrize(
    ("image", "chosen"),
    [
        pytest.param(None, ("local", "1.1.0"), id="first image that fits, latest without previews"),
        pytest.param({"name": "local"}, ("local", "1.1.0"), id="latest of the named"),
        pytest.param({"name": "local", "version": "1.0"}, ("local", "1.0.0"), id="partial version"),
        pytest.param({"name": "local", "version": "1.2.0"}, ("local", "1.2.0"), id="a preview if asked for"),
        pytest.param({"name": "other"}, ("other", None), id="wrong architecture: left for validation"),
    ],
)
def test_a_pool_gets_a_machine_image_that_fits(image, chosen):
    pool = spec_of("spec.provider.workers.0.machine", {"type": "local"} | ({"image": image} if image else {}))
    found = pool.provider.workers[0].machine.image
    assert (found.name, found.version) == chosen


def test_networks_and_domain_come_from_the_seed_once_it_is_known():
    """Until then it is unknown which networks the seed leaves free."""
    before, after = spec_of(bound=False), spec_of(bound=True)
    assert (before.networking.pods, before.dns) == (None, None)
    assert (after.networking.pods, after.networking.services) == ("100.112.0.0/16", "100.68.0.0/16")
    assert after.dns.domain == "demo.local.shoot.garden.test"


def test_an_unmanaged_domain_stays_unset():
    assert spec_of("spec.dns", {"providers": [{"type": "unmanaged"}]}, bound=True).dns.domain is None


def test_a_secret_of_a_dns_provider_becomes_its_credentials():
    """Only the credentials are read afterwards."""
    dns = spec_of("spec.dns", {"domain": "a.test", "providers": [{"type": "aws", "secretName": "mine"}]}).dns
    found = dns.providers[0].credentials_ref
    assert (found.api_version, found.kind, found.name) == ("v1", "Secret", "mine")


def test_a_shoot_without_workers_gets_nothing_for_nodes():
    result = complete("spec.provider.workers", [])
    kubernetes = result.spec.kubernetes
    assert kubernetes.kube_api_server is not None
    assert [kubernetes.kubelet, kubernetes.kube_proxy, kubernetes.kube_scheduler, kubernetes.cluster_autoscaler] == (
        [None] * 4
    )
    assert kubernetes.vertical_pod_autoscaler is None
    assert result.spec.provider.workers_settings is None


@pytest.mark.parametrize(("max_pods", "mask"), [(110, 24), (64, 25), (65, 24), (250, 23)])
def test_a_nodes_network_has_room_for_twice_its_pods(max_pods, mask):
    result = spec_of("spec.kubernetes.kubelet", {"maxPods": max_pods})
    assert result.kubernetes.kube_controller_manager.node_cidr_mask_size == mask


def test_a_default_is_sent_though_its_parent_was_absent():
    """The API server stores what we send; a default that stays in the model is none."""
    wire = complete("spec.kubernetes", None).to_wire()
    assert wire["spec"]["kubernetes"]["version"] == "1.37.1"
    assert wire["spec"]["kubernetes"]["kubeProxy"] == {"mode": "IPTables", "enabled": True}
    assert wire["spec"]["maintenance"]["autoRotation"]["credentials"]["etcdEncryptionKey"] == {"rotationPeriod": "672h"}


def test_completing_twice_changes_nothing():
    """Reinvocation and every later update would raise the generation otherwise."""
    once = complete(bound=True).to_wire()
    again = Shoot.of(once)
    default_shoot(again, Shoot.of(once), around())
    assert again.to_wire() == once


def test_an_older_manifest_keeps_the_defaults_of_the_creation():
    """``kubectl replace`` with the first manifest must neither fail nor roll machines."""
    stored = complete(bound=True)
    again = shoot("spec.seedName", "seed-1")
    default_shoot(again, stored, around())
    found, kept = again.to_wire()["spec"], stored.to_wire()["spec"]
    assert found["networking"]["pods"] == kept["networking"]["pods"]
    assert found["dns"]["domain"] == kept["dns"]["domain"]
    assert found["maintenance"]["timeWindow"] == kept["maintenance"]["timeWindow"]
    assert found["provider"]["workers"][0]["machine"]["image"] == kept["provider"]["workers"][0]["machine"]["image"]


def test_an_untouched_pool_keeps_its_image_when_a_newer_one_appears():
    stored = complete("spec.provider.workers.0.machine.image", {"name": "local", "version": "1.0.0"})
    again = shoot()
    default_shoot(again, stored, around(bound=False))
    assert again.to_wire()["spec"]["provider"]["workers"][0]["machine"]["image"]["version"] == "1.0.0"


def test_the_creator_is_recorded_and_cannot_be_forged():
    created = complete("metadata.annotations", {"gardener.cloud/created-by": "mallory"})
    assert created.metadata.annotations["gardener.cloud/created-by"] == "alice"
    later = shoot("metadata.annotations", {"gardener.cloud/created-by": "mallory"})
    default_shoot(later, created, around())
    assert later.metadata.annotations["gardener.cloud/created-by"] == "alice"


def test_the_user_that_confirmed_the_deletion_is_recorded_by_admission():
    confirmation, by = "confirmation.gardener.cloud/deletion", "deletion.gardener.cloud/confirmed-by"
    stored = complete()
    confirmed = Shoot.of(stored.to_wire())
    confirmed.metadata.annotations |= {confirmation: "true", by: "mallory"}
    default_shoot(confirmed, stored, around())
    assert confirmed.metadata.annotations[by] == "alice"
    withdrawn = Shoot.of(stored.to_wire())
    withdrawn.metadata.annotations |= {by: "alice"}
    default_shoot(withdrawn, confirmed, around())
    assert by not in withdrawn.metadata.annotations


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (lambda new: new.metadata.annotations.update({"gardener.cloud/operation": "reconcile"}), "bob"),
        (lambda new: setattr(new.spec, "purpose", "production"), "bob"),
        (lambda new: setattr(new.spec, "seed_name", "another"), "alice"),
        (lambda new: new.metadata.annotations.pop("gardener.cloud/operation", None), "alice"),
        (lambda new: new.metadata.annotations.update({"gardener.cloud/changed-by": "mallory"}), "alice"),
        (lambda new: new.metadata.labels.update(mine="1"), "alice"),
    ],
)
def test_the_user_that_requested_an_operation_is_recorded(change, by):
    """The scheduler and our controllers write Shoots, too; the audit log asks whose wish it was."""
    stored = complete()
    default_shoot(stored, Shoot.of(stored.to_wire()), dataclasses.replace(around(), user="alice"))
    stored.metadata.annotations |= {"gardener.cloud/operation": "retry"}
    new = Shoot.of(stored.to_wire())
    change(new)
    default_shoot(new, stored, dataclasses.replace(around(), user="bob"))

    assert new.metadata.annotations["gardener.cloud/changed-by"] == by


def test_creation_asks_for_infrastructure_and_dns():
    tasks = complete().metadata.annotations["shoot.gardener.cloud/tasks"].split(",")
    assert tasks == [
        "deployInfrastructure",
        "deployDNSRecordInternal",
        "deployDNSRecordExternal",
        "deployDNSRecordIngress",
    ]


def test_a_changed_infrastructure_asks_for_its_reconciliation():
    stored = complete(bound=True)
    del stored.metadata.annotations["shoot.gardener.cloud/tasks"]
    now = Shoot.of(changed(stored.to_wire(), "spec.provider.infrastructureConfig", {"kind": "X"}))
    default_shoot(now, stored, around())
    assert now.metadata.annotations["shoot.gardener.cloud/tasks"] == "deployInfrastructure"


def test_labels_name_seed_and_extensions_and_lose_former_ones():
    result = shoot(
        "metadata",
        SHOOT["metadata"] | {"labels": {"name.seed.gardener.cloud/old": "true", "mine": "yes"}},
    )
    result.spec.seed_name = "seed-1"
    default_shoot(result, None, around())
    assert result.metadata.labels == {
        "mine": "yes",
        "name.seed.gardener.cloud/seed-1": "true",
        "provider.extensions.gardener.cloud/local": "true",
        "networking.extensions.gardener.cloud/flannel": "true",
    } | {"operatingsystemconfig.extensions.gardener.cloud/local": "true"}


def test_a_shoot_in_deletion_is_left_alone():
    gone = shoot("metadata", SHOOT["metadata"] | {"deletionTimestamp": "2026-11-21T12:00:00Z"})
    spec = gone.to_wire()["spec"]
    default_shoot(gone, shoot(), around())
    assert gone.to_wire()["spec"] == spec


def test_the_maintenance_window_is_an_hour_long():
    window = spec_of().maintenance.time_window
    begin, end = (datetime.strptime(each, "%H%M%S%z").astimezone(UTC) for each in (window.begin, window.end))
    assert (end - begin) % timedelta(days=1) == timedelta(hours=1)


@pytest.mark.parametrize(
    ("confined", "state", "wanted"), [(True, "Failed", True), (True, "Error", False), (False, "Failed", False)]
)
def test_a_confined_change_of_a_failed_shoot_asks_maintenance_to_retry_it(confined, state, wanted):
    """It starts nothing by itself, and a Failed Shoot is not reconciled in its window."""
    last = {
        "type": "Reconcile",
        "state": state,
        "progress": 1,
        "description": "",
        "lastUpdateTime": "2026-01-01T00:00:00Z",
    }
    wire = complete(bound=True).to_wire() | {"status": {"lastOperation": last}}
    wire["spec"]["maintenance"]["confineSpecUpdateRollout"] = confined
    stored = Shoot.of(wire)
    edited = Shoot.of(wire)
    default_shoot(edited, stored, around())
    assert "maintenance.shoot.gardener.cloud/needs-retry-operation" not in edited.metadata.annotations
    edited.spec.kubernetes.version = "1.36.3"
    default_shoot(edited, stored, around())
    assert ("maintenance.shoot.gardener.cloud/needs-retry-operation" in edited.metadata.annotations) is wanted


def test_the_author_of_a_repair_is_recorded_by_admission():
    skip, by = "repair.shoot.gardener.cloud/skip", "repair.shoot.gardener.cloud/by"
    stored = complete()
    asked = Shoot.of(stored.to_wire())
    asked.metadata.annotations |= {skip: "wait_worker:broken", by: "mallory"}
    default_shoot(asked, stored, around())
    assert asked.metadata.annotations[by] == "alice"
    touched = Shoot.of(asked.to_wire())
    touched.metadata.annotations |= {"mine": "1"}
    default_shoot(touched, asked, replace(around(), user="bob"))
    assert touched.metadata.annotations[by] == "alice", "bob has asked for nothing"
    done = Shoot.of(stored.to_wire())
    done.metadata.annotations |= {by: "alice"}
    default_shoot(done, asked, around())
    assert by not in done.metadata.annotations


def test_the_author_of_a_retry_is_recorded():
    stored = complete()
    retried = Shoot.of(stored.to_wire())
    retried.metadata.annotations["gardener.cloud/operation"] = "retry"
    default_shoot(retried, stored, around())
    assert retried.metadata.annotations["repair.shoot.gardener.cloud/by"] == "alice"

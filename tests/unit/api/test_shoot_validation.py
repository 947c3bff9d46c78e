"""Shoots that the garden API refuses, and the messages."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from api import resources
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.validation.field import Path
from api.validation.operations import check_deletion_confirmed, check_expiration, check_finalizer_kept, check_operations
from api.validation.references import Reference, check_references, references
from api.validation.shoot import check_shoot
from tests.unit.api.shoots import NOW, PROJECT, SEED, SHOOT, changed, complete, profile, shoot, world

POOL = "spec.provider.workers.0"


def faults_of(path: str = "", value: Any = None, old: Shoot | None = None) -> str:
    return str(check_shoot(complete(path, value), old, "local"))


def constraint(type_: str, status: str, message: str) -> dict[str, str]:
    return {"type": type_, "status": status, "message": message}


def test_the_example_is_fine():
    assert not check_shoot(complete(bound=True), None, "local")
    assert not check_references(complete(bound=True), None, world())


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("metadata.name", "a--b", 'metadata.name: Invalid value: "a--b": must not contain two hyphens'),
        ("metadata.name", "x" * 17, "together must not be longer than 21 characters"),
        ("spec.cloudProfile", None, "spec.cloudProfile: Required value"),
        ("spec.credentialsBindingName", None, "spec.credentialsBindingName: Required value"),
        ("spec.secretBindingName", "both", "spec.secretBindingName: Forbidden: must not be set together"),
        ("spec.networking.type", None, "spec.networking.type: Required value"),
        ("spec.networking.pods", "10.0.0.1/8", 'spec.networking.pods: Invalid value: "10.0.0.1/8"'),
        ("spec.networking.pods", "241.0.0.0/16", "overlaps with a reserved range"),
        (
            "spec.networking.pods",
            "fd00:10::/48",
            'spec.networking.pods: Invalid value: "fd00:10::/48": must be a network of',
        ),
        ("spec.networking.services", "fd00:10::/112", "must be a network of IPv4: the provider chooses those of IPv6"),
        ("spec.networking.ipFamilies", ["IPv6", "IPv4"], "IPv6 cannot be the first of two families"),
        ("spec.purpose", "infrastructure", "spec.purpose: Forbidden"),
        ("spec.kubernetes.version", "1.99", 'spec.kubernetes.version: Invalid value: "1.99"'),
        ("spec.cloudProfileName", "local", "spec.cloudProfileName: Forbidden: not supported from Kubernetes 1.34 on"),
        ("spec.addons", {"nginxIngress": {"enabled": True}}, "spec.addons: Forbidden"),
        ("spec.kubernetes.kubeAPIServer.enableAnonymousAuthentication", True, "from Kubernetes 1.35 on"),
        ("spec.kubernetes.kubeAPIServer.eventTTL", "25h", 'eventTTL: Invalid value: "25h": must be between 0h and 24h'),
        ("spec.kubernetes.kubeAPIServer.serviceAccountConfig", {"issuer": "http://x"}, "must be an https URL"),
        ("spec.kubernetes.kubeAPIServer.encryptionConfig.resources", ["secrets"], "secrets are always encrypted"),
        ("spec.kubernetes.kubelet", {"streamingConnectionIdleTimeout": "5h"}, "must be between 30s and 4h"),
        ("spec.kubernetes.clusterAutoscaler", {"expander": "dice"}, 'Unsupported value: "dice"'),
        (
            "spec.kubernetes.kubelet",
            {"imagePullCredentialsVerificationPolicy": "Maybe"},
            'imagePullCredentialsVerificationPolicy: Unsupported value: "Maybe"',
        ),
        (
            "spec.kubernetes.kubelet",
            {"preloadedImagesVerificationAllowlist": ["a"]},
            "preloadedImagesVerificationAllowlist: Forbidden: needs imagePullCredentialsVerificationPolicy",
        ),
        (
            "spec.kubernetes.kubelet",
            {
                "imagePullCredentialsVerificationPolicy": "AlwaysVerify",
                "featureGates": {"KubeletEnsureSecretPulledImages": False},
            },
            "needs a kubelet of 1.35 or newer",
        ),
        (
            f"{POOL}.kubernetes",
            {"version": "1.34.0", "kubelet": {"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}},
            "workers[0].kubernetes.kubelet.imagePullCredentialsVerificationPolicy: Forbidden: needs a kubelet of 1.35",
        ),
        (
            "spec.kubernetes.etcd",
            {"main": {"autoscaling": {"minAllowed": {"memory": "100M"}}}},
            'spec.kubernetes.etcd.main.autoscaling.minAllowed.memory: Invalid value: "100M": must be at least 300M',
        ),
        (
            "spec.kubernetes.kubeAPIServer.autoscaling",
            {"minAllowed": {"cpu": "1e99"}},
            "spec.kubernetes.kubeAPIServer.autoscaling.minAllowed",
        ),
        (
            "spec.kubernetes.kubeAPIServer.autoscaling",
            {"minAllowed": {"cpu": "-1"}},
            "spec.kubernetes.kubeAPIServer.autoscaling.minAllowed.cpu: Invalid value",
        ),
        (
            "spec.systemComponents.coreDNS.rewriting",
            {"commonSuffixes": ["a.b {\n}\nforward . 192.0.2.1"]},
            "commonSuffixes[0]: Invalid value",
        ),
        ("spec.dns", {"domain": "Upper.test"}, "spec.dns.domain: Invalid value"),
        ("spec.dns", {"providers": [{"type": "a", "primary": True}, {"type": "b"}]}, "[1].credentialsRef: Required"),
        ("spec.hibernation", {"schedules": [{}]}, "a schedule needs a start or an end"),
        ("spec.hibernation", {"schedules": [{"start": "0 0 * *"}]}, "cron expression of five fields"),
        (
            "spec.hibernation",
            {"schedules": [{"start": "0 0 30 2 *"}]},
            'schedules[0].start: Invalid value: "0 0 30 2 *": must be a cron expression of five fields that fires: '
            "schedule '0 0 30 2 *' never fires",
        ),
        (
            "spec.hibernation",
            {"schedules": [{"end": "0 6 * * *", "location": "Mars/Olympus"}]},
            "schedules[0].location: Invalid value: \"Mars/Olympus\": 'Mars/Olympus' is no time zone",
        ),
        ("spec.maintenance", {"timeWindow": {"begin": "000000+0000", "end": "070000+0000"}}, "is 420 minutes"),
        ("spec.maintenance", {"timeWindow": {"begin": "250000+0000", "end": "010000+0000"}}, "must be times like"),
        ("spec.monitoring", {"alerting": {"emailReceivers": ["olga"]}}, "must be an e-mail address"),
        (f"{POOL}.minimum", 3, "workers[0].minimum: Forbidden: must not be greater than maximum 2"),
        (f"{POOL}.maxSurge", 0, "workers[0].maxUnavailable: Invalid value: 0"),
        (f"{POOL}.maxSurge", "ten", 'workers[0].maxSurge: Invalid value: "ten"'),
        (f"{POOL}.zones", ["0", "0"], 'workers[0].zones[1]: Duplicate value: "0"'),
        (
            f"{POOL}.machineControllerManager",
            {"inPlaceUpdateTimeout": "10m"},
            "workers[0].machineControllerManager.inPlaceUpdateTimeout: Forbidden: needs updateStrategy",
        ),
        (f"{POOL}.systemComponents", {"allow": False}, "one pool must allow system components"),
        (f"{POOL}.dataVolumes", [{"name": "d", "size": "10Gi"}], "volume: Required value"),
        (f"{POOL}.kubernetes", {"version": "1.38.0"}, "newer than the control plane's 1.37.1"),
        (f"{POOL}.taints", [{"key": "x", "effect": "Sometimes"}], "taints[0].effect: Unsupported value"),
        (f"{POOL}.controlPlane", {}, "no self-hosted Shoots"),
        (f"{POOL}.cri", {"name": " "}, 'workers[0].cri.name: Unsupported value: " "'),
    ],
)
def test_an_invalid_field_is_named_with_the_fault(path, value, complaint):
    assert complaint in faults_of(path, value)


def test_all_faults_are_reported_at_once():
    obj = changed(SHOOT, f"{POOL}.minimum", 9)
    obj["spec"].pop("credentialsBindingName")
    text = str(check_shoot(Shoot.of(obj), None, "local"))
    assert text.startswith("[")
    assert "credentialsBindingName" in text
    assert "workers[0].minimum" in text


def test_a_shoot_without_workers_must_not_have_fields_for_nodes():
    text = faults_of("spec.provider.workers", [])
    assert "spec.credentialsBindingName: Forbidden" in text
    assert "spec.networking.type: Forbidden" in text


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.region", "moon", 'spec.region: Invalid value: "moon": field is immutable'),
        ("spec.seedName", None, "spec.seedName: Forbidden: cannot be unset"),
        ("spec.networking.pods", "10.0.0.0/16", "spec.networking.pods: Invalid value"),
        ("spec.networking", None, "spec.networking.type"),
        ("spec.dns.domain", "x.test", "spec.dns.domain: Invalid value"),
        ("spec.credentialsBindingName", None, "cannot be unset"),
        ("spec.kubernetes.version", "1.36.3", "downgrade from 1.37.1 to 1.36.3"),
        ("spec.kubernetes.version", "1.39.0", "skips a minor version"),
        (f"{POOL}.kubernetes", {"version": "1.36.3"}, "kubernetes.version: Forbidden: downgrade from 1.37.1 to 1.36.3"),
        ("spec.provider.workers", [], "cannot switch between with and without workers"),
    ],
)
def test_immutable_fields_cannot_change(path, value, complaint):
    old = complete("spec.seedName", "seed-1", bound=True)
    new = Shoot.of(changed(old.to_wire(), path, value))
    assert complaint in str(check_shoot(new, old, "local"))


def of_families(*families: str) -> Shoot:
    return complete("spec.networking.ipFamilies", list(families))


def test_a_shoot_may_have_both_families_and_loses_none() -> None:
    both, one = of_families("IPv4", "IPv6"), of_families("IPv4")

    for new, old in ((both, None), (both, both), (both, one)):
        assert "ipFamilies" not in str(check_shoot(new, old, "local"))
    assert "IPv4, IPv6 cannot become IPv4: a Shoot keeps its IP families" in str(check_shoot(one, both, "local"))


def test_a_shoot_with_ipv6_alone_gets_no_defaults_of_ipv4_and_keeps_its_family() -> None:
    alone, both, one = of_families("IPv6"), of_families("IPv4", "IPv6"), of_families("IPv4")

    networking, manager = alone.spec.networking, alone.spec.kubernetes.kube_controller_manager
    assert networking
    assert manager
    assert (networking.pods, networking.services, manager.node_cidr_mask_size) == (None, None, None)
    assert not check_shoot(alone, None, "local")
    assert not check_shoot(alone, alone, "local")
    for before in (both, one):
        assert "cannot become IPv6: a Shoot keeps its IP families" in str(check_shoot(alone, before, "local"))
    assert "IPv6 cannot become IPv4: a Shoot keeps its IP families" in str(check_shoot(one, alone, "local"))
    told = "IPv6 cannot become IPv4, IPv6: IPv4 cannot be added, only IPv6"
    assert told in str(check_shoot(both, alone, "local"))


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (
            "spec.networking.pods",
            "fd00:10::/56",
            "networking.pods: Forbidden: a Shoot with IPv6 alone names no networks",
        ),
        ("spec.networking.services", "100.68.0.0/16", "networking.services: Forbidden"),
        ("spec.networking.nodes", "198.18.8.0/22", "networking.nodes: Forbidden"),
        (
            "spec.kubernetes.kubeControllerManager",
            {"nodeCIDRMaskSize": 24},
            "nodeCIDRMaskSize: Forbidden: it is the size of a network of IPv4: with IPv6 alone, each node gets a /64",
        ),
    ],
)
def test_ipv6_alone_takes_no_networks_of_the_owner(path: str, value: Any, complaint: str) -> None:
    wanted = Shoot.of(changed(of_families("IPv6").to_wire(), path, value))

    assert complaint in str(check_shoot(wanted, None, "local"))


def test_a_shoot_without_workers_has_no_ipv6() -> None:
    wire = changed(of_families("IPv6").to_wire(), "spec.provider.workers", None)

    assert "a Shoot without workers has IPv4 alone" in str(check_shoot(Shoot.of(wire), None, "local"))


def test_a_pool_whose_machines_stay_gets_no_second_family() -> None:
    old = Shoot.of(changed(of_families("IPv4").to_wire(), f"{POOL}.updateStrategy", "AutoInPlaceUpdate"))
    new = Shoot.of(changed(old.to_wire(), "spec.networking.ipFamilies", ["IPv4", "IPv6"]))

    assert "a node keeps the networks of pods that it has" in str(check_shoot(new, old, "local"))


def tolerating(old, kind):
    available = {"highAvailability": {"failureTolerance": {"type": kind}}} if kind else None
    return Shoot.of(changed(old.to_wire(), "spec.controlPlane", available))


@pytest.mark.parametrize(("before", "after"), [("node", None), ("node", "zone"), ("zone", "node")])
def test_the_failure_tolerance_of_a_control_plane_cannot_change(before, after):
    old = tolerating(complete("spec.seedName", "seed-1", bound=True), before)
    complaint = "spec.controlPlane.highAvailability.failureTolerance.type: Invalid value"
    assert complaint in str(check_shoot(tolerating(old, after), old, "local"))


def pinned(old: Shoot, zones: list[str], tolerance: str | None = None) -> Shoot:
    tolerant = {"highAvailability": {"failureTolerance": {"type": tolerance}}} if tolerance else {}
    return Shoot.of(changed(old.to_wire(), "spec.controlPlane", {"zones": zones, **tolerant}))


@pytest.mark.parametrize(
    ("zones", "tolerance", "complaint"),
    [
        (["a"], None, ""),
        (["a"], "node", ""),
        (["a", "b", "c"], "zone", ""),
        (["a", "b"], None, "spec.controlPlane.zones: Invalid value"),
        (["a"], "zone", "must name 3 zones"),
        (["a", "b", "b"], "zone", "names a zone twice"),
    ],
)
def test_a_control_plane_is_pinned_to_one_zone_or_to_three(zones, tolerance, complaint):
    faults = check_shoot(pinned(complete(), zones, tolerance), None, "local")
    assert complaint in str(faults)
    assert bool(faults) is bool(complaint)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (["a"], ["a"], False),
        (["a"], [], False),
        (["a"], ["b"], True),
        ([], ["a"], True),
    ],
)
def test_the_zones_of_a_placed_control_plane_can_only_be_removed(before, after, refused):
    """Its volumes cannot follow it into another zone."""
    old = pinned(complete("spec.seedName", "seed-1", bound=True), before)
    faults = str(check_shoot(pinned(old, after), old, "local"))
    assert ("volumes stay in their zones" in faults) is refused


def test_a_pinned_control_plane_becomes_tolerant_with_its_zone_among_three():
    old = pinned(complete("spec.seedName", "seed-1", bound=True), ["a"])
    assert "zones" not in str(check_shoot(pinned(old, ["a", "b", "c"], "zone"), old, "local"))
    assert "volumes stay" in str(check_shoot(pinned(old, ["b", "c", "d"], "zone"), old, "local"))


def test_zones_need_a_profile_that_allows_them_and_a_seed_that_has_them():
    new = pinned(complete("spec.seedName", "seed-1", bound=True), ["0"])
    allowing = profile("spec.controlPlane", {"allowZonePinning": True})
    assert "allowZonePinning" in str(check_references(new, None, world()))
    assert not check_references(new, None, world(profile=allowing))
    elsewhere = pinned(new, ["9"])
    assert "must be a seed that has the zones 9" in str(check_references(elsewhere, None, world(profile=allowing)))


def test_a_control_plane_becomes_failure_tolerant_only_while_awake():
    awake = complete("spec.seedName", "seed-1", bound=True)
    assert "failureTolerance" not in str(check_shoot(tolerating(awake, "node"), awake, "local"))
    asleep = Shoot.of(changed(awake.to_wire(), "spec.hibernation", {"enabled": True}))
    assert "cannot be added while the Shoot is hibernated: wake it up first" in str(
        check_shoot(tolerating(asleep, "node"), asleep, "local")
    )


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (
            {"constraints": [constraint("HibernationPossible", "False", "webhook x fails for pods")]},
            "spec.hibernation.enabled: Forbidden: constraint HibernationPossible is False: webhook x fails for pods",
        ),
        ({"constraints": [constraint("HibernationPossible", "Unknown", "?")]}, "HibernationPossible is Unknown"),
        (
            {"constraints": [constraint("HibernationPossible", "Progressing", "no webhook")]},
            "HibernationPossible is Progressing: no webhook; after an operation it is checked again, wait until it is "
            "True",
        ),
        (
            {"credentials": {"rotation": {"etcdEncryptionKey": {"phase": "Preparing"}}}},
            "the rotation of the etcd encryption key is Preparing",
        ),
        (
            {"credentials": {"rotation": {"serviceAccountKey": {"phase": "Completing"}}}},
            "the rotation of the service account key is Completing",
        ),
        (
            {"credentials": {"encryptionAtRest": {"resources": ["configmaps"]}}},
            "resources are being re-encrypted",
        ),
    ],
)
def test_hibernation_is_refused_if_the_shoot_could_not_wake_up(status, complaint):
    awake = Shoot.of({**complete("spec.seedName", "seed-1", bound=True).to_wire(), "status": status})
    asleep = Shoot.of(changed(awake.to_wire(), "spec.hibernation", {"enabled": True}))
    assert complaint in str(check_shoot(asleep, awake, "local"))
    assert not check_shoot(awake, asleep, "local")
    assert not check_shoot(asleep, asleep, "local")


ROTATES = {"maintenance": {"autoRotation": {"credentials": {"etcdEncryptionKey": {"rotationPeriod": "672h"}}}}}
TYPE, KINDS = "encryptionConfig.provider.type: Forbidden", "encryptionConfig.resources: Forbidden"


@pytest.mark.parametrize(
    ("config", "around", "complaint"),
    [
        ({"provider": {"type": "secretbox"}}, {}, ""),
        ({"provider": {"type": "aesgcm"}}, {}, ""),
        ({"resources": ["configmaps"]}, {}, ""),
        ({"provider": {"type": "aesgcm"}}, {"maintenance": {}}, f"{TYPE}: keys of aesgcm need regular rotation"),
        (
            {"provider": {"type": "aesgcm"}},
            {"maintenance": {"autoRotation": {"credentials": {"etcdEncryptionKey": {"rotationPeriod": "0s"}}}}},
            f"{TYPE}: keys of aesgcm need regular rotation",
        ),
        ({"provider": {"type": "secretbox"}, "resources": ["configmaps"]}, {}, "change one after the other"),
        *(
            (
                {"provider": {"type": "secretbox"}},
                {"status": {"credentials": {"rotation": {"etcdEncryptionKey": {"phase": phase}}}}},
                f"{TYPE}: cannot change while the rotation of the etcd encryption key is {phase}",
            )
            for phase in ("Preparing", "Prepared", "Completing")
        ),
        (
            {"provider": {"type": "secretbox"}},
            {"status": {"credentials": {"rotation": {"etcdEncryptionKey": {"phase": "Completed"}}}}},
            "",
        ),
        (
            {"provider": {"type": "secretbox"}},
            {"status": {"credentials": {"encryptionAtRest": {"provider": {"type": "aesgcm"}}}}},
            f"{TYPE}: cannot change while the previous change is in progress",
        ),
        (
            {"resources": ["configmaps"]},
            {"status": {"credentials": {"encryptionAtRest": {"resources": ["events"]}}}},
            f"{KINDS}: cannot change while the previous change is in progress",
        ),
        ({"provider": {"type": "secretbox"}}, {"status": {"hibernated": True}}, "while the Shoot is hibernated"),
        ({"resources": ["configmaps"]}, {"hibernation": {"enabled": True}}, "while the Shoot is hibernated"),
    ],
)
def test_the_encryption_config_may_change_only_between_rotations(config, around, complaint):
    fields = {name: value for name, value in (ROTATES | around).items() if name != "status"}
    wire = complete("spec.seedName", "seed-1", bound=True).to_wire()
    for name, value in fields.items():
        wire = changed(wire, f"spec.{name}", value)
    old = Shoot.of({**wire, "status": around.get("status", {})})
    new = Shoot.of(changed(old.to_wire(), "spec.kubernetes.kubeAPIServer.encryptionConfig", config))

    faults = check_shoot(new, old, "local")
    assert complaint in str(faults)
    assert bool(faults) is bool(complaint)
    assert not check_shoot(old, old, "local")


def test_an_unknown_encryption_provider_is_refused():
    with pytest.raises(ValueError, match=r"encryptionConfig\.provider\.type"):
        complete("spec.kubernetes.kubeAPIServer.encryptionConfig", {"provider": {"type": "identity"}})


def test_a_healthy_shoot_may_be_hibernated_or_created_hibernated():
    possible = {"constraints": [constraint("HibernationPossible", "True", "")]}
    awake = Shoot.of({**complete("spec.seedName", "seed-1", bound=True).to_wire(), "status": possible})
    asleep = Shoot.of(changed(awake.to_wire(), "spec.hibernation", {"enabled": True}))
    assert not check_shoot(asleep, awake, "local")
    assert not check_shoot(asleep, None, "local")


@pytest.mark.parametrize(
    ("path", "value", "difference", "complaint"),
    [
        ("", None, {"project": None}, "namespace garden-local belongs to no Project"),
        ("", None, {"profile": None}, 'spec.cloudProfile.name: Not found: "local"'),
        ("spec.seedName", "seed-9", {"seed": None}, 'spec.seedName: Not found: "seed-9"'),
        ("", None, {"binding_provider": "aws"}, "the binding is for provider type aws"),
        ("", None, {"registrations": ()}, "no extension is registered for Infrastructure"),
        ("spec.networking.type", "calico", {}, "no extension is registered for Network; registered: ['flannel']"),
        ("spec.kubernetes.version", "9.9.9", {}, 'Unsupported value: "9.9.9": supported values: "1.38.0", "1.37.1"'),
        ("spec.kubernetes.version", "1.35.9", {}, "the version is expired"),
        ("spec.region", "mars", {}, 'spec.region: Unsupported value: "mars": supported values: "local"'),
        (f"{POOL}.machine.type", "old", {}, 'machine.type: Unsupported value: "old"'),
        (f"{POOL}.zones", ["7"], {}, 'zones[0]: Unsupported value: "7"'),
        (f"{POOL}.machine.image", {"name": "none"}, {}, 'image.name: Unsupported value: "none"'),
        (f"{POOL}.machine.image", {"name": "local", "version": "8.8.8"}, {}, "image.version: Unsupported value"),
        (f"{POOL}.machine.architecture", "arm64", {}, 'architecture: Unsupported value: "arm64"'),
        (f"{POOL}.volume", {"type": "gold", "size": "5Gi"}, {}, 'volume.type: Unsupported value: "gold"'),
        ("spec.dns", {"domain": "other.shoot.garden.test"}, {}, "must be demo.local.shoot.garden.test"),
        (
            "spec.dns",
            {"domain": "a.b.test"},
            {"other_domains": {"x/y": "b.test"}},
            "below a domain of another Project's Shoot",
        ),
        (
            "spec.dns",
            {"domain": "a.b.test"},
            {"other_domains": {"garden-local/y": "b.test"}},
            "below b.test of Shoot garden-local/y",
        ),
        (
            f"{POOL}.volume",
            {"type": "fast", "size": "5Gi"},
            {"profile": profile("spec.volumeTypes", [{"name": "fast", "class": "standard", "minSize": "10Gi"}])},
            'workers[0].volume.size: Invalid value: "5Gi": must be at least 10Gi',
        ),
        (
            f"{POOL}.volume",
            {"size": "5Gi"},
            {"profile": profile("spec.machineTypes.0.storage", {"class": "c", "type": "t", "minSize": "20Gi"})},
            'workers[0].volume.size: Invalid value: "5Gi": must be at least 20Gi',
        ),
        (
            "spec.provider.workers.0",
            {
                "name": "pool",
                "machine": {"type": "local"},
                "minimum": 1,
                "maximum": 2,
                "zones": ["0"],
                "volume": {"type": "fast", "size": "5Gi"},
            },
            {"profile": profile("spec.regions.0.zones.0", {"name": "0", "unavailableVolumeTypes": ["fast"]})},
            'workers[0].zones[0]: Invalid value: "0": volume type fast is not available in it',
        ),
        ("spec.accessRestrictions", [{"name": "eu"}], {}, "accessRestrictions[0].name: Unsupported value"),
    ],
)
def test_references_that_do_not_exist_or_fit_are_refused(path, value, difference, complaint):
    assert complaint in str(check_references(complete(path, value), None, world(**difference)))


@pytest.mark.parametrize(
    ("control_plane", "pool", "complaint"),
    [
        ("1.38.0", None, ""),
        ("1.38.0", "1.37.1", ""),
        ("1.38.0", "1.35.9", ""),
        ("1.38.0", "1.34.9", "more than 3 minors behind the control plane's 1.38.0"),
        ("1.37.1", "1.38.0", "1.38.0 is newer than the control plane's 1.37.1"),
    ],
)
def test_kubelets_follow_the_control_plane_by_three_minors_at_most(control_plane, pool, complaint):
    kubernetes = {"version": pool} if pool else {}
    old = Shoot.of(changed(complete(bound=True).to_wire(), f"{POOL}.kubernetes", kubernetes))
    old.spec.kubernetes.version = "1.37.1"
    new = Shoot.of(changed(old.to_wire(), "spec.kubernetes.version", control_plane))

    found = check_shoot(new, old, "local")
    assert complaint in str(found) if complaint else not found, str(found)


def test_an_upgrade_needs_a_machine_image_that_knows_the_new_kubelet():
    """Though the image stays as it is."""
    versions = [{"version": "1.0.0", "kubeletVersionConstraint": "< 1.38"}]
    old = complete(f"{POOL}.machine.image", {"name": "local", "version": "1.0.0"}, bound=True)
    new = Shoot.of(changed(old.to_wire(), "spec.kubernetes.version", "1.38.0"))
    around = world(profile=profile("spec.machineImages.1.versions", versions))

    assert "runtime containerd and kubelet 1.38.0 together" in str(check_references(new, old, around))
    kept = Shoot.of(changed(new.to_wire(), f"{POOL}.kubernetes", {"version": "1.37.1"}))
    assert not check_references(kept, old, around)


def test_a_machine_image_offers_the_container_runtimes_of_its_pool():
    """The same holds if the pool gets a runtime later: no machine of the image would have it."""
    runtime = {"name": "containerd", "containerRuntimes": [{"type": "gvisor"}]}
    old, new = complete(bound=True), complete(f"{POOL}.cri", runtime, bound=True)
    for before in (None, old):
        assert 'image.version: Invalid value: "1.1.0": does not offer container runtime gvisor' in str(
            check_references(new, before, world())
        )
    offers = world(profile=profile("spec.machineImages.1.versions.1", {"version": "1.1.0", "cri": [runtime]}))
    assert "does not offer" not in str(check_references(new, old, offers))


def test_a_missing_object_is_named_with_its_namespace():
    subject = complete(
        "spec.resources", [{"name": "r", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "s"}}]
    )
    wanted = Reference(Path("spec.resources[0].resourceRef"), resources.SECRET, "garden-local", "s")
    assert wanted in references(subject)
    complaint = str(check_references(subject, None, world(missing=(wanted,))))
    assert (
        complaint == 'spec.resources[0].resourceRef: Not found: "s": there is no such Secret in namespace garden-local'
    )


@pytest.mark.parametrize(
    ("asked", "whitelist", "namespace", "refused"),
    [
        ({"key": "special"}, [], "garden-local", True),
        ({"key": "special"}, [{"key": "special"}], "garden-local", False),
        ({"key": "special", "value": "a"}, [{"key": "special"}], "garden-local", False),
        ({"key": "special", "value": "a"}, [{"key": "special", "value": "a"}], "garden-local", False),
        ({"key": "special", "value": "b"}, [{"key": "special", "value": "a"}], "garden-local", True),
        ({"key": "seed.gardener.cloud/protected"}, [], "garden-local", True),
        ({"key": "seed.gardener.cloud/protected"}, [], "garden", False),
    ],
)
def test_a_taint_is_tolerated_only_if_operators_allow_it(asked, whitelist, namespace, refused):
    """Otherwise every Shoot could use a seed that is reserved for some."""
    subject = complete("spec.tolerations", [asked])
    subject.metadata.namespace = namespace
    project = Project.of({**PROJECT, "spec": {**PROJECT["spec"], "tolerations": {"whitelist": whitelist}}})
    found = str(check_references(subject, None, world(project=project)))
    assert ("spec.tolerations[0]: Forbidden" in found) == refused
    assert "spec.tolerations" not in str(check_references(subject, subject, world(project=project)))


def test_an_update_is_not_refused_for_unchanged_fields():
    """A version that expired, or a registration that went, must not block repairs of the Shoot."""
    old = complete("spec.kubernetes.version", "1.35.9", bound=True)
    new = Shoot.of(changed(old.to_wire(), f"{POOL}.maximum", 5))
    around = world(registrations=(), profile=profile("spec.machineTypes.0.usable", False), binding_provider="aws")
    assert not check_references(new, old, around)


def test_a_seed_chosen_by_hand_must_fit_too():
    tainted = deepcopy(SEED)
    tainted["spec"]["taints"] = [{"key": "seed.gardener.cloud/protected"}]
    text = str(check_references(complete("spec.seedName", "seed-1"), None, world(seed=Seed.of(tainted))))
    detail = "must be a seed that has only taints that the shoot tolerates; seed-1 is not such a seed"
    assert text == f"spec.seedName: Forbidden: {detail}"


@pytest.mark.parametrize(
    ("value", "state", "complaint"),
    [
        ("reconcile", "Succeeded", ""),
        ("retry", "Failed", ""),
        ("retry", "Error", "needs a last operation in state Failed; its state is Error"),
        ("reconcile;retry", "Failed", "cannot be combined"),
        ("dance", "Succeeded", 'Unsupported value: "dance"'),
    ],
)
def test_an_operation_is_checked_when_it_is_requested(value, state, complaint):
    status = {"lastOperation": {"type": "Reconcile", "state": state, "progress": 1}}
    asked = Shoot.of(SHOOT | {"status": status})
    asked.metadata.annotate("gardener.cloud/operation", value)
    found = check_operations(asked, shoot())
    assert complaint in str(found)
    assert bool(found) == bool(complaint)
    assert not check_operations(asked, asked)  # it stays until the operation starts


@pytest.mark.parametrize(
    ("deleting", "codes", "complaint"),
    [
        (False, ["ERR_INFRA_UNAUTHENTICATED"], "delete it first"),
        (True, [], "is allowed once the deletion has failed"),
        (True, ["ERR_INFRA_QUOTA_EXCEEDED"], "is allowed once the deletion has failed"),
        (True, ["ERR_CLEANUP_CLUSTER_RESOURCES"], ""),
        (True, ["ERR_CONFIGURATION_PROBLEM"], ""),
        (True, ["ERR_INFRA_DEPENDENCIES"], ""),
        (True, ["ERR_INFRA_UNAUTHENTICATED"], ""),
        (True, ["ERR_INFRA_UNAUTHORIZED"], ""),
    ],
)
def test_force_deletion_needs_a_deletion_that_failed_for_good(deleting, codes, complaint):
    """Machines and disks that it leaves in the cloud cost money."""
    status = {"lastErrors": [{"description": "it does not work", "codes": codes}]}
    old = Shoot.of(SHOOT | {"status": status})
    if deleting:
        old = Shoot.of(changed(SHOOT, "metadata.deletionTimestamp", "2026-11-21T12:00:00Z") | {"status": status})
    asked = old.model_copy(deep=True)
    asked.metadata.annotate("confirmation.gardener.cloud/force-deletion", "true")
    found = check_operations(asked, old)
    assert complaint in str(found)
    assert bool(found) == bool(complaint)
    assert not check_operations(asked, asked)
    assert "cannot be reverted" in str(check_operations(old, asked))


@pytest.mark.parametrize(
    ("last", "errors", "refused"),
    [
        (("Delete", "Error"), [{"description": "it does not work"}], False),
        (("Delete", "Failed"), [{"description": "it does not work"}], False),
        (("Delete", "Error"), [{"description": "no quota", "codes": ["ERR_INFRA_QUOTA_EXCEEDED"]}], True),
        (("Delete", "Processing"), [{"description": "it does not work"}], True),
        (("Reconcile", "Error"), [{"description": "it does not work"}], True),
        (("Delete", "Error"), [], True),
    ],
)
def test_an_error_without_a_code_does_not_hold_a_force_deletion(last, errors, refused):
    """No code says whether such an error will pass, so the owner decides."""
    operation = {"type": last[0], "state": last[1], "description": "", "progress": 20}
    deleting = changed(SHOOT, "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")
    old = Shoot.of(deleting | {"status": {"lastErrors": errors, "lastOperation": operation}})
    asked = old.model_copy(deep=True)
    asked.metadata.annotate("confirmation.gardener.cloud/force-deletion", "true")
    assert bool(check_operations(asked, old)) == refused


@pytest.mark.parametrize(("word", "refused"), [("true", False), ("false", True), (None, True)])
def test_a_deletion_needs_its_confirmation(word, refused):
    subject = shoot()
    if word:
        subject.metadata.annotate("confirmation.gardener.cloud/deletion", word)
    assert bool(check_deletion_confirmed(subject)) == refused


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        ({}, False),
        ({"uid": "u"}, True),
        ({"uid": "u", "lastOperation": {"type": "Delete", "state": "Processing", "progress": 90}}, True),
        ({"uid": "u", "lastOperation": {"type": "Delete", "state": "Succeeded", "progress": 100}}, False),
    ],
)
def test_the_finalizer_falls_only_when_the_cluster_is_gone(status, refused):
    """A user that removes it by hand would leave machines and a control plane behind."""
    old = Shoot.of(changed(SHOOT, "metadata.finalizers", ["gardener"]) | {"status": status})
    assert bool(check_finalizer_kept(shoot(), old)) == refused


@pytest.mark.parametrize(
    ("text", "days", "complaint"),
    [
        ("2026-12-05T12:00:00Z", 14, ""),
        ("2026-12-05T12:00:01Z", 14, "the quotas allow an expiration at most 14 days from now"),
        ("2099-01-01T00:00:00Z", None, ""),
        ("tomorrow", None, "must be a time like 2026-11-21T00:00:00Z"),
        ("2026-12-05T12:00:00", None, "must be a time like"),
    ],
)
def test_the_expiration_is_extended_within_the_quotas(text, days, complaint):
    annotation = {"shoot.gardener.cloud/expiration-timestamp": text}
    prolonged = shoot("metadata.annotations", annotation)
    allowed = timedelta(days=days) if days else None
    found = check_expiration(prolonged, shoot(), allowed, NOW)
    assert complaint in str(found)
    assert bool(found) is bool(complaint)
    assert not check_expiration(prolonged, prolonged, allowed, NOW)


def test_maintenance_cannot_be_requested_with_other_operations():
    asked = "metadata.annotations", {"gardener.cloud/operation": "maintain"}
    assert not check_operations(shoot(*asked), shoot())
    both = "metadata.annotations", {"gardener.cloud/operation": "maintain;reconcile"}
    assert "maintain cannot be combined with other operations" in str(check_operations(shoot(*both), shoot()))


def test_a_shoot_becomes_zone_tolerant_only_in_a_seed_with_three_zones():
    old = complete("spec.seedName", "seed-1", bound=True)
    one_zone = world(seed=Seed.of(SEED))
    assert not check_references(tolerating(old, "node"), old, one_zone)
    assert str(check_references(tolerating(old, "zone"), old, one_zone)) == (
        "spec.controlPlane.highAvailability.failureTolerance.type: Forbidden: "
        "zone needs a seed of 3 zones, seed-1 has fewer: choose node"
    )
    three = world(seed=Seed.of(changed(SEED, "spec.provider.zones", ["0", "1", "2"])))
    assert not check_references(tolerating(old, "zone"), old, three)

"""Parts of cloud profiles: what is refused, what Shoots use, and images by capabilities."""

import pytest

from api.core.v1beta1.cloud_profile import CloudProfile, MachineImageVersion
from api.decisions.maintenance import plan_maintenance
from api.decisions.versions import architecture_of, capabilities_of, image_fits, is_constraint
from api.validation.garden import check_cloud_profile, check_cloud_profile_change
from api.validation.references import check_references
from tests.unit.api.shoots import NOW, PROFILE, changed, complete, profile, world

CAPABILITIES = [
    {"name": "architecture", "values": ["amd64", "arm64"]},
    {"name": "disk", "values": ["nvme", "scsi"]},
]
ARM, AMD = {"architecture": ["arm64"]}, {"architecture": ["amd64"]}


def capable(**types):
    """The profile with capabilities; machine types by name, each with its own. Images have a flavor for each disk."""
    kinds = [
        {"name": name, "cpu": "1", "gpu": "0", "memory": "1Gi", "capabilities": has} for name, has in types.items()
    ]
    flavors = {
        "1.0.0": [AMD | {"disk": ["scsi"]}, ARM | {"disk": ["scsi"]}],
        "1.1.0": [AMD | {"disk": ["nvme"]}],
        "1.2.0": [ARM | {"disk": ["nvme"]}],
    }
    versions = [{"version": version, "capabilityFlavors": given} for version, given in flavors.items()]
    new = changed(PROFILE, "spec.machineCapabilities", CAPABILITIES)
    new = changed(new, "spec.machineImages", [{"name": "local", "versions": versions}])
    return changed(new, "spec.machineTypes", kinds)


def faults(path, value, base=PROFILE):
    return str(check_cloud_profile(CloudProfile.of(changed(base, path, value)), NOW))


def lifecycle(*stages):
    return {"version": "1.38.0", "lifecycle": [{"classification": stage} for stage in stages]}


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.caBundle", "x", 'spec.caBundle: Invalid value: "1 characters": must be certificates in PEM format'),
        ("spec.machineTypes.0.name", "Small HD 4GB", "machineTypes[0].name: Invalid value"),
        ("spec.machineTypes.0.cpu", "-1", 'machineTypes[0].cpu: Invalid value: "-1": must not be negative'),
        ("spec.machineTypes.0.architecture", "mips", 'machineTypes[0].architecture: Unsupported value: "mips"'),
        ("spec.volumeTypes", [{"name": "a:b", "class": "premium"}], "volumeTypes[0].name: Invalid value"),
        ("spec.volumeTypes", [{"name": "a", "class": "x", "minSize": "-1Gi"}], "volumeTypes[0].minSize"),
        ("spec.regions.0.zones.0.name", "a b", "regions[0].zones[0].name: Invalid value"),
        ("spec.regions.0.accessRestrictions", [{"name": "a"}] * 2, "accessRestrictions[1].name: Duplicate value"),
        ("spec.bastion", {}, "spec.bastion: Required value"),
        ("spec.bastion", {"machineType": {"name": "x"}}, 'bastion.machineType.name: Unsupported value: "x"'),
        ("spec.bastion", {"machineImage": {"name": "x"}}, 'bastion.machineImage.name: Unsupported value: "x"'),
        ("spec.bastion", {"machineImage": {"name": "local", "version": "9.0.0"}}, "bastion.machineImage.version"),
        ("spec.machineImages.1.versions.0.cri", [], "versions[0].cri: Required value"),
        ("spec.machineImages.1.versions.0.cri", [{"name": "containerd"}] * 2, "cri[1].name: Duplicate value"),
        ("spec.machineImages.1.versions.0.architectures", [], "versions[0].architectures: Required value"),
        ("spec.machineImages.1.versions.0.architectures", ["mips"], "architectures[0]: Unsupported value"),
        ("spec.machineImages.1.versions.0.kubeletVersionConstraint", "newest", "kubeletVersionConstraint: Invalid"),
        (
            "spec.machineImages.1.versions.0.inPlaceUpdates",
            {"supported": True, "minVersionForUpdate": "1"},
            "inPlaceUpdates.minVersionForUpdate: Invalid value",
        ),
        (
            "spec.machineImages.1.versions.0.inPlaceUpdates",
            {"supported": True, "minVersionForUpdate": "9.0.0"},
            'minVersionForUpdate: Invalid value: "9.0.0": must not be newer than the version itself, 1.2.0',
        ),
        ("spec.kubernetes.versions.0", lifecycle("supported", "preview"), "stages must be in the order unavailable"),
        ("spec.kubernetes.versions.0", lifecycle("preview", "preview"), "stages must be in the order unavailable"),
        ("spec.machineTypes.0.capabilities", AMD, "spec.machineCapabilities defines none"),
    ],
)
def test_what_a_cloud_profile_may_not_say(path, value, complaint):
    assert complaint in faults(path, value)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.machineCapabilities.1.name", "gardener-disk", "the prefix gardener- is reserved"),
        ("spec.machineCapabilities.1.values", [], "machineCapabilities[1].values: Required value"),
        ("spec.machineCapabilities.1.values", ["nvme"] * 2, "values[1]: Duplicate value"),
        ("spec.machineCapabilities.0.values", ["mips"], "machineCapabilities[0].values: Unsupported value"),
        ("spec.machineTypes.0.capabilities", {"disk": ["nvme"]}, "a machine has one architecture: name it"),
        ("spec.machineTypes.0.capabilities", AMD | {"gpu": ["a"]}, "defines architecture, disk"),
        ("spec.machineTypes.0.capabilities", AMD | {"disk": ["tape"]}, "capabilities.disk: Unsupported value"),
        ("spec.machineTypes.0.capabilities", AMD | {"disk": []}, "capabilities.disk: Required value"),
        ("spec.machineImages.0.versions.0.capabilityFlavors", [], "a flavor for each architecture"),
        ("spec.machineImages.0.versions.0.capabilityFlavors", [{}], "a flavor has one architecture"),
        ("spec.machineImages.0.versions.0.capabilityFlavors", [AMD] * 2, "Duplicate value"),
    ],
)
def test_capabilities_that_do_not_fit_together(path, value, complaint):
    good = capable(small=AMD)
    assert not check_cloud_profile(CloudProfile.of(good), NOW)
    assert complaint in faults(path, value, good)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("spec.regions", [{"name": "other"}], "regions: Forbidden: region local is used by Shoot garden-local/demo"),
        ("spec.regions.0.zones", [{"name": "1"}], "regions: Forbidden: zone 0 of region local is used by"),
        ("spec.volumeTypes", None, "volumeTypes: Forbidden: volume type fast is used by"),
        ("spec.kubernetes.versions", PROFILE["spec"]["kubernetes"]["versions"][:2], "1.36.3 is used by"),
    ],
)
def test_more_that_shoots_use_and_a_profile_keeps(path, value, complaint):
    base = changed(PROFILE, "spec.volumeTypes", [{"name": "fast", "class": "premium"}])
    shoot = complete()
    pool = (shoot.spec.provider.workers or [])[0].to_wire()
    pool |= {"zones": ["0"], "volume": {"type": "fast", "size": "10Gi"}, "kubernetes": {"version": "1.36.3"}}
    shoot = type(shoot).of(changed(shoot.to_wire(), "spec.provider.workers", [pool]))
    new, old = CloudProfile.of(changed(base, path, value)), CloudProfile.of(base)
    assert complaint in str(check_cloud_profile_change(new, old, [shoot], NOW))
    assert not check_cloud_profile_change(new, old, [], NOW)


def test_a_capability_in_use_stays():
    old = CloudProfile.of(capable(local=AMD | {"disk": ["nvme"]}))
    capabilities = [CAPABILITIES[0], {"name": "disk", "values": ["scsi"]}]
    new = CloudProfile.of(changed(old.to_wire(), "spec.machineCapabilities", capabilities))
    assert "machineCapabilities: Forbidden: disk nvme is used by" in str(
        check_cloud_profile_change(new, old, [complete()], NOW)
    )


@pytest.mark.parametrize(
    ("kind", "architecture", "fitting"),
    [
        (AMD | {"disk": ["nvme"]}, "amd64", ["1.1.0"]),
        (AMD, "amd64", ["1.0.0", "1.1.0"]),
        (ARM | {"disk": ["nvme"]}, "arm64", ["1.2.0"]),
        (ARM | {"disk": ["nvme", "scsi"]}, "arm64", ["1.0.0", "1.2.0"]),
    ],
)
def test_an_image_fits_by_one_of_its_flavors(kind, architecture, fitting):
    found = CloudProfile.of(capable(kind=kind))
    assert architecture_of(found, found.spec.machine_types[0]) == architecture
    offered = capabilities_of(found, "kind", architecture)
    versions = found.spec.machine_images[0].versions
    fits = [
        each.version
        for each in versions
        if image_fits(each, architecture=architecture, cri="containerd", kubelet="1.37.1", capabilities=offered)
    ]
    assert fits == fitting


def test_without_capabilities_the_architectures_of_an_image_decide():
    image = MachineImageVersion.model_validate({"version": "1.0.0", "architectures": ["arm64"]})
    assert capabilities_of(profile(), "local", "arm64") == {}
    assert image_fits(image, architecture="arm64", cri="containerd", kubelet="1.37.1", capabilities={})
    assert not image_fits(image, architecture="amd64", cri="containerd", kubelet="1.37.1", capabilities={})


def test_a_pool_gets_an_image_that_fits_its_machines_and_keeps_to_such_images():
    found = CloudProfile.of(capable(local=AMD | {"disk": ["scsi"]}))
    pool = {"type": "local", "image": {"name": "local", "version": "1.1.0"}}
    shoot = complete("spec.provider.workers.0.machine", pool)
    message = str(check_references(shoot, None, world(profile=found)))
    assert "machine.image.version: Invalid value" in message
    shoot = complete("spec.provider.workers.0.machine", pool | {"image": {"name": "local", "version": "1.0.0"}})
    assert "machine.image" not in str(check_references(shoot, None, world(profile=found)))
    # Maintenance: 1.1.0 is newer, but has no flavor for this disk.
    assert "provider" not in plan_maintenance(shoot.to_wire(), found, NOW).spec
    nvme = CloudProfile.of(capable(local=AMD))
    updated = plan_maintenance(shoot.to_wire(), nvme, NOW).spec["provider"]["workers"][0]
    assert updated["machine"]["image"]["version"] == "1.1.0"


@pytest.mark.parametrize(("text", "readable"), [(None, True), ("", True), (">= 1.33, < 1.38", True), ("1.x", False)])
def test_constraints_are_read_as_semantic_versions(text, readable):
    assert is_constraint(text) is readable

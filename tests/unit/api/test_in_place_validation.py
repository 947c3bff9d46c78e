"""Pools whose machines are updated in place: which of them admission accepts, and which changes."""

from collections.abc import Mapping
from typing import Any

import pytest

from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.shoot import Shoot
from api.decisions.in_place_updates import AUTO, MANUAL
from api.defaulting.shoot import Surroundings, default_shoot
from api.validation.operations import check_operations
from api.validation.references import check_references
from api.validation.shoot import check_shoot
from tests.unit.api.shoots import around, changed, profile, shoot, world

POOL = "spec.provider.workers.0"
STRATEGIES = ("AutoInPlaceUpdate", "ManualInPlaceUpdate")
SUPPORTED = {"inPlaceUpdates": {"supported": True}}


def offering(**versions: Mapping[str, Any]) -> CloudProfile:
    """A profile with these versions of the machine image ``local``; ``v1_2_0`` is 1.2.0."""
    listed = [{"version": name[1:].replace("_", "."), **fields} for name, fields in versions.items()]
    return profile("spec.machineImages.1.versions", listed)


PROFILE = offering(v1_0_0=SUPPORTED, v1_1_0=SUPPORTED, v1_2_0={"inPlaceUpdates": {"supported": False}}, v1_3_0={})


def pool(strategy: str = "AutoInPlaceUpdate", offered: CloudProfile = PROFILE, **fields: Any) -> Shoot:
    """A Shoot whose pool has a strategy, as admission leaves it."""
    wanted = {"name": "pool", "machine": {"type": "local"}, "minimum": 1, "maximum": 2, "updateStrategy": strategy}
    made = shoot("spec.provider.workers", [wanted | fields])
    surroundings = Surroundings(**{**vars(around()), "profile": offered})
    default_shoot(made, None, surroundings)
    return made


def after(old: Shoot, path: str, value: Any) -> Shoot:
    return Shoot.of(changed(old.to_wire(), path, value))


def faults(new: Shoot, old: Shoot | None = None) -> str:
    return str(check_shoot(new, old, "local")) if check_shoot(new, old, "local") else ""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pool_that_is_updated_in_place_is_accepted(strategy: str) -> None:
    made = pool(strategy)
    assert faults(made) == ""
    assert not check_references(made, None, world(profile=PROFILE))
    (worker,) = made.spec.provider.workers or []
    assert worker.machine.image is not None
    assert worker.machine.image.version == "1.1.0", "the newest version that can be updated in place"
    assert worker.machine_controller_manager is not None
    assert worker.machine_controller_manager.disable_health_timeout is True


def test_a_pool_keeps_the_health_timeout_that_its_owner_chose() -> None:
    (worker,) = pool(machineControllerManager={"disableHealthTimeout": False}).spec.provider.workers or []
    assert worker.machine_controller_manager is not None
    assert worker.machine_controller_manager.disable_health_timeout is False
    (rolling,) = pool("AutoRollingUpdate").spec.provider.workers or []
    assert rolling.machine_controller_manager is None


def test_bounds_of_an_update_are_those_of_its_strategy() -> None:
    (auto,) = pool().spec.provider.workers or []
    assert (auto.max_surge, auto.max_unavailable) == (0, 1)
    (manual,) = pool("ManualInPlaceUpdate").spec.provider.workers or []
    assert (manual.max_surge, manual.max_unavailable) == (None, None)
    said = faults(pool("ManualInPlaceUpdate", maxSurge=1, maxUnavailable=0))
    assert "workers[0].maxSurge: Forbidden: must be unset" in said
    assert "workers[0].maxUnavailable: Forbidden: must be unset" in said
    assert "must not be 0 when maxSurge is 0" in faults(pool(maxSurge=0, maxUnavailable=0))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pool_does_not_switch_between_replaced_and_updated_machines(strategy: str) -> None:
    for before, now in (("AutoRollingUpdate", strategy), (strategy, "AutoRollingUpdate")):
        assert f"updateStrategy: Forbidden: cannot change from {before} to {now}" in faults(pool(now), pool(before))


def test_a_pool_may_switch_between_automatic_and_manual_updates() -> None:
    auto, manual = pool(), pool("ManualInPlaceUpdate")
    assert faults(manual, auto) == faults(auto, manual) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("machine.type", "other"),
        ("machine.architecture", "arm64"),
        ("machine.image.name", "other"),
        ("cri", {"name": "containerd", "containerRuntimes": [{"type": "gvisor"}]}),
        ("volume", {"size": "50Gi"}),
        ("dataVolumes", [{"name": "more", "size": "5Gi"}]),
        ("kubeletDataVolumeName", "data"),
    ],
)
def test_what_only_new_machines_could_get_is_fixed(field: str, value: Any) -> None:
    volumes: dict[str, Any] = {"volume": {"size": "20Gi"}, "dataVolumes": [{"name": "data", "size": "5Gi"}]}
    old = pool(**volumes)
    said = faults(after(old, f"{POOL}.{field}", value), old)
    assert f"workers[0].{field}: Forbidden" in said
    assert "make another pool" in said
    rolling = pool("AutoRollingUpdate", **volumes)
    assert "make another pool" not in faults(after(rolling, f"{POOL}.{field}", value), rolling)


def test_a_pool_that_is_updated_in_place_skips_no_minor_version() -> None:
    old = pool(kubernetes={"version": "1.35.9"})
    skips = "upgrade from 1.35.9 to 1.37.1 skips a minor version"
    assert skips in faults(after(old, f"{POOL}.kubernetes.version", "1.37.1"), old)
    assert skips in faults(after(old, f"{POOL}.kubernetes.version", None), old), "it gets the control plane's version"
    assert faults(after(old, f"{POOL}.kubernetes.version", "1.36.3"), old) == ""
    rolling = pool("AutoRollingUpdate", kubernetes={"version": "1.35.9"})
    assert faults(after(rolling, f"{POOL}.kubernetes.version", "1.37.1"), rolling) == ""


def with_pending(old: Shoot, field: str, *names: str) -> Shoot:
    status = {"inPlaceUpdates": {"pendingWorkerUpdates": {field: list(names)}}}
    return Shoot.of({**old.to_wire(), "status": status})


@pytest.mark.parametrize("field", [AUTO, MANUAL])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{POOL}.machine.image.version", "1.1.0"),
        (f"{POOL}.maximum", 5),
        ("spec.kubernetes.version", "1.38.0"),
        ("spec.kubernetes.kubelet", {"kubeReserved": {"cpu": "99m"}}),
    ],
)
def test_a_pool_changes_during_its_update_only_by_force(field: str, path: str, value: Any) -> None:
    kept = pool(machine={"type": "local", "image": {"name": "local", "version": "1.0.0"}})
    old = with_pending(kept, field, "pool")
    new = after(old, path, value)
    said = faults(new, old)
    assert "workers[0]: Forbidden: an in-place update of pool pool is pending" in said
    assert "gardener.cloud/operation=force-in-place-update" in said
    forced = after(new, "metadata.annotations", {"gardener.cloud/operation": "force-in-place-update"})
    assert faults(forced, old) == ""
    for other in (kept, with_pending(kept, field, "another")):
        assert faults(after(other, path, value), other) == ""


def test_other_fields_change_while_an_update_is_pending() -> None:
    old = with_pending(pool(), AUTO, "pool")
    assert faults(after(old, "spec.purpose", "production"), old) == ""
    (known,) = old.to_wire()["spec"]["provider"]["workers"]
    more = [known, {**known, "name": "new"}]
    assert faults(after(old, "spec.provider.workers", more), old) == ""
    removed = after(old, "spec.provider.workers", [{**known, "name": "new"}])
    assert faults(removed, old) == "", "a pool may go with its machines"


def test_force_is_an_operation_of_its_own() -> None:
    annotation = {"gardener.cloud/operation": "force-in-place-update"}
    assert not check_operations(after(pool(), "metadata.annotations", annotation), pool())
    both = {"gardener.cloud/operation": "force-in-place-update;reconcile"}
    said = str(check_operations(after(pool(), "metadata.annotations", both), pool()))
    assert "force-in-place-update cannot be combined with other operations" in said


def image(strategy: str, version: str) -> Shoot:
    return pool(strategy, machine={"type": "local", "image": {"name": "local", "version": version}})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_image_version_must_be_reachable_in_place(strategy: str) -> None:
    offered = offering(
        v1_0_0=SUPPORTED,
        v1_1_0=SUPPORTED,
        v1_2_0={"inPlaceUpdates": {"supported": True, "minVersionForUpdate": "1.1.0"}},
        v1_3_0={"inPlaceUpdates": {"supported": False, "minVersionForUpdate": "1.0.0"}},
        v1_4_0={},
        v1_5_0={"inPlaceUpdates": {"supported": True, "minVersionForUpdate": "1.6.0"}},
    )

    def said(new: str, old: str | None = None, of: str = strategy) -> str:
        found = check_references(image(of, new), image(of, old) if old else None, world(profile=offered))
        return str(found) if found else ""

    assert said("1.0.0") == said("1.2.0") == said("1.1.0", "1.0.0") == said("1.2.0", "1.1.0") == ""
    assert "is reached in place from version 1.1.0 or newer, and the pool has 1.0.0" in said("1.2.0", "1.0.0")
    assert "is reached in place from version 1.6.0 or newer" in said("1.5.0")
    for version in ("1.3.0", "1.4.0"):
        for before in (None, "1.0.0"):
            assert f"does not support in-place updates, which strategy {strategy} needs" in said(version, before)
        assert said(version, of="AutoRollingUpdate") == ""
        assert said(version, version) == "", "what the machines have stays"
    assert "downgrade from 1.1.0 to 1.0.0 is not possible" in said("1.0.0", "1.1.0")

"""A garden in small: the objects around a Shoot that all is well with, for tests to break."""

from copy import deepcopy
from datetime import UTC, datetime
from random import Random
from typing import Any

from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.defaulting.shoot import Surroundings, default_shoot
from api.validation.references import World

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CORE = "core.gardener.cloud/v1beta1"

SHOOT: dict[str, Any] = {
    "apiVersion": CORE,
    "kind": "Shoot",
    "metadata": {"name": "demo", "namespace": "garden-local", "uid": "u-1"},
    "spec": {
        "cloudProfile": {"kind": "CloudProfile", "name": "local"},
        "region": "local",
        "credentialsBindingName": "local",
        "kubernetes": {"version": "1.37.1"},
        "networking": {"type": "flannel"},
        "provider": {
            "type": "local",
            "workers": [{"name": "pool", "machine": {"type": "local"}, "minimum": 1, "maximum": 2}],
        },
    },
}
PROFILE: dict[str, Any] = {
    "apiVersion": CORE,
    "kind": "CloudProfile",
    "metadata": {"name": "local"},
    "spec": {
        "type": "local",
        "kubernetes": {
            "versions": [
                {"version": "1.38.0", "classification": "preview"},
                {"version": "1.37.1", "classification": "supported"},
                {"version": "1.37.0", "classification": "deprecated"},
                {"version": "1.36.3"},
                {"version": "1.35.9", "expirationDate": "2026-01-01T00:00:00Z"},
            ]
        },
        "machineImages": [
            {"name": "other", "versions": [{"version": "3.0.0", "architectures": ["arm64"]}]},
            {
                "name": "local",
                "versions": [
                    {"version": "1.2.0", "classification": "preview"},
                    {"version": "1.1.0"},
                    {"version": "1.0.0"},
                ],
            },
        ],
        "machineTypes": [
            {"name": "local", "cpu": "2", "gpu": "0", "memory": "4Gi"},
            {"name": "old", "cpu": "1", "gpu": "0", "memory": "1Gi", "usable": False},
        ],
        "regions": [{"name": "local", "zones": [{"name": "0"}, {"name": "1"}]}],
    },
}
_SECRET = {"apiVersion": "v1", "kind": "Secret", "name": "dns", "namespace": "garden"}
SEED: dict[str, Any] = {
    "apiVersion": CORE,
    "kind": "Seed",
    "metadata": {"name": "seed-1"},
    "spec": {
        "provider": {"type": "local", "region": "local", "zones": ["0"]},
        "networks": {
            "nodes": "198.18.2.2/32",
            "pods": "100.96.1.0/24",
            "services": "100.64.1.0/24",
            "shootDefaults": {"pods": "100.112.0.0/16", "services": "100.68.0.0/16"},
        },
        "dns": {
            "internal": {"type": "local", "domain": "internal.garden.test", "credentialsRef": _SECRET},
            "defaults": [{"type": "local", "domain": "shoot.garden.test", "credentialsRef": _SECRET}],
        },
    },
    "status": {
        "lastOperation": {"type": "Reconcile", "state": "Succeeded", "progress": 100},
        "conditions": [{"type": "GardenletReady", "status": "True"}],
    },
}
PROJECT: dict[str, Any] = {
    "apiVersion": CORE,
    "kind": "Project",
    "metadata": {"name": "local", "uid": "p-1"},
    "spec": {"namespace": "garden-local"},
}
REGISTRATION: dict[str, Any] = {
    "apiVersion": CORE,
    "kind": "ControllerRegistration",
    "metadata": {"name": "provider-local"},
    "spec": {
        "resources": [
            *(
                {"kind": kind, "type": "local"}
                for kind in ("ControlPlane", "Infrastructure", "Worker", "OperatingSystemConfig", "DNSRecord")
            ),
            {"kind": "Network", "type": "flannel"},
        ]
    },
}


def changed(base: dict[str, Any], path: str = "", value: Any = None) -> dict[str, Any]:
    """A copy with the field at a dotted path set; None removes it. Numbers are list indices."""
    result = deepcopy(base)
    if path:
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        node: Any = result
        for part in parents:
            node = node[part] if isinstance(part, int) else node.setdefault(part, {})
        if value is None:
            del node[last]
        else:
            node[last] = value
    return result


def shoot(path: str = "", value: Any = None) -> Shoot:
    return Shoot.of(changed(SHOOT, path, value))


def profile(path: str = "", value: Any = None) -> CloudProfile:
    return CloudProfile.of(changed(PROFILE, path, value))


def seed(path: str = "", value: Any = None) -> Seed:
    return Seed.of(changed(SEED, path, value))


def around(*, bound: bool = True) -> Surroundings:
    return Surroundings(
        profile=profile(),
        seed=seed() if bound else None,
        project=Project.of(PROJECT),
        user="alice",
        now=NOW,
        random=Random(1),
    )


def complete(path: str = "", value: Any = None, *, bound: bool = False) -> Shoot:
    """A Shoot as admission leaves it."""
    result = shoot(path, value)
    default_shoot(result, None, around(bound=bound))
    return result


def world(**differences: Any) -> World:
    facts: dict[str, Any] = {
        "project": Project.of(PROJECT),
        "profile": profile(),
        "seed": seed(),
        "shoots_on_seed": 0,
        "registrations": (ControllerRegistration.of(REGISTRATION),),
        "binding_provider": "local",
        "missing": (),
        "now": NOW,
        "default_domains": frozenset({"shoot.garden.test"}),
    }
    return World(**(facts | differences))

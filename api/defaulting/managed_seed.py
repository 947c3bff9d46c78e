"""Defaults of a ManagedSeed: its Seed gets from the Shoot what it does not say itself. Source: spec/api-core.md 8."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from api.decisions.managed_seeds import CONFIG_API_VERSION, CONFIG_KIND
from api.resources import Object
from api.seedmanagement.v1alpha1.managed_seed import GardenletDeployment, ManagedSeed

SHOOTS = 250
"""Number of Shoots that a managed seed may host."""


def default_managed_seed(
    managed_seed: ManagedSeed, shoot: Mapping[str, Any] | None, host: Mapping[str, Any] | None
) -> None:
    """Fill in the deployment and the configuration of the gardenlet.

    ``host``: the Seed with the control plane of the Shoot. The new Seed has its DNS.
    """
    gardenlet = managed_seed.spec.gardenlet
    if gardenlet.deployment is None:
        gardenlet.deployment = GardenletDeployment()
    config: Object = deepcopy(gardenlet.config or {})
    config.setdefault("apiVersion", CONFIG_API_VERSION)
    config.setdefault("kind", CONFIG_KIND)
    _child(_child(config, "resources"), "capacity").setdefault("shoots", SHOOTS)
    if shoot is not None:
        _default_spec(_child(_child(config, "seedConfig"), "spec"), shoot, (host or {}).get("spec") or {})
    gardenlet.config = config


def seed_networks(shoot: Mapping[str, Any]) -> dict[str, str]:
    """Networks of a Shoot, by their names in a Seed."""
    wanted = shoot["spec"].get("networking") or {}
    used = (shoot.get("status") or {}).get("networking") or {}
    found = {name: wanted.get(name) or next(iter(used.get(name) or ()), None) for name in ("nodes", "pods", "services")}
    return {name: network for name, network in found.items() if network}


def shoot_zones(shoot: Mapping[str, Any]) -> list[str]:
    """Zones of a Shoot's workers."""
    workers = (shoot["spec"].get("provider") or {}).get("workers") or ()
    return sorted({zone for each in workers for zone in each.get("zones") or ()})


def ingress_domain(shoot: Mapping[str, Any]) -> str | None:
    domain = (shoot["spec"].get("dns") or {}).get("domain")
    return f"ingress.{domain}" if domain else None


def _default_spec(spec: Object, shoot: Mapping[str, Any], host: Mapping[str, Any]) -> None:
    provider, region = shoot["spec"]["provider"]["type"], shoot["spec"]["region"]
    placed = _child(spec, "provider")
    placed.setdefault("type", provider)
    placed.setdefault("region", region)
    if zones := shoot_zones(shoot):
        placed.setdefault("zones", zones)
    networks = _child(spec, "networks")
    for name, network in seed_networks(shoot).items():
        networks.setdefault(name, network)
    dns = _child(spec, "dns")
    for name, value in (host.get("dns") or {}).items():
        dns.setdefault(name, deepcopy(value))
    ingress = _child(spec, "ingress")
    if domain := ingress_domain(shoot):
        ingress.setdefault("domain", domain)
    _child(ingress, "controller").setdefault("kind", "nginx")
    if spec.get("backup"):
        spec["backup"].setdefault("provider", provider)
        spec["backup"].setdefault("region", region)
    # The Shoot has a vertical pod autoscaler already.
    _child(_child(spec, "settings"), "verticalPodAutoscaler").setdefault("enabled", False)


def _child(of: Object, name: str) -> Object:
    """The mapping in a field, which is created if it does not exist. Another value stays, for validation to refuse."""
    if of.get(name) is None:
        of[name] = {}
    found = of[name]
    return found if isinstance(found, dict) else {}

"""Rules of ManagedSeeds, and of the Shoots that they make seeds. Source: spec/api-core.md 8 and 10."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from api.constants import OPERATION, OPERATION_FORCE_REDEPLOY, OPERATION_RECONCILE, OPERATION_RENEW_KUBECONFIG
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.managed_seeds import CONFIG_API_VERSION, CONFIG_KIND, seed_template
from api.defaulting.managed_seed import ingress_domain, seed_networks, shoot_zones
from api.seedmanagement.v1alpha1.gardenlet import Gardenlet
from api.seedmanagement.v1alpha1.managed_seed import Image, ManagedSeed
from api.seedmanagement.v1alpha1.managed_seed_set import ManagedSeedSet
from api.validation.controllers import check_oci_repository
from api.validation.field import Fault, Faults, Path
from api.validation.garden import check_seed

SPEC = Path("spec")
_GARDENLET = SPEC / "gardenlet"
_CONFIG = _GARDENLET / "config"
_TEMPLATE = _CONFIG / "seedConfig"
_SHOOT = SPEC / "shoot" / "name"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OF_FILES = ("temporal", "seedClientConnection", "health", "leaderElection")
"""Parts of the configuration that name files and ports in the pod, which the chart sets."""
GARDENLET_OPERATIONS = (OPERATION_RECONCILE, OPERATION_RENEW_KUBECONFIG, OPERATION_FORCE_REDEPLOY)
"""Values of annotation ``gardener.cloud/operation`` of a Gardenlet."""
_GARDENER_OWN = ("gardenClusterAddress", "gardenClusterCACert", "kubeconfigValidity")


def check_managed_seed(managed_seed: ManagedSeed, old: ManagedSeed | None) -> Faults:
    """Faults that do not depend on other objects."""
    faults = Faults()
    name, gardenlet = managed_seed.metadata.name, managed_seed.spec.gardenlet
    if not _NAME.fullmatch(name):
        faults.invalid(Path("metadata") / "name", name, "is the name of the Seed, too: a DNS label is needed")
    if gardenlet.bootstrap == "ServiceAccount":
        why = "this version bootstraps managed seeds by a token for one seed: use BootstrapToken"
        faults.unsupported(_GARDENLET / "bootstrap", gardenlet.bootstrap, (), why)
    if gardenlet.bootstrap == "None":
        why = "the gardenlet of a managed seed requests its certificate with a token: use BootstrapToken"
        faults.unsupported(_GARDENLET / "bootstrap", gardenlet.bootstrap, (), why)
    if gardenlet.deployment is not None:
        _check_image(gardenlet.deployment.image, _GARDENLET / "deployment" / "image", faults)
    _check_config(gardenlet.config or {}, faults)
    if not faults:
        _check_template(managed_seed, old, faults)
    return faults


def _check_image(image: Image | None, path: Path, faults: Faults) -> None:
    if image is None:
        return
    if image.ref and (image.repository or image.tag):
        faults.forbidden(path / "ref", "excludes repository and tag")
    if image.tag and not image.repository:
        faults.required(path / "repository", "a tag alone names no image")


def _check_config(config: Mapping[str, Any], faults: Faults) -> None:
    for name, wanted in (("apiVersion", CONFIG_API_VERSION), ("kind", CONFIG_KIND)):
        if config.get(name, wanted) != wanted:
            faults.unsupported(_CONFIG / name, config[name], (wanted,))
    for name in ("seedConfig", "gardenClientConnection", "resources"):
        if not isinstance(config.get(name, {}), Mapping):
            faults.invalid(_CONFIG / name, config[name], "must be an object")
            return
    if not isinstance((config.get("seedConfig") or {}).get("metadata", {}), Mapping):
        faults.invalid(_TEMPLATE / "metadata", config["seedConfig"]["metadata"], "must be an object")
    elif ((config.get("seedConfig") or {}).get("metadata") or {}).get("name"):
        faults.forbidden(_TEMPLATE / "metadata" / "name", "the Seed has the name of the ManagedSeed")
    for name in sorted(set(config.get("gardenClientConnection") or {}) - set(_GARDENER_OWN)):
        faults.forbidden(_CONFIG / "gardenClientConnection" / name, "the parent gardenlet makes the kubeconfig")
    for name in _OF_FILES:
        if name in config:
            faults.forbidden(_CONFIG / name, "the chart of the gardenlet sets it")


def _check_template(managed_seed: ManagedSeed, old: ManagedSeed | None, faults: Faults) -> None:
    try:
        seed = Seed.of(seed_template(managed_seed.to_wire()))
        before = Seed.of(seed_template(old.to_wire())) if old is not None else None
    except ValidationError as error:
        for each in error.errors(include_url=False, include_input=False):
            path = _TEMPLATE
            for part in each["loc"]:
                path = path @ part if isinstance(part, int) else path / part
            faults.invalid(path, None, each["msg"])
        return
    for fault in check_seed(seed, before).found:
        faults.found.append(Fault(fault.type, Path(f"{_TEMPLATE}.{fault.path}"), fault.value, fault.detail))
    if before is None:
        return
    for name, was, now in (
        ("provider.type", before.spec.provider.type, seed.spec.provider.type),
        ("provider.region", before.spec.provider.region, seed.spec.provider.region),
        ("networks.pods", before.spec.networks.pods, seed.spec.networks.pods),
        ("networks.services", before.spec.networks.services, seed.spec.networks.services),
        ("ingress.domain", *((each.spec.ingress.domain if each.spec.ingress else None) for each in (before, seed))),
    ):
        faults.fixed(Path(f"{_TEMPLATE}.spec.{name}"), was, now)
    if before.spec.backup is not None and seed.spec.backup is None:
        faults.forbidden(_TEMPLATE / "spec" / "backup", "cannot be removed")


def check_shoot_of(managed_seed: ManagedSeed, shoot: Shoot | None, others: Sequence[str], *, new: bool) -> Faults:
    """Faults of a ManagedSeed together with its Shoot. ``others``: names of other ManagedSeeds of the Shoot."""
    faults = Faults()
    name = managed_seed.spec.shoot.name
    if shoot is None:
        faults.not_found(_SHOOT, name, "there is no such Shoot in namespace garden")
        return faults
    if new and shoot.metadata.deletion_timestamp is not None:
        faults.forbidden(_SHOOT, f"Shoot {name} is being deleted")
    if others:
        faults.forbidden(_SHOOT, f"Shoot {name} is registered as a seed by ManagedSeed {others[0]} already")
    if not (shoot.spec.dns and shoot.spec.dns.domain):
        faults.forbidden(_SHOOT, f"Shoot {name} has no spec.dns.domain, and its Seed needs a domain for its ingress")
    workers = shoot.spec.provider.workers or []
    if not workers:
        faults.forbidden(_SHOOT, f"Shoot {name} has no workers: control planes of its Shoots would have no nodes")
    elif not any(each.minimum > 0 and _takes_system_components(each) for each in workers):
        faults.forbidden(
            _SHOOT, f"Shoot {name} has no worker pool for system components with at least one machine at all times"
        )
    for fault in required_settings(shoot):
        faults.forbidden(_SHOOT, f"Shoot {name}: {fault}")
    _check_agreement(managed_seed, shoot.to_wire(), faults)
    return faults


def _takes_system_components(worker: Any) -> bool:
    return worker.system_components is None or worker.system_components.allow


def required_settings(shoot: Shoot) -> list[str]:
    """Settings of a Shoot that keep it from being a seed."""
    found = []
    vpa = shoot.spec.kubernetes.vertical_pod_autoscaler
    if vpa is None or not vpa.enabled:
        found.append("spec.kubernetes.verticalPodAutoscaler.enabled must be true, a seed uses it")
    networking = shoot.spec.networking
    if networking is not None and "IPv4" not in (networking.ip_families or ["IPv4"]):
        found.append("spec.networking.ipFamilies must have IPv4, a seed uses it")
    addons = shoot.spec.addons
    if addons is not None and addons.nginx_ingress is not None and addons.nginx_ingress.enabled:
        found.append("spec.addons.nginxIngress.enabled must be false, a seed has its own ingress")
    return found


def _check_agreement(managed_seed: ManagedSeed, shoot: Mapping[str, Any], faults: Faults) -> None:
    """The Seed must say what is so in the Shoot."""
    spec = seed_template(managed_seed.to_wire())["spec"]
    path = _TEMPLATE / "spec"
    provider, networks, ingress = (spec.get(each) or {} for each in ("provider", "networks", "ingress"))
    pairs = [
        ("provider.type", provider.get("type"), shoot["spec"]["provider"]["type"]),
        ("provider.region", provider.get("region"), shoot["spec"]["region"]),
        ("ingress.domain", ingress.get("domain"), ingress_domain(shoot)),
        *((f"networks.{name}", networks.get(name), network) for name, network in seed_networks(shoot).items()),
    ]
    for name, wanted, actual in pairs:
        if actual is not None and wanted != actual:
            faults.invalid(Path(f"{path}.{name}"), wanted, f"must be {actual}, as in Shoot {shoot['metadata']['name']}")
    zones = shoot_zones(shoot)
    if zones and (foreign := sorted(set(provider.get("zones") or ()) - set(zones))):
        faults.invalid(
            path / "provider" / "zones", foreign, f"workers of the Shoot are in zones {', '.join(zones)} alone"
        )


def check_seed_shoot(shoot: Shoot, old: Shoot, managed_seed: Mapping[str, Any]) -> Faults:
    """Faults of a change of a Shoot that is a seed."""
    faults = Faults()
    owner = f"ManagedSeed {managed_seed['metadata']['name']} makes this Shoot a seed"
    for fault in set(required_settings(shoot)) - set(required_settings(old)):
        faults.forbidden(Path(fault.partition(" ")[0]), f"{fault.partition(' ')[2]}: {owner}")
    before, after = (each.spec.networking.nodes if each.spec.networking else None for each in (old, shoot))
    if before is not None:
        faults.fixed(SPEC / "networking" / "nodes", before, after)
    zones = set((seed_template(managed_seed)["spec"].get("provider") or {}).get("zones") or ())
    gone = (set(shoot_zones(old.to_wire())) - set(shoot_zones(shoot.to_wire()))) & zones
    if gone:
        faults.forbidden(
            SPEC / "provider" / "workers", f"no worker would be left in zones {', '.join(sorted(gone))}: {owner}"
        )
    return faults


def check_managed_seed_set(owner: ManagedSeedSet, old: ManagedSeedSet | None) -> Faults:
    """Faults of a set that do not depend on other objects. Labels of all templates must match its selector."""
    faults = Faults()
    spec = owner.spec
    wanted = spec.selector.match_labels or {}
    if not wanted or spec.selector.match_expressions:
        faults.invalid(SPEC / "selector", None, "needs matchLabels, and no matchExpressions")
        return faults
    if old is not None:
        before, after = old.spec.selector.match_labels, spec.selector.match_labels
        faults.fixed(SPEC / "selector", before, after)
    for name, template in (("template", spec.template), ("shootTemplate", spec.shoot_template)):
        labels = (template.metadata.labels if template.metadata else None) or {}
        _check_labels(labels, wanted, SPEC / name / "metadata" / "labels", faults)
    config = spec.template.spec.gardenlet.config or {}
    path = SPEC / "template" / "spec" / "gardenlet" / "config" / "seedConfig" / "metadata" / "labels"
    labels = ((config.get("seedConfig") or {}).get("metadata") or {}).get("labels") or {}
    _check_labels(labels, wanted, path, faults)
    if not spec.shoot_template.spec.provider.workers:
        faults.required(SPEC / "shootTemplate" / "spec" / "provider" / "workers", "a seed needs machines")
    return faults


def _check_labels(labels: Mapping[str, str], wanted: Mapping[str, str], path: Path, faults: Faults) -> None:
    if not wanted.items() <= labels.items():
        faults.invalid(path, dict(labels), f"spec.selector selects {dict(wanted)}")


def check_gardenlet(gardenlet: Gardenlet) -> Faults:
    """Faults of a Gardenlet that do not depend on other objects."""
    faults, deployment = Faults(), gardenlet.spec.deployment
    path = SPEC / "deployment"
    check_oci_repository(deployment.helm.oci_repository.to_wire(), path / "helm" / "ociRepository", faults)
    _check_image(deployment.image, path / "image", faults)
    for name, value in (
        ("imageVectorOverwrite", deployment.image_vector_overwrite),
        ("componentImageVectorOverwrite", deployment.component_image_vector_overwrite),
    ):
        if value:
            faults.forbidden(path / name, "this version has no image vector: images belong to the gardenlet's version")
    if gardenlet.spec.kubeconfig_secret_ref is not None:
        text = "the gardenlet runs in its seed already: install the first one by Helm, see docs/operations/install.md"
        faults.forbidden(SPEC / "kubeconfigSecretRef", text)
    _check_own_config(gardenlet.spec.config, SPEC / "config", faults)
    return faults


def _check_own_config(config: Mapping[str, Any], path: Path, faults: Faults) -> None:
    for name, wanted in (("apiVersion", CONFIG_API_VERSION), ("kind", CONFIG_KIND)):
        if config.get(name, wanted) != wanted:
            faults.unsupported(path / name, config[name], (wanted,))
    for name in (*_OF_FILES, "gardenClientConnection"):
        if name in config:
            faults.forbidden(path / name, "the values of the installation by Helm set it")
    if "seedConfig" in config:
        text = "the gardenlet has registered its Seed: change the Seed itself, or the value seedConfig by Helm"
        faults.forbidden(path / "seedConfig", text)


def check_gardenlet_operation(gardenlet: Gardenlet, old: Gardenlet | None) -> Faults:
    """Faults of a new request for an operation."""
    faults = Faults()
    asked = gardenlet.metadata.annotations.get(OPERATION)
    before = old.metadata.annotations.get(OPERATION) if old is not None else None
    if asked is not None and asked != before and asked not in GARDENLET_OPERATIONS:
        faults.unsupported(Path("metadata") / "annotations" @ OPERATION, asked, GARDENLET_OPERATIONS)
    return faults

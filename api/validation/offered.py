"""Fields that this version does not implement: a value is refused with the reason, so that none is ignored silently.

An object keeps a value that it has already: its owner must be able to change other fields, and to delete the object.
A value that asks for nothing (unset, false, empty) is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.meta import KubeObject
from api.validation.field import Faults, Path


@dataclass(frozen=True)
class NotOffered:
    """Why a field is refused, and which of its values are accepted all the same."""

    reason: str
    accepted: tuple[Any, ...] = ()


_NO_PRESERVATION = "this version deletes failed machines; it cannot preserve them"
_NO_ADDONS = "this version deploys no addons: deploy your own into the cluster"
_NO_DNS_EXTENSION = "only an extension for more DNS names would read it, and none is registered: leave it out"
_IPV4 = "only [IPv4] is supported"
_NO_SEED_VPA = "this version does not scale control planes vertically: set enabled to false"
_NO_ZONES_OF_SERVICE = "the gateway of a seed has one address for all zones"

SHOOT = {
    "spec.addons": NotOffered(_NO_ADDONS),
    "spec.dns.providers[].domains": NotOffered(_NO_DNS_EXTENSION),
    "spec.dns.providers[].zones": NotOffered(_NO_DNS_EXTENSION),
    "spec.kubernetes.clusterAutoscaler.maxEmptyBulkDelete": NotOffered("use maxScaleDownParallelism"),
    "spec.kubernetes.kubeAPIServer.enableAnonymousAuthentication": NotOffered(
        "the API server answers anonymous requests for its health alone"
    ),
    "spec.kubernetes.kubeAPIServer.watchCacheSizes.default": NotOffered(
        "Kubernetes ignores the default size: name resources in watchCacheSizes.resources"
    ),
    "spec.kubernetes.kubeControllerManager.nodeCIDRMaskSizeIPv6": NotOffered("each node gets a /64 of IPv6"),
    "spec.kubernetes.kubeControllerManager.podEvictionTimeout": NotOffered(
        "Kubernetes evicts by taints: set kubeAPIServer.defaultNotReadyTolerationSeconds and "
        "defaultUnreachableTolerationSeconds"
    ),
    "spec.kubernetes.kubeScheduler.kubeMaxPDVols": NotOffered("CSI drivers say how many volumes a node can have"),
    "spec.systemComponents.coreDNS.autoscaling.mode": NotOffered(
        "this version scales CoreDNS by its CPU usage alone: use horizontal", accepted=("horizontal",)
    ),
    "spec.provider.workers[].machineControllerManager.machinePreserveTimeout": NotOffered(_NO_PRESERVATION),
    "spec.provider.workers[].machineControllerManager.autoPreserveFailedMachineMax": NotOffered(_NO_PRESERVATION),
}
SEED = {
    "spec.networks.ipFamilies": NotOffered(_IPV4, accepted=(["IPv4"],)),
    "spec.ingress.controller.providerConfig": NotOffered("the gateway of a seed has no settings of its own"),
    "spec.resources": NotOffered("this version copies no resources into seeds for their extensions"),
    "spec.volume.minimumSize": NotOffered("volumes of control planes have the sizes of this version"),
    "spec.volume.providers": NotOffered("volumes of control planes have storage class default"),
    "spec.settings.loadBalancerServices.proxyProtocol.allowed": NotOffered(
        "the gateway of a seed does not read the PROXY protocol"
    ),
    "spec.settings.loadBalancerServices.zonalIngress.enabled": NotOffered(f"{_NO_ZONES_OF_SERVICE}: set it to false"),
    "spec.settings.loadBalancerServices.zones": NotOffered(_NO_ZONES_OF_SERVICE),
    "spec.settings.verticalPodAutoscaler.enabled": NotOffered(_NO_SEED_VPA),
    "spec.settings.verticalPodAutoscaler.featureGates": NotOffered(_NO_SEED_VPA),
    "spec.settings.verticalPodAutoscaler.maxAllowed": NotOffered(_NO_SEED_VPA),
    "spec.settings.persistentVolumeClaimAutoscaler.enabled": NotOffered("this version does not resize volumes"),
    "spec.settings.topologyAwareRouting.enabled": NotOffered(
        "Services of control planes do not prefer endpoints of their own zone"
    ),
}
TABLES: dict[type[KubeObject], Mapping[str, NotOffered]] = {Shoot: SHOOT, Seed: SEED}


def check_offered(new: KubeObject, old: KubeObject | None, faults: Faults) -> None:
    """Report each value of a field that is not implemented, unless the object had the value before."""
    wire, before = new.to_wire(), old.to_wire() if old is not None else {}
    known = {fault.path.text for fault in faults.found}
    for field, refusal in TABLES[type(new)].items():
        present = list(_values(wire, field))
        had = {place: value for _, place, value in _values(before, field)} if present else {}
        for path, place, value in present:
            if value and value not in refusal.accepted and had.get(place) != value and path.text not in known:
                faults.forbidden(path, f"not supported: {refusal.reason}")


def _values(obj: Any, field: str) -> Iterator[tuple[Path, tuple[str, ...], Any]]:
    """Each value of a field: its path, its place (the keys of list items in place of their indexes) and the value."""
    found: list[tuple[Path, tuple[str, ...], Any]] = [(Path(""), (), obj)]
    for part in field.split("."):
        name, items = part.removesuffix("[]"), part.endswith("[]")
        below = [(path / name, (*place, name), value[name]) for path, place, value in found if name in (value or {})]
        found = (
            [
                (path @ index, (*place, _key(item, index)), item)
                for path, place, value in below
                for index, item in enumerate(value)
            ]
            if items
            else below
        )
    yield from found


def _key(item: Mapping[str, Any], index: int) -> str:
    return str(item.get("name") or item.get("type") or index)

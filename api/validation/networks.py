"""Sizes of a Shoot's networks: what kube-apiserver, kube-controller-manager and CoreDNS make of them."""

from __future__ import annotations

from api.core.v1beta1.shoot import Shoot
from api.defaulting.shoot import DEFAULT_MAX_PODS
from api.labels import parse_network
from api.validation.field import Faults, Path
from api.validation.nodes import effective_kubelet

_PATH = Path("spec") / "networking"
_MASK = Path("spec") / "kubernetes" / "kubeControllerManager" / "nodeCIDRMaskSize"
_WORKERS = Path("spec") / "provider" / "workers"

_SMALLEST_SERVICES = 28
"""Longest prefix of the services' network: CoreDNS has the tenth address."""
_LARGEST_SERVICES = 12
"""Shortest prefix: kube-apiserver does not start with more than 20 bits of addresses."""
_MOST_BITS_OF_NODES = 16
"""kube-controller-manager does not start if it can cut the pods' network into more than 2 to the power of 16 pieces."""


def check_sizes(shoot: Shoot, faults: Faults) -> None:
    networking = shoot.spec.networking
    manager = shoot.spec.kubernetes.kube_controller_manager
    mask = manager.node_cidr_mask_size if manager else None
    if mask is not None and networking and networking.ip_families == ["IPv6"]:
        faults.forbidden(_MASK, "it is the size of a network of IPv4: with IPv6 alone, each node gets a /64")
        return
    services = parse_network(networking.services if networking else None)
    if services is not None and services.version == 4:
        if services.prefixlen > _SMALLEST_SERVICES:
            detail = f"must have a prefix of at most /{_SMALLEST_SERVICES}: the cluster's DNS has the tenth address"
            faults.invalid(_PATH / "services", str(services), detail)
        if services.prefixlen < _LARGEST_SERVICES:
            detail = f"must have a prefix of at least /{_LARGEST_SERVICES}: kube-apiserver takes no larger network"
            faults.invalid(_PATH / "services", str(services), detail)
    pools = shoot.spec.provider.workers or []
    if not pools or mask is None:
        return
    for index, pool in enumerate(pools):
        kubelet = effective_kubelet(pool, shoot)
        most = (kubelet and kubelet.max_pods) or DEFAULT_MAX_PODS
        if most > 2 ** (32 - mask) - 2:
            detail = f"{mask} leaves each node {2 ** (32 - mask)} addresses, too few for {most} pods of {pool.name}"
            faults.invalid(_MASK, mask, f"{detail} (spec.provider.workers[{index}])")
    pods = parse_network(networking.pods if networking else None)
    if pods is None or pods.version != 4:
        return
    if pods.prefixlen > mask:
        detail = f"is smaller than the share of one node (nodeCIDRMaskSize {mask})"
        faults.invalid(_PATH / "pods", str(pods), detail)
    elif mask - pods.prefixlen > _MOST_BITS_OF_NODES:
        detail = f"must have a prefix of at least /{mask - _MOST_BITS_OF_NODES} with nodeCIDRMaskSize {mask}"
        faults.invalid(_PATH / "pods", str(pods), detail)
    elif (wanted := sum(pool.maximum for pool in pools)) > (room := 2 ** (mask - pods.prefixlen)):
        detail = f"the pools may have {wanted} nodes, but spec.networking.pods {pods} has room for {room}"
        faults.forbidden(_WORKERS, f"{detail} (nodeCIDRMaskSize {mask})")

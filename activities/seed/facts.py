"""Values that activities derive from the Shoot in the Cluster object: names, networks, numbers of replicas."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from activities.clusters import ClusterView
from activities.errors import transient
from api import constants
from api.contracts.operations import MIGRATIONS
from api.decisions import dual_stack
from api.decisions.seeds import ingress_domain_of
from api.errors import ErrorCode
from api.images import OWN_VERSION
from api.names import internal_api_domain

_FLEETING_ANNOTATIONS = frozenset(
    {
        constants.OPERATION,
        constants.MAINTENANCE_OPERATION,
        constants.CHANGED_BY,
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
_FLEETING_LABELS = frozenset({constants.SHOOT_STATUS})
_SETTLED_STATUS = ("credentials", "networking", "clusterIdentity", "advertisedAddresses", "technicalID", "uid")


class ApiNames:
    """Host names of a shoot's API server."""

    def __init__(self, internal: str, external: str, domain: str, issuer: str) -> None:
        self.internal = internal
        self.external = external
        """Empty if the Shoot has no domain."""
        self.shown = external or internal
        """Host name by which users reach the API server."""
        self.domain = domain
        self.default_issuer = f"https://{internal}"
        self.issuer = issuer or self.default_issuer
        """URL in service account tokens."""

    @classmethod
    def of(cls, view: ClusterView) -> "ApiNames":
        internal = internal_api_domain(view.technical_id, view.seed["spec"]["dns"]["internal"]["domain"])
        domain = (view.shoot["spec"].get("dns") or {}).get("domain") or ""
        settings = view.shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}
        issuer = (settings.get("serviceAccountConfig") or {}).get("issuer") or ""
        return cls(internal, f"api.{domain}" if domain else "", domain, issuer)


class Networks:
    """CIDRs of a shoot, in the order of its IP families.

    While a Shoot changes from IPv4 to both families, its nodes have networks of both before its other components do.
    """

    def __init__(
        self,
        pods: tuple[str, ...],
        services: tuple[str, ...],
        nodes: tuple[str, ...],
        pods_of_new_nodes: tuple[str, ...] = (),
    ) -> None:
        self.pods = pods
        self.services = services
        self.nodes = nodes
        """Empty if only the status of the Infrastructure has them."""
        self.pods_of_new_nodes = pods_of_new_nodes or pods
        """Networks from which nodes get theirs when they join."""

    @classmethod
    def of(cls, view: ClusterView) -> "Networks":
        """Raises a transient error if the Shoot has IPv6 alone and its Infrastructure has not reported the networks."""
        wanted = view.shoot["spec"].get("networking") or {}
        status = (view.shoot.get("status") or {}).get("networking") or {}

        def of(kind: str, families: Sequence[str]) -> tuple[str, ...]:
            # The status also has the second IP family of a dual-stack shoot.
            known = status.get(kind) or ([wanted[kind]] if wanted.get(kind) else ())
            return dual_stack.of_families(known, families)

        used, every = dual_stack.in_use(view.shoot), dual_stack.families(view.shoot)
        if dual_stack.is_ipv6_alone(view.shoot) and not (of("pods", used) and of("services", used)):
            raise transient(
                ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
                f"status.networking of the Shoot of {view.technical_id} names no networks of pods and Services: "
                "the Infrastructure must report those of IPv6 first",
            )
        return cls(of("pods", used), of("services", used), of("nodes", every), of("pods", every))


def failure_tolerance(view: ClusterView) -> str | None:
    """Failure that the control plane must survive: the loss of a ``node`` or of a ``zone``; None if there is none."""
    available = (view.shoot["spec"].get("controlPlane") or {}).get("highAvailability") or {}
    return (available.get("failureTolerance") or {}).get("type")


def vpn_servers(view: ClusterView) -> int:
    """Number of VPN servers: two if the control plane must survive a failure, else one. An annotation overrides it.

    Source: Gardener's helper of the Shoot and its botanist; a value that is no boolean changes nothing.
    """
    annotation = (view.shoot["metadata"].get("annotations") or {}).get(constants.HIGHLY_AVAILABLE_VPN, "")
    wanted = {"true": True, "false": False}.get(annotation.lower(), failure_tolerance(view) is not None)
    return 2 if wanted else 1


def replicas_awake(view: ClusterView) -> int:
    """Replicas of a component of a control plane that is not hibernated: two if it must survive a failure, else one."""
    return 2 if failure_tolerance(view) else 1


def taints_of_system_pools(pools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Taints of the pools on which system components may run; a taint that only prefers other nodes keeps none away."""
    return [
        taint
        for pool in pools
        if (pool.get("systemComponents") or {}).get("allow", True)
        for taint in pool.get("taints") or ()
        if taint["effect"] != "PreferNoSchedule"
    ]


def zones_of_system_pools(pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Zones of the pools on which system components may run."""
    system = (pool for pool in pools if (pool.get("systemComponents") or {}).get("allow", True))
    return sorted({zone for pool in system for zone in pool.get("zones") or ()})


def may_grow(shoot: Mapping[str, Any]) -> bool:
    """Whether a pool of the Shoot has a maximum above its minimum: the cluster autoscaler decides its size."""
    return any(pool["maximum"] > pool["minimum"] for pool in shoot["spec"]["provider"].get("workers") or ())


def settled(shoot: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a Shoot that describe the wanted cluster, without the fields that operations and checks write."""
    metadata, status = shoot["metadata"], shoot.get("status") or {}
    last = status.get("lastOperation") or {}
    return {
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "generation": metadata.get("generation"),
        "deletion": metadata.get("deletionTimestamp"),
        "annotations": _without(metadata.get("annotations"), _FLEETING_ANNOTATIONS),
        "labels": _without(metadata.get("labels"), _FLEETING_LABELS),
        "spec": shoot.get("spec"),
        "status": {key: status[key] for key in _SETTLED_STATUS if key in status},
        # Extensions ignore a Shoot whose last operation is Failed, and treat a Shoot that moves differently.
        "given up": last.get("state") == "Failed",
        "moving": last.get("type") if last.get("type") in (*MIGRATIONS, "Restore") else None,
    }


def inputs_digest(view: ClusterView, *others: str) -> str:
    """Digest of everything in the Cluster object that an extension's controller may read in addition to its own object.

    An object that was reconciled with the same inputs needs no reconciliation. Another version of this code changes
    the digest in any case. ``others``: versions of inputs that are not in the Cluster object, such as credentials.
    """
    shoot = settled(view.shoot)
    profile, seed = (view.cluster["spec"].get(part) or {} for part in ("cloudProfile", "seed"))
    seen = [
        OWN_VERSION,
        shoot["spec"],
        _without(shoot["annotations"], frozenset({constants.SHOOT_TASKS})),
        shoot["labels"],
        shoot["status"].get("credentials"),
        profile.get("spec"),
        seed.get("spec"),
        others,
    ]
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]


def _without(mapping: Mapping[str, str] | None, names: frozenset[str]) -> dict[str, str]:
    return {key: value for key, value in (mapping or {}).items() if key not in names}


def is_observed(view: ClusterView) -> bool:
    """Whether the Shoot has a Prometheus: its purpose is not ``testing``, and its seed has an ingress domain."""
    return view.shoot["spec"].get("purpose") != constants.PURPOSE_TESTING and bool(ingress_domain_of(view.seed))

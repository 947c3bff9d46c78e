"""What activities read out of a pinned Shoot: names, networks, and how many of each."""

from activities.kube.clusters import ClusterView
from api.names import internal_api_domain


class ApiNames:
    """Host names of a shoot's API server."""

    def __init__(self, internal: str, external: str, domain: str, issuer: str) -> None:
        self.internal = internal
        self.external = external
        """Empty if the Shoot has no domain."""
        self.domain = domain
        self.issuer = issuer
        """URL in service account tokens."""

    @classmethod
    def of(cls, view: ClusterView) -> "ApiNames":
        internal = internal_api_domain(view.technical_id, view.seed["spec"]["dns"]["internal"]["domain"])
        domain = (view.shoot["spec"].get("dns") or {}).get("domain") or ""
        settings = view.shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}
        issuer = (settings.get("serviceAccountConfig") or {}).get("issuer") or f"https://{internal}"
        return cls(internal, f"api.{domain}" if domain else "", domain, issuer)


class Networks:
    """CIDRs of a shoot, first family first."""

    def __init__(self, pods: tuple[str, ...], services: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        self.pods = pods
        self.services = services
        self.nodes = nodes
        """Empty if only the Infrastructure knows."""

    @classmethod
    def of(cls, view: ClusterView) -> "Networks":
        wanted = view.shoot["spec"].get("networking") or {}
        status = (view.shoot.get("status") or {}).get("networking") or {}

        def of(kind: str) -> tuple[str, ...]:
            # The status has the second family of a dual-stack shoot, too.
            return tuple(status.get(kind) or ([wanted[kind]] if wanted.get(kind) else ()))

        return cls(of("pods"), of("services"), of("nodes"))


def highly_available(view: ClusterView) -> bool:
    """Whether the owner wants a control plane that survives the loss of a node or zone."""
    return bool((view.shoot["spec"].get("controlPlane") or {}).get("highAvailability"))

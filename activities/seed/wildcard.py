"""The seed's certificate for names below its ingress domain, and the host name that an API server has with it.

Source: spec/credentials.md 8, spec/extensions.md 6.3.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from activities.clusters import Clusters, ClusterView
from api import resources
from api.decisions import wildcard_certificates
from api.decisions.seeds import ingress_domain_of
from api.decisions.wildcard_certificates import WildcardCertificate
from api.names import ingress_host, project_and_shoot, seed_namespace

_PREFIX = "api"


@dataclass(frozen=True)
class Wildcard:
    """Host name of an API server in the seed's ingress domain; empty without a certificate for it."""

    host: str = ""
    certificate: WildcardCertificate | None = None
    note: str = ""
    """Faults of Secrets that are not used, for the operator."""


async def wildcard_of(clusters: Clusters, view: ClusterView) -> Wildcard:
    """The host name and its certificate.

    A Shoot with an ExposureClass has none: names in the ingress domain lead to the seed's own gateway, which does not
    serve that Shoot.
    """
    domain = ingress_domain_of(view.seed)
    if not domain or view.shoot["spec"].get("exposureClassName"):
        return Wildcard()
    namespace = seed_namespace(clusters.seed_name)
    found = await clusters.garden.list(resources.SECRET, namespace, labels=wildcard_certificates.SELECTOR)
    certificate, faults = wildcard_certificates.choose(found, domain, datetime.now(UTC))
    host = ingress_host(_PREFIX, *project_and_shoot(view.technical_id), domain) if certificate else ""
    return Wildcard(host, certificate, "; ".join(faults))

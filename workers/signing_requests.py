"""CertificateSigningRequests, as those read and answer them who approve."""

import base64
import logging
import warnings
from dataclasses import dataclass

from activities.kube.client import KubeClient, Object, WatchEvent
from activities.kube.errors import NotFound
from api.resources import CERTIFICATE_SIGNING_REQUEST

_log = logging.getLogger(__name__)

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"


@dataclass(frozen=True)
class Request:
    """What a certificate signing request asks for, and for whom."""

    common_name: str
    organizations: tuple[str, ...]
    dns_names: frozenset[str]
    ip_addresses: frozenset[str]


@dataclass(frozen=True)
class Verdict:
    approved: bool
    why: str
    may_pass: bool = False
    """A refusal that a later look may not repeat, because an object is still to come."""


def parse_request(pem_base64: str) -> Request:
    """Subject and SANs of a PKCS #10 request as an object carries it. Raises ValueError."""
    # Heavy, and nodes join seldom.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    csr = x509.load_pem_x509_csr(base64.b64decode(pem_base64))
    with warnings.catch_warnings():
        # Names of machines make common names longer than the 64 characters of X.520.
        warnings.simplefilter("ignore")
        subject = csr.subject
    dns: frozenset[str] = frozenset()
    ips: frozenset[str] = frozenset()
    try:
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = frozenset(names.get_values_for_type(x509.DNSName))
        ips = frozenset(str(address) for address in names.get_values_for_type(x509.IPAddress))
    except x509.ExtensionNotFound:
        pass  # client certificates have none
    common = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    organizations = tuple(str(a.value) for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    return Request(common[0] if common else "", organizations, dns, ips)


def is_undecided(event: WatchEvent) -> bool:
    """Whether an event is about a request that nobody has answered yet."""
    return event.type != "DELETED" and not decided(event.object)


def decided(csr: Object) -> bool:
    status = csr.get("status") or {}
    return bool(status.get("certificate")) or any(
        condition["type"] in ("Approved", "Denied") for condition in status.get("conditions") or ()
    )


async def decide(client: KubeClient, csr: Object, verdict: Verdict) -> None:
    """Approve or deny. Raises Conflict if somebody else was faster."""
    name = csr["metadata"]["name"]
    _log.info("%s CSR %s: %s", "approving" if verdict.approved else "denying", name, verdict.why)
    condition = {
        "type": "Approved" if verdict.approved else "Denied",
        "status": "True",
        "reason": "RequestApproved" if verdict.approved else "RequestDenied",
        "message": verdict.why,
    }
    conditions = [*((csr.get("status") or {}).get("conditions") or ()), condition]
    patch = {
        "metadata": {"resourceVersion": csr["metadata"]["resourceVersion"]},
        "status": {"conditions": conditions},
    }
    try:
        await client.patch(CERTIFICATE_SIGNING_REQUEST, name, None, patch, subresource="approval")
    except NotFound:
        return

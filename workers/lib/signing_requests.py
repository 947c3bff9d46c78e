"""Read CertificateSigningRequests strictly, and approve or deny them.

Both approvers decide on the result of ``parse_request``. It accepts only one form of request, because the signer issues
what Go parses from a request, and Go and Python differ: of two common names Go takes the last one, Python lists both.
"""

import base64
import logging
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api.constants import NODE_AGENT_USER_PREFIX, NODE_AGENTS_GROUP, SEED_USER_PREFIX, SEEDS_GROUP
from api.resources import CERTIFICATE_SIGNING_REQUEST
from kube.client import KubeClient, Object, WatchEvent
from kube.errors import NotFound

if TYPE_CHECKING:
    from cryptography import x509

_log = logging.getLogger(__name__)

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"

CLIENT_AUTH = "client auth"
SERVER_AUTH = "server auth"
_OF_THE_KEY = frozenset({"digital signature", "key encipherment"})

_EXTENSION_REQUEST = "1.2.840.113549.1.9.14"
"""PKCS #9 extensionRequest."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE REQUEST-----\s([A-Za-z0-9+/=\s]+)-----END CERTIFICATE REQUEST-----\s*")


@dataclass(frozen=True)
class Request:
    """Content of a well-formed certificate signing request."""

    common_name: str
    organization: str
    usages: frozenset[str] = frozenset()
    dns_names: frozenset[str] = frozenset()
    ip_addresses: frozenset[str] = frozenset()

    def wrong_usages(self, purpose: str) -> str:
        """Reason to deny the request because of its usages; empty if they are for ``purpose`` only."""
        if purpose in self.usages and self.usages <= _OF_THE_KEY | {purpose}:
            return ""
        return f"usages must be {purpose}, and beside it no others than {' and '.join(sorted(_OF_THE_KEY))}"

    @property
    def has_alternative_names(self) -> bool:
        return bool(self.dns_names or self.ip_addresses)


class Malformed(ValueError):
    """A request that does not have the accepted form; the text says why."""

    def __init__(self, why: str, names: frozenset[str] | None = None) -> None:
        """``names``: all values of the subject; None if the subject cannot be read."""
        super().__init__(why)
        self.names = names


@dataclass(frozen=True)
class Verdict:
    approved: bool
    why: str
    may_pass: bool = False
    """Set on a refusal that a later check may not repeat, because an object does not exist yet."""


def parse_request(spec: Mapping[str, Any]) -> Request:
    """Read ``spec`` of a CertificateSigningRequest.

    The subject must have one common name and one organization, each in a part of its own and in printable ASCII. The
    only extension allowed is subject alternative names, with DNS names and IP addresses. The signature must be made
    with the key in the request.

    Raises Malformed for all other requests.
    """
    # Imported here: the module is large, and nodes join rarely.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509.oid import NameOID

    try:
        csr = _load(spec["request"])
        with warnings.catch_warnings():
            # Names of machines make common names longer than the 64 characters of X.520.
            warnings.simplefilter("ignore")
            parts = [[(each.oid, _text(each.value)) for each in part] for part in csr.subject.rdns]
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
        raise Malformed(f"the request cannot be read: {type(error).__name__}") from None
    names = frozenset(value for part in parts for _, value in part)
    if any(len(part) != 1 for part in parts):
        raise Malformed("each part of the subject must hold one name", names)
    subject = {oid: value for part in parts for oid, value in part}
    if len(parts) != 2 or set(subject) != {NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME}:
        raise Malformed("the subject must hold one common name, one organization, and nothing else", names)
    if not all(value.isascii() and value.isprintable() for value in names):
        raise Malformed("the subject must be of printable ASCII characters", names)
    try:
        dns, addresses = _alternative_names(csr)
        if not csr.is_signature_valid:
            raise Malformed("the signature is not that of the key in the request", names)
    except Malformed as error:
        raise Malformed(str(error), names) from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Malformed(f"extensions or signature cannot be read: {type(error).__name__}", names) from None
    return Request(
        common_name=subject[NameOID.COMMON_NAME],
        organization=subject[NameOID.ORGANIZATION_NAME],
        usages=frozenset(spec.get("usages") or ()),
        dns_names=dns,
        ip_addresses=addresses,
    )


def _load(encoded: str) -> "x509.CertificateSigningRequest":
    """Parse the one PEM block of a request. Raises ValueError for a second block, and for text outside the block."""
    from cryptography import x509

    found = _PEM.fullmatch(base64.b64decode(encoded, validate=True))
    if found is None:
        raise ValueError("not one PEM block of type CERTIFICATE REQUEST")
    return x509.load_der_x509_csr(base64.b64decode(b"".join(found[1].split()), validate=True))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.hex()


def _alternative_names(csr: "x509.CertificateSigningRequest") -> tuple[frozenset[str], frozenset[str]]:
    """DNS names and IP addresses of the request.

    Raises Malformed for any other extension, for other kinds of names, and for any attribute but Go's list of
    extensions.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtensionOID

    # Python also reads Microsoft's list of extensions, Go does not. With both lists, Go and Python would see different
    # requests.
    if [each.oid.dotted_string for each in csr.attributes] not in ([], [_EXTENSION_REQUEST]):
        raise Malformed("the request must have no attributes but its extensions")
    if [each.oid for each in csr.extensions] not in ([], [ExtensionOID.SUBJECT_ALTERNATIVE_NAME]):
        raise Malformed("the request must have no extensions but subject alternative names")
    dns, addresses = set(), set()
    for extension in csr.extensions:
        assert isinstance(extension.value, x509.SubjectAlternativeName)
        for name in extension.value:
            if isinstance(name, x509.DNSName):
                dns.add(name.value)
            elif isinstance(name, x509.IPAddress):
                addresses.add(str(name.value))
            else:
                raise Malformed("subject alternative names must be DNS names or IP addresses")
    return frozenset(dns), frozenset(addresses)


@dataclass(frozen=True)
class Clients:
    """A kind of clients, and how their certificates name them."""

    kind: str
    owned: str
    """Kind of the object that a client serves. The object's name follows ``prefix`` in the client's common name."""
    prefix: str
    group: str
    name: re.Pattern[str] = re.compile(".+", re.DOTALL)

    def concerned(self, user: str, names: Collection[str] | None) -> bool:
        """Whether a request comes from a client of this kind, or its subject names such a client or their group.

        ``names``: None if the subject cannot be read; it could then hold any name.
        """
        if names is None or user.startswith(self.prefix):
            return True
        return self.group in names or any(name.startswith(self.prefix) for name in names)

    def fault(self, user: str, request: Request) -> str:
        """Reason to deny a certificate of this kind that does not depend on other objects; empty if there is none."""
        owned = request.common_name.removeprefix(self.prefix)
        if owned == request.common_name or not self.name.fullmatch(owned):
            return f"common name in CSR must be {self.prefix}<name of the {self.owned}>"
        if request.organization != self.group:
            return f"organization in CSR must be {self.group}"
        if request.has_alternative_names:
            return f"a {self.kind}'s client certificate must have no DNS names and no IP addresses"
        if wrong := request.wrong_usages(CLIENT_AUTH):
            return wrong
        if user.startswith(self.prefix) and user != request.common_name:
            return f"a {self.kind} gets certificates for its own {self.owned} only"
        return ""


NODE_AGENTS = Clients("node agent", "machine", NODE_AGENT_USER_PREFIX, NODE_AGENTS_GROUP)
GARDENLETS = Clients("gardenlet", "seed", SEED_USER_PREFIX, SEEDS_GROUP, re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"))


def is_undecided(event: WatchEvent) -> bool:
    """Whether an event is about a request that is neither approved nor denied."""
    return event.type != "DELETED" and not decided(event.object)


def decided(csr: Object) -> bool:
    status = csr.get("status") or {}
    return bool(status.get("certificate")) or any(
        condition["type"] in ("Approved", "Denied") for condition in status.get("conditions") or ()
    )


async def decide(client: KubeClient, csr: Object, verdict: Verdict) -> None:
    """Approve or deny. Raises Conflict if another approver was faster."""
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

"""Certificate signing requests as attackers make them."""

import base64
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Part = tuple[x509.ObjectIdentifier, str]
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
KUBELET_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"


def cn(value: str) -> list[Part]:
    """A relative distinguished name that holds one common name."""
    return [(NameOID.COMMON_NAME, value)]


def o(value: str) -> list[Part]:
    """A relative distinguished name that holds one organization."""
    return [(NameOID.ORGANIZATION_NAME, value)]


def pem(
    *subject: Sequence[Part],
    names: Iterable[x509.GeneralName] = (),
    extensions: Iterable[x509.ExtensionType] = (),
    key: ec.EllipticCurvePrivateKey | None = None,
    attributes: Iterable[Part] = (),
) -> bytes:
    """A request with the relative distinguished names ``subject``, in this order."""
    parts = [
        x509.RelativeDistinguishedName([x509.NameAttribute(oid, value, _validate=False) for oid, value in each])
        for each in subject
    ]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(parts))
    if listed := list(names):
        builder = builder.add_extension(x509.SubjectAlternativeName(listed), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    for oid, value in attributes:
        builder = builder.add_attribute(oid, value.encode())
    signed = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def manifest(
    name: str,
    request: bytes,
    *,
    user: str = "",
    groups: Iterable[str] = (),
    signer: str = CLIENT_SIGNER,
    usages: Iterable[str] = ("digital signature", "client auth"),
    age: float = 0,
) -> dict[str, Any]:
    """The CertificateSigningRequest as the API server stores it: it fills in ``username`` and ``groups``."""
    created = datetime.now(UTC) - timedelta(seconds=age)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "creationTimestamp": created.isoformat()},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": signer,
            "usages": list(usages),
            **({"username": user, "groups": list(groups)} if user else {}),
        },
    }

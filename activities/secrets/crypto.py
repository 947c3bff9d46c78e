"""Keys and certificates as PEM. This module does not depend on Kubernetes."""

import base64
import hashlib
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# X.520 allows 64 characters in a common name. Names of users and service accounts may be longer, and API servers accept
# them.
warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)

TEN_YEARS = timedelta(days=3650)
_RENEW_AT_PERCENT = 80
_RENEW_BEFORE_END = timedelta(days=10)
CLOCK_SKEW = timedelta(minutes=1)
"""A certificate is valid from this long before now, for machines whose clocks are behind."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class KeyAlgorithm(StrEnum):
    """Algorithm of private keys. A P-256 key takes a fraction of a millisecond, an RSA key up to seconds of a core."""

    P256 = "P-256"
    RSA2048 = "RSA-2048"
    RSA3072 = "RSA-3072"
    RSA4096 = "RSA-4096"


class Usage(StrEnum):
    """Role of a certificate's owner; decides the certificate's extended key usage."""

    SERVER = "server"
    CLIENT = "client"
    SERVER_AND_CLIENT = "server+client"


_EXTENDED_USAGE = {
    Usage.SERVER: [ExtendedKeyUsageOID.SERVER_AUTH],
    Usage.CLIENT: [ExtendedKeyUsageOID.CLIENT_AUTH],
    Usage.SERVER_AND_CLIENT: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
}


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"


def new_key(algorithm: KeyAlgorithm) -> PrivateKey:
    """A fresh private key."""
    if algorithm is KeyAlgorithm.P256:
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=int(algorithm.removeprefix("RSA-")))


def private_pem(key: PrivateKey) -> bytes:
    """Private key as PKCS #1 or SEC1 PEM: kube-apiserver refuses service account keys in PKCS #8."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def public_pem(key: PrivateKey) -> bytes:
    """Public key as SubjectPublicKeyInfo PEM (``PUBLIC KEY``)."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def key_id(public: bytes) -> str:
    """Key ID of Kubernetes in the headers of tokens: base64url of the SHA-256 of the public key's DER."""
    der = serialization.load_pem_public_key(public).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")


def public_ssh(key: PrivateKey) -> bytes:
    """Public key in the format of a line in ``authorized_keys``."""
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def self_signed_ca(common_name: str, *, algorithm: KeyAlgorithm, now: datetime, validity: timedelta) -> KeyPair:
    """A self-signed certificate authority that may sign leaf certificates only."""
    key = new_key(algorithm)
    subject = _name(common_name, ())
    certificate = (
        _certificate(subject, subject, key, now, validity, authority=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))


def signed(
    common_name: str,
    *,
    ca: KeyPair,
    usage: Usage,
    algorithm: KeyAlgorithm,
    now: datetime,
    validity: timedelta,
    organizations: Sequence[str] = (),
    dns_names: Sequence[str] = (),
    ip_addresses: Sequence[str] = (),
) -> KeyPair:
    """A leaf certificate signed by ``ca``; it never expires after its CA."""
    ca_certificate, ca_key = x509.load_pem_x509_certificate(ca.certificate), load_private(ca.key)
    key = new_key(algorithm)
    builder = _certificate(
        _name(common_name, organizations), ca_certificate.subject, key, now, validity, ends=ca_certificate
    )
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_EXTENDED_USAGE[usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ip_address(address)) for address in ip_addresses]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))


def validity_of(certificate_pem: bytes) -> tuple[datetime, datetime]:
    """Begin and end of the validity, in UTC, of the first certificate in the PEM."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def renewal_due(issued: int, valid_until: int, percent: int = 0) -> int:
    """Unix time from which a certificate is to be renewed. ``percent`` of its validity; 0 stands for 80.

    Source: spec/credentials.md 2.
    """
    return min(
        issued + (valid_until - issued) * (percent or _RENEW_AT_PERCENT) // 100,
        valid_until - int(_RENEW_BEFORE_END.total_seconds()),
    )


def load_private(pem: bytes) -> PrivateKey:
    """Parse a private key. Raises ValueError if the key is neither an RSA nor an EC key."""
    key = serialization.load_pem_private_key(pem, None)
    if isinstance(key, PrivateKey):
        return key
    raise ValueError("private key is neither RSA nor elliptic curve")


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    # Sorted, because the order of organizations has no meaning, and equal inputs should give equal names.
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in sorted(organizations)]
    # Without validation: it would refuse a common name of more than 64 characters.
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name, _validate=False)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    now: datetime,
    validity: timedelta,
    *,
    ends: x509.Certificate | None = None,
    authority: bool = False,
) -> x509.CertificateBuilder:
    not_after = now.astimezone(UTC) + validity
    if ends is not None:
        not_after = min(not_after, ends.not_valid_after_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(secrets.randbits(127) | 1)
        .not_valid_before(now.astimezone(UTC) - CLOCK_SKEW)
        .not_valid_after(not_after)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_encipherment=not authority,
                key_cert_sign=authority,
                crl_sign=authority,
                content_commitment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )

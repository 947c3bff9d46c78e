"""Certificate authorities, certificates and keys of the landscape's own clusters, as files.

P-256 throughout, keys as SEC1 PEM: the API server refuses PKCS #8 as a service account public key.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api import constants
from landscape.files import locked, write_file

_VALIDITY = timedelta(days=365)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key on disk."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a directory; created at the first use, and read later."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.files = KeyPair(directory / f"{name}.crt", directory / f"{name}.key")
        directory.mkdir(parents=True, exist_ok=True)
        if self.files.certificate.exists():
            self._certificate = x509.load_pem_x509_certificate(self.files.certificate.read_bytes())
            key = serialization.load_pem_private_key(self.files.key.read_bytes(), password=None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self._key = key
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            _builder(subject, subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        _write(self.files, self._certificate, self._key)

    @property
    def pem(self) -> str:
        return self.files.certificate.read_text()

    def issue(
        self, file_name: str, common_name: str, organizations: Sequence[str] = (), names: Sequence[str] = ()
    ) -> KeyPair:
        """Issue a certificate for a client; with ``names`` (DNS names or IP addresses) also for a server.

        A certificate that is there is kept, unless it has another subject or other names: a newer version may need
        other groups than the version that made the landscape.
        """
        files = KeyPair(self.directory / f"{file_name}.crt", self.directory / f"{file_name}.key")
        with locked(files.certificate):
            self._issue(files, common_name, organizations, names)
        return files

    def _issue(self, files: KeyPair, common_name: str, organizations: Sequence[str], names: Sequence[str]) -> None:
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        if files.certificate.exists() and _content(files) == (subject, {_general_name(name) for name in names}):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(subject, self._certificate.subject, key.public_key())
        if names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write(files, certificate, key)


class TemporalAuthority:
    """CAs for Temporal and its clients. The subject of a client's certificate defines the client's rights.

    Servers have a CA of their own: services of a Temporal cluster accept any request with each other's certificates,
    so they must not accept certificates of clients.
    """

    def __init__(self, directory: Path) -> None:
        self._clients, self._servers = Authority(directory, "clients"), Authority(directory, "servers")

    @property
    def of_clients(self) -> Path:
        return self._clients.files.certificate

    @property
    def client_authority(self) -> KeyPair:
        """Files of the CA of clients, with which the controller-manager signs for managed seeds."""
        return self._clients.files

    @property
    def of_servers(self) -> Path:
        return self._servers.files.certificate

    def for_server(self, file_name: str, names: Sequence[str]) -> KeyPair:
        return self._servers.issue(file_name, "temporal", [constants.TEMPORAL_SERVERS], names)

    def for_process(self, name: str) -> KeyPair:
        return self._clients.issue(name, f"{constants.TEMPORAL_PROCESS_PREFIX}{name}", [constants.TEMPORAL_PROCESSES])

    def for_gardenlet(self, seed: str) -> KeyPair:
        return self._clients.issue(
            f"gardenlet-{seed}", f"{constants.TEMPORAL_GARDENLET_PREFIX}{seed}", [constants.TEMPORAL_GARDENLETS]
        )

    def for_extension(self, extension: str, seed: str) -> KeyPair:
        name = f"{constants.TEMPORAL_EXTENSION_PREFIX}{extension}:{seed}"
        return self._clients.issue(f"{extension}-{seed}", name, [constants.TEMPORAL_EXTENSIONS])

    def for_person(self, name: str, role: str) -> KeyPair:
        """``role``: ``TEMPORAL_VIEWERS``, ``TEMPORAL_REPAIRERS`` or ``TEMPORAL_ADMINS``."""
        return self._clients.issue(name, name, [role])

    def for_gateway(self, name: str) -> KeyPair:
        """For what passes on the tokens of people, as the Temporal UI does."""
        return self._clients.issue(f"gateway-{name}", name, [constants.TEMPORAL_GATEWAYS])


def service_account_key(directory: Path) -> KeyPair:
    """Key pair that signs service account tokens; its ``certificate`` is the public key without a certificate."""
    files = KeyPair(directory / "service-account.pub", directory / "service-account.key")
    if not files.certificate.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        write_secret(files.key, _key_pem(key))
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        files.certificate.write_bytes(public)
    return files


def kubeconfig(server: str, authority: Authority, client: KeyPair, name: str) -> dict[str, Any]:
    """A kubeconfig with inline certificates and key."""
    user = {"client-certificate-data": _inline(client.certificate), "client-key-data": _inline(client.key)}
    return _kubeconfig(server, authority, user, name)


def token_kubeconfig(server: str, authority: Authority, token: str, name: str) -> dict[str, Any]:
    """A kubeconfig with a bearer token."""
    return _kubeconfig(server, authority, {"token": token}, name)


def _kubeconfig(server: str, authority: Authority, user: dict[str, str], name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {"server": server, "certificate-authority-data": _inline(authority.files.certificate)},
            }
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }


def write_kubeconfig(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, yaml.safe_dump(content, sort_keys=False).encode())
    return path


def write_secret(path: Path, content: bytes) -> None:
    """Write a file with mode 0600, unless it has this content."""
    if path.exists() and path.read_bytes() == content:
        return
    write_file(path, content, mode=0o600)


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + _VALIDITY)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _content(files: KeyPair) -> tuple[x509.Name, set[x509.GeneralName]]:
    """Subject and names of a certificate."""
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return certificate.subject, set()
    return certificate.subject, set(names)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(files: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    # Write the certificate last: if it exists, the key exists, too.
    write_secret(files.key, _key_pem(key))
    write_file(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))

"""Descriptions of a control plane's secrets: one frozen class per kind of secret.

A description is data: the same description gives the same Secret name. ``make`` generates the key
material. Kinds, names and data keys: spec/credentials.md 1.
"""

import base64
import hashlib
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import bcrypt

from activities.secrets import crypto
from activities.secrets.crypto import TEN_YEARS, KeyAlgorithm, KeyPair, Usage

__all__ = [
    "BasicAuth",
    "Certificate",
    "CertificateAuthority",
    "ClientKubeconfig",
    "EncryptionConfiguration",
    "EtcdEncryptionKey",
    "GenericTokenKubeconfig",
    "KeyAlgorithm",
    "SSHKeyPair",
    "SecretConfig",
    "ServiceAccountKey",
    "SignedBy",
    "StaticToken",
    "Usage",
    "VPNTlsAuth",
]

TOKEN_FILE = "/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig/token"
"""File at which pods mount the token that the token requestor renews."""


class SignedBy(StrEnum):
    """The generation of a CA that signs a certificate while an old CA is kept; source: spec/credentials.md 1.2."""

    OLD_WHILE_KEPT = "old"
    """For server certificates: the clients may not trust the new CA yet."""
    CURRENT = "current"
    """For client certificates: the servers trust both CAs."""


@dataclass(frozen=True)
class Making:
    """Inputs of ``make`` besides the description."""

    secret_name: str
    now: datetime
    algorithm: KeyAlgorithm
    ca: KeyPair | None = None


@dataclass(frozen=True)
class SecretConfig(ABC):
    """Base of all descriptions; ``name`` is the stable name, the Secret's own name may carry hashes."""

    name: str

    keep_old: ClassVar[bool] = False
    """True: a rotation keeps the old secret until the rotation is completed. False: the new secret replaces it."""
    persist: ClassVar[bool] = False
    """True: the secret is in the ShootState, because it must stay the same when a control plane moves."""
    plain_name_until_rotated: ClassVar[bool] = False

    @abstractmethod
    def make(self, making: Making) -> dict[str, bytes]:
        """Generate the Secret's data. Called once per Secret, never to compare."""

    def checksum(self) -> str:
        """SHA-256 of the description without the fields that have their default values.

        For this reason, a new optional field does not change the name of every secret, which would replace them all.
        """
        asked = {
            item.name: value
            for item in fields(self)
            if (value := getattr(self, item.name)) not in (None, "", (), 0) and value != item.default
        }
        text = json.dumps({"kind": type(self).__name__, **asked}, sort_keys=True, default=_plain)
        return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise TypeError(f"{type(value).__name__} has no place in a secret's description")


@dataclass(frozen=True)
class CertificateAuthority(SecretConfig):
    """``ca.crt``, ``ca.key``. The subject is the Secret's full name, so that each generation has its own subject."""

    validity: timedelta = TEN_YEARS
    algorithm: KeyAlgorithm | None = None
    hashed_name: bool = False
    """The Secret's name has hashes from the start, as with ``ca-client``. Other CAs get them at the first rotation."""

    keep_old: ClassVar[bool] = True
    persist: ClassVar[bool] = True
    plain_name_until_rotated: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        pair = crypto.self_signed_ca(
            making.secret_name,
            algorithm=self.algorithm or making.algorithm,
            now=making.now,
            validity=self.validity,
        )
        return {"ca.crt": pair.certificate, "ca.key": pair.key}


@dataclass(frozen=True, kw_only=True)
class Certificate(SecretConfig):
    """``tls.crt``, ``tls.key``. Peers that verify the certificate mount the bundle of ``signer``."""

    name: str
    common_name: str
    usage: Usage
    signer: str
    """Stable name of the signing CA."""
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    validity: timedelta = TEN_YEARS
    renew_at_percent: int = 0
    """Percentage of the validity after which the certificate is renewed; 0 stands for 80."""
    signed_by: SignedBy | None = None
    """Default: the old CA, while it is kept, signs server certificates; the current CA signs client certificates."""
    chain: bool = False
    """True: ``tls.crt`` holds the CA's certificate, too."""
    algorithm: KeyAlgorithm | None = None

    def __post_init__(self) -> None:
        for name in ("organizations", "dns_names", "ip_addresses"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))

    @property
    def generation_of_ca(self) -> SignedBy:
        """The generation of the CA that signs: ``signed_by`` if set, else the default for ``usage``."""
        if self.signed_by:
            return self.signed_by
        return SignedBy.CURRENT if self.usage is Usage.CLIENT else SignedBy.OLD_WHILE_KEPT

    def make(self, making: Making) -> dict[str, bytes]:
        pair = self._pair(making)
        return {"tls.crt": pair.certificate, "tls.key": pair.key}

    def _pair(self, making: Making) -> KeyPair:
        assert making.ca is not None  # the manager finds the signer before it calls ``make``
        pair = crypto.signed(
            self.common_name,
            ca=making.ca,
            usage=self.usage,
            algorithm=self.algorithm or making.algorithm,
            now=making.now,
            validity=self.validity,
            organizations=self.organizations,
            dns_names=self.dns_names,
            ip_addresses=self.ip_addresses,
        )
        if self.chain:
            return KeyPair(pair.certificate + making.ca.certificate, pair.key)
        return pair


@dataclass(frozen=True, kw_only=True)
class ShootCertificate(Certificate):
    """Certificate of a component in the shoot. Persisted, because a new one would restart the component at a move."""

    persist: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ClientKubeconfig(Certificate):
    """A client certificate in a ``kubeconfig``; the client verifies the server with ``server_ca`` (PEM bundle)."""

    usage: Usage = Usage.CLIENT
    server: str
    server_ca: bytes = field(repr=False)

    def make(self, making: Making) -> dict[str, bytes]:
        pair = self._pair(making)
        user = {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(pair.key)}
        return {"tls.crt": pair.certificate, "kubeconfig": kubeconfig(self.server, self.server_ca, user)}


@dataclass(frozen=True)
class ServiceAccountKey(SecretConfig):
    """``id_rsa``, ``id_rsa.pub``: components mount files of these names, whatever the algorithm of the key."""

    algorithm: KeyAlgorithm | None = None

    keep_old: ClassVar[bool] = True
    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        key = crypto.new_key(self.algorithm or making.algorithm)
        return {"id_rsa": crypto.private_pem(key), "id_rsa.pub": crypto.public_pem(key)}


@dataclass(frozen=True)
class SSHKeyPair(ServiceAccountKey):
    """``id_rsa``, and ``id_rsa.pub`` in the format of ``authorized_keys``. This kind has no bundle."""

    def make(self, making: Making) -> dict[str, bytes]:
        key = crypto.new_key(self.algorithm or making.algorithm)
        return {"id_rsa": crypto.private_pem(key), "id_rsa.pub": crypto.public_ssh(key)}


@dataclass(frozen=True)
class EtcdEncryptionKey(SecretConfig):
    """``provider``, ``key`` (its name), ``secret`` (32 raw bytes), ``encoding`` (``none``).

    32 bytes suit every provider: ``secretbox`` accepts only 32 bytes, and ``aescbc`` and ``aesgcm`` use AES-256 then.
    """

    provider: str = "aescbc"

    keep_old: ClassVar[bool] = True
    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        return {
            "provider": self.provider.encode(),
            "key": f"key{int(making.now.timestamp())}".encode(),
            "secret": os.urandom(32),
            "encoding": b"none",
        }


_PLAIN: Mapping[str, Any] = {"identity": {}}


@dataclass(frozen=True)
class EncryptionConfiguration(SecretConfig):
    """``encryption-configuration.yaml`` for kube-apiserver, named by its content.

    The first key encrypts; all keys decrypt. ``keys`` are the data of ``EtcdEncryptionKey`` Secrets.
    """

    keys: tuple[Mapping[str, bytes], ...] = field(default=(), repr=False)
    resources: tuple[str, ...] = ("secrets",)
    plain: tuple[str, ...] = ()
    """Resources that the API server no longer encrypts, but that etcd may still hold encrypted."""

    def checksum(self) -> str:
        return hashlib.sha256(self._text()).hexdigest()

    def make(self, making: Making) -> dict[str, bytes]:
        return {"encryption-configuration.yaml": self._text()}

    def _text(self) -> bytes:
        providers: dict[str, list[dict[str, str]]] = {}
        for key in self.keys:
            secret = key["secret"]
            # Older versions of Gardener stored keys base64-encoded, without ``encoding: none``.
            encoded = secret.decode() if key.get("encoding") != b"none" else _b64(secret)
            providers.setdefault(key.get("provider", b"aescbc").decode(), []).append(
                {"name": key["key"].decode(), "secret": encoded}
            )
        encrypting = [{name: {"keys": keys}} for name, keys in providers.items()]
        document = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": [
                {"resources": list(self.resources), "providers": [*encrypting, _PLAIN]},
                *([{"resources": list(self.plain), "providers": [_PLAIN, *encrypting]}] if self.plain else ()),
            ],
        }
        return json.dumps(document, indent=1).encode()  # JSON is YAML


@dataclass(frozen=True)
class StaticToken(SecretConfig):
    """``static_tokens.csv`` with one user, which may read health endpoints."""

    user: str = "health-check"

    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        token = secrets.token_urlsafe(96)  # 128 characters
        return {"static_tokens.csv": f"{token},{self.user},{self.user},\n".encode()}


@dataclass(frozen=True)
class BasicAuth(SecretConfig):
    """``username``, ``password`` (32 characters), and ``auth``: a line of an htpasswd file, with a bcrypt hash."""

    user: str = "admin"

    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        password = secrets.token_urlsafe(24).encode()
        hashed = bcrypt.hashpw(password, bcrypt.gensalt())
        return {"username": self.user.encode(), "password": password, "auth": self.user.encode() + b":" + hashed}


@dataclass(frozen=True)
class VPNTlsAuth(SecretConfig):
    """``vpn.tlsauth``: a static key that both ends of the tunnel share.

    Persisted, unlike Gardener's: the VPN client in the shoot keeps its key when the VPN server moves.
    """

    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        digits = secrets.token_hex(256)
        lines = [digits[start : start + 32] for start in range(0, len(digits), 32)]
        header = "#\n# 2048 bit OpenVPN static key\n#\n-----BEGIN OpenVPN Static key V1-----\n"
        return {"vpn.tlsauth": f"{header}{chr(10).join(lines)}\n-----END OpenVPN Static key V1-----\n".encode()}


@dataclass(frozen=True)
class GenericTokenKubeconfig(SecretConfig):
    """``kubeconfig`` for all pods that connect to the shoot's API server with a token from ``TOKEN_FILE``."""

    server: str = ""
    server_ca: bytes = field(default=b"", repr=False)

    keep_old: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        return {"kubeconfig": kubeconfig(self.server, self.server_ca, {"tokenFile": TOKEN_FILE})}


def kubeconfig(server: str, server_ca: bytes, user: Mapping[str, str]) -> bytes:
    """A kubeconfig with one cluster, one user and one context (as JSON, which is YAML)."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "shoot", "cluster": {"server": server, "certificate-authority-data": _b64(server_ca)}}],
        "users": [{"name": "shoot", "user": dict(user)}],
        "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": "shoot"}}],
        "current-context": "shoot",
    }
    return json.dumps(document, indent=1).encode()


def bundle_of(generations: Sequence[Mapping[str, bytes]], now: datetime) -> dict[str, bytes] | None:
    """A bundle that trusts all of these generations, the current one first; None if this kind has no bundle.

    Expired old CAs are left out. The bundle of service account keys holds the public keys only, because a component
    that verifies tokens need not sign them.
    """
    current = generations[0]
    if "ca.crt" in current and "ca.key" in current:
        old = [data["ca.crt"] for data in generations[1:] if crypto.validity_of(data["ca.crt"])[1] > now]
        return {"bundle.crt": b"".join([current["ca.crt"], *old])}
    if current.get("id_rsa.pub", b"").startswith(b"-----BEGIN"):
        return {"bundle.key": b"".join(data["id_rsa.pub"] for data in generations)}
    return None


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()

"""What secrets of a control plane are made of: one frozen description per kind.

A description is data: the same description gives the same Secret name, and ``make`` draws the key
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
"""Where pods mount the token that the token requestor keeps fresh."""


class SignedBy(StrEnum):
    """Which generation of a CA signs while an old one is kept; source: spec/credentials.md 1.2."""

    OLD_WHILE_KEPT = "old"
    """Servers: their clients may not know the new CA yet."""
    CURRENT = "current"
    """Clients: their servers trust both."""


@dataclass(frozen=True)
class Making:
    """What ``make`` needs beside the description."""

    secret_name: str
    now: datetime
    algorithm: KeyAlgorithm
    ca: KeyPair | None = None


@dataclass(frozen=True)
class SecretConfig(ABC):
    """Base of all descriptions; ``name`` is the stable name, the Secret's may carry hashes."""

    name: str

    keep_old: ClassVar[bool] = False
    """Rotation keeps the predecessor until it is completed; else it is replaced at once."""
    persist: ClassVar[bool] = False
    """Part of the ShootState: cannot be made anew when a control plane moves."""
    plain_name_until_rotated: ClassVar[bool] = False

    @abstractmethod
    def make(self, making: Making) -> dict[str, bytes]:
        """Draw the material; called once per Secret, never to compare."""

    def checksum(self) -> str:
        """SHA-256 of what was asked for; values left at their defaults don't count.

        So an optional field added later does not rename, and thereby replace, every secret.
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
    """``ca.crt``, ``ca.key``; the subject is the Secret's full name, so generations never share one."""

    validity: timedelta = TEN_YEARS
    algorithm: KeyAlgorithm | None = None
    hashed_name: bool = False
    """Carries hashes from the start, as ``ca-client`` does; others get them with their first rotation."""

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
    """``tls.crt``, ``tls.key``. Peers that verify it mount the bundle of ``signer``."""

    name: str
    common_name: str
    usage: Usage
    signer: str
    """Stable name of the CA that signs."""
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    validity: timedelta = TEN_YEARS
    renew_at_percent: int = 0
    """Of the validity; 0 stands for 80."""
    signed_by: SignedBy | None = None
    """Default: servers by the old CA while it is kept, clients by the current one."""
    chain: bool = False
    """``tls.crt`` holds the CA's certificate, too."""
    algorithm: KeyAlgorithm | None = None

    def __post_init__(self) -> None:
        for name in ("organizations", "dns_names", "ip_addresses"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))

    @property
    def generation_of_ca(self) -> SignedBy:
        """Which CA signs, by the rule or as told."""
        if self.signed_by:
            return self.signed_by
        return SignedBy.CURRENT if self.usage is Usage.CLIENT else SignedBy.OLD_WHILE_KEPT

    def make(self, making: Making) -> dict[str, bytes]:
        pair = self._pair(making)
        return {"tls.crt": pair.certificate, "tls.key": pair.key}

    def _pair(self, making: Making) -> KeyPair:
        assert making.ca is not None  # the manager finds the signer before it makes anything
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
    """Of a component that runs in the shoot: another one would restart it when its control plane moves."""

    persist: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ClientKubeconfig(Certificate):
    """A client certificate in a ``kubeconfig``; the server is verified by ``server_ca`` (PEM bundle)."""

    usage: Usage = Usage.CLIENT
    server: str
    server_ca: bytes = field(repr=False)

    def make(self, making: Making) -> dict[str, bytes]:
        pair = self._pair(making)
        user = {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(pair.key)}
        return {"tls.crt": pair.certificate, "kubeconfig": kubeconfig(self.server, self.server_ca, user)}


@dataclass(frozen=True)
class ServiceAccountKey(SecretConfig):
    """``id_rsa``, ``id_rsa.pub``, whatever the algorithm: the names that components mount."""

    algorithm: KeyAlgorithm | None = None

    keep_old: ClassVar[bool] = True
    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        key = crypto.new_key(self.algorithm or making.algorithm)
        return {"id_rsa": crypto.private_pem(key), "id_rsa.pub": crypto.public_pem(key)}


@dataclass(frozen=True)
class SSHKeyPair(ServiceAccountKey):
    """``id_rsa``, ``id_rsa.pub`` in the form of ``authorized_keys``; has no bundle."""

    def make(self, making: Making) -> dict[str, bytes]:
        key = crypto.new_key(self.algorithm or making.algorithm)
        return {"id_rsa": crypto.private_pem(key), "id_rsa.pub": crypto.public_ssh(key)}


@dataclass(frozen=True)
class EtcdEncryptionKey(SecretConfig):
    """``provider``, ``key`` (its name), ``secret`` (32 raw bytes), ``encoding`` (``none``).

    32 bytes suit every provider: ``secretbox`` takes no others, and ``aescbc`` and ``aesgcm`` are AES-256 with them.
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

    The first key encrypts; all decrypt. ``keys`` are the data of ``EtcdEncryptionKey`` Secrets.
    """

    keys: tuple[Mapping[str, bytes], ...] = field(default=(), repr=False)
    resources: tuple[str, ...] = ("secrets",)
    plain: tuple[str, ...] = ()
    """Kinds that are encrypted no more, but may be stored so yet."""

    def checksum(self) -> str:
        return hashlib.sha256(self._text()).hexdigest()

    def make(self, making: Making) -> dict[str, bytes]:
        return {"encryption-configuration.yaml": self._text()}

    def _text(self) -> bytes:
        providers: dict[str, list[dict[str, str]]] = {}
        for key in self.keys:
            secret = key["secret"]
            # Keys of older Gardeners are stored base64-encoded and don't say so.
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
    """``static_tokens.csv`` with one user, who may read health endpoints."""

    user: str = "health-check"

    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        token = secrets.token_urlsafe(96)  # 128 characters
        return {"static_tokens.csv": f"{token},{self.user},{self.user},\n".encode()}


@dataclass(frozen=True)
class BasicAuth(SecretConfig):
    """``username``, ``password`` (32 characters), and ``auth``: a line of an htpasswd file, with bcrypt's hash."""

    user: str = "admin"

    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        password = secrets.token_urlsafe(24).encode()
        hashed = bcrypt.hashpw(password, bcrypt.gensalt())
        return {"username": self.user.encode(), "password": password, "auth": self.user.encode() + b":" + hashed}


@dataclass(frozen=True)
class VPNTlsAuth(SecretConfig):
    """``vpn.tlsauth``: a static key that both ends of the tunnel share.

    Persisted, which Gardener's is not: the end in the shoot goes on when the other one moves.
    """

    persist: ClassVar[bool] = True

    def make(self, making: Making) -> dict[str, bytes]:
        digits = secrets.token_hex(256)
        lines = [digits[start : start + 32] for start in range(0, len(digits), 32)]
        header = "#\n# 2048 bit OpenVPN static key\n#\n-----BEGIN OpenVPN Static key V1-----\n"
        return {"vpn.tlsauth": f"{header}{chr(10).join(lines)}\n-----END OpenVPN Static key V1-----\n".encode()}


@dataclass(frozen=True)
class GenericTokenKubeconfig(SecretConfig):
    """``kubeconfig`` for all pods that speak to the shoot's API server with a token from ``TOKEN_FILE``."""

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
    """What trusts all of these generations, the current one first; None if this kind has no bundle.

    Expired old CAs are left out. Service account keys are bundled by their public halves: who
    verifies tokens need not be able to sign them.
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

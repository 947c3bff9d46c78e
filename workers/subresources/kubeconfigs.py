"""Kubeconfigs of Shoots: bounds, client certificate, record, audit. Source: spec/credentials.md 8."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage
from api import resources
from api.authentication.v1alpha1.kubeconfig_request import (
    DEFAULT_SECONDS,
    MAX_SECONDS,
    MIN_SECONDS,
    AdminKubeconfigRequest,
    KubeconfigRequest,
    KubeconfigRequestSpec,
    KubeconfigRequestStatus,
    ViewerKubeconfigRequest,
)
from api.constants import AUTHENTICATION, CORE
from api.contracts.kubeconfigs import IssuedKubeconfig, issued, noted
from api.names import issued_kubeconfigs
from api.resources import Object, Resource
from api.times import timestamp
from kube.client import KubeClient
from kube.errors import AlreadyExists
from kube.objects import owner_reference
from workers.lib.access import User, may
from workers.lib.runtime import log_context
from workers.subresources.limits import limited
from workers.subresources.refusals import internal, invalid, not_found
from workers.subresources.requesters import check_name

log = logging.getLogger(__name__)

_SHOWN = ("external", "internal", "wildcard-tls-seed-bound", "unmanaged")
_WITHOUT_CA = "wildcard-tls-seed-bound"
"""Address whose certificate comes from a public authority."""
_OF_SHOOT, _OF_USER = 1000, 200
"""Maximum numbers of kubeconfigs of one Shoot that are valid at a time: in all, and with one user's name. A record has
about 250 bytes, and a ConfigMap at most 1 MiB."""


@dataclass(frozen=True)
class Kind:
    """One of the two subresources."""

    subresource: str
    model: type[KubeconfigRequest]
    role: str
    listed: Resource
    """A user who may list these in all namespaces is an operator of the garden. Gardener asks with the API version
    in place of the group and the kind in place of the plural, so only a rule for all resources allows it."""

    @property
    def resource(self) -> Resource:
        return Resource(CORE, "v1beta1", "Shoot", f"shoots/{self.subresource}")


ADMIN = Kind("adminkubeconfig", AdminKubeconfigRequest, "admin", Resource("v1", "", "Secret", "Secret"))
VIEWER = Kind(
    "viewerkubeconfig", ViewerKubeconfigRequest, "viewer", Resource(f"{CORE}/v1beta1", "", "Project", "Project", False)
)


@dataclass(frozen=True)
class Kubeconfigs:
    """Issues kubeconfigs. It keeps nothing in memory: replicas work side by side, and each record is a patch."""

    garden: KubeClient
    max_seconds: Mapping[str, int]
    """Maximum validity by subresource. A longer request is shortened."""

    async def issue(
        self, kind: Kind, namespace: str, name: str, request: KubeconfigRequest, user: User, *, dry_run: bool
    ) -> KubeconfigRequest:
        """The request with its status. With ``dry_run`` everything is checked, and no kubeconfig is made.

        A repeated request issues another kubeconfig with another serial number. Raises Refusal.
        """
        seconds = self._seconds(kind, request.spec.expiration_seconds)
        check_name(user.name)
        shoot = await self.garden.find(resources.SHOOT, name, namespace)
        if shoot is None:
            raise not_found(resources.SHOOT, name)
        addresses = _addresses(kind, shoot)
        (authority, bundle), operator = await asyncio.gather(
            self._authorities(name, namespace), may(self.garden, user, "list", kind.listed)
        )
        answer = request.model_copy(update={"spec": KubeconfigRequestSpec(expiration_seconds=seconds)})
        if dry_run:
            return answer
        now = datetime.now(UTC)
        try:
            pair = crypto.signed(
                f"gardener.cloud:{kind.role}:{user.name}",
                ca=authority,
                usage=Usage.CLIENT,
                algorithm=KeyAlgorithm.P256,
                now=now,
                validity=timedelta(seconds=seconds),
                organizations=[f"gardener.cloud:{'system' if operator else 'project'}:{kind.role}s"],
            )
        except ValueError:
            # "from None": the cause's text must not quote a key.
            raise internal(f"the client CA of Shoot {namespace}/{name} cannot sign: rotate it") from None
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        await self._record(shoot, certificate, now)
        expires = timestamp(certificate.not_valid_after_utc)
        _audit(kind, shoot, user, certificate, expires)
        content = kubeconfig_of(f"{namespace}--{name}", addresses, bundle, pair)
        encoded = base64.b64encode(content.encode()).decode()
        return answer.model_copy(
            update={"status": KubeconfigRequestStatus(kubeconfig=encoded, expiration_timestamp=expires)}
        )

    def _seconds(self, kind: Kind, wanted: int | None) -> int:
        seconds = DEFAULT_SECONDS if wanted is None else wanted
        path, what = "spec.expirationSeconds", f"Invalid value: {seconds}: may not specify a duration"
        if seconds < MIN_SECONDS:
            raise invalid(kind.model.__name__, AUTHENTICATION, "", path, f"{what} less than 10 minutes")
        if seconds > MAX_SECONDS:
            raise invalid(kind.model.__name__, AUTHENTICATION, "", path, f"{what} larger than 2^32 seconds")
        return min(seconds, self.max_seconds[kind.subresource])

    async def _authorities(self, name: str, namespace: str) -> tuple[KeyPair, str]:
        """The client CA, and the bundle by which clients trust the API server. Raises 500 if one is missing."""
        signer, bundle = await asyncio.gather(
            self.garden.find(resources.INTERNAL_SECRET, f"{name}.ca-client", namespace),
            self.garden.find(resources.CONFIG_MAP, f"{name}.ca-cluster", namespace),
        )
        data = (signer or {}).get("data") or {}
        try:
            authority = KeyPair(base64.b64decode(data["ca.crt"]), base64.b64decode(data["ca.key"]))
        except (KeyError, binascii.Error):
            authority = KeyPair(b"", b"")
        trusted = str(((bundle or {}).get("data") or {}).get("ca.crt") or "")
        if not (authority.certificate and authority.key and trusted):
            lacks = f"ConfigMap {name}.ca-cluster" if authority.key else f"InternalSecret {name}.ca-client"
            raise internal(
                f"Shoot {namespace}/{name} has no certificate authority ({lacks}): its control plane is not created "
                "yet, or deleted already; see its lastOperation"
            )
        return authority, trusted

    async def _record(self, shoot: Object, certificate: x509.Certificate, now: datetime) -> None:
        """Record user, issuer and expiration of a kubeconfig.

        Also remove the records of expired kubeconfigs, and entries that are no records: members may write them.

        While a recorded kubeconfig needs the old authority, a rotation of the authorities cannot be completed.
        """
        metadata = shoot["metadata"]
        name, namespace = issued_kubeconfigs(metadata["name"]), metadata["namespace"]
        known = await self.garden.find(resources.CONFIG_MAP, name, namespace)
        before = issued(known)
        entry = IssuedKubeconfig(
            user=_common_name(certificate.subject),
            issuer=_common_name(certificate.issuer),
            expires=certificate.not_valid_after_utc.isoformat(),
        )
        valid = [each for each in before.values() if not each.expired(now)]
        of_user = sum(each.user == entry.user for each in valid)
        if len(valid) >= _OF_SHOOT or of_user >= _OF_USER:
            raise limited(
                "valid-kubeconfigs",
                f"Shoot {namespace}/{metadata['name']} has {len(valid)} valid kubeconfigs, {of_user} of them yours; it "
                f"may have {_OF_SHOOT}, and {_OF_USER} of one user: wait until some expire, and ask for shorter ones",
            )
        useless = set((known or {}).get("data") or {}) - before.keys()
        useless |= {serial for serial, each in before.items() if each.expired(now)}
        data: dict[str, str | None] = dict.fromkeys(useless)
        data[f"{certificate.serial_number:032x}"] = noted(entry)
        if known is None:
            owner = owner_reference(resources.SHOOT, metadata["name"], metadata["uid"], controller=False)
            meta = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
            with contextlib.suppress(AlreadyExists):
                await self.garden.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        await self.garden.patch(resources.CONFIG_MAP, name, namespace, {"data": data})


def kubeconfig_of(title: str, addresses: list[tuple[str, str]], bundle: str, pair: KeyPair) -> str:
    """Kubeconfig, as JSON, with a cluster and a context for each address; the first is current."""
    names = [f"{title}-{name}" for name, _ in addresses]

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    def cluster(name: str, url: str) -> Object:
        trust = {} if name == _WITHOUT_CA else {"certificate-authority-data": encoded(bundle.encode())}
        return {"name": f"{title}-{name}", "cluster": {"server": url, **trust}}

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": names[0],
            "clusters": [cluster(*each) for each in addresses],
            "contexts": [{"name": name, "context": {"cluster": name, "user": names[0]}} for name in names],
            "users": [
                {
                    "name": names[0],
                    "user": {
                        "client-certificate-data": encoded(pair.certificate),
                        "client-key-data": encoded(pair.key),
                    },
                }
            ],
        }
    )


def _addresses(kind: Kind, shoot: Object) -> list[tuple[str, str]]:
    advertised = (shoot.get("status") or {}).get("advertisedAddresses") or []
    found = [(each["name"], each["url"]) for each in advertised if each["name"] in _SHOWN]
    if not found:
        name = shoot["metadata"]["name"]
        raise invalid(
            kind.model.__name__,
            AUTHENTICATION,
            name,
            "status.status",
            f"no kube-apiserver advertised addresses in Shoot {shoot['metadata']['namespace']}/{name} .status."
            "advertisedAddresses: its control plane is not created yet; see its lastOperation",
        )
    return found


def _audit(kind: Kind, shoot: Object, user: User, certificate: x509.Certificate, expires: str) -> None:
    """One line in the log, with its facts as fields. It names the certificate by its serial number."""
    metadata = shoot["metadata"]
    facts: dict[str, Any] = {
        "audit": "kubeconfig issued",
        "subresource": f"shoots/{kind.subresource}",
        "shoot": f"{metadata['namespace']}/{metadata['name']}",
        "shootUid": metadata["uid"],
        "user": user.name,
        "group": str(certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value),
        "serial": f"{certificate.serial_number:032x}",
        "issuer": _common_name(certificate.issuer),
        "expires": expires,
    }
    token = log_context.set({**log_context.get({}), **facts})
    try:
        log.info("user %s got a kubeconfig of Shoot %s until %s", user.name, facts["shoot"], expires)
    finally:
        log_context.reset(token)


def _common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

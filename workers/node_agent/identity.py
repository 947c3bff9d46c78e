"""The node agent's client certificate: waits for the certificate requested at first boot, and renews it in time."""

import asyncio
import base64
import logging
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from api.resources import CERTIFICATE_SIGNING_REQUEST
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import ApiError, NotFound
from kube.kubeconfig import Endpoint
from workers.node_agent.init import Credentials, signing_request, write_private
from workers.node_agent.system import System

log = logging.getLogger(__name__)

_UNDECIDED_SECONDS = 60.0
"""How long a request may stay undecided before another request is created."""
_RENEW_AT = 0.8
"""Fraction of its validity after which a certificate is renewed."""
_AGAIN_SECONDS = 5.0
KUBELET_CLIENT = "/var/lib/kubelet/pki/kubelet-client-current.pem"
KUBELET_SERVING = "/var/lib/kubelet/pki/kubelet-server-current.pem"


class Denied(Exception):
    """The request was refused, has failed, or is gone."""


class Identity:
    """Certificate and key of this machine's node agent."""

    def __init__(self, server: str, ca_file: Path, state_directory: Path) -> None:
        self._ca_file = ca_file
        self._endpoint = Endpoint(server=server, ca=ca_file.read_text())
        self._credentials = Credentials(state_directory)
        self.machine = (state_directory / "machine-name").read_text().strip()

    async def client(self) -> KubeClient:
        """A client with the certificate; waits until there is a certificate."""
        while not self._credentials.certificate.exists():
            try:
                await self._bootstrap()
            except (ApiError, Denied, TimeoutError) as error:
                log.warning("getting a certificate for machine %s: %s", self.machine, error)
                await asyncio.sleep(_AGAIN_SECONDS)
        return KubeClient(self._own_endpoint())

    async def keep_fresh(self, client: KubeClient) -> None:
        """Renew the certificate whenever 80 % of its validity are over."""
        while True:
            await asyncio.sleep(max(0.0, (self._renew_at() - datetime.now(UTC)).total_seconds()))
            try:
                await self.renew(client)
            except (ApiError, Denied, TimeoutError) as error:
                log.warning("renewing the certificate of machine %s: %s", self.machine, error)
                await asyncio.sleep(60 * random.uniform(1, 2))

    async def renew(self, client: KubeClient) -> None:
        """Get another certificate now, and use it and the CA that the machine has now.

        Raises ApiError, Denied or TimeoutError.
        """
        key, body = signing_request(self.machine)
        await client.create(body)
        await self._take(client, body["metadata"]["name"], key)
        self._endpoint = replace(self._endpoint, ca=self._ca_file.read_text())
        client.reconfigure(self._own_endpoint())

    async def renew_kubelet(self, system: System, node_name: str) -> None:
        """Give the kubelet another client certificate, by its own right to renew it, and let it request a serving one.

        The kubelet uses them from its next start. A run that was interrupted is repeated as a whole.

        Raises ApiError, Denied or TimeoutError.
        """
        link = system.path(KUBELET_CLIENT)
        now = link.read_bytes()
        endpoint = replace(self._endpoint, ca=self._ca_file.read_text(), certificate=now, key=now)
        key, body = signing_request(
            node_name,
            user_prefix="system:node:",
            group="system:nodes",
            signer="kubernetes.io/kube-apiserver-client-kubelet",
            name_prefix="node-csr-",
        )
        async with KubeClient(endpoint) as kubelet:
            await kubelet.create(body)
            certificate = await _issued(kubelet, body["metadata"]["name"])
        # The kubelet stores both in one file, too, and refers to it by a link.
        write_private(link.with_name("kubelet-client-renewed.pem"), certificate + key)
        new = link.with_name(".kubelet-client-current.new")
        new.unlink(missing_ok=True)
        new.symlink_to("kubelet-client-renewed.pem")
        new.replace(link)
        system.path(KUBELET_SERVING).unlink(missing_ok=True)

    async def _bootstrap(self) -> None:
        credentials = self._credentials
        token = credentials.bootstrap_token.read_text().strip()
        async with KubeClient(replace(self._endpoint, token=token)) as client:
            if not credentials.pending.exists():
                key, body = signing_request(self.machine)
                write_private(credentials.pending_key, key)
                await client.create(body)
                write_private(credentials.pending, body["metadata"]["name"].encode())
            name = credentials.pending.read_text()
            try:
                await self._take(client, name, credentials.pending_key.read_bytes())
            finally:
                # Whether the request was approved, was denied or is gone: the next attempt creates a new one.
                credentials.pending.unlink(missing_ok=True)
                credentials.pending_key.unlink(missing_ok=True)

    async def _take(self, client: KubeClient, name: str, key: bytes) -> None:
        certificate = await _issued(client, name)
        write_private(self._credentials.key, key)
        write_private(self._credentials.certificate, certificate)
        log.info("certificate of machine %s issued by request %s", self.machine, name)

    def _own_endpoint(self) -> Endpoint:
        credentials = self._credentials
        return replace(
            self._endpoint, certificate=credentials.certificate.read_bytes(), key=credentials.key.read_bytes()
        )

    def _renew_at(self) -> datetime:
        from cryptography import x509

        certificate = x509.load_pem_x509_certificate(self._credentials.certificate.read_bytes())
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return renew_at(begin, end)


def issuer_of(path: Path) -> str:
    """Common name of the issuer of the certificate in a PEM file; empty if there is no certificate (yet)."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return ""
    names = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def renew_at(begin: datetime, end: datetime) -> datetime:
    """Time at which 80 % of the validity are over."""
    return begin + (end - begin) * _RENEW_AT


async def _issued(client: KubeClient, name: str) -> bytes:
    """The certificate of a request; waits until it is issued.

    Raises Denied, or TimeoutError if the request is not decided in time.
    """
    # Read first: without the request there is nothing to watch.
    try:
        if certificate := _certificate(await client.get(CERTIFICATE_SIGNING_REQUEST, name)):
            return certificate
    except NotFound:
        raise Denied(f"request {name} is gone") from None
    async with Cache(client, CERTIFICATE_SIGNING_REQUEST, fields=f"metadata.name={name}") as cache:
        return await cache.wait_for(name, None, _certificate, _UNDECIDED_SECONDS)


def _certificate(request: Object | None) -> bytes | None:
    if request is None:
        return None
    status = request.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] in ("Denied", "Failed"):
            name = request["metadata"]["name"]
            raise Denied(f"request {name} was {condition['type'].lower()}: {condition.get('message', '')}")
    encoded = status.get("certificate")
    return base64.b64decode(encoded) if encoded else None

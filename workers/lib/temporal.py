"""The connection of our processes to Temporal: its configuration, and its client.

Temporal's client holds the bytes of its certificate. When the certificate's files change, a new connection is made from
them, and it replaces the connection of the same client. So all parts of a process that hold the client use the new
certificate.
"""

import asyncio
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from google.protobuf.message import Message
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import ConnectConfig, GrpcCompression, ServiceClient, TLSConfig
from temporalio.worker import Worker

from activities.secrets.crypto import KeyPair
from api.contracts.operations import GARDEN_QUEUE
from api.images import OWN_VERSION
from api.model import ApiModel
from workers.lib.codec import data_converter
from workers.lib.serving import FILE_POLL, Unusable, check_pair, follow_files, read_files

_OTHER_REASONS = ("tcp connect error", "dns error", "code: Unavailable", "code: PermissionDenied")
"""Parts of the SDK's messages for other errors: the server cannot be reached, is not ready, or knows the client and
refuses its request."""


class VersioningConfig(ApiModel):
    """See ``workers.controller_manager.versioning``."""

    enabled: bool = False
    """Off: each worker runs every flow, which fits where a new process replaces the old one. On: a worker runs no flow
    until its build has been made current, see ``gardener worker promote``."""
    build_id: str = OWN_VERSION


class TemporalTLS(ApiModel):
    """Files in PEM. Changed files are used without a restart."""

    ca_file: Path
    """Authorities of which one must have signed the server's certificate."""
    certificate_file: Path
    """The client certificate; its subject says what the client may do."""
    private_key_file: Path
    server_name: str | None = None
    """A name in the server's certificate, to be set if the certificate does not contain the host of the address."""

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.certificate_file, self.private_key_file, self.ca_file


class TemporalServer(ApiModel):
    """Address of Temporal, and the certificate with which a process connects to it."""

    address: str
    namespace: str = "default"
    tls: TemporalTLS | None = None
    """None: no TLS, for a Temporal that only processes of this machine reach."""


class TemporalConnection(TemporalServer):
    """The connection of a worker, and the key of the payload codec."""

    codec_key_file: Path
    """Key file: root keys on the garden side, elsewhere the derived keys of this process (``gardener keys derive``)."""
    shared_key_file: Path | None = None
    """Key file that all processes had before. While it is set, payloads encrypted with its keys are accepted, too."""
    journal_directory: Path | None = None
    """Directory on a local disk, of this process alone, that the process finds again when it is started again after a
    kill. See ``workers.lib.journal``. None: activities of a killed process continue after their heartbeat timeout."""
    versioning: VersioningConfig = VersioningConfig()
    """Versioning of processes that run workflows."""


class TemporalConnectionError(RuntimeError):
    """There is no connection to Temporal. The text names address and files, and says what would help."""


class RenewableService(ServiceClient):
    """Connection of a client that is replaced by a new connection when the certificate is renewed."""

    def __init__(self, server: TemporalServer, files: tuple[bytes, ...], first: ServiceClient) -> None:
        super().__init__(first.config)
        self.server = server
        self.files = files
        """Contents of ``server.tls.files`` that the current connection was made with."""
        self._current = first

    async def renew(self, *files: bytes) -> None:
        """Replace the connection. Raises TemporalConnectionError, and keeps the old one, if no new one can be made."""
        self._current = await _open(self.server, files, self.config.api_key)
        self.files = files

    # Interface of a service client that the SDK uses.

    @property
    def worker_service_client(self) -> Any:
        return self._current.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        self._current.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        self._current.update_api_key(api_key)

    async def _rpc_call(
        self,
        rpc: str,
        req: Message,
        resp_type: type[Any],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,
    ) -> Any:
        return await self._current._rpc_call(
            rpc, req, resp_type, service=service, retry=retry, metadata=metadata, timeout=timeout
        )


async def connect(connection: TemporalConnection, queue: str = GARDEN_QUEUE) -> Client:
    """A client whose payloads are encrypted; ``queue`` is the task queue of the process.

    Raises TemporalConnectionError, and CodecError if a key file cannot be used.
    """
    return await connect_with(connection, data_converter(connection.codec_key_file, queue, connection.shared_key_file))


async def connect_with(
    server: TemporalServer, converter: DataConverter = DataConverter.default, token: str | None = None
) -> Client:
    """A client with this data converter.

    ``token``: token of a person, whose connection uses the client certificate of a gateway.

    Raises TemporalConnectionError.
    """
    files: tuple[bytes, ...] = ()
    if server.tls is not None:
        try:
            files = read_files(server.tls.files)
        except OSError as error:
            raise TemporalConnectionError(
                f"connecting to Temporal at {server.address}: {error.filename} can't be read: {error.strerror}"
            ) from None
    service = RenewableService(server, files, await _open(server, files, token))
    return Client(service, namespace=server.namespace, data_converter=converter)


async def follow_certificate(worker: Worker, interval: float = FILE_POLL) -> None:
    """Connect the worker's client again whenever the files of its certificate change, until cancelled.

    Calls in flight end on the old connection: a poll takes at most a minute.
    """
    client = worker.client
    service = client.service_client
    if not isinstance(service, RenewableService) or service.server.tls is None:
        await asyncio.Event().wait()  # without TLS nothing changes
        return

    async def use(*files: bytes) -> None:
        try:
            await service.renew(*files)
        except TemporalConnectionError as error:
            raise Unusable(str(error)) from None
        worker.client = client  # the worker reads the connection from its client only when the client is set

    await follow_files(service.server.tls.files, service.files, use, interval)


async def _open(server: TemporalServer, files: tuple[bytes, ...], token: str | None) -> ServiceClient:
    """A new connection that the server has answered on.

    It does not compress: encrypted payloads would not become smaller, and Temporal would spend time on them.
    """
    tls = _tls_config(server, *files) if server.tls is not None else None
    config = ConnectConfig(server.address, api_key=token, tls=tls, grpc_compression=GrpcCompression.NONE)
    try:
        return await ServiceClient.connect(config)
    except RuntimeError as error:
        raise TemporalConnectionError(
            f"connecting to Temporal at {server.address}: {_explained(server, error)}"
        ) from None


def _tls_config(server: TemporalServer, certificate: bytes, key: bytes, ca: bytes) -> TLSConfig:
    """Raises TemporalConnectionError if the certificate cannot be used, before a server is asked."""
    assert server.tls is not None
    found = _checked(server.tls, certificate, key, ca)
    if found:
        raise TemporalConnectionError(f"connecting to Temporal at {server.address}: {found}")
    return TLSConfig(ca, server.tls.server_name, certificate, key)


def _checked(tls: TemporalTLS, certificate: bytes, key: bytes, ca: bytes) -> str:
    """Fault of the files' contents; empty if key and certificate fit together and the certificate has not expired."""
    try:
        expires = x509.load_pem_x509_certificates(certificate)[0].not_valid_after_utc
    except ValueError:
        return f"{tls.certificate_file} holds no certificate in PEM"
    try:
        x509.load_pem_x509_certificates(ca)
    except ValueError:
        return f"{tls.ca_file} holds no certificate in PEM"
    try:
        check_pair(KeyPair(certificate, key))
    except ssl.SSLError:
        return f"{tls.private_key_file} is not the key of {tls.certificate_file}"
    if expires < datetime.now(UTC):
        return f"{tls.certificate_file} expired at {expires:%Y-%m-%dT%H:%M:%SZ}: renew it"
    return ""


def _explained(server: TemporalServer, error: RuntimeError) -> str:
    """Hint for the operator, and the error itself. Without a connection no certificate has been checked."""
    said = str(error)
    if any(each in said for each in _OTHER_REASONS):
        return said
    if server.tls is None:
        return f"no answer without TLS; a server with TLS needs `tls` in the configuration: {said}"
    name = server.tls.server_name or server.address.rsplit(":", 1)[0]
    return (
        f"no answer to certificate {server.tls.certificate_file}; the server must trust its authority, and "
        f"the server's own certificate must be for {name} and of an authority in {server.tls.ca_file}: {said}"
    )

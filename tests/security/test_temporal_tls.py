"""Temporal behind mutual TLS: connections without the right certificate, and certificates that are renewed.

A real dev server behind the Envoy of a landscape.
"""

import asyncio
import contextlib
import logging
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import TLSConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, Usage
from api import constants
from landscape import temporal_certificates
from landscape.pki import KeyPair, TemporalAuthority
from tests.temporal_endpoint import Endpoint, mutual_tls_before, serial
from tests.unit.kube.waiting import until
from workers.lib.temporal import TemporalConnectionError, TemporalServer, connect_with, follow_certificate

BUSY = 90
"""Seconds until something has happened, on a machine that does much else."""


@pytest.fixture(scope="module")
def endpoint(temporal_address: str) -> Iterator[Endpoint]:
    with mutual_tls_before(temporal_address) as made:
        yield made


@pytest.fixture
def gardenlet(endpoint: Endpoint) -> KeyPair:
    return endpoint.authority.for_gardenlet("seed-1")


async def test_a_client_with_a_certificate_of_temporals_authority_is_served(
    endpoint: Endpoint, gardenlet: KeyPair
) -> None:
    client = await connect_with(endpoint.server(gardenlet))
    assert (await client.count_workflows("WorkflowId = 'none'")).count == 0


@pytest.mark.attack(actor="T6", asset="A5", finding=4)
async def test_a_client_that_speaks_plain_grpc_is_refused(endpoint: Endpoint) -> None:
    """Temporal's address answers nothing without TLS, and the error says what is missing."""
    with pytest.raises(TemporalConnectionError, match="needs `tls` in the configuration"):
        await connect_with(TemporalServer(address=endpoint.address))


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_a_client_without_a_certificate_is_refused(endpoint: Endpoint) -> None:
    """TLS alone does not open Temporal."""
    with pytest.raises(RuntimeError, match="Failed client connect"):
        await Client.connect(endpoint.address, tls=TLSConfig(endpoint.authority.of_servers.read_bytes()))


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_a_client_whose_certificate_is_of_another_authority_is_refused(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """A gardenlet's subject counts only if Temporal's authority signed it."""
    foreign = TemporalAuthority(tmp_path).for_gardenlet("seed-1")
    with pytest.raises(TemporalConnectionError, match=f"no answer to certificate {foreign.certificate}"):
        await connect_with(endpoint.server(foreign))


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_a_client_whose_certificate_has_expired_is_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    """The server refuses the expired certificate, and our own processes do not even try it."""
    expired = issued(endpoint, tmp_path, "expired", ago=timedelta(hours=2))
    tls = TLSConfig(
        endpoint.authority.of_servers.read_bytes(),
        client_cert=expired.certificate.read_bytes(),
        client_private_key=expired.key.read_bytes(),
    )
    with pytest.raises(RuntimeError, match="Failed client connect"):
        await Client.connect(endpoint.address, tls=tls)
    with pytest.raises(TemporalConnectionError, match=r"expired\.crt expired at .* renew it"):
        await connect_with(endpoint.server(expired))


@pytest.mark.attack(actor="T6", asset="A5", finding=4)
async def test_a_server_that_pretends_to_be_temporal_gets_no_call(
    endpoint: Endpoint, gardenlet: KeyPair, tmp_path: Path
) -> None:
    """A client compares the server's certificate with its own authorities."""
    with pytest.raises(TemporalConnectionError, match=r"must be for 127\.0\.0\.1 and of an authority in"):
        await connect_with(endpoint.server(gardenlet, ca=TemporalAuthority(tmp_path).of_servers))


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
def test_a_gardenlets_certificate_is_worth_nothing_between_temporals_services(tmp_path: Path) -> None:
    """The services of a cluster trust the authority of servers alone, and that one signs for no client."""
    temporal_certificates.write(tmp_path, tmp_path / "authority", ["temporal-frontend"], ["seed-1"])
    services, internode, gardenlet = (
        x509.load_pem_x509_certificate((tmp_path / file).read_bytes())
        for file in ("server/servers.crt", "server/temporal-internode.crt", "gardenlet-seed-1/tls.crt")
    )
    internode.verify_directly_issued_by(services)
    with pytest.raises(ValueError, match="does not match"):
        gardenlet.verify_directly_issued_by(services)


@workflow.defn
class Greeting:
    """One workflow task: enough to see that a worker polls."""

    @workflow.run
    async def run(self) -> str:
        return "served"


@contextlib.asynccontextmanager
async def working(client: Client) -> AsyncIterator[None]:
    """A worker that follows its certificate as our processes do."""
    worker = Worker(
        client,
        task_queue="renewed",
        workflows=[Greeting],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=0,  # one queue to poll
    )
    async with worker:
        following = asyncio.create_task(follow_certificate(worker, interval=0.02))
        try:
            yield
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


async def served(client: Client) -> bool:
    answer = await client.execute_workflow(Greeting.run, id=uuid.uuid4().hex, task_queue="renewed")
    return answer == "served"


async def test_a_renewed_certificate_is_used_by_workers_and_clients_without_a_restart(
    endpoint: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "workers.lib.serving")
    files = KeyPair(tmp_path / "tls.crt", tmp_path / "tls.key")
    first, second = (issued(endpoint, tmp_path, name) for name in ("first", "second"))
    take(first, files)
    client = await connect_with(endpoint.server(files), pydantic_data_converter)
    async with working(client):
        assert await served(client)

        files.certificate.write_bytes(second.certificate.read_bytes())
        await until(lambda: "is not the key of" in caplog.text, BUSY)
        assert await served(client)
        await until(lambda: {poll["serial"] for poll in endpoint.polls()} == {serial_of(first)}, BUSY)

        take(second, files)
        await until(lambda: f"certificate {files.certificate} is renewed" in caplog.text, BUSY)

        async def polls_with_the_second() -> bool:
            # A task ends the poll that waits on the old connection; the next poll begins on the other one.
            assert await served(client)
            return any(poll["serial"] == serial_of(second) for poll in endpoint.polls())

        await until(polls_with_the_second, BUSY)
    assert caplog.text.count("is not the key of") == 1


async def test_envoy_shows_a_renewed_certificate_to_new_connections(endpoint: Endpoint, gardenlet: KeyPair) -> None:
    """Envoy follows the files of its own certificate, and open connections stay."""
    client = await connect_with(endpoint.server(gardenlet))
    server = endpoint.authority.for_server("server", ["127.0.0.1"])
    assert await shown(endpoint, gardenlet) == serial_of(server)
    for file in (server.certificate, server.key):
        file.unlink()
    renewed = serial_of(endpoint.authority.for_server("server", ["127.0.0.1"]))

    async def shows_the_renewed_one() -> bool:
        return await shown(endpoint, gardenlet) == renewed

    await until(shows_the_renewed_one, BUSY)
    assert (await client.count_workflows("WorkflowId = 'none'")).count == 0


def issued(endpoint: Endpoint, directory: Path, name: str, ago: timedelta = timedelta()) -> KeyPair:
    """A certificate for the gardenlet of seed-1, made a while ago and good for an hour."""
    authority = endpoint.authority.of_clients
    made = crypto.signed(
        f"{constants.TEMPORAL_GARDENLET_PREFIX}seed-1",
        ca=crypto.KeyPair(authority.read_bytes(), authority.with_suffix(".key").read_bytes()),
        usage=Usage.CLIENT,
        algorithm=KeyAlgorithm.P256,
        now=datetime.now(UTC) - ago,
        validity=timedelta(hours=1),
        organizations=[constants.TEMPORAL_GARDENLETS],
    )
    files = KeyPair(directory / f"{name}.crt", directory / f"{name}.key")
    files.certificate.write_bytes(made.certificate)
    files.key.write_bytes(made.key)
    return files


def take(source: KeyPair, target: KeyPair) -> None:
    """Copy a certificate and its key."""
    target.key.write_bytes(source.key.read_bytes())
    target.certificate.write_bytes(source.certificate.read_bytes())


def serial_of(pair: KeyPair) -> str:
    return serial(x509.load_pem_x509_certificate(pair.certificate.read_bytes()))


async def shown(endpoint: Endpoint, client: KeyPair) -> str:
    """Serial number of the certificate that Envoy shows now."""
    context = ssl.create_default_context(cafile=str(endpoint.authority.of_servers))
    context.load_cert_chain(client.certificate, client.key)
    _, writer = await asyncio.open_connection(*endpoint.address.split(":"), ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return serial(x509.load_der_x509_certificate(der))

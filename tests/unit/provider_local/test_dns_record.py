"""DNS updates against a server that checks signatures, but keeps no zone."""

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.tsig
import dns.update
import pytest
from temporalio.exceptions import ApplicationError

from activities.extension import Extension
from activities.provider_local.dns_record import DNSRecordActuator
from api.resources import DNS_RECORD
from tests.unit.kube.fake_cluster import FakeCluster

NAMESPACE = "shoot--dev--one"
KEY = base64.b64encode(b"a key of thirty-two bytes length").decode()
OTHER_KEY = base64.b64encode(b"b key of thirty-two bytes length").decode()


class Server:
    """Answers every signed update with ``rcode``, and remembers it."""

    def __init__(self) -> None:
        self.updates: list[dns.update.UpdateMessage] = []
        self.rcode = dns.rcode.NOERROR
        self.port = 0
        self.signs = True

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = dns.tsig.Key("gardener", KEY, "hmac-sha256")
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        wire = await reader.readexactly(length)
        answer: dns.message.Message
        try:
            update = dns.message.from_wire(wire, keyring={key.name: key})
        except dns.tsig.BadSignature:
            answer = dns.update.UpdateMessage("garden.test", id=int.from_bytes(wire[:2], "big"))
            answer.flags |= dns.flags.QR
            answer.use_tsig(key, tsig_error=dns.rcode.BADSIG)
            answer.set_rcode(dns.rcode.NOTAUTH)
        else:
            assert isinstance(update, dns.update.UpdateMessage)
            self.updates.append(update)
            answer = dns.message.make_response(update)
            answer.set_rcode(self.rcode)
            if not self.signs:
                answer.tsig = None
        reply = answer.to_wire()
        writer.write(struct.pack("!H", len(reply)) + reply)
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await server.serve()
    yield server
    listening.close()


async def actuator(fake: Server, **changes: str) -> DNSRecordActuator:
    data = {
        "server": "127.0.0.1",
        "port": str(fake.port),
        "zone": "garden.test",
        "tsigKeyName": "gardener",
        "tsigSecret": KEY,
        "tsigAlgorithm": "hmac-sha256",
        **changes,
    }
    seed = FakeCluster()
    await seed.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "dns", "namespace": NAMESPACE},
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items() if value},
        }
    )
    return DNSRecordActuator(seed)


def record(**spec: Any) -> Extension:
    found = {
        "metadata": {"name": "one-internal", "namespace": NAMESPACE, "uid": "u"},
        "spec": {
            "type": "local",
            "secretRef": {"name": "dns", "namespace": NAMESPACE},
            "name": "api.one.garden.test",
            "recordType": "A",
            "values": ["198.18.2.2"],
            "ttl": 120,
            **spec,
        },
    }
    return Extension(DNS_RECORD, found, None)


async def test_values_replace_all_that_were_there(server: Server) -> None:
    status = await (await actuator(server)).reconcile(record(values=["198.18.2.2", "198.18.2.3"]))

    assert status == {"zone": "garden.test"}
    changes = [line for rrset in server.updates[0].update for line in rrset.to_text().split("\n")]
    assert changes == [
        "api.one.garden.test. ANY A",
        "api.one.garden.test. 120 IN A 198.18.2.2",
        "api.one.garden.test. 120 IN A 198.18.2.3",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("CNAME", "elsewhere.test", "elsewhere.test."),
        ("AAAA", "fd00::1", "fd00::1"),
        ("TXT", 'a "quoted" ü', '"a \\"quoted\\" \\195\\188"'),
        ("TXT", "x" * 300, f'"{"x" * 255}" "{"x" * 45}"'),
    ],
)
async def test_each_type_is_written_as_zones_want_it(server: Server, kind: str, value: str, written: str) -> None:
    await (await actuator(server)).reconcile(record(recordType=kind, values=[value]))

    assert server.updates[0].update[-1].to_text() == f"api.one.garden.test. 120 IN {kind} {written}"


async def test_a_wildcard_is_a_name_like_any_other(server: Server) -> None:
    """A seed has one for its ingress domain."""
    wildcard = record(name="*.ingress.seed-1.garden.test")
    await (await actuator(server)).reconcile(wildcard)
    await (await actuator(server)).delete(wildcard)

    assert [[rrset.to_text() for rrset in update.update] for update in server.updates] == [
        ["*.ingress.seed-1.garden.test. ANY A", "*.ingress.seed-1.garden.test. 120 IN A 198.18.2.2"],
        ["*.ingress.seed-1.garden.test. ANY A"],
    ]


async def test_deletion_leaves_records_of_other_types_alone(server: Server) -> None:
    await (await actuator(server)).delete(record())

    assert [rrset.to_text() for rrset in server.updates[0].update] == ["api.one.garden.test. ANY A"]


async def test_a_wrong_key_is_reported_to_users_and_not_quoted(server: Server) -> None:
    with pytest.raises(ApplicationError) as refused:
        await (await actuator(server, tsigSecret=OTHER_KEY)).reconcile(record())

    assert refused.value.type == "ERR_INFRA_UNAUTHENTICATED"
    assert refused.value.non_retryable
    assert OTHER_KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("rcode", "code", "final"),
    [
        (dns.rcode.REFUSED, "ERR_INFRA_UNAUTHORIZED", True),
        (dns.rcode.NOTZONE, "ERR_CONFIGURATION_PROBLEM", True),
        (dns.rcode.SERVFAIL, "ERR_RETRYABLE_INFRA_DEPENDENCIES", False),
    ],
)
async def test_the_answer_of_the_dns_server_selects_the_error_code(
    server: Server, rcode: dns.rcode.Rcode, code: str, final: bool
) -> None:
    server.rcode = rcode
    with pytest.raises(ApplicationError) as refused:
        await (await actuator(server)).reconcile(record())

    assert (refused.value.type, refused.value.non_retryable) == (code, final)


async def test_a_server_of_other_zones_is_distinguished_from_one_that_is_down(server: Server) -> None:
    server.signs = False
    with pytest.raises(ApplicationError, match="check that it serves zone"):
        await (await actuator(server)).reconcile(record())


async def test_a_server_that_is_down_is_asked_again(server: Server) -> None:
    with pytest.raises(ApplicationError) as refused:
        await (await actuator(server, port="1")).reconcile(record())

    assert not refused.value.non_retryable


@pytest.mark.parametrize("changes", [{"server": "dns.example"}, {"tsigKeyName": ""}, {"port": "x"}])
async def test_credentials_that_make_no_sense_are_named(server: Server, changes: dict[str, str]) -> None:
    with pytest.raises(ApplicationError, match=f"Secret {NAMESPACE}/dns") as refused:
        await (await actuator(server, **changes)).reconcile(record())

    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


async def test_a_name_outside_of_the_zone_is_refused(server: Server) -> None:
    with pytest.raises(ApplicationError, match="is not in zone"):
        await (await actuator(server)).reconcile(record(name="api.elsewhere.test"))


async def test_without_its_secret_a_record_can_still_be_deleted(server: Server) -> None:
    await DNSRecordActuator(FakeCluster()).delete(record())

    assert server.updates == []

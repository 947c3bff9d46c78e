"""No private key and no token of a run is found in its histories, logs and events; histories are encrypted.

The keys and tokens looked for are those that stand in the Secrets of a Shoot while it is there.
"""

import base64
import json
import re
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, SearchAttributes
from temporalio.client import Client

from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.shoots import NAMESPACE, Shoot, decoded, temporal
from workers.codec import ENCODING

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]

Needles = dict[bytes, list[str]]
"""Keys and tokens, and the Secrets they stand in."""
CLUSTERS = ("garden", "cloud", "seed-1", "seed-2")


@pytest.fixture(scope="module")
def needles(shoot: Shoot) -> Needles:
    """What must not be found anywhere else."""
    landscape = shoot.landscape
    garden = [
        *_secrets(landscape, "garden", NAMESPACE),
        *_secrets(landscape, "garden", "garden"),
        *json.loads(shoot.garden("get", "internalsecrets", "-o", "json"))["items"],
    ]
    secrets = [
        *garden,
        *shoot.secrets(),
        *_secrets(landscape, "cloud", f"infra-{shoot.technical_id}"),
        *json.loads(shoot.kubectl("get", "secrets", "-A", "-o", "json"))["items"],
    ]
    found: Needles = {}
    for secret in secrets:
        for key, value in decoded(secret).items():
            for needle in _needles(key, value):
                place = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}: {key}"
                found.setdefault(needle, []).append(place)
    return found


def test_the_secrets_of_a_shoot_are_full_of_keys_and_tokens(needles: Needles) -> None:
    """Else the other tests would look for nothing."""
    places = {place for where in needles.values() for place in where}

    for name in (r"/ca: ca\.key", "/kube-apiserver-.*tls.key", "/service-account-key-", "/ssh-keypair-"):
        assert any(re.search(name, place) for place in places), name
    for name in ("/shoot-access-.*token", "-static-token-", "/vpn-seed-server-tlsauth", "-user-data"):
        assert any(re.search(name, place) for place in places), name
    for name in (r"\.ca-client: ca\.key", "local: kubeconfig", "backup-local: token", "internal-domain: tsigSecret"):
        assert any(re.search(name, place) for place in places), name


async def test_no_history_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    """As stored, and as the codec reads it."""
    client = await temporal(shoot.landscape)
    raw, clear = bytearray(), bytearray()
    async for event in _events(client, shoot):
        raw += event.SerializeToString() + b"\n"
        payloads = [payload for payload in _payloads(event) if payload.metadata.get("encoding") == ENCODING]
        for payload in await _decode(client, payloads):
            clear += payload.data + b"\n"

    assert shoot.technical_id.encode() in clear, "the histories were not read"
    assert _found(needles, raw) == []
    assert _found(needles, clear) == []


def test_no_log_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    """Of the landscape's processes, of pods in the seeds, of machines and the pods on them."""
    directory = shoot.landscape.directory
    logs = [*directory.glob("logs/*"), *directory.glob("*/pod-logs/*/*/*.log")]
    told = {str(path.relative_to(directory)): path.read_bytes() for path in logs}
    for machine in json.loads(_cloud(shoot, "get", "pods", "-o", "json"))["items"]:
        name = machine["metadata"]["name"]
        command = "journalctl --no-pager --output=cat; cat /var/log/pods/*/*/*.log"
        told[name] = _cloud(shoot, "exec", name, "--", "sh", "-c", command).encode()

    everything = b"".join(told.values())
    for expected in (b'"component": "gardenlet"', b"kube-apiserver", b"resource-manager", b"kubelet"):
        assert expected in everything, "not all logs were read"
    assert {name: found for name, log in told.items() if (found := _found(needles, log))} == {}


def test_no_event_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    everything = [shoot.landscape.kubectl(cluster, "get", "events", "-A", "-o", "json") for cluster in CLUSTERS]
    everything.append(shoot.kubectl("get", "events", "-A", "-o", "json"))

    events = "".join(everything).encode()
    assert b"Reconciling Shoot cluster" in events, "the events were not read"
    assert _found(needles, events) == []


def test_no_command_line_and_no_status_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    lines = b"\n".join(_command_lines())
    objects = json.dumps(shoot.get()).encode() + shoot.control_plane("get", "pods,deployments", "-o", "json").encode()

    assert b"kube-apiserver" in lines
    assert _found(needles, lines) == []
    assert _found(needles, objects) == []


# Encryption


async def test_every_payload_is_encrypted_where_it_is_stored(shoot: Shoot) -> None:
    """But search attributes, which are there to be searched."""
    client = await temporal(shoot.landscape)
    query = f'GardenerShoot = "{shoot.reference}"'
    encodings: set[bytes] = set()
    count = 0
    async for workflow in client.list_workflows(query):
        handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
        async for event in handle.fetch_history_events():
            for payload in _payloads(event):
                encodings.add(payload.metadata.get("encoding", b""))
                count += 1

    assert count > 100
    assert encodings == {ENCODING}


def test_the_command_line_of_temporal_reads_them_by_the_codec_endpoint_only(shoot: Shoot) -> None:
    facts = shoot.landscape.facts["temporal"]
    show = [BIN / "temporal", "workflow", "show", "--address", facts["address"], "-o", "json"]
    show += ["--workflow-id", shoot.flows()[-1]["workflowId"]]

    assert _readable(run(*show)) == []
    assert any(shoot.technical_id in each for each in _readable(run(*show, "--codec-endpoint", facts["codec"])))


def test_the_ui_may_ask_the_codec_endpoint_and_no_other_page(shoot: Shoot) -> None:
    facts = shoot.landscape.facts["temporal"]

    assert _allowed_origin(facts["codec"], facts["ui"]) == facts["ui"]
    assert _allowed_origin(facts["codec"], "http://elsewhere.example") is None


def _readable(history: str) -> list[str]:
    """Inputs of activities that are not encrypted."""
    scheduled = [event.get("activityTaskScheduledEventAttributes") for event in json.loads(history)["events"]]
    payloads = [payload for each in scheduled if each for payload in each["input"]["payloads"]]
    assert payloads
    clear = [each for each in payloads if base64.b64decode(each["metadata"]["encoding"]) != ENCODING]
    return [base64.b64decode(each["data"]).decode() for each in clear]


def _allowed_origin(endpoint: str, origin: str) -> str | None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    request = urllib.request.Request(f"{endpoint}/decode", method="OPTIONS", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        allowed: str | None = answer.headers.get("Access-Control-Allow-Origin")
    return allowed


async def _events(client: Client, shoot: Shoot) -> Any:
    """Of all workflows since the Shoot was ordered, the provider's too."""
    since = shoot.get()["metadata"]["creationTimestamp"]
    async for workflow in client.list_workflows(f"StartTime >= '{since}'"):
        handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
        async for event in handle.fetch_history_events():
            yield event


async def _decode(client: Client, payloads: list[Payload]) -> list[Payload]:
    codec = client.data_converter.payload_codec
    assert codec is not None
    return await codec.decode(payloads)


def _payloads(message: Message) -> Iterator[Payload]:
    """All that a message carries, however deep."""
    if isinstance(message, Payload):
        yield message
        return
    if isinstance(message, SearchAttributes):
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts: Iterable[Any] = value.values()
        else:
            parts = [value] if isinstance(value, Message) else value
        for part in parts:
            if isinstance(part, Message):
                yield from _payloads(part)


_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\n(.+?)\n-----END (?:[A-Z]+ )*PRIVATE KEY-----\n?", re.DOTALL
)
_STATIC_KEY = re.compile(rb"-----BEGIN OpenVPN Static key V1-----\s+[0-9a-f]+\s+([0-9a-f]+)")
_JWT = re.compile(rb"eyJ[\w-]{10,}\.[\w-]{10,}\.([\w-]{20,})")
_BOOTSTRAP = re.compile(rb"\b[a-z0-9]{6}\.([a-z0-9]{16})\b")
_EMBEDDED = re.compile(rb"(?:client-key-data|token)\W+([A-Za-z0-9+/=_-]{16,})")
_SECRET_KEYS = re.compile(r"token|secret|password", re.IGNORECASE)
_SHORTEST = 16


def _needles(key: str, value: bytes) -> Iterator[bytes]:
    """Texts that give a secret away wherever they stand: as they are, and as base64, which Secrets are shown in."""
    for match in _KEY.finditer(value):
        lines = match[1].split(b"\n")
        # Of an elliptic key the first line has the number; of an RSA key it has the modulus, which is public.
        yield lines[0] if len(lines) < 6 else lines[len(lines) // 2]
        yield _middle(base64.b64encode(match[0]))
    for pattern in (_STATIC_KEY, _JWT, *([_BOOTSTRAP] if key.lower() == "userdata" else [])):
        yield from (match[1] for match in pattern.finditer(value))
    for match in _EMBEDDED.finditer(value):
        yield _middle(match[1])
    if _SECRET_KEYS.search(key):
        text = value.strip().split(b",")[0]
        if len(text) >= _SHORTEST:
            yield text
            yield base64.b64encode(value)


def _middle(text: bytes) -> bytes:
    """What of an encoded key is its own: its beginning is that of all keys of the kind."""
    return text[64:128] if len(text) >= 128 else text


def _found(needles: Needles, text: bytes | bytearray) -> list[str]:
    """Where what is found belongs; never what it is."""
    return sorted({place for needle, where in needles.items() if needle in text for place in where})


def _secrets(landscape: Landscape, cluster: str, namespace: str) -> list[dict[str, Any]]:
    listed = landscape.kubectl(cluster, "-n", namespace, "get", "secrets", "-o", "json")
    secrets: list[dict[str, Any]] = json.loads(listed)["items"]
    return secrets


def _cloud(shoot: Shoot, *arguments: str) -> str:
    return shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", *arguments)


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ")
        except OSError:
            continue

"""Where keys and tokens must not be, and which there are: of a Shoot, while it is there."""

import base64
import contextlib
import json
import re
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, SearchAttributes
from temporalio.client import Client

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import NAMESPACE, Shoot, decoded, temporal
from workers.lib.codec import ENCODING

Needles = dict[bytes, list[str]]
"""Keys and tokens, and the Secrets they stand in."""
CLUSTERS = ("garden", "cloud", "seed-1", "seed-2")
_PROCESSES = ("gardenlet", "controller-manager", "admission", "scheduler", "provider-local")
_EXTENSIONS = "controllerregistration.core.gardener.cloud/name=provider-local"


def needles(shoot: Shoot) -> Needles:
    """Values that must be found only in Secrets, as they are now."""
    landscape = shoot.landscape
    secrets = [
        *_secrets(landscape, "garden", NAMESPACE),
        *_secrets(landscape, "garden", "garden"),
        *_secrets(landscape, "garden", "kube-system"),
        *_secrets(landscape, "seed-1", "garden"),
        *_secrets(landscape, "seed-2", "garden"),
        *json.loads(shoot.garden("get", "internalsecrets", "-o", "json"))["items"],
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


def found(needles: Needles, text: bytes) -> list[str]:
    """Where what is found belongs; never what it is."""
    # Logs say most words many times.
    words = b"\n".join(set(_WORD.findall(text)))
    there = (needle for needle in needles if needle in (words if _WORD.fullmatch(needle) else text))
    return sorted({place for needle in there for place in needles[needle]})


# Where it must not be


async def histories(shoot: Shoot) -> tuple[bytes, bytes]:
    """Histories of all workflows since the Shoot was ordered: as stored, and as the codec reads them."""
    client = await temporal(shoot.landscape)
    raw, clear = bytearray(), bytearray()
    async for event in _events(client, shoot):
        raw += event.SerializeToString() + b"\n"
        encrypted = [payload for payload in payloads(event) if payload.metadata.get("encoding") == ENCODING]
        for payload in await _decode(client, encrypted):
            clear += payload.data + b"\n"
    assert shoot.technical_id.encode() in clear, "the histories were not read"
    return bytes(raw), bytes(clear)


def logs(shoot: Shoot) -> dict[str, bytes]:
    """Logs of the landscape's processes, of pods in the seeds, of machines and the pods on them."""
    directory = shoot.landscape.directory
    paths = [*directory.glob("logs/*"), *directory.glob("*/pod-logs/*/*/*.log")]
    told = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # of a pod that ends meanwhile: other Shoots come and go
            told[str(path.relative_to(directory))] = path.read_bytes()
    for machine in json.loads(_cloud(shoot, "get", "pods", "-o", "json"))["items"]:
        name = machine["metadata"]["name"]
        command = "journalctl --no-pager --output=cat; cat /var/log/pods/*/*/*.log"
        told[name] = _cloud(shoot, "exec", name, "--", "sh", "-c", command).encode()
    everything = b"".join(told.values())
    for expected in (b'"component": "gardenlet"', b"kube-apiserver", b"resource-manager", b"kubelet"):
        assert expected in everything, "not all logs were read"
    return told


def events(shoot: Shoot) -> bytes:
    everything = [shoot.landscape.kubectl(cluster, "get", "events", "-A", "-o", "json") for cluster in CLUSTERS]
    everything.append(shoot.kubectl("get", "events", "-A", "-o", "json"))
    told = "".join(everything).encode()
    assert b"Reconciling Shoot cluster" in told, "the events were not read"
    return told


def command_lines() -> bytes:
    """Command lines of all processes of this machine, and so of all pods of the landscape."""
    lines = b"\n".join(_command_lines())
    assert b"kube-apiserver" in lines
    return lines


def metrics(shoot: Shoot) -> dict[str, bytes]:
    """Metrics of our processes and of all API servers."""
    landscape = shoot.landscape
    told = {
        cluster: landscape.kubectl(cluster, "get", "--raw", "/metrics", timeout=60).encode() for cluster in CLUSTERS
    }
    told[shoot.name] = shoot.kubectl("get", "--raw", "/metrics").encode()
    for path in landscape.directory.glob("config/*.yaml"):
        if health := yaml.safe_load(path.read_text()).get("health"):
            url = f"http://{health['address']}:{health['port']}/metrics"
            with urllib.request.urlopen(url, timeout=20) as answer:
                told[path.stem] = answer.read()
    for namespace in landscape.kubectl("seed-1", "get", "namespaces", "-l", _EXTENSIONS, "-o", "name").split():
        place = f"/api/v1/namespaces/{namespace.removeprefix('namespace/')}/services"
        url = f"{place}/gardener-extension-provider-local-metrics:metrics/proxy/metrics"
        told["provider-local"] = landscape.kubectl("seed-1", "get", "--raw", url).encode()
    assert all(any(process in name for name in told) for process in _PROCESSES), f"metrics of {sorted(told)} alone"
    return told


def temporal_itself(landscape: Landscape) -> dict[str, bytes]:
    """Temporal's metrics, what it logs, and what it keeps on disk: histories, memos, search attributes and inputs."""
    with urllib.request.urlopen(landscape.facts["temporal"]["metrics"], timeout=20) as answer:
        told = {"metrics of Temporal": answer.read()}
    for path in (*landscape.directory.glob("temporal/**/*"), *landscape.directory.glob("logs/temporal*")):
        if path.is_file():
            told[str(path.relative_to(landscape.directory))] = path.read_bytes()
    assert b"service_requests" in told["metrics of Temporal"], "these are no metrics of Temporal"
    for expected in ("temporal/temporal.db", "logs/temporal"):
        assert any(name.startswith(expected) for name in told), f"no {expected}: {sorted(told)} alone"
    return told


def objects(shoot: Shoot) -> bytes:
    """The Shoot, and what of its control plane shows how it runs."""
    shown = shoot.control_plane("get", "pods,deployments,configmaps", "-o", "json")
    return json.dumps(shoot.get()).encode() + shown.encode()


async def found_anywhere(shoot: Shoot, needles: Needles, lines: Sequence[bytes] = ()) -> dict[str, list[str]]:
    """By place where something was found that must not be there. ``lines``: command lines of before."""
    raw, clear = await histories(shoot)
    looked = {
        "histories": raw + clear,
        "events": events(shoot),
        "command lines": b"\n".join([*lines, command_lines()]),
        "objects": objects(shoot),
        **{f"log {name}": text for name, text in logs(shoot).items()},
        **{f"metrics {name}": text for name, text in metrics(shoot).items()},
        **temporal_itself(shoot.landscape),
    }
    return {place: wrong for place, text in looked.items() if (wrong := found(needles, text))}


def payloads(message: Message) -> Iterator[Payload]:
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
                yield from payloads(part)


async def _events(client: Client, shoot: Shoot) -> Any:
    """Histories of all workflows since the Shoot was ordered, the provider's too."""
    since = shoot.get()["metadata"]["creationTimestamp"]
    async for workflow in client.list_workflows(f"StartTime >= '{since}'"):
        handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
        async for event in handle.fetch_history_events():
            yield event


async def _decode(client: Client, payloads: list[Payload]) -> list[Payload]:
    codec = client.data_converter.payload_codec
    assert codec is not None
    return await codec.decode(payloads)


_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\n(.+?)\n-----END (?:[A-Z]+ )*PRIVATE KEY-----\n?", re.DOTALL
)
_STATIC_KEY = re.compile(rb"-----BEGIN OpenVPN Static key V1-----\s+[0-9a-f]+\s+([0-9a-f]+)")
_JWT = re.compile(rb"eyJ[\w-]{10,}\.[\w-]{10,}\.([\w-]{20,})")
_BOOTSTRAP = re.compile(rb"\b[a-z0-9]{6}\.([a-z0-9]{16})\b")
_EMBEDDED = re.compile(rb"(?:client-key-data|token)\W+([A-Za-z0-9+/=_-]{16,})")
_SECRET_KEYS = re.compile(r"(?!.*\.yaml$).*(token|secret|password)", re.IGNORECASE)
"""Names of values that are secret as a whole; a manifest's name in a ManagedResource shows the kind of its object."""
_SHORTEST = 16
_WORD = re.compile(rb"[A-Za-z0-9+/=_.-]{16,}")


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
    if _SECRET_KEYS.match(key):
        # A key of raw bytes may hold any of them.
        text = value.split(b",")[0] if key.endswith(".csv") else value
        if len(text) >= _SHORTEST:
            yield text
            yield base64.b64encode(value)


def _middle(text: bytes) -> bytes:
    """The unique part of an encoded key: all keys of a kind begin equally."""
    return text[64:128] if len(text) >= 128 else text


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

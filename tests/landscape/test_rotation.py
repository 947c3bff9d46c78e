"""Rotation of all credentials of a real cluster, under load; who is served by whom is read from the wire.

Clients ask the API server twenty times a second each, as users are told to: one with the kubeconfig of before the
rotation, until that is prepared; one that takes a new kubeconfig then, through to the end; one that trusts the new
authority alone, once the rotation is completed. The tests run in the order in which they stand.
"""

import asyncio
import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, NAMESPACE, Shoot, background, decoded, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

CA, KEY, ENCRYPTION = "certificateAuthorities", "serviceAccountKey", "etcdEncryptionKey"
_PHASE_SECONDS = 420
_PERIOD = 0.05
_BREAK = 30.0
"""Seconds for which a client may go unserved at a stretch: a control plane with one etcd restarts it in each phase."""


@dataclass
class Client:
    """Asks for a namespace again and again, and notes when it was not served."""

    kubeconfig: Path
    asked: int = 0
    failures: list[tuple[float, str]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> "Client":
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    @property
    def longest_break(self) -> float:
        """Seconds between the first and the last of failures that no answer parts."""
        longest, begun, last = 0.0, 0.0, -10.0
        for at, _ in self.failures:
            begun = begun if at - last < 2 else at
            last = at
            longest = max(longest, last - begun)
        return longest

    async def _run(self) -> None:
        server, name, context = trusted(self.kubeconfig)
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            pending: set[asyncio.Task[None]] = set()
            while not self._stop.is_set():
                task = asyncio.create_task(self._ask(session, server, name, context))
                pending.add(task)
                task.add_done_callback(pending.discard)
                await asyncio.sleep(_PERIOD)
            await asyncio.gather(*pending)

    async def _ask(self, session: aiohttp.ClientSession, server: str, name: str, context: ssl.SSLContext) -> None:
        self.asked += 1
        begun = time.monotonic()
        url = f"{server}/api/v1/namespaces/default"
        try:
            async with session.get(url, ssl=context, server_hostname=name) as response:
                if response.status != 200:
                    self.failures.append((begun, f"{response.status} {response.reason}"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failures.append((begun, f"{type(error).__name__}: {error}"[:200]))


def trusted(path: Path, ca: str = "") -> tuple[str, str, ssl.SSLContext]:
    """Server, its name, and TLS as a kubeconfig says; ``ca`` replaces what it trusts."""
    config = yaml.safe_load(path.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=ca or _text(cluster["certificate-authority-data"]))
    pair = path.with_suffix(".pem")
    pair.touch(mode=0o600)
    pair.write_text(_text(user["client-certificate-data"]) + _text(user["client-key-data"]))
    context.load_cert_chain(pair)
    name = cluster.get("tls-server-name") or urlsplit(cluster["server"]).hostname
    return cluster["server"], name, context


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


@dataclass
class Rotated:
    """The Shoot of these tests, and what is remembered from one to the next."""

    shoot: Shoot
    directory: Path
    before: Path
    """Kubeconfig from before the rotation."""
    clients: dict[str, Client] = field(default_factory=dict)
    old_issuer: str = ""

    def new_kubeconfig(self, name: str) -> Path:
        path = self.directory / f"{name}.yaml"
        path.touch(mode=0o600)
        path.write_text(self.shoot.gardener("kubeconfig", "shoot", self.shoot.reference))
        return path

    @property
    def rotation(self) -> dict[str, Any]:
        rotation: dict[str, Any] = self.shoot.get()["status"].get("credentials", {}).get("rotation", {})
        return rotation

    def await_phase(self, phase: str, *kinds: str) -> None:
        def reached() -> bool:
            found = self.rotation
            return all(found.get(kind, {}).get("phase") == phase for kind in kinds)

        eventually(reached, f"phase {phase} of {kinds}", _PHASE_SECONDS)

    def bundle(self) -> list[x509.Certificate]:
        """What users are told to trust."""
        published = json.loads(self.shoot.garden("get", "configmap", f"{self.shoot.name}.ca-cluster", "-o", "json"))
        return x509.load_pem_x509_certificates(published["data"]["ca.crt"].encode())

    def issuer_on_wire(self) -> str:
        """Who has issued the certificate that the API server shows."""
        server, name, _ = trusted(self.before)
        host = urlsplit(server)
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection(host.hostname, host.port, ssl=unverified, server_hostname=name)
            certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return certificate

        return common_name(x509.load_der_x509_certificate(asyncio.run(shown())).issuer)


def common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


@pytest.fixture(scope="module")
def rotated(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotated]:
    directory = tmp_path_factory.mktemp("rotation")
    shoot = Shoot(landscape, "rotated", directory)
    shoot.apply(shoot.manifest(machines=1))
    shoot.wait_for_state("Succeeded", CREATION)
    rotated = Rotated(shoot, directory, shoot.kubeconfig)
    yield rotated
    for client in rotated.clients.values():
        client.stop()
    shoot.remove()


def test_a_rotation_that_is_out_of_order_is_refused(rotated: Rotated) -> None:
    done = subprocess.run(
        [
            *(str(BIN / "kubectl"), f"--kubeconfig={rotated.shoot.landscape.directory}/kubeconfigs/garden.yaml"),
            *("-n", NAMESPACE, "annotate", "shoot", rotated.shoot.name, "gardener.cloud/operation=rotate-ca-complete"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode
    assert "is not started, must be Prepared" in done.stderr


def test_new_credentials_are_spread_while_the_old_ones_serve(rotated: Rotated) -> None:
    shoot = rotated.shoot
    nodes = set(shoot.kubectl("get", "nodes", "-o", "name").split())
    rotated.old_issuer = rotated.issuer_on_wire()
    rotated.clients = {name: Client(rotated.before).start() for name in ("before", "follower")}

    shoot.gardener("credentials", "rotate", shoot.reference, "all")
    rotated.await_phase("Prepared", CA, KEY)
    rotated.await_phase("Completed", ENCRYPTION)

    rotated.clients["before"].stop()
    assert rotated.issuer_on_wire() == rotated.old_issuer, "clients do not know the new authority yet"
    new, old = (common_name(each.subject) for each in rotated.bundle())
    assert old == rotated.old_issuer
    assert new != old
    present = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    assert not {f"node/{each['metadata']['name']}" for each in present} & nodes, "machines were replaced"
    for each in present:
        told = json.loads(each["metadata"]["annotations"]["credentials.gardener.cloud/certificate-issuers"])
        assert told["kubelet-client"].startswith("ca-client-")
        assert told["kubelet-serving"].startswith("ca-kubelet-")


def test_nothing_in_etcd_is_encrypted_with_the_old_key(rotated: Rotated) -> None:
    keys = {each["key"].decode() for each in _of(rotated, "kube-apiserver-etcd-encryption-key")}
    assert len(keys) == 1
    stored = _stored(rotated, "/registry/secrets/")
    assert stored
    assert {value.split(b":")[4].decode() for value in stored} == keys
    assert all(value.startswith(b"k8s:enc:aescbc:v1:") for value in stored)


def test_one_forgotten_kubeconfig_holds_the_completion_by_its_name(rotated: Rotated) -> None:
    shoot = rotated.shoot
    command = [str(BIN / "gardener"), "credentials", "complete", shoot.reference, "ca"]
    done = subprocess.run(
        ["env", f"GARDENER_LANDSCAPE={shoot.landscape.name}", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode
    assert "of gardener.cloud:admin:gardener-cli is valid until" in done.stderr
    (row,) = [
        each
        for each in json.loads(shoot.gardener("credentials", "status", shoot.reference, "-o", "json"))
        if each["what"] == "ca"
    ]
    assert {each["who"].split()[0] for each in row["users"]} == {"kubeconfig"}, row


def test_the_new_ones_serve_when_the_old_ones_are_dropped(rotated: Rotated) -> None:
    shoot = rotated.shoot
    follower = rotated.clients["follower"]
    follower.stop()
    again = rotated.new_kubeconfig("again")
    rotated.clients["again"] = Client(again).start()

    reason = ("--force", "--reason", "its owner has left")
    shoot.gardener("credentials", "complete", shoot.reference, "serviceaccount-key")
    rotated.await_phase("Completed", KEY)
    shoot.gardener("credentials", "complete", shoot.reference, "ca", *reason)
    rotated.await_phase("Completed", CA)

    new = rotated.issuer_on_wire()
    assert new != rotated.old_issuer
    assert [common_name(each.subject) for each in rotated.bundle()] == [new]
    rotated.clients["after"] = Client(rotated.new_kubeconfig("after")).start()
    eventually(lambda: rotated.clients["after"].asked > 60, "requests by the new authority alone", 30)
    for name in ("again", "after"):
        rotated.clients[name].stop()
    assert rotated.clients["after"].failures == []
    events = shoot.garden("get", "events", "-o", "jsonpath={.items[*].reason} {.items[*].message}")
    assert "OldCredentialsLeftBehind" in events
    assert "its owner has left" in events


def test_a_kubeconfig_of_before_is_of_no_use_any_more(rotated: Rotated) -> None:
    late = Client(rotated.before).start()
    eventually(lambda: late.failures, "a request that fails", 30)
    late.stop()
    assert len(late.failures) == late.asked


def test_clients_are_served_throughout(rotated: Rotated) -> None:
    for name, client in rotated.clients.items():
        print(f"{name}: {client.asked} requests, {len(client.failures)} failed, break {client.longest_break:.1f} s")
        for _, why in client.failures[:5]:
            print(f"  {why}")
    assert all(client.longest_break < _BREAK for client in rotated.clients.values())


def _of(rotated: Rotated, name: str) -> list[dict[str, bytes]]:
    return [decoded(each) for each in rotated.shoot.secrets() if each["metadata"].get("labels", {}).get("name") == name]


def _stored(rotated: Rotated, prefix: str) -> list[bytes]:
    """Values as they stand in etcd."""
    shoot = rotated.shoot
    (client,), (bundle,) = _of(rotated, "etcd-client"), _of(rotated, "ca-etcd-bundle")
    pair = rotated.directory / "etcd.pem"
    pair.touch(mode=0o600)
    pair.write_bytes(client["tls.crt"] + client["tls.key"])
    context = ssl.create_default_context(cadata=bundle["bundle.crt"].decode())
    context.load_cert_chain(pair)
    kubeconfig = shoot.landscape.directory / f"kubeconfigs/{shoot.seed}.yaml"
    forward = [str(BIN / "kubectl"), f"--kubeconfig={kubeconfig}", "-n", shoot.technical_id]
    forward += ["port-forward", "pod/etcd-main-0", ":2379"]

    async def read(port: int) -> list[bytes]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = {"key": _encoded(prefix), "range_end": _encoded(end)}
        async with aiohttp.ClientSession(trust_env=False) as session:
            url = f"https://127.0.0.1:{port}/v3/kv/range"
            async with session.post(url, json=body, ssl=context, server_hostname="etcd-main-local") as response:
                answer = await response.json()
        return [base64.b64decode(each["value"]) for each in answer["kvs"]]

    with background(forward) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        return asyncio.run(read(int(line.split("127.0.0.1:")[1].split()[0])))


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

"""Objects that a real API server stores in a real etcd while its encryption provider changes, as read from etcd."""

import asyncio
import base64
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters import ClusterView
from activities.heartbeat import heartbeating
from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm
from activities.secrets.manager import Which
from activities.seed.secrets import generate_encryption_configuration
from activities.shoot import rewriting, rotation
from api import resources
from kube.client import KubeClient
from tests import api_servers
from tests.api_servers import API_SERVER, etcd_command, free_port, process
from tests.unit.rotation.conftest import NAMESPACE, TASK, World

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(300, func_only=True),
]

KEY_POPULATED = "credentials.gardener.cloud/new-encryption-key-populated"
NAMES = [f"s-{number:02}" for number in range(12)]


class Cluster:
    """An etcd, and an API server that is restarted with each configuration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.etcd = f"http://127.0.0.1:{free_port()}"
        self.port = free_port()
        self.client = api_servers.client(self.port, "token-of-the-test")
        key = crypto.new_key(KeyAlgorithm.P256)
        (directory / "sa.key").write_bytes(crypto.private_pem(key))
        (directory / "tokens.csv").write_text("token-of-the-test,admin,1,system:masters\n")
        self._server = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Cluster"]:
        async with (
            process(self.directory, *etcd_command(self.etcd)),
            self.client,
        ):
            try:
                yield self
            finally:
                await self._server.aclose()

    async def configure(self, configuration: bytes) -> None:
        """End the API server, and start one that knows these keys."""
        await self._server.aclose()
        file = self.directory / "encryption.yaml"
        file.write_bytes(configuration)
        await self._server.enter_async_context(
            process(
                self.directory,
                *(API_SERVER, "--etcd-servers", self.etcd, "--secure-port", str(self.port)),
                *(
                    "--bind-address",
                    "127.0.0.1",
                    "--cert-dir",
                    self.directory / "certs",
                    "--token-auth-file",
                    "tokens.csv",
                ),
                *("--service-account-issuer", "https://issuer.test", "--service-account-key-file", "sa.key"),
                *("--service-account-signing-key-file", "sa.key", "--service-cluster-ip-range", "10.0.0.0/24"),
                *("--authorization-mode", "AlwaysAllow", "--encryption-provider-config", file, "--v", "0"),
            )
        )
        await api_servers.ready(self.client)

    async def create(self, kind: str, name: str) -> None:
        await self.client.create(
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}}
            | ({"stringData": {"a": name}} if kind == "Secret" else {"data": {"a": name}})
        )

    async def stored(self, plural: str = "secrets") -> dict[str, tuple[str, int]]:
        """By name: how it is encrypted, and how often it was written."""
        prefix = f"/registry/{plural}/default/".encode()
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        body = {"key": base64.b64encode(prefix).decode(), "range_end": base64.b64encode(end).decode()}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.etcd}/v3/kv/range", json=body) as answer,
        ):
            found = (await answer.json()).get("kvs", [])
        return {
            base64.b64decode(each["key"]).decode().rsplit("/", 1)[1]: (
                _encryption(base64.b64decode(each["value"])),
                int(each["version"]),
            )
            for each in found
        }

    async def readable(self) -> bool:
        secrets = await self.client.list(resources.SECRET, "default")
        maps = await self.client.list(resources.CONFIG_MAP, "default")
        read = {each["metadata"]["name"]: each.get("data", {}).get("a") for each in [*secrets, *maps]}
        return all(read[name] == base64.b64encode(name.encode()).decode() for name in NAMES) and read["map"] == "map"


def _encryption(value: bytes) -> str:
    """``aescbc/key1``; empty: none."""
    if not value.startswith(b"k8s:enc:"):
        return ""
    _, _, provider, _, key, _ = value.split(b":", 5)
    return f"{provider.decode()}/{key.decode()}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path).running() as running:
        yield running


class Shoot:
    """The Shoot of it, and what its seed knows."""

    def __init__(self, world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.cluster = world, cluster
        world.seed.put("/apis/apps/v1/deployments", {"metadata": {"name": "kube-apiserver"}}, NAMESPACE)

        async def client(_: str) -> KubeClient:
            return cluster.client

        monkeypatch.setattr(world.activities._clusters, "shoot", client)
        monkeypatch.setattr(rewriting, "PAGE", 4)
        monkeypatch.setattr(rotation, "heartbeating", functools.partial(heartbeating, interval=0.01))

    def wants(self, provider: str, *kinds: str) -> None:
        config = {"provider": {"type": provider}, "resources": list(kinds)}
        self.world.pinned["spec"]["kubernetes"]["kubeAPIServer"] = {"encryptionConfig": config}

    def is_at(self, phase: str, started: str, provider: str, *kinds: str) -> None:
        self.world.rotates("etcdEncryptionKey", phase)
        credentials = self.world.pinned["status"]["credentials"]
        credentials["rotation"]["etcdEncryptionKey"]["lastInitiationTime"] = started
        credentials["encryptionAtRest"] = {"provider": {"type": provider}, "resources": list(kinds)}

    async def configure(self) -> str:
        """Have the API server know what it is to know now; how it encrypts by that."""
        view = ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": self.world.pinned}})
        secrets = await self.world.secrets()
        await generate_encryption_configuration(self.world.client, view, secrets)
        found = secrets.get("kube-apiserver-etcd-encryption-configuration", Which.CURRENT)
        await self.cluster.configure(found.data["encryption-configuration.yaml"])
        await secrets.cleanup(secrets.generated)
        key = secrets.get("kube-apiserver-etcd-encryption-key", Which.CURRENT)
        assert len(key.data["secret"]) == 32
        return f"{key.data['provider'].decode()}/{key.data['key'].decode()}"

    async def rewrite(self, activity: Any, kill_at: int) -> None:
        """One attempt that is killed at its so-manieth write, and one after it."""
        env, told, patch = ActivityEnvironment(), [], self.cluster.client.patch
        env.on_heartbeat = lambda waits, sees, position: told.append((waits, sees, position.model_dump()))
        left = kill_at

        async def killing(*args: Any, **rest: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                env.cancel()
            return await patch(*args, **rest)

        self.cluster.client.patch = killing  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await env.run(activity, TASK)
        self.cluster.client.patch = patch  # type: ignore[method-assign]
        assert told[-1][2]["token"]
        again = ActivityEnvironment()
        again.info = dataclasses.replace(again.info, heartbeat_details=told[-1])
        await again.run(activity, TASK)


async def test_everything_stays_readable_while_the_provider_changes_and_is_written_once_for_it(
    world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shoot = Shoot(world, cluster, monkeypatch)
    shoot.wants("aescbc")
    old = await shoot.configure()
    for name in NAMES:
        await cluster.create("Secret", name)
    await cluster.create("ConfigMap", "map")
    assert await cluster.stored() == dict.fromkeys(NAMES, (old, 1))
    assert (await cluster.stored("configmaps"))["map"] == ("", 1)
    assert old.startswith("aescbc/key")

    before: tuple[str, ...] = ("aescbc",)
    for round_, (provider, *kinds) in enumerate((("aesgcm", "configmaps"), ("secretbox",)), start=1):
        started = f"2030-01-0{round_}T00:00:00Z"
        shoot.wants(provider, *kinds)
        shoot.is_at("Preparing", started, *before)
        new = await shoot.configure()
        assert await cluster.readable()
        await cluster.create("Secret", f"known-{round_}")
        stored = await cluster.stored()
        assert stored[f"known-{round_}"][0] == old  # all replicas have to know the new key first
        await cluster.client.delete(resources.SECRET, f"known-{round_}", "default")

        world.seed.change(
            "/apis/apps/v1/deployments",
            "kube-apiserver",
            NAMESPACE,
            {"metadata": {"annotations": {KEY_POPULATED: "true"}}},
        )
        assert await shoot.configure() == new
        assert await cluster.readable()
        await shoot.rewrite(world.activities.rewrite_add_label, kill_at=6)
        written = 2 * round_
        assert await cluster.stored() == dict.fromkeys(NAMES, (new, written))
        assert (await cluster.stored("configmaps"))["map"] == (new if kinds else "", written)

        shoot.is_at("Completing", started, *before)
        assert await shoot.configure() == new
        assert await cluster.readable()
        await shoot.rewrite(world.activities.rewrite_remove_label, kill_at=6)
        assert await cluster.stored() == dict.fromkeys(NAMES, (new, written + 1))
        old, before = new, (provider, *kinds)
        assert old.startswith(f"{provider}/key")

    shoot.is_at("Completed", "2030-01-02T00:00:00Z", *before)
    assert await shoot.configure() == old
    assert await cluster.readable()

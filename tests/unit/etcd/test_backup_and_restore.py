"""A real etcd, its sidecar and a real object store: all confirmed writes are restored, whichever process dies."""

import asyncio
import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from activities.secrets.crypto import KeyAlgorithm, Usage, self_signed_ca, signed
from api.images import ETCD_VERSION
from etcd import snapshots
from etcd.client import Compacted, EtcdClient, EtcdError, client_tls
from etcd.delta import Change, DeltaWriter
from etcd.store import open_store
from kube.cache import Key
from tests.api_servers import free_port
from tests.object_stores import as_mounted
from tests.unit.etcd.conftest import Bucket
from tests.unit.kube.waiting import until
from tests.wrapper_files import NAME, mount
from workers.etcd import snapshotter as snapshotter_module
from workers.etcd import wrapper
from workers.etcd.backup_restore import BackupRestoreConfig, _Forwarding, serving
from workers.etcd.backup_restore import application as application_of_sidecar
from workers.etcd.copy_backups import CopyBackupsController
from workers.etcd.restore import RestoreFailed
from workers.etcd.snapshotter import Schedule, Snapshotter

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("etcd_is_built"), pytest.mark.timeout(300, func_only=True)]

BINARIES = Path(os.environ.get("KUBEBUILDER_ASSETS", f"~/.cache/gardener/landscape/bin/etcd-{ETCD_VERSION}"))
SCHEDULE = Schedule(
    full="0 0 1 1 *",
    delta_period=timedelta(hours=1),
    delta_bytes=1 << 20,
    full_after_changes=1000,
    garbage_collection_period=timedelta(hours=12),
)


@pytest.fixture(autouse=True)
def binaries(monkeypatch):
    directory = BINARIES.expanduser()
    monkeypatch.setenv("ETCD_BINARY", str(directory / "etcd"))
    monkeypatch.setenv("ETCDUTL_BINARY", str(directory / "etcdutl"))


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    now = datetime.now(UTC)
    options: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": now, "validity": timedelta(days=1)}
    ca = self_signed_ca("ca-etcd", **options)
    server = signed("etcd-server", ca=ca, usage=Usage.SERVER_AND_CLIENT, ip_addresses=["127.0.0.1"], **options)
    client = signed("etcd-client", ca=ca, usage=Usage.CLIENT, **options)
    (directory / "ca.crt").write_bytes(ca.certificate)
    for name, pair in (("server", server), ("client", client)):
        (directory / f"{name}.crt").write_bytes(pair.certificate)
        (directory / f"{name}.key").write_bytes(pair.key)
    return directory


def tls_files(pki: Path) -> dict[str, Path]:
    """As a sidecar's configuration names them."""
    return {
        "ca": pki / "ca.crt",
        "serverCertificate": pki / "server.crt",
        "serverKey": pki / "server.key",
        "clientCertificate": pki / "client.crt",
        "clientKey": pki / "client.key",
    }


class Member:
    """Files and configurations of an etcd's pod, without the pod."""

    def __init__(self, directory: Path, pki: Path, store: dict | None) -> None:
        self.port = free_port()
        self.data = directory / "data" / "new.etcd"
        self.data.parent.mkdir(exist_ok=True)
        self.endpoint = f"https://127.0.0.1:{self.port}"
        files = {"cert-file": str(pki / "server.crt"), "key-file": str(pki / "server.key")}
        self.config: dict[str, Any] = {
            "etcd": {
                "listen-client-urls": self.endpoint,
                "listen-peer-urls": f"http://127.0.0.1:{free_port()}",
                "initial-cluster-token": "token",
                "enable-grpc-gateway": True,
                "client-transport-security": {
                    **files,
                    "trusted-ca-file": str(pki / "ca.crt"),
                    "client-cert-auth": True,
                },
                "log-level": "error",
            },
            "dataDir": str(self.data),
            "runDirectory": str(directory),
            "members": {NAME: "http://etcd-main-0.etcd-main-peer.ns.svc:2380"},
            "advertiseClientUrls": self.endpoint,
            "store": store,
        }
        self._tls = client_tls((pki / "ca.crt").read_bytes(), str(pki / "client.crt"), str(pki / "client.key"))
        self.client = EtcdClient(self.endpoint, self._tls)

    @contextlib.asynccontextmanager
    async def running(self):
        file = await asyncio.to_thread(wrapper.prepare, self.config, NAME)
        process = await asyncio.create_subprocess_exec(os.environ["ETCD_BINARY"], "--config-file", str(file))
        try:
            async with asyncio.timeout(20):
                while True:
                    with contextlib.suppress(EtcdError):
                        await self.client.revision()
                        break
                    await asyncio.sleep(0.05)
            yield self
        finally:
            await self.client.close()
            process.kill()
            await process.wait()

    async def put(self, key: str, value: str) -> None:
        await self.ask("kv/put", {"key": _b64(key), "value": _b64(value)})

    async def ask(self, path: str, body: dict) -> dict:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls)) as session,
            session.post(f"{self.endpoint}/v3/{path}", json=body) as response,
        ):
            assert response.status == 200
            return await response.json()

    async def content(self) -> dict:
        """Everything, with the revisions that clients compare."""
        answer = await self.ask("kv/range", {"key": "AA==", "range_end": "AA=="})
        kept = ("key", "value", "mod_revision", "create_revision", "version")
        found = {item["key"]: {name: item.get(name) for name in kept} for item in answer.get("kvs", [])}
        return {"revision": answer["header"]["revision"], "keys": found}


def interrupt(_seconds: float) -> None:
    """In place of a wait that would not end."""
    raise InterruptedError


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


PERIOD = timedelta(milliseconds=50)


class Landscape:
    def __init__(self, member: Member, bucket: Bucket, directory: Path) -> None:
        self.member = member
        self.bucket = bucket
        self.store = bucket.open()
        self.snapshots = directory / "buckets" / "seed-1" / "entry" / "etcd-main" / "v2"

    def snapshotter(self, **changes) -> Snapshotter:
        return Snapshotter(
            self.member.client,
            self.bucket.open,
            "entry/etcd-main",
            Schedule(**{**SCHEDULE.__dict__, **changes}),
        )

    @contextlib.asynccontextmanager
    async def backed_up(self, **changes):
        snapshotter = self.snapshotter(**changes)
        task = asyncio.create_task(snapshotter.run())
        try:
            await until(lambda: not snapshotter.fault)
            yield snapshotter
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def wipe(self) -> None:
        shutil.rmtree(self.member.data)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.snapshots.iterdir())


@pytest.fixture
async def landscape(tmp_path, pki, bucket):
    return Landscape(Member(tmp_path, pki, bucket.store("entry/etcd-main")), bucket, tmp_path)


async def change_things(member: Member) -> None:
    await member.put("a", "1")
    await member.put("b", "2")
    operations = [
        {"request_put": {"key": _b64(key), "value": _b64("together")}} for key in ("c", "d", "\u00fc", "e" * 2000)
    ]
    await member.ask("kv/txn", {"success": operations})
    await member.ask("kv/deleterange", {"key": _b64("c"), "range_end": _b64("e")})
    await member.put("empty", "")
    await member.put("a", "3")


async def test_a_wiped_directory_comes_back_at_the_same_revision(landscape):
    async with landscape.member.running() as member:
        await member.put("before", "0")
        async with landscape.backed_up() as snapshotter:
            await change_things(member)
            assert (await snapshotter.delta()).last == int((await member.content())["revision"])
            await member.put("later", "9")
            await snapshotter.delta()
        before = await member.content()
    landscape.wipe()
    async with landscape.member.running() as member:
        assert await member.content() == before
        await member.put("after", "1")
    assert [name[:4] for name in landscape.names()] == ["Full", "Incr", "Incr"]


async def test_an_empty_directory_without_backups_starts_empty(landscape):
    async with landscape.member.running() as member:
        assert (await member.content())["keys"] == {}
    status = json.loads((landscape.member.data.parent.parent / "initialization.json").read_text())
    assert status["status"] == "Successful"


async def test_a_sound_directory_is_left_alone_though_the_store_is_down(landscape):
    """A restart must not depend on the backup store."""
    async with landscape.member.running() as member:
        await member.put("a", "1")
        before = await member.content()
    (Path(landscape.member.config["store"]["credentialsDirectory"]) / "endpoint").write_text("http://127.0.0.1:1")
    async with landscape.member.running() as member:
        assert await member.content() == before


async def test_a_damaged_database_is_replaced_by_its_backup_and_set_aside(landscape):
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await change_things(member)
        await snapshotter.delta()
        before = await member.content()
    (landscape.member.data / "member" / "snap" / "db").write_bytes(b"\0" * 65536)
    async with landscape.member.running() as member:
        assert await member.content() == before
    assert len(list(landscape.member.data.parent.glob("new.etcd.broken-*"))) == 1


async def test_a_damaged_database_without_a_backup_is_never_deleted(landscape):
    async with landscape.member.running() as member:
        await member.put("a", "1")
    database = landscape.member.data / "member" / "snap" / "db"
    database.write_bytes(database.read_bytes()[:8192])
    with pytest.raises(RuntimeError, match="there is no backup to restore"):
        await asyncio.to_thread(wrapper.prepare, landscape.member.config, NAME)
    assert database.exists()


async def test_etcd_does_not_start_while_its_backups_are_unknown(landscape, monkeypatch):
    """An empty etcd in place of an unreachable backup would lose the cluster."""
    (Path(landscape.member.config["store"]["credentialsDirectory"]) / "endpoint").write_text("http://127.0.0.1:1")
    monkeypatch.setattr("workers.etcd.wrapper.time.sleep", interrupt)
    with pytest.raises(InterruptedError):
        await asyncio.to_thread(wrapper.prepare, landscape.member.config, NAME)


async def test_an_unreadable_newest_snapshot_is_bridged_by_older_ones(landscape):
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await change_things(member)
        await snapshotter.full()
        await member.put("between", "1")
        await snapshotter.delta()
        newest = await snapshotter.full()
        before = await member.content()
    file = landscape.snapshots / newest.name
    file.write_bytes(file.read_bytes()[:-20])
    landscape.wipe()
    async with landscape.member.running() as member:
        assert await member.content() == before


async def test_later_revisions_in_a_full_snapshot_are_not_taken_for_deltas(landscape):
    """An etcd accepted changes while it was backed up; another one continued from before, without these changes."""
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("common", "1")
        common = await snapshotter.delta()
        await member.put("whose", "the old one's")
        full = await snapshotter.full()
        [late] = [each for each in snapshotter.known if each.first == common.last + 1]
    (landscape.snapshots / full.name).rename(landscape.snapshots / replace(full, last=common.last).name)
    (landscape.snapshots / late.name).unlink()
    writer = DeltaWriter()
    writer.add(Change(late.first, _b64("whose"), _b64("the new one's")))
    (landscape.snapshots / late.name).write_bytes(writer.finish())
    landscape.wipe()
    async with landscape.member.running() as member:
        keys = (await member.content())["keys"]
    assert keys[_b64("whose")]["value"] == _b64("the new one's")
    assert keys[_b64("common")]["value"] == _b64("1")


async def test_a_damaged_delta_is_an_error_and_not_a_silent_loss(landscape):
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await change_things(member)
        delta = await snapshotter.delta()
    file = landscape.snapshots / delta.name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    landscape.wipe()
    with pytest.raises(RestoreFailed, match="damaged"):
        await asyncio.to_thread(wrapper.prepare, landscape.member.config, NAME)
    assert not landscape.member.data.exists()


async def test_a_killed_restore_starts_again(landscape):
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await change_things(member)
        await snapshotter.delta()
        before = await member.content()
    landscape.member.data.rename(landscape.member.data.with_name("new.etcd.part"))
    async with landscape.member.running() as member:
        assert await member.content() == before


async def test_the_sidecar_continues_where_an_earlier_one_stopped(landscape):
    async with landscape.member.running() as member:
        async with landscape.backed_up() as snapshotter:
            await member.put("a", "1")
            first = await snapshotter.delta()
            await member.put("b", "not written yet")
        async with landscape.backed_up() as snapshotter:
            # It has waited for a period already.
            await until(lambda: snapshotter.known[-1].first == first.last + 1)
            before = snapshotter.known[-1]
            await member.put("c", "1")
            second = await snapshotter.delta()
    assert second.first == before.last + 1
    assert len([name for name in landscape.names() if name.startswith("Full")]) == 1


async def test_a_compacted_history_is_answered_by_a_full_snapshot(landscape):
    async with landscape.member.running() as member:
        async with landscape.backed_up():
            pass
        await change_things(member)
        revision = (await member.content())["revision"]
        await member.ask("kv/compaction", {"revision": revision, "physical": True})
        async with landscape.backed_up() as snapshotter:
            await member.put("after", "1")
            await snapshotter.delta()
            before = await member.content()
    landscape.wipe()
    async with landscape.member.running() as member:
        assert await member.content() == before


async def test_changes_that_the_store_refused_are_not_lost(landscape):
    """Their delta is written once the store is back; a gap would end every restore."""
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("a", "1")
        moved = landscape.snapshots.parents[2]
        moved.rename(moved.with_name("gone"))
        with pytest.raises(Exception, match="404"):
            await snapshotter.delta()
        assert snapshotter.fault
        moved.with_name("gone").rename(moved)
        await until(lambda: not snapshotter.fault)
        await member.put("b", "1")
        await snapshotter.delta()
        before = await member.content()
    landscape.wipe()
    async with landscape.member.running() as member:
        assert await member.content() == before


async def test_data_older_than_its_backup_is_not_backed_up_over_it(landscape):
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await change_things(member)
        await snapshotter.delta()
    landscape.wipe()
    store, landscape.member.config["store"] = landscape.member.config["store"], None
    names = landscape.names()
    async with landscape.member.running() as member:
        snapshotter = landscape.snapshotter()
        task = asyncio.create_task(snapshotter.run())
        await until(lambda: "its data is older than its backup" in snapshotter.fault)
        task.cancel()
    assert landscape.names() == names
    landscape.member.config["store"] = store


async def test_many_changes_call_for_a_full_snapshot(landscape):
    async with landscape.member.running() as member, landscape.backed_up(full_after_changes=5) as snapshotter:
        for number in range(6):
            await member.put("a", str(number))
        await until(lambda: len(snapshots.fulls(snapshotter.known)) == 2)


async def test_deltas_that_outweigh_their_full_snapshot_call_for_another(landscape, monkeypatch):
    """Restoring them one by one takes longer than anything else of it."""
    monkeypatch.setattr(snapshotter_module, "_LEAST_FULL", 3000)
    async with landscape.member.running() as member, landscape.backed_up(delta_period=PERIOD) as snapshotter:
        await member.put("a", "1")
        await until(lambda: len(snapshots.since_latest_full(snapshotter.known)[1]) == 1)
        await member.put("b", secrets.token_hex(5000))
        await until(lambda: len(snapshots.fulls(snapshotter.known)) == 2)
    async with landscape.member.running() as member, landscape.backed_up(delta_period=PERIOD) as snapshotter:
        assert not snapshots.since_latest_full(snapshotter.known)[1]
        await member.put("c", secrets.token_hex(1000))
        await until(lambda: len(snapshots.since_latest_full(snapshotter.known)[1]) == 1)
        await member.put("d", secrets.token_hex(5000))
        await until(lambda: len(snapshots.fulls(snapshotter.known)) == 3)


async def test_the_final_snapshot_is_marked_and_taken_though_nothing_changed(landscape):
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("a", "1")
        full = await snapshotter.full()
        assert await snapshotter.full() == full
        final = await snapshotter.full(final=True)
        assert final.name.endswith(".gz.final")
        assert await snapshotter.full(final=True) == final
        before = await member.content()
    landscape.wipe()
    async with landscape.member.running() as member:
        assert await member.content() == before


async def test_the_interface_takes_client_certificates_only(landscape, pki, tmp_path):
    port = free_port()
    config = BackupRestoreConfig.model_validate(
        {
            "address": "127.0.0.1",
            "port": port,
            "endpoint": landscape.member.endpoint,
            "tls": tls_files(pki),
            "store": {**landscape.member.config["store"]},
            "initializationFile": tmp_path / "initialization.json",
            "fullSnapshotSchedule": SCHEDULE.full,
        }
    )
    tls = client_tls((pki / "ca.crt").read_bytes(), str(pki / "client.crt"), str(pki / "client.key"))
    async with (
        landscape.member.running() as member,
        landscape.backed_up() as snapshotter,
        serving(snapshotter, config),
        aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session,
    ):
        await member.put("a", secrets.token_hex())
        async with session.get("/snapshot/full", params={"final": "true"}, ssl=tls) as response:
            answer = await response.json()
        assert (answer["kind"], answer["isFinal"]) == ("Full", True)
        async with session.get("/snapshot/latest", ssl=tls) as response:
            assert (await response.json())["fullSnapshot"] == answer
        async with session.get("/snapshot/delta", ssl=tls) as response:
            assert response.status in (200, 204)
        for path, expected in (("/healthz", '"health": true'), ("/initialization/status", "Successful")):
            async with session.get(path, ssl=tls) as response:
                assert expected in await response.text()
        async with session.get("/metrics", ssl=tls) as response:
            assert "etcdbr_healthy 1" in await response.text()
        with pytest.raises(aiohttp.ClientError):
            await session.get("/snapshot/full", ssl=_without_certificate(pki))


@pytest.mark.parametrize("obeys", [True, False])
def test_a_member_that_is_alone_ends_soon(tmp_path: Path, obeys: bool) -> None:
    """Its clients are not served while it ends, and reconnect to its successor."""
    last = "exit 0" if obeys else ":"
    supervisor = _supervised(
        tmp_path,
        f"trap 'echo told > {tmp_path}/told; {last}' TERM\ntouch {tmp_path}/ready\nwhile :; do sleep 0.1; done",
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    supervisor.terminate()
    assert supervisor.wait(timeout=5) != 0
    assert (tmp_path / "told").exists()


def test_a_member_that_fails_fails_its_container(tmp_path: Path) -> None:
    assert _supervised(tmp_path, "exit 7").wait(timeout=20) == 7


class Supervised:
    """A member in whose place something counts its starts, with a bucket that it looks into."""

    def __init__(self, directory: Path, store: dict[str, Any]) -> None:
        self._pids = directory / "pids"
        self._endpoint = Path(store["credentialsDirectory"], "endpoint")
        self._bucket_is_at = self._endpoint.read_text()
        script = f"echo $$ >> {self._pids}\nwhile :; do sleep 0.1; done"
        self.process = _supervised(directory, script, store=store, takeoverTolerance=1.0)

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self._pids.read_text().split()] if self._pids.exists() else []

    def reach_bucket(self, reached: bool) -> None:
        self._endpoint.write_text(self._bucket_is_at if reached else "http://127.0.0.1:1")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 -- processes are no events
                await asyncio.sleep(0.02)

    def serves(self, starts: int) -> bool:
        """Whether the latest of so many starts is alive."""
        return len(self.pids) == starts and Path(f"/proc/{self.pids[-1]}").exists()

    def is_stopped(self) -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in self.pids)


@pytest.fixture
async def supervised(landscape, tmp_path):
    (tmp_path / "pod").mkdir()
    made = Supervised(tmp_path / "pod", landscape.member.config["store"])
    yield made
    made.process.send_signal(signal.SIGCONT)
    made.process.terminate()
    await asyncio.to_thread(made.process.wait, 10)


async def test_an_etcd_that_cannot_read_its_bucket_stops_until_it_can(supervised):
    """Another seed may have taken over: no change is accepted that would be lost."""
    await supervised.until(lambda: supervised.serves(1))
    supervised.reach_bucket(False)
    await supervised.until(supervised.is_stopped)
    supervised.reach_bucket(True)
    await supervised.until(lambda: supervised.serves(2))
    await asyncio.sleep(1.5)
    assert supervised.serves(2), "it goes on as long as it hears"


async def test_an_etcd_that_finds_that_another_seed_has_taken_over_stops_for_good(supervised, landscape):
    await supervised.until(lambda: supervised.serves(1))
    landscape.snapshots.mkdir(parents=True, exist_ok=True)
    (landscape.snapshots / snapshots.fence_name(7)).touch()
    await supervised.until(supervised.is_stopped)
    await asyncio.sleep(1.5)
    assert supervised.is_stopped()
    assert supervised.process.poll() is None


async def test_an_etcd_whose_history_was_handed_over_may_be_asked_again(landscape):
    """A migration that repeats its last snapshot finds it."""
    witness = wrapper.Witness(landscape.member.config["store"], 1.0)
    landscape.snapshots.mkdir(parents=True, exist_ok=True)
    (landscape.snapshots / snapshots.fence_name(7)).touch()
    assert not await asyncio.to_thread(witness.look)
    assert witness.doubt == "another seed has taken over at revision 7"
    final = snapshots.Snapshot(snapshots.FULL, 0, 7, 1, final=True)
    (landscape.snapshots / final.name).touch()
    assert await asyncio.to_thread(witness.look)
    assert not witness.doubtful


async def test_a_suspended_etcd_checks_its_bucket_before_it_serves(supervised, landscape):
    await supervised.until(lambda: supervised.serves(1))
    supervised.process.send_signal(signal.SIGSTOP)
    landscape.snapshots.mkdir(parents=True, exist_ok=True)
    (landscape.snapshots / snapshots.fence_name(7)).touch()
    await asyncio.sleep(1.5)
    supervised.process.send_signal(signal.SIGCONT)
    await supervised.until(supervised.is_stopped)
    await asyncio.sleep(0.5)
    assert supervised.is_stopped()


def _supervised(directory: Path, script: str, **more: Any) -> "subprocess.Popen[bytes]":
    """The wrapper, with data to start from, around something that is not etcd."""
    etcd = directory / "etcd"
    etcd.write_text(f"#!/bin/sh\n{script}\n")
    etcd.chmod(0o755)
    file = mount(directory, **more)
    environment = {**os.environ, "POD_NAME": NAME, "ETCD_BINARY": str(etcd)}
    return subprocess.Popen([sys.executable, "-m", "workers.etcd.wrapper", str(file)], env=environment)


def _without_certificate(pki: Path):
    import ssl

    return ssl.create_default_context(cafile=str(pki / "ca.crt"))


async def test_an_etcd_that_moves_to_another_bucket_is_the_same_to_the_last_revision(landscape, pki, tmp_path):
    """Clients continue to watch from the revision they have seen: it must mean the same after the move."""
    async with landscape.member.running() as member:
        async with landscape.backed_up() as snapshotter:
            for number in range(30):
                await member.put(f"/registry/{number % 7}", str(number))
                if number == 10:
                    await snapshotter.delta()
            await snapshotter.full(final=True)
        before = await member.content()
        revision = int(before["revision"])
        hashed = await member.ask("maintenance/hashkv", {"revision": revision})

    server = landscape.bucket.server
    await asyncio.to_thread(server.make_bucket, "seed-2")
    credentials = as_mounted(tmp_path / "credentials-of-seed-2", server.credentials)
    target = open_store("local", server.credentials, "seed-2")
    stores = {f"{side}Store": {"container": bucket, "prefix": "entry/etcd-main"}
              for side, bucket in (("source", "seed-1"), ("target", "seed-2"))}  # fmt: skip
    copied = []

    class Controller(CopyBackupsController):
        def __init__(self) -> None: ...

        async def _write(self, task, status) -> None:
            copied.append(status)

    task = {"metadata": {"namespace": "shoot"}, "spec": stores}
    assert await Controller()._copy(Key("shoot", "demo"), task, landscape.store, target) == ""
    assert copied[-1]["conditions"][0]["type"] == "Succeeded"

    place = tmp_path / "destination"
    place.mkdir()
    store = {"provider": "local", "bucket": "seed-2", "prefix": "entry/etcd-main",
             "credentialsDirectory": str(credentials)}  # fmt: skip
    async with Member(place, pki, store).running() as moved:
        assert await moved.content() == before
        again = await moved.ask("maintenance/hashkv", {"revision": revision})
        assert again["hash"] == hashed["hash"]


class Follower:
    """An etcd in another seed that takes over what the first one's sidecar writes."""

    def __init__(self, landscape: Landscape, pki: Path, directory: Path) -> None:
        directory.mkdir()
        credentials = directory / "source-credentials"
        shutil.copytree(landscape.member.config["store"]["credentialsDirectory"], credentials)
        (credentials / "bucketName").write_text("seed-1")
        self._pki = pki
        self.member = Member(directory, pki, None)
        source = {"provider": "local", "prefix": "entry/etcd-main", "credentialsDirectory": str(credentials)}
        self.member.config["source"] = source

    @property
    def status(self) -> dict:
        file = Path(self.member.config["runDirectory"], wrapper.INITIALIZATION_FILE)
        return json.loads(file.read_text()) if file.exists() else {}

    @contextlib.asynccontextmanager
    async def preparing(self, landscape: Landscape):
        """Ends when it has taken over."""
        task = asyncio.create_task(asyncio.to_thread(wrapper.prepare, self.member.config, NAME))
        try:
            yield
        except BaseException:
            (landscape.snapshots / snapshots.fence_name(0)).touch()  # a thread cannot be canceled
            raise
        await task

    async def ask(self, *command: str) -> str:
        """As an API server does: by gRPC, where etcd knows its clients by their certificates."""
        done, answer, fault = await self._run(*command)
        assert done, fault
        return answer

    async def takes(self, key: str) -> bool:
        """A change: not while one etcd ends and the next one takes its connections."""
        return (await self._run("put", key, "1"))[0]

    async def _run(self, *command: str) -> tuple[bool, str, str]:
        tls = [f"--cacert={self._pki}/ca.crt", f"--cert={self._pki}/client.crt", f"--key={self._pki}/client.key"]
        program = Path(os.environ["ETCDUTL_BINARY"]).with_name("etcdctl")
        asked = await asyncio.create_subprocess_exec(
            program, f"--endpoints={self.member.endpoint}", *tls, *command,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        answer, fault = await asked.communicate()
        return asked.returncode == 0, answer.decode(), fault.decode()

    def supervised(self) -> Path:
        """The wrapper's configuration, with TLS files as the kubelet mounts them."""
        mounted = self.member.data.parent / "tls"
        shutil.copytree(self._pki, mounted / "..1")
        (mounted / "..data").symlink_to("..1")
        security = self.member.config["etcd"]["client-transport-security"]
        for name, file in security.items():
            if isinstance(file, str):
                (mounted / Path(file).name).unlink(missing_ok=True)
                (mounted / Path(file).name).symlink_to(f"..data/{Path(file).name}")
                security[name] = str(mounted / Path(file).name)
        self.member.config["etcd"]["socket-options"] = {"reuse-port": True}
        self.member.config["tlsDirectory"] = str(mounted)
        file = mounted.with_name("wrapper.json")
        file.write_text(json.dumps(self.member.config))
        return file

    async def reaches(self, revision: int) -> None:
        await until(lambda: self.status.get("revision") == revision)


async def test_an_etcd_replicates_and_serves_when_the_history_has_ended(landscape, pki, tmp_path):
    """The destination reads all but the last changes before the source stops, and only one of them accepts writes."""
    follower = Follower(landscape, pki, tmp_path / "destination")
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("first", "1")
        async with follower.preparing(landscape):
            await follower.reaches((await snapshotter.delta()).last)
            await change_things(member)
            await follower.reaches((await snapshotter.delta()).last)
            assert await follower.ask("get", "a", "--print-value-only") == "3\n"
            for change in (["put", "a", "4"], ["del", "a"]):
                with pytest.raises(AssertionError, match="permission denied"):
                    await follower.ask(*change)
            await member.put("last", "1")
            await snapshotter.full(final=True)
        before = await member.content()
        hashed = await member.ask("maintenance/hashkv", {"revision": int(before["revision"])})
    assert follower.status["status"] == "Successful"
    async with follower.member.running() as moved:
        assert await moved.content() == before
        again = await moved.ask("maintenance/hashkv", {"revision": int(before["revision"])})
        assert again["hash"] == hashed["hash"]
        await moved.put("after", "1")


async def test_reads_continue_from_the_replicating_etcd_to_the_serving_one(landscape, pki, tmp_path):
    """An API server that is refused waits a second, and its users with it."""
    follower = Follower(landscape, pki, tmp_path / "destination")
    file = follower.supervised()
    refused = 0

    async def connect() -> None:
        nonlocal refused
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", follower.member.port))[1].close()
            except ConnectionRefusedError:
                refused += 1
            await asyncio.sleep(0.01)

    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("first", "1")
        wrapped = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "workers.etcd.wrapper",
            str(file),
            env={**os.environ, "POD_NAME": NAME},
            start_new_session=True,
        )
        try:
            await follower.reaches((await snapshotter.delta()).last)
            connecting = asyncio.create_task(connect())
            await snapshotter.full(final=True)
            await until(lambda: follower.status["status"] == "Successful")
            await until(lambda: follower.takes("after"))
            connecting.cancel()
            assert refused == 0
            assert await follower.ask("get", "first", "--print-value-only") == "1\n"
        finally:
            wrapped.terminate()
            assert await asyncio.wait_for(wrapped.wait(), 10) == 143
            # An etcd that it was still ending would end with its container.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(wrapped.pid, signal.SIGKILL)
            await follower.member.client.close()


@pytest.mark.parametrize("early", [True, False], ids=["before the next one starts", "while it starts"])
def test_a_replicating_etcd_stops_if_another_seed_may_have_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """It takes changes once it has followed to the end, so it stops like any other etcd."""
    monkeypatch.setattr(wrapper, "_LOOK_SECONDS", 0.01)
    config = {"etcd": {}, "tlsDirectory": str(tmp_path)}
    ended, looks = [], 0

    class Doubt(wrapper.Witness):
        @property
        def doubtful(self) -> bool:
            nonlocal looks
            looks += 1
            if looks > 3:
                supervisor._told_to_end()
            return early or looks > 1

    readers = contextlib.ExitStack()
    readers.callback(lambda: ended.append(looks))
    supervisor = wrapper.Supervisor(config, tmp_path, Doubt({}, 1.0), readers)
    monkeypatch.setattr(supervisor, "_start", lambda _: 0)
    monkeypatch.setattr(supervisor, "_bound", lambda: 1)
    supervisor._started_by_right("1")
    assert ended == [1 if early else 2]


async def test_an_etcd_killed_after_a_takeover_accepts_writes_at_its_next_start(landscape, pki, tmp_path, monkeypatch):
    """Its data is the cluster's state then: it is not restored again, and does not stay read only."""
    follower = Follower(landscape, pki, tmp_path / "destination")
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("first", "1")
        await snapshotter.full(final=True)
        before = await member.content()
    with monkeypatch.context() as killed:
        killed.setattr("workers.etcd.restore._unseal", lambda *_: interrupt(0))
        with pytest.raises(InterruptedError):
            await asyncio.to_thread(wrapper.prepare, follower.member.config, NAME)
    async with follower.member.running() as moved:
        assert await moved.content() == before
        await moved.put("after", "1")


async def test_an_etcd_takes_over_at_the_takeover_marker_and_ignores_later_writes(landscape, pki, tmp_path):
    follower = Follower(landscape, pki, tmp_path / "destination")
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("first", "1")
        last = (await snapshotter.delta()).last
        before = await member.content()
        await member.put("too late", "1")
        await snapshotter.full(final=True)
        (landscape.snapshots / snapshots.fence_name(last)).touch()
    async with follower.member.running() as moved:
        assert (await moved.content())["keys"] == before["keys"]


async def watched_to_its_end(client: EtcdClient, revision: int) -> None:
    async for _ in client.watch(revision):
        pass


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "handed over"])
async def test_clients_that_saw_lost_changes_list_all_objects_again(landscape, pki, tmp_path, lost):
    """A continued watch would wait for a revision that means something else now, and miss earlier changes."""
    follower = Follower(landscape, pki, tmp_path / "destination")
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("first", "1")
        last = (await (snapshotter.delta() if lost else snapshotter.full(final=True))).last
        (landscape.snapshots / snapshots.fence_name(last)).touch()
        for number in range(5):
            await member.put("lost", str(number))
        seen = await member.client.revision()
    async with follower.member.running() as moved:
        assert (await moved.client.revision() > seen) is lost
        if lost:
            with pytest.raises(Compacted):
                await asyncio.wait_for(watched_to_its_end(moved.client, seen + 1), 10)
        await moved.put("after", "1")


@pytest.mark.parametrize(
    ("final", "waited_for", "waits"),
    [(True, False, False), (False, False, True), (False, True, False)],
    ids=["handed over", "lost", "waited for by the copy"],
)
async def test_a_replicating_etcd_serves_once_the_source_must_have_stopped(
    landscape, pki, tmp_path, monkeypatch, final, waited_for, waits
):
    """One that is cut off from its bucket serves on until it has heard nothing for too long."""
    waited = []
    follower = Follower(landscape, pki, tmp_path / "destination")

    def wait(seconds: float) -> None:
        waited.append(seconds)
        assert seconds < 1.0 or not follower.member.data.exists(), "killed now, it would serve at its next start"

    monkeypatch.setattr("workers.etcd.wrapper.time.sleep", wait)
    follower.member.config["takeoverTolerance"] = 60.0
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("first", "1")
        last = (await snapshotter.full(final=final)).last
        (landscape.snapshots / snapshots.fence_name(last)).touch()
        if waited_for:
            (landscape.snapshots / snapshots.silence_name(last)).touch()
    await asyncio.to_thread(wrapper.prepare, follower.member.config, NAME)
    assert follower.status["status"] == "Successful"
    assert (62.0 in waited) is waits


async def test_a_superseded_etcd_takes_no_snapshots_and_accepts_no_writes(landscape, monkeypatch):
    """It was cut off, another seed has taken over, and it comes back."""
    monkeypatch.setattr("workers.etcd.snapshotter._TAKEOVER_SECONDS", 0.1)
    async with landscape.member.running() as member, landscape.backed_up() as snapshotter:
        await member.put("served", "1")
        (landscape.snapshots / snapshots.fence_name(1)).touch()
        names = landscape.names()
        await until(lambda: "another seed has taken over at revision 1" in snapshotter.fault)
        with pytest.raises(AssertionError):
            await member.put("late", "1")
        with pytest.raises(AssertionError):
            await member.ask("kv/deleterange", {"key": _b64("served")})
        assert landscape.names() == names


async def test_the_final_snapshot_can_be_requested_again_after_a_handover(landscape):
    """The flow that moves it may have been killed, and starts again."""
    async with landscape.member.running() as member:
        async with landscape.backed_up() as snapshotter:
            await member.put("a", "1")
            final = await snapshotter.full(final=True)
        (landscape.snapshots / snapshots.fence_name(final.last)).touch()
        snapshotter = landscape.snapshotter()
        task = asyncio.create_task(snapshotter.run())
        await until(lambda: "taken over" in snapshotter.fault)
        assert await snapshotter.full(final=True) == final
        task.cancel()


async def test_an_etcd_with_newer_backups_of_its_own_does_not_replicate(landscape, pki, tmp_path):
    """It has taken over long ago; the old seed's bucket is only not yet removed."""
    follower = Follower(landscape, pki, tmp_path / "destination")
    async with landscape.member.running(), landscape.backed_up() as snapshotter:
        await snapshotter.full(final=True)
        old, newer = landscape.names(), [snapshots.Snapshot("Full", 0, 1000, 1).name]
        assert await asyncio.to_thread(wrapper.found_elsewhere, follower.member.config, old)
        assert not await asyncio.to_thread(wrapper.found_elsewhere, follower.member.config, newer)
    assert not wrapper.found_elsewhere({**follower.member.config, "source": None}, [])


async def test_a_request_to_any_sidecar_reaches_the_sidecar_of_the_leader(pki, monkeypatch):
    """The Service routes to any of them."""
    tls = client_tls((pki / "ca.crt").read_bytes(), str(pki / "client.crt"), str(pki / "client.key"))
    taken = snapshots.Snapshot("Full", 0, 7, 1, final=True)
    where = {"leader": ""}

    async def leader() -> str:
        return where["leader"]

    async def elsewhere() -> str:
        return "https://127.0.0.1:2379"

    async def full(*, final: bool) -> snapshots.Snapshot:
        assert final
        return taken

    port = free_port()
    config = BackupRestoreConfig.model_validate(
        {
            "address": "127.0.0.1",
            "port": port,
            "endpoint": "https://127.0.0.1:2379",
            "tls": tls_files(pki),
            "store": {"provider": "local", "bucket": "b", "prefix": "p", "credentialsDirectory": "/"},
            "initializationFile": "/dev/null",
            "fullSnapshotSchedule": SCHEDULE.full,
        }
    )
    leads = _Forwarding(cast(EtcdClient, SimpleNamespace(leader=leader)), tls, port)
    passes_on = _Forwarding(cast(EtcdClient, SimpleNamespace(leader=elsewhere)), tls, port)
    follows = application_of_sidecar(cast(Snapshotter, None), config, passes_on)
    async with (
        serving(cast(Snapshotter, SimpleNamespace(full=full, fault="", known=[])), config, leads),
        TestClient(TestServer(follows)) as client,
    ):
        answer = await client.get("/snapshot/full?final=true")
        assert (answer.status, (await answer.json())["lastRevision"]) == (200, 7)
        where["leader"] = "https://127.0.0.1:2379"
        answer = await client.get("/snapshot/full?final=true")
        assert (answer.status, await answer.text()) == (503, "the leader changes, ask again")

"""Real etcds of several members, with their wrappers: members come, are killed and lose their data."""

import asyncio
import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from activities.secrets.crypto import KeyAlgorithm, Usage, self_signed_ca, signed
from etcd import s3, snapshots
from etcd.client import EtcdClient, client_tls
from etcd.store import open_store
from tests.unit.etcd.test_backup_and_restore import BINARIES, SCHEDULE
from tests.unit.kube.waiting import until
from workers.etcd.membership import Membership
from workers.etcd.snapshotter import Snapshotter
from workers.etcd.wrapper import STOP_SECONDS

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("etcd_is_built"), pytest.mark.timeout(240, func_only=True)]

_PORTS = iter(random.sample(range(15_000, 30_000), 5_000))
NAMES = [f"etcd-main-{number}" for number in range(3)]
EARLIER = """
import sys
from workers.etcd import membership, wrapper

def data(self):
    found = [membership.data_of(membership.Path(self._config["dataDir"]))]
    for name, url in self._section["wrappers"].items():
        if name != self._name:
            found.append(membership._get(f"{url}/data")["data"])
    return found

membership.Membership._data = data
membership._TLS_HANDSHAKE = b"none begins so"
wrapper.main(sys.argv[1])
"""
"""A wrapper of the version before members had certificates for each other: it asks and answers without TLS."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Path:
    """TLS files as a pod has them mounted."""
    directory = tmp_path_factory.mktemp("pki")
    options: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": timedelta(days=1)}
    for side in ("client", "peer"):
        ca = self_signed_ca(f"ca-{side}", **options)
        pairs = {"server": signed("s", ca=ca, usage=Usage.SERVER_AND_CLIENT, ip_addresses=["127.0.0.1"], **options)}
        if side == "client":
            pairs["client"] = signed("etcd-client", ca=ca, usage=Usage.CLIENT, **options)
        (directory / f"{side}-ca").mkdir()
        (directory / f"{side}-ca/bundle.crt").write_bytes(ca.certificate)
        for role, pair in pairs.items():
            (directory / f"{side}-{role}").mkdir()
            (directory / f"{side}-{role}/tls.crt").write_bytes(pair.certificate)
            (directory / f"{side}-{role}/tls.key").write_bytes(pair.key)
    return directory


def port() -> int:
    """A port that no process gets for an outgoing connection meanwhile."""
    for number in _PORTS:
        with socket.socket() as opened, contextlib.suppress(OSError):
            opened.bind(("127.0.0.1", number))
            return number
    raise AssertionError("all ports are taken")


class Member:
    """Files and configurations of a pod, without the pod."""

    def __init__(self, pod: str, directory: Path, pki: Path, prefix: str = "") -> None:
        name = self.name = prefix + pod
        self.directory = directory / name
        self.data = self.directory / "data" / "new.etcd"
        self.data.parent.mkdir(parents=True)
        self.tls = self.directory / "tls"
        shutil.copytree(pki, self.tls / "..1")
        (self.tls / "..data").symlink_to("..1")
        for mounted in (self.tls / "..1").iterdir():
            (self.tls / mounted.name).symlink_to(f"..data/{mounted.name}")
        self.ports = {what: port() for what in ("client", "peer", "metrics", "wrapper")}
        self.process: subprocess.Popen | None = None
        self.earlier = False
        """Whether its wrapper is of the version before."""
        self._environment = {
            "POD_NAME": pod,
            "ETCD_BINARY": str(BINARIES.expanduser() / "etcd"),
            "ETCDUTL_BINARY": str(BINARIES.expanduser() / "etcdutl"),
            "PATH": os.environ["PATH"],
        }

    def url(self, what: str) -> str:
        scheme = "http" if what in ("metrics", "wrapper") else "https"
        return f"{scheme}://127.0.0.1:{self.ports[what]}"

    def start(self, config: dict) -> None:
        (self.directory / "wrapper.json").write_text(json.dumps(config))
        self.restart()

    def restart(self) -> None:
        wrapper = ["-c", EARLIER] if self.earlier else ["-m", "workers.etcd.wrapper"]
        command = [sys.executable, *wrapper, str(self.directory / "wrapper.json")]
        self.process = subprocess.Popen(command, env=self._environment, start_new_session=True)

    def kill(self) -> None:
        """As the kernel ends a container."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Stop it as the kubelet does; processes that are left are killed."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.kill()


class Several:
    """An etcd of three members; with ``prefix`` it is the etcd of a seed that a control plane moves to."""

    def __init__(self, directory: Path, pki: Path, store: dict | None = None, prefix: str = "") -> None:
        self.prefix = prefix
        self.existing = directory / f"{prefix}existing.json"
        self.members = [Member(name, directory, pki, prefix) for name in NAMES]
        self.store = store
        self.tolerance: float | None = None
        self.tls = client_tls(
            (pki / "client-ca/bundle.crt").read_bytes(),
            str(pki / "client-client/tls.crt"),
            str(pki / "client-client/tls.key"),
        )
        self.written: dict[str, str] = {}
        """Writes that etcd has confirmed."""

    def config(self, member: Member, *, alone: bool = False) -> dict:
        def security(side: str) -> dict:
            return {
                "cert-file": f"{member.tls}/{side}-server/tls.crt",
                "key-file": f"{member.tls}/{side}-server/tls.key",
                "trusted-ca-file": f"{member.tls}/{side}-ca/bundle.crt",
                "client-cert-auth": True,
            }

        etcd = {
            "listen-client-urls": member.url("client"),
            "listen-peer-urls": member.url("peer"),
            "listen-metrics-urls": member.url("metrics"),
            "initial-cluster-token": "shoot--one/etcd-main",
            "enable-grpc-gateway": True,
            "client-transport-security": security("client"),
            "peer-transport-security": {**security("peer"), "skip-client-san-verification": True},
            "log-level": "error",
        }
        config = {
            "etcd": etcd,
            "dataDir": str(member.data),
            "runDirectory": str(member.directory),
            "tlsDirectory": str(member.tls),
            "advertiseClientUrls": member.url("client"),
            "store": self.store,
            "takeoverTolerance": self.tolerance,
        }
        if alone:
            del etcd["peer-transport-security"]
            etcd["listen-peer-urls"] = f"http://127.0.0.1:{member.ports['peer']}"
            return {**config, "members": {member.name: "http://etcd-main-0.etcd-main-peer.one.svc:2380"}}
        return {
            **config,
            "members": {each.name: each.url("peer") for each in self.members},
            "memberNamePrefix": self.prefix,
            "membership": {
                "existing": str(self.existing),
                "clients": {each.name: each.url("client") for each in self.members},
                "wrappers": {each.name: each.url("wrapper") for each in self.members},
                "tls": {
                    "ca": f"{member.tls}/client-ca/bundle.crt",
                    "certificate": f"{member.tls}/client-client/tls.crt",
                    "key": f"{member.tls}/client-client/tls.key",
                },
            },
        }

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.members[number].start(self.config(self.members[number]))

    async def ready(self, *numbers: int) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(90):
            for number in numbers:
                while True:
                    process = self.members[number].process
                    if process is None or process.poll() is not None:
                        self.members[number].restart()
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(f"{self.members[number].url('wrapper')}/readyz") as answer:
                            if answer.status == 200:
                                break
                    await asyncio.sleep(0.05)

    async def ask(self, number: int, path: str, body: dict) -> dict:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.tls)) as session,
            session.post(
                f"{self.members[number].url('client')}/v3/{path}", json=body, timeout=aiohttp.ClientTimeout(total=5)
            ) as response,
        ):
            assert response.status == 200, await response.text()
            return await response.json()

    def listens(self, number: int) -> bool:
        """Whether this member's etcd takes connections of clients."""
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.members[number].ports["client"])) == 0

    async def listed(self, number: int) -> dict[str, dict]:
        there = (await self.ask(number, "cluster/member/list", {"linearizable": True}))["members"]
        return {each.get("name", ""): each for each in there}

    async def put(self, number: int, key: str, value: str = "1") -> None:
        await self.ask(number, "kv/put", {"key": _b64(key), "value": _b64(value)})
        self.written[_b64(key)] = _b64(value)

    async def content(self, number: int) -> dict[str, str]:
        """Content as this member holds it, whatever the others do."""
        answer = await self.ask(number, "kv/range", {"key": "AA==", "range_end": "AA==", "serializable": True})
        return {each["key"]: each["value"] for each in answer.get("kvs", [])}

    async def all_hold_everything(self) -> None:
        """Check that members have all confirmed writes and equal data: the last write may lack its confirmation."""
        held: list[dict[str, str]] = []
        async with asyncio.timeout(20):
            while len({json.dumps(each, sort_keys=True) for each in held}) != 1:
                held = [await self.content(number) for number in range(3)]
        assert self.written.items() <= held[0].items()

    @contextlib.asynccontextmanager
    async def being_written_to(self) -> AsyncIterator[None]:
        """Write all the time, through any member that serves, and record confirmed writes."""

        async def write() -> None:
            number = 0
            while True:
                for member in range(3):
                    with contextlib.suppress(aiohttp.ClientError, AssertionError, TimeoutError):
                        await self.put(member, f"written-{number}")
                        number += 1
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def several(tmp_path, pki):
    made = Several(tmp_path, pki)
    yield made
    for member in made.members:
        member.kill()


async def test_three_members_find_each_other(several):
    several.start(0, 1, 2)
    await several.ready(0, 1, 2)
    there = await several.listed(1)
    assert sorted(there) == NAMES
    assert not any(each.get("isLearner") for each in there.values())
    await several.put(2, "a")
    await several.all_hold_everything()


async def test_an_etcd_of_one_member_gets_others_and_loses_nothing(several):
    """Its peers could not find it where it was: on loopback, without TLS."""
    first = several.members[0]
    first.start(several.config(first, alone=True))
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                await several.put(0, "before")
                break
            await asyncio.sleep(0.05)
    several.start(1, 2)
    async with several.being_written_to():
        await asyncio.sleep(1)
        assert not any(member.data.exists() for member in several.members[1:])
        first.stop()
        several.start(0)
        await several.ready(0, 1, 2)
    assert {name: each["peerURLs"] for name, each in (await several.listed(0)).items()} == {
        member.name: [member.url("peer")] for member in several.members
    }
    await several.all_hold_everything()


@pytest.mark.parametrize("lost", [0, 2])
async def test_a_member_that_lost_its_data_joins_again(several, lost):
    """The first member joins again, too, though it starts a new cluster where there is none."""
    several.start(0, 1, 2)
    await several.ready(0, 1, 2)
    before = await several.listed(1)
    async with several.being_written_to():
        several.members[lost].kill()
        shutil.rmtree(several.members[lost].data)
        await asyncio.sleep(1)
        several.start(lost)
        await several.ready(lost)
    after = await several.listed(1)
    assert sorted(after) == NAMES
    assert after[NAMES[lost]]["ID"] != before[NAMES[lost]]["ID"]
    assert not any(each.get("isLearner") for each in after.values())
    await several.all_hold_everything()


async def test_members_that_are_killed_come_back_and_two_serve_meanwhile(several):
    several.start(0, 1, 2)
    await several.ready(0, 1, 2)
    before = await several.listed(0)
    async with several.being_written_to():
        for number in (0, 1, 2):
            several.members[number].kill()
            written = len(several.written)
            await until(lambda: len(several.written) >= written + 5)
            several.start(number)
            await several.ready(number)
    assert {name: each["ID"] for name, each in (await several.listed(0)).items()} == {
        name: each["ID"] for name, each in before.items()
    }
    await several.all_hold_everything()


async def test_a_stopping_member_hands_over_leadership(several):
    several.start(0, 1, 2)
    await several.ready(0, 1, 2)
    leaders = [(await several.ask(number, "maintenance/status", {})) for number in range(3)]
    leader = next(i for i, each in enumerate(leaders) if each.get("leader") == each["header"]["member_id"])
    other = (leader + 1) % 3
    several.members[leader].process.terminate()
    async with asyncio.timeout(10):
        # None is left out: that is the moment between two.
        while (await several.ask(other, "maintenance/status", {})).get("leader") in (None, leaders[leader]["leader"]):
            pass
    await several.put(other, "at once")
    assert several.members[leader].process.wait(10) == 143


async def test_the_first_member_starts_no_cluster_before_it_knows_the_data_of_others(several):
    """They may be down for a moment, and hold everything."""
    several.start(0, 1, 2)
    await several.ready(0, 1, 2)
    await several.put(0, "a")
    for member in several.members:
        member.kill()
    shutil.rmtree(several.members[0].data)
    several.start(0, 1)
    await asyncio.sleep(4)
    assert not several.members[0].data.exists()
    several.start(2)
    await several.ready(0, 1, 2)
    await several.all_hold_everything()


@pytest.mark.slow
@pytest.mark.parametrize("added_first", [False, True])
async def test_a_member_killed_while_it_joins_joins_again(several, added_first):
    """Between being added and starting, and as soon as its etcd has started."""
    several.start(0, 1)
    several.start(2)
    await several.ready(0, 1, 2)
    async with several.being_written_to():
        third = several.members[2]
        third.kill()
        shutil.rmtree(third.data)
        if added_first:
            await asyncio.to_thread(Membership(several.config(third), third.name).join, backed_up=False)
        for after in (0.1, 0.4, 0.8, 1.2, 1.6):
            several.start(2)
            await asyncio.sleep(after)
            third.kill()
        several.start(2)
        await several.ready(2)
    assert sorted(await several.listed(0)) == NAMES
    await several.all_hold_everything()


@pytest.fixture
async def backed_up(tmp_path, pki, bucket):
    made = Several(tmp_path, pki, bucket.store("e/etcd-main"))
    yield made
    for member in made.members:
        member.kill()


async def back_up(several: Several) -> None:
    assert several.store
    credentials = s3.mounted(Path(several.store["credentialsDirectory"]))
    async with EtcdClient(several.members[0].url("client"), several.tls) as client:
        snapshotter = Snapshotter(client, lambda: open_store("local", credentials, "seed-1"), "e/etcd-main", SCHEDULE)
        await snapshotter.full()


@pytest.mark.slow
async def test_if_all_have_lost_their_data_the_first_restores_the_backup_and_the_others_join(backed_up):
    backed_up.start(0, 1, 2)
    await backed_up.ready(0, 1, 2)
    await backed_up.put(1, "a")
    await back_up(backed_up)
    for member in backed_up.members:
        member.kill()
        shutil.rmtree(member.data)
    backed_up.start(1, 2)
    await asyncio.sleep(2)
    assert not any(member.data.exists() for member in backed_up.members)
    backed_up.start(0)
    await backed_up.ready(0, 1, 2)
    await backed_up.all_hold_everything()


@pytest.mark.slow
async def test_every_member_stops_where_another_seed_has_taken_over(backed_up, tmp_path):
    """Two members that do not know of the takeover would continue to serve."""
    backed_up.tolerance = 3.0
    backed_up.start(0, 1, 2)
    await backed_up.ready(0, 1, 2)
    await backed_up.put(1, "a")
    await back_up(backed_up)
    (tmp_path / "buckets/seed-1/e/etcd-main/v2" / snapshots.fence_name(2)).touch()
    begun = asyncio.get_running_loop().time()
    for number in range(3):
        left = begun + backed_up.tolerance + STOP_SECONDS - asyncio.get_running_loop().time()
        await until(lambda: not backed_up.listens(number), left)
        with pytest.raises(aiohttp.ClientConnectorError):
            await backed_up.put(number, "late")


def upgrade(several: Several, *numbers: int) -> None:
    for number in numbers:
        several.members[number].stop()
        several.members[number].earlier = False
        several.start(number)


@pytest.mark.slow
async def test_members_of_the_version_before_are_upgraded_one_by_one_and_lose_nothing(several):
    """In the order of a StatefulSet."""
    for member in several.members:
        member.earlier = True
    several.start(0, 1, 2)
    await several.ready(0, 1, 2)
    async with several.being_written_to():
        for number in (2, 1, 0):
            upgrade(several, number)
            await several.ready(0, 1, 2)
    await several.all_hold_everything()


@pytest.mark.slow
async def test_during_an_upgrade_the_first_member_of_the_old_version_starts_the_cluster(backed_up):
    """The StatefulSet replaces no further pod before the last one is ready, so the first member would wait for ever."""
    for member in backed_up.members:
        member.earlier = True
    backed_up.start(0, 1, 2)
    await backed_up.ready(0, 1, 2)
    await backed_up.put(1, "a")
    await back_up(backed_up)
    for member in backed_up.members:
        member.kill()
        shutil.rmtree(member.data)
    upgrade(backed_up, 2)
    backed_up.start(0, 1)
    await backed_up.ready(0, 1, 2)
    await backed_up.all_hold_everything()


@pytest.mark.slow
async def test_the_first_member_believes_no_member_of_the_version_before_that_has_no_certificate(several):
    for number in (1, 2):
        several.members[number].earlier = True
    several.start(0, 1, 2)
    await asyncio.sleep(4)
    assert not several.members[0].data.exists()
    upgrade(several, 2, 1)
    await several.ready(0, 1, 2)

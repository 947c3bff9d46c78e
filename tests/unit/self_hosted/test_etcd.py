"""Real etcds, with the files of the static pods: further machines join, one is lost for good, and backups come back."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from activities.components import static_etcd
from activities.self_hosted import control_plane
from activities.self_hosted.join import seal, take
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import InitTask, Machine, SelfHostedManifest
from etcd.client import EtcdClient, EtcdError, client_tls
from tests.unit.etcd.test_backup_and_restore import BINARIES
from tests.unit.etcd.test_membership import port
from tests.unit.kube.waiting import until
from tests.unit.self_hosted.test_control_plane import MANIFEST

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("etcd_is_built"), pytest.mark.timeout(240, func_only=True)]
KEY = b"k" * 32


class Node:
    """A machine of the control plane, of which only etcd runs. Each has an address of the loopback network."""

    def __init__(self, directory: Path, number: int) -> None:
        self.name, self.address = f"cp-{number}", f"127.0.0.{number + 1}"
        self.directory = directory / self.name
        (self.directory / "state").mkdir(parents=True)
        machine = Machine(node=self.name, address=self.address)
        self.task = InitTask(
            directory=self.directory / "state", shoot=SelfHostedManifest.read(MANIFEST), machine=machine
        )
        (self.task.directory / "uid").write_text("uid")
        self.secrets = FileSecrets(self.task.directory / "secrets")
        self.ports = {each: port() for each in (2379, 2380, 2381, 9095)}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.ports[2379]}"

    def make_secrets(self) -> None:
        for each in (
            *control_plane.authorities(),
            *(each for each in control_plane.certificates(self.task, b"") if each.name.startswith("etcd-")),
        ):
            self.secrets.ensure(each)

    def join(self, other: "Node") -> None:
        """Get the keys of another machine, as ``gardener shoot join`` does."""
        take(self.task.directory, self.task.shoot, KEY, seal(other.task.directory, other.task.shoot, KEY, []))
        (self.task.directory / "existing.json").write_bytes(static_etcd.existing([other.url]))

    def start(self) -> None:
        """Run the command of the static pod with its files, at other places, and with other ports."""
        self.make_secrets()
        there = self.task.directory / "existing.json"
        existing = there.read_bytes() if there.exists() else None
        shoot = self.task.shoot
        made = static_etcd.pod(self.name, self.address, self.secrets.all(), shoot.technical_id, existing=existing)
        pod, own = made.manifest["spec"], self.directory / "pod"
        shutil.rmtree(own, ignore_errors=True)
        for path, content in made.files.items():
            file = own / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        [container] = pod["containers"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        places = {}
        for each in container["volumeMounts"]:
            source = volumes[each["name"]].get("hostPath", {}).get("path") or f"/{each['name']}"
            places[each["mountPath"]] = str(own if source.startswith("/var/lib/static") else self.directory) + source
            Path(places[each["mountPath"]]).mkdir(parents=True, exist_ok=True)
        config = Path(places["/var/etcd/config"], "wrapper.json")
        text = config.read_text()
        for number, mine in self.ports.items():
            text = text.replace(f":{number}", f":{mine}")
        for mounted, real in places.items():
            text = text.replace(mounted, real)
        config.write_text(text)
        environment = {
            "POD_NAME": container["env"][0]["value"],
            "ETCD_BINARY": str(BINARIES.expanduser() / "etcd"),
            "ETCDUTL_BINARY": str(BINARIES.expanduser() / "etcdutl"),
            "PATH": os.environ["PATH"],
        }
        command = [sys.executable, *container["command"][1:-1], str(config)]
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def client(self) -> EtcdClient:
        files = self.task.directory / "secrets"
        pair = (str(files / "etcd-client/tls.crt"), str(files / "etcd-client/tls.key"))
        return EtcdClient(self.url, client_tls((files / "ca-etcd-bundle/bundle.crt").read_bytes(), *pair))

    async def members(self) -> set[str]:
        """Members with a vote; none if this one does not answer."""
        async with self.client() as client:
            try:
                return {each.name for each in await client.members() if each.name and not each.is_learner}
            except EtcdError:
                return set()

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        async with self.client() as client:
            return await client._ask(path, body)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    made = [Node(tmp_path, number) for number in (1, 2, 3, 4)]
    yield made
    for each in made:
        each.kill()


async def test_machines_join_and_one_that_is_lost_is_replaced(nodes: list[Node]) -> None:
    first, second, third, fourth = nodes
    first.start()
    await until(lambda: first.members(), 60)
    await first.ask("kv/put", key="a2V5", value="dmFsdWU=")
    for each in (second, third):
        each.join(first)
        each.start()
        each.kill()
        each.start()
        await until(partial(_is_in, each), 90)
    assert await first.members() == {"cp-1", "cp-2", "cp-3"}

    first.kill()
    shutil.rmtree(first.directory)
    async with second.client() as client:
        await until(lambda: _removed(client, "cp-1"), 60)
    fourth.join(third)
    fourth.start()
    await until(lambda: _is_in(fourth), 90)

    assert await fourth.members() == {"cp-2", "cp-3", "cp-4"}
    assert (await fourth.ask("kv/range", key="a2V5"))["kvs"][0]["value"] == "dmFsdWU="


async def test_a_member_that_lost_its_data_joins_again(nodes: list[Node]) -> None:
    """It must not begin a cluster of its own: its API server would serve other data than the rest."""
    first, second, third, _ = nodes
    first.start()
    await until(lambda: first.members(), 60)
    for each in (second, third):
        each.join(first)
        each.start()
        await until(partial(_is_in, each), 90)
    await first.ask("kv/put", key="a2V5", value="dmFsdWU=")
    third.kill()
    shutil.rmtree(third.directory / "var/lib/etcd-main")

    third.start()
    await until(lambda: _is_in(third), 90)
    assert (await third.ask("kv/range", key="a2V5"))["kvs"][0]["value"] == "dmFsdWU="
    assert await first.members() == {"cp-1", "cp-2", "cp-3"}


async def _is_in(node: Node) -> bool:
    return node.name in await node.members()


async def _removed(client: EtcdClient, name: str) -> bool:
    try:
        for member in await client.members():
            if member.name == name:
                await client.remove_member(member)
        return name not in {each.name for each in await client.members()}
    except EtcdError:
        return False

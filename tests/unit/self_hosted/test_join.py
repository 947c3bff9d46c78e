"""Further machines: files of their kubelets, the keys of a control plane, and Nodes that leave it."""

import json
from pathlib import Path
from typing import Any

import pytest

import activities.self_hosted.join
from activities.self_hosted import control_plane
from activities.self_hosted.join import JoinActivities, seal, take
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import InitTask, JoinFile, JoinTask
from api.resources import DNS_RECORD, NODE, POD, SELF_HOSTED_SHOOT_EXPOSURE
from etcd.client import EtcdError, Member
from kube.cache import Caches
from kube.controller import TryAgain
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.self_hosted.test_control_plane import secrets, task
from workers.node_agent.system import System
from workers.self_hosted.controller import _ALL, ControlPlaneNodes

__all__ = ["secrets", "task"]
KEY = b"k" * 32


@pytest.fixture
def joining(task: InitTask) -> JoinTask:
    join = JoinFile(
        shoot=task.shoot,
        node="worker-1",
        pool="cp",
        address="198.18.8.9",
        ca="CA",
        kubelet_ca="KUBELET-CA",
        token="a.b",
    )
    return JoinTask(join=join, address="198.18.8.10")


def test_a_joining_kubelet_gets_its_certificates_by_its_token(joining: JoinTask) -> None:
    files = control_plane.joining_kubelet_files(joining)
    bootstrap, mode = files["/var/lib/kubelet/kubeconfig-bootstrap"]
    assert mode == 0o600
    assert json.loads(bootstrap)["users"][0]["user"] == {"token": "a.b"}
    unit = files["/etc/systemd/system/kubelet.service"][0].decode()
    assert "    --bootstrap-kubeconfig=/var/lib/kubelet/kubeconfig-bootstrap \\\n" in unit
    assert "a.b" not in unit
    configuration = json.loads(files["/var/lib/kubelet/config/kubelet"][0])
    assert configuration["serverTLSBootstrap"]
    assert "staticPodPath" not in configuration
    assert "/var/lib/kubelet/kubeconfig-real" not in files


def test_the_name_of_a_host_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n198.18.8.1 api.example.org\n")
    for _ in range(2):
        System(tmp_path).name_host("api.example.org", "198.18.8.9")
    assert (tmp_path / "etc/hosts").read_text() == "127.0.0.1 localhost\n198.18.8.9 api.example.org\n"


def test_a_further_machine_has_the_same_keys(task: InitTask, secrets: FileSecrets, tmp_path: Path) -> None:
    (task.directory / "uid").write_text("the uid")
    other = tmp_path / "other"
    other.mkdir()
    sealed = seal(task.directory, task.shoot, KEY, ["198.18.8.7"])
    for _ in range(2):
        take(other, task.shoot, KEY, sealed)

    names = {each.name for each in control_plane.authorities()}
    assert FileSecrets(other / "secrets").all() == {name: secrets.get(name) for name in names}
    assert (other / "uid").read_text() == "the uid"
    assert json.loads((other / "existing.json").read_text()) == {"members": {}, "clients": ["https://198.18.8.7:2379"]}
    assert all(not each.stat().st_mode & 0o077 for each in (other / "uid", other / "existing.json"))


def test_keys_that_a_killed_run_did_not_take_are_taken_by_the_next(
    task: InitTask, secrets: FileSecrets, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    FileSecrets(other / "secrets").keep("ca-client", secrets.get("ca-client"))
    take(other, task.shoot, KEY, seal(task.directory, task.shoot, KEY, []))
    assert FileSecrets(other / "secrets").get("ca") == secrets.get("ca")


class Etcd:
    """The members of an etcd, as its client shows them."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.has_quorum = True

    async def members(self) -> list[Member]:
        return [Member(str(number), name, False, ()) for number, name in enumerate(self.names)]

    async def remove_member(self, member: Member) -> None:
        if not self.has_quorum:
            raise EtcdError("asking etcd for cluster/member/remove: it answered 500")
        self.names.remove(member.name)


READY = {"type": "Ready", "status": "True"}


async def add_node(cluster: FakeCluster, name: str, address: str) -> None:
    await cluster.create(control_plane.marked(name))
    await set_status(cluster, name, addresses=[{"type": "InternalIP", "address": address}], conditions=[READY])


async def set_status(cluster: FakeCluster, node: str, **status: Any) -> None:
    await cluster.patch(NODE, node, None, {"status": status}, subresource="status")


class Machinery:
    def __init__(self, cluster: FakeCluster, etcd: Etcd) -> None:
        self.cluster, self.etcd = cluster, etcd
        self.nodes = ControlPlaneNodes(cluster, Caches(cluster), etcd, "alone", "alone-external")  # type: ignore[arg-type]

    async def run(self) -> None:
        await self.nodes._reconcile(_ALL)

    def endpoints(self) -> list[str]:
        [found] = self.cluster.of(SELF_HOSTED_SHOOT_EXPOSURE)
        return [each["nodeName"] for each in found["spec"]["endpoints"]]

    def values(self) -> list[str]:
        """Values of the record. Its controller is asked when they have changed."""
        [found] = self.cluster.of(DNS_RECORD)
        return list(found["spec"]["values"])

    async def add_pod(self, name: str, ready: str) -> None:
        labels = {"gardener.cloud/role": "controlplane"}
        metadata = {"name": name, "namespace": "kube-system", "labels": labels}
        await self.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        await self.cluster.patch(POD, name, "kube-system", {"status": status}, subresource="status")


@pytest.fixture
async def machinery() -> Machinery:
    cluster = FakeCluster()
    for number in (1, 2, 3):
        await add_node(cluster, f"cp-{number}", f"198.18.8.{number}")
    exposure = {
        "apiVersion": SELF_HOSTED_SHOOT_EXPOSURE.api_version,
        "kind": "SelfHostedShootExposure",
        "metadata": {"name": "alone", "namespace": "kube-system"},
        "spec": {"type": "local", "port": 443, "endpoints": []},
    }
    record = {
        "apiVersion": DNS_RECORD.api_version,
        "kind": "DNSRecord",
        "metadata": {"name": "alone-external", "namespace": "kube-system"},
        "spec": {"type": "local", "name": "api.alone.example.org", "recordType": "A", "values": ["198.18.8.1"]},
    }
    await cluster.create(exposure)
    await cluster.create(record)
    return Machinery(cluster, Etcd("cp-1", "cp-2", "cp-3"))


async def test_the_member_of_a_deleted_node_leaves_etcd(machinery: Machinery) -> None:
    await machinery.run()
    assert machinery.endpoints() == ["cp-1", "cp-2", "cp-3"]
    await machinery.cluster.delete(NODE, "cp-2")
    for _ in range(2):
        await machinery.run()

    assert machinery.etcd.names == ["cp-1", "cp-3"]
    assert machinery.endpoints() == ["cp-1", "cp-3"]
    assert await machinery.cluster.find(NODE, "cp-2") is None


async def test_a_member_that_the_quorum_needs_stays_with_its_node(machinery: Machinery) -> None:
    machinery.etcd.has_quorum = False
    await machinery.cluster.delete(NODE, "cp-2")
    with pytest.raises(TryAgain, match="stays in etcd"):
        await machinery.run()
    assert await machinery.cluster.find(NODE, "cp-2") is not None

    machinery.etcd.has_quorum = True
    await machinery.run()
    assert await machinery.cluster.find(NODE, "cp-2") is None


async def test_a_member_that_has_just_joined_is_not_removed(machinery: Machinery) -> None:
    """Its kubelet registers the Node when the API server beside it runs, and that needs the member."""
    machinery.etcd.names.append("cp-4")
    await machinery.run()
    assert "cp-4" in machinery.etcd.names


async def test_the_last_node_stays(machinery: Machinery) -> None:
    for number in (1, 2, 3):
        await machinery.cluster.delete(NODE, f"cp-{number}")
    with pytest.raises(TryAgain, match="the last node"):
        await machinery.run()
    assert machinery.etcd.names == ["cp-1", "cp-2", "cp-3"]


ALL = ["198.18.8.1", "198.18.8.2", "198.18.8.3"]


async def test_the_record_has_the_addresses_of_all_machines_and_loses_that_of_a_deleted_node(
    machinery: Machinery,
) -> None:
    await machinery.run()
    assert machinery.values() == ALL
    [found] = machinery.cluster.of(DNS_RECORD)
    assert found["metadata"]["annotations"] == {"gardener.cloud/operation": "reconcile"}

    await machinery.cluster.delete(NODE, "cp-2")
    await machinery.run()
    assert machinery.values() == ["198.18.8.1", "198.18.8.3"]


@pytest.mark.parametrize(
    "conditions",
    [
        [{"type": "Ready", "status": "Unknown"}],
        [],
        [READY, {"type": "DiskPressure", "status": "True"}],
        [READY, {"type": "NetworkUnavailable", "status": "Unknown"}],
    ],
    ids=["silent", "new", "disk-is-full", "no-network"],
)
async def test_the_record_has_no_machine_that_is_not_healthy(
    machinery: Machinery, conditions: list[dict[str, str]]
) -> None:
    await set_status(machinery.cluster, "cp-3", conditions=conditions)
    await machinery.run()
    assert machinery.values() == ALL[:2]
    assert machinery.endpoints() == ["cp-1", "cp-2", "cp-3"]

    await set_status(machinery.cluster, "cp-3", conditions=[READY])
    await machinery.run()
    assert machinery.values() == ALL


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd-main"])
async def test_the_record_has_no_machine_whose_api_server_or_etcd_is_not_ready(
    machinery: Machinery, component: str
) -> None:
    await machinery.add_pod(f"{component}-cp-1", "True")
    await machinery.add_pod(f"{component}-cp-2", "False")
    await machinery.run()
    assert machinery.values() == ["198.18.8.1", "198.18.8.3"]


async def test_the_record_stays_while_no_machine_is_healthy(machinery: Machinery) -> None:
    await machinery.run()
    for number in (1, 2, 3):
        await set_status(machinery.cluster, f"cp-{number}", conditions=[])
    await machinery.run()
    assert machinery.values() == ALL


async def test_the_record_has_the_address_by_which_others_reach_a_machine(machinery: Machinery) -> None:
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "ExternalIP", "address": "198.18.9.1"}]
    await set_status(machinery.cluster, "cp-1", addresses=addresses)
    await machinery.run()
    assert machinery.values() == ["198.18.8.2", "198.18.8.3", "198.18.9.1"]


async def test_a_record_that_its_owner_has_deleted_stays_away(machinery: Machinery) -> None:
    await machinery.cluster.delete(DNS_RECORD, "alone-external", "kube-system")
    await machinery.run()
    assert not machinery.cluster.of(DNS_RECORD)


async def test_a_worker_finds_the_api_server_by_its_record(
    joining: JoinTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address in the file of hosts would stay when the machine is gone."""
    named = joining.join.model_copy(update={"address": joining.join.shoot.host})
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n")

    async def start_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(activities.self_hosted.join, "start_kubelet", start_nothing)
    for join in (named, joining.join):
        await JoinActivities(System(tmp_path), JoinTask(join=join, address="198.18.8.10")).start_joining_kubelet()
        wanted = "127.0.0.1 localhost\n" + ("" if join is named else "198.18.8.9 api.alone.example.org\n")
        assert (tmp_path / "etc/hosts").read_text() == wanted

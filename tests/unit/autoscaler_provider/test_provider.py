"""The autoscaler's cloud as the autoscaler sees it: calls on a socket, over machines in memory."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from api.extensions.v1alpha1.worker import MachineDeploymentStatus
from api.machine.names import TRIGGER_DELETION
from api.resources import MACHINE, MACHINE_DEPLOYMENT, Resource
from kube.client import Object
from kube.errors import Unreachable
from tests.unit.kube.fake_cluster import FakeCluster
from workers.autoscaler_provider import externalgrpc_pb2 as pb
from workers.autoscaler_provider.provider import CloudProvider

NAMESPACE = "shoot--dev--one"
POOL = "shoot--dev--one-web-z1"
SERVICE = pb.DESCRIPTOR.services_by_name["CloudProvider"]
MINE = f"{POOL}-2"
"""A machine that another client has chosen."""
EMPTY = pb.Empty()


class Autoscaler:
    """Asks as the cluster autoscaler does."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, name: str, request: Any = EMPTY) -> Any:
        method = SERVICE.methods_by_name[name]
        call: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(
            self._channel,
            f"/{SERVICE.full_name}/{name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        return await call(request, timeout=5)

    async def group_of(self, **node: str) -> str:
        request = pb.NodeGroupForNodeRequest(node=pb.ExternalGrpcNode(**node))
        return str((await self.ask("NodeGroupForNode", request)).nodeGroup.id)

    async def size(self) -> int:
        return int((await self.ask("NodeGroupTargetSize", pb.NodeGroupRequest(id=POOL))).targetSize)

    async def grow(self, delta: int) -> None:
        await self.ask("NodeGroupIncreaseSize", pb.ResizeRequest(id=POOL, delta=delta))

    async def delete(self, *names: str) -> None:
        nodes = [pb.ExternalGrpcNode(name=name, providerID=f"local:///infra/{name}") for name in names]
        await self.ask("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id=POOL, nodes=nodes))


@pytest.fixture
async def seed() -> FakeCluster:
    """A pool of three machines that may have one to four, and one that is not to be scaled."""
    seed = FakeCluster()
    for name, replicas in ((POOL, 3), ("shoot--dev--one-fixed-z1", 1)):
        await seed.create(
            {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "MachineDeployment",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"replicas": replicas, "template": {"spec": {"class": {"name": "class-a"}}}},
            }
        )
        for number in range(replicas):
            machine = f"{name}-{number}"
            await seed.create(
                {
                    "apiVersion": "machine.sapcloud.io/v1alpha1",
                    "kind": "Machine",
                    "metadata": {"name": machine, "namespace": NAMESPACE, "labels": {"name": name, "node": machine}},
                    "spec": {"class": {"name": "class-a"}, "providerID": f"local:///infra/{machine}"},
                }
            )
    await seed.create(
        {
            "apiVersion": "machine.sapcloud.io/v1alpha1",
            "kind": "MachineClass",
            "metadata": {"name": "class-a", "namespace": NAMESPACE},
            "nodeTemplate": {"capacity": {"cpu": "2", "memory": "4Gi"}},
        }
    )
    return seed


@pytest.fixture
async def autoscaler(seed: FakeCluster, tmp_path: Path) -> AsyncIterator[Autoscaler]:
    server = Server([CloudProvider(seed, NAMESPACE, [MachineDeploymentStatus(name=POOL, minimum=1, maximum=4)])])
    socket = str(tmp_path / "provider.sock")
    await server.start(path=socket)
    channel = Channel(path=socket)
    try:
        asking = Autoscaler(channel)
        await asking.ask("Refresh")
        yield asking
    finally:
        channel.close()
        server.close()
        await server.wait_closed()


def pool(seed: FakeCluster) -> Object:
    return seed.objects[MACHINE_DEPLOYMENT, NAMESPACE, POOL]


async def test_the_provider_lists_its_node_groups(autoscaler: Autoscaler) -> None:
    (group,) = (await autoscaler.ask("NodeGroups")).nodeGroups
    instances = (await autoscaler.ask("NodeGroupNodes", pb.NodeGroupRequest(id=POOL))).instances
    node = (await autoscaler.ask("NodeGroupTemplateNodeInfo", pb.NodeGroupRequest(id=POOL))).nodeInfo
    options = await autoscaler.ask("NodeGroupGetOptions", pb.NodeGroupAutoscalingOptionsRequest(id=POOL))

    assert (group.id, group.minSize, group.maxSize) == (POOL, 1, 4)
    assert [each.id for each in instances] == [f"local:///infra/{POOL}-{number}" for number in range(3)]
    assert node.status.capacity["cpu"].string == "2"
    assert options.HasField("nodeGroupAutoscalingOptions")
    assert await autoscaler.size() == 3


async def test_node_belongs_to_the_group_of_its_machine(autoscaler: Autoscaler) -> None:
    assert await autoscaler.group_of(providerID=f"local:///infra/{POOL}-1") == POOL
    assert await autoscaler.group_of(name=f"{POOL}-1") == POOL, "before it has got its provider id"
    assert await autoscaler.group_of(name="shoot--dev--one-fixed-z1-0") == "", "of a pool that is not scaled"
    assert await autoscaler.group_of(name="a-guest") == ""


async def test_a_pool_grows_up_to_its_maximum(autoscaler: Autoscaler, seed: FakeCluster) -> None:
    await autoscaler.grow(1)

    assert pool(seed)["spec"]["replicas"] == await autoscaler.size() == 4
    with pytest.raises(GRPCError, match="more than its maximum 4") as refused:
        await autoscaler.grow(1)
    assert refused.value.status is Status.FAILED_PRECONDITION
    assert pool(seed)["spec"]["replicas"] == 4


async def test_chosen_machines_are_deleted_once(autoscaler: Autoscaler, seed: FakeCluster) -> None:
    seed.requests.clear()
    await autoscaler.delete(f"{POOL}-1", f"{POOL}-1")
    await autoscaler.delete(f"{POOL}-1")
    assert seed.requests == [("patch", "MachineDeployment", POOL)], "a size without names would take any machine"
    await autoscaler.delete(f"{POOL}-0")

    assert pool(seed)["spec"]["replicas"] == await autoscaler.size() == 1
    assert pool(seed)["metadata"]["annotations"] == {TRIGGER_DELETION: f"{POOL}-1,{POOL}-0"}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((f"{POOL}-0", f"{POOL}-1", f"{POOL}-2"), "fewer than its minimum 1"),
        ((f"{POOL}-0", "a-guest"), "node a-guest belongs to no machine"),
        ((f"{POOL}-0", "shoot--dev--one-fixed-z1-0"), "node shoot--dev--one-fixed-z1-0 belongs to no machine"),
    ],
)
async def test_a_refused_deletion_changes_nothing(
    autoscaler: Autoscaler, seed: FakeCluster, names: tuple[str, ...], why: str
) -> None:
    with pytest.raises(GRPCError, match=why) as refused:
        await autoscaler.delete(*names)

    assert refused.value.status is Status.FAILED_PRECONDITION
    assert pool(seed)["spec"]["replicas"] == await autoscaler.size() == 3
    assert TRIGGER_DELETION not in pool(seed)["metadata"].get("annotations", {})


@pytest.mark.parametrize(("grows", "size"), [(True, 3), (False, 1)])
async def test_concurrent_writes_of_other_clients_are_not_lost(
    autoscaler: Autoscaler, seed: FakeCluster, grows: bool, size: int
) -> None:
    get, others = seed.get, iter([{"spec": {"replicas": 2}, "metadata": {"annotations": {TRIGGER_DELETION: MINE}}}])

    async def get_late(res: Resource, name: str, namespace: str | None = None, *, subresource: str = "") -> Object:
        live = await get(res, name, namespace)
        for patch in others:
            await seed.patch(res, name, namespace, patch)
        return live

    seed.get = get_late  # type: ignore[method-assign]
    await (autoscaler.grow(1) if grows else autoscaler.delete(f"{POOL}-0"))

    assert pool(seed)["spec"]["replicas"] == size
    assert pool(seed)["metadata"]["annotations"][TRIGGER_DELETION].split(",")[0] == MINE


async def test_a_machine_deleted_while_it_is_chosen_again_is_not_counted_twice(
    autoscaler: Autoscaler, seed: FakeCluster
) -> None:
    """Its manager removes a name as soon as the machine is deleted: an older list would make the name new."""
    chosen = f"{POOL}-1"
    await autoscaler.delete(chosen)
    list_, went = seed.list, False

    async def list_early(res: Resource, namespace: str | None = None, **options: Any) -> list[Object]:
        nonlocal went
        found = await list_(res, namespace, **options)
        if res == MACHINE and not went:
            went = True
            await seed.delete(MACHINE, chosen, NAMESPACE)
            await seed.patch(
                MACHINE_DEPLOYMENT, POOL, NAMESPACE, {"metadata": {"annotations": {TRIGGER_DELETION: None}}}
            )
        return found

    seed.list = list_early  # type: ignore[method-assign]
    await autoscaler.delete(chosen)

    assert pool(seed)["spec"]["replicas"] == 2


async def test_a_machine_created_since_the_refresh_is_not_removed(autoscaler: Autoscaler, seed: FakeCluster) -> None:
    await autoscaler.grow(1)
    metadata = {"name": f"{POOL}-3", "namespace": NAMESPACE, "labels": {"name": POOL}}
    await seed.create(
        {"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": metadata, "spec": {}}
    )

    with pytest.raises(GRPCError, match="has 4 machines"):
        await autoscaler.ask("NodeGroupDecreaseTargetSize", pb.ResizeRequest(id=POOL, delta=-1))


async def test_a_decrease_removes_only_machines_that_do_not_exist_yet(
    autoscaler: Autoscaler, seed: FakeCluster
) -> None:
    fewer = pb.ResizeRequest(id=POOL, delta=-1)
    with pytest.raises(GRPCError, match="has 3 machines"):
        await autoscaler.ask("NodeGroupDecreaseTargetSize", fewer)
    await autoscaler.grow(1)
    await autoscaler.ask("NodeGroupDecreaseTargetSize", fewer)

    assert pool(seed)["spec"]["replicas"] == 3


async def test_an_unreachable_api_server_fails_the_call(autoscaler: Autoscaler, seed: FakeCluster) -> None:
    seed.refuse("patch", MACHINE_DEPLOYMENT, Unreachable(0, "connection refused", "patching"))

    with pytest.raises(GRPCError) as refused:
        await autoscaler.grow(1)

    assert refused.value.status is Status.UNAVAILABLE
    assert await autoscaler.size() == 3


async def test_each_refresh_reads_the_present_node_groups(autoscaler: Autoscaler, seed: FakeCluster) -> None:
    for machine in [each["metadata"]["name"] for each in seed.of(MACHINE)]:
        await seed.delete(MACHINE, machine, NAMESPACE)
    await seed.delete(MACHINE_DEPLOYMENT, POOL, NAMESPACE)
    await autoscaler.ask("Refresh")

    assert list((await autoscaler.ask("NodeGroups")).nodeGroups) == []
    with pytest.raises(GRPCError, match="at the last refresh"):
        await autoscaler.size()


async def test_the_remaining_methods_are_answered(autoscaler: Autoscaler) -> None:
    assert (await autoscaler.ask("GPULabel")).label == "gpu"
    for name in ("GetAvailableGPUTypes", "Cleanup"):
        assert await autoscaler.ask(name) == EMPTY


def test_the_code_is_that_of_the_proto() -> None:
    """It was made by a compiler that is not among our packages, so the text is read here."""
    text = Path(pb.__file__).with_name("externalgrpc.proto").read_text()

    assert dict(_messages(text)) == {
        message.name: [(_type(each), each.name, each.number) for each in message.fields]
        for message in pb.DESCRIPTOR.message_types_by_name.values()
    }
    calls = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text)
    assert calls == [(each.name, each.input_type.name, each.output_type.name) for each in SERVICE.methods]
    states = [(each.name, each.number) for each in pb.InstanceStatus.InstanceState.DESCRIPTOR.values]
    (enum,) = re.findall(r"enum InstanceState \{(.*?)\}", text, re.DOTALL)
    assert [(name, int(number)) for name, number in re.findall(r"(\w+) = (\d+);", enum)] == states


def _messages(text: str) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    for name, body in re.findall(r"^message (\w+) \{(\}|.*?^\})", text, re.MULTILINE | re.DOTALL):
        fields = re.sub(r"enum \w+ \{.*?\}", "", body, flags=re.DOTALL)
        found = re.findall(r"^ +(\S.*) (\w+) = (\d+);", fields, re.MULTILINE)
        yield name, [(kind, field, int(number)) for kind, field, number in found]


def _type(field: FieldDescriptor) -> str:
    """As the proto writes it."""
    message, enum = field.message_type, field.enum_type
    if message is not None and message.GetOptions().map_entry:
        return f"map<{_type(message.fields_by_name['key'])}, {_type(message.fields_by_name['value'])}>"
    name = message.name if message else enum.name if enum else _SCALARS[field.type]
    return f"repeated {name}" if field.is_repeated else name


_SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_BOOL: "bool",
}

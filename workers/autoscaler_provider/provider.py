"""The gRPC service ``CloudProvider`` of ``externalgrpc.proto``, which the cluster autoscaler calls."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from api.extensions.v1alpha1.worker import MachineDeploymentStatus
from api.machine.names import NAME_LABEL
from api.resources import MACHINE, MACHINE_CLASS, MACHINE_DEPLOYMENT
from kube.client import KubeClient, Object, Objects
from kube.errors import ApiError, Conflict
from workers.autoscaler_provider import externalgrpc_pb2 as pb
from workers.autoscaler_provider import node_groups
from workers.autoscaler_provider.config import Kubelet
from workers.autoscaler_provider.node_groups import Refused

_log = logging.getLogger(__name__)

_SERVICE = pb.DESCRIPTOR.services_by_name["CloudProvider"]


@dataclass
class _State:
    """Objects as of the autoscaler's last refresh, with its own changes since."""

    deployments: dict[str, Object] = field(default_factory=dict)
    machines: dict[str, Objects] = field(default_factory=dict)
    """Machines by the name of their MachineDeployment."""


class CloudProvider:
    """Scales the MachineDeployments of one control-plane namespace.

    The process keeps no state beside the objects, so another process gives the same answers. Each change is one write
    to one object, and a repeated request finds it (see ``node_groups.without``). A write that conflicts with the write
    of another client is retried.
    """

    def __init__(
        self,
        seed: KubeClient,
        namespace: str,
        groups: Iterable[MachineDeploymentStatus],
        kubelets: Mapping[str, Kubelet] | None = None,
    ) -> None:
        self._seed = seed
        self._namespace = namespace
        self._groups = {each.name: each for each in groups}
        self._kubelets = kubelets or {}
        self._state = _State()
        self._writing = asyncio.Lock()

    def __mapping__(self) -> dict[str, Handler]:
        """Handlers of the service; grpclib's server calls this."""
        answers: dict[str, Callable[[Any], Awaitable[Message]]] = {
            "NodeGroups": self.all_groups,
            "NodeGroupForNode": self.node_group_for_node,
            "GPULabel": self.gpu_label,
            "GetAvailableGPUTypes": self.nothing,
            "Cleanup": self.nothing,
            "Refresh": self.refresh,
            "NodeGroupTargetSize": self.target_size,
            "NodeGroupIncreaseSize": self.increase_size,
            "NodeGroupDeleteNodes": self.delete_nodes,
            "NodeGroupDecreaseTargetSize": self.decrease_target_size,
            "NodeGroupNodes": self.nodes,
            "NodeGroupTemplateNodeInfo": self.template_node_info,
            "NodeGroupGetOptions": self.options,
        }
        return {
            f"/{_SERVICE.full_name}/{method.name}": Handler(
                _answering(answers[method.name]),
                Cardinality.UNARY_UNARY,
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
            )
            for method in _SERVICE.methods
        }

    async def nothing(self, _: pb.Empty) -> pb.Empty:
        return pb.Empty()

    async def gpu_label(self, _: pb.Empty) -> pb.GPULabelResponse:
        return pb.GPULabelResponse(label=node_groups.GPU_LABEL)

    # Reads

    async def refresh(self, _: pb.Empty) -> pb.Empty:
        """Read all machines again. The autoscaler calls this at the start of each of its loops."""
        deployments, machines = await asyncio.gather(
            self._seed.list(MACHINE_DEPLOYMENT, self._namespace), self._seed.list(MACHINE, self._namespace)
        )
        self._state = _State(
            {each["metadata"]["name"]: each for each in deployments if each["metadata"]["name"] in self._groups},
            node_groups.by_deployment(machines),
        )
        return pb.Empty()

    async def all_groups(self, _: pb.Empty) -> pb.NodeGroupsResponse:
        return pb.NodeGroupsResponse(nodeGroups=[self._group(name) for name in sorted(self._state.deployments)])

    async def node_group_for_node(self, request: pb.NodeGroupForNodeRequest) -> pb.NodeGroupForNodeResponse:
        """Node group of a node; an empty group if no machine has this node, or its pool is not scaled."""
        for name in self._state.deployments:
            if any(node_groups.is_of(each, request.node) for each in self._machines(name)):
                return pb.NodeGroupForNodeResponse(nodeGroup=self._group(name))
        return pb.NodeGroupForNodeResponse(nodeGroup=pb.NodeGroup())

    async def target_size(self, request: pb.NodeGroupRequest) -> pb.NodeGroupTargetSizeResponse:
        return pb.NodeGroupTargetSizeResponse(targetSize=node_groups.replicas(self._deployment(request.id)))

    async def nodes(self, request: pb.NodeGroupRequest) -> pb.NodeGroupNodesResponse:
        self._deployment(request.id)
        return pb.NodeGroupNodesResponse(instances=map(node_groups.instance, self._machines(request.id)))

    async def template_node_info(self, request: pb.NodeGroupRequest) -> pb.NodeGroupTemplateNodeInfoResponse:
        deployment = self._deployment(request.id)
        name = deployment["spec"]["template"]["spec"]["class"]["name"]
        class_ = await self._seed.get(MACHINE_CLASS, name, self._namespace)
        node = node_groups.template_node(deployment, class_, self._kubelets)
        return pb.NodeGroupTemplateNodeInfoResponse(nodeInfo=node)

    async def options(self, request: pb.NodeGroupAutoscalingOptionsRequest) -> pb.NodeGroupAutoscalingOptionsResponse:
        wanted = node_groups.options(self._deployment(request.id), request.defaults)
        return pb.NodeGroupAutoscalingOptionsResponse(nodeGroupAutoscalingOptions=wanted)

    # Changes

    async def increase_size(self, request: pb.ResizeRequest) -> pb.Empty:
        """Add machines. A repeated call adds them again: the autoscaler reads the size before it repeats a call."""
        group = self._known(request.id)
        return await self._change(group.name, lambda live, _: node_groups.grown(live, request.delta, group.maximum))

    async def decrease_target_size(self, request: pb.ResizeRequest) -> pb.Empty:
        """Reduce the size, if no existing machine has to be deleted for it."""
        group = self._known(request.id)
        return await self._change(
            group.name, lambda live, machines: node_groups.without_unmade(live, request.delta, machines)
        )

    async def delete_nodes(self, request: pb.NodeGroupDeleteNodesRequest) -> pb.Empty:
        """Delete these machines without replacement. A repeated call finds them in deletion."""
        group = self._known(request.id)
        doomed = []
        for node in request.nodes:
            found = [each for each in self._machines(group.name) if node_groups.is_of(each, node)]
            if not found:
                raise Refused(f"node {node.name} belongs to no machine of {group.name}")
            doomed += found
        return await self._change(
            group.name, lambda live, machines: node_groups.without(live, doomed, machines, group.minimum)
        )

    async def _change(self, name: str, patch: Callable[[Object, Objects], dict[str, Any] | None]) -> pb.Empty:
        """Patch a deployment, computed from its current state and machines; retry on conflicts.

        The deadline of the caller ends the retries.
        """
        async with self._writing:
            while True:
                live = await self._seed.get(MACHINE_DEPLOYMENT, name, self._namespace)
                # Machines are read after the deployment. If a machine is deleted in between, its name is removed from
                # the deployment's annotation, so the API server refuses the patch of the older version.
                machines = await self._seed.list(MACHINE, self._namespace, labels=f"{NAME_LABEL}={name}")
                wanted = patch(live, machines)
                if wanted is None:
                    return pb.Empty()
                try:
                    written = await self._seed.patch(MACHINE_DEPLOYMENT, name, self._namespace, wanted)
                except Conflict:
                    continue
                before, after = node_groups.replicas(live), node_groups.replicas(written)
                _log.info("MachineDeployment %s/%s: %d machines in place of %d", self._namespace, name, after, before)
                self._state.deployments[name] = written
                return pb.Empty()

    def _known(self, name: str) -> MachineDeploymentStatus:
        if name not in self._groups:
            raise Refused(f"MachineDeployment {self._namespace}/{name} is no configured node group")
        return self._groups[name]

    def _group(self, name: str) -> pb.NodeGroup:
        group = self._groups[name]
        return pb.NodeGroup(id=name, minSize=group.minimum, maxSize=group.maximum)

    def _deployment(self, name: str) -> Object:
        if name not in self._state.deployments:
            raise Refused(f"there was no MachineDeployment {self._namespace}/{name} at the last refresh")
        return self._state.deployments[name]

    def _machines(self, name: str) -> Objects:
        return self._state.machines.get(name, [])


def _answering(answer: Callable[[Any], Awaitable[Message]]) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
    """Handler that returns an error's reason to the autoscaler."""

    async def handle(stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        try:
            await stream.send_message(await answer(request))
        except Refused as error:
            refusal = GRPCError(Status.FAILED_PRECONDITION, str(error))
        except ApiError as error:
            refusal = GRPCError(Status.UNAVAILABLE, str(error))
        else:
            return
        _log.warning("%s: %s", type(request).__name__, refusal.message)
        raise refusal

    return handle

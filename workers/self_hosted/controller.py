"""``gardener worker self-hosted``: the controllers of a self-hosted Shoot. One of its machines runs them at a time.

They approve certificates of machines that join, expose the API servers by an extension or by a DNS record, and let the
member of a Node that is deleted leave etcd.
"""

from pathlib import Path
from typing import Any

from activities.components import self_hosted_controller
from activities.provider_local.cloud import Clouds
from activities.provider_local.dns_record import DNSRecordActuator
from activities.provider_local.self_hosted_shoot_exposure import SelfHostedShootExposureActuator
from activities.self_hosted import control_plane
from api.constants import OPERATION, SELF_HOSTED_NAMESPACE
from api.model import ApiModel
from api.resources import DNS_RECORD, NODE, POD, SELF_HOSTED_SHOOT_EXPOSURE, Resource
from etcd.client import EtcdClient, EtcdError, client_tls
from kube.cache import Caches, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue, TryAgain
from kube.finalizers import remove_finalizer
from workers.extension.controller import ExtensionController
from workers.lib.leader import LeaderElectionConfig, run_as_leader
from workers.lib.runtime import ClientConnection, Health, HealthConfig, kube_client, load_config, run_until_signal
from workers.resource_manager.csr_approver import CSRApprover

_ALL = Key(None, "control-plane")
_AGAIN_SECONDS = 30.0
_OF_CONTROL_PLANE = "gardener.cloud/role=controlplane"


class EtcdConfig(ApiModel):
    """How to reach the member of etcd on this machine."""

    endpoint: str
    ca: Path
    certificate: Path
    key: Path


class SelfHostedConfig(ApiModel):
    """Configuration of the process."""

    client_connection: ClientConnection
    etcd: EtcdConfig
    exposure: str = ""
    """Name of the exposure of the API servers; empty if there is none."""
    dns_record: str = ""
    """Name of the DNSRecord that has the addresses of the control plane's machines; empty if there is none."""
    leader_election: LeaderElectionConfig
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    """Run until SIGTERM. A restarted process continues from the state of the objects."""
    config = load_config(SelfHostedConfig, config_path)
    etcd = config.etcd
    tls = client_tls(etcd.ca.read_bytes(), str(etcd.certificate), str(etcd.key))
    client, clouds = kube_client(config.client_connection), Clouds()
    caches, health = Caches(client), Health()
    runner = await health.serve(config.health)
    health.ready = True
    try:
        async with EtcdClient(etcd.endpoint, tls) as member:
            parts = [
                CSRApprover(
                    source=client, target=client, target_caches=caches, machine_namespace=None, tokens_of_nodes=True
                ).run(),
                ControlPlaneNodes(client, caches, member, config.exposure, config.dns_record).run(),
            ]
            if config.exposure:
                actuator = SelfHostedShootExposureActuator(client, clouds)
                parts.append(ExtensionController(client, caches, actuator, interruptible=True).run())
            if config.dns_record:
                parts.append(ExtensionController(client, caches, DNSRecordActuator(client)).run())
            await run_until_signal(run_as_leader(client, config.leader_election, self_hosted_controller.NAME, *parts))
    finally:
        await runner.cleanup()
        await caches.close()
        await clouds.close()
        await client.close()


class ControlPlaneNodes:
    """Keeps what exposes the API servers that of the control plane's Nodes, and removes members of deleted Nodes.

    A load balancer looks by itself whether an API server answers. Clients of a DNS record do not, so the record has the
    healthy ones alone.
    """

    def __init__(self, client: KubeClient, caches: Caches, etcd: EtcdClient, exposure: str, record: str = "") -> None:
        self._client = client
        self._caches = caches
        self._etcd = etcd
        self._exposure = exposure
        self._record = record
        self._nodes = caches.of(NODE, labels=control_plane.CONTROL_PLANE_ROLE)
        self._controller = Controller("control-plane-nodes", self._reconcile, workers=1, longest_delay=5.0)

    async def run(self) -> None:
        self._controller.watch(self._nodes, keys=lambda _: [_ALL])
        if self._record:
            pods = self._caches.of(POD, SELF_HOSTED_NAMESPACE, labels=_OF_CONTROL_PLANE)
            self._controller.watch(pods, keys=lambda _: [_ALL])
        await self._controller.run()

    async def _reconcile(self, _: Key) -> Requeue:
        """A second run finds endpoints, members and finalizers as the first one has left them."""
        nodes = await self._client.list(NODE, labels=control_plane.CONTROL_PLANE_ROLE)
        leaving = [each for each in nodes if each["metadata"].get("deletionTimestamp")]
        staying = [each for each in nodes if each not in leaving]
        if not staying:
            raise TryAgain("the last node of the control plane cannot leave it")
        # Endpoints first: clients must not come to an API server whose etcd ends.
        if self._exposure:
            await self._expose(staying)
        if self._record:
            await self._name(staying)
        for node in leaving:
            await self._remove_member(node["metadata"]["name"])
            await remove_finalizer(self._client, NODE, node, control_plane.FINALIZER)
        return Requeue(_AGAIN_SECONDS)

    async def _expose(self, nodes: list[Object]) -> None:
        found = await self._client.find(SELF_HOSTED_SHOOT_EXPOSURE, self._exposure, SELF_HOSTED_NAMESPACE)
        wanted = [control_plane.endpoint(each) for each in sorted(nodes, key=lambda node: node["metadata"]["name"])]
        if found and sorted(found["spec"]["endpoints"], key=lambda each: each["nodeName"]) != wanted:
            await self._ask(SELF_HOSTED_SHOOT_EXPOSURE, self._exposure, {"endpoints": wanted})

    async def _name(self, nodes: list[Object]) -> None:
        found = await self._client.find(DNS_RECORD, self._record, SELF_HOSTED_NAMESPACE)
        listed = await self._client.list(POD, SELF_HOSTED_NAMESPACE, labels=_OF_CONTROL_PLANE)
        pods = {each["metadata"]["name"]: each for each in listed}
        wanted = sorted(control_plane.public_address(each) for each in nodes if control_plane.serves(each, pods))
        # If none is healthy, the record stays: any of them may be the first to answer again.
        if found and wanted and sorted(found["spec"]["values"]) != wanted:
            await self._ask(DNS_RECORD, self._record, {"values": wanted})

    async def _ask(self, resource: Resource, name: str, spec: dict[str, Any]) -> None:
        """Change the spec of an extension object, and have that reconciled."""
        patch = {"metadata": {"annotations": {OPERATION: "reconcile"}}, "spec": spec}
        await self._client.patch(resource, name, SELF_HOSTED_NAMESPACE, patch)

    async def _remove_member(self, name: str) -> None:
        """Remove the member of a node, if it is there. Etcd refuses that while it would cost the quorum."""
        try:
            for member in await self._etcd.members():
                if member.name == name:
                    await self._etcd.remove_member(member)
        except EtcdError as error:
            raise TryAgain(f"the member of node {name} stays in etcd: {error}") from None

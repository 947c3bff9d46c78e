"""A Shoot's API server that asks a resource manager about node agents, with Machines, Nodes and Secrets of two pools.

One API server is source and target of the resource manager. Its authorizers are those of the component, in the same
order; only the address of the resource manager is another.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from activities.components import apiserver, resource_manager
from activities.secrets.crypto import KeyPair
from api import resources
from api.resources import MACHINE
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import Forbidden
from tests.api_servers import free_port
from tests.gardens import ApiServer, new_authority, show_certificate
from tests.security.signing import cn, manifest, o, pem
from tests.unit.components.test_apiserver import server as component
from tests.unit.kube.waiting import until
from workers.resource_manager.config import ResourceManagerConfig
from workers.resource_manager.webhooks import Webhooks

Object = dict[str, Any]

NAMESPACE = "shoot--dev--a"
AGENTS, AGENT_USER = "gardener.cloud:node-agents", "gardener.cloud:node-agent:machine:"
POOLS = {"machine-a": "gardener-node-agent-pool-a-1", "machine-b": "gardener-node-agent-pool-b-2"}
"""Machines, and the Secrets of their pools. Each Machine's Node has the same name."""
STRANGER = "ann"
"""A user without rights, outside the group of node agents."""
IMPOSTOR = "bob"
"""A user in the group of node agents whose name is none of a Machine."""
FORMER_RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["nodes", "nodes/status", "secrets", "pods"], "verbs": ["*"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
    {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["*"]},
]
"""More than earlier versions granted to the group of node agents by RBAC."""


class Shoot:
    """Its API server, and a client of each node agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.authority = new_authority("ca")
        users = {f"{AGENT_USER}{machine}": AGENTS for machine in (*POOLS, "late", "gone")}
        self.server = ApiServer(
            directory,
            {**users, STRANGER: "", IMPOSTOR: AGENTS},
            authorization=("--authorization-config", str(directory / "authorization-config.yaml")),
        )
        self.mount(self.authority)

    def mount(self, *authorities: KeyPair) -> None:
        """Write the files that name the authorizers, as the kubelet does."""
        bundle = b"".join(each.certificate for each in authorities)
        authorizer = resource_manager.node_agent_authorizer(NAMESPACE, bundle)
        made = apiserver.objects(component(node_agent_authorizer=authorizer))
        [files] = [each for each in made if each["metadata"]["name"] == apiserver.AUTHORIZATION]
        here = {"/etc/kubernetes/authorization": str(self.directory)}
        here[f"{resource_manager.webhook_host(NAMESPACE)}:443"] = f"127.0.0.1:{self.port}"
        # The list of authorizers is the last file, because the API server reads a kubeconfig when the list changes.
        for name, content in sorted(files["data"].items(), reverse=True):
            text = base64.b64decode(content).decode()
            for old, new in here.items():
                text = text.replace(old, new)
            (self.directory / f".{name}").write_text(text)
            (self.directory / f".{name}").rename(self.directory / name)

    @contextlib.contextmanager
    def running(self) -> Iterator["Shoot"]:
        with self.server.running():
            asyncio.run(self._prepare())
            yield self

    async def _prepare(self) -> None:
        await self.server.prepare_seed(
            _object("v1", "Namespace", NAMESPACE),
            _object("v1", "Namespace", "kube-system"),
            *(machine(name, secret) for name, secret in POOLS.items()),
            *(_object("v1", "Node", name) for name in POOLS),
            *(_object("v1", "Secret", name, "kube-system") for name in (*POOLS.values(), "gardener-valitail")),
            _object("coordination.k8s.io/v1", "Lease", "kube-scheduler", "kube-system"),
        )

    def agent(self, name: str) -> KubeClient:
        """Client of the node agent of a Machine."""
        return self.server.client(f"{AGENT_USER}{name}")

    def show(self, authority: KeyPair) -> None:
        """Write the certificate of the resource manager."""
        show_certificate(self.directory, authority)

    @contextlib.asynccontextmanager
    async def resource_manager(self, admin: KubeClient, **settings: Any) -> AsyncIterator[None]:
        """Serve the authorizer with the configuration of the component until the end of the block."""
        self.show(self.authority)
        objects = resource_manager.objects(
            resource_manager.ResourceManager(NAMESPACE, "generic", server="server", api_server="api", **settings)
        )
        [file] = [each for each in objects if each["kind"] == "ConfigMap"]
        given = json.loads(file["data"]["config.yaml"])["webhooks"]["nodeAgentAuthorizer"]
        address = {"bindAddress": "127.0.0.1", "port": self.port, "tls": {"serverCertDir": str(self.directory)}}
        config = ResourceManagerConfig.model_validate(
            {"server": {"webhooks": address}, "webhooks": {"nodeAgentAuthorizer": given}}
        )
        caches = Caches(admin)
        serves = Webhooks(config, source=admin, source_caches=caches, target=admin, target_caches=caches)
        task = asyncio.create_task(serves.run())
        try:
            async with asyncio.timeout(20):
                await serves.ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.close()


def machine(name: str, secret: str, **labels: str) -> Object:
    """The Machine of a pool whose configuration is in this Secret. ``labels``: its own, such as ``node``."""
    template = {"metadata": {"labels": {"worker.gardener.cloud/gardener-node-agent-secret-name": secret}}}
    made = _object(MACHINE.api_version, "Machine", name, NAMESPACE)
    made["metadata"]["labels"] = labels
    return {**made, "spec": {"class": {"kind": "MachineClass", "name": "c"}, "nodeTemplate": template}}


def lease(name: str) -> Object:
    made = _object("coordination.k8s.io/v1", "Lease", name, "kube-system")
    return {**made, "spec": {"holderIdentity": "node agent", "leaseDurationSeconds": 40}}


def _object(version: str, kind: str, name: str, namespace: str = "") -> Object:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}}


async def requested(client: KubeClient, name: str, user: str) -> None:
    """Create a CertificateSigningRequest as this client."""
    await client.create(manifest(name, pem(o(AGENTS), cn(user))))


async def refused(request: Any) -> bool:
    """Await a request; whether the API server refused it by its authorizers."""
    try:
        await request
    except Forbidden:
        return True
    return False


async def asks(shoot: Shoot) -> None:
    """Returns once the API server follows the authorizer: a node agent may read its own Node."""
    async with shoot.agent("machine-a") as agent:

        async def allowed() -> bool:
            return not await refused(agent.get(resources.NODE, "machine-a"))

        await until(allowed, 30)


async def decision(
    admin: KubeClient, verb: str, resource: str, name: str = "", *, machine: str = "machine-a", **more: Any
) -> Mapping[str, Any]:
    """Status of a SubjectAccessReview about a node agent. ``resource``: plural name, with its group after a dot.

    ``more``: further attributes of the request, such as ``namespace``.
    """
    plural, _, group = resource.partition(".")
    attributes = {"verb": verb, "version": "v1", "group": group, "resource": plural, "name": name, **more}
    spec = {"user": f"{AGENT_USER}{machine}", "groups": [AGENTS, "system:authenticated"]}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**spec, "resourceAttributes": attributes},
    }
    answer = await admin.request("POST", resources.SUBJECT_ACCESS_REVIEW.path(), body=review)
    status: Mapping[str, Any] = answer["status"]
    return status


@contextlib.asynccontextmanager
async def granted(admin: KubeClient, subject: str, rules: list[Object], kind: str = "Group") -> AsyncIterator[None]:
    """Grant rights by RBAC until the end of the block."""
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "granted"}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "granted"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "granted"},
        "subjects": [{"apiGroup": group, "kind": kind, "name": subject}],
    }
    await admin.create(role)
    await admin.create(binding)
    try:
        yield
    finally:
        await admin.delete(resources.CLUSTER_ROLE_BINDING, "granted")
        await admin.delete(resources.CLUSTER_ROLE, "granted")

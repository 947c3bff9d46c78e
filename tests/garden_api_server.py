"""A garden of a real API server, with the kinds and the roles of a garden, and the subresource server beside it.

The subresource server is asked as the front door asks it: with a certificate of the request-header CA, and with the
user in headers.
"""

import asyncio
import base64
import contextlib
import functools
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.x509.oid import NameOID

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, KeyPair
from api import resources
from api.access import SUBRESOURCE_SERVERS, access, rule
from api.crds import crds
from kube.client import KubeClient
from kube.errors import ApiError
from landscape import pki
from tests import api_servers
from tests.api_servers import free_port, running
from tests.unit.api.shoots import SHOOT
from tests.unit.kube.waiting import until
from workers.subresources.process import SubresourcesConfig, serving

Object = dict[str, Any]

NAMESPACE, OTHER_NAMESPACE = "garden-local", "garden-other"
ALICE, VICTOR, STRANGER, OPERATOR = "alice", "victor", "stranger", "operator"
"""Project admin, project viewer and outsider of garden-local; operator of the garden."""
SERVER = "gardener.cloud:system:subresources"
ROBOT = f"system:serviceaccount:{NAMESPACE}:robot"
ADDRESSES = [
    {"name": "external", "url": "https://api.demo.local.example.org"},
    {"name": "wildcard-tls-seed-bound", "url": "https://api-demo.ingress.example.org"},
    {"name": "internal", "url": "https://api.demo.local.internal.example.org"},
    {"name": "service-account-issuer", "url": "https://discovery.example.org/projects/local"},
]


@contextmanager
def api_server() -> Iterator["ApiServer"]:
    """An etcd and an API server with the garden's kinds and roles, and the rights of this module's people."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        made = ApiServer(Path(directory))
        for command in made.commands():
            stack.enter_context(running(made.directory, *command))
        asyncio.run(made.prepare())
        yield made


def new_authority(name: str) -> KeyPair:
    return crypto.self_signed_ca(name, algorithm=KeyAlgorithm.P256, now=datetime.now(UTC), validity=timedelta(days=9))


@dataclass
class ApiServer:
    """The garden's API server. It is a Shoot's API server, too: it accepts certificates of ``client_authority``."""

    directory: Path
    port: int = field(default_factory=free_port)
    client_authority: KeyPair = field(default_factory=lambda: new_authority("ca-client-of-server"))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def bundle(self) -> str:
        """Authority of the API server's own certificate."""
        return (self.directory / "certs/apiserver.crt").read_text()

    def commands(self) -> tuple[list[str], list[str]]:
        (self.directory / "clients.crt").write_bytes(self.client_authority.certificate)
        users = [("admin", "system:masters"), (SERVER, SUBRESOURCE_SERVERS), (ALICE, "staff"), (ROBOT, "")]
        tokens = "".join(f'{name},{name},,"{group}"\n' for name, group in users)
        flags = ("--authorization-mode", "RBAC", "--client-ca-file", "clients.crt")
        return api_servers.commands(self.directory, self.port, tokens, *flags)

    def client(self, token: str = "admin") -> KubeClient:
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        return KubeClient.from_kubeconfig(
            {
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": token}}],
            }
        )

    async def prepare(self) -> None:
        async with self.client() as admin:
            await until(functools.partial(_ready, admin), 60)
            for each in (*crds("garden"), *access()):
                await admin.apply(each, manager="test")
            for name in (NAMESPACE, OTHER_NAMESPACE):
                await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, manager="test")
            for each in rights():
                await admin.apply(each, manager="test")
            await until(functools.partial(_serves_shoots, admin), 60)


def rights() -> list[Object]:
    """Roles of the people, with no more than a project's admins and viewers have. Source: spec/api-core.md 11."""
    core = ["core.gardener.cloud"]
    kubeconfigs = ["shoots/adminkubeconfig", "shoots/viewerkubeconfig"]
    member = [rule(core, ["shoots"], ["*"]), rule([""], ["configmaps"], ["*"]), rule(core, kubeconfigs, ["create"])]
    viewer = [rule(core, ["shoots"], ["get"]), rule(core, kubeconfigs[1:], ["create"])]
    lead = [rule([""], ["users"], ["impersonate"]) | {"resourceNames": [VICTOR]}]
    return [
        *_bound("member", member, [ALICE, ROBOT], NAMESPACE),
        *_bound("viewer", viewer, [VICTOR], NAMESPACE),
        *_bound("member", member, [STRANGER], OTHER_NAMESPACE),
        *_bound("operator", [rule(["*"], ["*"], ["*"])], [OPERATOR]),
        *_bound("lead", lead, [ALICE]),
    ]


def _bound(name: str, rules: list[Object], users: list[str], namespace: str = "") -> list[Object]:
    kind, place = ("Role", {"namespace": namespace}) if namespace else ("ClusterRole", {})
    group = "rbac.authorization.k8s.io"
    metadata = {"name": f"people-{name}", **place}
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": f"people-{name}"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user} for user in users],
        },
    ]


async def _ready(client: KubeClient) -> bool:
    with contextlib.suppress(ApiError):
        return bool(await client.request("GET", "/readyz") == "ok")
    return False


async def _serves_shoots(client: KubeClient) -> bool:
    for resource in (resources.SHOOT, resources.INTERNAL_SECRET):
        try:
            await client.list(resource, NAMESPACE)
        except ApiError:
            return False
    return True


@dataclass
class Answer:
    status: int
    content: Object
    headers: Any
    """A mapping that may hold several values of one name."""

    @property
    def message(self) -> str:
        return f"{self.content['reason']}: {self.content['message']}"

    @property
    def kubeconfig(self) -> Object:
        config: Object = json.loads(base64.b64decode(self.content["status"]["kubeconfig"]))
        return config

    @property
    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(
            base64.b64decode(self.kubeconfig["users"][0]["user"]["client-certificate-data"])
        )

    def subject(self) -> tuple[list[str], list[str]]:
        """Common names and organizations of the client certificate."""
        subject = self.certificate.subject
        assert len(list(subject)) == 2
        return (
            [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)],
            [str(each.value) for each in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)],
        )


@dataclass
class Garden:
    """The garden and one replica of the subresource server."""

    admin: KubeClient
    url: str
    directory: Path
    front_proxy: pki.Authority
    servers: pki.Authority

    def door(self, name: str = "front-proxy-client", authority: pki.Authority | None = None) -> pki.KeyPair:
        """A client certificate of the front door."""
        return (authority or self.front_proxy).issue(f"client-{name}", name)

    async def ask(
        self,
        user: str = "",
        subresource: str = "adminkubeconfig",
        *,
        method: str = "POST",
        shoot: str = f"{NAMESPACE}/demo",
        body: Any = None,
        headers: list[tuple[str, str]] | None = None,
        query: str = "",
        certificate: pki.KeyPair | None = None,
        path: str = "",
    ) -> Answer:
        """A request as the front door sends it for a user. Raises aiohttp.ClientError if the server ends TLS."""
        namespace, name = shoot.split("/")
        context = ssl.create_default_context(cafile=self.servers.files.certificate)
        shown = certificate or self.door()
        context.load_cert_chain(shown.certificate, shown.key)
        named = [("X-Remote-User", user)] if user else []
        data = json.dumps({"spec": {}} if body is None else body) if not isinstance(body, bytes | str) else body
        path = path or f"/apis/core.gardener.cloud/v1beta1/namespaces/{namespace}/shoots/{name}/{subresource}"
        async with (
            aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
            session.request(
                method, f"{self.url}{path}{query}", data=data, headers=[*named, *(headers or [])], ssl=context
            ) as answer,
        ):
            return Answer(answer.status, await answer.json(), answer.headers)

    async def shoot(self, name: str = "demo", namespace: str = NAMESPACE, **status: Any) -> Object:
        """Create a Shoot with its authorities."""
        metadata = {"name": name, "namespace": namespace}
        made = await self.admin.apply({**SHOOT, "metadata": metadata}, manager="test")
        await self.admin.patch(
            resources.SHOOT,
            name,
            namespace,
            {"status": {"advertisedAddresses": ADDRESSES, **status}},
            subresource="status",
        )
        return made

    async def authorities(
        self,
        name: str = "demo",
        namespace: str = NAMESPACE,
        generation: str = "1",
        authority: KeyPair | None = None,
        bundle: str = "the bundle",
    ) -> KeyPair:
        """Publish the client CA and the bundle of a Shoot, as its gardenlet does. Returns the client CA."""
        authority = authority or new_authority(f"ca-client-{generation}")
        content = {"ca.crt": authority.certificate, "ca.key": authority.key}
        place = {"namespace": namespace}
        for each in (
            {
                "apiVersion": resources.INTERNAL_SECRET.api_version,
                "kind": "InternalSecret",
                "metadata": {"name": f"{name}.ca-client", **place},
                "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"{name}.ca-cluster", **place},
                "data": {"ca.crt": bundle},
            },
        ):
            await self.admin.apply(each, manager="test")
        return authority

    async def records(self, name: str = "demo", namespace: str = NAMESPACE) -> dict[str, Object]:
        found = await self.admin.find(resources.CONFIG_MAP, f"{name}.issued-kubeconfigs", namespace)
        return {serial: json.loads(each) for serial, each in ((found or {}).get("data") or {}).items()}

    async def clear(self) -> None:
        for resource in (resources.SHOOT, resources.INTERNAL_SECRET, resources.CONFIG_MAP):
            for namespace in (NAMESPACE, OTHER_NAMESPACE):
                for each in await self.admin.list(resource, namespace):
                    await self.admin.patch(
                        resource, each["metadata"]["name"], namespace, {"metadata": {"finalizers": None}}
                    )
                    await self.admin.delete(resource, each["metadata"]["name"], namespace)


@asynccontextmanager
async def garden_of(server: ApiServer, directory: Path, **config: Any) -> AsyncIterator[Garden]:
    """The subresource server over the API server, with a Shoot garden-local/demo."""
    front_proxy, servers = pki.Authority(directory, "front-proxy-ca"), pki.Authority(directory, "ca")
    certificate = servers.issue("subresources", "subresources", names=["127.0.0.1"])
    port = free_port()
    configuration = SubresourcesConfig.model_validate(
        {
            "gardenClientConnection": {},
            "server": {
                "address": "127.0.0.1",
                "port": port,
                "certificateFile": str(certificate.certificate),
                "privateKeyFile": str(certificate.key),
            },
            "requestHeader": {"caFile": str(front_proxy.files.certificate)},
            **config,
        }
    )
    async with server.client() as admin, server.client(SERVER) as own, serving(configuration, own):
        garden = Garden(admin, f"https://127.0.0.1:{port}", directory, front_proxy, servers)
        await garden.clear()
        await garden.shoot()
        await garden.authorities()
        yield garden

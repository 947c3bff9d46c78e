"""A garden of a real API server, and the subresource server beside it.

The subresource server is asked as the front door asks it: with a certificate of the request-header CA, and with the
user in headers.
"""

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.x509.oid import NameOID

from activities.secrets.crypto import KeyPair
from api import resources
from api.access import SUBRESOURCE_SERVERS, rule
from kube.client import KubeClient
from landscape import pki
from tests.api_servers import free_port
from tests.gardens import ApiServer, new_authority
from tests.unit.api.shoots import SHOOT
from workers.subresources.process import SubresourcesConfig, serving

Object = dict[str, Any]

NAMESPACES = NAMESPACE, OTHER_NAMESPACE = "garden-local", "garden-other"
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
def api_server() -> Iterator[ApiServer]:
    """The API server of a garden, with the rights of this module's people."""
    with tempfile.TemporaryDirectory() as directory:
        made = ApiServer(Path(directory), {SERVER: SUBRESOURCE_SERVERS, ALICE: "staff", ROBOT: ""})
        namespaces = ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in NAMESPACES)
        with made.running():
            asyncio.run(made.prepare(*namespaces, *rights()))
            yield made


def rights() -> list[Object]:
    """Roles of the people, with no more than a project's admins and viewers have. Source: spec/api-core.md 11."""
    core = ["core.gardener.cloud"]
    kubeconfigs = ["shoots/adminkubeconfig", "shoots/viewerkubeconfig"]
    member = [rule(core, ["shoots"], ["*"]), rule([""], ["configmaps"], ["*"]), rule(core, kubeconfigs, ["create"])]
    viewer = [rule(core, ["shoots"], ["get"]), rule(core, kubeconfigs[1:], ["create"])]
    tokens = [rule(["security.gardener.cloud"], ["workloadidentities/token"], ["create"])]
    lead = [rule([""], ["users"], ["impersonate"]) | {"resourceNames": [VICTOR]}]
    return [
        *_bound("member", member, [ALICE, ROBOT], NAMESPACE),
        *_bound("viewer", viewer, [VICTOR], NAMESPACE),
        *_bound("member", member, [STRANGER], OTHER_NAMESPACE),
        *_bound("operator", [rule(["*"], ["*"], ["*"])], [OPERATOR]),
        *_bound("lead", lead, [ALICE]),
        # The seed authorizer, which this garden lacks, grants a gardenlet the identities of its Shoots alone.
        *_bound("seed", tokens, [f"gardener.cloud:system:seed:{each}" for each in ("seed-1", "seed-2")]),
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
        for resource in (
            resources.SHOOT,
            resources.INTERNAL_SECRET,
            resources.CONFIG_MAP,
            resources.WORKLOAD_IDENTITY,
            resources.CREDENTIALS_BINDING,
        ):
            for namespace in NAMESPACES:
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

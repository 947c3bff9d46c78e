"""Gardens of real processes: etcd and an API server that our job has set up; on request admission and controllers.

Users of tests log in by their name as their token.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage
from api import resources
from api.access import AUTHENTICATED, CONTROLLER_MANAGERS, OPERATORS
from api.crds import crds
from api.resources import Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, Invalid
from tests import api_servers
from tests.api_servers import API_SERVER, free_port, process, running
from tests.unit.kube.waiting import until
from workers.admission import seed_authorizer
from workers.admission.app import application
from workers.admission.limits import NO_LIMITS, ResourceAdmissionConfiguration
from workers.admission.process import CachedGarden
from workers.controller_manager.project import run_project_controller
from workers.lib.access import User, may
from workers.setup import Webhooks, set_up_garden

Object = dict[str, Any]

ADMIN, PROCESS = "admin", "gardener.cloud:system:controller-manager"
SCHEDULER = "gardener.cloud:system:scheduler"
_KUBE_CONTROLLER_MANAGER = API_SERVER.with_name("kube-controller-manager")
_CRYPTO: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "validity": timedelta(days=9)}


def new_authority(name: str) -> KeyPair:
    return crypto.self_signed_ca(name, now=datetime.now(UTC), **_CRYPTO)


@dataclass
class ApiServer:
    """The garden's API server. It is a Shoot's API server, too: it accepts certificates of ``client_authority``."""

    directory: Path
    groups: Mapping[str, str]
    """The group of each user, which may be empty. User ``admin`` is there in any case."""
    port: int = field(default_factory=free_port)
    client_authority: KeyPair = field(default_factory=lambda: new_authority("ca-client-of-server"))
    flags: Sequence[str] = ()
    """More flags of the API server."""
    authorization: Sequence[str] = ("--authorization-mode", "RBAC")
    """Flags that name the authorizers."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def bundle(self) -> str:
        """Authority of the API server's own certificate."""
        return (self.directory / "certs/apiserver.crt").read_text()

    def kubeconfig(self, user: str) -> Object:
        return api_servers.kubeconfig(self.port, user)

    def client(self, user: str = ADMIN) -> KubeClient:
        return api_servers.client(self.port, user)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run etcd and the API server until the end of the block."""
        (self.directory / "clients.crt").write_bytes(self.client_authority.certificate)
        users = {ADMIN: "system:masters", **self.groups}
        tokens = "".join(f'{name},{name},{name},"{group}"\n' for name, group in users.items())
        flags = (*self.authorization, "--client-ca-file", "clients.crt", *self.flags)
        with contextlib.ExitStack() as stack:
            for command in api_servers.commands(self.directory, self.port, tokens, *flags):
                stack.enter_context(running(self.directory, *command))
            yield

    async def prepare_seed(self, *objects: Object) -> None:
        """Wait until the API server is ready, and apply the kinds of a seed and these objects."""
        async with self.client() as admin:
            await api_servers.ready(admin)
            for each in (*crds("seed"), *objects):
                await admin.apply(each, manager="test")

    async def prepare(self, *objects: Object) -> None:
        """Wait until the API server is ready, set up the garden, and apply these objects."""
        async with self.client() as admin:
            await api_servers.ready(admin)
            await set_up_garden(admin, None)
            for each in objects:
                await admin.apply(each, manager="test")


async def until_policy_acts(server: ApiServer, acts: Callable[[KubeClient, str], Awaitable[bool]]) -> None:
    """Return once the API server has read a new policy. ``acts`` writes an object of this name, and sees the effect."""
    async with server.client() as client, asyncio.timeout(60):
        for attempt in itertools.count():
            with contextlib.suppress(ApiError):  # 503 while it starts
                if await acts(client, f"trial-{attempt}"):
                    return
            await asyncio.sleep(0.1)


@dataclass
class SeedAuthorizer:
    """The seed authorizer of a garden at a port of its own. The API server may run before it."""

    directory: Path
    port: int = field(default_factory=free_port)

    def flags(self) -> tuple[str, str]:
        """Flags of the API server that asks it. Writes the files that they name."""
        authority, now = new_authority("seed-authorizer"), datetime.now(UTC)
        shown = crypto.signed(
            "authorizer", ca=authority, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], now=now, **_CRYPTO
        )
        for name, content in (("ca", authority.certificate), ("crt", shown.certificate), ("key", shown.key)):
            (self.directory / f"authorizer.{name}").write_bytes(content)
        found = api_servers.kubeconfig(self.port, "none")
        server = f"https://127.0.0.1:{self.port}{seed_authorizer.PATH}"
        found["clusters"][0]["cluster"] = {
            "server": server,
            "certificate-authority": str(self.directory / "authorizer.ca"),
        }
        kubeconfig, configuration = self.directory / "authorizer.kubeconfig", self.directory / "authorization.json"
        kubeconfig.write_text(json.dumps(found))
        configuration.write_text(json.dumps(seed_authorizer.configuration(str(kubeconfig))))
        return "--authorization-config", str(configuration)

    @contextlib.asynccontextmanager
    async def running(self, client: KubeClient) -> AsyncIterator[None]:
        """Answer the API server until the end of the block. ``client``: that of admission."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.directory / "authorizer.crt", self.directory / "authorizer.key")
        caches = Caches(client)
        runner = web.AppRunner(seed_authorizer.application(CachedGarden(client, caches), client))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=context).start()
        try:
            yield
        finally:
            await runner.cleanup()
            await caches.close()


@contextlib.asynccontextmanager
async def admission(
    client: KubeClient, directory: Path, limits: ResourceAdmissionConfiguration = NO_LIMITS
) -> AsyncIterator[Webhooks]:
    """Admission in this process, at a port of its own; gives its address."""
    authority, now = new_authority("test"), datetime.now(UTC)
    shown = crypto.signed("admission", ca=authority, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], now=now, **_CRYPTO)
    (directory / "admission-ca.crt").write_bytes(authority.certificate)
    (directory / "admission.crt").write_bytes(shown.certificate)
    (directory / "admission.key").write_bytes(shown.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "admission.crt", directory / "admission.key")
    caches, port = Caches(client), free_port()
    runner = web.AppRunner(application(CachedGarden(client, caches), limits))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield Webhooks(
            url=f"https://127.0.0.1:{port}",
            ca_file=directory / "admission-ca.crt",
            resource_admission_configuration=limits,
        )
    finally:
        await runner.cleanup()
        await caches.close()


async def asks_admission(client: KubeClient) -> None:
    """Returns once the API server calls admission: it takes up webhooks some time after they were written."""
    invalid = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project", "metadata": {"name": "a--b"}, "spec": {}}

    async def refuses() -> bool:
        try:
            await client.request("POST", resources.PROJECT.path(), query={"dryRun": "All"}, body=invalid)
        except Invalid as error:
            return "no two hyphens in a row" in str(error)
        except ApiError:
            await asyncio.sleep(0.1)  # the clock of a poll
        return False

    await until(refuses, 60)


def show_certificate(directory: Path, authority: KeyPair) -> None:
    """Write the files with the certificate of a server of this process, as a kubelet does from a Secret."""
    now = datetime.now(UTC)
    shown = crypto.signed("server", ca=authority, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], now=now, **_CRYPTO)
    (directory / "tls.crt").write_bytes(shown.certificate)
    (directory / "tls.key").write_bytes(shown.key)


@contextlib.asynccontextmanager
async def controllers(client: KubeClient, run: Callable[[KubeClient, Caches], Any]) -> AsyncIterator[None]:
    """Run controllers in this process until the end of the block."""
    caches = Caches(client)
    task = asyncio.create_task(run(client, caches))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.close()


class RealGarden:
    """A running garden, and a client of each user."""

    def __init__(self, clients: dict[str, KubeClient]) -> None:
        self.clients = clients
        self.admin, self.process = clients[ADMIN], clients[PROCESS]

    async def may(self, user: str, verb: str, resource: Resource, namespace: str = "", name: str = "") -> bool:
        """Whether the API server's authorizer allows a request to a user."""
        return await may(self.admin, User(user, (AUTHENTICATED,)), verb, resource, namespace, name)

    async def project(self, name: str, *members: Object, **spec: Any) -> Object:
        """Create a Project as an administrator; returns it once its owner has the rights of the role."""
        spec = {"namespace": f"garden-{name}", "owner": person("olga"), **spec, "members": list(members)}
        await self.admin.apply(
            {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project", "metadata": {"name": name}, "spec": spec},
            manager="test",
        )
        await until(functools.partial(self.may, spec["owner"]["name"], "get", resources.PROJECT, "", name), 60)
        return dict(await until(functools.partial(self.ready, name), 60))

    async def ready(self, name: str) -> Object | None:
        """The Project; None while it is not ready."""
        found = await self.admin.get(resources.PROJECT, name)
        return found if (found.get("status") or {}).get("phase") == "Ready" else None

    async def change_project(self, user: str, name: str, **spec: Any) -> None:
        """Patch the spec of a Project as a user."""
        await self.clients[user].patch(resources.PROJECT, name, None, {"spec": spec})


def person(name: str, *roles: str, kind: str = "User") -> Object:
    """Subject of a Project; with roles, a member."""
    group = {} if kind == "ServiceAccount" else {"apiGroup": "rbac.authorization.k8s.io"}
    return {"kind": kind, "name": name, **group, **({"roles": list(roles)} if roles else {})}


@contextlib.asynccontextmanager
async def real_garden(directory: Path, *users: str) -> AsyncIterator[RealGarden]:
    """A garden with admission, aggregation of roles, and the controller of Projects."""
    server = ApiServer(
        directory, {PROCESS: f"{OPERATORS},{CONTROLLER_MANAGERS}", SCHEDULER: OPERATORS, **dict.fromkeys(users, "")}
    )
    (directory / "admin.kubeconfig").write_text(json.dumps(server.kubeconfig(ADMIN)))
    kube_controllers = (_KUBE_CONTROLLER_MANAGER, "--kubeconfig", "admin.kubeconfig", "--leader-elect=false",
                        "--authentication-kubeconfig", "admin.kubeconfig",
                        "--authorization-kubeconfig", "admin.kubeconfig",
                        "--controllers", "clusterrole-aggregation-controller,namespace-controller",
                        "--bind-address", "127.0.0.1", "--secure-port", free_port(), "--cert-dir", "certs")  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(server.running())
        garden = RealGarden({each: server.client(each) for each in (ADMIN, PROCESS, SCHEDULER, *users)})
        for each in garden.clients.values():
            await stack.enter_async_context(each)
        await api_servers.ready(garden.admin)
        await stack.enter_async_context(process(directory, *map(str, kube_controllers)))
        webhooks = await stack.enter_async_context(admission(garden.process, directory))
        await set_up_garden(garden.admin, webhooks)
        await asks_admission(garden.admin)
        await stack.enter_async_context(controllers(garden.process, run_project_controller))
        yield garden

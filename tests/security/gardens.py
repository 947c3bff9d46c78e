"""A garden of real processes: etcd, API server and aggregation of roles, set up by our job, with our admission.

Users of tests log in by their name as their token.
"""

import asyncio
import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, Usage
from api import resources
from api.access import AUTHENTICATED, OPERATORS
from api.resources import Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, Invalid
from tests import api_servers
from tests.api_servers import API_SERVER, free_port, process
from tests.unit.kube.waiting import until
from workers.admission.app import application
from workers.admission.process import CachedGarden
from workers.controller_manager.project import run_project_controller
from workers.lib.access import User, may
from workers.setup import Webhooks, set_up_garden

Object = dict[str, Any]

ADMIN, PROCESS = "admin", "gardener.cloud:system:controller-manager"
_KUBE_CONTROLLER_MANAGER = API_SERVER.with_name("kube-controller-manager")
_CRYPTO: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "validity": timedelta(days=1)}


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
    port, now = free_port(), datetime.now(UTC)
    groups = {ADMIN: "system:masters", PROCESS: OPERATORS}
    tokens = [f'{each},{each},{number},"{groups.get(each, "")}"' for number, each in enumerate((*groups, *users))]
    servers = api_servers.commands(directory, port, "\n".join(tokens) + "\n", "--authorization-mode", "RBAC")
    (directory / "admin.kubeconfig").write_text(json.dumps(_kubeconfig(port, ADMIN)))
    authority = crypto.self_signed_ca("test", now=now, **_CRYPTO)
    shown = crypto.signed("admission", ca=authority, usage=Usage.SERVER, ip_addresses=["127.0.0.1"], now=now, **_CRYPTO)
    (directory / "ca.crt").write_bytes(authority.certificate)
    (directory / "admission.crt").write_bytes(shown.certificate)
    (directory / "admission.key").write_bytes(shown.key)
    controllers = (_KUBE_CONTROLLER_MANAGER, "--kubeconfig", "admin.kubeconfig", "--leader-elect=false",
                   "--authentication-kubeconfig", "admin.kubeconfig", "--authorization-kubeconfig", "admin.kubeconfig",
                   "--controllers", "clusterrole-aggregation-controller,namespace-controller",
                   "--bind-address", "127.0.0.1", "--secure-port", free_port(), "--cert-dir", "certs")  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        for command in servers:
            await stack.enter_async_context(process(directory, *command))
        clients = {each: KubeClient.from_kubeconfig(_kubeconfig(port, each)) for each in (*groups, *users)}
        for each in clients.values():
            await stack.enter_async_context(each)
        garden = RealGarden(clients)
        await until(functools.partial(_answers, garden.admin), 60)
        await stack.enter_async_context(process(directory, *map(str, controllers)))
        webhooks = Webhooks(url=f"https://127.0.0.1:{free_port()}", ca_file=directory / "ca.crt")
        await set_up_garden(garden.admin, webhooks)
        await stack.enter_async_context(_admission(garden.process, directory, webhooks.url))
        await until(functools.partial(_asks_admission, garden.admin), 60)
        await stack.enter_async_context(_running(garden.process, run_project_controller))
        yield garden


def _kubeconfig(port: int, token: str) -> Object:
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
    }


async def _answers(client: KubeClient) -> bool:
    with contextlib.suppress(ApiError):
        return bool(await client.request("GET", "/readyz") == "ok")
    await asyncio.sleep(0.1)
    return False


async def _asks_admission(client: KubeClient) -> bool:
    """Whether the API server calls admission: it takes up webhooks some time after they were written."""
    invalid = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project", "metadata": {"name": "a--b"}, "spec": {}}
    try:
        await client.request("POST", resources.PROJECT.path(), query={"dryRun": "All"}, body=invalid)
    except Invalid as error:
        return "no two hyphens in a row" in str(error)
    except ApiError:
        return False
    return False


@contextlib.asynccontextmanager
async def _admission(client: KubeClient, directory: Path, url: str) -> AsyncIterator[None]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "admission.crt", directory / "admission.key")
    caches = Caches(client)
    runner = web.AppRunner(application(CachedGarden(client, caches)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(url.rpartition(":")[2]), ssl_context=context).start()
    try:
        yield
    finally:
        await runner.cleanup()
        await caches.close()


@contextlib.asynccontextmanager
async def _running(client: KubeClient, controller: Callable[[KubeClient, Caches], Any]) -> AsyncIterator[None]:
    caches = Caches(client)
    task = asyncio.create_task(controller(client, caches))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.close()

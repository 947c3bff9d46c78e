"""A real API server converts ControllerDeployments by admission's webhook, which strangers can call without harm."""

import asyncio
import base64
import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, KeyPair
from api import resources
from api.access import OPERATORS
from api.constants import ADMISSION_AUTHORITY, ADMISSION_WEBHOOK_AUTHORITY, GARDEN_NAMESPACE
from api.core.v1beta1.controller_deployment import ControllerDeployment
from api.crds import crd
from api.resources import CONTROLLER_DEPLOYMENT, CONTROLLER_DEPLOYMENT_V1BETA1, CUSTOM_RESOURCE_DEFINITION, Resource
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, Invalid
from tests import api_servers
from tests.api_servers import free_port
from tests.gardens import ApiServer
from tests.unit.charts import archive
from tests.unit.kube.waiting import until
from workers.admission import api_server_files, conversion
from workers.admission.app import application
from workers.admission.authority import client_certificate
from workers.admission.process import AdmissionConfig, CachedGarden, Certificates, serving
from workers.admission.webhooks import CONVERT_PATH, MUTATE_PATH, PROTECT_PATH, RESTRICT_PATH, VALIDATE_PATH
from workers.controller_manager.storage_versions import run_storage_version_controller
from workers.lib import webhook_certificates
from workers.setup import set_up_garden

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180, func_only=True)]

PROCESS = "gardener.cloud:system:admission"
CHART = base64.b64encode(archive({})).decode()
NAME = "controllerdeployments.core.gardener.cloud"
OPTIONS: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": timedelta(days=1)}


def deployment(name: str, resource: Resource, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **fields}


def old(name: str, **fields: Any) -> dict[str, Any]:
    return deployment(name, CONTROLLER_DEPLOYMENT_V1BETA1, **fields)


def new(name: str, **fields: Any) -> dict[str, Any]:
    return deployment(name, CONTROLLER_DEPLOYMENT, **fields)


HELM = {"type": "helm", "providerConfig": {"chart": CHART, "values": {"replicas": 1.5}}}
BY_HAND = {"type": "custom", "providerConfig": {"any": [None, {"x": "y"}]}}


@dataclass
class Garden:
    admin: KubeClient
    own: KubeClient
    url: str
    """URL of admission's webhooks."""
    authority: bytes
    """Authority of admission's certificate, as its Secret holds it first."""

    async def ask(self, path: str, body: Any) -> aiohttp.ClientResponse:
        """A request of a client without a certificate."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with aiohttp.ClientSession() as client, client.post(self.url + path, data=data, ssl=context) as answer:
            await answer.read()
            return answer

    async def reads(self, resource: Resource) -> dict[str, Any]:
        """The ControllerDeployments in one version, by name and without the metadata that differ."""
        found = await self.admin.list(resource)
        return {
            each["metadata"]["name"]: {
                **{key: value for key, value in each.items() if key not in ("apiVersion", "kind", "metadata")},
                **({"annotations": each["metadata"]["annotations"]} if each["metadata"].get("annotations") else {}),
            }
            for each in found
        }

    async def definition(self) -> dict[str, Any]:
        return await self.admin.get(CUSTOM_RESOURCE_DEFINITION, NAME)

    async def converts(self) -> bool:
        with contextlib.suppress(ApiError):
            return "conversion" in json.dumps((await self.definition())["spec"]["conversion"]) and bool(
                await self.admin.list(CONTROLLER_DEPLOYMENT)
            )
        return False


@contextlib.asynccontextmanager
async def garden(directory: Path) -> AsyncIterator[Garden]:
    """An API server of an earlier version of this system, with stored objects, and the present admission beside it."""
    flags = ("--admission-control-config-file", str(directory / api_server_files.ADMISSION))
    made = ApiServer(directory, {PROCESS: OPERATORS}, flags=flags)
    clients = crypto.self_signed_ca("admission", **OPTIONS)
    webhooks = f"https://127.0.0.1:{free_port()}"
    own = client_certificate(clients, datetime.now(UTC))
    (directory / api_server_files.CERTIFICATE).write_bytes(own.certificate)
    (directory / api_server_files.KEY).write_bytes(own.key)
    for name, content in api_server_files.files(
        str(directory), webhooks_url=webhooks, authorizer_url=webhooks, authority=clients.certificate
    ).items():
        (directory / name).write_text(json.dumps(content))
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(made.running())
        admin, client = [await stack.enter_async_context(made.client(token)) for token in ("admin", PROCESS)]
        await api_servers.ready(admin)
        await _store_as_before(admin)
        await set_up_garden(admin, None)
        await admin.apply(_secret(clients), manager="test")
        configuration = AdmissionConfig.model_validate(
            {
                "gardenClientConnection": {},
                "server": {"address": "127.0.0.1", "port": int(webhooks.rpartition(":")[2])},
                "certificates": {"url": webhooks},
                "clientAuthentication": {},
            }
        )
        caches = Caches(client)
        stack.push_async_callback(caches.close)
        shown = Certificates(configuration, client)
        await stack.enter_async_context(
            serving(configuration, shown, application(CachedGarden(client, caches)), web.Application())
        )
        tasks = [asyncio.create_task(each) for each in shown.work]
        stack.push_async_callback(lambda: asyncio.gather(*tasks, return_exceptions=True))
        stack.callback(lambda: [each.cancel() for each in tasks])
        async with asyncio.timeout(30):
            await asyncio.gather(*(each.wait() for each in shown.ready))
        secret = await admin.get(resources.SECRET, ADMISSION_WEBHOOK_AUTHORITY, GARDEN_NAMESPACE)
        found = Garden(admin, client, webhooks, base64.b64decode(secret["data"]["ca.crt"]))
        await until(found.converts, 60)
        yield found


async def _store_as_before(admin: KubeClient) -> None:
    """Objects as an earlier version of this system has stored them: in v1beta1, the only version of the kind."""
    await admin.apply(crd(ControllerDeployment), manager="gardener-setup")
    for each in (old("chart", **HELM), old("by-hand", **BY_HAND), old("broken", type="helm", providerConfig={"x": 1})):
        await until(functools.partial(_created, admin, each), 60)


async def _created(admin: KubeClient, obj: dict[str, Any]) -> bool:
    with contextlib.suppress(ApiError):
        return bool(await admin.apply_blindly(obj, manager="test"))
    return False


def _secret(authority: KeyPair) -> dict[str, Any]:
    content = {"ca.crt": authority.certificate, "ca.key": authority.key}
    metadata = {"name": ADMISSION_AUTHORITY, "namespace": GARDEN_NAMESPACE}
    data = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


@pytest.mark.usefixtures("kubernetes_is_built")
async def test_stored_objects_are_upgraded_in_place_and_both_versions_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server asks without a client certificate, although admission asks for one."""
    monkeypatch.setattr(webhook_certificates, "SETTLE", timedelta(seconds=1))
    prefix = "migration.controllerdeployment.gardener.cloud/"
    async with garden(tmp_path) as here:
        first = await here.reads(CONTROLLER_DEPLOYMENT)
        assert first["chart"] == {"helm": {"rawChart": CHART, "values": {"replicas": 1.5}}}
        assert first["by-hand"]["annotations"][f"{prefix}type"] == "custom"
        assert (await here.reads(CONTROLLER_DEPLOYMENT_V1BETA1))["by-hand"] == BY_HAND
        assert (await here.definition())["status"]["storedVersions"] == ["v1beta1", "v1"]

        before = await here.reads(CONTROLLER_DEPLOYMENT_V1BETA1)
        task = asyncio.create_task(run_storage_version_controller(here.own))
        await until(functools.partial(_stored_once, here), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await here.reads(CONTROLLER_DEPLOYMENT_V1BETA1) == before

        await here.admin.create(old("later", **HELM))
        assert (await here.reads(CONTROLLER_DEPLOYMENT))["later"] == first["chart"]
        await here.admin.create(new("newest", helm={"ociRepository": {"ref": "registry.example.org/a/b:v1"}}))
        assert (await here.reads(CONTROLLER_DEPLOYMENT_V1BETA1))["newest"] == {
            "type": "helm",
            "providerConfig": {"ociRepository": {"ref": "registry.example.org/a/b:v1"}},
        }
        with pytest.raises(Invalid, match=r"providerConfig: .*vlaues: unknown field"):
            await here.admin.create(old("refused", type="helm", providerConfig={"chart": CHART, "vlaues": {}}))
        with pytest.raises(Invalid, match="helm: Required value: must say which chart to deploy"):
            await here.admin.create(new("refused"))

        await _renew(here)
        assert (await here.reads(CONTROLLER_DEPLOYMENT_V1BETA1))["by-hand"] == BY_HAND


async def _stored_once(here: Garden) -> bool:
    return (await here.definition())["status"]["storedVersions"] == ["v1"]


async def _renew(here: Garden) -> None:
    """Have admission make another authority, and wait until it shows a certificate that this authority signed."""
    annotated = {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}}
    await here.admin.patch(resources.SECRET, ADMISSION_WEBHOOK_AUTHORITY, GARDEN_NAMESPACE, annotated)

    async def shows_another() -> bool:
        try:
            await here.ask(CONVERT_PATH, {})
        except aiohttp.ClientConnectorCertificateError:
            return True
        return False

    await until(shows_another, 60)


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
@pytest.mark.usefixtures("kubernetes_is_built")
async def test_a_caller_without_a_certificate_gets_nothing_but_its_own_objects_converted(tmp_path: Path) -> None:
    """The API server shows no certificate to conversion webhooks, so that path alone answers without one."""
    async with garden(tmp_path) as here:
        for path in (MUTATE_PATH, VALIDATE_PATH, PROTECT_PATH, RESTRICT_PATH):
            assert (await here.ask(path, {})).status == 403
            assert (await here.ask(path + CONVERT_PATH, {})).status == 403
        review = {"uid": "1", "desiredAPIVersion": "core.gardener.cloud/v1", "objects": [old("chart", **BY_HAND)]}
        answer = await here.ask(CONVERT_PATH, {"request": review})
        [made] = (await answer.json())["response"]["convertedObjects"]
        assert made["metadata"].keys() == {"name", "annotations"}, "nothing is read from the object in the garden"
        broken: list[Any] = [b"", b"[]", b"{", {"request": {**review, "objects": [3]}}, {"request": {}}]
        for each in broken:
            assert (await here.ask(CONVERT_PATH, each)).status == 400
        for odd in (
            {"metadata": 3},
            {"metadata": {"annotations": [1]}},
            {"helm": 3},
            {"type": 3},
            {"providerConfig": 3},
        ):
            for version in ("v1", "v1beta1"):
                obj = {"apiVersion": f"core.gardener.cloud/{version}", "kind": "ControllerDeployment", **odd}
                wanted = "core.gardener.cloud/" + {"v1": "v1beta1", "v1beta1": "v1"}[version]
                asked = {"request": {"uid": "1", "desiredAPIVersion": wanted, "objects": [obj]}}
                assert (await here.ask(CONVERT_PATH, asked)).status == 200, odd


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
@pytest.mark.usefixtures("kubernetes_is_built")
async def test_callers_without_a_certificate_do_not_take_the_turns_of_reviews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While strangers hold all turns of conversions with slow requests, every write of the garden is reviewed."""
    monkeypatch.setattr(conversion, "LARGEST", 1000)
    async with garden(tmp_path) as here:
        assert (await here.ask(CONVERT_PATH, b" " * 1001)).status == 413
        context, port = ssl.create_default_context(cadata=here.authority.decode()), int(here.url.rpartition(":")[2])
        writers = []
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"POST /convert HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
            await writer.drain()
            writers.append(writer)
        busy = await here.ask(CONVERT_PATH, {})
        assert busy.status == 429
        profile = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Project", "metadata": {"name": "a--b"}}
        with pytest.raises(Invalid, match="no two hyphens in a row"):
            await here.admin.request("POST", resources.PROJECT.path(), body={**profile, "spec": {}})
        for writer in writers:
            writer.close()

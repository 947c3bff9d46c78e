"""The extension shoot-oidc-service against an API server in memory: what it deploys, keeps and deletes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.secrets.crypto import validity_of
from kube.cache import Caches
from kube.kubeconfig import endpoint_of, parse_kubeconfig
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.extension.controller import ExtensionController
from workers.oidc_service.actuator import OidcServiceActuator

NAMESPACE = "shoot--local--demo"
EXTENSIONS, CLUSTERS = (f"/apis/extensions.gardener.cloud/v1alpha1/{each}" for each in ("extensions", "clusters"))
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
SECRETS, CONFIG_MAPS, DEPLOYMENTS = "/api/v1/secrets", "/api/v1/configmaps", "/apis/apps/v1/deployments"
WEBHOOK, CERTIFICATES = "extension-shoot-oidc-service-webhook", "extension-shoot-oidc-service-certificates"
NAME = "oidc-webhook-authenticator"


@pytest.fixture
async def seed() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server, server.client() as client:
        pin(server)
        caches = Caches(client)
        running = asyncio.create_task(ExtensionController(client, caches, OidcServiceActuator(client, caches)).run())
        yield server
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()


def pin(seed: ApiServer, *, rotation: str = "", **spec: Any) -> None:
    credentials = {"rotation": {"certificateAuthorities": {"lastInitiationTime": rotation}}} if rotation else {}
    shoot = {"metadata": {"name": "demo", "generation": 1}, "spec": spec, "status": {"credentials": credentials}}
    networks = {"pods": "10.1.0.0/16", "services": "10.2.0.0/16", "nodes": "10.3.0.0/16"}
    annotations = {"generic-token-kubeconfig.secret.gardener.cloud/name": "generic-token-kubeconfig-1"}
    cluster = {"shoot": shoot, "seed": {"spec": {"networks": networks}}}
    seed.put(CLUSTERS, {"metadata": {"name": NAMESPACE, "annotations": annotations}, "spec": cluster})


async def reconcile(seed: ApiServer, at: str = "2026-11-25T10:00:00Z") -> None:
    annotations = {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": at}
    metadata = {"name": "shoot-oidc-service", "namespace": NAMESPACE, "uid": "u-1"}
    if seed.find(EXTENSIONS, "shoot-oidc-service", NAMESPACE):
        # Without the last operation, the next one that succeeds is this one.
        change = {"metadata": {"annotations": annotations}, "status": {"lastOperation": None}}
        seed.change(EXTENSIONS, "shoot-oidc-service", NAMESPACE, change)
    else:
        seed.put(
            EXTENSIONS, {"metadata": metadata | {"annotations": annotations}, "spec": {"type": "shoot-oidc-service"}}
        )

    def done() -> bool:
        live = seed.find(EXTENSIONS, "shoot-oidc-service", NAMESPACE) or {}
        operation = (live["metadata"].get("annotations") or {}).get("gardener.cloud/operation")
        return operation is None and ((live.get("status") or {}).get("lastOperation") or {}).get("state") == "Succeeded"

    await until(done, 20)


def found(seed: ApiServer, path: str, name: str) -> dict[str, Any]:
    obj = seed.find(path, name, NAMESPACE)
    assert obj is not None
    return obj


async def test_the_api_server_gets_a_kubeconfig_for_the_authenticator(seed: ApiServer) -> None:
    await reconcile(seed)
    secret = found(seed, SECRETS, WEBHOOK)
    endpoint = endpoint_of(parse_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"])))

    assert secret["metadata"]["labels"]["extensions.gardener.cloud/token-webhook-of"] == "shoot-oidc-service"
    assert endpoint.server == "https://oidc-webhook-authenticator/validate-token"
    data = {key: base64.b64decode(value) for key, value in found(seed, SECRETS, CERTIFICATES)["data"].items()}
    assert (endpoint.ca.encode(), endpoint.certificate) == (data["ca.crt"], data["client.crt"])
    assert "ca.key" not in data, "nothing else is signed"
    service = found(seed, "/api/v1/services", NAME)
    assert [(each["port"], each["targetPort"]) for each in service["spec"]["ports"]] == [(443, 10443)]


async def test_the_authenticator_connects_to_no_network_of_the_seed(seed: ApiServer) -> None:
    await reconcile(seed)
    config = json.loads(found(seed, CONFIG_MAPS, "extension-shoot-oidc-service-config")["data"]["config.yaml"])
    pod = found(seed, DEPLOYMENTS, NAME)["spec"]["template"]["spec"]

    assert config["blockedNetworks"] == ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    mounted = next(each for each in pod["volumes"] if each["name"] == "certificates")["secret"]["items"]
    assert {each["key"] for each in mounted} == {"ca.crt", "tls.crt", "tls.key"}


async def test_the_shoot_gets_the_kind_and_one_right(seed: ApiServer) -> None:
    await reconcile(seed)
    [reference] = found(seed, MANAGED_RESOURCES, "extension-shoot-oidc-service")["spec"]["secretRefs"]
    data = found(seed, SECRETS, reference["name"])["data"].values()
    objects = {each["kind"]: each for each in (json.loads(base64.b64decode(value)) for value in data)}

    assert objects["CustomResourceDefinition"]["metadata"]["name"] == "openidconnects.authentication.gardener.cloud"
    [rule] = objects["ClusterRole"]["rules"]
    assert rule == {
        "apiGroups": ["authentication.gardener.cloud"],
        "resources": ["openidconnects"],
        "verbs": ["get", "list", "watch"],
    }


async def test_certificates_stay_until_the_next_rotation(seed: ApiServer) -> None:
    await reconcile(seed)
    first = found(seed, SECRETS, CERTIFICATES)["data"]
    await reconcile(seed, "2026-11-25T11:00:00Z")
    assert found(seed, SECRETS, CERTIFICATES)["data"] == first

    pin(seed, rotation="2026-11-25T11:30:00Z")
    await reconcile(seed, "2026-11-25T12:00:00Z")
    renewed = found(seed, SECRETS, CERTIFICATES)["data"]
    assert renewed["ca.crt"] != first["ca.crt"]
    assert validity_of(base64.b64decode(renewed["tls.crt"]))[1].year >= 2035


async def test_a_hibernated_control_plane_has_no_authenticator(seed: ApiServer) -> None:
    pin(seed, hibernation={"enabled": True})
    await reconcile(seed)
    assert found(seed, DEPLOYMENTS, NAME)["spec"]["replicas"] == 0


async def test_deleted_it_leaves_nothing(seed: ApiServer) -> None:
    before = set(seed.objects)
    await reconcile(seed)
    made = set(seed.objects) - before
    assert len(made) > 8
    seed.change(
        EXTENSIONS, "shoot-oidc-service", NAMESPACE, {"metadata": {"deletionTimestamp": "2026-11-25T11:00:00Z"}}
    )
    await until(lambda: seed.find(EXTENSIONS, "shoot-oidc-service", NAMESPACE) is None, 20)
    left = {place for place in set(seed.objects) - before if place[0] != "/api/v1/events"}
    assert left == set()

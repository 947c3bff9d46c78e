"""The discovery server: documents of seeds that it serves, and documents that it refuses to serve."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from api import resources
from api.access import access
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from workers.discovery_server import application

NAMESPACE = "gardener-system-shoot-issuer"
PATH = "/projects/local/shoots/uid-1/issuer"
ISSUER = f"https://issuer.example.org{PATH}"
CONFIGURATION = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks", "response_types_supported": ["id_token"]}
KEYS = {"keys": [{"use": "sig", "kty": "RSA", "kid": "1", "alg": "RS256", "n": "AQ", "e": "AQAB"}]}

Client = TestClient[Any, Any]


def publish(garden: ApiServer, configuration: Any = CONFIGURATION, keys: Any = KEYS) -> None:
    data = {"openid-config": configuration, "jwks": keys}
    encoded = {key: base64.b64encode(json.dumps(value).encode()).decode() for key, value in data.items()}
    garden.put("/api/v1/secrets", {"metadata": {"name": "local--uid-1", "namespace": NAMESPACE}, "data": encoded})


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as garden:
        yield garden


async def asked(garden: ApiServer, path: str) -> tuple[int, str, Any]:
    """Status, how long it may be kept, and the document."""
    async with garden.client() as client:
        caches = Caches(client)
        published = caches.of(resources.SECRET, NAMESPACE)
        await published.synced()
        async with TestClient(TestServer(application(published, caches.of(resources.SECRET, NAMESPACE)))) as http:
            answer = await http.get(path)
            document = await answer.json() if answer.status == 200 else await answer.text()
            result = answer.status, answer.headers.get("Cache-Control", ""), document
        await caches.close()
        return result


async def test_both_documents_are_served_without_authentication(garden: ApiServer) -> None:
    publish(garden)
    assert await asked(garden, f"{PATH}/.well-known/openid-configuration") == (200, "public, max-age=60", CONFIGURATION)
    assert await asked(garden, f"{PATH}/jwks") == (200, "public, max-age=60", KEYS)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/projects/local/shoots/uid-2/issuer/jwks",
        "/projects/other/shoots/uid-1/issuer/jwks",
        f"{PATH}/openid-config",
        f"{PATH}/jwks/more",
    ],
)
async def test_other_paths_are_not_found(garden: ApiServer, path: str) -> None:
    publish(garden)
    status, _, _ = await asked(garden, path)
    assert status == 404


async def test_a_document_of_another_issuer_is_not_served(garden: ApiServer) -> None:
    publish(garden, CONFIGURATION | {"issuer": "https://issuer.example.org/projects/local/shoots/uid-2/issuer"})
    assert (await asked(garden, f"{PATH}/.well-known/openid-configuration"))[0] == 404
    publish(garden, CONFIGURATION | {"jwks_uri": "https://elsewhere.example.org/jwks"})
    assert (await asked(garden, f"{PATH}/.well-known/openid-configuration"))[0] == 404


async def test_a_private_key_is_not_served_and_not_logged(garden: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    publish(garden, keys={"keys": [{**KEYS["keys"][0], "d": "c2VjcmV0"}]})
    status, _, text = await asked(garden, f"{PATH}/jwks")
    assert status == 404
    assert "holds more than public keys: d" in caplog.text
    assert "c2VjcmV0" not in text + caplog.text


async def test_an_unreadable_document_is_not_served(garden: ApiServer) -> None:
    publish(garden)
    garden.change("/api/v1/secrets", "local--uid-1", NAMESPACE, {"data": {"jwks": "e25v"}})
    assert (await asked(garden, f"{PATH}/jwks"))[0] == 404


def test_the_discovery_server_may_read_published_secrets_only() -> None:
    name = "gardener.cloud:system:discovery-servers"
    [role] = [each for each in access() if each["metadata"]["name"] == name and "rules" in each]
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", NAMESPACE)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}]

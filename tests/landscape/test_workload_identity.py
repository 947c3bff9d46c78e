"""A cluster without any static key of its cloud: the cloud verifies tokens by the garden's published keys."""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.landscape import https
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(CREATION + 240, func_only=True)]

SECRET = "cloudprovider"
RENEW_TIMESTAMP = "workloadidentity.security.gardener.cloud/token-renew-timestamp"
KEYS = "workload-identity-issuer"


@pytest.fixture(scope="module")
def keyless(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "keyless", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.manifest(purpose="testing", credentialsBindingName="local-identity")):
        yield shoot
    assert not [each for each in shoot.traces()["cloud"] if shoot.technical_id in each]


def secret_of(shoot: Shoot) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shoot.control_plane("get", "secret", SECRET, "-o", "json"))
    return found


def token_of(shoot: Shoot) -> str:
    return base64.b64decode(secret_of(shoot)["data"]["token"]).decode()


def claims_of(token: str) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return found


def renewed(shoot: Shoot) -> str:
    """The next token, which the gardenlet requests because the time of its renewal is gone."""
    before = token_of(shoot)
    shoot.control_plane("annotate", "secret", SECRET, f"{RENEW_TIMESTAMP}-")
    return eventually(lambda: token if (token := token_of(shoot)) != before else None, "another token", 30)


def answer_of_cloud(shoot: Shoot, token: str) -> int:
    """Status of a request to the cloud with a token."""
    kubeconfig = yaml.safe_load((shoot.landscape.directory / "kubeconfigs/cloud.yaml").read_text())
    authority = base64.b64decode(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    parts = urlsplit(shoot.landscape.facts["clusters"]["cloud"]["server"])
    context = ssl.create_default_context(cadata=authority)
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=10, context=context)
    try:
        connection.request("GET", "/api/v1/namespaces", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def published(shoot: Shoot) -> list[str]:
    """Ids of the keys that the discovery server publishes."""
    authority = (shoot.landscape.directory / "garden/pki/ca.crt").read_text()
    issuer = claims_of(token_of(shoot))["iss"]
    status, content = https.get(shoot, f"{issuer}/.well-known/openid-configuration", authority)
    assert status == 200
    status, content = https.get(shoot, json.loads(content)["jwks_uri"], authority)
    assert status == 200
    return [each["kid"] for each in json.loads(content)["keys"]]


def test_the_control_plane_holds_a_token_and_no_key(keyless: Shoot) -> None:
    secret = secret_of(keyless)
    assert set(secret["data"]) == {"config", "token"}
    labels = secret["metadata"]["labels"]
    assert labels["security.gardener.cloud/purpose"] == "workload-identity-token-requestor"
    assert labels["workloadidentity.security.gardener.cloud/provider"] == "local"

    claims = claims_of(token_of(keyless))
    identity = json.loads(keyless.garden("get", "workloadidentity", "local", "-o", "json"))
    assert claims["sub"] == identity["status"]["sub"]
    assert claims["aud"] == identity["spec"]["audiences"]
    context = claims["gardener.cloud"]
    assert (context["shoot"]["uid"], context["seed"]["name"]) == (keyless.uid, keyless.seed)
    assert context["project"]["name"] == "local"
    assert claims["exp"] - claims["iat"] == 6 * 3600
    assert answer_of_cloud(keyless, token_of(keyless)) == 200
    assert sum(map(len, keyless.nodes().values())) == 1


def test_a_token_is_renewed_before_it_expires(keyless: Shoot) -> None:
    before = claims_of(token_of(keyless))
    after = claims_of(renewed(keyless))
    assert after["jti"] != before["jti"]
    assert secret_of(keyless)["metadata"]["annotations"][RENEW_TIMESTAMP]


def test_the_cloud_refuses_forged_tokens(keyless: Shoot) -> None:
    token = token_of(keyless)
    claims, header = claims_of(token), jwt.get_unverified_header(token)
    foreign = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = {
        "key of another issuer": jwt.encode(claims, foreign, "RS256", {"kid": header["kid"]}),
        "no signature": jwt.encode(claims, "", "none"),
        "changed claims": ".".join((token.split(".")[0], jwt.encode(claims | {"sub": "x"}, "k", "HS256").split(".")[1]))
        + f".{token.split('.')[2]}",
    }
    assert answer_of_cloud(keyless, token) == 200
    for name, each in forged.items():
        assert answer_of_cloud(keyless, each) == 401, name


def test_tokens_stay_valid_while_the_key_of_the_issuer_is_rotated(keyless: Shoot) -> None:
    old = token_of(keyless)
    first = jwt.get_unverified_header(old)["kid"]
    earlier = published(keyless)
    keyless.landscape.kubectl("garden", "-n", "garden", "annotate", "secret", KEYS, "gardener.cloud/operation=renew")

    both = eventually(lambda: found if len(found := published(keyless)) > len(earlier) else None, "two keys", 60)
    assert first in both

    def by_new_key() -> str | None:
        token = renewed(keyless)
        return token if jwt.get_unverified_header(token)["kid"] != first else None

    new = eventually(by_new_key, "a token of the new key", 180)

    assert jwt.get_unverified_header(new)["kid"] in both
    assert [answer_of_cloud(keyless, each) for each in (old, new)] == [200, 200]
    keyless.reconcile(240)
    keys = json.loads(keyless.landscape.kubectl("garden", "-n", "garden", "get", "secret", KEYS, "-o", "json"))
    states = json.loads(base64.b64decode(keys["data"]["keys.json"]))["keys"]
    assert [bool(each["private"]) for each in states][-2:] == [False, True]

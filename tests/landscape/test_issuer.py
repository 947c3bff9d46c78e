"""Third parties trust a cluster by its managed issuer: all they know is the address in its tokens."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from tests.landscape import https
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(240, func_only=True)]

ANNOTATION = "authentication.gardener.cloud/issuer"
NAMESPACE = "gardener-system-shoot-issuer"


@pytest.fixture(scope="module")
def trusted(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A cluster without machines, which has a managed issuer."""
    shoot = Shoot(landscape, "trusted", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest(purpose="testing")
    manifest["metadata"]["annotations"][ANNOTATION] = "managed"
    manifest["spec"]["provider"].pop("workers")
    for part in ("networking", "credentialsBindingName"):
        manifest["spec"].pop(part)
    with shoot.created(manifest):
        yield shoot


def test_a_token_is_verified_with_the_published_keys_of_its_issuer(trusted: Shoot) -> None:
    trusted.kubectl("-n", "default", "create", "serviceaccount", "caller")
    token = trusted.kubectl("-n", "default", "create", "token", "caller", "--audience=third-party").strip()
    issuer = _part(token, 1)["iss"]
    assert issuer == _advertised(trusted)
    assert issuer.endswith(f"/projects/local/shoots/{trusted.uid}/issuer")

    configuration = _fetch(trusted, f"{issuer}/.well-known/openid-configuration")
    assert configuration["issuer"] == issuer
    keys = {each["kid"]: each for each in _fetch(trusted, configuration["jwks_uri"])["keys"]}
    _verify(token, keys[_part(token, 0)["kid"]])


def test_the_managed_issuer_cannot_be_removed_from_a_shoot(trusted: Shoot) -> None:
    garden = trusted.landscape.argv("garden", "-n", "garden-local")
    said = refused(*garden, "annotate", "shoot", trusted.name, f"{ANNOTATION}-")
    assert "must stay managed" in said


def test_the_published_keys_are_deleted_with_the_cluster(trusted: Shoot) -> None:
    issuer = _advertised(trusted)
    trusted.delete()

    left = trusted.landscape.kubectl("garden", "-n", NAMESPACE, "get", "secrets", "-o", "name")
    assert f"local--{trusted.uid}" not in left
    eventually(lambda: _get(trusted, f"{issuer}/jwks")[0] == 404, "its keys are not served any more", 20)


def _advertised(shoot: Shoot) -> str:
    addresses = {each["name"]: str(each["url"]) for each in shoot.get()["status"]["advertisedAddresses"]}
    return addresses["service-account-issuer"]


def _get(shoot: Shoot, url: str) -> tuple[int, bytes]:
    return https.get(shoot, url, (shoot.landscape.directory / "garden/pki/ca.crt").read_text())


def _fetch(shoot: Shoot, url: str) -> dict[str, Any]:
    status, content = _get(shoot, url)
    assert status == 200, content
    document: dict[str, Any] = json.loads(content)
    return document


def _part(token: str, index: int) -> dict[str, Any]:
    part: dict[str, Any] = json.loads(_decoded(token.split(".")[index]))
    return part


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _verify(token: str, key: dict[str, str]) -> None:
    """Raises InvalidSignature. Shoots of the landscape sign with ES256."""
    x, y = (int.from_bytes(_decoded(key[name])) for name in ("x", "y"))
    signed, _, signature = token.rpartition(".")
    raw = _decoded(signature)
    r, s = (int.from_bytes(half) for half in (raw[:32], raw[32:]))
    public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    public.verify(encode_dss_signature(r, s), signed.encode(), ec.ECDSA(SHA256()))

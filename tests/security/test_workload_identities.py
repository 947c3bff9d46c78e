"""Tokens of WorkloadIdentities that are not the requester's, contexts that are forged, and tokens that others made."""

import base64
import functools
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from temporalio.exceptions import ApplicationError

from activities.provider_local.cloud import Clouds, cloud_errors
from api import resources
from api.decisions.issuer_keys import documents
from kube.cache import Caches
from kube.errors import Forbidden, Invalid
from landscape import pki
from landscape.cloud import configuration
from tests import api_servers
from tests.api_servers import free_port
from tests.garden_api_server import (
    ALICE,
    NAMESPACE,
    OPERATOR,
    OTHER_NAMESPACE,
    STRANGER,
    Garden,
    api_server,
    garden_of,
)
from tests.gardens import ApiServer
from tests.unit.admission.test_seed_authorizer import Garden as Held
from tests.unit.admission.test_seed_authorizer import shoot
from tests.unit.kube.api_server import ApiServer as FakeApiServer
from tests.unit.kube.waiting import until
from tests.workload_identities import (
    AUDIENCE,
    GARDENLET,
    PATH,
    SEEDS,
    a_key,
    binding,
    identity,
    identity_in,
    rotate,
    shoot_in_seed,
    with_keys,
)
from workers.admission.seed_authorizer import Request, allows
from workers.discovery_server import application

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(300, func_only=True),
]

OTHER_SEED = "gardener.cloud:system:seed:seed-2"


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
async def garden(server: ApiServer, tmp_path: Path) -> AsyncIterator[Garden]:
    async with garden_of(server, tmp_path) as made:
        await with_keys(made.admin)
        await identity_in(made.admin)
        yield made


async def refused(garden: Garden, user: str, context: Any = None, **asked: Any) -> str:
    body = {"spec": {"contextObject": context}} if context else None
    answer = await garden.ask(user, path=PATH, body=body, **asked)
    assert answer.status == 403, answer.content
    assert "status" not in answer.content or answer.content["status"] == "Failure"
    return answer.message


@pytest.mark.attack(actor="T1", asset="A1", finding=36)
@pytest.mark.parametrize("user", [STRANGER, ALICE])
async def test_a_member_of_a_project_gets_no_token_of_a_workload_identity(garden: Garden, user: str) -> None:
    """The token opens the cloud account. Members of other projects have no right, and own members have none either."""
    assert f'User "{user}" cannot create resource "workloadidentities/token"' in await refused(garden, user)


@pytest.mark.attack(actor="T1", asset="A1", finding=36)
async def test_a_member_who_names_himself_a_seed_by_groups_gets_no_token(garden: Garden) -> None:
    """Impersonation needs a right, and the group of gardenlets alone is no right."""
    await refused(garden, STRANGER, headers=[("Impersonate-User", GARDENLET), ("Impersonate-Group", SEEDS[1])])
    await refused(garden, STRANGER, headers=[SEEDS])


@pytest.mark.attack(actor="T3", asset="A1", finding=36)
async def test_a_gardenlet_of_another_seed_gets_no_token_for_a_shoot(garden: Garden) -> None:
    """Seed seed-2 names the Shoot of seed seed-1, although a role, wrongly, lets it ask for tokens."""
    context = (await shoot_in_seed(garden.admin)).context

    said = await refused(garden, OTHER_SEED, context, headers=[SEEDS])

    assert "seed seed-2 has no such Shoot that refers to this WorkloadIdentity" in said


@pytest.mark.attack(actor="T3", asset="A1", finding=36)
async def test_a_gardenlet_cannot_forge_the_context_of_a_token(garden: Garden) -> None:
    """Clouds trust claim ``gardener.cloud``. Each forged part gets the same answer, which reveals nothing."""
    context = (await shoot_in_seed(garden.admin)).context
    forged: list[dict[str, Any]] = [
        {**context, "uid": "another"},
        {**context, "name": "other"},
        {**context, "namespace": OTHER_NAMESPACE},
        {**context, "kind": "Seed", "name": "seed-1"},
        {**context, "kind": "BackupBucket", "name": "bucket"},
    ]
    told = {await refused(garden, GARDENLET, each, headers=[SEEDS]) for each in forged}
    assert all("refers to this WorkloadIdentity" in each for each in told)
    for unknown in ({**context, "kind": "Secret"}, {**context, "apiVersion": "v1"}):
        assert "must be one of Shoot, Seed" in await refused(garden, GARDENLET, unknown, headers=[SEEDS])


@pytest.mark.attack(actor="T3", asset="A1", finding=36)
async def test_a_shoot_that_does_not_use_an_identity_is_no_context_of_its_token(garden: Garden) -> None:
    await identity_in(garden.admin, "other")
    context = (await shoot_in_seed(garden.admin)).context

    answer = await garden.ask(
        GARDENLET, path=PATH.replace("/cloud/", "/other/"), headers=[SEEDS], body={"spec": {"contextObject": context}}
    )

    assert answer.status == 403
    assert "refers to this WorkloadIdentity" in answer.message


@pytest.mark.attack(actor="T1", asset="A1", finding=36)
async def test_a_subject_in_the_status_does_not_change_the_subject_of_tokens(garden: Garden) -> None:
    """A role may, wrongly, let a user write the status. The subject is computed, and a stored one never changes."""
    status = {"status": {"sub": "gardener.cloud:workloadidentity:garden:admin:1"}}
    place = (resources.WORKLOAD_IDENTITY, "cloud", NAMESPACE)
    await garden.admin.patch(*place, status, subresource="status")
    with pytest.raises(Invalid, match="field is immutable"):
        await garden.admin.patch(*place, {"status": {"sub": "other"}}, subresource="status")

    token = (await garden.ask(OPERATOR, path=PATH)).content["status"]["token"]

    live = await garden.admin.get(*place)
    assert jwt.decode(token, options={"verify_signature": False})["sub"].endswith(f":{live['metadata']['uid']}")


@pytest.mark.attack(actor="T1", asset="A1", finding=36)
async def test_a_created_identity_brings_no_subject_of_its_own(garden: Garden) -> None:
    made = await garden.admin.create({**identity("named"), "status": {"sub": "gardener.cloud:workloadidentity:x:y:z"}})
    assert "status" not in made


@pytest.mark.attack(actor="T1", asset="A1", finding=36)
async def test_no_role_of_people_reads_the_keys_of_the_issuer(server: ApiServer, garden: Garden) -> None:
    """They are in a namespace of no Project, and the server that signs with them reads this Secret alone there."""
    async with server.client(ALICE) as alice:
        with pytest.raises(Forbidden):
            await alice.get(resources.SECRET, "workload-identity-issuer", "garden")
    async with server.client("gardener.cloud:system:subresources") as own:
        await own.get(resources.SECRET, "workload-identity-issuer", "garden")
        for name in ("gardener-admission-authority", "another"):
            with pytest.raises(Forbidden):
                await own.get(resources.SECRET, name, "garden")


PLACE = (NAMESPACE, "identity")
BOUND = {
    **binding("of-demo", NAMESPACE, "identity"),
    "metadata": {"name": "of-demo", "namespace": NAMESPACE, "uid": "uid of binding"},
}


@pytest.mark.attack(actor="T3", asset="A1", finding=36)
@pytest.mark.parametrize(("home", "may"), [("seed-1", True), ("seed-2", False)])
async def test_the_authorizer_grants_tokens_to_the_seeds_of_the_users_of_an_identity(home: str, may: bool) -> None:
    """Seed seed-1 asks; a Shoot in ``home`` uses the identity by its binding."""
    held = Held([shoot("demo", home, home), BOUND])

    async def allowed(verb: str, name: str, subresource: str = "") -> bool:
        request = Request(GARDENLET, verb, resources.WORKLOAD_IDENTITY, subresource, NAMESPACE, name)
        return await allows(request, held)

    assert await allowed("create", "identity", "token") is may
    assert await allowed("get", "identity") is may
    assert not await allowed("create", "other", "token")
    for verb in ("update", "patch", "delete", "list"):
        assert not await allowed(verb, "identity")
    assert not await allowed("patch", "identity", "status")


@pytest.mark.attack(actor="T3", asset="A1", finding=36)
async def test_no_gardenlet_reads_the_keys_of_the_issuer_by_a_reference_to_them() -> None:
    async def allowed(name: str) -> bool:
        named = {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": name}
        held = Held([shoot("demo", "seed-1", "seed-1"), {**BOUND, "credentialsRef": named}])
        return await allows(Request(GARDENLET, "get", resources.SECRET, "", "garden", name), held)

    assert await allowed("usual")
    assert not await allowed("workload-identity-issuer")


# At a cloud that verifies tokens by the published keys: a real API server, configured as the cloud of a landscape


@dataclass
class Cloud:
    url: str
    issuer: str
    authority: str
    """Authority of the cloud's certificate, PEM."""

    def token(self, key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
        """A token of the issuer for the cloud, with changed claims or signed in another way."""
        now = datetime.now(UTC)
        claims = {
            "iss": self.issuer,
            "sub": f"gardener.cloud:workloadidentity:{NAMESPACE}:cloud:1",
            "aud": [AUDIENCE],
            "iat": int(now.timestamp()),
            "nbf": int(now.timestamp()),
            "exp": int((now + timedelta(hours=1)).timestamp()),
            **changes,
        }
        signing = a_key().private if key is None and algorithm == "RS256" else key
        return jwt.encode(claims, signing, algorithm, {"kid": a_key().id})

    def token_by_public_key(self) -> str:
        """Signed with the issuer's public key as a shared secret."""
        header = json.dumps({"alg": "HS256", "typ": "JWT", "kid": a_key().id}).encode()
        signed = f"{base64.urlsafe_b64encode(header).decode().rstrip('=')}.{self.token().split('.')[1]}"
        private = serialization.load_pem_private_key(a_key().private.encode(), None)
        public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        signature = hmac.digest(public, signed.encode(), hashlib.sha256)
        return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    def secret(self, token: str) -> dict[str, str]:
        """Data of Secret cloudprovider with this token."""
        config = {
            "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
            "kind": "WorkloadIdentityConfig",
            "server": self.url,
            "certificateAuthorityData": base64.b64encode(self.authority.encode()).decode(),
        }
        return {
            "config": base64.b64encode(json.dumps(config).encode()).decode(),
            "token": base64.b64encode(token.encode()).decode(),
        }

    async def asked(self, token: str) -> None:
        """Let provider-local ask the cloud with a token. Raises ApplicationError."""
        clouds, secret = Clouds(), self.secret(token)
        try:
            client = await clouds.connect(secret, "shoot--local--demo/cloudprovider")
            with cloud_errors("listing namespaces in the cloud", secret):
                await client.list(resources.NAMESPACE)
        finally:
            await clouds.close()


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    """A cloud that trusts an issuer, whose documents the real discovery server publishes."""
    authority = pki.Authority(tmp_path / "pki", "ca")
    port, api_port = free_port(), free_port()
    issuer = f"https://127.0.0.1:{port}/garden/workload-identity/issuer"
    keys = rotate(datetime.now(UTC) + timedelta(days=1)).model_copy(update={"issuer": issuer})
    async with FakeApiServer().running() as garden, garden.client() as client:
        texts = dict(zip(("openid-config", "jwks"), documents(keys), strict=True))
        data = {name: base64.b64encode(json.dumps(text).encode()).decode() for name, text in texts.items()}
        metadata = {"name": "workload-identity-issuer", "namespace": "gardener-system-shoot-issuer"}
        garden.put("/api/v1/secrets", {"metadata": metadata, "data": data})
        caches = Caches(client)
        published = caches.of(resources.SECRET, metadata["namespace"])
        await published.synced()
        runner = web.AppRunner(application(published, published))
        pair = authority.issue("discovery-server", "discovery-server", names=["127.0.0.1"])
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pair.certificate, pair.key)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        trusted = configuration(issuer, AUDIENCE, authority.files.certificate.read_text())
        (tmp_path / "authentication.json").write_text(json.dumps(trusted))
        admin = 'admin,admin,,"system:masters"\n'
        flags = ("--authentication-config", "authentication.json", "--authorization-mode", "AlwaysAllow")
        etcd, server = api_servers.commands(tmp_path, api_port, admin, *flags)
        url = f"https://127.0.0.1:{api_port}"
        async with api_servers.process(tmp_path, *etcd), api_servers.process(tmp_path, *server):
            certificate = tmp_path / "certs/apiserver.crt"
            await until(certificate.exists, 120)
            found = Cloud(url, issuer, certificate.read_text())
            await until(functools.partial(_accepts, found), 120)
            yield found
        await runner.cleanup()
        await caches.close()


async def _accepts(cloud: Cloud) -> bool:
    try:
        await cloud.asked(cloud.token())
    except ApplicationError:
        return False
    return True


@pytest.mark.attack(actor="T6", asset="A2", finding=36)
async def test_a_cloud_refuses_tokens_that_the_issuer_did_not_make_for_it(cloud: Cloud) -> None:
    """Each wrong token is an error of credentials, which says what the token claims and quotes no part of it."""
    foreign = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    past = int((datetime.now(UTC) - timedelta(minutes=5)).timestamp())
    head, _, signature = cloud.token().split(".")
    wrong = {
        "another key": (cloud.token(foreign), "does not accept the token"),
        "no signature": (cloud.token(algorithm="none"), "does not accept the token"),
        "public key as a secret": (cloud.token_by_public_key(), "does not accept the token"),
        "other claims": (f"{head}.{cloud.token(jti='x').split('.')[1]}.{signature}", "does not accept the token"),
        "expired": (cloud.token(exp=past), "the token has expired at"),
        "another audience": (cloud.token(aud=["other.example.org"]), r"audience \['other.example.org'\]"),
        "another issuer": (cloud.token(iss="https://evil.example.org"), "must trust issuer https://evil.example.org"),
        "another namespace": (
            cloud.token(sub="gardener.cloud:workloadidentity:garden-other:cloud:1"),
            "and subject gardener.cloud:workloadidentity:garden-other:cloud:1",
        ),
        "no token": ("not-a-token", "is no token of a WorkloadIdentity"),
    }
    for name, (token, reason) in wrong.items():
        with pytest.raises(ApplicationError, match=reason) as refusal:
            await cloud.asked(token)
        assert (refusal.value.type, refusal.value.non_retryable) == ("ERR_INFRA_UNAUTHENTICATED", True), name
        assert not [each for each in token.split(".")[1:] if each and each in str(refusal.value)], name
    await cloud.asked(cloud.token())

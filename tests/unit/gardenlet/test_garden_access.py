"""A gardenlet gets its certificate for the garden by a bootstrap token, and renews it itself, in time."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, load_private, self_signed_ca, signed
from kube.cache import Caches
from kube.kubeconfig import endpoint_of
from tests.unit.kube.api_server import ApiServer, refuse
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.config import GardenConnection, KubeconfigValidity
from workers.gardenlet.garden_access import GardenAccess, GardenAccessController, NotSigned, renewal_time
from workers.lib.runtime import ConfigError, load_config

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SEEDS = "/apis/core.gardener.cloud/v1beta1/seeds"
SECRETS = "/api/v1/secrets"
NAME, NAMESPACE = "gardenlet-kubeconfig", "garden"
SEED = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "metadata": {"name": "seed-1"}, "spec": {}}
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
CA = self_signed_ca("garden", algorithm=KeyAlgorithm.P256, now=NOW - 20 * DAY, validity=400 * DAY)


def certificate(begin: timedelta, end: timedelta, seed: str = "seed-1") -> KeyPair:
    """Of the gardenlet, from and until so long after now."""
    return signed(
        f"gardener.cloud:system:seed:{seed}",
        ca=CA,
        usage=Usage.CLIENT,
        algorithm=KeyAlgorithm.P256,
        now=NOW + begin,
        validity=end - begin,
        organizations=["gardener.cloud:system:seeds"],
    )


class World:
    """A garden that signs what it is asked for, a seed, and a gardenlet's configuration."""

    def __init__(self, garden: ApiServer, seed: ApiServer, directory: Path) -> None:
        self.garden = garden
        self.seed = seed
        self.token = "abcdef.0123456789abcdef"
        self.verdict = "Approved"
        self.asked_with: list[str] = []
        """Authorization of each request for a certificate."""
        garden.answer = self._answer
        self.bootstrap = directory / "bootstrap"
        self.bootstrap.write_text(yaml.safe_dump(self.kubeconfig(user={"token": self.token})))
        self.config = GardenConnection.model_validate(
            {"bootstrapKubeconfig": self.bootstrap, "kubeconfigSecret": {"name": NAME, "namespace": NAMESPACE}}
        )
        seed.put("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def kubeconfig(self, user: dict[str, str]) -> dict[str, Any]:
        return {
            "current-context": "garden",
            "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "gardenlet"}}],
            "clusters": [{"name": "garden", "cluster": {"server": self.garden.url}}],
            "users": [{"name": "gardenlet", "user": user}],
        }

    def keep(self, pair: KeyPair) -> None:
        """What an earlier process left."""
        user = {
            "client-certificate-data": base64.b64encode(pair.certificate).decode(),
            "client-key-data": base64.b64encode(pair.key).decode(),
        }
        content = base64.b64encode(yaml.safe_dump(self.kubeconfig(user)).encode()).decode()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": NAME},
            "type": "Opaque",
            "data": {"kubeconfig": content},
        }
        self.seed.put(SECRETS, secret, NAMESPACE)

    @property
    def kept(self) -> bytes:
        """The certificate in the Secret; empty if there is none."""
        secret = self.seed.find(SECRETS, NAME, NAMESPACE)
        if secret is None:
            return b""
        return endpoint_of(yaml.safe_load(base64.b64decode(secret["data"]["kubeconfig"]))).certificate

    @asynccontextmanager
    async def access(self, **changed: Any) -> AsyncIterator[GardenAccess]:
        async with self.seed.client() as client:
            yield GardenAccess(client, "seed-1", self.config.model_copy(update=changed))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Any]:
        """A gardenlet's access and its controller."""
        async with AsyncExitStack() as stack:
            access = await stack.enter_async_context(self.access())
            garden = await stack.enter_async_context(await access.connect())
            caches = Caches(garden)
            clusters: Any = SimpleNamespace(garden=garden, garden_caches=caches, seed_name="seed-1")
            tasks = [asyncio.create_task(access.follow(garden))]
            tasks.append(asyncio.create_task(GardenAccessController(clusters, access).run()))
            yield clusters
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await caches.close()

    def _answer(self, asked: web.Request) -> web.Response | None:
        if asked.path == CSRS and asked.method == "POST":
            self.asked_with.append(asked.headers.get("Authorization", ""))
        if asked.path.startswith(f"{CSRS}/"):
            name = asked.path.rpartition("/")[2]
            if (csr := self.garden.find(CSRS, name)) is not None and "status" not in csr:
                self.garden.change(CSRS, name, None, {"status": self._status(csr)})
        return None

    def _status(self, csr: dict[str, Any]) -> dict[str, Any]:
        if self.verdict != "Approved":
            return {"conditions": [{"type": self.verdict, "message": "not you"}]}
        request = x509.load_pem_x509_csr(base64.b64decode(csr["spec"]["request"]))
        begin = datetime.now(UTC)
        ca = x509.load_pem_x509_certificate(CA.certificate)
        made = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(ca.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + DAY)
            .sign(load_private(CA.key), hashes.SHA256())
        )
        return {"certificate": base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with GardenServer().running() as garden, ApiServer().running() as seed:
        yield World(garden, seed, tmp_path)


def subject(pem: bytes) -> str:
    return x509.load_pem_x509_certificate(pem).subject.rfc4514_string()


async def test_the_first_certificate_is_asked_for_with_the_bootstrap_token(world: World) -> None:
    async with world.access() as access, await access.connect() as garden:
        assert garden.endpoint.certificate == world.kept
        assert not garden.endpoint.token

    assert subject(world.kept) == "CN=gardener.cloud:system:seed:seed-1,O=gardener.cloud:system:seeds"
    assert world.asked_with == [f"Bearer {world.token}"]


async def test_the_first_secret_of_a_seed_brings_its_namespace(world: World) -> None:
    world.seed.remove("/api/v1/namespaces", NAMESPACE)
    missing = [True]

    def once(asked: web.Request) -> web.Response | None:
        if asked.method == "POST" and asked.path.endswith("/secrets") and missing:
            missing.pop()
            return refuse(404, "NotFound", 'namespaces "garden" not found')
        return None

    world.seed.answer = once
    async with world.access() as access, await access.connect():
        assert world.kept
    assert world.seed.find("/api/v1/namespaces", NAMESPACE)


async def test_what_is_there_is_used_while_the_garden_cannot_be_reached(world: World) -> None:
    """A gardenlet that starts in a seed that is cut off goes on with its seed."""
    there = certificate(-DAY, DAY)
    world.keep(there)
    world.garden.answer = lambda _: refuse(503, "ServiceUnavailable", "away")

    async with world.access() as access, await access.connect() as garden:
        assert garden.endpoint.certificate == there.certificate


async def test_after_the_certificate_has_expired_the_bootstrap_token_is_used_again(world: World) -> None:
    world.keep(certificate(-2 * DAY, -DAY))

    async with world.access() as access, await access.connect() as garden:
        assert garden.endpoint.certificate == world.kept

    assert world.asked_with == [f"Bearer {world.token}"]


async def test_the_bootstrap_kubeconfig_says_where_the_garden_is(world: World) -> None:
    """So an operator moves a garden, or brings its new authority, without touching what gardenlets keep."""
    world.keep(certificate(-DAY, DAY))
    world.bootstrap.write_text(world.bootstrap.read_text().replace(world.garden.url, "https://elsewhere.example.org"))

    async with world.access() as access, await access.connect() as garden:
        assert garden.endpoint.server == "https://elsewhere.example.org"


async def test_two_replicas_that_start_at_once_share_one_certificate(world: World) -> None:
    async with world.access() as one, world.access() as other:
        clients = await asyncio.gather(one.connect(), other.connect())

    assert {client.endpoint.certificate for client in clients} == {world.kept}
    for client in clients:
        await client.close()


def test_it_is_renewed_between_70_and_90_percent_of_its_validity_and_not_by_all_at_once() -> None:
    times = set()
    for _ in range(20):
        pem = certificate(timedelta(0), 100 * DAY).certificate
        at = renewal_time(pem, KubeconfigValidity())
        assert NOW + 69 * DAY < at < NOW + 91 * DAY
        assert at == renewal_time(pem, KubeconfigValidity()), "a new process would ask at another time"
        times.add(at)
    assert len(times) == 20


def seed_of(world: World) -> dict[str, Any]:
    return world.garden.find(SEEDS, "seed-1") or {}


async def test_it_is_renewed_in_time_and_used_without_a_new_process(world: World) -> None:
    world.keep(certificate(-19 * DAY, DAY))
    before = world.kept
    world.garden.put(SEEDS, SEED)

    async with world.running() as clusters:
        await until(lambda: world.kept != before and clusters.garden.endpoint.certificate == world.kept)
        end = x509.load_pem_x509_certificate(world.kept).not_valid_after_utc.isoformat().replace("+00:00", "Z")
        await until(lambda: seed_of(world).get("status", {}).get("clientCertificateExpirationTimestamp") == end)

    assert world.asked_with == [""], "asked for with the certificate before"


async def test_a_certificate_of_another_seed_in_the_secret_is_told(world: World) -> None:
    """A gardenlet that has it acts for the other seed, as far as the garden can tell."""
    world.garden.put(SEEDS, SEED)
    world.keep(certificate(-DAY, DAY, seed="seed-2"))

    def told() -> list[str]:
        return [obj["message"] for (path, _, _), obj in world.garden.objects.items() if path == "/api/v1/events"]

    async with world.running():
        await until(lambda: told())

    assert "the certificate in Secret garden/gardenlet-kubeconfig is for" in told()[0]
    assert "seed-2" in told()[0]


@pytest.mark.parametrize("place", ["Secret", "Seed"])
async def test_it_is_renewed_when_somebody_asks_for_it(world: World, place: str) -> None:
    """Who fears that it is known to others does not want to wait."""
    world.keep(certificate(-DAY, 100 * DAY))
    before = world.kept
    world.garden.put(SEEDS, SEED)

    async with world.running():
        await until(lambda: "status" in seed_of(world))
        assert world.kept == before
        if place == "Secret":
            annotations = {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}}
            world.seed.change(SECRETS, NAME, NAMESPACE, annotations)
        else:
            annotations = {"metadata": {"annotations": {"gardener.cloud/operation": "renew-kubeconfig"}}}
            world.garden.change(SEEDS, "seed-1", None, annotations)
        await until(lambda: world.kept != before)
        renewed = world.kept
        for obj in (lambda: seed_of(world), lambda: world.seed.find(SECRETS, NAME, NAMESPACE)):
            await until(lambda obj=obj: not (obj()["metadata"].get("annotations") or {}))
        await asyncio.sleep(0.2)

    assert world.kept == renewed, "one request, one certificate"
    if place == "Seed":
        reasons = [obj["reason"] for (path, _, _), obj in world.garden.objects.items() if path == "/api/v1/events"]
        assert reasons == ["KubeconfigRenewed"]


async def test_a_denied_request_leaves_what_is_there(world: World) -> None:
    world.keep(certificate(-19 * DAY, DAY))
    before, world.verdict = world.kept, "Denied"

    async with world.access() as access:
        with pytest.raises(NotSigned, match="Denied: not you"):
            await access.renew(await access.read())

    assert world.kept == before


async def test_a_certificate_that_the_garden_does_not_take_replaces_nothing(world: World) -> None:
    """It would lock the gardenlet out for good."""
    world.keep(certificate(-19 * DAY, DAY))
    before, sign = world.kept, world.garden.answer
    world.garden.answer = lambda asked: refuse(401, "Unauthorized", "") if asked.path.startswith(SEEDS) else sign(asked)

    async with world.access() as access:
        with pytest.raises(Exception, match="401"):
            await access.renew(await access.read())

    assert world.kept == before


async def test_a_certificate_that_the_garden_no_longer_takes_is_replaced_by_the_bootstrap_token(world: World) -> None:
    world.keep(certificate(-19 * DAY, DAY))
    before, sign = world.kept, world.garden.answer

    def answer(asked: web.Request) -> web.Response | None:
        if asked.path == CSRS and asked.headers.get("Authorization") is None:
            return refuse(401, "Unauthorized", "")
        return sign(asked)

    world.garden.answer = answer
    async with world.access() as access:
        await access.renew(await access.read())

    assert world.kept != before


async def test_a_kubeconfig_out_of_a_file_is_renewed_by_who_wrote_it(world: World) -> None:
    """Nothing would happen, and nobody would know."""
    world.garden.put(SEEDS, SEED | {"metadata": {"name": "seed-1", "annotations": ANNOTATION}})
    async with world.garden.client() as garden:
        caches = Caches(garden)
        clusters: Any = SimpleNamespace(garden=garden, garden_caches=caches, seed_name="seed-1")
        running = asyncio.create_task(GardenAccessController(clusters, None).run())
        reasons: Callable[[], list[str]] = lambda: [  # noqa: E731
            obj["reason"] for (path, _, _), obj in world.garden.objects.items() if path == "/api/v1/events"
        ]
        await until(lambda: reasons() == ["KubeconfigNotRenewed"])
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await caches.close()
    assert not seed_of(world)["metadata"]["annotations"]


ANNOTATION = {"gardener.cloud/operation": "renew-kubeconfig"}


async def test_nothing_to_ask_with_is_said(world: World) -> None:
    async with world.access(bootstrap_kubeconfig=None) as access:
        with pytest.raises(
            NotSigned, match=r"Secret garden/gardenlet-kubeconfig is not there.*bootstrapKubeconfig is not set"
        ):
            await access.renew(None)


async def test_a_bootstrap_kubeconfig_that_is_missing_is_a_wrong_configuration(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bootstrapKubeconfig .*/none"):
        async with world.access(bootstrap_kubeconfig=tmp_path / "none"):
            pass


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{kubeconfig: /k, kubeconfigSecret: {name: n, namespace: garden}}", "exclude each other"),
        ("{bootstrapKubeconfig: /k}", "needs kubeconfigSecret"),
        ("{kubeconfigValidity: {validity: 5m}}", "validity"),
        ("{kubeconfigValidity: {autoRotationJitterPercentageMin: 95}}", "autoRotationJitterPercentageMin"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(ConfigError, match=said):
        load_config(GardenConnection, file)

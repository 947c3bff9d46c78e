"""The controller-manager writes subjects of WorkloadIdentities, and makes, publishes and rotates the issuer's keys."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from api import resources
from api.contracts.issuer_keys import IssuerKeys, data_of, keys_in
from api.images import OWN_VERSION
from kube.cache import Caches
from kube.client import KubeClient
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from tests.workload_identities import a_key
from workers.controller_manager import workload_identities
from workers.controller_manager.workload_identities import WorkloadIdentityConfig, run_workload_identity_controllers

SECRETS = "/api/v1/secrets"
IDENTITIES = "/apis/security.gardener.cloud/v1alpha1/workloadidentities"
NAME = "workload-identity-issuer"
ISSUER = "https://discovery.example.org/garden/workload-identity/issuer"


def host(name: str = "discovery.example.org") -> dict[str, Any]:
    labels = {"gardener.cloud/role": "shoot-service-account-issuer"}
    metadata = {"name": "shoot-issuer", "namespace": "garden", "labels": labels}
    return {"metadata": metadata, "data": {"hostname": base64.b64encode(name.encode()).decode()}}


class Around:
    def __init__(self, garden: ApiServer, client: KubeClient) -> None:
        self.garden, self.client = garden, client
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, delay: float = 1.0) -> None:
        # The least that a configuration may have is a minute.
        config = WorkloadIdentityConfig().model_copy(update={"published_before_use": timedelta(seconds=delay)})
        caches = Caches(self.client)
        self.tasks.append(asyncio.create_task(run_workload_identity_controllers(self.client, caches, config)))

    @property
    def keys(self) -> IssuerKeys:
        return keys_in(self.garden.objects.get((SECRETS, "garden", NAME))) or IssuerKeys(issuer="")

    @property
    def published(self) -> tuple[dict[str, Any], list[str]]:
        """The configuration, and the ids of the published keys."""
        found = self.garden.objects.get((SECRETS, "gardener-system-shoot-issuer", NAME))
        if found is None:
            return {}, []
        texts = {name: json.loads(base64.b64decode(text)) for name, text in found["data"].items()}
        return texts["openid-config"], [each["kid"] for each in texts["jwks"]["keys"]]

    async def request(self) -> None:
        annotations = {"gardener.cloud/operation": "renew"}
        await self.client.patch(resources.SECRET, NAME, "garden", {"metadata": {"annotations": annotations}})

    def ids(self) -> list[str]:
        return [each.id for each in self.keys.keys]


@pytest.fixture
async def around(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Around]:
    made = iter(range(100))
    monkeypatch.setattr(workload_identities, "new_key", lambda: a_key(next(made)))
    async with ApiServer().running() as garden, garden.client() as client:
        found = Around(garden, client)
        yield found
        for each in found.tasks:
            each.cancel()
        await asyncio.gather(*found.tasks, return_exceptions=True)


async def test_a_new_identity_gets_its_subject(around: Around) -> None:
    around.garden.put(IDENTITIES, {"metadata": {"name": "cloud", "namespace": "garden-local", "uid": "u"}})
    await around.start()

    def subject() -> Any:
        return (around.garden.objects[IDENTITIES, "garden-local", "cloud"].get("status") or {}).get("sub")

    await until(subject)
    assert subject() == "gardener.cloud:workloadidentity:garden-local:cloud:u"


async def test_without_a_host_there_is_no_issuer(around: Around) -> None:
    await around.start()
    await until(lambda: any("secrets" in path for _, path in around.garden.requests))
    assert (around.ids(), around.published) == ([], ({}, []))


async def test_the_first_key_is_published_and_signs_at_once(around: Around) -> None:
    around.garden.put(SECRETS, host())
    await around.start()

    await until(lambda: around.keys.signing(datetime.now(UTC)))

    configuration, published = around.published
    assert (configuration["issuer"], published) == (ISSUER, [a_key(0).id])
    assert "PRIVATE" not in json.dumps(around.garden.objects[SECRETS, "gardener-system-shoot-issuer", NAME])


async def test_all_users_read_the_url_of_the_issuer(around: Around) -> None:
    """Owners configure it in their clouds; without an issuer the version is there alone."""

    def info() -> dict[str, str]:
        found = around.garden.objects.get(("/api/v1/configmaps", "gardener-system-public", "gardener-info"))
        return yaml.safe_load(found["data"]["gardenerAPIServer"]) if found else {}

    await around.start()
    await until(info)
    assert info() == {"version": OWN_VERSION}

    around.garden.put(SECRETS, host())
    await until(lambda: info() == {"version": OWN_VERSION, "workloadIdentityIssuerURL": ISSUER})


@pytest.mark.parametrize("period", ["59s", "1s"])
def test_a_key_is_published_longer_than_kube_apiserver_keeps_its_copies(period: str) -> None:
    with pytest.raises(ValidationError, match="publishedBeforeUse"):
        WorkloadIdentityConfig.model_validate({"publishedBeforeUse": period})
    assert WorkloadIdentityConfig.model_validate({"publishedBeforeUse": "60s"})


async def test_a_host_that_is_named_later_makes_the_issuer(around: Around) -> None:
    await around.start()
    await until(lambda: any("secrets" in path for _, path in around.garden.requests))
    around.garden.put(SECRETS, host())
    await until(lambda: around.published[1] == [a_key(0).id])


async def test_a_rotation_publishes_the_new_key_before_it_signs_and_keeps_the_old_one_published(around: Around) -> None:
    around.garden.put(SECRETS, host())
    await around.start()
    await until(lambda: around.keys.signing(datetime.now(UTC)))

    await around.request()
    await until(lambda: len(around.published[1]) == 2)
    signing = around.keys.signing(datetime.now(UTC))
    assert signing is not None
    assert signing.id == a_key(0).id
    await until(lambda: not around.keys.keys[0].private)

    old, new = around.keys.keys
    assert (old.id, new.id) == (a_key(0).id, a_key(1).id)
    assert around.published[1] == [old.id, new.id]
    assert old.until is not None
    assert timedelta(hours=48) < old.until - datetime.now(UTC) < timedelta(hours=49)
    annotations = around.garden.objects[SECRETS, "garden", NAME]["metadata"].get("annotations")
    assert not annotations


async def test_a_key_is_withdrawn_when_its_last_token_has_expired(around: Around) -> None:
    now = datetime.now(UTC)
    old = a_key(0).model_copy(
        update={"signs_from": now - timedelta(days=9), "until": now + timedelta(seconds=1), "private": ""}
    )
    new = a_key(1).model_copy(update={"signs_from": now - timedelta(days=7)})
    around.garden.put(
        SECRETS,
        {
            "metadata": {"name": NAME, "namespace": "garden"},
            "data": data_of(IssuerKeys(issuer=ISSUER, keys=(old, new))),
        },
    )
    around.garden.put(SECRETS, host())
    await around.start()

    await until(lambda: around.published[1] == [old.id, new.id])
    await until(lambda: around.published[1] == [new.id])
    assert around.ids() == [new.id]


async def test_a_restart_between_publication_and_use_continues(around: Around) -> None:
    """A process that ended after it had made a key, and before it published it."""
    now = datetime.now(UTC)
    first = a_key(0).model_copy(update={"signs_from": now - timedelta(days=7)})
    keys = IssuerKeys(issuer=ISSUER, keys=(first, a_key(1)))
    around.garden.put(SECRETS, {"metadata": {"name": NAME, "namespace": "garden"}, "data": data_of(keys)})
    around.garden.put(SECRETS, host())
    await around.start()

    await until(lambda: not around.keys.keys[0].private)
    assert around.ids() == [first.id, a_key(1).id]


async def test_keys_that_cannot_be_read_are_replaced(around: Around) -> None:
    metadata = {"name": NAME, "namespace": "garden"}
    around.garden.put(SECRETS, {"metadata": metadata, "data": {"keys.json": "U0VOVElORUw="}})
    around.garden.put(SECRETS, host())
    await around.start()
    await until(lambda: around.published[1] == [a_key(0).id])


async def test_two_hosts_are_none(around: Around, caplog: pytest.LogCaptureFixture) -> None:
    around.garden.put(SECRETS, host())
    second = host("other.example.org")
    second["metadata"]["name"] = "second"
    around.garden.put(SECRETS, second)
    await around.start()
    await until(lambda: "name 2 hosts, there must be one" in caplog.text)
    assert around.ids() == []


def test_a_made_key_signs_for_all_clouds() -> None:
    key = workload_identities.new_key()
    assert {name: key.public[name] for name in ("kty", "use", "alg", "kid")} == {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": key.id,
    }
    assert len(base64.urlsafe_b64decode(key.public["n"] + "==")) == 3072 // 8
    assert set(key.public) == {"kty", "use", "alg", "kid", "n", "e"}

"""Namespace ``seed-<name>`` of each Seed, with copies of the Secrets that every seed needs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api import resources
from tests import certificates
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.controller_manager.seed_namespaces import run_seed_namespace_controller

SEEDS, SECRETS, NAMESPACES = resources.SEED.path(), "/api/v1/secrets", "/api/v1/namespaces"
NAME, PLACE = "seed-3", "seed-seed-3"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A garden with the controller, and a Seed that has been reconciled."""
    async with ApiServer().running() as api:
        garden = Garden(api)
        put(api)
        async with garden.running(run_seed_namespace_controller(garden.client, garden.caches)):
            yield api
        await garden.caches.close()
        await garden.client.close()


def put(api: ApiServer, name: str = NAME, **metadata: Any) -> None:
    api.put(
        SEEDS, {"metadata": {"name": name, "uid": f"uid-{name}", "finalizers": ["gardener"], **metadata}, "spec": {}}
    )


def secret(api: ApiServer, name: str, role: str, value: str = "YQ==") -> None:
    metadata = {"name": name, "labels": {"gardener.cloud/role": role}}
    api.put(SECRETS, {"metadata": metadata, "type": "Opaque", "data": {"key": value}}, "garden")


def copy(api: ApiServer, name: str, place: str = PLACE) -> dict[str, Any] | None:
    return api.find(SECRETS, name, place)


async def test_a_seed_gets_a_namespace_that_goes_with_it(api: ApiServer) -> None:
    await until(lambda: api.find(NAMESPACES, PLACE))
    metadata = (api.find(NAMESPACES, PLACE) or {})["metadata"]
    assert metadata["labels"] == {"gardener.cloud/role": "seed"}
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Seed", NAME, f"uid-{NAME}")


async def test_copies_follow_their_sources(api: ApiServer) -> None:
    secret(api, "mail", "alerting")
    await until(lambda: copy(api, "mail"))
    secret(api, "mail", "alerting", "Yg==")
    await until(lambda: (copy(api, "mail") or {})["data"] == {"key": "Yg=="})
    api.remove(SECRETS, "mail", "garden")
    await until(lambda: copy(api, "mail") is None)


async def test_credentials_of_domains_are_not_copied(api: ApiServer) -> None:
    """A seed gets those that its Seed names, and that an operator has labelled for it."""
    secret(api, "domain", "default-domain")
    secret(api, "internal", "internal-domain")
    secret(api, "zz-mail", "alerting")
    await until(lambda: copy(api, "zz-mail"))
    assert copy(api, "domain") is None
    assert copy(api, "internal") is None


async def test_a_certificate_for_control_planes_is_copied_to_its_own_seed_only(api: ApiServer) -> None:
    api.put(SEEDS, {
        "metadata": {"name": "seed-5", "uid": "uid-5", "finalizers": ["gardener"]},
        "spec": {"ingress": {"domain": "ingress.seed-5.example.org"}},
    })  # fmt: skip
    api.put(SECRETS, certificates.secret(certificates.pair("*.ingress.seed-5.example.org")), "garden")
    secret(api, "zz-mail", "alerting")
    await until(lambda: copy(api, "wildcard", "seed-seed-5"))
    await until(lambda: copy(api, "zz-mail"))
    assert copy(api, "wildcard") is None


async def test_a_copy_that_lost_its_role_at_the_source_is_deleted(api: ApiServer) -> None:
    secret(api, "mail", "alerting")
    await until(lambda: copy(api, "mail"))
    api.change(SECRETS, "mail", "garden", {"metadata": {"labels": {"gardener.cloud/role": "internal-domain"}}})
    await until(lambda: copy(api, "mail") is None)


async def test_a_namespace_of_something_else_is_left_alone_and_the_seed_says_so(api: ApiServer) -> None:
    api.put(NAMESPACES, {"metadata": {"name": "seed-seed-4", "labels": {"of": "someone"}}})
    put(api, "seed-4")
    secret(api, "mail", "alerting")
    events = resources.EVENT.path()
    await until(lambda: [each for place, each in api.objects.items() if place[0] == events])
    [event] = [each for place, each in api.objects.items() if place[0] == events]
    assert event["reason"] == "NamespaceReconcileFailed"
    assert "does not belong to Seed seed-4: delete it, or give the Seed another name" in event["message"]
    assert copy(api, "mail", "seed-seed-4") is None


async def test_a_deleted_namespace_comes_back_but_not_that_of_a_deleted_seed(api: ApiServer) -> None:
    await until(lambda: api.find(NAMESPACES, PLACE))
    api.remove(NAMESPACES, PLACE)
    await until(lambda: api.find(NAMESPACES, PLACE))
    api.change(SEEDS, NAME, None, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    api.remove(NAMESPACES, PLACE)
    put(api, "seed-5")
    await until(lambda: api.find(NAMESPACES, "seed-seed-5"))
    assert api.find(NAMESPACES, PLACE) is None

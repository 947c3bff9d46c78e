"""A new key for service accounts' tokens: new tokens for our components, and for accounts with token Secrets."""

import asyncio
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.secrets.configs import ServiceAccountKey
from activities.shoot import rotation as module
from tests.unit.rotation.conftest import NAMESPACE, TASK, World

ACCOUNTS, SECRETS = "/api/v1/serviceaccounts", "/api/v1/secrets"
LABEL = "credentials.gardener.cloud/key-name"
RENEW_AT = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"


async def new_key(world: World) -> str:
    secrets = await world.secrets()
    await secrets.generate(ServiceAccountKey("service-account-key"))
    world.rotates("serviceAccountKey", "Preparing")
    secrets = await world.secrets()
    return (await secrets.generate(ServiceAccountKey("service-account-key"))).name


async def run(activity: Any) -> str:
    note: str = (await ActivityEnvironment().run(activity, TASK)).note
    return note


def account(world: World, name: str, *secrets: str) -> None:
    world.shoot.put(ACCOUNTS, {"metadata": {"name": name}, "secrets": [{"name": each} for each in secrets]}, "apps")
    for each in secrets:
        old = {"metadata": {"name": each, "creationTimestamp": "2026-01-01T00:00:00Z"}, "type": "x"}
        world.shoot.put(SECRETS, old, "apps")


def secrets_of(world: World, name: str) -> list[str]:
    live = world.shoot.find(ACCOUNTS, name, "apps")
    assert live is not None
    return [each["name"] for each in live.get("secrets") or ()]


async def test_accounts_with_token_secrets_get_a_new_one_first_and_lose_the_old_one_at_the_end(world: World) -> None:
    key = await new_key(world)
    account(world, "robot", "robot-old")
    account(world, "modern")

    assert await run(world.activities.create_sa_secrets) == "1 accounts"
    new, old = secrets_of(world, "robot")
    assert old == "robot-old"
    assert new.startswith("robot-token-")
    made = world.shoot.find(SECRETS, new, "apps")
    assert made is not None
    assert made["type"] == "kubernetes.io/service-account-token"
    assert made["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "robot"}
    live = world.shoot.find(ACCOUNTS, "robot", "apps")
    assert live is not None
    assert live["metadata"]["labels"] == {LABEL: key}
    assert await run(world.activities.create_sa_secrets) == "0 accounts", "a second run passes over what is done"

    account(world, "later", "later-secret")
    world.rotates("serviceAccountKey", "Completing", lastInitiationFinishedTime="2026-12-31T00:00:00Z")
    assert await run(world.activities.delete_old_sa_secrets) == "1 accounts"
    assert secrets_of(world, "robot") == [new]
    assert world.shoot.find(SECRETS, "robot-old", "apps") is None
    assert secrets_of(world, "later") == ["later-secret"], "it got no new one, so it keeps the old one"
    assert await run(world.activities.delete_old_sa_secrets) == "0 accounts"


async def test_all_tokens_of_the_control_plane_are_renewed_once(world: World) -> None:
    key = await new_key(world)
    for name in ("shoot-access-a", "shoot-access-b"):
        labels = {"resources.gardener.cloud/purpose": "token-requestor"}
        metadata = {"name": name, "labels": labels, "annotations": {RENEW_AT: "2027-01-01T00:00:00Z"}}
        world.seed.put(SECRETS, {"metadata": metadata}, NAMESPACE)

    renewing = asyncio.create_task(run(world.activities.renew_access_tokens))
    async with asyncio.timeout(10):
        for name in ("shoot-access-a", "shoot-access-b"):
            while RENEW_AT in _annotations(world, name):  # noqa: ASYNC110 -- what the activity writes is no event
                await asyncio.sleep(0.01)
            world.seed.change(
                SECRETS, name, NAMESPACE, {"metadata": {"annotations": {RENEW_AT: "2027-02-01T00:00:00Z"}}}
            )
        assert await renewing == "2 tokens"
        assert await run(world.activities.renew_access_tokens) == "2 tokens"
    assert _annotations(world, "shoot-access-a") == {LABEL: key, RENEW_AT: "2027-02-01T00:00:00Z"}


async def test_a_token_that_is_not_renewed_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKEN_SECONDS", 0.2)
    await new_key(world)
    metadata = {"name": "shoot-access-a", "labels": {"resources.gardener.cloud/purpose": "token-requestor"}}
    world.seed.put(SECRETS, {"metadata": metadata}, NAMESPACE)
    with pytest.raises(TimeoutError, match="shoot-access-a of shoot--local--demo are not renewed"):
        await run(world.activities.renew_access_tokens)


def _annotations(world: World, name: str) -> dict[str, str]:
    live = world.seed.find(SECRETS, name, NAMESPACE)
    assert live is not None
    return dict(live["metadata"].get("annotations") or {})

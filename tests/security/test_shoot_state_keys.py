"""ShootStates in the garden: what a seed may have another seed restore.

A ShootState holds private keys, and makes the next seed create objects. Seed a is the home of the Shoot, seed b is
where its control plane goes, and seed c has nothing to do with it. Each gardenlet can write ShootStates of its own
Shoots, and an attacker in the garden can write any.
"""

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.garden.shoot_states import ShootStateSealingActivities
from activities.secrets.keyring import Keyring, shoot_state_purpose
from activities.secrets.sealing import Sealing
from activities.seed.shoot_state import ShootStateActivities, ShootStateView, read_shoot_state
from api import resources
from api.contracts.operations import OperationType, ResealShootState, ShootRef, ShootTask
from kube.client import KubeClient
from tests.unit.kube.api_server import ApiServer

NAMESPACE = "shoot--local--demo"
SHOOT = ShootRef(namespace="garden-local", name="demo", uid="uid")
OF_ANOTHER = SHOOT.model_copy(update={"name": "victim", "uid": "uid-of-victim"})
KEY = "SENTINEL-OF-A-KEY"
ITEM = "gardener//secret//ca"
"""As which a ShootState holds the Secret ``ca``."""


@dataclass
class Garden:
    """A garden with a root key, and gardenlets with the keys that are derived for them."""

    api: ApiServer
    client: KubeClient
    keys: Keyring

    def sealing(self, seed: str) -> Sealing:
        return Sealing(seed, self.keys.keys(shoot_state_purpose(seed)))

    def task(self, seed: str, operation: OperationType = OperationType.RESTORE) -> ShootTask:
        return ShootTask(
            shoot=SHOOT, technical_id=NAMESPACE, seed=seed, generation=2, operation=operation, destination="b"
        )

    def gardenlet(self, seed: str) -> Any:
        return SimpleNamespace(seed=self.client, garden=self.client, sealing=self.sealing(seed))

    async def persist(self, seed: str) -> None:
        """As the seed that the control plane leaves does it."""
        await ShootStateActivities(self.gardenlet(seed)).persist_shootstate(self.task(seed, OperationType.MIGRATE))

    async def read(self, seed: str) -> ShootStateView | None:
        return await read_shoot_state(self.gardenlet(seed), self.task(seed))

    async def reseal(self, seed: str = "b", sources: tuple[str, ...] = ("a", "b")) -> str:
        activities = ShootStateSealingActivities(self.client, self.sealing)
        return (await activities.reseal_shoot_state(ResealShootState(shoot=SHOOT, seed=seed, sources=sources))).note

    async def live(self) -> dict[str, Any]:
        return await self.client.get(resources.SHOOT_STATE, SHOOT.name, SHOOT.namespace)

    async def put(self, value: Any) -> None:
        """Write a content in place of the Secret that the ShootState has."""
        gardener = [{**each, "data": value} for each in (await self.live())["spec"]["gardener"]]
        change = {"spec": {"gardener": gardener}}
        await self.client.patch(resources.SHOOT_STATE, SHOOT.name, SHOOT.namespace, change)


@pytest.fixture
async def garden() -> AsyncIterator[Garden]:
    async with ApiServer().running() as server:
        shoot = {"kind": "Shoot", "metadata": {"name": SHOOT.name, "uid": SHOOT.uid}}
        server.put("/apis/core.gardener.cloud/v1beta1/shoots", shoot, SHOOT.namespace)
        ca = {"name": "ca", "labels": {"persist": "true"}}
        secret = {"kind": "Secret", "metadata": ca, "data": {"ca.key": KEY}, "type": "Opaque"}
        server.put("/api/v1/secrets", secret, NAMESPACE)
        async with server.client() as client:
            yield Garden(server, client, Keyring({"root": secrets.token_bytes(32)}))


async def test_a_state_goes_from_one_seed_to_the_other_by_the_garden(garden: Garden) -> None:
    """Otherwise the refusals below would prove nothing."""
    await garden.persist("a")
    with pytest.raises(ApplicationError, match="it is sealed for seed 'a'"):
        await garden.read("b")

    assert await garden.reseal() == "sealed again for b"
    state = await garden.read("b")
    assert state is not None
    assert [each["data"]["data"] for each in state.secrets] == [{"ca.key": KEY}]

    before = await garden.live()
    assert await garden.reseal() == "it is sealed for b"
    assert await garden.live() == before, "a second run finds it done"
    assert KEY not in json.dumps(before)

    assert await garden.reseal("a") == "sealed again for a", "a move that is turned round"
    assert await garden.read("a") == state
    await garden.persist("a")


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_state_that_seed_a_seals_under_the_name_of_seed_b_is_refused_there(garden: Garden) -> None:
    """Seed a encrypts by its own key, and names seed b, so that the garden leaves it as it is."""
    await garden.persist("a")
    await garden.reseal()
    forged = garden.sealing("a").seal({"data": {"ca.key": "forged"}}, SHOOT, ITEM) | {"seed": "b"}
    await garden.put(forged)
    await garden.reseal()
    with pytest.raises(ApplicationError, match="was not sealed for garden-local/demo by key") as refused:
        await garden.read("b")
    assert refused.value.non_retryable


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_state_of_a_seed_that_never_had_the_shoot_is_not_sealed_for_another_one(garden: Garden) -> None:
    """Seed c writes a ShootState under its own name; or seed a does, and names seed c."""
    await garden.persist("a")
    for forged in (
        garden.sealing("c").seal({"data": {}}, SHOOT, ITEM),
        garden.sealing("a").seal({"data": {}}, SHOOT, ITEM) | {"seed": "c"},
    ):
        await garden.put(forged)
        with pytest.raises(ApplicationError, match=r"by seed .c.\. The control plane was in a, b") as error:
            await garden.reseal()
        assert error.value.non_retryable
        with pytest.raises(ApplicationError, match="it is sealed for seed 'c'"):
            await garden.read("b")


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_plain_state_is_neither_read_nor_sealed(garden: Garden) -> None:
    """Any writer of ShootStates puts a Secret of its own in place of a sealed one."""
    await garden.persist("a")
    await garden.reseal()
    await garden.put({"data": {"ca.key": "forged"}, "type": "Opaque"})
    with pytest.raises(ApplicationError, match="it is not sealed"):
        await garden.reseal()
    with pytest.raises(ApplicationError, match="it is not sealed"):
        await garden.read("b")


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
@pytest.mark.parametrize(
    ("shoot", "item"), [(OF_ANOTHER, ITEM), (SHOOT, "gardener//secret//ca-client")], ids=["shoot", "item"]
)
async def test_a_content_of_another_shoot_or_item_is_refused(garden: Garden, shoot: ShootRef, item: str) -> None:
    """A writer of ShootStates without any key copies a content to where it gives away, or takes over, something."""
    await garden.persist("a")
    for seed in ("a", "b"):
        await garden.put(garden.sealing(seed).seal({"data": {"ca.key": "of another"}}, shoot, item))
        if seed == "a":
            with pytest.raises(ApplicationError, match="was not sealed for garden-local/demo"):
                await garden.reseal()
        else:
            with pytest.raises(ApplicationError, match="was not sealed for garden-local/demo"):
                await garden.read("b")


@pytest.mark.attack(actor="T3", asset="A2", finding=5)
async def test_a_seed_that_was_left_cannot_read_what_the_next_one_keeps(garden: Garden) -> None:
    """Seed a keeps its key file, and reads the garden."""
    await garden.persist("a")
    await garden.reseal()
    with pytest.raises(ApplicationError, match="it is sealed for seed 'b'"):
        await garden.read("a")
    claimed = [{**each["data"], "seed": "a"} for each in (await garden.live())["spec"]["gardener"]]
    await garden.put(claimed[0])
    with pytest.raises(ApplicationError, match="was not sealed for garden-local/demo by key"):
        await garden.read("a")


@pytest.mark.parametrize("earlier", [None, "shared"])
async def test_states_of_before_are_read_and_sealed_while_the_shared_key_is_named(
    garden: Garden, earlier: str | None
) -> None:
    """A control plane may leave a seed in the hour in which all seeds get keys of their own."""
    import base64
    import gzip

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    await garden.persist("a")
    shared, nonce, value = b"s" * 32, b"0" * 12, {"data": {"ca.key": "of before"}, "type": "Opaque"}
    if earlier is None:
        await garden.put(value)
    else:
        content = AESGCM(shared).encrypt(nonce, gzip.compress(json.dumps(value).encode()), b"old/garden-local/demo")
        await garden.put({"sealed": f"old:{base64.b64encode(nonce + content).decode()}"})
    with pytest.raises(ApplicationError, match="not sealed" if earlier is None else "not in the key file"):
        await garden.reseal()

    def sealing(seed: str) -> Sealing:
        return Sealing(seed, garden.keys.keys(shoot_state_purpose(seed)), shared={"old": shared})

    activities = ShootStateSealingActivities(garden.client, sealing)
    await activities.reseal_shoot_state(ResealShootState(shoot=SHOOT, seed="b", sources=("a", "b")))
    state = await garden.read("b")
    assert state is not None
    assert [each["data"] for each in state.secrets] == [value]

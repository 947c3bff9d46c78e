"""What a seed leaves in the garden for the next one: sealed, complete, of bounded size."""

import json
import secrets
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.secrets.sealing import CannotOpen, Sealing
from activities.seed.shoot_state import ShootStateActivities, read_shoot_state
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.decisions import shoot_state
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer

NAMESPACE = "shoot--local--demo"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="demo", uid="uid"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=2,
    operation=OperationType.MIGRATE,
    destination="seed-2",
    trigger="2026-11-21T10:00:00.000000Z",
)
STATES = "/apis/core.gardener.cloud/v1beta1/shootstates"
SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
SECRETS = "/api/v1/secrets"
MACHINES = "/apis/machine.sapcloud.io/v1alpha1"
INFRASTRUCTURES = "/apis/extensions.gardener.cloud/v1alpha1/infrastructures"
KEY = "SENTINEL-OF-A-KEY"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        ca = {"name": "ca", "labels": {"persist": "true"}}
        server.put(SECRETS, {"kind": "Secret", "metadata": ca, "data": {"ca.key": KEY}, "type": "Opaque"}, NAMESPACE)
        server.put(SECRETS, {"kind": "Secret", "metadata": {"name": "tls"}, "data": {"tls.key": "other"}}, NAMESPACE)
        infrastructure = {"kind": "Infrastructure", "metadata": {"name": "demo"}, "spec": {"type": "local"}}
        server.put(INFRASTRUCTURES, {**infrastructure, "status": {"state": {"network": "n-1"}}}, NAMESPACE)
        for machine in ("one", "two"):
            put_machine(server, machine)
        yield server


def put_machine(server: ApiServer, name: str) -> None:
    deployment = {"name": "pool", "uid": "uid-of-deployment"}
    owned_set = {"name": "pool-a", "uid": "uid-of-set", "ownerReferences": [{**deployment, "controller": True}]}
    machine = {
        "name": name,
        "labels": {"node": name},
        "ownerReferences": [{"name": "pool-a", "uid": "uid-of-set", "controller": True}],
    }
    for plural, metadata in (("machinedeployments", deployment), ("machinesets", owned_set), ("machines", machine)):
        server.put(f"{MACHINES}/{plural}", {"metadata": metadata, "spec": {"replicas": 2}}, NAMESPACE)


@pytest.fixture
async def garden() -> AsyncIterator[GardenServer]:
    async with GardenServer().running() as server:
        server.put(SHOOTS, {"kind": "Shoot", "metadata": {"name": "demo", "uid": "uid"}}, "garden-local")
        yield server


@pytest.fixture
async def clusters(api: ApiServer, garden: GardenServer) -> AsyncIterator[Any]:
    async with api.client() as client, garden.client() as garden_client:
        sealing = Sealing(TASK.seed, {"one": secrets.token_bytes(32)})
        yield SimpleNamespace(seed=client, garden=garden_client, sealing=sealing)


async def test_what_one_seed_keeps_the_other_one_reads(clusters: Any) -> None:
    await ShootStateActivities(clusters).persist_shootstate(TASK)
    state = await read_shoot_state(clusters, TASK)

    assert state is not None
    assert [(each["name"], each["data"]["data"]) for each in state.secrets] == [("ca", {"ca.key": KEY})]
    assert (state.extension("Infrastructure", "demo") or {})["state"] == {"network": "n-1"}
    assert state.machine_state is not None
    machines = shoot_state.unpacked_machine_state(state.machine_state)["pool"]["machines"]
    assert [(each["metadata"]["name"], each["machineSet"]) for each in machines] == [
        ("one", "pool-a"),
        ("two", "pool-a"),
    ]


async def test_the_garden_cannot_read_it(clusters: Any, garden: GardenServer) -> None:
    await ShootStateActivities(clusters).persist_shootstate(TASK)
    stored = json.dumps(garden.find(STATES, "demo", "garden-local"))

    assert KEY not in stored
    assert "n-1" not in stored
    clusters.sealing = Sealing(TASK.seed, {"two": secrets.token_bytes(32)})
    with pytest.raises(ApplicationError, match="key file"):
        await read_shoot_state(clusters, TASK)


def test_it_opens_for_its_own_shoot_and_item_only() -> None:
    sealing = Sealing("seed-1", {"one": secrets.token_bytes(32)})
    sealed = sealing.seal({"a": 1}, TASK.shoot, "gardener/secret/ca")
    assert sealing.open(sealed, TASK.shoot, "gardener/secret/ca") == {"a": 1}
    for shoot, item in (
        (TASK.shoot.model_copy(update={"name": "other"}), "gardener/secret/ca"),
        (TASK.shoot.model_copy(update={"uid": "of a Shoot before"}), "gardener/secret/ca"),
        (TASK.shoot, "gardener/secret/ca-client"),
    ):
        with pytest.raises(CannotOpen):
            sealing.open(sealed, shoot, item)


async def test_a_second_run_of_a_migration_drops_nothing_that_the_first_one_saw(clusters: Any, api: ApiServer) -> None:
    """Between the two, machine objects may have begun to go."""
    activities = ShootStateActivities(clusters)
    await activities.persist_shootstate(TASK)
    api.remove(f"{MACHINES}/machines", "two", NAMESPACE)
    api.remove(INFRASTRUCTURES, "demo", NAMESPACE)
    await activities.persist_shootstate(TASK)

    state = await read_shoot_state(clusters, TASK)
    assert state is not None
    assert state.machine_state is not None
    machines = shoot_state.unpacked_machine_state(state.machine_state)["pool"]["machines"]
    assert [each["metadata"]["name"] for each in machines] == ["one", "two"]
    assert state.extension("Infrastructure", "demo")


async def test_a_look_while_all_is_well_replaces_the_one_before(clusters: Any, api: ApiServer) -> None:
    activities = ShootStateActivities(clusters)
    regular = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    await activities.persist_shootstate(regular)
    api.remove(f"{MACHINES}/machines", "two", NAMESPACE)
    await activities.persist_shootstate(regular)

    state = await read_shoot_state(clusters, TASK)
    assert state is not None
    assert state.machine_state is not None
    assert len(shoot_state.unpacked_machine_state(state.machine_state)["pool"]["machines"]) == 1


async def test_a_look_that_finds_what_is_kept_already_writes_nothing(clusters: Any, garden: GardenServer) -> None:
    """Each regular reconciliation of each Shoot ends with a look."""
    activities = ShootStateActivities(clusters)
    regular = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    await activities.persist_shootstate(regular)
    before = garden.find(STATES, "demo", "garden-local")

    await activities.persist_shootstate(regular)
    assert garden.find(STATES, "demo", "garden-local") == before

    clusters.sealing = Sealing(TASK.seed, {"two": secrets.token_bytes(32)})
    await activities.persist_shootstate(regular)
    assert garden.find(STATES, "demo", "garden-local") != before, "a gardenlet with another key writes what it can read"


async def test_a_look_seals_again_what_an_earlier_key_has_sealed(clusters: Any, garden: GardenServer) -> None:
    """Otherwise a ShootState that never changes would keep a root key in use for ever."""
    one, two, shared = (secrets.token_bytes(32) for _ in range(3))
    activities = ShootStateActivities(clusters)
    regular = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    for earlier, later in (
        (Sealing(), Sealing(TASK.seed, {"one": one}, shared={"old": shared})),
        (Sealing(TASK.seed, {"one": one}), Sealing(TASK.seed, {"two": two, "one": one})),
    ):
        clusters.sealing = earlier
        await activities.persist_shootstate(regular)
        clusters.sealing = later
        await activities.persist_shootstate(regular)
        clusters.sealing = Sealing(TASK.seed, {"one": one, "two": two})
        assert await read_shoot_state(clusters, TASK) is not None
        stored = json.dumps(garden.find(STATES, "demo", "garden-local"))
        assert f'"sealed": "{later._current}:' in stored


async def test_a_state_of_an_earlier_shoot_of_this_name_is_none(clusters: Any) -> None:
    await ShootStateActivities(clusters).persist_shootstate(TASK)
    other = TASK.model_copy(update={"shoot": TASK.shoot.model_copy(update={"uid": "later"})})
    assert await read_shoot_state(clusters, other) is None


async def test_what_is_too_big_is_refused_by_name(clusters: Any, api: ApiServer) -> None:
    noise = {"noise": secrets.token_hex(2**21)}
    api.change(INFRASTRUCTURES, "demo", NAMESPACE, {"status": {"state": noise}})
    with pytest.raises(ApplicationError, match=r"too big: .* Infrastructure demo \d\.\d+ MiB") as refused:
        await ShootStateActivities(clusters).persist_shootstate(TASK)
    assert refused.value.non_retryable


async def test_it_goes_when_it_is_not_needed_any_more(clusters: Any, garden: GardenServer) -> None:
    activities = ShootStateActivities(clusters)
    await activities.persist_shootstate(TASK)
    await activities.delete_shootstate(TASK)
    await activities.delete_shootstate(TASK)
    assert garden.find(STATES, "demo", "garden-local") is None

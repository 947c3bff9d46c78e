"""Activities by which a rotation's workflow reads and writes its Shoot."""

import asyncio
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.garden.rotation import GardenRotationActivities
from api import resources
from api.contracts.operations import ShootRef
from api.contracts.rotation import Kind, Phase, RotationInput, RotationStep, RotationView, Survey, SurveyReport, User
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import Forbidden
from tests.unit.kube.api_server import ApiServer
from tests.workflow.garden import FakeGarden, shoot, surroundings

REF = ShootRef(namespace="garden-local", name="demo", uid="0f3c")
CA = Kind.CERTIFICATE_AUTHORITIES
STARTED = "2026-11-21T10:00:00Z"
SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
NODE = User(who="node n-1", why="has an old certificate", remedy="roll its pool")


class World:
    def __init__(self, phase: str = "Prepared", **metadata: Any) -> None:
        live = shoot(**metadata)
        rotation = {"certificateAuthorities": {"phase": phase, "lastInitiationTime": STARTED}}
        live["status"] = {"credentials": {"rotation": rotation}}
        self.garden = FakeGarden(live, *surroundings())
        self.activities = GardenRotationActivities(cast(KubeClient, self.garden), cast(Caches, None))

    async def shoot(self) -> dict[str, Any]:
        return await self.garden.get(resources.SHOOT, "demo", "garden-local")

    async def report(self, *users: User) -> dict[str, Any]:
        request = SurveyReport(shoot=REF, kind=CA, survey=Survey(users=users))
        await ActivityEnvironment().run(self.activities.report_survey, request)
        (constraint,) = (await self.shoot())["status"]["constraints"]
        return cast(dict[str, Any], constraint)

    async def ask(self, forced: str = "") -> dict[str, str]:
        request = RotationStep(shoot=REF, kind=CA, phase=Phase.PREPARED, operation="rotate-ca-complete", forced=forced)
        await ActivityEnvironment().run(self.activities.request_rotation_step, request)
        return cast(dict[str, str], (await self.shoot())["metadata"].get("annotations") or {})


async def test_a_constraint_names_clients_with_old_credentials() -> None:
    world = World()
    told = await world.report(NODE)
    assert (told["type"], told["status"]) == ("OldCertificateAuthoritiesUnused", "False")
    assert told["message"] == "node n-1 has an old certificate"
    assert await world.report(NODE) == told, "a second run writes nothing"
    assert (await world.report())["status"] == "True"


async def test_a_step_is_requested_once_next_to_other_operations() -> None:
    world = World(annotations={"gardener.cloud/operation": "reconcile"})
    for _ in range(2):
        assert await world.ask() == {"gardener.cloud/operation": "reconcile;rotate-ca-complete"}


async def test_a_finished_step_is_not_requested_again() -> None:
    assert await World("Completing").ask() == {}


async def test_a_forced_completion_is_recorded() -> None:
    world = World()
    annotations = await world.ask("the node is burnt (by ann)")
    assert annotations["credentials.gardener.cloud/forced-completion"] == "the node is burnt (by ann)"
    ((reason, message),) = world.garden.events()
    assert reason == "OldCredentialsLeftBehind"
    assert "the node is burnt (by ann)" in message


async def test_a_refusal_of_the_garden_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def refuse(*_: Any, **__: Any) -> None:
        raise Forbidden(403, "Forbidden", "patching Shoot garden-local/demo: it must be Prepared")

    monkeypatch.setattr(world.garden, "patch", refuse)
    with pytest.raises(ApplicationError, match="it must be Prepared") as refused:
        await world.ask()
    assert refused.value.non_retryable


async def test_a_rotation_is_awaited_until_its_next_phase_its_move_and_its_end() -> None:
    def live(phase: str, seed: str = "s") -> dict[str, Any]:
        made = shoot()
        rotation = {"certificateAuthorities": {"phase": phase, "lastInitiationTime": STARTED}}
        made["status"] = {"seedName": seed, "technicalID": "t", "credentials": {"rotation": rotation}}
        return made

    async with ApiServer().running() as server, server.client() as client:
        server.put(SHOOTS, live("Preparing"))
        namespace, project = surroundings()[:2]
        server.put("/api/v1/namespaces", namespace)
        server.put("/apis/core.gardener.cloud/v1beta1/projects", project)
        caches = Caches(client)
        activities = GardenRotationActivities(client, caches)

        async def await_rotation(seen: Phase, seen_in: str = "s", *, turn: bool = True) -> RotationView:
            request = RotationInput(shoot=REF, kind=CA, initiated=STARTED, seen=seen, seen_in=seen_in, seen_turn=turn)
            return cast(RotationView, await ActivityEnvironment().run(activities.await_rotation, request))

        holding = asyncio.create_task(await_rotation(Phase.PREPARING))
        done, _ = await asyncio.wait([holding], timeout=0.3)
        assert not done
        held = live("Preparing")
        server.put(SHOOTS, {**held, "status": held["status"] | {"lastOperation": {"state": "Succeeded"}}})
        view = await asyncio.wait_for(holding, 10)
        assert not view.owners_turn, "no node waits for an in-place update any more: a reconcile must be requested"

        waiting = asyncio.create_task(await_rotation(Phase.PREPARING, turn=False))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        server.put(SHOOTS, live("Prepared"))
        view = await asyncio.wait_for(waiting, 10)
        assert view.rotation is not None
        assert (view.rotation.phase, view.owners_turn, view.seed) == (Phase.PREPARED, True, "s")
        assert view.technical_id == "shoot--local--demo", "computed, and not read from the status"

        moving = asyncio.create_task(await_rotation(Phase.PREPARED))
        server.put(SHOOTS, live("Prepared", seed="another"))
        assert (await asyncio.wait_for(moving, 10)).seed == "another"

        ending = asyncio.create_task(await_rotation(Phase.PREPARED, seen_in="another"))
        server.put(SHOOTS, live("Completed", seed="another"))
        assert (await asyncio.wait_for(ending, 10)).rotation is None
        await caches.close()

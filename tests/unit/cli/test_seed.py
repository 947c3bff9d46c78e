"""A seed is evacuated: so many Shoots at a time, each where the scheduler would put it, and one that fails alone."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from click.testing import CliRunner

from kube.errors import NotFound
from tests.unit.api.shoots import PROFILE, SEED, SHOOT
from tests.unit.kube.api_server import ApiServer, Object, refuse
from workers.cli.narrator import Narrator
from workers.cli.seed import Evacuation, Move, seed

CORE = "/apis/core.gardener.cloud/v1beta1"
SHOOTS, SEEDS = f"{CORE}/shoots", f"{CORE}/seeds"


class Garden(ApiServer):
    """A garden whose Shoots move as long as their specs say so, which this test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        """Shoots that were seen on their way at the same time."""
        self.broken = ""
        """Name of the Shoot whose move fails."""
        for name in ("seed-a", "seed-b", "seed-c"):
            self.put(SEEDS, {**SEED, "metadata": {**SEED["metadata"], "name": name}})
        self.put(f"{CORE}/cloudprofiles", PROFILE)

    def add(self, name: str, asked: str, here: str) -> None:
        metadata = {"name": name, "namespace": "garden-local"}
        before = {"type": "Restore", "state": "Failed", "description": "it is of before"}
        last = before if asked == here else {"type": "Migrate", "state": "Processing"}
        spec = {**SHOOT["spec"], "seedName": asked}
        self.put(SHOOTS, {**SHOOT, "metadata": metadata, "spec": spec,
                          "status": {"seedName": here, "lastOperation": last}})  # fmt: skip

    def moving(self) -> list[Object]:
        shoots = [each for (path, _, _), each in self.objects.items() if path == SHOOTS]
        return [each for each in shoots if each["spec"]["seedName"] != each["status"]["seedName"]]

    async def move(self) -> None:
        """One after the other, each once a client follows it, until cancelled."""
        while True:
            on_their_way = self.moving()
            self.most = max(self.most, len(on_their_way))
            for each in on_their_way[: self.watching and 1]:
                name, there = each["metadata"]["name"], each["spec"]["seedName"]
                state = "Failed" if name == self.broken else "Succeeded"
                self._say(name, {}, "Migrate", state)
                if state == "Succeeded":
                    self._say(name, {"seedName": there}, "Restore", state)
                else:
                    self.change(SHOOTS, name, "garden-local", {"spec": {"seedName": each["status"]["seedName"]}})
            await asyncio.sleep(0.02)

    def _say(self, name: str, more: Object, type_: str, state: str) -> None:
        last = {"type": type_, "state": state, "description": f"{type_} of {name}"}
        self.change(SHOOTS, name, "garden-local", {"status": {**more, "lastOperation": last}})


@pytest.fixture
async def garden() -> AsyncIterator[Garden]:
    async with Garden().running() as server:
        moving = asyncio.create_task(server.move())
        yield server
        moving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await moving


async def evacuated(garden: Garden, to: str | None = None, at_once: int = 2) -> dict[str, Move]:
    async with garden.client() as client:
        moves = await Evacuation(client, "seed-a", to, source_lost=False, narrator=Narrator(as_json=True)).run(at_once)
    return {each.shoot.removeprefix("garden-local/"): each for each in moves}


async def test_an_evacuation_moves_a_limited_number_at_a_time_to_the_emptiest_seeds(
    garden: Garden, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two", "three", "four", "five"):
        garden.add(name, "seed-a", "seed-a")
    garden.add("stays", "seed-c", "seed-c")
    moves = await evacuated(garden)
    assert {each.result for each in moves.values()} == {"moved"}
    assert sorted(each.destination for each in moves.values()) == ["seed-b"] * 3 + ["seed-c"] * 2
    assert garden.most == 2
    evacuee = garden.find(SEEDS, "seed-a")
    assert evacuee is not None
    assert evacuee["spec"]["settings"]["scheduling"]["visible"] is False
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[0]["text"] == "accepts no new control planes; 5 of 6 leave it, 2 at a time"
    assert {each["phase"] for each in said if each.get("shoot") == "garden-local/one"} >= {"Restore Succeeded"}


async def test_a_repeated_evacuation_follows_running_moves(garden: Garden) -> None:
    garden.add("begun", "seed-c", "seed-a")
    moves = await evacuated(garden, to="seed-b")
    assert (moves["begun"].destination, moves["begun"].result) == ("seed-c", "moved")
    assert garden.count("PATCH", f"{CORE}/namespaces/garden-local/shoots/begun") == 0


async def test_a_refused_and_a_failed_move_do_not_stop_the_others(garden: Garden) -> None:
    def deny(request: web.Request) -> web.Response | None:
        if request.method == "PATCH" and request.path.endswith("/shoots/denied"):
            return refuse(403, "Forbidden", "Shoot garden-local/denied is being deleted")
        return None

    garden.answer, garden.broken = deny, "broken"
    for name in ("broken", "denied", "moves"):
        garden.add(name, "seed-a", "seed-a")
    moves = await evacuated(garden, at_once=1)
    assert "is being deleted" in moves["denied"].result
    assert moves["broken"].result == "Migrate has failed: Migrate of broken"
    assert moves["moves"].result == "moved"


async def test_without_a_suitable_seed_the_evacuation_starts_no_move(garden: Garden) -> None:
    garden.add("one", "seed-a", "seed-a")
    for name in ("seed-b", "seed-c"):
        garden.remove(SEEDS, name)
    assert (await evacuated(garden))["one"].result == "there are no seeds"
    assert garden.moving() == []


async def test_a_seed_that_does_not_exist_is_named(garden: Garden) -> None:
    garden.remove(SEEDS, "seed-a")
    with pytest.raises(NotFound, match="seed-a"):
        await evacuated(garden)


def test_a_seed_cannot_be_evacuated_to_itself() -> None:
    found = CliRunner().invoke(seed, ["evacuate", "seed-a", "--to", "seed-a"])
    assert found.exit_code == 2
    assert "seed-a is the seed to evacuate" in found.output


@pytest.mark.parametrize("replace", [False, True])
async def test_a_bootstrap_kubeconfig_holds_a_token_for_one_seed(tmp_path, replace):
    """The token's group is what the approver compares; only with --replace may it take over a living seed."""
    async with ApiServer().running() as garden:
        garden.put(SEEDS, {**SEED, "metadata": {**SEED["metadata"], "name": "seed-a"}})
        path = tmp_path / "garden.yaml"
        clusters = [{"name": "garden", "cluster": {"server": garden.url}}]
        contexts = [{"name": "garden", "context": {"cluster": "garden", "user": "admin"}}]
        users = [{"name": "admin", "user": {"token": "t"}}]
        config = {"current-context": "garden", "clusters": clusters, "contexts": contexts, "users": users}
        path.write_text(json.dumps(config))
        arguments = [
            "bootstrap-kubeconfig",
            "seed-a",
            f"--garden-kubeconfig={path}",
            *(["--replace"] if replace else []),
        ]
        done = await asyncio.to_thread(CliRunner().invoke, seed, arguments)

    assert done.exit_code == 0, done.output
    written = json.loads(done.output)
    token_id, _, secret = written["users"][0]["user"]["token"].partition(".")
    assert written["clusters"][0]["cluster"]["server"] == garden.url
    made = garden.find("/api/v1/secrets", f"bootstrap-token-{token_id}", "kube-system")
    content = {key: base64.b64decode(value).decode() for key, value in made["data"].items()}
    assert content["token-secret"] == secret
    assert content["auth-extra-groups"] == "system:bootstrappers:gardener-seed:seed-a"
    annotations = garden.find(SEEDS, "seed-a")["metadata"].get("annotations") or {}
    assert annotations.get("seed.gardener.cloud/bootstrap-token-id") == (token_id if replace else None)

"""A seed falls silent: the garden reports it, and a move out of it that was not called lost goes on without it."""

import json
from collections.abc import Iterator

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.probe import await_pods, running
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(900, func_only=True)]

_MOVE_SECONDS = 450.0


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "silent", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created():
        await_pods(shoot)
        yield shoot


def _gardenlet_ready(landscape: Landscape, seed: str) -> str:
    path = 'jsonpath={.status.conditions[?(@.type=="GardenletReady")].status}'
    return landscape.kubectl("garden", "get", "seed", seed, "-o", path)


def test_a_move_out_of_a_silent_seed_continues_without_it(shoot: Shoot) -> None:
    landscape, source, destination = shoot.landscape, shoot.seed, shoot.other_seed
    before = running(shoot)
    landscape.gardener("kill", source)
    try:
        eventually(lambda: _gardenlet_ready(landscape, source) == "Unknown", "the garden misses the gardenlet", 90)
        move = ["shoot", "move", shoot.reference, "--to", destination, "--follow", "-o", "json"]
        print(shoot.gardener(*move, timeout=_MOVE_SECONDS))
        shoot.has_moved()
        assert shoot.get()["status"]["seedName"] == destination
        events = json.loads(shoot.garden("get", "events", "-o", "json"))["items"]
        assert any(each["reason"] == "SourceSeedLost" and source in each["message"] for each in events)
        await_pods(shoot)
        assert running(shoot) == before
    finally:
        landscape.gardener("up", timeout=300)
    eventually(lambda: _gardenlet_ready(landscape, source) == "True", "the gardenlet is back", 60)
    eventually(lambda: not shoot.is_in(source), "the old seed is clean", 180)

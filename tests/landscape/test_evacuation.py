"""All control planes leave a seed, a limited number at a time, and no new ones are scheduled to it."""

import json
from collections.abc import Iterator

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, Shoot, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

LEFT, TAKEN = "seed-1", "seed-2"
_SECONDS = 300.0


@pytest.fixture(scope="module")
def evacuees(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Shoot]]:
    """Three Shoots without workers, which are control planes alone, in one seed."""
    shoots = [Shoot(landscape, f"evacuee-{number}", tmp_path_factory.mktemp("kubeconfigs")) for number in range(3)]
    try:
        for each in shoots:
            each.apply(each.without_workers(seedName=LEFT))
        for each in shoots:
            each.wait_for_state("Succeeded", CREATION)
        yield shoots
    finally:
        for each in shoots:
            each.remove()
        visible = {"spec": {"settings": {"scheduling": {"visible": True}}}}
        landscape.kubectl("garden", "patch", "seed", LEFT, "--type=merge", "-p", json.dumps(visible))


def test_all_control_planes_have_moved_and_are_reported(evacuees: list[Shoot]) -> None:
    before = {each.name: each.kubectl("get", "namespace", "default", "-o", "jsonpath={.metadata.uid}")
              for each in evacuees}  # fmt: skip
    said = evacuees[0].gardener("seed", "evacuate", LEFT, "--at-once", "2", "-o", "json", timeout=_SECONDS)
    *progress, last = [json.loads(line) for line in said.splitlines()]
    print("\n".join(f"{each['shoot']} {each['seconds']} s {each['result']}" for each in last["report"]))
    assert {(each["shoot"].split("/")[1], each["destination"], each["result"]) for each in last["report"]} == {
        (each.name, TAKEN, "moved") for each in evacuees
    }
    assert _most_at_once(progress) == 2
    for each in evacuees:
        del each.__dict__["kubeconfig"]
        assert each.get()["status"]["seedName"] == TAKEN
        assert each.kubectl("get", "namespace", "default", "-o", "jsonpath={.metadata.uid}") == before[each.name]


def _most_at_once(progress: list[dict[str, str]]) -> int:
    """Greatest number of Shoots that were on their way at once."""
    under_way: set[str] = set()
    most = 0
    for each in progress[1:]:
        (under_way.discard if each["phase"] == "Restore Succeeded" else under_way.add)(each["shoot"])
        most = max(most, len(under_way))
    return most


def test_new_shoots_are_scheduled_to_other_seeds(evacuees: list[Shoot], landscape: Landscape) -> None:
    path = "jsonpath={.spec.settings.scheduling.visible}"
    assert landscape.kubectl("garden", "get", "seed", LEFT, "-o", path) == "false"


def test_a_repeated_evacuation_finds_nothing_to_move(evacuees: list[Shoot]) -> None:
    said = evacuees[0].gardener("seed", "evacuate", LEFT, "-o", "json")
    assert json.loads(said.splitlines()[-1]) == {"report": []}


def test_a_seed_that_does_not_exist_is_named(evacuees: list[Shoot], landscape: Landscape) -> None:
    kubeconfig = landscape.directory / "kubeconfigs/garden.yaml"
    assert "seed-9" in refused(BIN / "gardener", "seed", "evacuate", "seed-9", "--garden-kubeconfig", kubeconfig)

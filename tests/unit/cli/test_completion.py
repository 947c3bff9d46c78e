"""Completion in a shell offers names of objects of the garden and of the Shoot; none where they do not answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from landscape import lifecycle
from landscape.plan import Plan
from tests.unit.api.shoots import CORE, PROJECT, SEED, SHOOT, changed
from tests.unit.cli.test_ssh import NODES, SHOOTS, node, of_the_shoot
from tests.unit.kube.api_server import ApiServer, refuse
from workers.cli import completion
from workers.cli.main import gardener

SEEDS, PROJECTS = f"/apis/{CORE}/seeds", f"/apis/{CORE}/projects"
RECORD = {"user": "alice", "issuer": "ca-client", "expires": "2030-01-01T00:00:00Z"}
Offer = Callable[[str], Awaitable[list[str]]]


@pytest.fixture
def offered(garden_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Words that are offered for the last word of a command line; the line ends with a space for an empty one."""
    (tmp_path / "kubeconfig").write_text(garden_server.kubeconfig())
    monkeypatch.setenv("GARDEN_KUBECONFIG", str(tmp_path / "kubeconfig"))
    for name in ("demo", "other"):
        garden_server.put(SHOOTS, changed(SHOOT, "metadata", {"name": name, "namespace": "garden-local"}))
    garden_server.put(SHOOTS, changed(SHOOT, "metadata", {"name": "far", "namespace": "garden-far"}))
    errors = [{"description": "", "taskID": "deploy_etcds"}, {"description": "no task"}]
    garden_server.change(SHOOTS, "demo", "garden-local", {"status": {"lastErrors": errors}})
    garden_server.put(SEEDS, SEED)
    garden_server.put(PROJECTS, changed(PROJECT, "spec.members", [{"kind": "User", "name": "vera", "role": "viewer"}]))
    garden_server.put(NODES, node("node-a", "10.0.0.1"))
    garden_server.put(NODES, node("node-b", "10.0.0.2"))
    metadata = {"name": "demo.issued-kubeconfigs", "namespace": "garden-local"}
    records = {"metadata": metadata, "data": {"abcdef01": json.dumps(RECORD)}}
    garden_server.put("/api/v1/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", **records})
    garden_server.answer = of_the_shoot(garden_server)

    async def offer(line: str) -> list[str]:
        *arguments, incomplete = line.split(" ")
        shell = ShellComplete(gardener, {}, "gardener", "_GARDENER_COMPLETE")
        return [each.value for each in await asyncio.to_thread(shell.get_completions, arguments, incomplete)]

    return offer


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flow explain ", ["garden-far/far", "garden-local/demo", "garden-local/other"]),
        ("kubeconfig shoot garden-local/d", ["garden-local/demo"]),
        ("shoot ssh -n garden-local ", ["demo", "other"]),
        ("shoot ssh -n garden-local demo ", ["node-a", "node-b"]),
        ("shoot ssh garden-local/demo node-b", ["node-b"]),
        ("shoot ssh garden-local/gone ", []),
        ("shoot ssh demo ", []),
        ("shoot move garden-local/demo --to ", ["seed-1"]),
        ("seed evacuate ", ["seed-1"]),
        ("flow skip garden-local/demo ", ["deploy_etcds"]),
        ("credentials roll garden-local/demo ", ["pool"]),
        ("credentials roll garden-local/demo pool ", []),
        ("credentials discard garden-local/demo ", ["abcdef01"]),
        ("project members list ", ["local"]),
        ("project members remove local ", ["vera"]),
    ],
)
async def test_names_are_offered(offered: Offer, line: str, words: list[str]) -> None:
    assert await offered(line) == words


async def test_clusters_and_processes_of_a_landscape_are_offered(
    offered: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Plan("offering", 1, "1.37.1", state_home=tmp_path)
    monkeypatch.setattr(lifecycle, "require", lambda name: made)
    assert await offered("landscape kubeconfig s") == ["seed-1", "seed-2"]
    assert {"seed-1", "seed-2"} <= set(await offered("landscape pause "))


async def test_a_landscape_that_is_not_there_offers_nothing(offered: Offer) -> None:
    assert await offered("landscape kubeconfig --name nowhere ") == []


async def test_a_member_is_offered_the_shoots_of_the_namespace_in_the_word(
    offered: Offer, garden_server: ApiServer
) -> None:
    """A member of a Project may not list Shoots of all namespaces."""
    everywhere = refuse(403, "Forbidden", "not you")
    garden_server.answer = lambda request: everywhere if request.path == SHOOTS else None

    assert await offered("flow show garden-local/") == ["garden-local/demo", "garden-local/other"]
    assert await offered("flow show ") == []


async def test_a_garden_that_does_not_answer_in_time_offers_nothing(
    offered: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_SECONDS", 0.0)

    assert await offered("seed evacuate ") == []


def arguments(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Argument]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from arguments(found, f"{path} {name}".strip())
    else:
        yield from ((path, each) for each in command.params if isinstance(each, click.Argument))


def test_each_argument_is_completed_or_is_the_name_of_something_new() -> None:
    missing = {
        f"{path} {argument.name}"
        for path, argument in arguments(gardener)
        if not argument._custom_shell_complete and not isinstance(argument.type, click.Choice | click.Path)
    }

    assert missing == {
        "keys promote key_id",  # in a file with keys, which a shell does not show
        "seed skip task",
    }

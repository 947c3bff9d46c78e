"""``gardener explain-admission``: the garden's decisions about objects in a file."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.unit.api.shoots import SHOOT, complete
from tests.unit.cli.conftest import Command
from tests.unit.kube.api_server import ApiServer
from workers.cli.explain_admission import refusals

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
ENVELOPE = (
    'admission webhook "validation.gardener.cloud" denied the request: Shoot.core.gardener.cloud "demo" is invalid: '
)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump(SHOOT))
    return str(path)


def answering(server: ApiServer, status: int, body: Any, *warnings: str) -> list[web.Request]:
    """Answer writes with this, as the API server of a garden would."""
    asked = []

    def answer(request: web.Request) -> web.Response | None:
        if request.method == "GET":
            return None
        asked.append(request)
        made = web.json_response(body, status=status)
        for each in warnings:
            made.headers.add("Warning", f'299 - "{each}"')
        return made

    server.answer = answer
    return asked


async def test_defaults_and_warnings_of_an_accepted_shoot_are_shown(
    garden_server: ApiServer, command: Command, file: str
) -> None:
    asked = answering(garden_server, 201, complete().to_wire(), "1.37.1 is deprecated", 'say \\"hello\\"')

    result = await command("explain-admission", "-f", file, "-o", "json")

    assert result.exit_code == 0, result.output
    (decision,) = json.loads(result.stdout)
    assert (decision["operation"], decision["accepted"]) == ("Create", True)
    assert decision["warnings"] == ["1.37.1 is deprecated", 'say "hello"']
    defaults = {each["field"]: each["value"] for each in decision["defaults"]}
    assert defaults["spec.kubernetes.kubeProxy.mode"] == "IPTables"
    assert defaults["spec.provider.workers[0].maxSurge"] == 1
    assert "spec.region" not in defaults, "the file has it"
    assert {each.query["dryRun"] for each in asked} == {"All"}
    assert garden_server.find(SHOOTS, "demo", "garden-local") is None


async def test_each_rule_that_refuses_a_shoot_is_a_line(garden_server: ApiServer, command: Command, file: str) -> None:
    faults = [f"spec.provider.workers[{index}].name: Duplicate value: a, b" for index in range(30)]
    message = f"{ENVELOPE}[{', '.join(faults)}]"
    answering(garden_server, 422, {"kind": "Status", "reason": "Invalid", "message": message})

    result = await command("explain-admission", "-f", file)

    assert result.exit_code == 1
    first, title, *lines = result.stdout.splitlines()
    assert (first, title) == ("Create Shoot garden-local/demo: refused", "  refused by:")
    assert lines == [f"    {each}" for each in faults], "also the last ones of a long message"


async def test_a_shoot_that_exists_is_an_update(garden_server: ApiServer, command: Command, file: str) -> None:
    garden_server.put(SHOOTS, SHOOT)
    asked = answering(garden_server, 200, SHOOT)

    result = await command("explain-admission", "-f", file)

    assert result.stdout == "Update Shoot garden-local/demo: accepted\n"
    assert [each.method for each in asked] == ["PUT"]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("spec.region: Required value", ("spec.region: Required value",)),
        (f"{ENVELOPE}spec.a: Invalid value: b, c", ("spec.a: Invalid value: b, c",)),
        (
            f"{ENVELOPE}[spec.a: Forbidden: x, metadata.name: Invalid]",
            ("spec.a: Forbidden: x", "metadata.name: Invalid"),
        ),
        ('shoots.core.gardener.cloud "demo" is forbidden: no project', ("no project",)),
    ],
)
def test_the_faults_of_a_message_are_told_apart(message: str, found: tuple[str, ...]) -> None:
    assert refusals(message) == found


@pytest.mark.parametrize(
    ("content", "complaint"), [("", "holds no object"), ("a: [", "is no YAML"), ("a: 1", "has no apiVersion")]
)
async def test_a_file_without_objects_is_refused(
    command: Command, tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "empty").write_text(content)
    result = await command("explain-admission", "-f", str(tmp_path / "empty"))

    assert result.exit_code == 1
    assert complaint in result.stderr

"""``gardener shoot list|create``."""

import json
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from tests.unit.api.shoots import SHOOT
from tests.unit.cli.conftest import Command
from tests.unit.kube.api_server import ApiServer, refuse

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"


def put(server: ApiServer, namespace: str, name: str) -> None:
    status = {
        "seedName": "seed-1",
        "lastOperation": {"type": "Reconcile", "state": "Processing", "progress": 40, "description": "Deploying"},
    }
    labels = {"shoot.gardener.cloud/status": "healthy"}
    server.put(
        SHOOTS, {**SHOOT, "metadata": {"name": name, "namespace": namespace, "labels": labels}, "status": status}
    )


async def test_shoots_are_listed_of_all_namespaces_or_of_one(garden_server: ApiServer, command: Command) -> None:
    put(garden_server, "garden-b", "one")
    put(garden_server, "garden-a", "two")

    rows = json.loads((await command("shoot", "list", "-o", "json")).stdout)
    assert [f"{each['namespace']}/{each['name']}" for each in rows] == ["garden-a/two", "garden-b/one"]
    assert (rows[0]["seed"], rows[0]["state"], rows[0]["progress"]) == ("seed-1", "Processing", 40)
    text = (await command("shoot", "list", "-n", "garden-b")).stdout
    assert "one" in text
    assert "two" not in text


async def test_no_shoots_are_an_empty_list(garden_server: ApiServer, command: Command) -> None:
    assert json.loads((await command("shoot", "list", "-o", "json")).stdout) == []
    result = await command("shoot", "list", "-n", "garden-a")
    assert (result.exit_code, result.stderr) == (0, "no Shoots in namespace garden-a\n")


async def test_a_shoot_is_created_from_a_file(garden_server: ApiServer, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "shoot.yaml"
    file.write_text(yaml.safe_dump(SHOOT))

    result = await command("shoot", "create", "-f", str(file))

    assert result.exit_code == 0, result.output
    assert "Created: Shoot garden-local/demo, Kubernetes 1.37.1" in result.stdout
    assert garden_server.find(SHOOTS, "demo", "garden-local") is not None


async def test_a_refused_shoot_ends_with_the_reason(garden_server: ApiServer, command: Command, tmp_path: Path) -> None:
    def deny(request: web.Request) -> web.Response | None:
        return refuse(422, "Invalid", "spec.region: Unsupported value") if request.method == "POST" else None

    garden_server.answer = deny
    (tmp_path / "shoot.yaml").write_text(yaml.safe_dump(SHOOT))
    result = await command("shoot", "create", "-f", str(tmp_path / "shoot.yaml"))

    assert result.exit_code == 1
    assert "spec.region: Unsupported value" in result.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a: [", "is no YAML"),
        ("kind: Seed", "holds no Shoot"),
        ("kind: Shoot\nmetadata: {name: a}", "has no metadata.namespace"),
    ],
)
async def test_a_file_without_a_shoot_is_refused(
    command: Command, tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "file").write_text(content)
    result = await command("shoot", "create", "-f", str(tmp_path / "file"))

    assert result.exit_code == 1
    assert complaint in result.stderr

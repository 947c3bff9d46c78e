"""``kubectl`` as the document shows it, and ``gardener kubeconfig shoot``, get a kubeconfig from the garden."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509

from api import resources
from tests.garden_api_server import ALICE, Garden
from tests.gardens import ApiServer
from tests.walkthroughs import commands
from workers.cli import kubeconfig
from workers.cli.connection import SYSTEM_RESOLVER, Reach

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]


@pytest.fixture(autouse=True)
def names_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "reach", lambda url: Reach(url, None, SYSTEM_RESOLVER))


def written(directory: Path, cluster: dict[str, Any], **user: str) -> str:
    config = {
        "current-context": "garden",
        "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": "garden"}}],
        "clusters": [{"name": "garden", "cluster": cluster}],
        "users": [{"name": "garden", "user": user}],
    }
    file = directory / "garden.yaml"
    file.write_text(yaml.safe_dump(config))
    return str(file)


def at_the_front_door(garden: Garden, user: str) -> str:
    """A kubeconfig of a user. The certificate stands for the front door, which passes on the user's token."""
    door = garden.door()
    cluster = {"server": garden.url, "certificate-authority": str(garden.servers.files.certificate)}
    shown = {"client-certificate": str(door.certificate), "client-key": str(door.key)}
    return written(garden.directory, cluster, **shown, token=user)


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, kubeconfig.shoot, list(arguments))


@pytest.mark.parametrize(
    ("option", "name"), [([], "gardener.cloud:admin:alice"), (["--viewer"], "gardener.cloud:viewer:alice")]
)
async def test_the_kubeconfig_names_its_user(garden: Garden, option: list[str], name: str) -> None:
    result = await run("garden-local/demo", *option, "--garden-kubeconfig", at_the_front_door(garden, ALICE))

    assert result.exit_code == 0, result.output
    user = yaml.safe_load(result.stdout)["users"][0]["user"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(user["client-certificate-data"]))
    assert f"CN={name}" in certificate.subject.rfc4514_string()


async def test_an_address_that_the_system_does_not_resolve_is_replaced(
    garden: Garden, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Reach("https://198.18.2.2:443", "api.demo.test", "api.demo.test is 198.18.2.2 by the landscape's DNS")
    monkeypatch.setattr(kubeconfig, "reach", lambda url: found)

    result = await run("garden-local/demo", "--garden-kubeconfig", at_the_front_door(garden, ALICE))

    cluster = yaml.safe_load(result.stdout)["clusters"][0]["cluster"]
    assert (cluster["server"], cluster["tls-server-name"]) == ("https://198.18.2.2:443", "api.demo.test")
    assert "by the landscape's DNS" in result.stderr


async def test_a_validity_that_the_garden_has_shortened_is_told(garden: Garden) -> None:
    file = at_the_front_door(garden, ALICE)

    result = await run("garden-local/demo", "--expiration", "90000", "--garden-kubeconfig", file)

    assert result.exit_code == 0
    assert result.stderr == "# valid for 86400 s, which is the garden's maximum\n"


async def test_a_refusal_says_what_the_user_may_not_do(garden: Garden) -> None:
    garden_kubeconfig = at_the_front_door(garden, ALICE)

    result = await run("garden-other/demo", "--garden-kubeconfig", garden_kubeconfig)

    assert result.exit_code == 1
    assert "requesting adminkubeconfig of Shoot garden-other/demo: API server answered 403 Forbidden" in result.stderr
    assert 'User "alice" cannot create resource "shoots/adminkubeconfig"' in result.stderr


@pytest.mark.parametrize(
    ("shoot", "said"),
    [("demo", "does not serve this subresource: use a kubeconfig with the address of the garden's front door"),
     ("missing", "getting Shoot garden-local/missing: API server answered 404 NotFound")],
)  # fmt: skip
async def test_an_api_server_without_front_door_is_named(
    garden: Garden, server: ApiServer, shoot: str, said: str
) -> None:
    cluster = {"server": f"https://127.0.0.1:{server.port}", "insecure-skip-tls-verify": True}
    file = written(garden.directory, cluster, token=ALICE)

    result = await run(f"garden-local/{shoot}", "--garden-kubeconfig", file)

    assert result.exit_code == 1
    assert said in result.stderr.replace("\n", " ")


async def shown(garden: Garden, user: str, beginning: str, stdin: str = "") -> dict[str, Any]:
    """The answer to a command of the document, without the programs after it that print a part of the answer."""
    [variables, *_] = document = [each.text for each in commands("docs/operations/kubeconfigs.md")]
    command = next(each for text in document for each in text.split("| \\\n") if each.strip().startswith(beginning))
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", f"{variables}\n{command.partition(' | jq')[0]}"],
        input=stdin,
        env={
            "KUBECONFIG": at_the_front_door(garden, user),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(garden.directory),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def test_kubectl_gets_a_kubeconfig_by_the_command_in_the_document(garden: Garden) -> None:
    answer = await shown(garden, ALICE, "kubectl create")

    assert answer["spec"] == {"expirationSeconds": 600}
    assert b"client-certificate-data" in base64.b64decode(answer["status"]["kubeconfig"])


async def test_kubectl_binds_a_shoot_by_the_command_in_the_document(garden: Garden) -> None:
    read = await garden.admin.get(resources.SHOOT, "demo", "garden-local")
    read["spec"]["seedName"] = "seed-2"

    answer = await shown(garden, "admin", "kubectl replace", json.dumps(read))

    assert answer["spec"]["seedName"] == "seed-2"

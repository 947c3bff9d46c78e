"""How to write and start an extension: the walkthrough of the example and docs/extensions.md, without a landscape."""

import ast
import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from api.core.v1beta1.controller_registration import ControllerRegistration
from kube.cache import Caches
from landscape.cli import landscape
from landscape.extensions import packaged
from landscape.plan import DEFAULT_NAME, STATE_HOME, choose
from tests.unit.examples.test_local_extension import (
    CLUSTERS,
    CONFIG_MAPS,
    EXAMPLE,
    EXTENSIONS,
    NAMESPACE,
    example,
    until,
)
from tests.unit.kube.api_server import ApiServer
from workers.extension import ExtensionController

ROOT = EXAMPLE.parents[1]
WALKTHROUGH = (EXAMPLE / "README.md").read_text()
PAGE = (ROOT / "docs/extensions.md").read_text()


def commands() -> list[str]:
    """Commands of the walkthrough, one a line, without prompts."""
    (block,) = re.findall(r"```console\n(.*?)```", WALKTHROUGH, re.DOTALL)
    lines = re.sub(r"^[$>] ", "", block, flags=re.MULTILINE)
    return [line.strip() for line in lines.replace("\\\n", " ").splitlines()]


def command(start: str) -> list[str]:
    """Words of the one command that begins so."""
    (found,) = [each for each in commands() if each.startswith(start)]
    return shlex.split(found)


def test_the_walkthrough_uses_the_landscape_that_gardener_landscape_up_creates(tmp_path: Path) -> None:
    plan = choose(DEFAULT_NAME, "1.37.1", state_home=tmp_path)
    (state,) = [each.removeprefix("state=") for each in commands() if each.startswith("state=")]
    seeds = command("for seed in")[3:-1]
    seeds[-1] = seeds[-1].rstrip(";")
    network = command("nsenter")[1]

    assert STATE_HOME.parts[-2:] == ("gardener", "landscapes")
    assert state == f"~/.local/state/gardener/landscapes/{plan.directory.name}"
    assert plan.kubeconfig("seed-1").relative_to(plan.directory) == Path("kubeconfigs/seed-1.yaml")
    assert "kubeconfig=$state/kubeconfigs/$seed.yaml" in commands()
    assert command("export")[1] == f"KUBECONFIG=$state/{plan.kubeconfig('garden').relative_to(plan.directory)}"
    assert seeds == ["seed-1", "seed-2"]
    for seed in seeds:
        assert network.replace("$seed", seed) == f"--net=/run/netns/{plan.cluster(seed).netns}"


def test_every_file_that_the_walkthrough_names_exists() -> None:
    files = [word for each in commands() for word in shlex.split(each, comments=True) if word.startswith("examples/")]

    assert len(files) == 4
    assert [each for each in files if not (ROOT / each).is_file()] == []


def test_the_walkthrough_starts_the_example_with_options_that_it_has() -> None:
    words = command("nsenter")
    used = {each for each in words[words.index("examples/local_extension/extension.py") :] if each.startswith("--")}

    assert used == {"--kubeconfig", "--token-file"}
    assert used <= {option for each in example.main.params for option in each.opts}
    assert command("gardener") == ["gardener", "landscape", "up"]
    assert not [each.name for each in landscape.commands["up"].params if each.required]


def test_the_walkthrough_requests_an_extension_that_is_registered() -> None:
    registration = ControllerRegistration.of(yaml.safe_load((EXAMPLE / "controllerregistration.yaml").read_text()))
    shoot = yaml.safe_load((ROOT / "examples/shoot.yaml").read_text())
    words = command("kubectl -n garden-local patch")
    (wanted,) = json.loads(words[words.index("-p") + 1])["spec"]["extensions"]
    types = {each.type for each in registration.spec.resources or []}

    assert words[2:6] == [shoot["metadata"]["namespace"], "patch", "shoot", shoot["metadata"]["name"]]
    assert wanted["type"] in types
    assert set(re.findall(r"^\| `(local-ext[a-z-]*)`", WALKTHROUGH, re.MULTILINE)) == types


def test_the_walkthrough_uses_the_account_that_has_the_permissions() -> None:
    objects = list(yaml.safe_load_all((EXAMPLE / "rbac.yaml").read_text()))
    (account,) = [each["metadata"] for each in objects if each["kind"] == "ServiceAccount"]
    (line,) = [each for each in commands() if "create token" in each]

    assert f"-n {account['namespace']} create token {account['name']} " in line
    (default,) = [each.default for each in example.main.params if each.name == "namespace"]
    assert default == account["namespace"]


def test_the_chart_of_the_example_grants_the_same_permissions() -> None:
    with helm.Chart.load_archive(packaged(EXAMPLE / "chart")) as chart:
        files = chart.render(name="local-ext", namespace="extension-local-ext")
    rights = list(yaml.safe_load_all(files["local-ext/templates/rbac.yaml"]))

    assert rights == list(yaml.safe_load_all((EXAMPLE / "rbac.yaml").read_text()))[1:], "it brings no namespace"
    (config,) = yaml.safe_load(files["local-ext/templates/extension.yaml"].split("---")[0])["data"].values()
    assert config.strip() == (EXAMPLE / "extension.py").read_text().strip()


def test_the_example_needs_the_sdk_the_kinds_and_the_client_only() -> None:
    """Above all, it does not need provider-local."""
    assert foreign_imports((EXAMPLE / "extension.py").read_text()) == {"click"}


def foreign_imports(code: str) -> set[str]:
    """Modules that code imports beside Python's own, the SDK, ``api`` and ``kube``."""
    modules = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
        elif isinstance(node, ast.Import):
            modules |= {each.name for each in node.names}
    own = {each for each in modules if each == "workers.extension" or each.split(".")[0] in ("api", "kube")}
    return {each for each in modules - own if each.split(".")[0] not in sys.stdlib_module_names}


async def test_the_extension_of_the_page_works_as_written() -> None:
    actuator, process = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code, (start,) = f"{actuator}\n{process}".split("asyncio.run(")[0], re.findall(r"^asyncio\.run\(.*", process, re.M)
    assert start == "asyncio.run(run())"
    assert foreign_imports(code) == set()
    module: dict[str, Any] = {}
    exec(compile(code, "docs/extensions.md", "exec"), module)

    async with ApiServer().running() as server, server.client() as client:
        shoot = {"metadata": {"name": "demo", "generation": 1}, "spec": {}}
        server.put(CLUSTERS, {"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot}})
        caches = Caches(client)
        running = asyncio.create_task(ExtensionController(client, caches, module["Notes"](client)).run())
        annotations = {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": "2026-11-21T10:00:00Z"}
        metadata = {"name": "notes", "namespace": NAMESPACE, "uid": "u-1", "annotations": annotations}
        server.put(EXTENSIONS, {"metadata": metadata, "spec": {"type": "notes", "providerConfig": {"text": "hi"}}})
        await until(lambda: (server.find(EXTENSIONS, "notes", NAMESPACE) or {}).get("status", {}).get("state"))
        note = server.find(CONFIG_MAPS, "extension-notes", NAMESPACE)
        assert note is not None
        assert note["data"] == {"text": "hi"}
        server.change(EXTENSIONS, "notes", NAMESPACE, {"metadata": {"deletionTimestamp": "2026-11-21T11:00:00Z"}})
        await until(lambda: server.find(EXTENSIONS, "notes", NAMESPACE) is None)
        assert not server.find(CONFIG_MAPS, "extension-notes", NAMESPACE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()

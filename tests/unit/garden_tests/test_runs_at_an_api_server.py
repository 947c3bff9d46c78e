"""Runs of ``gardener test`` at a real API server with the garden's kinds, which is the Shoot's cluster, too.

No gardenlet works there, so the tests of a run are planted.
"""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from api import resources
from kube.client import KubeClient
from kube.errors import Forbidden
from tests.api_servers import free_port, running
from tests.gardens import _KUBE_CONTROLLER_MANAGER as CONTROLLER_MANAGER
from tests.gardens import ADMIN, ApiServer
from tests.unit.api.shoots import SHOOT
from workers.cli import garden_test as command
from workers.cli.garden_tests import leftovers
from workers.cli.garden_tests.context import MANAGER, RUN_LABEL, USED_BY, Context
from workers.cli.garden_tests.dump import Dump
from workers.cli.garden_tests.model import GardenTest, Label, TestFailed, TestSkipped, garden_test

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

NAMESPACE = "garden-local"
PASSWORD = "correct-horse-battery-staple"
PROJECT = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Project",
    "metadata": {"name": "local"},
    "spec": {"namespace": NAMESPACE},
}


def shoot(name: str) -> dict[str, Any]:
    return {**SHOOT, "metadata": {"name": name, "namespace": NAMESPACE}}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server, and the controller that ends namespaces."""
    directory = tmp_path_factory.mktemp("garden")
    made = ApiServer(directory, {})
    (directory / "admin.kubeconfig").write_text(json.dumps(made.kubeconfig(ADMIN)))
    controllers = (
        *(CONTROLLER_MANAGER, "--kubeconfig", "admin.kubeconfig", "--leader-elect=false"),
        *("--authentication-kubeconfig", "admin.kubeconfig", "--authorization-kubeconfig", "admin.kubeconfig"),
        *("--controllers", "namespace-controller", "--bind-address", "127.0.0.1"),
        *("--secure-port", free_port(), "--cert-dir", "certs"),
    )
    with made.running():
        asyncio.run(made.prepare(namespace(NAMESPACE), PROJECT))
        with running(directory, *map(str, controllers)):
            yield made


def ask(server: ApiServer, question: Callable[[KubeClient], Any]) -> Any:
    async def answer() -> Any:
        async with server.client() as client:
            return await question(client)

    return asyncio.run(answer())


@pytest.fixture
def existing(server: ApiServer) -> Iterator[str]:
    """Name of a Shoot that is there before the run."""
    ask(server, lambda client: client.apply(shoot("there"), manager="test"))
    yield "there"
    ask(server, lambda client: client.delete(resources.SHOOT, "there", NAMESPACE))


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "garden.kubeconfig"
    path.write_text(json.dumps(server.kubeconfig(ADMIN)))
    return path


@pytest.fixture
def run(server: ApiServer, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command with planted tests."""

    async def open_shoot(_: KubeClient, __: str, ___: str) -> KubeClient:
        return server.client()

    monkeypatch.setattr(command, "_shoot_client", open_shoot)

    def start(*arguments: str, tests: tuple[GardenTest, ...] = ()) -> Result:
        monkeypatch.setattr(command, "TESTS", tests)
        given = ("--garden", kubeconfig, "--project", "local", "--dump", tmp_path / "dump", *arguments)
        return CliRunner().invoke(command.test, [str(each) for each in given])

    return start


@garden_test("a namespace is used", Label.DEFAULT, timeout=60)
async def good(context: Context) -> None:
    async with context.own_namespace("good") as name:
        await (await context.cluster()).get(resources.NAMESPACE, name)


@garden_test("a password is right", Label.DEFAULT, timeout=60)
async def leaky(context: Context) -> None:
    """Leaves a namespace with a Secret, whose value an event, a ConfigMap and the error repeat."""
    cluster = await context.cluster()
    await cluster.apply(namespace("leaky", **{RUN_LABEL: context.run}), manager=MANAGER)
    place = {"name": "password", "namespace": "leaky"}
    data = {"password": base64.b64encode(PASSWORD.encode()).decode()}
    await cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": place, "data": data}, manager=MANAGER)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "login", "namespace": "leaky"},
        "involvedObject": {"kind": "Pod", "namespace": "leaky"},
        "message": f"password {PASSWORD} was refused",
    }
    await cluster.apply(event, manager=MANAGER)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**place, "annotations": {"login": f"admin:{PASSWORD}"}},
        "spec": {"ports": [{"port": 1}]},
    }
    await cluster.apply(service, manager=MANAGER)
    raise TestFailed("the password was refused")


@garden_test("a seed is there", Label.DEFAULT, timeout=60)
async def skipped(context: Context) -> None:
    context.needs_seed()


@garden_test("never ends", Label.DEFAULT, timeout=0.2)
async def endless(_: Context) -> None:
    await asyncio.Event().wait()


@garden_test("has a fault of its own", Label.DEFAULT, timeout=60)
async def faulty(_: Context) -> None:
    raise KeyError("status")


def namespaces_of(server: ApiServer, run_id: str) -> list[Any]:
    found: list[Any] = ask(server, lambda client: client.list(resources.NAMESPACE, labels=f"{RUN_LABEL}={run_id}"))
    return found


def annotations(server: ApiServer, name: str) -> dict[str, str]:
    live = ask(server, lambda client: client.get(resources.SHOOT, name, NAMESPACE))
    return live["metadata"].get("annotations") or {}


def test_run_without_faults_succeeds_and_leaves_nothing(run, server, existing):
    result = run("--shoot", existing, "-o", "json", tests=(good, skipped))

    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [(each["name"], each["outcome"]) for each in told["tests"]] == [
        ("a namespace is used", "passed"),
        ("a seed is there", "skipped"),
        ("all that the run has created is deleted", "passed"),
    ]
    assert namespaces_of(server, told["run"]) == []
    assert USED_BY not in annotations(server, existing)


def test_failed_run_has_status_1_and_dumps_without_values_of_secrets(run, server, existing, tmp_path):
    """An attack, too: a reader of the dump, for example in a CI system, gets no credentials."""
    result = run("--shoot", existing, "-o", "json", tests=(leaky, good))

    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    first = told["tests"][0]
    assert (first["outcome"], first["text"]) == ("failed", "the password was refused")
    assert first["dump"] in result.stderr
    files = {path.relative_to(first["dump"]).as_posix(): path.read_text() for path in Path(first["dump"]).rglob("*.*")}
    encoded = base64.b64encode(PASSWORD.encode()).decode()
    assert [name for name, text in files.items() if PASSWORD in text or encoded in text] == []
    for file in ("cluster/events.json", "cluster/services.json", "cluster/secrets.json"):
        assert "(redacted)" in files[file], file
    assert {each["metadata"]["name"] for each in json.loads(files["garden/shoots.json"])} == {existing}
    for directory in (Path(first["dump"]), Path(first["dump"]).parent):
        assert directory.stat().st_mode & 0o077 == 0
    assert Path(first["dump"]).parent == tmp_path / f"dump/gardener-test-{told['run']}"
    assert namespaces_of(server, told["run"]) == []


def test_dump_has_no_logs_if_the_secrets_cannot_be_read(server, tmp_path, monkeypatch):
    """Values of the Secrets are not known then, so the logs could have them."""
    dump = Dump(tmp_path / "dump")

    async def read(client: KubeClient) -> None:
        await client.apply(namespace("unread"), manager="test")
        account = {"name": "default", "namespace": "unread"}
        await client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, manager="test")
        pod = {"name": "logging", "namespace": "unread"}
        containers = [{"name": "main", "image": "any"}]
        spec = {"containers": containers, "automountServiceAccountToken": False}
        await client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec}, manager="test")
        list_objects = client.list

        async def refusing(resource: Any, *arguments: Any, **options: Any) -> Any:
            if resource == resources.SECRET:
                raise Forbidden(403, "Forbidden", "listing secrets")
            return await list_objects(resource, *arguments, **options)

        monkeypatch.setattr(client, "list", refusing)
        await dump.read_cluster(client)
        dump.write()

    ask(server, read)
    unreadable = (tmp_path / "dump/unreadable.txt").read_text()
    assert "listing secrets" in unreadable
    assert "cluster: logs are left out" in unreadable
    assert "logging" in (tmp_path / "dump/cluster/pods.json").read_text()
    assert not (tmp_path / "dump/cluster/logs").exists()
    assert "cluster/logs" not in unreadable, "no log was asked for"


def test_dump_that_cannot_be_written_does_not_end_the_run(run, server, existing, tmp_path):
    result = run("--shoot", existing, "-o", "json", "--dump", str(tmp_path / "new"), tests=(good,))
    assert result.exit_code == 0, result.output
    (tmp_path / "new").write_text("")
    result = run("--shoot", existing, "-o", "json", "--dump", str(tmp_path / "new/below"), tests=(faulty, good))
    assert result.exit_code == 1
    told = json.loads(result.stdout)["tests"]
    assert "not written" in told[0]["dump"]
    assert [each["outcome"] for each in told] == ["failed", "passed", "passed"]


def test_each_fault_fails_its_test_alone(run, existing, tmp_path):
    xml = tmp_path / "results.xml"
    result = run("--shoot", existing, "--junit", str(xml), tests=(endless, faulty, good))

    assert result.exit_code == 1
    for text in ("no end within 0.2 s", "KeyError: 'status'", "2 passed, 2 failed, 0 skipped"):
        assert text in result.output
    suite = ElementTree.fromstring(xml.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "0")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == [endless.name, faulty.name]


def test_shoot_of_a_manifest_is_deleted_though_its_creation_fails(run, server, tmp_path, monkeypatch):
    """No gardenlet reconciles it, so its creation does not end."""
    monkeypatch.setattr(command, "_CREATION_SECONDS", 1.0)
    manifest = tmp_path / "shoot.json"
    manifest.write_text(json.dumps(shoot("made")))
    result = run("--filename", str(manifest), "-o", "json", tests=(good,))

    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)["tests"]
    assert [(each["name"], each["outcome"]) for each in told] == [
        ("the Shoot is created", "failed"),
        ("a namespace is used", "skipped"),
        ("all that the run has created is deleted", "passed"),
    ]
    assert ask(server, lambda client: client.find(resources.SHOOT, "made", NAMESPACE)) is None


def test_shoot_that_exists_is_not_deleted_for_a_manifest_with_its_name(run, server, existing, tmp_path):
    manifest = tmp_path / "shoot.json"
    manifest.write_text(json.dumps(shoot(existing)))
    result = run("--filename", str(manifest), tests=(good,))

    assert result.exit_code == 1
    assert ask(server, lambda client: client.find(resources.SHOOT, existing, NAMESPACE)) is not None


def test_leftovers_of_a_killed_run_are_found_by_its_id(run, server, existing):
    result = run("--shoot", existing, "--keep", "-o", "json", tests=(leaky,))
    left = json.loads(result.stdout)["run"]
    ask(server, lambda client: client.apply(labelled("made-by-run", left), manager="test"))
    ask(server, lambda client: client.apply(labelled("of-another-run", "other"), manager="test"))

    second = run("--shoot", existing, tests=(good,))
    assert second.exit_code == 1
    assert "passed" not in second.output
    assert f"--cleanup {left}" in second.output

    cleaned = run("--cleanup", left, "-o", "json")
    assert cleaned.exit_code == 0, cleaned.output
    assert len(json.loads(cleaned.stdout)["removed"]) == 2
    assert namespaces_of(server, left) == []
    assert USED_BY not in annotations(server, existing)
    assert ask(server, lambda client: client.find(resources.SHOOT, "made-by-run", NAMESPACE)) is None
    assert ask(server, lambda client: client.find(resources.SHOOT, "of-another-run", NAMESPACE)) is not None
    ask(server, lambda client: client.delete(resources.SHOOT, "of-another-run", NAMESPACE))
    assert "nothing is left" in run("--cleanup", left).output


def labelled(name: str, run_id: str) -> dict[str, Any]:
    made = shoot(name)
    made["metadata"]["labels"] = {RUN_LABEL: run_id}
    return made


def test_cleanup_names_what_it_could_not_remove(run, server, existing, monkeypatch):
    left = json.loads(run("--shoot", existing, "--keep", "-o", "json", tests=(leaky,)).stdout)["run"]

    async def unreachable(*_: object) -> KubeClient:
        raise TestFailed("the API server of the Shoot does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(command, "_shoot_client", unreachable)
        result = run("--cleanup", left)
    assert result.exit_code == 1
    assert "garden-local/there: the API server of the Shoot does not answer" in result.output
    assert annotations(server, existing)[USED_BY] == left, "the next --cleanup finds it again"
    assert run("--cleanup", left).exit_code == 0


def test_two_runs_do_not_claim_one_shoot(server, existing):
    async def both(client: KubeClient) -> list[Any]:
        claims = (leftovers.claim(client, NAMESPACE, existing, each) for each in ("one", "two"))
        return await asyncio.gather(*claims, return_exceptions=True)

    found = ask(server, both)
    assert [type(each) for each in found if each is not None] == [TestFailed]


def test_shoot_that_cannot_be_reached_does_not_end_the_removal(server, kubeconfig, existing):
    """A name that is not in the DNS, or an API server without subresources, is a fault of one Shoot."""
    lost = "0123abcd"
    ask(server, lambda client: leftovers.claim(client, NAMESPACE, existing, lost))
    ask(server, lambda client: client.apply(labelled("zz-made", lost), manager="test"))
    arguments = ["--garden", str(kubeconfig), "--project", "local", "--cleanup", lost]
    result = CliRunner().invoke(command.test, arguments)

    assert result.exit_code == 1
    assert "does not serve this subresource" in result.output
    assert ask(server, lambda client: client.find(resources.SHOOT, "zz-made", NAMESPACE)) is None


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_removes_what_it_has_created(server, existing, kubeconfig, tmp_path, sent, status):
    program = tmp_path / "run.py"
    program.write_text(
        "import asyncio, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background process ignores it
        "from tests.gardens import ADMIN\n"
        "from kube.client import KubeClient\n"
        "from workers.cli import garden_test as command\n"
        "from workers.cli.garden_tests.model import Label, garden_test\n"
        "@garden_test('waits', Label.DEFAULT, timeout=100)\n"
        "async def waits(context):\n"
        "    async with context.own_namespace('waits') as name:\n"
        "        print('made', name, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        f"async def open_shoot(*_): return KubeClient.from_kubeconfig({str(kubeconfig)!r})\n"
        "command.TESTS = (waits,)\n"
        "command._shoot_client = open_shoot\n"
        "command.test()\n"
    )
    arguments = ("--garden", kubeconfig, "--project", "local", "--shoot", existing)
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        made = next(line for line in process.stdout if line.startswith("made "))
        process.send_signal(sent)
        rest = process.stdout.read()
    assert process.returncode == status, rest
    assert "passed   all that the run has created is deleted" in rest
    assert ask(server, lambda client: client.find(resources.NAMESPACE, made.split()[1])) is None
    assert USED_BY not in annotations(server, existing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shoot", "a", "--labels", "quick"), "default, beta, release, serial, disruptive"),
        ((), "--shoot, or one to create by --filename"),
        (("--cleanup", "any,other=label"), "no id of a run"),
        (("--shoot", "missing"), "missing"),
    ],
)
def test_wrong_options_are_refused(run, arguments, message):
    result = run(*arguments, tests=(good,))
    assert result.exit_code in (1, 2)
    assert message in result.output


def test_unknown_project_is_named(kubeconfig):
    arguments = ["--garden", str(kubeconfig), "--project", "other", "--shoot", "a"]
    result = CliRunner().invoke(command.test, arguments)
    assert result.exit_code == 1
    assert "Project other does not exist" in result.output


def test_skipped_is_no_failure():
    assert not issubclass(TestSkipped, TestFailed)

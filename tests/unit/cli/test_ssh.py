"""``gardener shoot ssh``: what it makes, what it runs, what it refuses, and what it leaves."""

import asyncio
import base64
import copy
import json
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from tests.unit.api.shoots import SHOOT, changed
from tests.unit.kube.api_server import ApiServer, refuse
from workers.cli import ssh
from workers.cli.main import gardener

SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
BASTIONS = "/apis/operations.gardener.cloud/v1alpha1/bastions"
SECRETS, NODES = "/api/v1/secrets", "/api/v1/nodes"
NODE_KEY = "-----BEGIN PRIVATE KEY-----\nnode-key\n-----END PRIVATE KEY-----\n"
DELETED = {
    "name": "demo",
    "namespace": "garden-local",
    "deletionTimestamp": "2026-01-01T00:00:00Z",
    "finalizers": ["gardener"],
}
KEPT = {"gardener.cloud/operation": "keepalive"}

# A program in place of ssh. It notes how it is called, and what it finds: names, modes and contents of the files.
SSH = """#!/bin/sh
exec python3 - "$@" <<'END'
import json, os, sys
from pathlib import Path
log, config = Path(os.environ["SSH_LOG"]), Path(sys.argv[sys.argv.index("-F") + 1])
files = {each.name: [each.stat().st_mode & 0o777, each.read_text()] for each in config.parent.iterdir()}
call = {"arguments": sys.argv[1:], "files": files, "mode": config.parent.stat().st_mode & 0o777}
with log.open("a") as file:
    file.write(json.dumps(call) + "\\n")
login = "BatchMode=yes" in sys.argv
if login and len(log.read_text().splitlines()) <= int(os.environ.get("SSH_REFUSED", "0")):
    sys.exit("Permission denied (publickey).")
if not login:
    print("on the node")
    sys.exit(int(os.environ.get("SSH_STATUS", "0")))
END
"""


class Machine:
    """The caller's machine, with a garden, and a program in place of ssh."""

    def __init__(self, garden: ApiServer, directory: Path) -> None:
        self.garden = garden
        self.directory = directory
        self.environment = {
            "GARDEN_KUBECONFIG": str(directory / "kubeconfig"),
            "PATH": f"{directory}/bin:/usr/bin:/bin",
            "SSH_LOG": str(directory / "log"),
        }

    async def run(self, *arguments: str, **environment: str) -> Result:
        runner = CliRunner(env=self.environment | environment)
        argv = ["shoot", "ssh", "demo", "-n", "garden-local", "--cidr", "203.0.113.7/32", *arguments]
        return await asyncio.to_thread(runner.invoke, gardener, argv)

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.directory / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def bastions(self) -> list[dict[str, Any]]:
        return [each for (path, _, _), each in self.garden.objects.items() if path == BASTIONS]

    @property
    def left(self) -> list[str]:
        return [each.name for each in (self.directory / "tmp").iterdir()]


def node(name: str, *addresses: str) -> dict[str, Any]:
    listed = [{"type": "Hostname", "address": name}, *({"type": "InternalIP", "address": each} for each in addresses)]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"addresses": listed}}


def key_pair(name: str, key: str) -> dict[str, Any]:
    data = {"id_rsa": base64.b64encode(key.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "garden-local"}, "data": data}


def of_the_shoot(garden: ApiServer) -> Callable[[web.Request], web.Response | None]:
    """The subresource with a kubeconfig of the Shoot, whose nodes are in the same server."""

    def answer(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/shoots/demo/viewerkubeconfig"):
            return None
        config = base64.b64encode(garden.kubeconfig().encode()).decode()
        return web.json_response({"spec": {"expirationSeconds": 600}, "status": {"kubeconfig": config}})

    return answer


@pytest.fixture
async def garden(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(ssh, "_BETWEEN_LOGINS_SECONDS", 0.01)
    async with ApiServer().running() as garden:
        garden.put(SHOOTS, copy.deepcopy(SHOOT))
        garden.put(SECRETS, key_pair("demo.ssh-keypair", NODE_KEY))
        garden.put(NODES, node("node-a", "10.0.0.1"))
        garden.answer = of_the_shoot(garden)
        yield garden


@pytest.fixture
def machine(garden: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for each in ("bin", "tmp"):
        (tmp_path / each).mkdir()
    program = tmp_path / "bin/ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    (tmp_path / "kubeconfig").write_text(garden.kubeconfig())
    return Machine(garden, tmp_path)


Serve = Callable[..., Awaitable[None]]


@pytest.fixture
async def seed(garden: ApiServer) -> AsyncIterator[dict[str, Any]]:
    """The seed, which reports this status for each new Bastion."""
    status: dict[str, Any] = {
        "conditions": [{"type": "BastionReady", "status": "True", "message": "The bastion has been reconciled."}],
        "ingress": {"ip": "198.18.4.1"},
        "expirationTimestamp": "2026-11-26T02:00:00Z",
    }

    async def report() -> None:
        while True:
            for (path, namespace, name), found in list(garden.objects.items()):
                if path == BASTIONS and "status" not in found:
                    garden.change(BASTIONS, name, namespace, {"status": status})
            await asyncio.sleep(0.01)

    task = asyncio.create_task(report())
    yield status
    task.cancel()


@pytest.mark.usefixtures("seed")
async def test_a_command_runs_on_the_node_and_its_status_is_returned(machine: Machine) -> None:
    result = await machine.run("--", "uname", "-n", SSH_STATUS="7")

    assert (result.exit_code, result.stdout) == (7, ""), result.output  # ssh writes to our output, not through us
    login, session = machine.calls
    assert login["arguments"][-2:] == ["bastion", "true"]
    assert session["arguments"][2:] == ["--", "node-a", "uname", "-n"]
    assert machine.garden.count("POST", f"{BASTIONS.replace('/bastions', '')}/namespaces/garden-local/bastions") == 1
    assert machine.bastions == []
    assert machine.left == []


@pytest.mark.usefixtures("seed")
async def test_keys_are_in_files_of_the_caller_alone_and_nowhere_else(machine: Machine) -> None:
    result = await machine.run()

    assert result.exit_code == 0, result.output
    session = machine.calls[-1]
    assert session["mode"] == 0o700
    assert {mode for mode, _ in session["files"].values()} == {0o600}
    assert session["files"]["node-0.key"][1] == NODE_KEY
    own = session["files"]["bastion.key"][1]
    load_ssh_private_key(own.encode(), None)
    said = [*session["arguments"], result.output, session["files"]["config"][1]]
    assert not any(key.splitlines()[1] in each for key in (NODE_KEY, own) for each in said)


@pytest.mark.usefixtures("seed")
async def test_each_bastion_has_a_key_of_its_own_and_the_given_sources(machine: Machine) -> None:
    created: list[dict[str, Any]] = []
    put = machine.garden._store

    def note(place: Any, obj: dict[str, Any]) -> dict[str, Any]:
        if place[0] == BASTIONS and "status" not in obj:
            created.append(copy.deepcopy(obj))
        return put(place, obj)

    machine.garden._store = note  # type: ignore[method-assign]
    for _ in range(2):
        assert (await machine.run("--cidr", "192.0.2.9/24")).exit_code == 0

    one, other = (each["spec"] for each in created)
    assert one["shootRef"] == {"name": "demo"}
    assert [each["ipBlock"]["cidr"] for each in one["ingress"]] == ["203.0.113.7/32", "192.0.2.0/24"]
    assert one["sshPublicKey"].startswith("ssh-ed25519 ")
    assert one["sshPublicKey"] != other["sshPublicKey"]


@pytest.mark.usefixtures("seed")
async def test_the_configuration_leads_through_the_bastion_and_trusts_no_other_files(machine: Machine) -> None:
    machine.garden.put(SECRETS, key_pair("demo.ssh-keypair.old", NODE_KEY))
    await machine.run("node-a")

    config = machine.calls[-1]["files"]["config"][1]
    lines = [line.strip() for line in config.splitlines()]
    assert lines[:2] == ["Host bastion", "HostName 198.18.4.1"]
    directory = machine.calls[-1]["arguments"][1].removesuffix("/config")
    proxy = f"ProxyCommand ssh -F {directory}/config -W [%h]:%p bastion"
    assert lines[3:6] == ["Host node-a", "HostName 10.0.0.1", proxy]
    assert sum("node-" in each for each in lines if each.startswith("IdentityFile")) == 2
    assert {"IdentitiesOnly yes", "IdentityAgent none", "StrictHostKeyChecking accept-new"} <= set(lines)
    [known] = [each for each in lines if each.startswith("UserKnownHostsFile")]
    assert str(machine.directory / "tmp") in known


@pytest.mark.usefixtures("seed")
async def test_it_waits_until_the_bastion_knows_the_key(machine: Machine) -> None:
    result = await machine.run(SSH_REFUSED="2")

    assert result.exit_code == 0, result.output
    assert ["true" in each["arguments"] for each in machine.calls] == [True, True, True, False]


@pytest.mark.usefixtures("seed")
async def test_a_bastion_that_does_not_let_in_is_an_error_with_the_sources(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_LOGIN_SECONDS", 0.1)
    result = await machine.run(SSH_REFUSED="1000")

    assert result.exit_code == 1
    assert "Permission denied (publickey).; it is open to 203.0.113.7/32" in result.output
    assert "--cidr" in result.output
    assert (machine.bastions, machine.left) == ([], [])


@pytest.mark.usefixtures("seed")
async def test_a_session_keeps_its_bastion_alive(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_KEEPALIVE_SECONDS", 0.02)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    subresource = of_the_shoot(machine.garden)

    def answer(request: web.Request) -> web.Response | None:
        if request.method == "PATCH" and "/bastions/" in request.path:
            loop.call_soon_threadsafe(asked.set)
        return subresource(request)

    machine.garden.answer = answer
    # The session lasts until the test has seen a keepalive.
    fifo = machine.directory / "end"
    program = machine.directory / "bin/ssh"
    program.write_text(f"#!/bin/sh\n[ -e {fifo} ] && exit 0\ncase $* in *BatchMode*) exit 0;; esac\n"
                       f"while [ ! -e {fifo} ]; do sleep 0.02; done\n")  # fmt: skip
    running = asyncio.create_task(machine.run())
    await asyncio.wait_for(asked.wait(), 20)
    assert [each["metadata"]["annotations"] for each in machine.bastions] == [KEPT]
    fifo.touch()
    assert (await running).exit_code == 0
    assert machine.bastions == []


@pytest.mark.usefixtures("seed")
async def test_json_makes_a_bastion_and_says_how_to_log_in(machine: Machine) -> None:
    machine.garden.put(NODES, node("node-b", "10.0.0.2"))
    result = await machine.run("-o", "json")

    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    [bastion] = machine.bastions
    assert made["bastion"] == {
        "namespace": "garden-local",
        "name": bastion["metadata"]["name"],
        "ip": "198.18.4.1",
        "expires": "2026-11-26T02:00:00Z",
    }
    assert {each["name"]: each["address"] for each in made["nodes"]} == {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}
    config = Path(made["directory"]) / "config"
    assert made["nodes"][1]["command"] == ["ssh", "-F", str(config), "node-b"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert len(machine.calls) == 1  # the login at the bastion


@pytest.mark.usefixtures("seed")
async def test_a_kept_bastion_stays_with_its_keys(machine: Machine) -> None:
    result = await machine.run("--keep-bastion", "--", "true")

    assert result.exit_code == 0
    [bastion] = machine.bastions
    assert f"{bastion['metadata']['name']} stays until 2026-11-26T02:00:00Z" in result.stderr
    assert machine.left[0] in result.stderr


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.name", "other", "Shoot garden-local/demo does not exist"),
        ("spec.provider.workers", [], "has no worker pools"),
        ("spec.provider.workersSettings", {"sshAccess": {"enabled": False}}, "sshAccess.enabled is false"),
        ("spec.hibernation", {"enabled": True}, "is hibernated"),
        ("status", {"hibernated": True}, "is hibernated"),
        ("metadata", DELETED, "is being deleted"),
    ],
)
async def test_a_shoot_without_reachable_nodes_is_an_error(machine: Machine, path: str, value: Any, said: str) -> None:
    machine.garden.remove(SHOOTS, "demo", "garden-local")
    machine.garden.put(SHOOTS, changed(SHOOT, path, value))
    result = await machine.run()

    assert result.exit_code == 1
    assert said in result.output
    assert not any(method == "POST" for method, _ in machine.garden.requests)


async def test_a_viewer_is_told_which_right_is_missing(machine: Machine) -> None:
    def answer(request: web.Request) -> web.Response | None:
        return refuse(403, "Forbidden", "no") if "/secrets/" in request.path else None

    machine.garden.answer = answer
    result = await machine.run()
    assert result.exit_code == 1
    assert "you may not read Secret garden-local/demo.ssh-keypair" in result.output
    assert machine.bastions == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-node"], "has no node no-such-node; its nodes: node-a, node-b"),
        ([], "has 2 nodes: name one of node-a, node-b"),
    ],
)
async def test_it_must_be_clear_which_node_is_meant(machine: Machine, arguments: list[str], said: str) -> None:
    machine.garden.put(NODES, node("node-b", "10.0.0.2"))
    result = await machine.run(*arguments)

    assert result.exit_code == 1
    assert said in result.output
    assert machine.bastions == []


@pytest.mark.usefixtures("seed")
async def test_an_address_is_taken_without_asking_the_cluster(machine: Machine) -> None:
    """The API server of a cluster that does not work may be the reason to look at a node."""
    machine.garden.answer = lambda request: refuse(500, "InternalError", "") if "viewer" in request.path else None
    result = await machine.run("10.0.0.9", "--", "true")

    assert result.exit_code == 0, result.output
    assert "HostName 10.0.0.9" in machine.calls[-1]["files"]["config"][1]


@pytest.mark.parametrize("address", ["10.0.0.1\n  ProxyCommand touch /tmp/x", "10.0.0.1 -oProxyCommand=x", "evil;id"])
async def test_an_address_that_the_cluster_makes_up_does_not_reach_the_configuration(
    machine: Machine, address: str
) -> None:
    machine.garden.put(NODES, node("node-a", address))
    result = await machine.run()

    assert result.exit_code == 1
    assert "has no nodes with an address" in result.output


@pytest.mark.parametrize("ingress", [{"hostname": "a b\n  ProxyCommand x"}, {"hostname": "-oProxyCommand=x"}, {}])
async def test_an_address_that_the_seed_makes_up_does_not_either(
    machine: Machine, seed: dict[str, Any], ingress: dict[str, str]
) -> None:
    seed["ingress"] = ingress
    result = await machine.run()

    assert result.exit_code == 1
    assert "has no usable address" in result.output
    assert (machine.calls, machine.bastions, machine.left) == ([], [], [])


async def test_an_error_that_no_retry_mends_ends_the_wait(machine: Machine, seed: dict[str, Any]) -> None:
    seed["conditions"] = [
        {"type": "BastionReady", "status": "False", "message": "no", "codes": ["ERR_CONFIGURATION_PROBLEM"]}
    ]
    result = await machine.run()

    assert result.exit_code == 1
    assert "cannot be made: no" in result.output
    assert machine.bastions == []


async def test_a_refused_bastion_ends_with_the_reason(machine: Machine) -> None:
    subresource = of_the_shoot(machine.garden)

    def answer(request: web.Request) -> web.Response | None:
        if request.method == "POST" and request.path.endswith("/bastions"):
            return refuse(403, "Forbidden", "no extension is registered for Bastion; registered: []")
        return subresource(request)

    machine.garden.answer = answer
    result = await machine.run()
    assert result.exit_code == 1
    assert "no extension is registered for Bastion" in result.output


async def test_a_garden_on_this_machine_does_not_tell_the_address(machine: Machine) -> None:
    runner = CliRunner(env=machine.environment)
    result = await asyncio.to_thread(runner.invoke, gardener, ["shoot", "ssh", "garden-local/demo"])

    assert result.exit_code == 1
    assert "say it by --cidr" in result.output
    assert machine.bastions == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo"], "give -n NAMESPACE, or NAMESPACE/NAME"),
        (["garden-a/demo", "-n", "garden-b"], "garden-a/demo is not in namespace garden-b"),
        (["garden-a/demo", "--cidr", "all"], "203.0.113.7/32"),
        (["garden-a/demo", "-o", "json", "--", "true"], "runs no command"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(gardener, ["shoot", "ssh", *arguments])

    assert result.exit_code == 2
    assert said in result.output

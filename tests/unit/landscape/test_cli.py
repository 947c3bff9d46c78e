"""The command's answers where there is no landscape."""

import json

import pytest
from click.testing import CliRunner

from landscape import lifecycle
from landscape import plan as plans
from landscape.cli import landscape
from landscape.errors import LandscapeError
from landscape.plan import Plan


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "STATE_HOME", tmp_path)
    monkeypatch.setattr(lifecycle, "require", lambda name: _require(name, tmp_path))
    return lambda *arguments: CliRunner().invoke(landscape, arguments)


def _require(name, state_home):
    plan = plans.load(name, state_home)
    if plan is None:
        raise LandscapeError(f"there is no landscape {name!r}: run `gardener landscape up --name {name}`")
    return plan


@pytest.fixture
def plan(tmp_path):
    plan = Plan("mine", 1, "1.37.1", state_home=tmp_path)
    plan.save()
    return plan


@pytest.mark.parametrize(
    "command",
    ["status", "kubeconfig garden", "kill seed-1/kubelet", "cut seed-1", "logs temporal", "node-logs", "push a.tar"],
)
def test_without_a_landscape_the_command_says_how_to_get_one(run, command):
    first, *rest = command.split()
    result = run(first, "--name", "mine", *rest)

    assert result.exit_code == 1
    assert "run `gardener landscape up --name mine`" in result.output


def test_status_has_what_scripts_read(run, plan):
    result = run("status", "--name", "mine", "-o", "json")

    state = json.loads(result.stdout)
    assert state["temporal"]["address"] == "198.18.16.1:7233"
    assert state["temporal"]["ui"] == "http://198.18.16.1:8233"
    assert set(state["clusters"]) == {"garden", "cloud", "seed-1", "seed-2"}
    for cluster in state["clusters"].values():
        assert {"kubeconfig", "server", "ready"} <= set(cluster)
    assert state["processes"] == {}
    assert state["ready"] is False


def test_the_kubeconfig_and_its_path(run, plan):
    file = plan.kubeconfig("seed-1")
    file.parent.mkdir(parents=True)
    file.write_text("kind: Config\n")

    assert run("kubeconfig", "--name", "mine", "seed-1", "--path").stdout.strip() == str(file)
    assert run("kubeconfig", "--name", "mine", "seed-1").stdout == "kind: Config\n"
    assert json.loads(run("kubeconfig", "--name", "mine", "seed-1", "-o", "json").stdout) == {"kind": "Config"}


def test_an_unknown_process_or_cluster_is_named(run, plan):
    assert "no process 'seed-1/kubelet': there are none" in run("kill", "--name", "mine", "seed-1/kubelet").output
    assert "no cluster 'seed-9'" in run("kubeconfig", "--name", "mine", "seed-9").output


def test_only_root_can_bring_it_up(run, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    result = run("up", "--name", "mine")

    assert result.exit_code == 1
    assert "run it as root" in result.output


@pytest.mark.parametrize("address", ["temporal.example.org", "7233", ":7233", "127.0.0.1:grpc"])
def test_an_address_of_temporal_has_a_host_and_a_port(run, address):
    result = run("up", "--name", "mine", "--temporal", address)

    assert result.exit_code == 2
    assert f"'{address}' is no HOST:PORT, like 127.0.0.1:7233" in result.output

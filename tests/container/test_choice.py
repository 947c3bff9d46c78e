"""Where `make demo` runs, and what it asks of the engine: everything but the engine itself, which is a fake."""

import io
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from landscape.container.outside import from_outside

ROOT = Path(__file__).parents[2]
_COMMANDS = ("cat", "dirname", "head", "make", "printenv", "python3", "rm", "sh", "tail", "tar")

# Keeps what it is asked, a line each, and the one container that it has.
_DOCKER = """#!/bin/sh
echo "$*" >> asked
case "$*" in
    info*) [ ! -e silent ] || { echo "Cannot connect to the Docker daemon" >&2; exit 1; }
        cat security 2>/dev/null || true ;;
    "container inspect"*) cat container 2>/dev/null || { echo; exit 1; } ;;
    "start "*) echo true > container ;;
    "rm "*) rm container ;;
    "run "*) echo true > container ;;
    "build "*) cat > context.tar ;;
    "port "*) echo 127.0.0.1:49153 ;;
    *landscape.container.outside*) echo "apiVersion: v1" ;;
    "exec --interactive gardener-"*) cat > checkout.tar ;;
esac
"""


@dataclass
class Machine:
    """A checkout on a machine with few commands, and a user."""

    path: Path
    system: str = "Linux"
    user: int = 1000

    def make(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        for program, answer in (("id", self.user), ("uname", self.system)):
            self.install(program, f"#!/bin/sh\necho {answer}\n")
        path = {"PATH": str(self.path / "bin"), "HOME": str(self.path)}
        command = ["make", "--no-print-directory", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=path | environment, capture_output=True, text=True, check=False
        )

    def install(self, command: str, script: str) -> None:
        file = self.path / "bin" / command
        file.write_text(script)
        file.chmod(0o755)

    @property
    def asked(self) -> str:
        """Requests that the engine got."""
        return (self.path / "asked").read_text()

    def sent(self, name: str) -> set[str]:
        """Content of an archive that the engine got."""
        return set(tarfile.open(fileobj=io.BytesIO((self.path / name).read_bytes())).getnames())


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    (tmp_path / "bin").mkdir()
    for command in _COMMANDS:
        (tmp_path / "bin" / command).symlink_to(shutil.which(command) or "")
    for file in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / file, tmp_path)
    shutil.copytree(ROOT / "landscape/container", tmp_path / "landscape/container")
    shutil.copy(ROOT / "landscape/packages.sh", tmp_path / "landscape")
    return Machine(tmp_path)


@pytest.fixture
def machine(bare: Machine) -> Machine:
    bare.install("docker", _DOCKER)
    return bare


def test_root_on_linux_needs_no_engine(bare):
    bare.user = 0

    done = bare.make("-n", "demo", "landscape", "status", "down")

    assert done.returncode == 0
    assert "gardener demo --name default" in done.stdout
    assert "run.sh" not in done.stdout


@pytest.mark.parametrize(
    ("system", "user", "arguments"), [("Linux", 1000, ()), ("Darwin", 0, ()), ("Linux", 0, ("IN_CONTAINER=1",))]
)
def test_other_users_and_users_that_ask_for_it_get_a_container(bare, system, user, arguments):
    bare.system, bare.user = system, user

    done = bare.make("-n", "demo", "NAME=a", *arguments)

    assert done.stdout == "landscape/container/run.sh demo a\n"


def test_without_an_engine_the_command_names_what_is_needed(bare):
    done = bare.make("demo")

    assert done.returncode != 0
    assert "sudo make demo" in done.stderr
    assert "this is Linux, you are user 1000, and there is no docker command" in done.stderr


def test_an_engine_that_does_not_answer_is_not_used(machine):
    (machine.path / "silent").touch()

    done = machine.make("demo")

    assert done.returncode != 0
    assert "docker does not answer (Cannot connect to the Docker daemon)" in done.stderr
    assert "run " not in machine.asked


def test_an_engine_without_root_is_refused(machine):
    """It would start the container, which then could not make a device, nor set a kernel's limit."""
    (machine.path / "security").write_text("[name=seccomp,profile=default name=rootless]")

    done = machine.make("demo")

    assert done.returncode != 0
    assert "this engine runs without root, which a landscape needs" in done.stderr
    assert "run " not in machine.asked


def test_demo_runs_in_a_container_of_its_own(machine):
    (machine.path / "src.py").touch()
    (machine.path / ".venv").mkdir()
    (machine.path / "shoot.kubeconfig").write_text("of the last time")

    done = machine.make("demo")

    assert done.returncode == 0, done.stderr
    [run] = re.findall("^run .*", machine.asked, re.MULTILINE)
    for argument in ("--privileged", "--cgroupns=private", "--init", "--name gardener-default"):
        assert argument in run.split(" --env")[0]
    assert "--volume gardener-cache:/root" in run
    assert "_PROXY" not in run
    assert "exec gardener-default make --no-print-directory demo NAME=default VENV=/venv" in machine.asked
    assert machine.sent("context.tar") == {"packages.sh", "container/Dockerfile"}
    sent = machine.sent("checkout.tar")
    assert {"./src.py", "./Makefile"} <= sent
    assert not {"./.venv", "./shoot.kubeconfig"} & sent
    assert (machine.path / "shoot.kubeconfig").read_text() == "apiVersion: v1\n"
    assert (machine.path / "shoot.kubeconfig").stat().st_mode & 0o777 == 0o600
    assert "Temporal UI:  http://127.0.0.1:49153" in done.stdout


def test_a_container_that_runs_is_used_again(machine):
    machine.make("demo")
    machine.make("demo")

    assert len(re.findall("^run ", machine.asked, re.MULTILINE)) == 1
    assert len(re.findall("^build ", machine.asked, re.MULTILINE)) == 1


def test_a_landscape_of_a_stopped_container_is_created_again(machine):
    """Its processes are gone, and what was mounted."""
    (machine.path / "container").write_text("false\n")

    done = machine.make("demo")

    assert "it is created again" in done.stdout
    assert machine.asked.index("gardener landscape down") < machine.asked.index(" demo NAME=default")


def test_a_container_without_a_landscape_is_removed(machine):
    """The user gave up while packages were installed."""
    machine.install("docker", _DOCKER.replace('"port "*)', '*" test -x "*) exit 1 ;;\n    "port "*)'))
    (machine.path / "container").write_text("true\n")

    done = machine.make("down")

    assert done.returncode == 0, done.stderr
    assert "gardener landscape down" not in machine.asked
    assert "rm --force gardener-default" in machine.asked


def test_a_failure_in_the_container_fails_the_command(machine):
    """No address of a missing landscape is printed."""
    machine.install("docker", _DOCKER.replace('"port "*)', '*" demo "*) exit 7 ;;\n    "port "*)'))

    done = machine.make("demo")

    assert done.returncode != 0
    assert "Temporal UI" not in done.stdout


def test_proxies_and_authorities_are_passed_into_the_container(machine):
    machine.make(
        "demo",
        HTTPS_PROXY="http://proxy.example.org:3128",
        PIP_INDEX_URL="https://pypi.example.org/simple",
        GARDENER_ENGINE_CACHE="/srv/cache",
        GARDENER_ENGINE_ARGS="--volume /etc/ssl/certs/ca.crt:/etc/ssl/certs/ca-certificates.crt:ro",
        GARDENER_ENGINE_BUILD_ARGS="--network host",
    )

    [build] = re.findall("^build .*", machine.asked, re.MULTILINE)
    assert "--build-arg HTTPS_PROXY" in build
    assert build.endswith("--network host -")
    [run] = re.findall("^run .*", machine.asked, re.MULTILINE)
    for argument in (
        "--env HTTPS_PROXY",
        "--env NO_PROXY",
        "--env PIP_INDEX_URL",
        "--volume /srv/cache:/root",
        "ca.crt:",
    ):
        assert argument in run
    assert "GOPROXY" not in run


def test_status_of_nothing_says_how_to_begin(machine):
    done = machine.make("status")

    assert done.returncode != 0
    assert "there is no landscape default: no container gardener-default runs; make demo makes one" in done.stderr


def test_down_removes_the_landscape_then_its_container(machine):
    machine.make("demo")

    done = machine.make("down")

    assert done.returncode == 0, done.stderr
    assert machine.asked.index("gardener landscape down --name default") < machine.asked.index(
        "rm --force gardener-def"
    )
    assert not (machine.path / "shoot.kubeconfig").exists()
    assert "docker volume rm gardener-cache" in done.stdout
    assert machine.make("down").stdout == "there is no landscape default: no container gardener-default\n"


def test_a_container_that_stopped_is_started_to_take_its_landscape_down(machine):
    """Its state lies in the volume, which outlives it."""
    (machine.path / "container").write_text("false\n")

    done = machine.make("down")

    assert done.returncode == 0, done.stderr
    assert machine.asked.index("start gardener-default") < machine.asked.index("gardener landscape down")


def test_the_image_is_debian_with_the_packages_of_packages_sh():
    lines = (ROOT / "landscape/container/Dockerfile").read_text().splitlines()

    assert [line for line in lines if line.startswith("FROM")] == ["FROM debian:12"]
    assert any("packages.sh container" in line for line in lines)


def test_in_an_empty_image_everything_is_missing(bare):
    """The empty image also lacks make and Python, which other callers of packages.sh have."""
    for program in ("make", "python3"):
        (bare.path / "bin" / program).unlink()
    (bare.path / "bin/id").write_text("#!/bin/sh\necho 1000\n")
    (bare.path / "bin/id").chmod(0o755)
    command = ["/bin/sh", bare.path / "landscape/packages.sh", "container"]

    done = subprocess.run(command, env={"PATH": f"{bare.path}/bin"}, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    for package in ("python3-venv", "make"):
        assert f" {package} " in done.stderr


def test_a_kubeconfig_for_outside_still_checks_the_servers_name():
    cluster = {
        "server": "https://198.18.2.2:443",
        "tls-server-name": "api.demo.test",
        "certificate-authority-data": "Cg==",
    }
    other = {"server": "https://198.18.2.2:443", "tls-server-name": "api.demo.internal.test"}
    config = {
        "current-context": "a",
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in ("a", "b")],
        "clusters": [{"name": "a", "cluster": cluster}, {"name": "b", "cluster": other}],
    }

    outside, inside = from_outside(config, "127.0.0.1:49153")

    assert inside == "198.18.2.2:443"
    assert outside["clusters"] == [{"name": "a", "cluster": {**cluster, "server": "https://127.0.0.1:49153"}}]
    assert [each["name"] for each in outside["contexts"]] == ["a"]
    assert yaml.safe_dump(outside)

"""A container engine: the machine's own, or else Debian's, run for as long as the tests take."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from testcontainers.compose import DockerCompose

NETWORK = "198.18.64.0/18"
"""The networks of its containers, next to those of the landscapes."""
_CGROUPS = Path("/sys/fs/cgroup")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_START_SECONDS = 60
_STOP_SECONDS = 60


class Compose(DockerCompose):
    """By Debian's docker-compose, which is a command of its own."""

    @property
    def compose_command_property(self) -> list[str]:
        return ["docker-compose", "--ansi=never"]

    def stop(self, down: bool = True) -> None:
        """Everything, whichever services were asked for: "down" takes no names."""
        self._run_command([*self.compose_command_property, "down", "--volumes"])


@contextmanager
def engine() -> Iterator[None]:
    """``docker`` and ``docker-compose`` work inside."""
    if _answers():
        yield
        return
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="gardener-engine-"))
        stack.enter_context(_network())
        os.environ["DOCKER_HOST"] = f"unix://{directory}/docker.sock"
        stack.callback(os.environ.pop, "DOCKER_HOST")
        stack.enter_context(_daemon(Path(directory), os.environ["DOCKER_HOST"]))
        yield


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@contextmanager
def _daemon(directory: Path, socket: str) -> Iterator[None]:
    command = [
        shutil.which("dockerd") or "/usr/sbin/dockerd",
        f"--host={socket}",
        f"--data-root={directory}/data",
        f"--exec-root={directory}/run",
        f"--pidfile={directory}/pid",
        "--bip=198.18.64.1/24",
        "--default-address-pool=base=198.18.66.0/23,size=24",
        "--exec-opt=native.cgroupdriver=cgroupfs",
        "--iptables=false",
        "--log-level=warn",
    ]
    log = directory / "dockerd.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers():
            said = log.read_text(errors="replace")[-2000:]
            assert daemon.poll() is None, f"dockerd ended: {said}"
            assert time.monotonic() < deadline, f"dockerd does not answer: {said}"
            time.sleep(0.2)  # the clock of a poll
        yield
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(_STOP_SECONDS)
        for group in (*_CGROUPS.glob("docker"), *_CGROUPS.glob("*/docker")):
            group.rmdir()


@contextmanager
def _network() -> Iterator[None]:
    """Containers reach what the host reaches, by one rule. The engine's own rules would stay behind."""
    rule = ["POSTROUTING", "--source", NETWORK, "!", "--destination", NETWORK, "--jump", "MASQUERADE"]
    forwarded = _FORWARDING.read_text()
    subprocess.run(["iptables", "--table", "nat", "--append", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "--table", "nat", "--delete", *rule], check=True)
        _FORWARDING.write_text(forwarded)
        subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)

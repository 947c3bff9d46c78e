"""The real etcd and kube-apiserver of tests: their programs, their command lines, and their processes.

Fixture ``kubernetes_is_built`` makes sure that the programs exist.
"""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm
from api.images import ETCD_VERSION
from kube.client import KubeClient
from kube.errors import ApiError
from landscape.binaries import KUBERNETES_VERSION
from tests.unit.kube.waiting import until

_CACHED = Path("~/.cache/gardener/landscape/bin").expanduser()
ETCD = _CACHED / f"etcd-{ETCD_VERSION}" / "etcd"
API_SERVER = _CACHED / f"kubernetes-{KUBERNETES_VERSION}" / "kube-apiserver"


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


def etcd_command(url: str) -> list[str]:
    """An etcd for clients at ``url``, which has its data in the directory where it runs.

    It does not wait for the disk: no test ends the machine, and the disk of a shared one may be slow.
    """
    peer = f"http://127.0.0.1:{free_port()}"
    clients = ["--listen-client-urls", url, "--advertise-client-urls", url]
    peers = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"]
    own = ["--data-dir", "data", "--name", "one", "--log-level", "error", "--unsafe-no-fsync"]
    return [str(ETCD), *own, *clients, *peers]


def commands(directory: Path, port: int, tokens: str, *flags: object) -> tuple[list[str], list[str]]:
    """An etcd, and an API server at ``port`` that uses it. Writes the files that the API server needs to ``directory``.

    ``tokens``: content of the file of static tokens. ``flags``: more flags of the API server.
    """
    (directory / "sa.key").write_bytes(crypto.private_pem(crypto.new_key(KeyAlgorithm.P256)))
    (directory / "tokens.csv").write_text(tokens)
    etcd = f"http://127.0.0.1:{free_port()}"
    server = (API_SERVER, "--etcd-servers", etcd, "--secure-port", port, "--bind-address", "127.0.0.1",
              "--cert-dir", "certs", "--token-auth-file", "tokens.csv", "--service-account-issuer", "https://a.test",
              "--service-account-key-file", "sa.key", "--service-account-signing-key-file", "sa.key",
              "--service-cluster-ip-range", "10.0.0.0/24", *flags)  # fmt: skip
    return etcd_command(etcd), [str(each) for each in server]


def kubeconfig(port: int, token: str) -> dict[str, Any]:
    """A kubeconfig for the API server at this port, with a static token."""
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
    }


def client(port: int, token: str) -> KubeClient:
    return KubeClient.from_kubeconfig(kubeconfig(port, token))


async def ready(admin: KubeClient, seconds: float = 90) -> None:
    """Returns once the API server is ready."""

    async def answers() -> bool:
        with contextlib.suppress(ApiError):
            return bool(await admin.request("GET", "/readyz") == "ok")
        await asyncio.sleep(0.1)  # the clock of a poll
        return False

    await until(answers, seconds)


@contextlib.asynccontextmanager
async def process(directory: Path, *command: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in a directory, with its output in a file there, and kill it at the end."""
    with (directory / f"{Path(command[0]).name}.log").open("ab") as log:
        started = await asyncio.create_subprocess_exec(*map(str, command), stdout=log, stderr=log, cwd=directory)
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):  # a test has ended it
                started.kill()
            await started.wait()


@contextlib.contextmanager
def running(directory: Path, *command: str) -> Iterator[None]:
    """``process`` for fixtures that live longer than an event loop."""
    with (directory / f"{Path(command[0]).name}.log").open("ab") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            yield
        finally:
            started.kill()
            started.wait()

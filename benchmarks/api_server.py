"""An etcd and an API server for a benchmark, as processes that no other work uses."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm
from kube.client import KubeClient
from kube.errors import ApiError
from landscape import binaries

_TOKEN = "token-of-the-benchmark"
_START_SECONDS = 180
_END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.asynccontextmanager
async def process(
    directory: Path, *command: str | Path, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process, which logs into a file of ``directory``. It ends with the benchmark, even if that is killed.

    ``environment``: variables beside those of the benchmark.
    """
    with (directory / f"{Path(command[0]).name}.log").open("ab") as log:
        started = await asyncio.create_subprocess_exec(
            *_END_WITH_PARENT,
            *map(str, command),
            stdout=log,
            stderr=log,
            cwd=directory,
            env=os.environ | environment,
        )
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                started.terminate()
            await started.wait()


async def answered(ask: Callable[[], Awaitable[Any]]) -> None:
    """Wait until ``ask`` raises no error of an API server or of a connection. Raises TimeoutError."""
    async with asyncio.timeout(_START_SECONDS):
        while True:
            with contextlib.suppress(ApiError, aiohttp.ClientError, OSError):
                await ask()
                return
            await asyncio.sleep(0.05)


class ApiServer:
    """An API server that trusts ``client``, its administrator.

    ``flags`` and ``environment``: more of those of its process.
    """

    def __init__(self, directory: Path, *flags: str, **environment: str) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self._port = free_port()
        self._flags = flags
        self._environment = environment
        cluster = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "benchmark",
            "contexts": [{"name": "benchmark", "context": {"cluster": "benchmark", "user": "benchmark"}}],
            "clusters": [{"name": "benchmark", "cluster": cluster}],
            "users": [{"name": "benchmark", "user": {"token": _TOKEN}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(kubeconfig))
        (directory / "tokens.csv").write_text(f"{_TOKEN},admin,1,system:masters\n")
        (directory / "sa.key").write_bytes(crypto.private_pem(crypto.new_key(KeyAlgorithm.P256)))
        self.client = KubeClient.from_kubeconfig(kubeconfig)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Runs until the end of the context. Its binaries must be there."""
        etcd, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        here = self.directory
        async with (
            self.client,
            process(
                here,
                *(binaries.etcd().directory / "etcd", "--data-dir", here / "data", "--name", "one"),
                *("--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--log-level", "error"),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"one={peer}", "--unsafe-no-fsync"),
            ),
            process(
                here,
                *(binaries.kubernetes().directory / "kube-apiserver", "--etcd-servers", etcd),
                *("--secure-port", str(self._port), "--bind-address", "127.0.0.1", "--cert-dir", here / "certs"),
                *("--token-auth-file", here / "tokens.csv", "--service-cluster-ip-range", "10.0.0.0/24"),
                *("--service-account-issuer", "https://issuer.test", "--service-account-key-file", here / "sa.key"),
                *("--service-account-signing-key-file", here / "sa.key"),
                *self._flags,
                **self._environment,
            ),
        ):
            await answered(lambda: self.client.request("GET", "/readyz"))
            yield

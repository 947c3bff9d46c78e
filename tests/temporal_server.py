"""The server of a Temporal cluster, all of its services in one process on SQLite, and clients with certificates."""

import asyncio
import contextlib
import secrets
import socket
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from landscape import binaries
from landscape.pki import KeyPair, TemporalAuthority
from landscape.progress import Progress
from workers.lib.temporal import TemporalServer, TemporalTLS, connect_with
from workers.setup import TemporalSetup, set_up_temporal

_START_SECONDS = 60
_SERVICES = ("frontend", "internal-frontend", "history", "matching", "worker")
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Cluster:
    """A running server, and the authority that signs for its clients."""

    address: str
    http_address: str
    inner_addresses: dict[str, str]
    """Where each service answers gRPC."""
    authority: TemporalAuthority
    log: Path

    def server(self, certificate: KeyPair) -> TemporalServer:
        tls = TemporalTLS(
            ca_file=self.authority.of_servers,
            certificate_file=certificate.certificate,
            private_key_file=certificate.key,
        )
        return TemporalServer(address=self.address, tls=tls)

    async def client(self, certificate: KeyPair, token: str | None = None) -> Client:
        return await connect_with(self.server(certificate), pydantic_data_converter, token)

    async def gardenlet(self, seed: str) -> Client:
        return await self.client(self.authority.for_gardenlet(seed))

    async def extension(self, extension: str, seed: str) -> Client:
        return await self.client(self.authority.for_extension(extension, seed))

    async def process(self, name: str = "controller-manager") -> Client:
        return await self.client(self.authority.for_process(name))

    async def person(self, name: str, role: str) -> Client:
        return await self.client(self.authority.for_person(name, role))

    async def by_token(self, token: str | None) -> Client:
        return await self.client(self.authority.for_gateway("ui"), token)

    def refusals(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if "Call refused." in line]


def binary() -> str:
    """Built from ``temporal-server`` if this source was never built: minutes, once."""
    return asyncio.run(binaries.ensure((binaries.temporal_server(),), Progress(quiet=True)))["temporal-server"]


@contextlib.contextmanager
def cluster(*arguments: str) -> Iterator[Cluster]:
    """A cluster with the namespace and the search attributes of ours; ``arguments`` are the server's own."""
    program = binary()
    with tempfile.TemporaryDirectory(prefix="temporal-server-") as made:
        directory = Path(made)
        ports = iter(free_ports(2 * len(_SERVICES) + 1))
        services = {name: {"grpcPort": next(ports), "membershipPort": next(ports)} for name in _SERVICES}
        services["frontend"]["httpPort"] = next(ports)
        authority = TemporalAuthority(directory / "tls")
        (directory / "config.yaml").write_text(yaml.safe_dump(configuration(services, authority)))
        keys = directory / "task-token.keys"
        keys.write_text(f"first {b64encode(secrets.token_bytes(32)).decode()}\n")
        log = directory / "server.log"
        command = [program, f"--config-file={directory}/config.yaml", f"--service={','.join(_SERVICES)}"]
        command += [f"--task-token-keys={keys}", *arguments]
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)
        try:
            made_cluster = Cluster(
                f"{_HOST}:{services['frontend']['grpcPort']}",
                f"{_HOST}:{services['frontend']['httpPort']}",
                {name: f"{_HOST}:{service['grpcPort']}" for name, service in services.items()},
                authority,
                log,
            )
            _wait_until_it_listens(server, services["frontend"]["grpcPort"], log)
            given = made_cluster.server(authority.for_process("setup"))
            try:
                asyncio.run(set_up_temporal(TemporalSetup(address=given.address, tls=given.tls)))
            except TimeoutError as error:
                raise AssertionError(f"{error}: {log.read_text(errors='replace')[-4000:]}") from None
            yield made_cluster
        finally:
            server.terminate()
            server.wait()


def start_refused(directory: Path, change: Callable[[dict[str, Any]], Any], *arguments: str) -> str:
    """What the server says when it ends at once, its configuration changed."""
    services = {name: {"grpcPort": 1, "membershipPort": 1} for name in _SERVICES}
    services["frontend"]["httpPort"] = 1
    changed = configuration(services, TemporalAuthority(directory / "tls"))
    change(changed)
    (directory / "config.yaml").write_text(yaml.safe_dump(changed))
    command = [binary(), f"--config-file={directory}/config.yaml", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_START_SECONDS, check=False)
    assert ended.returncode == 1
    return ended.stderr


def configuration(services: dict[str, dict[str, int]], authority: TemporalAuthority) -> dict[str, Any]:
    pair = authority.for_server("server", [_HOST])
    # One server certificate for all; the authorities are those that examples/compose/temporal-tls.env names.
    group = {
        "server": {
            "requireClientAuth": True,
            "certFile": str(pair.certificate),
            "keyFile": str(pair.key),
            "clientCaFiles": [str(authority.of_clients), str(authority.of_servers)],
        },
        "client": {"serverName": _HOST, "rootCaFiles": [str(authority.of_servers)]},
    }
    store = {
        "sql": {
            "pluginName": "sqlite",
            "databaseName": "temporal",
            "connectAddr": "localhost",
            "connectProtocol": "tcp",
            "connectAttributes": {"mode": "memory", "cache": "shared", "setup": "true"},
            "maxConns": 1,
            "maxIdleConns": 1,
        }
    }
    return {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "numHistoryShards": 1,
            "defaultStore": "default",
            "visibilityStore": "default",
            "datastores": {"default": store},
        },
        "global": {
            "membership": {"maxJoinDuration": "30s", "broadcastAddress": _HOST},
            "tls": {"frontend": group, "internode": deepcopy(group)},
        },
        "services": {name: {"rpc": {**ports, "bindOnIP": _HOST}} for name, ports in services.items()},
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {
                "active": {
                    "enabled": True,
                    "initialFailoverVersion": 1,
                    "rpcName": "frontend",
                    "rpcAddress": f"{_HOST}:{services['frontend']['grpcPort']}",
                    "httpAddress": f"{_HOST}:{services['frontend']['httpPort']}",
                }
            },
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "archival": {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}},
        "namespaceDefaults": {"archival": {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}}},
    }


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
            return
        time.sleep(0.1)  # the clock of a poll
    raise AssertionError(f"Temporal does not listen at port {port}: {log.read_text(errors='replace')[-4000:]}")

"""Figures of a resource manager with 500 objects: time to apply them, memory, CPU time and writes while idle.

It starts an etcd, an API server, and in each round a ``gardener worker resource-manager``, then writes a
ManagedResource with 500 objects. ``kubectl apply`` writes the same objects to another namespace in the same round.

    python -m benchmarks.resource_manager [--rounds 3] [--objects 500] [--idle-seconds 60] [-o json]
"""

import asyncio
import base64
import contextlib
import json
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from api.crds import crds
from api.resources import MANAGED_RESOURCE
from benchmarks.api_server import ApiServer, answered, free_port, process
from benchmarks.cpu import resident, used
from benchmarks.report import Figure, emit, figure, output_option, report_of
from kube.client import Object
from kube.errors import ApiError

LIMITS = {"memory_mib": 120.0, "idle_millicores": 20.0, "apply_seconds": 10.0, "idle_writes": 0.0}
"""Largest median of each figure."""
_BEYOND = 1.1
"""Share of the sync period in which all objects are applied again once."""
_PATIENCE = 180
"""Seconds for each wait."""
_WRITES = re.compile(r'^apiserver_request_total\{.*dry_run="".*verb="(POST|PUT|PATCH|APPLY|DELETE)".*\} (\S+)$', re.M)

_OF_SERVER = re.compile(r'resource="(leases|events)"')


@dataclass(frozen=True)
class Figures:
    """Figures of one round."""

    apply_seconds: float
    """Time from the creation of the ManagedResource to condition ``ResourcesApplied``."""
    kubectl_seconds: float
    """Time of ``kubectl apply`` for the same objects."""
    memory_mib: float
    """Resident memory of the process at the end of the round."""
    idle_millicores: float
    """CPU time of the process in one sync period, in which it applied all objects again and checked their health."""
    idle_writes: float
    """Writes that the API server served meanwhile."""


def objects(count: int, namespace: str) -> list[Object]:
    """Objects of four kinds, of the size that those of a control plane have."""

    def one(number: int) -> Object:
        metadata = {"name": f"object-{number}", "namespace": namespace, "labels": {"app": f"a{number % 20}"}}
        kinds: list[Object] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": "value: 1\n" * 40}},
            {"apiVersion": "v1", "kind": "Secret", "data": {"key": base64.b64encode(bytes(200)).decode()}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": False},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
            },
        ]
        return {**kinds[number % len(kinds)], "metadata": metadata}

    return [one(number) for number in range(count)]


class Cluster(ApiServer):
    """An API server with the kinds of a seed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "--authorization-mode", "RBAC")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.serving():
            for each in crds("seed"):
                await self.client.apply(each, manager="benchmark")
            await answered(lambda: self.client.list(MANAGED_RESOURCE, "default"))
            yield

    async def writes(self) -> float:
        """Number of writes that the API server has served, without Leases of its own and Events."""
        text = str(await self.client.request("GET", "/metrics"))
        lines = [
            line for line in text.splitlines() if 'resource="leases"' not in line and 'resource="events"' not in line
        ]
        return sum(float(found[1]) for found in _WRITES.findall("\n".join(lines)))

    @contextlib.asynccontextmanager
    async def manager(self, namespace: str, sync_seconds: float) -> AsyncIterator[asyncio.subprocess.Process]:
        """The resource manager of a namespace, once it is there."""
        health = free_port()
        config = {
            "sourceClientConnection": {"kubeconfig": str(self.kubeconfig), "namespaces": [namespace]},
            "server": {"health": {"address": "127.0.0.1", "port": health}},
            "controllers": {
                "managedResource": {"syncPeriod": f"{sync_seconds}s"},
                "garbageCollector": {"enabled": True, "syncPeriod": "12h"},
                "tokenRequestor": {"enabled": True, "class": "shoot"},
            },
        }
        (self.directory / "config.yaml").write_text(json.dumps(config))
        gardener = Path(sys.executable).with_name("gardener")
        command = (gardener, "worker", "resource-manager", "--config", self.directory / "config.yaml")
        async with process(self.directory, *command) as started:

            async def serves() -> bool:
                reader, writer = await asyncio.open_connection("127.0.0.1", health)
                writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
                answer = await reader.read()
                writer.close()
                return b" 200 " in answer.splitlines()[0]

            await _until(serves)
            yield started


async def _until(ask: Any, but: Any = False) -> Any:
    """The answer, as soon as it is another than ``but``. Raises TimeoutError."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            with contextlib.suppress(ApiError, OSError, IndexError):
                if (answer := await ask()) != but:
                    return answer
            await asyncio.sleep(0.02)


async def _kubectl(cluster: Cluster, count: int, namespace: str) -> float:
    """Seconds in which ``kubectl apply`` creates the objects."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise click.ClickException("kubectl is not in PATH: the baseline needs it")
    file = cluster.directory / f"{namespace}.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(count, namespace)}))
    arguments = ("--kubeconfig", cluster.directory / "kubeconfig", "apply", "-f", file)
    began = time.perf_counter()
    async with process(cluster.directory, kubectl, *arguments) as started:
        if await started.wait():
            raise click.ClickException(f"kubectl apply ended with {started.returncode}")
    return time.perf_counter() - began


async def _round(cluster: Cluster, number: int, count: int, idle: float) -> Figures:
    namespace, other = f"managed-{number}", f"kubectl-{number}"
    for each in (namespace, other):
        await cluster.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}})
    async with cluster.manager(namespace, idle) as manager:
        kubectl = await _kubectl(cluster, count, other)
        place = {"name": "one", "namespace": namespace}
        data = {f"{at:04}.json": _encoded(obj) for at, obj in enumerate(objects(count, namespace))}
        await cluster.client.create({"apiVersion": "v1", "kind": "Secret", "metadata": place, "data": data})
        began = time.perf_counter()
        await cluster.client.create(
            {
                "apiVersion": MANAGED_RESOURCE.api_version,
                "kind": "ManagedResource",
                "metadata": place,
                "spec": {"secretRefs": [{"name": "one"}]},
            }
        )

        async def has(kind: str) -> bool:
            found = await cluster.client.get(MANAGED_RESOURCE, "one", namespace)
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(each["type"] == kind and each["status"] == "True" for each in conditions)

        await _until(lambda: has("ResourcesApplied"))
        applied = time.perf_counter() - began
        await _until(lambda: has("ResourcesHealthy"))
        # The next application asks by dry runs whether the objects are as they are to be, later ones need not.
        await asyncio.sleep(idle * _BEYOND)
        writes, cpu, since = await cluster.writes(), used(manager.pid), time.perf_counter()
        await asyncio.sleep(idle * _BEYOND)
        millicores = (used(manager.pid) - cpu) / (time.perf_counter() - since) * 1000
        written = await cluster.writes() - writes
        memory = resident(manager.pid)
    return Figures(applied, kubectl, memory, millicores, written)


def _encoded(obj: Object) -> str:
    return base64.b64encode(json.dumps(obj).encode()).decode()


async def measure(rounds: int, count: int, idle: float) -> list[Figures]:
    with TemporaryDirectory(prefix="resource-manager-") as directory:
        cluster = Cluster(Path(directory))
        async with cluster.running():
            return [await _round(cluster, number, count, idle) for number in range(rounds)]


@click.command(help="Measure a resource manager with many objects.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 20))
@click.option("--objects", "count", default=500, show_default=True, type=click.IntRange(1, 1000))
@click.option("--idle-seconds", default=60.0, show_default=True, help="Sync period; two of them pass without changes.")
@output_option
def main(rounds: int, count: int, idle_seconds: float, output: str) -> None:
    found = asyncio.run(measure(rounds, count, idle_seconds))
    settings = {"objects": count, "idleSeconds": idle_seconds}
    emit(report_of("resource_manager", rounds, figures(found), settings), output)


def figures(found: list[Figures]) -> list[Figure]:
    kubectl = [each.kubectl_seconds for each in found]
    return [
        figure("apply", "s", [each.apply_seconds for each in found], kubectl, limit=LIMITS["apply_seconds"]),
        *(
            figure(name, unit, [getattr(each, field) for each in found], limit=LIMITS[field])
            for name, unit, field in (
                ("memory", "MiB", "memory_mib"),
                ("CPU time while idle", "millicores", "idle_millicores"),
                ("writes while idle", "writes", "idle_writes"),
            )
        ),
    ]


if __name__ == "__main__":
    main()

"""Latency of a Shoot's admission at 50 requests a second: the real admission process against a real garden API.

It starts an etcd, an API server with the garden's kinds, and ``gardener worker admission``, then sends reviews at fixed
times, whether or not the earlier ones are answered: half of them to ``/mutate``, half of them to ``/validate``. The
garden has 500 Shoots in 50 Projects, because rules on domains and seeds look at other Shoots. Afterwards the seed
authorizer is asked in the same way whether a gardenlet may write the status of one of these Shoots.

    python -m benchmarks.admission [--rate 50] [--seconds 60] [--shoots 500] [-o json]
"""

import asyncio
import contextlib
import copy
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import click
import yaml

from api import resources
from api.constants import SEED_USER_PREFIX, SEEDS_GROUP
from api.crds import crds
from benchmarks.api_server import ApiServer, answered, free_port, process
from benchmarks.report import Figure, emit, figure, output_option, report_of
from kube.client import Object
from landscape import binaries
from landscape.pki import Authority
from workers.admission import seed_authorizer

LIMIT = 0.025
"""Seconds that 99 of 100 reviews may take."""
PROJECTS = 50
CORE = "core.gardener.cloud/v1beta1"
_CONNECTIONS = 32
"""Connections that the API server keeps open; admission answers as many calls at once."""


def profile() -> Object:
    return {
        "apiVersion": CORE,
        "kind": "CloudProfile",
        "metadata": {"name": "local"},
        "spec": {
            "type": "local",
            "kubernetes": {"versions": [{"version": binaries.KUBERNETES_VERSION, "classification": "supported"}]},
            "machineImages": [{"name": "local", "versions": [{"version": "1.0.0"}]}],
            "machineTypes": [{"name": "local", "cpu": "2", "gpu": "0", "memory": "4Gi"}],
            "regions": [{"name": "local", "zones": [{"name": "0"}]}],
        },
    }


def seed() -> Object:
    secret = {"apiVersion": "v1", "kind": "Secret", "name": "dns", "namespace": "garden"}
    return {
        "apiVersion": CORE,
        "kind": "Seed",
        "metadata": {"name": "seed-1"},
        "spec": {
            "provider": {"type": "local", "region": "local", "zones": ["0"]},
            "networks": {"nodes": "198.18.2.2/32", "pods": "198.18.3.0/24", "services": "198.18.4.0/24"},
            "dns": {"internal": {"type": "local", "domain": "internal.garden.test", "credentialsRef": secret}},
        },
    }


def registration() -> Object:
    kinds = ("ControlPlane", "Infrastructure", "Worker", "OperatingSystemConfig", "DNSRecord")
    offered = [*({"kind": kind, "type": "local"} for kind in kinds), {"kind": "Network", "type": "flannel"}]
    return {
        "apiVersion": CORE,
        "kind": "ControllerRegistration",
        "metadata": {"name": "provider-local"},
        "spec": {"resources": offered},
    }


def project(number: int) -> list[Object]:
    namespace = f"garden-p{number}"
    secret = {"kind": "Secret", "apiVersion": "v1", "namespace": namespace, "name": "local"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": CORE, "kind": "Project", "metadata": {"name": f"p{number}"}, "spec": {"namespace": namespace}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "local", "namespace": namespace}},
        {
            "apiVersion": "security.gardener.cloud/v1alpha1",
            "kind": "CredentialsBinding",
            "metadata": {"name": "local", "namespace": namespace},
            "provider": {"type": "local"},
            "credentialsRef": secret,
        },
    ]


def shoot(number: int) -> Object:
    project_name = f"p{number % PROJECTS}"
    name = f"s{number}"
    return {
        "apiVersion": CORE,
        "kind": "Shoot",
        "metadata": {"name": name, "namespace": f"garden-{project_name}"},
        "spec": {
            "cloudProfile": {"kind": "CloudProfile", "name": "local"},
            "region": "local",
            "seedName": "seed-1",
            "credentialsBindingName": "local",
            "dns": {"domain": f"{name}.{project_name}.example.org"},
            "kubernetes": {
                "version": binaries.KUBERNETES_VERSION,
                "kubeAPIServer": {
                    "featureGates": {"APIResponseCompression": False},
                    "runtimeConfig": {"resource.k8s.io/v1beta1": True},
                    "admissionPlugins": [{"name": "PodNodeSelector"}],
                },
            },
            "networking": {"type": "flannel", "pods": "100.96.0.0/11", "services": "100.64.0.0/13"},
            "provider": {
                "type": "local",
                "workers": [
                    {
                        "name": f"pool-{pool}",
                        "machine": {"type": "local", "image": {"name": "local", "version": "1.0.0"}},
                        "minimum": 1,
                        "maximum": 3,
                        "labels": {"example.org/tier": "web"},
                        "taints": [{"key": "dedicated", "value": "db", "effect": "PreferNoSchedule"}],
                    }
                    for pool in range(3)
                ],
            },
        },
    }


class Garden(ApiServer):
    """A garden's API without admission, and the admission process beside it, which only the benchmark asks."""

    def __init__(self, directory: Path, shoots: int) -> None:
        super().__init__(
            directory, "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount"
        )
        self._health = free_port()
        self._shoots = shoots
        self.admission = free_port()
        self.authorizer = free_port()
        files = Authority(directory, "ca").issue("admission", "admission", names=["127.0.0.1"])
        certificate = {"certificateFile": str(files.certificate), "privateKeyFile": str(files.key)}
        config = {
            "gardenClientConnection": {"kubeconfig": str(self.kubeconfig)},
            "server": {"address": "127.0.0.1", "port": self.admission, **certificate},
            "seedAuthorizer": {"address": "127.0.0.1", "port": self.authorizer, **certificate},
            "health": {"address": "127.0.0.1", "port": self._health},
        }
        (directory / "admission.yaml").write_text(yaml.safe_dump(config))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.serving():
            await self._fill()
            gardener = Path(sys.executable).parent / "gardener"
            async with process(
                self.directory, gardener, "worker", "admission", "--config", self.directory / "admission.yaml"
            ):
                await answered(self._is_ready)
                yield

    async def _fill(self) -> None:
        for each in crds("garden"):
            await self.client.apply(each, manager="benchmark")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden"}}
        await answered(lambda: self.client.list(resources.SHOOT))
        for obj in (namespace, profile(), seed(), registration()):
            await self.client.apply(obj, manager="benchmark")
        for number in range(PROJECTS):
            for obj in project(number):
                await self.client.apply(obj, manager="benchmark")
        for number in range(self._shoots):
            await self.client.apply(shoot(number), manager="benchmark")

    async def _is_ready(self) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self._health}/readyz") as answer,
        ):
            answer.raise_for_status()


def review(obj: Object, operation: str, old: Object | None = None) -> Object:
    group, version = CORE.split("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "benchmark",
            "operation": operation,
            "resource": {"group": group, "version": version, "resource": "shoots"},
            "kind": {"group": group, "version": version, "kind": "Shoot"},
            "namespace": obj["metadata"]["namespace"],
            "name": obj["metadata"]["name"],
            "userInfo": {"username": "alice", "groups": ["system:masters"]},
            "object": obj,
            "oldObject": old,
        },
    }


async def measure(garden: Garden, rate: float, seconds: float) -> list[float]:
    """Seconds from the time at which each review was due to its answer."""
    stored = {each["metadata"]["name"]: each for each in await garden.client.list(resources.SHOOT)}

    def request(number: int) -> tuple[str, Object]:
        if number % 4 < 2:
            body = review(shoot(len(stored) + number), "CREATE")
        else:
            old = stored[f"s{number % len(stored)}"]
            new = copy.deepcopy(old)
            new["spec"]["provider"]["workers"][0]["maximum"] = 4
            body = review(new, "UPDATE", old)
        return "/mutate" if number % 2 else "/validate", body

    return await _timed(garden.admission, request, "response", rate, seconds)


async def measure_authorizer(garden: Garden, rate: float, seconds: float) -> list[float]:
    """The same for questions to the seed authorizer."""
    names = [
        (each["metadata"]["namespace"], each["metadata"]["name"]) for each in await garden.client.list(resources.SHOOT)
    ]

    def request(number: int) -> tuple[str, Object]:
        namespace, name = names[number % len(names)]
        group, version = CORE.split("/")
        asked = {"verb": "patch", "group": group, "version": version, "resource": "shoots", "subresource": "status"}
        spec = {
            "user": f"{SEED_USER_PREFIX}seed-1",
            "groups": [SEEDS_GROUP],
            "resourceAttributes": {**asked, "namespace": namespace, "name": name},
        }
        return seed_authorizer.PATH, {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }

    return await _timed(garden.authorizer, request, "status", rate, seconds)


async def _timed(
    port: int, request: Callable[[int], tuple[str, Object]], answered_in: str, rate: float, seconds: float
) -> list[float]:
    """``request``: path and body of each call; ``answered_in``: field of the answer with ``allowed``."""
    url = f"https://127.0.0.1:{port}"
    total = int(rate * seconds)
    took: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False, limit=_CONNECTIONS)) as session:

        async def one(number: int, due: float) -> None:
            path, body = request(number)
            async with session.post(url + path, json=body) as answer:
                response = (await answer.json())[answered_in]
            took.append(time.perf_counter() - due)
            if not response["allowed"]:
                raise SystemExit(f"{path} refused: {response}")

        for number in range(int(rate)):  # connections and caches as after the first second of a process
            await one(number, time.perf_counter())
        took.clear()
        begin = time.perf_counter()
        tasks = []
        for number in range(total):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(number, due)))
        await asyncio.gather(*tasks)
    return took


@click.command(help="Measure the latency of a Shoot's admission.")
@click.option("--rate", default=50.0, show_default=True, help="Reviews a second.")
@click.option("--seconds", default=60.0, show_default=True, help="Duration.")
@click.option("--shoots", default=500, show_default=True, type=click.IntRange(PROJECTS, 5000), help="Shoots there.")
@output_option
def main(rate: float, seconds: float, shoots: int, output: str) -> None:
    async def run() -> tuple[list[float], list[float]]:
        with TemporaryDirectory(prefix="admission-") as directory:
            garden = Garden(Path(directory), shoots)
            async with garden.running():
                return await measure(garden, rate, seconds), await measure_authorizer(garden, rate, seconds)

    settings = {"rate": rate, "seconds": seconds, "shoots": shoots}
    emit(report_of("admission", 1, figures(*asyncio.run(run())), settings), output)


def figures(took: list[float], authorized: list[float]) -> list[Figure]:
    """Figures of one run with these times, in seconds: of reviews, and of the seed authorizer's answers."""
    cuts = statistics.quantiles(took, n=1000)
    answers = statistics.quantiles(authorized, n=1000)
    return [
        figure("p50", "ms", [cuts[499] * 1000]),
        figure("p99", "ms", [cuts[989] * 1000], limit=LIMIT * 1000),
        figure("slowest", "ms", [max(took) * 1000]),
        figure("seed authorizer p50", "ms", [answers[499] * 1000]),
        figure("seed authorizer p99", "ms", [answers[989] * 1000]),
    ]


if __name__ == "__main__":
    main()

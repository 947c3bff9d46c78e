"""A landscape whose Temporal is the cluster of docker-compose.yaml, and whose garden side runs there, too.

``make test-compose``; ``GARDENER_TEST_LANDSCAPE=NAME`` takes a landscape of that name, and leaves it up.
"""

import asyncio
import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import WorkflowExecutionStatus

from api import constants
from api.contracts.operations import OperationType, ShootRef, ShootTask, lifecycle_id, seed_queue
from landscape import plan as plans
from landscape import temporal_certificates
from landscape.cluster import Credentials
from landscape.pki import TemporalAuthority
from landscape.plan import SEEDS, Plan
from landscape.temporal import server as temporal_server
from tests.compose.engine import Compose, docker, engine
from tests.forged_tasks import of_activity, schedule, sealed
from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.shoots import CREATION, Shoot, eventually, started, temporal
from tests.temporal_methods import OPEN, not_refused, plain_token
from workers.lib.temporal import TemporalServer, TemporalTLS, connect_with

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900, func_only=True)]

PROJECT = "gardener-test"
ROOT = Path(__file__).parents[2]
TEMPORAL = "127.0.0.1:7233"
_FRONTENDS = ("temporal-frontend", "temporal-internal-frontend")
_VICTIMS = (
    ("wait_etcds", ("temporal-history", "controller-manager", "scheduler")),
    ("wait_apiserver", ("postgresql", "admission")),
    ("wait_resource_manager", (*_FRONTENDS, "temporal-matching", "temporal-worker", "codec-server")),
)
"""Once this task has started, a container of each of these services is killed; the creation is still running then."""


@dataclass(frozen=True)
class Cluster:
    """The running services, and the landscape that uses them."""

    landscape: Landscape

    def containers(self, service: str) -> list[str]:
        labels = [f"label=com.docker.compose.project={PROJECT}", f"label=com.docker.compose.service={service}"]
        return docker("ps", "--quiet", "--no-trunc", "--filter", labels[0], "--filter", labels[1]).split()

    def inspect(self, service: str) -> list[dict[str, Any]]:
        found = self.containers(service)
        return json.loads(docker("inspect", *found)) if found else []

    def restarts(self, service: str) -> int:
        return sum(int(each["RestartCount"]) for each in self.inspect(service))

    def kill(self, service: str) -> None:
        """As a crash: what ``docker kill`` ends is not started again."""
        os.kill(self.inspect(service)[0]["State"]["Pid"], signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    given = os.environ.get("GARDENER_TEST_LANDSCAPE")
    landscape = Landscape(given or "test-compose")
    with ExitStack() as stack:
        if not given:
            stack.callback(landscape.down)
        landscape.gardener("up", "--workers", "none", timeout=25 * 60)
        plan = plans.load(landscape.name)
        assert plan is not None
        config = tmp_path_factory.mktemp("config")
        # The garden reaches nothing but what it has a link to: the host's end of it.
        address = plan.host_link("garden").left_address
        configure(plan, config, address)
        os.environ |= {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "POSTGRES_PASSWORD": "not-a-secret",
            "GARDENER_CONFIG": str(config),
            "TEMPORAL_CERTIFICATES": str(config.parent / "certificates"),
            "ADMISSION_BIND": address,
        }
        stack.enter_context(engine())
        docker("load", "--input", run(BIN / "gardener", "landscape", "images", timeout=900).strip())
        stack.enter_context(Compose(ROOT, wait=False))
        eventually(lambda: ended_well("setup"), "kinds, webhooks and search attributes are set up", 180)
        landscape.gardener("up", "--workers", "seeds", "--temporal", TEMPORAL, timeout=600)
        yield Cluster(landscape)


def ended_well(service: str) -> bool:
    filters = [f"label=com.docker.compose.service={service}", f"label=com.docker.compose.project={PROJECT}", "exited=0"]
    return bool(docker("ps", "--all", "--quiet", *(part for each in filters for part in ("--filter", each))).strip())


def configure(plan: Plan, directory: Path, address: str) -> None:
    """The examples' files, and what they name; readable by the user of the containers."""
    for example in (ROOT / "examples/compose").iterdir():
        (directory / example.name).write_text(example.read_text().replace("admission.example.org", address))
    certificates = directory.parent / "certificates"
    # The landscape's authorities, so that its own processes are let in by the relay, too.
    hosts = ["temporal-frontend", TEMPORAL.split(":")[0], plan.central_address]
    temporal_certificates.write(certificates, plan.temporal_authority, hosts, ())
    shutil.copytree(certificates / "controller-manager", directory / "temporal")
    authority = Credentials.of(plan.garden).ca
    serving = authority.issue("admission-compose", "gardener-admission", names=[address])
    processes = plan.directory / "garden/processes"
    files = {
        **{
            f"{name}.kubeconfig": processes / f"{name}.kubeconfig"
            for name in ("controller-manager", "scheduler", "admission", "codec-server")
        },
        "setup.kubeconfig": plan.kubeconfig("garden"),
        "codec.key": plan.codec_key,
        "tls.crt": serving.certificate,
        "tls.key": serving.key,
        "ca.crt": authority.files.certificate,
    }
    for name, source in files.items():
        shutil.copyfile(source, directory / name)
    for made in (directory, certificates):
        made.chmod(0o755)
        for path in made.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture(scope="module")
def shoot(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot that was created while a container of each service was killed."""
    shoot = Shoot(cluster.landscape, "composed", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest())
    asyncio.run(disturb(cluster, shoot))
    shoot.wait_for_state("Succeeded", 2 * CREATION)
    yield shoot
    shoot.remove()


async def disturb(cluster: Cluster, shoot: Shoot) -> None:
    client = await temporal(shoot.landscape)
    for task, services in _VICTIMS:
        await started(client, shoot, task)
        for service in services:
            cluster.kill(service)


def test_temporal_is_five_services_on_postgresql(cluster: Cluster) -> None:
    for service in ("postgresql", *_FRONTENDS, "temporal-history", "temporal-matching", "temporal-worker"):
        assert len(cluster.containers(service)) == 1, service
    tables = docker(
        "exec", cluster.containers("postgresql")[0], "psql", "-U", "temporal", "-d", "temporal", "-tAc",
        "select count(*) from shards",
    )  # fmt: skip
    assert int(tables) == 64


def test_the_landscape_runs_neither_temporal_nor_the_garden_side(cluster: Cluster) -> None:
    assert not [
        name for name in cluster.landscape.status["processes"] if name in ("garden/scheduler", "garden/admission")
    ]
    assert cluster.landscape.facts["temporal"]["external"] == TEMPORAL
    assert len(cluster.containers("controller-manager")) == 2


def test_a_cluster_is_made_though_one_of_each_service_is_killed(cluster: Cluster, shoot: Shoot) -> None:
    assert shoot.get()["status"]["lastOperation"]["state"] == "Succeeded"
    [row] = shoot.flows()
    assert (row["operation"], row["attempt"], row["state"]) == ("Create", "1", "Completed")
    [node] = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"
    for service in (name for _, services in _VICTIMS for name in services):
        assert cluster.restarts(service) >= 1, f"{service} was not killed, or did not come back"


async def test_its_history_is_in_the_cluster_and_encrypted(cluster: Cluster, shoot: Shoot) -> None:
    client = await temporal(cluster.landscape)
    [row] = shoot.flows()
    history = await client.get_workflow_handle(row["workflowId"]).fetch_history()
    [payload] = history.events[0].workflow_execution_started_event_attributes.input.payloads
    assert payload.metadata["encoding"].startswith(b"binary/encrypted")


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_gardenlet_of_another_seed_reaches_nothing_of_this_one(cluster: Cluster, shoot: Shoot) -> None:
    """Each method of Temporal's API by its certificate, aimed at another seed's queue and a Shoot's lifecycle."""
    live = shoot.get()
    victim = live["spec"]["seedName"]
    other = next(name for name in SEEDS if name != victim)
    plan = plans.load(cluster.landscape.name)
    assert plan is not None
    certificate = TemporalAuthority(plan.temporal_authority).for_gardenlet(other)
    admin = temporal_server(plan)
    assert admin.tls is not None
    tls = TemporalTLS(
        ca_file=admin.tls.ca_file, certificate_file=certificate.certificate, private_key_file=certificate.key
    )
    attacker = await connect_with(TemporalServer(address=admin.address, tls=tls))
    namespace = await attacker.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))

    client, name = await temporal(cluster.landscape), lifecycle_id(ShootRef.of(live))
    lifecycle = client.get_workflow_handle(name, run_id=(await client.get_workflow_handle(name).describe()).run_id)
    token = plain_token(namespace.namespace_info.id, lifecycle, 5)
    assert (await not_refused(attacker, lifecycle, f"seed-{victim}", token)).keys() == OPEN

    assert (await lifecycle.describe()).status is WorkflowExecutionStatus.RUNNING
    log = docker("logs", cluster.containers("temporal-frontend")[0])
    assert f"{constants.TEMPORAL_GARDENLET_PREFIX}{other}" in log


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
@pytest.mark.parametrize("reason", ["destination", "changed"])
async def test_a_gardenlet_refuses_a_deletion_under_the_key_of_another_seed_and_tells_it(
    cluster: Cluster, shoot: Shoot, reason: str
) -> None:
    """The attacker has the rights of Temporal's administrator, and of keys the other seed's alone.

    "changed": the payload names the queue that it is sent to, and not the one that its key is for.
    """
    live = shoot.get()
    plan = plans.load(cluster.landscape.name)
    assert plan is not None
    own, queue, activity = seed_queue(shoot.other_seed), seed_queue(shoot.seed), "delete_namespace"
    task = ShootTask(
        shoot=ShootRef.of(live),
        technical_id=shoot.technical_id,
        seed=shoot.seed,
        generation=live["metadata"]["generation"],
        operation=OperationType.DELETE,
    )
    forged = await sealed(
        task,
        plan.derived_key(f"{shoot.other_seed}-gardenlet"),
        own,
        of_activity(own, activity),
        claims=queue if reason == "changed" else "",
    )
    log = plan.logs / f"{shoot.seed}-gardenlet.log"
    read, counted = log.stat().st_size, refusals(plan, shoot.seed, reason)
    client = await temporal(cluster.landscape)

    attack = await schedule(client, queue, activity, forged)
    try:
        await asyncio.to_thread(
            eventually, lambda: refusals(plan, shoot.seed, reason) > counted, "the gardenlet counts a refusal", 60
        )
        told = log.read_bytes()[read:].decode(errors="replace")
        assert f"refused a payload for activity '{activity}' on queue {queue}" in told
        kinds = [event.WhichOneof("attributes") async for event in attack.fetch_history_events()]
        assert kinds[-1] == "activity_task_scheduled_event_attributes", "the activity has no result"
    finally:
        await attack.terminate("end of test")

    namespace = json.loads(cluster.landscape.kubectl(shoot.seed, "get", "ns", shoot.technical_id, "-o", "json"))
    assert namespace["status"]["phase"] == "Active"
    await asyncio.to_thread(shoot.reconcile, CREATION)


def refusals(plan: Plan, seed: str, reason: str) -> float:
    """Payloads that a seed's gardenlet has refused, by its metrics."""
    health = yaml.safe_load((plan.configs / f"{seed}-gardenlet.yaml").read_text())["health"]
    with urllib.request.urlopen(f"http://{health['address']}:{health['port']}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "gardener_codec_refused_total"
        and sample.labels == {"queue": seed_queue(seed), "reason": reason}
    )

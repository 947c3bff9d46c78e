"""provider-local's workflows on a real Temporal server, over clusters in memory."""

import asyncio
import base64
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.extension import Extension
from activities.provider_local import operations
from activities.provider_local.infrastructure import InfrastructureActuator
from activities.provider_local.operations import ProviderLocalActivities
from api.decisions.shoot_state import machine_state
from api.resources import CLUSTER as CLUSTER_RESOURCE
from api.resources import (
    INFRASTRUCTURE,
    MACHINE,
    MACHINE_CLASS,
    MACHINE_DEPLOYMENT,
    MACHINE_SET,
    NAMESPACE,
    SECRET,
    WORKER,
    Resource,
)
from kube.cache import Caches
from kube.client import Object
from kube.errors import Unauthorized
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.provider_local.fake_cloud import OneCloud
from tests.unit.provider_local.test_infrastructure_and_network import CLUSTER, KUBECONFIG
from workers.extension.controller import ExtensionController
from workers.lib.interceptors import ActivityInterceptor
from workers.provider_local.manual_updates import ManualUpdates
from workers.provider_local.operations import InfrastructureOperations, Operations, WorkerActuator
from workflows.provider_local import WORKFLOWS
from workflows.provider_local.options import queue

CONTROL_PLANE = "shoot--dev--one"
SENTINEL = "SENTINEL-USER-DATA"
DEPLOYMENT = "shoot--dev--one-a-z1"


@pytest.fixture
async def env() -> AsyncIterator[WorkflowEnvironment]:
    server = Path(sys.executable).parent / "temporal-test-server"
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(server), data_converter=pydantic_data_converter
    ) as environment:
        yield environment


class Provider:
    """The whole of provider-local but its process, and a machine controller manager that a test plays."""

    def __init__(self, env: WorkflowEnvironment) -> None:
        self.env = env
        self.seed, self.cloud = FakeCluster(), FakeCluster()

    async def prepare(self) -> None:
        cluster = {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": CONTROL_PLANE},
            **CLUSTER,
        }
        profile = cluster["spec"]["cloudProfile"]
        types = {"machineTypes": [{"name": "local", "cpu": "2", "memory": "4Gi"}]}
        cluster["spec"] = {
            **cluster["spec"],
            "cloudProfile": {**profile, "spec": {**profile["spec"], **types}},
        }
        await self.seed.create(cluster)
        await self.seed.create(_secret("cloudprovider", kubeconfig=yaml.safe_dump(KUBECONFIG)))
        await self.seed.create(_secret("osc-result", cloud_config=SENTINEL))

    async def fall_asleep(self) -> None:
        shoot = {"spec": {"hibernation": {"enabled": True}}}
        await self.seed.patch(CLUSTER_RESOURCE, CONTROL_PLANE, None, {"spec": {"shoot": shoot}})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        caches, clouds = Caches(self.seed), OneCloud(self.cloud)
        operations = Operations(self.env.client, "one")
        steps = ProviderLocalActivities(self.seed, caches, InfrastructureActuator(self.seed, clouds))
        actuators = (WorkerActuator(self.seed, operations), InfrastructureOperations(self.seed, clouds, operations))
        async with Worker(
            self.env.client,
            task_queue=queue("one"),
            workflows=WORKFLOWS,
            activities=steps.all(),
            interceptors=[ActivityInterceptor()],
        ):
            running = [
                asyncio.create_task(ExtensionController(self.seed, caches, each, interruptible=True).run())
                for each in actuators
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                await caches.close()
                await clouds.close()

    async def restore(self, *pools: dict[str, Any], timestamp: str = "1") -> None:
        """As a flow does it: the object, then the state that another seed left, then the annotation to continue."""
        await self.trigger(*pools, timestamp=timestamp, operation="wait-for-state")
        saved = {
            "kind": "MachineDeployment",
            "metadata": {"name": DEPLOYMENT, "uid": "uid-of-deployment"},
            "spec": {"replicas": 1},
        }
        owned = {"name": DEPLOYMENT, "uid": "uid-of-deployment", "controller": True}
        template = {"spec": {"class": {"kind": "MachineClass", "name": "old-class"}}}
        machine_set = {
            "metadata": {"name": f"{DEPLOYMENT}-set", "uid": "uid-of-set", "ownerReferences": [owned]},
            "spec": {"replicas": 1, "template": template},
        }
        owner = {"name": f"{DEPLOYMENT}-set", "uid": "uid-of-set", "controller": True}
        machine = {
            "metadata": {"name": "machine", "labels": {"node": "machine"}, "ownerReferences": [owner]},
            "spec": {"class": {"name": "old-class"}, "providerID": "local:///infra/machine"},
        }
        item = machine_state([saved], [machine_set], [machine])
        assert item is not None
        status = {"status": {"state": item["data"]}}
        await self.seed.patch(WORKER, "one", CONTROL_PLANE, status, subresource="status")
        await self.trigger(*pools, timestamp=timestamp, operation="restore")

    async def trigger(self, *pools: dict[str, Any], timestamp: str = "1", operation: str = "reconcile") -> None:
        reference = {"name": "cloudprovider", "namespace": CONTROL_PLANE}
        status = {
            "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
            "kind": "InfrastructureStatus",
            "namespace": "infra-shoot--dev--one",
        }
        annotations = {"gardener.cloud/operation": operation, "gardener.cloud/timestamp": timestamp}
        await self.seed.apply(
            {
                "apiVersion": "extensions.gardener.cloud/v1alpha1",
                "kind": "Worker",
                "metadata": {"name": "one", "namespace": CONTROL_PLANE, "annotations": annotations},
                "spec": {
                    "type": "local",
                    "region": "local",
                    "secretRef": reference,
                    "infrastructureProviderStatus": status,
                    "pools": list(pools),
                },
            },
            manager="test",
        )

    async def roll_out(self) -> None:
        """Report what the machine controller manager would report."""
        for each in self.seed.of(MACHINE_DEPLOYMENT):
            replicas = each["spec"]["replicas"]
            counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
            status = {"status": {**counts, "observedGeneration": each["metadata"]["generation"]}}
            await self.seed.patch(
                MACHINE_DEPLOYMENT, each["metadata"]["name"], CONTROL_PLANE, status, subresource="status"
            )

    @property
    def status(self) -> dict[str, Any]:
        worker = self.seed.objects.get((WORKER, CONTROL_PLANE, "one")) or {}
        status: dict[str, Any] = worker.get("status") or {}
        return status

    @property
    def state(self) -> str:
        return str((self.status.get("lastOperation") or {}).get("state", ""))

    def names(self, resource: Any) -> set[str]:
        return {each["metadata"]["name"] for each in self.seed.of(resource)}


def _secret(name: str, **data: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": CONTROL_PLANE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


def _manager(replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "machine-controller-manager", "namespace": CONTROL_PLANE},
        "spec": {"replicas": replicas},
    }


def pool(name: str, key: str = "key-1") -> dict[str, Any]:
    return {
        "name": name,
        "minimum": 1,
        "maximum": 1,
        "maxSurge": 1,
        "maxUnavailable": 0,
        "machineType": "local",
        "machineImage": {"name": "local", "version": "1.0.0"},
        "nodeAgentSecretName": key,
        "userDataSecretRef": {"name": "osc-result", "key": "cloud_config"},
        "zones": ["0"],
    }


@pytest.fixture
async def provider(env: WorkflowEnvironment) -> Provider:
    provider = Provider(env)
    await provider.prepare()
    return provider


async def test_a_worker_is_done_when_its_machines_have_joined(provider: Provider) -> None:
    await provider.trigger(pool("a"), pool("b"))
    async with provider.running():
        await provider.seed.until(lambda: len(provider.status.get("machineDeployments") or []) == 2)
        assert provider.state == "Processing", "others read the deployments before the machines have joined"
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")

    assert [each["name"] for each in provider.status["machineDeployments"]] == [
        "shoot--dev--one-a-z1",
        "shoot--dev--one-b-z1",
    ]


async def test_an_error_about_machines_that_do_not_join_quotes_their_kubelets(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the Shoot reads it in status.lastErrors, and sees no log of a machine."""
    monkeypatch.setattr(operations, "JOIN_SECONDS", 0.1)
    said = "Waiting for the node to join; its kubelet says: invalid reservation"
    status = {"currentStatus": {"phase": "Pending"}, "lastOperation": {"description": said, "state": "Processing"}}
    metadata = {"name": "m", "namespace": CONTROL_PLANE, "labels": {"name": "shoot--dev--one-a-z1"}}
    machine = {"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": metadata, "spec": {}}
    await provider.seed.create(machine)
    await provider.seed.patch(MACHINE, "m", CONTROL_PLANE, {"status": status}, subresource="status")
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("lastError"))

    assert provider.status["lastError"]["description"].endswith(f"machine m: {said}")


async def test_a_size_that_the_autoscaler_writes_meanwhile_stays(provider: Provider) -> None:
    elastic = {**pool("a"), "maximum": 3}
    find, read = provider.seed.find, asyncio.Event()

    async def find_and_be_late(res: Resource, name: str, namespace: str | None = None) -> Object | None:
        live = await find(res, name, namespace)
        if res == MACHINE_DEPLOYMENT and live is not None and not read.is_set():
            read.set()
            await provider.seed.patch(res, name, namespace, {"spec": {"replicas": 2}})
        return live

    async with provider.running():
        await provider.trigger(elastic)
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")
        provider.seed.find = find_and_be_late  # type: ignore[method-assign]
        await provider.trigger({**elastic, "labels": {"a": "b"}}, timestamp="2")
        await provider.seed.until(lambda: read.is_set() and "labels" in str(provider.seed.of(MACHINE_DEPLOYMENT)))

    (deployment,) = provider.seed.of(MACHINE_DEPLOYMENT)
    assert deployment["spec"]["replicas"] == 2


async def test_machines_of_another_seed_are_found_again_and_none_is_made(provider: Provider) -> None:
    async with provider.running():
        await provider.restore({**pool("a"), "minimum": 0})
        await provider.seed.until(lambda: provider.state == "Succeeded" and "state" not in provider.status)

        (deployment,) = provider.seed.of(MACHINE_DEPLOYMENT)
        (machine_set,) = provider.seed.of(MACHINE_SET)
        (machine,) = provider.seed.of(MACHINE)
        owners = [each["metadata"]["ownerReferences"][0]["uid"] for each in (machine_set, machine)]
        assert owners == [each["metadata"]["uid"] for each in (deployment, machine_set)]
        assert machine["spec"]["providerID"] == "local:///infra/machine"
        assert deployment["spec"]["replicas"] == 1, "as many as the autoscaler wanted there"
        assert "old-class" in provider.names(MACHINE_CLASS), "it could not be stopped without its class"
        assert not any("restoring" in key for key in deployment["metadata"].get("annotations") or {})


async def test_a_machine_that_has_gone_since_is_not_brought_back_by_another_restore(provider: Provider) -> None:
    async with provider.running():
        await provider.restore(pool("a"))
        await provider.seed.until(lambda: provider.state == "Succeeded" and "state" not in provider.status)
        await provider.seed.patch(MACHINE, "machine", CONTROL_PLANE, {"metadata": {"finalizers": None}})
        await provider.seed.delete(MACHINE, "machine", CONTROL_PLANE)
        await provider.restore(pool("a"), timestamp="2")
        await provider.seed.until(lambda: provider.state == "Succeeded" and "state" not in provider.status)
        assert provider.names(MACHINE) == set()


async def test_a_hibernated_worker_has_no_machines_and_does_not_wait(provider: Provider) -> None:
    """Asleep, no machine controller manager runs that would say how many machines there are."""
    await provider.fall_asleep()
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.state == "Succeeded")

    (deployment,) = provider.seed.of(MACHINE_DEPLOYMENT)
    assert deployment["spec"]["replicas"] == 0


async def test_machines_of_a_worker_that_falls_asleep_are_not_drained(provider: Provider) -> None:
    await provider.fall_asleep()
    await provider.seed.create(_manager(1))
    machine = {"metadata": {"name": "m", "namespace": CONTROL_PLANE}, "spec": {"class": {"name": "c"}}}
    await provider.seed.create({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", **machine})
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        assert provider.state == "Processing", "its machines are not gone yet"
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")

    (left,) = provider.seed.of(MACHINE)
    assert left["metadata"]["labels"]["force-deletion"] == "True"


async def test_unwanted_classes_are_deleted_once_no_machine_uses_them(provider: Provider) -> None:
    await provider.trigger(pool("a"), pool("b"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")
        (old,) = (name for name in provider.names(MACHINE_CLASS) if "-a-" in name)
        await provider.seed.create(
            {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "Machine",
                "metadata": {"name": "m", "namespace": CONTROL_PLANE},
                "spec": {"class": {"kind": "MachineClass", "name": old}},
            }
        )
        await provider.trigger(pool("a", key="key-2"), timestamp="2")
        await provider.seed.until(lambda: len(provider.status["machineDeployments"]) == 1)
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")
        assert provider.names(MACHINE_DEPLOYMENT) == {"shoot--dev--one-a-z1"}
        assert old in provider.names(MACHINE_CLASS), "a machine still needs it to be deleted"
        assert len(provider.names(MACHINE_CLASS)) == 2
        await provider.seed.delete(MACHINE, "m", CONTROL_PLANE)
        await provider.trigger(pool("a", key="key-2"), timestamp="3")
        await provider.seed.until(lambda: provider.state == "Processing")
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")

    assert len(provider.names(MACHINE_CLASS)) == 1
    classes = provider.names(MACHINE_CLASS)
    assert {name for name in provider.names(SECRET) if "-z1-" in name} == classes


async def refuse(provider: Provider, when: datetime) -> None:
    """Report wrong credentials as the machine controller manager does."""
    machine = {
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": "m", "namespace": CONTROL_PLANE},
        "spec": {"class": {"kind": "MachineClass", "name": "x"}},
    }
    if not provider.seed.of(MACHINE):
        await provider.seed.create(machine)
    failed = {
        "state": "Failed",
        "errorCode": "Unauthenticated",
        "description": "no entry",
        "lastUpdateTime": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    await provider.seed.patch(MACHINE, "m", CONTROL_PLANE, {"status": {"lastOperation": failed}}, subresource="status")


async def test_a_machine_that_the_cloud_refuses_ends_the_wait_with_its_code(provider: Provider) -> None:
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await refuse(provider, datetime.now(UTC) + timedelta(seconds=5))
        await provider.seed.until(lambda: provider.state == "Error")

    assert provider.status["lastError"]["codes"] == ["ERR_INFRA_UNAUTHENTICATED"]
    assert "no entry" in provider.status["lastError"]["description"]


async def add_leaving(provider: Provider, **last_operation: str) -> None:
    """A machine of pool a that is deleted, and is there until its node is drained."""
    machine: dict[str, Any] = {
        "apiVersion": "machine.sapcloud.io/v1alpha1",
        "kind": "Machine",
        "metadata": {
            "name": "m",
            "namespace": CONTROL_PLANE,
            "labels": {"name": "shoot--dev--one-a-z1"},
            "finalizers": ["mcm"],
        },
        "spec": {
            "class": {"kind": "MachineClass", "name": "x"},
            "nodeTemplate": {"metadata": {"labels": {"worker.gardener.cloud/pool": "a"}}},
        },
    }
    await provider.seed.create(machine)
    await provider.seed.create({**machine, "metadata": {**machine["metadata"], "name": "n", "finalizers": []}})
    await provider.seed.delete(MACHINE, "m", CONTROL_PLANE)
    status = {"lastOperation": {"type": "Delete", "state": "Processing", **last_operation}}
    await provider.seed.patch(MACHINE, "m", CONTROL_PLANE, {"status": status}, subresource="status")


async def test_a_rollout_is_not_done_while_an_old_machine_is_drained(provider: Provider) -> None:
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await add_leaving(provider, description="Draining the node, 1 pods are left")
        await provider.roll_out()
        await asyncio.sleep(0.5)
        assert provider.state == "Processing"
        await provider.seed.patch(MACHINE, "m", CONTROL_PLANE, {"metadata": {"finalizers": []}})
        await provider.seed.until(lambda: provider.state == "Succeeded")


@pytest.mark.parametrize("removed", [False, True], ids=["rolled", "removed"])
async def test_a_pool_that_can_never_drain_is_named_with_its_pods(provider: Provider, removed: bool) -> None:
    await provider.trigger(pool("a"), pool("b"))
    async with provider.running():
        await provider.seed.until(lambda: len(provider.status.get("machineDeployments") or []) == 2)
        if removed:
            await provider.roll_out()
            await provider.seed.until(lambda: provider.state == "Succeeded")
            finalizer = {"metadata": {"finalizers": ["mcm"]}}
            await provider.seed.patch(MACHINE_DEPLOYMENT, "shoot--dev--one-a-z1", CONTROL_PLANE, finalizer)
            await provider.trigger(pool("b"), timestamp="2")
            await provider.seed.until(
                lambda: provider.seed.objects[MACHINE_DEPLOYMENT, CONTROL_PLANE, "shoot--dev--one-a-z1"][
                    "metadata"
                ].get("deletionTimestamp")
            )
        when = (datetime.now(UTC) + timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
        fault = "node m cannot be drained: default/app: PodDisruptionBudget default/app is misconfigured"
        await add_leaving(
            provider, state="Failed", errorCode="FailedPrecondition", description=fault, lastUpdateTime=when
        )
        await provider.seed.until(lambda: provider.state == "Error")

    assert provider.status["lastError"]["codes"] == ["ERR_RETRYABLE_CONFIGURATION_PROBLEM"]
    assert provider.status["lastError"]["description"] == f"pool a: machine m: {fault}"


async def test_an_old_refusal_does_not_end_a_new_wait(provider: Provider) -> None:
    """Credentials were corrected, and the machine controller manager has not tried again yet."""
    await refuse(provider, datetime.now(UTC) - timedelta(minutes=1))
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state in ("Succeeded", "Error"))

    assert provider.state == "Succeeded"


async def test_deletion_ends_a_creation_that_waits_and_removes_what_it_made(provider: Provider) -> None:
    """A Shoot deleted in the middle of its creation goes away cleanly."""
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await provider.seed.delete(WORKER, "one", CONTROL_PLANE)
        await provider.seed.until(lambda: (WORKER, CONTROL_PLANE, "one") not in provider.seed.objects)

    assert not provider.names(MACHINE_DEPLOYMENT)
    assert not provider.names(MACHINE_CLASS)
    assert provider.names(SECRET) == {"cloudprovider", "osc-result"}


async def test_a_process_that_starts_again_finds_its_workflow(provider: Provider) -> None:
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
    await provider.seed.patch(WORKER, "one", CONTROL_PLANE, {"metadata": {"labels": {"seen": "again"}}})
    async with provider.running():
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")


async def test_missing_user_data_is_a_configuration_problem(provider: Provider) -> None:
    await provider.seed.delete(SECRET, "osc-result", CONTROL_PLANE)
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.state == "Error")

    assert provider.status["lastError"]["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
    assert "osc-result" in provider.status["lastError"]["description"]


async def test_no_user_data_reaches_history(provider: Provider) -> None:
    await provider.trigger(pool("a"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")
    handle = provider.env.client.get_workflow_handle(f"provider-local/one/worker/{CONTROL_PLANE}/one/reconcile/1")
    events = (await handle.fetch_history()).events
    history = b"".join(event.SerializeToString() for event in events)

    assert b"shoot--dev--one" in history
    assert SENTINEL.encode() not in history
    assert base64.b64encode(SENTINEL.encode()) not in history


async def test_an_infrastructure_is_gone_when_its_namespace_is(provider: Provider) -> None:
    metadata = {"name": "one", "namespace": CONTROL_PLANE, "annotations": {"gardener.cloud/operation": "reconcile"}}
    reference = {"name": "cloudprovider", "namespace": CONTROL_PLANE}
    await provider.seed.create(
        {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "Infrastructure",
            "metadata": metadata,
            "spec": {"type": "local", "region": "local", "secretRef": reference},
        }
    )

    def infrastructure() -> dict[str, Any]:
        return provider.seed.objects.get((INFRASTRUCTURE, CONTROL_PLANE, "one")) or {}

    async with provider.running():
        await provider.seed.until(lambda: (infrastructure().get("status") or {}).get("nodesCIDR"))
        provider.cloud.refuse("get", NAMESPACE, Unauthorized(401, "Unauthorized", "x"))
        await provider.seed.delete(INFRASTRUCTURE, "one", CONTROL_PLANE)
        await provider.seed.until(lambda: infrastructure()["status"].get("lastError"))
        assert infrastructure()["status"]["lastError"]["codes"] == ["ERR_INFRA_UNAUTHENTICATED"]
        provider.cloud.refuse("get", NAMESPACE, None)
        again = {"metadata": {"annotations": {"gardener.cloud/timestamp": "2"}}}
        await provider.seed.patch(INFRASTRUCTURE, "one", CONTROL_PLANE, again)
        await provider.seed.until(lambda: not infrastructure())

    assert not provider.cloud.of(NAMESPACE)


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (RPCError("down", RPCStatusCode.UNAVAILABLE, b""), "ERR_RETRYABLE_INFRA_DEPENDENCIES", "answer: UNAVAILABLE"),
        (
            WorkflowFailureError(cause=ApplicationError("the cloud is full", type="ERR_INFRA_QUOTA_EXCEEDED")),
            "ERR_INFRA_QUOTA_EXCEEDED",
            "the cloud is full",
        ),
        (WorkflowFailureError(cause=CancelledError("cancelled by an operator")), None, "cancelled by an operator"),
    ],
)
async def test_an_actuator_raises_the_error_inside_of_those_of_temporal(
    raised: Exception, code: str | None, text: str
) -> None:
    """The SDK of extensions knows errors of actuators only."""

    class Temporal:
        async def start_workflow(self, *_: Any, **__: Any) -> None:
            raise raised

    actuator = WorkerActuator(FakeCluster(), Operations(Temporal(), "seed-1"))  # type: ignore[arg-type]
    found = {"metadata": {"name": "demo", "namespace": "shoot--dev--one", "uid": "u", "generation": 1}, "spec": {}}
    with pytest.raises(ApplicationError) as failed:
        await actuator.reconcile(Extension(WORKER, found, None))

    assert failed.value.type == code
    assert text in failed.value.message


def in_place(version: str, strategy: str = "ManualInPlaceUpdate") -> dict[str, Any]:
    image = {"name": "local", "version": version}
    settings = {"updateStrategy": strategy, "kubernetesVersion": "1.36.3", "machineImage": image}
    return {**pool("a", "gardener-node-agent-a"), **settings}


def update_of(provider: Provider) -> str:
    hashes = (provider.status.get("inPlaceUpdates") or {}).get("workerPoolToHashMap") or {}
    return str(hashes.get("a", ""))


async def begin_update(provider: Provider) -> None:
    """Bring a pool to another version of its image. Its machine has the former class."""
    await provider.trigger(in_place("1.0.1"), timestamp="2")

    def is_new() -> bool:
        (found,) = provider.seed.of(MACHINE_DEPLOYMENT)
        return bool(found["metadata"]["generation"] > 1)

    await provider.seed.until(is_new)
    (found,) = provider.seed.of(MACHINE_DEPLOYMENT)
    counts = {"replicas": 1, "updatedReplicas": 0, "availableReplicas": 1}
    status = {"status": {**counts, "observedGeneration": found["metadata"]["generation"]}}
    name = found["metadata"]["name"]
    await provider.seed.patch(MACHINE_DEPLOYMENT, name, CONTROL_PLANE, status, subresource="status")


async def test_the_worker_does_not_wait_for_a_manual_update_and_reports_its_end_later(provider: Provider) -> None:
    """Its hash tells the gardenlet that no node waits for its owner any more."""
    await provider.trigger(in_place("1.0.0"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")
        former = update_of(provider)
        assert former
        await begin_update(provider)
        await provider.seed.until(
            lambda: (
                provider.state == "Succeeded"
                and provider.status["observedGeneration"] == provider.seed.of(WORKER)[0]["metadata"]["generation"]
            )
        )
    assert update_of(provider) == former

    caches = Caches(provider.seed)
    following = asyncio.create_task(ManualUpdates(provider.seed, caches).run())
    try:
        await asyncio.sleep(0.2)
        assert update_of(provider) == former
        await provider.roll_out()
        await provider.seed.until(lambda: update_of(provider) not in ("", former))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await caches.close()


async def test_the_worker_waits_for_an_automatic_update(provider: Provider) -> None:
    await provider.trigger(in_place("1.0.0", "AutoInPlaceUpdate"))
    async with provider.running():
        await provider.seed.until(lambda: provider.status.get("machineDeployments"))
        (found,) = provider.seed.of(MACHINE_DEPLOYMENT)
        status = {"status": {"replicas": 1, "updatedReplicas": 0, "availableReplicas": 1, "observedGeneration": 1}}
        name = found["metadata"]["name"]
        await provider.seed.patch(MACHINE_DEPLOYMENT, name, CONTROL_PLANE, status, subresource="status")
        await asyncio.sleep(0.3)
        assert provider.state == "Processing"
        assert not update_of(provider)
        await provider.roll_out()
        await provider.seed.until(lambda: provider.state == "Succeeded")
    assert update_of(provider)

"""From a Machine to a pod, a node, and back: over a seed, a cloud and a shoot in memory."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from api.constants import (
    EXCLUDED_FROM_LOAD_BALANCERS,
    FINALIZER_MACHINE_CONTROLLER_MANAGER,
    TAINT_CRITICAL_COMPONENTS_NOT_READY,
)
from api.resources import LEASE, MACHINE, MACHINE_CLASS, NODE, POD, POD_DISRUPTION_BUDGET, SECRET
from kube.cache import Caches
from kube.errors import ApiError, Forbidden, Unauthorized, Unreachable
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.provider_local.fake_cloud import OneCloud
from workers.machine_controller_manager import nodes
from workers.machine_controller_manager.bootstrap import fill_in
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.machine import MachineController
from workers.machine_controller_manager.objects import duration
from workers.provider_local.driver import LocalDriver

NAMESPACE = "shoot--dev--one"
CLOUD_NAMESPACE = "infra-shoot--dev--one"
NAME = "shoot--dev--one-pool-z1-abcde-12345"
USER_DATA = b"#!/bin/bash\ntoken='<<BOOTSTRAP_TOKEN>>' name='<<MACHINE_NAME>>'\n"


class World:
    """The three clusters that a machine controller talks to."""

    def __init__(self) -> None:
        self.seed, self.cloud, self.shoot = FakeCluster(), FakeCluster(), FakeCluster()

    async def prepare(self) -> None:
        kubeconfig = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://198.18.1.2:6443"}}],
        }
        await self.seed.create(_secret("cloudprovider", {"kubeconfig": yaml.safe_dump(kubeconfig).encode()}))
        await self.seed.create(_secret("class-a", {"userData": USER_DATA}))
        await self.seed.create(
            {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "MachineClass",
                "metadata": {"name": "class-a", "namespace": NAMESPACE},
                "provider": "local",
                "secretRef": {"name": "class-a", "namespace": NAMESPACE},
                "credentialsSecretRef": {"name": "cloudprovider", "namespace": NAMESPACE},
                "providerSpec": {
                    "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
                    "kind": "MachineProviderSpec",
                    "namespace": CLOUD_NAMESPACE,
                    "image": "machine:v1",
                    "imagesDirectory": "/images",
                    "cpuMillis": 100,
                    "memoryBytes": 1000,
                },
            }
        )

    async def add_machine(self, **spec: Any) -> None:
        await self.seed.create(
            {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "Machine",
                "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"node": NAME}},
                "spec": {"class": {"kind": "MachineClass", "name": "class-a"}, **spec},
            }
        )

    async def add_node(self, ready: str = "True", taints: Sequence[dict[str, str]] = ()) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}, "spec": {"taints": list(taints)}}
        await self.shoot.create(node)
        await self.set_ready(ready)

    async def set_ready(self, status: str, *others: dict[str, Any]) -> None:
        """Replaces all conditions of the node."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": status, "lastTransitionTime": now}
        await self.shoot.patch(NODE, NAME, None, {"status": {"conditions": [ready, *others]}}, subresource="status")

    @property
    def machine(self) -> dict[str, Any] | None:
        return self.seed.objects.get((MACHINE, NAMESPACE, NAME))

    @property
    def phase(self) -> str:
        status = (self.machine or {}).get("status") or {}
        return str((status.get("currentStatus") or {}).get("phase", ""))

    @property
    def last_operation(self) -> dict[str, Any]:
        last: dict[str, Any] = ((self.machine or {}).get("status") or {}).get("lastOperation") or {}
        return last

    @property
    def pods(self) -> list[dict[str, Any]]:
        return self.cloud.of(POD)

    @asynccontextmanager
    async def controller(self, **config: Any) -> AsyncIterator[None]:
        seed_caches, shoot_caches, clouds = Caches(self.seed), Caches(self.shoot), OneCloud(self.cloud)
        settings = MachineControllerManagerConfig(namespace=NAMESPACE, **config)
        drivers = [LocalDriver(clouds)]
        made = MachineController(self.seed, seed_caches, self.shoot, shoot_caches, drivers, settings)
        running = asyncio.create_task(made.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for each in (seed_caches, shoot_caches, clouds):
                await each.close()


def _secret(name: str, data: dict[str, bytes]) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": encoded}


@pytest.fixture
async def world() -> World:
    world = World()
    await world.prepare()
    return world


async def test_a_machine_becomes_a_pod_that_knows_its_name_and_token(world: World) -> None:
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")

    (pod,) = world.pods
    assert pod["metadata"]["name"] == NAME
    assert pod["metadata"]["namespace"] == CLOUD_NAMESPACE
    assert pod["spec"]["hostname"] == NAME
    (token,) = world.shoot.of(SECRET)
    parts = [base64.b64decode(token["data"][key]).decode() for key in ("token-id", "token-secret")]
    (user_data,) = world.cloud.of(SECRET)
    script = base64.b64decode(user_data["data"]["userdata"]).decode()
    assert script == f"#!/bin/bash\ntoken='{'.'.join(parts)}' name='{NAME}'\n"
    assert token["metadata"]["name"] == f"bootstrap-token-{parts[0]}"
    group = base64.b64decode(token["data"]["auth-extra-groups"]).decode()
    assert group == f"system:bootstrappers:machine:{NAME}"
    assert world.machine is not None
    assert world.machine["metadata"]["finalizers"] == [FINALIZER_MACHINE_CONTROLLER_MANAGER]
    assert world.machine["spec"]["providerID"] == f"local:///{CLOUD_NAMESPACE}/{NAME}"


@pytest.mark.parametrize("step", ["token", "user data", "pod", "machine"])
async def test_a_controller_after_a_killed_one_creates_nothing_twice(world: World, step: str) -> None:
    """Each step gets through, then its answer is lost together with the process."""
    place = {"token": world.shoot, "user data": world.cloud, "pod": world.cloud, "machine": world.seed}[step]
    method = "patch" if step == "machine" else "create"
    original, kind = getattr(place, method), {"pod": "Pod", "machine": MACHINE}.get(step, "Secret")
    killed: list[bool] = []

    async def lose_answer(*args: Any, **options: Any) -> Any:
        answer = await original(*args, **options)
        about = args[0] if step == "machine" else args[0]["kind"]
        if about == kind and not killed and not (step == "machine" and "providerID" not in str(args)):
            killed.append(True)
            world.seed.wake()
            raise Unreachable(0, "connection lost", "x")
        return answer

    setattr(place, method, lose_answer)
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending" or killed)
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")

    assert killed
    assert len(world.pods) == 1
    assert len(world.shoot.of(SECRET)) == 1
    token = base64.b64decode(world.shoot.of(SECRET)[0]["data"]["token-secret"])
    assert token in base64.b64decode(world.cloud.of(SECRET)[0]["data"]["userdata"])


async def test_a_machine_runs_once_its_node_is_ready(world: World) -> None:
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node("False")
        await asyncio.sleep(0.05)
        assert world.phase == "Pending"
        await world.set_ready("True")
        await world.seed.until(lambda: world.phase == "Running")

    assert world.last_operation["state"] == "Successful"


async def test_a_machine_does_not_run_before_the_critical_components_of_its_node(world: World) -> None:
    """A rolling update takes away an old machine for each one that runs: pods could go nowhere."""
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node("True", taints=[{"key": TAINT_CRITICAL_COMPONENTS_NOT_READY, "effect": "NoSchedule"}])
        await world.seed.until(lambda: "critical components" in world.last_operation["description"])
        assert world.phase == "Pending"
        await world.shoot.patch(NODE, NAME, None, {"spec": {"taints": None}})
        await world.seed.until(lambda: world.phase == "Running")


async def test_a_node_gets_what_its_machine_says_and_keeps_what_others_gave_it(world: World) -> None:
    template = {"metadata": {"labels": {"pool": "a"}}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    await world.add_machine(nodeTemplate=template)
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        foreign = {"metadata": {"labels": {"foreign": "x"}}}
        await world.shoot.patch(NODE, NAME, None, foreign)
        await world.seed.until(lambda: world.phase == "Running")
        renamed = {
            "spec": {"nodeTemplate": {"metadata": {"labels": {"pool": None, "room": "b"}}, "spec": {"taints": []}}}
        }
        await world.seed.patch(MACHINE, NAME, NAMESPACE, renamed)
        node = world.shoot.objects
        await world.shoot.until(lambda: node[NODE, "", NAME]["metadata"]["labels"] == {"foreign": "x", "room": "b"})

    spec = world.shoot.objects[NODE, "", NAME]["spec"]
    assert spec == {"taints": [], "providerID": f"local:///{CLOUD_NAMESPACE}/{NAME}"}, "by which scalers know it"


def test_a_node_has_its_provider_id_once_and_for_all() -> None:
    """The API server would refuse another one, and with it all that the patch brings."""
    node = {"metadata": {}, "spec": {"providerID": "local:///before/it"}}
    patch = nodes.template_patch(node, {"metadata": {"labels": {"a": "b"}}}, "local:///after/it")

    assert patch is not None
    assert "spec" not in patch


async def test_wrong_credentials_are_shown_with_their_code_and_tried_again(world: World) -> None:
    world.cloud.refuse("create", SECRET, Unauthorized(401, "Unauthorized", "x"))
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "CrashLoopBackOff")

    assert world.last_operation["errorCode"] == "Unauthenticated"
    assert world.last_operation["state"] == "Failed"
    world.cloud.refuse("create", SECRET, None)
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")


@pytest.mark.parametrize("field", ["secretRef", "credentialsSecretRef"])
async def test_a_class_that_names_a_secret_elsewhere_is_refused_in_the_status_of_its_machines(
    world: World, field: str
) -> None:
    """A MachineClass means the Secret of the namespace that it names, not one of the same name beside it."""
    elsewhere = {field: {"namespace": "elsewhere"}}
    await world.seed.patch(MACHINE_CLASS, "class-a", NAMESPACE, elsewhere)
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "CrashLoopBackOff")

    assert world.last_operation["errorCode"] == "InvalidArgument"
    assert world.last_operation["description"].startswith(f"{field} of MachineClass class-a names Secret elsewhere/")


async def test_credentials_may_be_in_the_secret_with_the_user_data(world: World) -> None:
    data = (await world.seed.get(SECRET, "cloudprovider", NAMESPACE))["data"]
    await world.seed.patch(SECRET, "class-a", NAMESPACE, {"data": data})
    await world.seed.patch(MACHINE_CLASS, "class-a", NAMESPACE, {"credentialsSecretRef": None})
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")


async def test_a_machine_whose_node_never_comes_has_failed(world: World) -> None:
    await world.add_machine(creationTimeout="0s")
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Failed")

    assert "did not join within" in world.last_operation["description"]


def _lease_that_says(error: str) -> dict[str, Any]:
    annotations = {"node-agent.gardener.cloud/kubelet-error": error}
    metadata = {"name": f"gardener-node-agent-{NAME}", "namespace": "kube-system", "annotations": annotations}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


async def test_a_machine_that_waits_for_its_node_quotes_its_kubelet(world: World) -> None:
    """Its owner sees no log of a machine."""
    await world.shoot.create(_lease_that_says("invalid reservation" + "x" * 1000))
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: "kubelet" in world.last_operation.get("description", ""))

    assert (world.phase, world.last_operation["state"]) == ("Pending", "Processing")
    assert "Waiting for the node to join; its kubelet says: invalid res" in world.last_operation["description"]
    assert len(world.last_operation["description"]) < 400


async def test_a_machine_whose_node_never_came_quotes_its_kubelet(world: World) -> None:
    await world.shoot.create(_lease_that_says("invalid reservation"))
    await world.add_machine(creationTimeout="0s")
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Failed")

    assert "did not join within 0:00:00; its kubelet says: invalid reservation" in world.last_operation["description"]


async def test_a_machine_that_never_joined_leaves_no_lease(world: World) -> None:
    await world.shoot.create(_lease_that_says("invalid reservation"))
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.seed.delete(MACHINE, NAME, NAMESPACE)
        await world.seed.until(lambda: world.machine is None)

    assert world.shoot.of(LEASE) == []


async def test_a_lease_that_may_not_be_read_does_not_hold_a_machine(world: World) -> None:
    """In a cluster whose roles are of the version before."""
    world.shoot.refuse("get", LEASE, Forbidden(403, "Forbidden", "no"))
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.seed.until(lambda: world.phase == "Running")


async def test_a_machine_of_an_unready_node_is_unknown_first_and_failed_later(world: World) -> None:
    await world.add_machine()
    async with world.controller(health_timeout=timedelta(seconds=1)):
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.seed.until(lambda: world.phase == "Running")
        await world.set_ready("Unknown")
        await world.seed.until(lambda: world.phase == "Unknown")
        await world.seed.until(lambda: world.phase == "Failed")


@pytest.mark.parametrize("condition", ["KernelDeadlock", "ReadonlyFilesystem", "DiskPressure"])
async def test_a_ready_node_whose_kernel_or_disk_is_broken_costs_its_machine(world: World, condition: str) -> None:
    """The kubelet may still report that it is ready; node-problem-detector knows better."""
    await world.add_machine()
    async with world.controller(health_timeout=timedelta(seconds=1)):
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.seed.until(lambda: world.phase == "Running")
        await world.set_ready("True", {"type": condition, "status": "True", "reason": "Broken"})
        await world.seed.until(lambda: world.phase == "Unknown")
        assert world.last_operation["description"] == f"Machine is unhealthy: its node has {condition} (Broken)"
        await world.seed.until(lambda: world.phase == "Failed")


async def test_a_pool_that_names_its_own_conditions_is_judged_by_those_alone(world: World) -> None:
    await world.add_machine(nodeConditions="Flooded,OnFire")
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.set_ready("True", {"type": "KernelDeadlock", "status": "True"})
        await world.seed.until(lambda: world.phase == "Running")
        await world.set_ready("True", {"type": "OnFire", "status": "True"})
        await world.seed.until(lambda: world.phase == "Unknown")


async def test_a_machine_that_is_gone_in_the_cloud_has_failed_at_once(world: World) -> None:
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.cloud.delete(POD, NAME, CLOUD_NAMESPACE)
        await world.seed.until(lambda: world.phase == "Failed")


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"nodeName": NAME},
    }


async def test_a_deleted_machine_is_drained_before_it_is_stopped(world: World) -> None:
    """A budget without room holds the machine back; a DaemonSet's pod does not. Load balancers leave the node first."""
    refusals = [ApiError(429, "TooManyRequests", "evicting")]
    original = world.shoot.request

    async def evict(method: str, path: str, **options: Any) -> Any:
        await original(method, path, **options)
        (node,) = world.shoot.of(NODE)
        assert node["metadata"]["labels"][EXCLUDED_FROM_LOAD_BALANCERS] == "true"
        if refusals:
            raise refusals.pop()
        await world.shoot.delete(POD, path.split("/")[-2], "default")

    world.shoot.request = evict  # type: ignore[method-assign]
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.seed.until(lambda: world.phase == "Running")
        await world.shoot.create(pod("app"))
        await world.shoot.create(pod("daemon", ownerReferences=[{"kind": "DaemonSet", "name": "d", "uid": "d"}]))
        await world.seed.delete(MACHINE, NAME, NAMESPACE)
        await world.seed.until(lambda: world.phase == "Terminating")
        assert world.pods
        await world.seed.until(lambda: world.machine is None)

    assert not world.pods
    assert not world.cloud.of(SECRET)
    assert not world.shoot.of(SECRET)
    assert not world.shoot.of(POD), "no kubelet is left to confirm the end of the DaemonSet's pod"
    assert not world.shoot.of(NODE)
    evictions = [path for method, path, _ in world.shoot.requests if method == "POST"]
    assert evictions == ["/api/v1/namespaces/default/pods/app/eviction"] * 2


async def test_no_daemon_set_replaces_the_pods_of_a_machine_that_is_gone(world: World) -> None:
    """Its new pod would stand on no node, until the cluster notices after most of a minute."""
    owner = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d"}]}
    original = world.shoot.delete

    async def replaced(kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
        answer = await original(kind, name, *arguments, **options)
        if kind is POD and world.shoot.of(NODE):
            await world.shoot.create(pod(f"{name}-next", **owner))
        return answer

    world.shoot.delete = replaced  # type: ignore[assignment]
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.seed.until(lambda: world.phase == "Running")
        await world.shoot.create(pod("daemon", **owner))
        await world.seed.delete(MACHINE, NAME, NAMESPACE)
        await world.seed.until(lambda: world.machine is None)

    assert not world.shoot.of(POD)


async def test_a_webhook_that_does_not_let_pods_go_does_not_hold_a_machine(world: World) -> None:
    """Its backend is down as soon as the cluster hibernates, so the cluster would never be asleep."""
    refusal = ApiError(500, "InternalError", "deleting pods default/daemon", "failed calling webhook")
    owner = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d"}]}
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.seed.until(lambda: world.phase == "Running")
        await world.shoot.create(pod("daemon", **owner))
        world.shoot.refuse("delete", POD, refusal)
        await world.seed.delete(MACHINE, NAME, NAMESPACE)
        await world.seed.until(lambda: world.machine is None)

    assert not world.shoot.of(NODE)
    assert world.shoot.of(POD), "the cluster deletes it once the webhook answers"


def budget(name: str = "app", **status: int) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "app"}}},
        "status": {"observedGeneration": 1, **status},
    }


NEVER: dict[str, Any] = {"expectedPods": 1, "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0}
LATER: dict[str, Any] = {"expectedPods": 2, "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0}


async def occupy(world: World, *budgets: dict[str, Any], **spec: Any) -> None:
    """A machine with one pod that may not be evicted."""

    async def evict(_method: str, _path: str, **_: Any) -> Any:
        raise ApiError(429, "TooManyRequests", "evicting")

    world.shoot.request = evict  # type: ignore[assignment]
    await world.add_machine(**spec)
    await world.seed.until(lambda: world.phase == "Pending")
    await world.add_node()
    await world.seed.until(lambda: world.phase == "Running")
    await world.shoot.create(pod("app", labels={"app": "app"}))
    for each in budgets:
        made = await world.shoot.create(each)
        await world.shoot.patch(
            POD_DISRUPTION_BUDGET, made["metadata"]["name"], "default", {"status": each["status"]}, subresource="status"
        )
    await world.seed.delete(MACHINE, NAME, NAMESPACE)
    await world.seed.until(lambda: world.last_operation.get("type") == "Delete")


async def test_a_budget_that_never_permits_an_eviction_is_named_at_once_with_its_pod(world: World) -> None:
    async with world.controller():
        await occupy(world, budget(**NEVER))
        await world.seed.until(lambda: world.last_operation["state"] == "Failed")

    assert world.last_operation["errorCode"] == "FailedPrecondition"
    described = world.last_operation["description"]
    expected = "default/app: PodDisruptionBudget default/app is misconfigured and requires zero voluntary evictions"
    assert f"node {NAME} cannot be drained: {expected}" in described
    assert world.machine is not None
    deleted = datetime.fromisoformat(world.machine["metadata"]["deletionTimestamp"])
    assert f"at {deleted + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}" in described


async def test_two_budgets_for_one_pod_are_named(world: World) -> None:
    async with world.controller():
        await occupy(world, budget("one", **LATER), budget("two", **LATER))
        await world.seed.until(lambda: world.last_operation["state"] == "Failed")

    assert "PodDisruptionBudget default/one and PodDisruptionBudget default/two" in world.last_operation["description"]


async def test_a_budget_without_room_now_is_no_fault_until_half_of_the_timeout_is_over(world: World) -> None:
    async with world.controller():
        await occupy(world, budget(**LATER), drainTimeout="3s")
        await world.seed.until(lambda: "1 pods are left" in world.last_operation["description"])
        assert world.last_operation["state"] == "Processing"
        await world.seed.until(lambda: world.last_operation["state"] == "Failed")

    assert "default/app: PodDisruptionBudget default/app permits no eviction now" in world.last_operation["description"]


async def test_after_its_drain_timeout_a_machine_is_deleted_with_its_pods(world: World) -> None:
    async with world.controller():
        await occupy(world, budget(**LATER), drainTimeout="2s")
        await world.seed.until(lambda: world.machine is None)

    assert not world.shoot.of(POD)


async def test_after_its_retries_pods_are_deleted_instead_of_evicted(world: World) -> None:
    async with world.controller():
        await occupy(world, budget(**NEVER), maxEvictRetries=0)
        await world.seed.until(lambda: world.machine is None)

    assert ("delete", "Pod", "app") in world.shoot.requests


async def test_a_cluster_that_is_deleted_is_not_drained(world: World) -> None:
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.add_node()
        await world.shoot.create(pod("app"))
        await world.seed.patch(MACHINE, NAME, NAMESPACE, {"metadata": {"labels": {"force-deletion": "True"}}})
        await world.seed.delete(MACHINE, NAME, NAMESPACE)
        await world.seed.until(lambda: world.machine is None)

    assert not [path for method, path, _ in world.shoot.requests if method == "POST"]
    assert not world.pods


async def test_a_machine_without_its_class_can_still_go(world: World) -> None:
    await world.add_machine()
    async with world.controller():
        await world.seed.until(lambda: world.phase == "Pending")
        await world.cloud.delete(POD, NAME, CLOUD_NAMESPACE)
        await world.seed.delete(MACHINE_CLASS, "class-a", NAMESPACE)
        await world.seed.delete(MACHINE, NAME, NAMESPACE)
        await world.seed.until(lambda: world.machine is None)


def test_every_placeholder_is_replaced() -> None:
    filled = fill_in(USER_DATA + USER_DATA, "m", "id.secret")

    assert b"<<" not in filled
    assert filled.count(b"id.secret") == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400), ("10m0s", 600), ("0s", 0), ("1.5h", 5400), (None, 7), ("", 7)]
)
def test_durations_are_read_as_go_writes_them(text: str | None, seconds: int) -> None:
    assert duration(text, timedelta(seconds=7)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("changes", "evictable"),
    [
        ({}, True),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, False),
        ({"metadata": {"ownerReferences": [{"kind": "DaemonSet"}]}}, False),
        ({"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}]}}, True),
        ({"status": {"phase": "Succeeded"}}, False),
    ],
)
def test_a_drain_selects_the_pods_to_evict(changes: dict[str, Any], evictable: bool) -> None:
    assert nodes.is_evictable({"metadata": {}, **changes}) is evictable


def test_a_node_with_a_kernel_deadlock_counts_as_not_ready() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "KernelDeadlock", "status": "True"}]

    assert nodes.fault({"status": {"conditions": conditions}}) == "its node has KernelDeadlock"
    assert nodes.fault({"status": {"conditions": conditions}}, bad=()) is None
    well = [conditions[0], {"type": "KernelDeadlock", "status": "False"}]
    assert nodes.fault({"status": {"conditions": well}}) is None

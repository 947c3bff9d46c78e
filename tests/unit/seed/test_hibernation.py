"""Putting a control plane to sleep, keeping it asleep and waking it, between API servers in memory."""

import asyncio
import copy

import pytest

from activities.components import etcd as etcd_component
from activities.seed.etcd import EtcdActivities
from activities.seed.hibernation import HibernationActivities
from api.contracts.operations import OperationType
from tests.unit.components.test_control_plane import NAMESPACE, SHOOT, TASK, world
from tests.unit.kube.waiting import until

__all__ = ["world"]

DEPLOYMENTS = "/apis/apps/v1/deployments"
ETCDS = "/apis/druid.gardener.cloud/v1alpha1/etcds"
LABELS = {"gardener.cloud/role": "controlplane"}
ON_API_SERVER = ("gardener-resource-manager", "kube-controller-manager", "machine-controller-manager")
AGAIN = TASK.model_copy(update={"operation": OperationType.RECONCILE})
DELETE = TASK.model_copy(update={"operation": OperationType.DELETE})
MIGRATE = TASK.model_copy(update={"operation": OperationType.MIGRATE, "destination": "seed-2"})


LOST_POD = {"metadata": {"name": "web", "namespace": "default", "uid": "lost"}, "status": {"phase": "Running"}}


def asleep(wanted=True):
    return {**SHOOT, "spec": {**SHOOT["spec"], "hibernation": {"enabled": wanted}}}


def run_pods(seed, name, replicas=1):
    seed.put(
        DEPLOYMENTS,
        {
            "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1, "labels": LABELS},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}},
            "status": {"observedGeneration": 1, "replicas": replicas},
        },
    )
    if replicas:
        seed.put("/api/v1/pods", {"metadata": {"name": f"{name}-1", "namespace": NAMESPACE, "labels": {"app": name}}})


def run_etcd(seed, role):
    name = etcd_component.name_of(role)
    labels = {"instance": name}
    seed.put(
        ETCDS,
        {
            "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1},
            "spec": {"replicas": 1},
            "status": {"observedGeneration": 1, "replicas": 1, "labelSelector": {"matchLabels": labels}},
        },
    )
    seed.put("/api/v1/pods", {"metadata": {"name": f"{name}-0", "namespace": NAMESPACE, "labels": labels}})


def replicas(seed, name):
    return seed.find(DEPLOYMENTS, name, NAMESPACE)["spec"]["replicas"]


class Kubelet:
    """Ends the pods of workloads that have no replicas any more, and records the order."""

    def __init__(self, seed):
        self.seed, self.stopped = seed, []

    async def run(self):
        while True:
            for (path, _, name), item in list(self.seed.objects.items()):
                if path in (DEPLOYMENTS, ETCDS) and not item["spec"]["replicas"] and item["status"].get("replicas"):
                    self.stopped.append(name)
                    pod = f"{name}-0" if path == ETCDS else f"{name}-1"
                    self.seed.remove("/api/v1/pods", pod, NAMESPACE)
                    done = {"observedGeneration": item["metadata"]["generation"], "replicas": 0}
                    annotations = {"gardener.cloud/operation": None}
                    self.seed.change(path, name, NAMESPACE, {"metadata": {"annotations": annotations}, "status": done})
            await asyncio.sleep(0.01)


@pytest.fixture
async def control_plane(world, monkeypatch):
    for name in (*ON_API_SERVER, "kube-apiserver"):
        run_pods(world.seed, name)
    for role in etcd_component.ROLES:
        run_etcd(world.seed, role)
    exposure = {"metadata": {"name": "apiserver-exposure", "namespace": NAMESPACE, "uid": "x"}}
    world.seed.put("/api/v1/configmaps", exposure)
    world.pin(asleep())

    async def shoot(_):
        return world.shoot.client()

    monkeypatch.setattr(world.clusters, "shoot", shoot)
    world.activities = HibernationActivities(world.clusters)
    world.kubelet = Kubelet(world.seed)
    kubelet = asyncio.create_task(world.kubelet.run())
    yield world
    kubelet.cancel()


async def test_clients_of_the_api_server_stop_first_and_etcd_last(control_plane):
    """Controllers without their API server would crash, and an API server without etcd would lose writes."""
    await control_plane.activities.hibernate_control_plane(AGAIN)

    stopped = control_plane.kubelet.stopped
    assert set(stopped[: len(ON_API_SERVER)]) == set(ON_API_SERVER)
    assert stopped[len(ON_API_SERVER)] == "kube-apiserver"
    assert set(stopped[len(ON_API_SERVER) + 1 :]) == {"etcd-main", "etcd-events"}
    assert not [place for place in control_plane.seed.objects if place[0] == "/api/v1/pods"]
    assert control_plane.seed.find("/api/v1/configmaps", "apiserver-exposure", NAMESPACE) is None


async def test_the_last_changes_are_backed_up_before_etcd_stops(control_plane, monkeypatch):
    """Its seed may be lost while it sleeps."""
    asked = []

    async def ask(_, namespace, path, doing):
        asked.append((namespace, path, list(control_plane.kubelet.stopped)))

    monkeypatch.setattr("activities.seed.hibernation.ask_sidecar", ask)
    control_plane.seed.change(ETCDS, "etcd-main", NAMESPACE, {"spec": {"backup": {"store": {"prefix": "entry"}}}})
    for _ in range(2):
        await control_plane.activities.hibernate_control_plane(AGAIN)
    ((namespace, path, stopped),) = asked
    assert (namespace, path) == (NAMESPACE, "snapshot/delta")
    assert "kube-apiserver" in stopped
    assert "etcd-main" not in stopped


async def test_asleep_already_a_second_run_writes_nothing(control_plane):
    await control_plane.activities.hibernate_control_plane(AGAIN)
    await asyncio.sleep(0.05)
    before = {place: item["metadata"]["resourceVersion"] for place, item in control_plane.seed.objects.items()}
    await control_plane.activities.hibernate_control_plane(AGAIN)

    assert {k: v["metadata"]["resourceVersion"] for k, v in control_plane.seed.objects.items()} == before


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/api/v1/nodes", {"metadata": {"name": "machine-1"}}),
        ("/api/v1/pods", {**LOST_POD, "metadata": {**LOST_POD["metadata"], "finalizers": ["example.org/kept"]}}),
        (
            "/apis/discovery.k8s.io/v1/endpointslices",
            {
                "metadata": {
                    "name": "web",
                    "namespace": "default",
                    "labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["100.112.3.4"]}],
            },
        ),
    ],
    ids=["node", "pod", "address"],
)
async def test_nothing_stops_while_the_cluster_is_not_empty(control_plane, path, left):
    """A controller manager that sleeps with old facts would act on them when it wakes."""
    control_plane.shoot.put(path, left)
    working = asyncio.create_task(control_plane.activities.hibernate_control_plane(AGAIN))
    await until(lambda: control_plane.shoot.watching >= 3)
    assert control_plane.kubelet.stopped == []

    control_plane.shoot.remove(path, left["metadata"]["name"], left["metadata"].get("namespace"))
    await working
    assert "etcd-main" in control_plane.kubelet.stopped


async def test_pods_of_machines_that_are_gone_are_deleted_at_once(control_plane):
    """kube-controller-manager would wait for a minute. While there is a node, its pods may run."""
    control_plane.shoot.put("/api/v1/pods", LOST_POD)
    control_plane.shoot.put("/api/v1/nodes", {"metadata": {"name": "machine-1"}})
    working = asyncio.create_task(control_plane.activities.hibernate_control_plane(AGAIN))
    await until(lambda: control_plane.shoot.watching >= 3)
    assert control_plane.shoot.find("/api/v1/pods", "web", "default")

    control_plane.shoot.remove("/api/v1/nodes", "machine-1")
    await working
    assert control_plane.shoot.find("/api/v1/pods", "web", "default") is None


async def test_after_the_wake_up_no_component_waits_for_a_leader_that_has_stopped(control_plane):
    path = "/apis/coordination.k8s.io/v1/leases"
    for name in ("kube-controller-manager", "kube-scheduler", "of-a-user"):
        control_plane.shoot.put(path, {"metadata": {"name": name, "namespace": "kube-system"}})
    await control_plane.activities.hibernate_control_plane(AGAIN)
    assert [name for kind, _, name in control_plane.shoot.objects if kind == path] == ["of-a-user"]


async def test_remaining_objects_are_named_after_the_timeout(control_plane, monkeypatch):
    monkeypatch.setattr("activities.seed.hibernation._EMPTY_SECONDS", 0.2)
    control_plane.shoot.put("/api/v1/nodes", {"metadata": {"name": "machine-1"}})
    with pytest.raises(TimeoutError, match=r"nodes are left after 0 s: machine-1"):
        await control_plane.activities.hibernate_control_plane(AGAIN)


async def test_volumes_are_no_longer_attached_to_machines_that_are_gone(control_plane):
    path = "/apis/storage.k8s.io/v1/volumeattachments"
    control_plane.shoot.put(path, {"metadata": {"name": "csi-1", "uid": "u", "finalizers": ["driver"]}})
    await control_plane.activities.hibernate_control_plane(AGAIN)

    assert control_plane.shoot.find(path, "csi-1") is None


async def test_drivers_of_machines_that_are_gone_are_forgotten(control_plane):
    """A machine of a wake-up may have the name of one of them."""
    path = "/apis/storage.k8s.io/v1/csinodes"
    control_plane.shoot.put(path, {"metadata": {"name": "machine-1", "uid": "u"}})
    await control_plane.activities.hibernate_control_plane(AGAIN)

    assert control_plane.shoot.find(path, "machine-1") is None


async def test_the_machine_controller_manager_stops_alone(control_plane):
    await control_plane.activities.scale_machine_controller_manager_to_zero(AGAIN)
    assert control_plane.kubelet.stopped == ["machine-controller-manager"]


async def test_the_autoscaler_does_not_scale_machines_before_hibernation(control_plane):
    """A Shoot whose pools may not grow has no autoscaler, and a second run finds it stopped."""
    await control_plane.activities.scale_autoscaler_to_zero(AGAIN)
    assert control_plane.kubelet.stopped == []

    run_pods(control_plane.seed, "cluster-autoscaler")
    for _ in range(2):
        await control_plane.activities.scale_autoscaler_to_zero(AGAIN)
        assert control_plane.kubelet.stopped == ["cluster-autoscaler"]
        assert control_plane.seed.find("/api/v1/pods", "cluster-autoscaler-1", NAMESPACE) is None
    assert [method for method, _ in control_plane.seed.requests].count("PATCH") == 1


async def deploy_all(world, task):
    deployed = world.control_plane
    await deployed.deploy_apiserver(task)
    await deployed.deploy_kube_controller_manager(task)
    await deployed.deploy_scheduler(task)
    await deployed.deploy_vpn_server(task)
    await deployed.deploy_machine_controller_manager(task)
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "vpn-seed-server", ON_API_SERVER[2])
    return {name: replicas(world.seed, name) for name in names}


async def test_a_reconciliation_of_a_sleeping_shoot_wakes_nothing(world):
    world.pin(asleep())
    assert set((await deploy_all(world, TASK)).values()) == {0}
    await world.control_plane.deploy_resource_manager(AGAIN)
    assert replicas(world.seed, "gardener-resource-manager") == 0
    assert (await world.control_plane.init_shoot_client(AGAIN)).note == "asleep"
    assert (await world.control_plane.deploy_apiserver_sni(AGAIN)).note == "asleep"
    assert world.shoot.requests == []


async def test_during_hibernation_only_the_scheduler_is_stopped_first(world):
    """Machines must still be deleted, and nodes removed."""
    world.pin(asleep(wanted=False))
    assert set((await deploy_all(world, TASK)).values()) == {1}
    world.pin(asleep())
    found = await deploy_all(world, AGAIN)
    assert found.pop("kube-scheduler") == 0
    assert set(found.values()) == {1}


@pytest.mark.parametrize("task", [AGAIN, DELETE, MIGRATE], ids=["wakes", "deleted", "leaves"])
async def test_a_shoot_that_wakes_or_goes_gets_its_control_plane_back(world, task):
    world.pin(asleep())
    await deploy_all(world, TASK)
    world.pin(asleep(wanted=task is not AGAIN))
    assert set((await deploy_all(world, task)).values()) == {1}


async def test_etcds_are_stopped_only_by_the_last_step(world):
    """Their replicas stay what they are: an API server may still be writing."""
    world.garden.put("/apis/core.gardener.cloud/v1beta1/seeds", {"metadata": {"name": "seed-1"}, "spec": {}})
    etcds = EtcdActivities(world.clusters)

    async def deployed(shoot, task, trigger):
        world.pin(copy.deepcopy(shoot))
        await etcds.deploy_etcds(task.model_copy(update={"trigger": trigger}))
        return world.seed.find(ETCDS, "etcd-main", NAMESPACE)["spec"]["replicas"]

    assert await deployed(asleep(wanted=False), TASK, "1") == 1
    assert await deployed(asleep(), AGAIN, "2") == 1
    world.seed.change(ETCDS, "etcd-main", NAMESPACE, {"spec": {"replicas": 0}})
    assert await deployed(asleep(), AGAIN, "3") == 0
    for trigger, task in enumerate((DELETE, MIGRATE), start=4):
        assert await deployed(asleep(), task, f"{trigger}") == 1
        world.seed.change(ETCDS, "etcd-main", NAMESPACE, {"spec": {"replicas": 0}})
    assert await deployed(asleep(wanted=False), AGAIN, "6") == 1

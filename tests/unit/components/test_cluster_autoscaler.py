"""A Shoot's cluster autoscaler: its flags, its rights, and when it is deployed."""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from activities.components import cluster_autoscaler
from activities.seed.autoscaler import AutoscalerActivities
from api.core.v1beta1.shoot import ClusterAutoscaler
from api.extensions.v1alpha1.worker import MachineDeploymentStatus
from tests.unit.components.test_control_plane import NAMESPACE, SHOOT, TASK, World, world
from workers.autoscaler_provider.config import AutoscalerProviderConfig

__all__ = ["world"]

CONFIG_MAPS = "/api/v1/configmaps"
DEPLOYMENTS = "/apis/apps/v1/deployments"
WORKERS = "/apis/extensions.gardener.cloud/v1alpha1/workers"
NAME = "cluster-autoscaler"
GROUPS = [{"name": "a-z1", "minimum": 1, "maximum": 3}, {"name": "b-z1", "minimum": 0, "maximum": 1}]


def wanted(groups: list[dict[str, Any]] = GROUPS, **settings: Any) -> cluster_autoscaler.Autoscaler:
    return cluster_autoscaler.Autoscaler(
        namespace=NAMESPACE,
        generic_kubeconfig="generic",
        settings=ClusterAutoscaler.model_validate(settings),
        node_groups=[MachineDeploymentStatus.model_validate(each) for each in groups],
        max_nodes=9,
    )


def flags(autoscaler: cluster_autoscaler.Autoscaler) -> dict[str, list[str]]:
    (container,) = cluster_autoscaler.objects(autoscaler)[-1]["spec"]["template"]["spec"]["containers"]
    found: dict[str, list[str]] = {}
    for argument in container["command"][1:]:
        name, _, value = argument.removeprefix("--").partition("=")
        found.setdefault(name, []).append(value)
    return found


def test_the_autoscaler_uses_gardeners_defaults() -> None:
    expected = {
        "expander": "least-waste",
        "scale-down-delay-after-add": "1h",
        "scale-down-delay-after-delete": "0s",
        "scale-down-delay-after-failure": "3m",
        "scale-down-unneeded-time": "30m",
        "scale-down-utilization-threshold": "0.5",
        "scan-interval": "10s",
        "max-node-provision-time": "20m",
        "max-graceful-termination-sec": "600",
        "ignore-daemonsets-utilization": "false",
        "v": "2",
        "new-pod-scale-up-delay": "0s",
        "max-scale-down-parallelism": "10",
        "max-drain-parallelism": "1",
        "initial-node-group-backoff-duration": "5m",
        "max-node-group-backoff-duration": "30m",
        "node-group-backoff-reset-timeout": "3h",
        "emit-per-nodegroup-metrics": "false",
        "max-binpacking-time": "5m",
        "max-nodes-total": "9",
        "balance-similar-node-groups": "true",
        "skip-nodes-with-system-pods": "false",
        "skip-nodes-with-local-storage": "false",
        "startup-taint": "node.gardener.cloud/critical-components-not-ready",
    }
    assert flags(wanted()).items() >= {name: [value] for name, value in expected.items()}.items()


def test_settings_of_the_owner_become_flags() -> None:
    said = flags(
        wanted(scaleDownUnneededTime="5m", verbosity=4, startupTaints=["a"], ignoreTaints=["b"], statusTaints=["c"])
    )
    assert (said["scale-down-unneeded-time"], said["v"]) == (["5m"], ["4"])
    assert {"a", "b"} < set(said["startup-taint"])
    assert said["status-taint"] == ["c"]


@pytest.mark.parametrize(
    ("asked", "expander"),
    [("least-waste", "priority,least-waste"), ("random,priority", "random,priority"), (None, "priority")],
)
def test_pools_with_a_priority_are_tried_in_its_order(asked: str | None, expander: str) -> None:
    groups = [{**GROUPS[0], "priority": 50}, GROUPS[1]]
    autoscaler = wanted(groups, expander=asked)
    (order,) = (
        each for each in cluster_autoscaler.shoot_objects(autoscaler.node_groups) if each["kind"] == "ConfigMap"
    )

    assert flags(autoscaler)["expander"] == [expander]
    assert order["metadata"] == {"name": "cluster-autoscaler-priority-expander", "namespace": "kube-system"}
    assert yaml.safe_load(order["data"]["priorities"]) == {50: ["^a-z1$"], 0: ["^b-z1$"]}


def test_without_priorities_the_owners_config_map_stays() -> None:
    """A user that configures the expander brings its ConfigMap: it must not be overwritten."""
    autoscaler = wanted(expander="priority")

    assert "ConfigMap" not in {each["kind"] for each in cluster_autoscaler.shoot_objects(autoscaler.node_groups)}


def test_only_the_autoscaler_reaches_its_provider() -> None:
    objects = cluster_autoscaler.objects(wanted())
    config, deployment = (
        next(each for each in objects if each["kind"] == kind) for kind in ("ConfigMap", "Deployment")
    )
    pod = deployment["spec"]["template"]["spec"]
    (provider,), (main,) = pod["initContainers"], pod["containers"]
    read = json.loads(config["data"]["config.yaml"])

    assert provider["restartPolicy"] == "Always", "it runs beside the autoscaler, and before it"
    assert json.loads(config["data"]["cloud-config.yaml"]) == {"address": f"unix:{read['socket']}"}
    (shared,) = (volume["name"] for volume in pod["volumes"] if "emptyDir" in volume)
    for container, writes in ((provider, True), (main, False)):
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == shared)
        assert read["socket"].startswith(f"{mount['mountPath']}/")
        assert bool(mount.get("readOnly")) is not writes
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
        file = re.search(rf"{mount['mountPath']}/(\S+)", " ".join(container["command"]))
        assert file
        assert file[1] in config["data"]
    assert read["nodeGroups"] == GROUPS
    assert "kubeconfig" not in {each["name"] for each in provider["volumeMounts"]}


def test_the_autoscaler_may_only_scale_in_the_seed() -> None:
    (role,) = (each for each in cluster_autoscaler.objects(wanted()) if each["kind"] == "Role")
    may = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}

    assert may == {"machinedeployments": ["get", "list", "patch"], "machines": ["list"], "machineclasses": ["get"]}


def test_the_autoscaler_may_evict_pods_and_taint_nodes_and_read_no_secret() -> None:
    rules = [rule for made in cluster_autoscaler.shoot_objects([]) for rule in made.get("rules", [])]
    writes = {
        (resource, *rule.get("resourceNames", [])): verbs
        for rule in rules
        for resource in rule["resources"]
        if (verbs := set(rule["verbs"]) - {"get", "list", "watch"})
    }

    assert writes == {
        ("events",): {"create", "patch"},
        ("pods/eviction",): {"create"},
        ("pods/status",): {"update"},
        ("nodes",): {"update"},
        ("configmaps",): {"create"},
        ("configmaps", "cluster-autoscaler-status"): {"delete", "update"},
        ("leases",): {"create"},
        ("leases", "cluster-autoscaler"): {"update"},
    }
    assert not {"secrets", "*"} & {resource for rule in rules for resource in rule["resources"]}


# The activities


def pin(
    world: World, *bounds: tuple[int, int], kubelets: Mapping[str, dict[str, Any]] | None = None, **spec: Any
) -> None:
    """Pin a Shoot with pools of these bounds; ``kubelets`` are settings of a pool's own kubelets."""
    workers: list[dict[str, Any]] = []
    for index, (low, high) in enumerate(bounds):
        own = (kubelets or {}).get(f"p{index}")
        settings = {"kubernetes": {"kubelet": own}} if own else {}
        workers.append({"name": f"p{index}", "minimum": low, "maximum": high, **settings})
    shoot = {**SHOOT, "spec": {**SHOOT["spec"], "provider": {"type": "local", "workers": workers}, **spec}}
    world.pin(shoot, limits={"maxNodesTotal": 7})


@pytest.fixture
def elastic(world: World) -> World:
    """With a pool that may grow, and a Worker that says what it has made of it."""
    pin(world, (1, 1), (1, 3), kubelets={"p1": {"kubeReserved": {"cpu": 1}}})
    worker = {"metadata": {"name": "a", "namespace": NAMESPACE}, "status": {"machineDeployments": GROUPS}}
    world.seed.put(WORKERS, worker)
    return world


async def test_the_autoscaler_scales_the_machine_deployments_of_the_worker(elastic: World) -> None:
    result = await AutoscalerActivities(elastic.clusters).deploy_autoscaler(TASK)

    deployment = elastic.seed.find(DEPLOYMENTS, NAME, NAMESPACE)
    (config,) = (item for (path, _, _), item in elastic.seed.objects.items() if path == CONFIG_MAPS)
    assert deployment["spec"]["replicas"] == 1
    assert "--max-nodes-total=7" in deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    read = json.loads(config["data"]["config.yaml"])
    assert read["nodeGroups"] == GROUPS
    kubelets = AutoscalerProviderConfig.model_validate(read).kubelets
    assert {pool: each.kube_reserved["cpu"] for pool, each in kubelets.items()} == {"p0": "80m", "p1": 1}
    assert result.note == "a-z1 1-3, b-z1 0-1"
    secret = elastic.secret("managedresource-shoot-core-cluster-autoscaler")
    kinds = {json.loads(base64.b64decode(text))["kind"] for text in secret["data"].values()}
    assert kinds == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


async def test_a_second_run_writes_nothing(elastic: World) -> None:
    activities = AutoscalerActivities(elastic.clusters)
    await activities.deploy_autoscaler(TASK)
    seen = len(elastic.seed.requests)
    await activities.deploy_autoscaler(TASK)
    assert {method for method, _ in elastic.seed.requests[seen:]} == {"GET"}


@pytest.mark.parametrize("how", ["no pool may grow", "it is deleted"])
async def test_an_unwanted_component_is_removed_completely(elastic: World, how: str) -> None:
    activities = AutoscalerActivities(elastic.clusters)
    there = set(elastic.seed.objects)
    await activities.deploy_autoscaler(TASK)
    if how == "no pool may grow":
        pin(elastic, (1, 1), (2, 2))
        assert (await activities.deploy_autoscaler(TASK)).note == "no pool has a maximum above its minimum"
    else:
        await activities.delete_autoscaler(TASK)

    assert set(elastic.seed.objects) == there


async def test_a_deletion_waits_for_pods_that_still_scale(elastic: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.seed.autoscaler._POD_SECONDS", 0.2)
    pod = {"metadata": {"name": "scales", "namespace": NAMESPACE, "labels": {"app": NAME}}, "status": {}}
    elastic.seed.put("/api/v1/pods", pod)

    with pytest.raises(TimeoutError, match="pods in shoot--dev--a"):
        await AutoscalerActivities(elastic.clusters).delete_autoscaler(TASK)


async def test_a_failure_tolerant_shoot_has_two_replicas(elastic: World) -> None:
    pin(elastic, (1, 2), controlPlane={"highAvailability": {"failureTolerance": {"type": "node"}}})
    await AutoscalerActivities(elastic.clusters).deploy_autoscaler(TASK)
    assert elastic.seed.find(DEPLOYMENTS, NAME, NAMESPACE)["spec"]["replicas"] == 2

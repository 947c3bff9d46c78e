"""Our processes as pods of the charts: they make a cluster, share the work, and one of two may die.

``make test-charts``; ``GARDENER_TEST_LANDSCAPE=NAME`` takes a landscape that is up, started with ``--workers none``.
"""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from landscape import plan as plans
from tests.charts import releases
from tests.charts.releases import CLUSTER, DEPLOYMENTS, NAMESPACE, REPLICAS
from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.shoots import CREATION, Shoot, eventually, refused, started, temporal
from tests.landscape.shoots import NAMESPACE as SHOOTS

pytestmark = [pytest.mark.charts, pytest.mark.timeout(900, func_only=True)]

_KILLED_AFTER = "wait_etcds"
"""Once this task has started, one replica of each Deployment is killed; the creation is still running then."""
_LEADERS = ("gardenlet",)
"""Those whose lease is in the seed."""


@pytest.fixture(scope="module")
def landscape() -> Iterator[Landscape]:
    """One that runs none of our processes, with all charts installed."""
    given = os.environ.get("GARDENER_TEST_LANDSCAPE")
    landscape = Landscape(given or "test-charts")
    if not given:
        landscape.gardener("up", "--workers", "none", timeout=25 * 60)
    releases.install(landscape)
    yield landscape
    if given:
        releases.uninstall(landscape)
    else:
        landscape.down()


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot that was created while one replica of each worker was killed."""
    shoot = Shoot(landscape, "charts", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest())
    asyncio.run(_kill_leaders(shoot))
    shoot.wait_for_state("Succeeded", 2 * CREATION)
    yield shoot
    shoot.remove()


async def _kill_leaders(shoot: Shoot) -> None:
    client = await temporal(shoot.landscape)
    await started(client, shoot, _KILLED_AFTER)
    victims = [_victim(shoot.landscape, name) for name in sorted(DEPLOYMENTS)]
    kubectl(shoot.landscape, "delete", "pod", "--grace-period=0", "--force", "--wait=false", *victims)


def _victim(landscape: Landscape, deployment: str) -> str:
    """The leading pod, if the lease is in this cluster; otherwise any pod."""
    pods = pods_of(landscape, deployment)
    lease = kubectl(
        landscape, "get", "lease", deployment, "--ignore-not-found", "-o", "jsonpath={.spec.holderIdentity}"
    )
    [leader] = [pod for pod in pods if lease.startswith(f"{pod}_")] or [pods[0]]
    return leader


def kubectl(landscape: Landscape, *arguments: str, stdin: str | None = None) -> str:
    return landscape.kubectl(CLUSTER, "-n", NAMESPACE, *arguments, stdin=stdin)


def pods_of(landscape: Landscape, deployment: str) -> list[str]:
    selector = f"app.kubernetes.io/name={deployment}"
    listed = kubectl(landscape, "get", "pods", "-l", selector, "--field-selector=status.phase=Running", "-o", "name")
    return sorted(name.removeprefix("pod/") for name in listed.split())


def test_every_worker_has_its_replicas_and_they_are_ready(landscape: Landscape) -> None:
    deployments = json.loads(kubectl(landscape, "get", "deployments", "-o", "json"))["items"]
    ready = {each["metadata"]["name"]: each["status"].get("readyReplicas") for each in deployments}
    assert {name: ready.get(name) for name in DEPLOYMENTS} == dict.fromkeys(DEPLOYMENTS, REPLICAS)


def test_one_gardenlet_leads(landscape: Landscape) -> None:
    holder = kubectl(landscape, "get", "lease", "gardenlet", "-o", "jsonpath={.spec.holderIdentity}")
    assert holder.split("_")[0] in pods_of(landscape, "gardenlet")


def test_a_cluster_is_made_though_one_replica_of_each_worker_dies(shoot: Shoot) -> None:
    assert shoot.get()["status"]["lastOperation"]["state"] == "Succeeded"
    [row] = shoot.flows()
    assert (row["operation"], row["attempt"], row["state"]) == ("Create", "1", "Completed")
    [node] = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"


async def test_replicas_share_the_work(shoot: Shoot) -> None:
    """The history names the worker that started an activity: process and host, which is the pod."""
    client = await temporal(shoot.landscape)
    [row] = shoot.flows()
    history = await client.get_workflow_handle(row["workflowId"]).fetch_history()
    hosts = {
        event.activity_task_started_event_attributes.identity.split("@", 1)[1]
        for event in history.events
        if event.HasField("activity_task_started_event_attributes")
    }
    assert len([host for host in hosts if host.startswith("gardenlet-")]) >= 2, hosts


def test_killed_replicas_are_replaced_and_other_replicas_lead(shoot: Shoot) -> None:
    for name in sorted(DEPLOYMENTS):
        eventually(lambda: len(pods_of(shoot.landscape, name)) == REPLICAS, f"all pods of {name}", 120)
    for name in _LEADERS:
        transitions = kubectl(shoot.landscape, "get", "lease", name, "-o", "jsonpath={.spec.leaseTransitions}")
        assert int(transitions) >= 1, name


def test_admission_answers_from_its_pods(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> None:
    shoot = Shoot(landscape, "nowhere", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest(cloudProfile={"name": "nowhere"})
    path = landscape.directory / "kubeconfigs/garden.yaml"
    said = refused(BIN / "kubectl", f"--kubeconfig={path}", "apply", "-f", "-", stdin=json.dumps(manifest))
    assert "admission.gardener.cloud" in said
    assert "nowhere" in said


def test_pods_of_admission_authorize_a_gardenlet(shoot: Shoot) -> None:
    """No role does: by it seed-2, where the cluster is not, would see its key, too."""
    argv = shoot.landscape.argv("garden", "-n", SHOOTS, "get", "secret", f"{shoot.name}.ssh-keypair", "-o", "name")
    argv.append("--as-group=gardener.cloud:system:seeds")

    assert run(*argv, f"--as=gardener.cloud:system:seed:{CLUSTER}")
    assert "nothing of seed seed-2 needs that" in refused(*argv, "--as=gardener.cloud:system:seed:seed-2")


def test_a_user_gets_a_kubeconfig_of_a_shoot_through_the_pods_of_the_front_door(shoot: Shoot) -> None:
    """The documented command, at the address of the chart's front door. Its access log shows the way of both requests:
    to the subresource servers, and with the user of the certificate to kube-apiserver."""
    path = f"/apis/core.gardener.cloud/v1beta1/namespaces/{SHOOTS}/shoots/{shoot.name}"
    request = json.dumps({"spec": {"expirationSeconds": 600}})
    at_door = _at_front_door(shoot.landscape)

    answer = json.loads(run(*at_door, "create", "--raw", f"{path}/adminkubeconfig", "-f", "-", stdin=request))
    found = json.loads(run(*at_door, "get", "--raw", path))

    kubeconfig = json.loads(base64.b64decode(answer["status"]["kubeconfig"]))
    assert {each["cluster"]["server"] for each in kubeconfig["clusters"]} <= {
        each["url"] for each in found["status"]["advertisedAddresses"]
    }
    way = {f"{path}/adminkubeconfig": "subresources", path: "kube-apiserver-with-identity"}
    eventually(lambda: way.items() <= _way_of_requests(shoot.landscape).items(), "lines of the access log", 60)


def _at_front_door(landscape: Landscape) -> list[str | Path]:
    """kubectl as the garden's administrator, in the garden's network, which reaches the nodes of the seed."""
    plan = plans.load(landscape.name)
    assert plan is not None
    port = kubectl(landscape, "get", "service", "gardener-front-door", "-o", "jsonpath={.spec.ports[0].nodePort}")
    server = f"--server=https://{releases.front_door_address(plan)}:{port}"
    enter = ["nsenter", f"--net=/run/netns/{plan.garden.netns}"]
    return [*enter, BIN / "kubectl", f"--kubeconfig={plan.kubeconfig('garden')}", server]


def _way_of_requests(landscape: Landscape) -> dict[str, str]:
    """Servers to which the front door has sent requests, by path."""
    logged = kubectl(landscape, "logs", "-l", "role=front-door", "-c", "envoy", "--tail=-1")
    lines = [json.loads(line) for line in logged.splitlines() if '"logger":"access"' in line]
    return {each["path"]: each["upstream"] for each in lines}


def test_the_resource_manager_of_the_seed_applies_after_its_pods_have_died(landscape: Landscape) -> None:
    """The gardenlet deploys it with its own rights in the seed, which are those of its chart."""
    pods = "pods", "--selector=app=gardener-resource-manager"
    eventually(lambda: kubectl(landscape, "get", *pods, "-o", "name"), "the resource manager of the seed", 180)
    kubectl(landscape, "wait", *pods, "--for=condition=Ready", "--timeout=60s")
    kubectl(landscape, "delete", *pods, "--grace-period=0", "--force")
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied", "namespace": NAMESPACE}}
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "charts-test", "namespace": NAMESPACE},
            "data": {"map.json": base64.b64encode(json.dumps(wanted | {"data": {"by": "chart"}}).encode()).decode()},
        },
        {
            "apiVersion": "resources.gardener.cloud/v1alpha1",
            "kind": "ManagedResource",
            "metadata": {"name": "charts-test", "namespace": NAMESPACE},
            "spec": {"class": "seed", "secretRefs": [{"name": "charts-test"}]},
        },
    ]
    kubectl(landscape, "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    condition = "jsonpath={.status.conditions[?(@.type=='ResourcesApplied')].status}=True"
    kubectl(landscape, "wait", f"--for={condition}", "managedresource/charts-test", "--timeout=90s")
    assert kubectl(landscape, "get", "configmap", "applied", "-o", "jsonpath={.data.by}") == "chart"
    kubectl(landscape, "delete", "managedresource", "charts-test", "--timeout=60s")

"""Live objects after the resource manager has written them: the rows of the merge table, at a real API server."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from api import resources
from api.resources import CONFIG_MAP, CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, SERVICE, SERVICE_ACCOUNT, STATEFUL_SET
from kube.client import Object
from tests.gardens import ADMIN, ApiServer, new_authority
from tests.unit.resource_manager.at_api_server import Manager

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

HPA = resources.HORIZONTAL_POD_AUTOSCALER
RESTARTED = "kubectl.kubernetes.io/restartedAt"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        asyncio.run(made.prepare_seed())
        yield made


@pytest.fixture
async def manager(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[Manager]:
    namespace = request.node.originalname.removeprefix("test_").replace("_", "-")[:50].strip("-")
    number = request.node.name.partition("[")[2].rstrip("]").lower() or "x"
    async with server.client(ADMIN) as admin:
        made = Manager(admin, f"{namespace}-{number}")
        await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.namespace}})
        await made.start()
        yield made
        await made.stop()


def obj(manager: Manager, resource: Any, annotations: Object | None = None, **content: Any) -> Object:
    metadata = {"name": "x", "namespace": manager.namespace, "annotations": annotations or {}}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def template(**container: Any) -> Object:
    containers = [{"name": "c", "image": "i", **container}]
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers}}


def workload(manager: Manager, resource: Any = DEPLOYMENT, annotations: Object | None = None, **spec: Any) -> Object:
    whole = {"selector": {"matchLabels": {"app": "x"}}, "template": template(), **spec}
    return obj(manager, resource, annotations, spec=whole)


def service(manager: Manager, *ports: Object, **spec: Any) -> Object:
    return obj(manager, SERVICE, spec={"ports": list(ports) or [{"name": "a", "port": 80}], **spec})


async def live(manager: Manager, resource: Any) -> Object:
    return await manager.admin.get(resource, "x", manager.namespace)


async def applied(manager: Manager, *objects: Object, **spec: Any) -> None:
    await manager.write(*objects, **spec)
    await manager.runs()


async def changed(manager: Manager, resource: Any, patch: Any) -> None:
    """Another component patches the object; then the resource manager runs."""
    await manager.admin.patch(resource, "x", manager.namespace, patch)
    await manager.reconciled()


@pytest.mark.row("merge", "everything but metadata and status: what others add or change goes again")
async def test_a_key_that_others_add_to_a_config_map_goes_again(manager: Manager) -> None:
    await applied(manager, obj(manager, CONFIG_MAP, data={"ours": "1"}))
    await changed(manager, CONFIG_MAP, {"data": {"theirs": "1", "ours": "2"}, "binaryData": {"more": "AAAA"}})

    found = await live(manager, CONFIG_MAP)
    assert found["data"] == {"ours": "1"}
    assert "binaryData" not in found


@pytest.mark.row("merge", "everything but metadata and status: what others add or change goes again")
async def test_containers_variables_volumes_and_labels_that_others_add_go_again(manager: Manager) -> None:
    await applied(manager, workload(manager))
    added: Object = {
        "metadata": {"labels": {"theirs": "1"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {"name": "c", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]},
                {"name": "theirs", "image": "i"},
            ],
        },
    }
    before = await live(manager, DEPLOYMENT)
    await manager.admin.request(
        "PATCH",
        DEPLOYMENT.path(manager.namespace, "x"),
        body={"spec": {"template": added, "paused": True}},
        content_type="application/strategic-merge-patch+json",
    )
    assert len((await live(manager, DEPLOYMENT))["spec"]["template"]["spec"]["containers"]) == 2
    await manager.reconciled()

    assert (await live(manager, DEPLOYMENT))["spec"] == before["spec"]


@pytest.mark.row("merge", "everything but metadata and status: what others add or change goes again")
async def test_nothing_is_written_when_nothing_changed(manager: Manager) -> None:
    """The API server completes each of these objects by defaults, which the manifests do not name."""
    scaled = {"apiVersion": "a/v1", "kind": "Other", "name": "o"}
    objects = [
        obj(manager, CONFIG_MAP, data={"a": "1"}),
        workload(manager),
        workload(manager, STATEFUL_SET, serviceName="x", volumeClaimTemplates=[claim()]),
        workload(manager, DAEMON_SET),
        service(manager, {"name": "a", "port": 80}, type="LoadBalancer"),
        obj(manager, SERVICE_ACCOUNT),
        obj(manager, JOB, spec={"template": job_template()}),
        obj(manager, CRON_JOB, spec={"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": job_template()}}}),
        obj(manager, resources.PERSISTENT_VOLUME_CLAIM, spec=claim()["spec"]),
        obj(manager, HPA, spec={"scaleTargetRef": scaled, "maxReplicas": 3}),
    ]
    await applied(manager, *objects)
    kinds = [resources.resource_of(each["apiVersion"], each["kind"]) for each in objects]
    before = [(await live(manager, kind))["metadata"]["resourceVersion"] for kind in kinds]
    await manager.reconciled()
    await manager.reconciled()

    assert [(await live(manager, kind))["metadata"]["resourceVersion"] for kind in kinds] == before


def claim() -> Object:
    requests = {"requests": {"storage": "1Gi"}}
    return {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": requests}}


def job_template() -> Object:
    return {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}


@pytest.mark.row("merge", "ownerReferences from the manifest, finalizers and other metadata of the live object stay")
async def test_owners_are_those_of_the_manifest_and_finalizers_stay(manager: Manager) -> None:
    await applied(manager, obj(manager, CONFIG_MAP, data={}))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": "1234"}
    await changed(manager, CONFIG_MAP, {"metadata": {"ownerReferences": [owner], "finalizers": ["example.org/theirs"]}})

    metadata = (await live(manager, CONFIG_MAP))["metadata"]
    assert "ownerReferences" not in metadata
    assert metadata["finalizers"] == ["example.org/theirs"]
    await manager.admin.patch(CONFIG_MAP, "x", manager.namespace, {"metadata": {"finalizers": None}})


@pytest.mark.row("merge", "labels and annotations: others' stay, own ones that the manifest no longer names go")
async def test_labels_of_others_stay_and_own_ones_go_with_the_manifest(manager: Manager) -> None:
    first = obj(manager, CONFIG_MAP, {"a/kept": "1", "a/goes": "1", "a/changed": "1"})
    first["metadata"]["labels"] = {"kept": "1", "goes": "1", "changed": "1"}
    await applied(manager, first)
    theirs = {"theirs": "1", "changed": "2"}
    annotations = {f"a/{key}": value for key, value in theirs.items()}
    await manager.admin.patch(
        CONFIG_MAP, "x", manager.namespace, {"metadata": {"labels": theirs, "annotations": annotations}}
    )
    second = obj(manager, CONFIG_MAP, {"a/kept": "1"})
    second["metadata"]["labels"] = {"kept": "1"}
    await manager.write(second)
    found = await manager.until(lambda each: "goes" not in each["metadata"]["labels"], CONFIG_MAP, "x")

    labels = {k: v for k, v in found["metadata"]["labels"].items() if "/" not in k}
    assert labels == {"kept": "1", **theirs}
    assert {k: v for k, v in found["metadata"]["annotations"].items() if k.startswith("a/")} == {
        "a/kept": "1",
        **annotations,
    }


@pytest.mark.row("merge", "forceOverwriteLabels, forceOverwriteAnnotations: those of the manifest alone")
async def test_forced_labels_and_annotations_are_the_only_ones(manager: Manager) -> None:
    await applied(manager, service(manager), forceOverwriteLabels=True, forceOverwriteAnnotations=True)
    kept = "loadbalancer.openstack.org/load-balancer-id"
    await changed(
        manager, SERVICE, {"metadata": {"labels": {"theirs": "1"}, "annotations": {"theirs": "1", kept: "2"}}}
    )

    metadata = (await live(manager, SERVICE))["metadata"]
    assert "theirs" not in metadata["labels"]
    assert "theirs" not in metadata["annotations"]
    assert metadata["annotations"][kept] == "2"


@pytest.mark.row("merge", "live annotations reference.resources.gardener.cloud/* are always dropped first")
async def test_references_to_versioned_objects_are_those_of_the_manifest(manager: Manager) -> None:
    prefix = "reference.resources.gardener.cloud/"
    await applied(manager, obj(manager, CONFIG_MAP, {f"{prefix}secret-1": "new"}))
    await changed(manager, CONFIG_MAP, {"metadata": {"annotations": {f"{prefix}secret-2": "old"}}})

    annotations = (await live(manager, CONFIG_MAP))["metadata"]["annotations"]
    assert {key for key in annotations if key.startswith(prefix)} == {f"{prefix}secret-1"}


@pytest.mark.row("merge", "replicas: of the live object if the manifest names none")
@pytest.mark.parametrize("resource", [DEPLOYMENT, STATEFUL_SET], ids=["d", "s"])
async def test_replicas_stay_when_the_manifest_stops_naming_them(manager: Manager, resource: Any) -> None:
    """The usual step before an autoscaler takes over. The API server's default would be 1."""
    await applied(manager, workload(manager, resource, replicas=3))
    await applied(manager, workload(manager, resource, minReadySeconds=5))
    found = await manager.until(lambda each: each["spec"].get("minReadySeconds") == 5, resource, "x")

    assert found["spec"]["replicas"] == 3


@pytest.mark.row("merge", "replicas: of the live object with annotation preserve-replicas")
async def test_preserved_replicas_stay(manager: Manager) -> None:
    await applied(manager, workload(manager, annotations={"resources.gardener.cloud/preserve-replicas": "true"}))
    await changed(manager, DEPLOYMENT, {"spec": {"replicas": 5}})

    assert (await live(manager, DEPLOYMENT))["spec"]["replicas"] == 5


@pytest.mark.row("merge", "replicas: of the live object if a HorizontalPodAutoscaler scales it")
async def test_replicas_stay_that_an_autoscaler_set(manager: Manager) -> None:
    scaler = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}, "maxReplicas": 9}
    await manager.admin.create(obj(manager, HPA, spec=scaler))
    await applied(manager, workload(manager, replicas=2))
    await changed(manager, DEPLOYMENT, {"spec": {"replicas": 7}})

    assert (await live(manager, DEPLOYMENT))["spec"]["replicas"] == 7


@pytest.mark.row("merge", "replicas: of the manifest in all other cases")
async def test_replicas_of_the_manifest_return(manager: Manager) -> None:
    await applied(manager, workload(manager, replicas=2))
    await changed(manager, DEPLOYMENT, {"spec": {"replicas": 7}})

    assert (await live(manager, DEPLOYMENT))["spec"]["replicas"] == 2


@pytest.mark.row("merge", "pod templates: annotation kubectl.kubernetes.io/restartedAt stays")
async def test_a_restart_by_kubectl_is_not_undone(manager: Manager) -> None:
    await applied(manager, workload(manager))
    await changed(
        manager, DEPLOYMENT, {"spec": {"template": {"metadata": {"annotations": {RESTARTED: "now", "b": "1"}}}}}
    )

    assert (await live(manager, DEPLOYMENT))["spec"]["template"]["metadata"]["annotations"] == {RESTARTED: "now"}


@pytest.mark.row("merge", "pod templates: annotation preserve-resources keeps cpu and memory by container")
async def test_preserved_resources_stay(manager: Manager) -> None:
    annotations = {"resources.gardener.cloud/preserve-resources": "true"}
    wanted = template(resources={"requests": {"cpu": "1", "memory": "1Gi"}})
    await applied(manager, workload(manager, annotations=annotations, template=wanted))
    path = "/spec/template/spec/containers/0/resources"
    value = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}
    await changed(manager, DEPLOYMENT, [{"op": "replace", "path": path, "value": value}])

    found = await live(manager, DEPLOYMENT)
    assert found["spec"]["template"]["spec"]["containers"][0]["resources"] == value


@pytest.mark.row("merge", "StatefulSet: volumeClaimTemplates stay")
async def test_volume_claim_templates_stay(manager: Manager) -> None:
    await applied(manager, workload(manager, STATEFUL_SET, serviceName="x", volumeClaimTemplates=[claim()]))
    larger = claim()
    larger["spec"]["resources"] = {"requests": {"storage": "9Gi"}}
    await applied(
        manager, workload(manager, STATEFUL_SET, serviceName="x", volumeClaimTemplates=[larger], minReadySeconds=5)
    )
    found = await manager.until(lambda each: each["spec"].get("minReadySeconds") == 5, STATEFUL_SET, "x")

    [kept] = found["spec"]["volumeClaimTemplates"]
    assert kept["spec"]["resources"] == claim()["spec"]["resources"]


@pytest.mark.row("merge", "Job: selector stays, labels of the template are merged")
async def test_a_job_keeps_its_selector(manager: Manager) -> None:
    await applied(manager, obj(manager, JOB, spec={"template": job_template(), "backoffLimit": 1}))
    before = await live(manager, JOB)
    await applied(manager, obj(manager, JOB, spec={"template": job_template(), "backoffLimit": 2}))
    found = await manager.until(lambda each: each["spec"]["backoffLimit"] == 2, JOB, "x")

    assert found["metadata"]["uid"] == before["metadata"]["uid"]
    assert found["spec"]["selector"] == before["spec"]["selector"]


@pytest.mark.row("merge", "CronJob, DaemonSet: rules of pod templates")
@pytest.mark.parametrize("resource", [DAEMON_SET, CRON_JOB], ids=["d", "c"])
async def test_templates_of_other_workloads_follow_the_same_rules(manager: Manager, resource: Any) -> None:
    pods = {"template": {**job_template(), "metadata": {"labels": {"app": "x"}}}}
    daemon = {"selector": {"matchLabels": {"app": "x"}}, "template": template()}
    spec: Object = {"schedule": "0 * * * *", "jobTemplate": {"spec": pods}} if resource is CRON_JOB else daemon
    await applied(manager, obj(manager, resource, spec=spec))
    patch: Object = {"template": {"metadata": {"annotations": {RESTARTED: "now"}, "labels": {"theirs": "1"}}}}
    await changed(manager, resource, {"spec": {"jobTemplate": {"spec": patch}} if resource is CRON_JOB else patch})

    found = (await live(manager, resource))["spec"]
    metadata = (found["jobTemplate"]["spec"] if resource is CRON_JOB else found)["template"]["metadata"]
    assert metadata["annotations"] == {RESTARTED: "now"}
    assert {key: value for key, value in metadata["labels"].items() if "/" not in key} == {"app": "x"}


@pytest.mark.row("merge", "Service: clusterIP, node ports, health check's node port and ports of a load balancer stay")
async def test_a_service_keeps_what_the_cluster_allocated(manager: Manager) -> None:
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 90, "nodePort": 0}]
    await applied(manager, service(manager, *ports, **spec))
    before = (await live(manager, SERVICE))["spec"]
    moved = [{"name": "a", "port": 81}, {"name": "renamed", "port": 90}]
    await applied(manager, service(manager, *moved, **spec, loadBalancerIP=""))
    found = (await manager.until(lambda each: each["spec"]["ports"][0]["port"] == 81, SERVICE, "x"))["spec"]

    for field in ("clusterIP", "clusterIPs", "healthCheckNodePort"):
        assert found[field] == before[field]
    assert [each["nodePort"] for each in found["ports"]] == [each["nodePort"] for each in before["ports"]]


@pytest.mark.row("merge", "Service: loadBalancerIP stays if the manifest names none")
async def test_a_service_keeps_the_address_of_its_load_balancer(manager: Manager) -> None:
    await applied(manager, service(manager, type="LoadBalancer"))
    await changed(manager, SERVICE, {"spec": {"loadBalancerIP": "192.0.2.1", "sessionAffinity": "ClientIP"}})

    found = (await live(manager, SERVICE))["spec"]
    assert (found["loadBalancerIP"], found["sessionAffinity"]) == ("192.0.2.1", "None")


@pytest.mark.row("merge", "Service: type is ClusterIP by default, annotations loadbalancer.openstack.org* stay")
async def test_a_service_that_others_expose_is_closed_again(manager: Manager) -> None:
    await applied(manager, service(manager))
    await changed(
        manager,
        SERVICE,
        {"metadata": {"annotations": {"loadbalancer.openstack.org/x": "1"}}, "spec": {"type": "NodePort"}},
    )

    found = await live(manager, SERVICE)
    assert found["spec"]["type"] == "ClusterIP"
    assert "nodePort" not in found["spec"]["ports"][0]
    assert found["metadata"]["annotations"]["loadbalancer.openstack.org/x"] == "1"


@pytest.mark.row("merge", "Service: of type ExternalName nothing stays")
async def test_a_service_becomes_a_name_and_an_address_again(manager: Manager) -> None:
    await applied(manager, service(manager))
    await applied(manager, service(manager, type="ExternalName", externalName="example.org"))
    found = await manager.until(lambda each: each["spec"]["type"] == "ExternalName", SERVICE, "x")
    assert "clusterIP" not in found["spec"]

    await applied(manager, service(manager))
    found = await manager.until(lambda each: each["spec"]["type"] == "ClusterIP", SERVICE, "x")
    assert found["spec"]["clusterIP"]


@pytest.mark.row("merge", "ServiceAccount: secrets and imagePullSecrets stay")
async def test_a_service_account_keeps_its_secrets(manager: Manager) -> None:
    await applied(manager, obj(manager, SERVICE_ACCOUNT))
    theirs = {"secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "b"}]}
    await changed(manager, SERVICE_ACCOUNT, {**theirs, "automountServiceAccountToken": False})

    found = await live(manager, SERVICE_ACCOUNT)
    assert {key: found[key] for key in theirs} == theirs
    assert "automountServiceAccountToken" not in found


@pytest.mark.row("merge", "ours: an injected CA bundle stays where the manifest names none")
async def test_an_injected_bundle_stays(manager: Manager) -> None:
    kind = resources.VALIDATING_WEBHOOK_CONFIGURATION
    client: Object = {"service": {"name": "x", "namespace": "default"}}
    webhook = {"name": "a.example.org", "clientConfig": client, "admissionReviewVersions": ["v1"],
               "sideEffects": "None", "failurePolicy": "Ignore"}  # fmt: skip
    configuration = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "injected"}}
    await applied(manager, {**configuration, "webhooks": [webhook]})
    bundle = base64.b64encode(new_authority("injected").certificate).decode()
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle},
             {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]  # fmt: skip
    await manager.admin.patch(kind, "injected", None, patch)
    await manager.reconciled()

    [found] = (await manager.admin.get(kind, "injected"))["webhooks"]
    assert (found["clientConfig"]["caBundle"], found["failurePolicy"]) == (bundle, "Ignore")

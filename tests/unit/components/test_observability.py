"""A Shoot's Prometheus and Alertmanager: scrape jobs, alerts, access, and their removal where they are unwanted."""

import base64
import json
import re
from typing import Any

import bcrypt
import promql_parser as promql
import pytest
from temporalio.exceptions import ApplicationError

from activities.components import alertmanager, exporters, kube_state_metrics, prometheus
from activities.components.alerts import rules
from activities.components.monitoring import Served
from activities.seed.observability import ObservabilityActivities
from api import resources
from api.contracts.operations import OperationType
from tests.unit.components.test_control_plane import NAMESPACE, SEED, SHOOT, TASK, World, world

__all__ = ["world"]

SEED_SECRETS = "/api/v1/secrets"
DEPLOYMENTS = "/apis/apps/v1/deployments"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
HOST = "p-dev--a.ingress.seed-1.example.org"
SERVED = Served(prometheus.NAME, NAMESPACE, prometheus.PORT, HOST, "tls", {})


def pin(world: World, *, ingress: bool = True, status: dict[str, Any] | None = None, **spec: Any) -> None:
    seed = {
        **SEED,
        "spec": {**SEED["spec"], **({"ingress": {"domain": "ingress.seed-1.example.org"}} if ingress else {})},
    }
    cluster = {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "shoot": {**SHOOT, "spec": {**SHOOT["spec"], **spec}, "status": status or {}},
            "seed": seed,
            "cloudProfile": {"kind": "CloudProfile", "spec": {}},
        },
    }
    world.seed.put("/apis/extensions.gardener.cloud/v1alpha1/clusters", cluster)


def published(world: World) -> dict[str, Any] | None:
    return world.garden.find(SEED_SECRETS, "a.monitoring", "garden-dev")


def password(world: World) -> bytes:
    return base64.b64decode((published(world) or {})["data"]["password"])


def web(world: World) -> dict[str, Any]:
    """Password file of its Prometheus."""
    secret = world.seed.find(SEED_SECRETS, prometheus.NAME, NAMESPACE)
    return dict(json.loads(base64.b64decode(secret["data"]["web.yaml"])))


async def test_the_owner_gets_address_and_password_of_prometheus(world: World) -> None:
    pin(world)
    result = await ObservabilityActivities(world.clusters).deploy_observability(TASK)
    assert result.note == HOST
    assert (published(world) or {})["metadata"]["annotations"] == {"prometheus-url": f"https://{HOST}"}
    hashed = web(world)["basic_auth_users"]["admin"]
    assert bcrypt.checkpw(password(world), hashed.encode())
    names = {each.rpartition("-")[0] for each in result.secrets} | set(result.secrets)
    assert any(each.startswith("observability-ingress-users") for each in names)
    text = json.dumps([world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE), str(result)])
    assert password(world).decode() not in text


@pytest.mark.parametrize(("families", "probed"), [(["IPv4"], True), (["IPv4", "IPv6"], True), (["IPv6"], False)])
async def test_no_probe_tries_a_name_that_the_seeds_pods_do_not_reach(
    world: World, families: list[str], probed: bool
) -> None:
    """The alert for it would never end."""
    pin(
        world,
        networking={**SHOOT["spec"].get("networking", {}), "ipFamilies": families},
        status={"networking": {"pods": ["fd12::/56"], "services": ["fd12:1::/112"]}},
    )
    await ObservabilityActivities(world.clusters).deploy_observability(TASK)
    found = [each["data"] for each in await world.clusters.seed.list(resources.CONFIG_MAP, NAMESPACE)]
    (config,) = (json.loads(each["prometheus.yaml"]) for each in found if "prometheus.yaml" in each)

    assert ("blackbox-apiserver" in [each["job_name"] for each in config["scrape_configs"]]) is probed
    assert bool(world.seed.find(DEPLOYMENTS, exporters.BLACKBOX_EXPORTER, NAMESPACE)) is probed


async def test_a_second_run_writes_nothing(world: World) -> None:
    pin(world)
    activities = ObservabilityActivities(world.clusters)
    await activities.deploy_observability(TASK)
    before, seen = password(world), len(world.seed.requests)
    await activities.deploy_observability(TASK)
    assert password(world) == before
    assert {method for method, _ in world.seed.requests[seen:]} == {"GET"}


async def test_a_rotation_replaces_the_password_and_restarts_prometheus(world: World) -> None:
    pin(world)
    activities = ObservabilityActivities(world.clusters)
    await activities.deploy_observability(TASK)
    before, pods = password(world), world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE)["spec"]["template"]
    rotation = {"observability": {"lastInitiationTime": "2026-11-23T04:00:00Z"}}
    pin(world, status={"credentials": {"rotation": rotation}})
    await activities.deploy_observability(TASK)
    assert password(world) != before
    assert not bcrypt.checkpw(before, web(world)["basic_auth_users"]["admin"].encode())
    assert world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE)["spec"]["template"] != pods


@pytest.mark.parametrize("unwanted", [{"purpose": "testing"}, {"ingress": False}], ids=["testing", "no ingress domain"])
async def test_an_unwanted_component_is_removed_completely(world: World, unwanted: dict[str, Any]) -> None:
    activities = ObservabilityActivities(world.clusters)
    pin(world)
    there = set(world.seed.objects)
    await activities.deploy_observability(TASK)
    assert published(world)
    pin(world, **unwanted)
    result = await activities.deploy_observability(TASK)
    assert result.note == "not wanted"
    assert (await activities.wait_observability(TASK)).note == "not wanted"
    assert published(world) is None
    # The secrets manager's own go with the next cleanup, what the resource manager has in the shoot by its finalizer.
    kinds = ("deployments", "persistentvolumeclaims", "configmaps", "services", "roles")
    assert [place for place in set(world.seed.objects) - there if place[0].rpartition("/")[2] in kinds] == []


SMTP = {
    "auth_type": "smtp",
    "from": "gardener@example.org",
    "smarthost": "mail.example.org:587",
    "auth_username": "me",
    "auth_password": "only-for-mails",
}
RECEIVERS = {"alerting": {"emailReceivers": ["a@example.org", "b@example.org"]}}


def sends_mails(world: World, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in (SMTP | data).items() if value}
    metadata = {"name": "mails", "labels": {"gardener.cloud/role": "alerting"}}
    world.garden.put(SEED_SECRETS, {"metadata": metadata, "data": encoded}, "garden")


def mails(world: World) -> dict[str, Any]:
    """Configuration of its Alertmanager."""
    secret = world.seed.find(SEED_SECRETS, alertmanager.NAME, NAMESPACE)
    return dict(json.loads(base64.b64decode(secret["data"]["alertmanager.yaml"])))


def asks(world: World) -> dict[str, Any]:
    """Configuration of its Prometheus."""
    pod = world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE)["spec"]["template"]["spec"]
    [name] = [each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "config"]
    return dict(json.loads(world.seed.find("/api/v1/configmaps", name, NAMESPACE)["data"]["prometheus.yaml"]))


async def test_mail_receivers_bring_an_alertmanager_that_prometheus_notifies(world: World) -> None:
    pin(world, monitoring=RECEIVERS)
    sends_mails(world)
    await ObservabilityActivities(world.clusters).deploy_observability(TASK)

    nobody, owners = mails(world)["receivers"]
    [theirs] = mails(world)["route"]["routes"]
    assert theirs == {"receiver": owners["name"], "matchers": ['visibility=~"all|owner"']}
    assert nobody == {"name": mails(world)["route"]["receiver"]}
    assert [each["to"] for each in owners["email_configs"]] == ["a@example.org", "b@example.org"]
    assert {each["auth_password"] for each in owners["email_configs"]} == {"only-for-mails"}
    annotations = (published(world) or {})["metadata"]["annotations"]
    assert annotations["alertmanager-url"] == f"https://au{HOST.removeprefix('p')}"
    [told] = asks(world)["alerting"]["alertmanagers"]
    assert told["static_configs"] == [{"targets": ["alertmanager-shoot:9093"]}]
    pod = world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE)["spec"]["template"]["spec"]
    [known] = [each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "password"]
    assert base64.b64decode(world.seed.find(SEED_SECRETS, known, NAMESPACE)["data"]["password"]) == password(world)
    elsewhere = {place: each for place, each in world.seed.objects.items() if not place[0].endswith("/secrets")}
    assert "only-for-mails" not in str(elsewhere)


async def test_new_mail_credentials_reach_it(world: World) -> None:
    pin(world, monitoring=RECEIVERS)
    sends_mails(world)
    activities = ObservabilityActivities(world.clusters)
    await activities.deploy_observability(TASK)
    seen, pods = (
        len(world.seed.requests),
        world.seed.find(DEPLOYMENTS, alertmanager.NAME, NAMESPACE)["spec"]["template"],
    )
    await activities.deploy_observability(TASK)
    assert {method for method, _ in world.seed.requests[seen:]} == {"GET"}, "nothing is new"
    sends_mails(world, auth_password="another")
    await activities.deploy_observability(TASK)
    assert world.seed.find(DEPLOYMENTS, alertmanager.NAME, NAMESPACE)["spec"]["template"] != pods


@pytest.mark.parametrize("what", ["receivers", "server", "prometheus"])
async def test_without_receivers_or_mail_server_the_alertmanager_is_removed(world: World, what: str) -> None:
    activities = ObservabilityActivities(world.clusters)
    pin(world)
    await activities.deploy_observability(TASK)
    there = set(world.seed.objects)
    pin(world, monitoring=RECEIVERS)
    sends_mails(world)
    await activities.deploy_observability(TASK)
    assert len(set(world.seed.objects) - there) >= 6
    if what == "server":
        world.garden.remove(SEED_SECRETS, "mails", "garden")
    pin(world, monitoring={} if what == "receivers" else RECEIVERS, purpose="testing" if what == "prometheus" else None)
    await activities.deploy_observability(TASK)
    # Unused certificates and configurations are deleted by the next cleanup.
    left = {name for _, _, name in set(world.seed.objects) - there if name == alertmanager.NAME}
    assert left == set()
    assert "alertmanager-url" not in (published(world) or {"metadata": {"annotations": {}}})["metadata"]["annotations"]


async def test_a_mail_server_that_lacks_something_is_named(world: World) -> None:
    pin(world, monitoring=RECEIVERS)
    sends_mails(world, smarthost="")
    with pytest.raises(ApplicationError, match="lacks smarthost") as caught:
        await ObservabilityActivities(world.clusters).deploy_observability(TASK)
    assert caught.value.type == "ERR_RETRYABLE_CONFIGURATION_PROBLEM"
    assert "only-for-mails" not in str(caught.value)


@pytest.mark.parametrize("servers", [("vpn-seed-server",), ("vpn-seed-server", "vpn-seed-server-1"), ()])
def test_each_alert_queries_an_existing_job(servers: tuple[str, ...]) -> None:
    workers = bool(servers)
    values = prometheus.Prometheus(SERVED, "kubeconfig", "ca", "api.example.org", workers=workers, vpn_servers=servers)
    jobs = {each["job_name"] for each in prometheus.configuration(values)["scrape_configs"]}
    alerts = [rule for group in rules(workers=workers, vpn_servers=servers)["groups"] for rule in group["rules"]]
    assert ("VPNServerLost" in {each["alert"] for each in alerts}) == (len(servers) > 1)
    assert len({each["alert"] for each in alerts}) == len(alerts)
    for each in alerts:
        promql.parse(each["expr"])
        asked = re.findall(r'job(=~?)"([^"]+)"', each["expr"])
        for operator, job in asked:
            assert any(re.fullmatch(job, known) for known in jobs) if operator == "=~" else job in jobs, each["alert"]
        assert asked or workers, f"{each['alert']} is of nodes"


@pytest.mark.parametrize("name", ["node_exporter", "blackbox_exporter"])
async def test_exporters_that_prometheus_does_not_scrape_do_not_run(world: World, name: str) -> None:
    deploy, resource = getattr(world.system, f"deploy_{name}"), f"shoot-core-{name.replace('_', '-')}"
    pin(world)
    await deploy(TASK)
    assert world.seed.find(MANAGED_RESOURCES, resource, NAMESPACE)
    pin(world, purpose="testing")
    assert (await deploy(TASK)).note == "not wanted"
    assert world.seed.find(MANAGED_RESOURCES, resource, NAMESPACE) is None


@pytest.mark.parametrize("unwanted", [{"purpose": "testing"}, {"provider": {"type": "local"}}], ids=str)
async def test_kube_state_metrics_is_removed_with_prometheus_or_the_nodes(world: World, unwanted: Any) -> None:
    activities, name = ObservabilityActivities(world.clusters), kube_state_metrics.NAME
    kinds = {
        DEPLOYMENTS: name,
        "/api/v1/serviceaccounts": name,
        SEED_SECRETS: f"shoot-access-{name}",
        MANAGED_RESOURCES: f"shoot-core-{name}",
    }
    pin(world)
    await activities.deploy_observability(TASK)
    assert all(world.seed.find(kind, each, NAMESPACE) for kind, each in kinds.items())
    pin(world, **unwanted)
    await activities.deploy_observability(TASK)
    assert not any(world.seed.find(kind, each, NAMESPACE) for kind, each in kinds.items())


def test_kube_state_metrics_may_read_the_kinds_that_it_reports() -> None:
    (deployment,) = (
        each
        for each in kube_state_metrics.objects(kube_state_metrics.KubeStateMetrics(NAMESPACE, "generic"))
        if each["kind"] == "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (asked,) = (each for each in [*container["command"], *container.get("args", [])] if "--resources=" in each)
    role = kube_state_metrics.shoot_objects()[0]
    allowed = {each for rule in role["rules"] for each in rule["resources"] if rule["verbs"] == ["list", "watch"]}
    assert set(asked.partition("=")[2].split(",")) == allowed


async def test_the_component_is_stopped_during_hibernation(world: World) -> None:
    pin(world, hibernation={"enabled": True})
    await ObservabilityActivities(world.clusters).deploy_observability(
        TASK.model_copy(update={"operation": OperationType.RECONCILE})
    )
    for name in (prometheus.NAME, kube_state_metrics.NAME, exporters.BLACKBOX_EXPORTER):
        assert world.seed.find(DEPLOYMENTS, name, NAMESPACE)["spec"]["replicas"] == 0


@pytest.mark.parametrize("workers", [True, False])
def test_prometheus_scrapes_the_components_of_the_shoot(workers: bool) -> None:
    values = prometheus.Prometheus(SERVED, "kubeconfig", "ca", "api.example.org", workers=workers)
    jobs = {each["job_name"]: each for each in prometheus.configuration(values)["scrape_configs"]}
    always = {
        "kube-apiserver",
        "blackbox-apiserver",
        "kube-controller-manager",
        "etcd-main",
        "etcd-events",
        "gardener-resource-manager",
    }
    of_nodes = {
        "kube-scheduler",
        "machine-controller-manager",
        "cluster-autoscaler",
        "kube-state-metrics",
        "kubelet",
        "cadvisor",
        "node-exporter",
        "blackbox-exporter-k8s-service-check",
    }
    assert set(jobs) == (always | of_nodes if workers else always)
    for job in jobs.values():
        assert job.get("scheme") != "https" or (
            job["tls_config"]["ca_file"] and job["authorization"]["credentials_file"]
        )

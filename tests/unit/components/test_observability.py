"""A Shoot's Prometheus: what it asks, who may ask it, and what of it is left where it is not wanted."""

import base64
import json
from typing import Any

import bcrypt
import pytest

from activities.components import prometheus
from activities.seed.observability import ObservabilityActivities
from api.operations import OperationType
from tests.unit.components.test_control_plane import NAMESPACE, SEED, SHOOT, TASK, World, world

__all__ = ["world"]

SEED_SECRETS = "/api/v1/secrets"
DEPLOYMENTS = "/apis/apps/v1/deployments"
HOST = "p-dev--a.ingress.seed-1.example.org"


def pin(world: World, *, ingress: bool = True, status: dict[str, Any] | None = None, **spec: Any) -> None:
    seed = {
        **SEED,
        "spec": {**SEED["spec"], **({"ingress": {"domain": "ingress.seed-1.example.org"}} if ingress else {})},
    }
    cluster = {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": NAMESPACE},
        "spec": {"shoot": {**SHOOT, "spec": {**SHOOT["spec"], **spec}, "status": status or {}}, "seed": seed},
    }
    world.seed.put("/apis/extensions.gardener.cloud/v1alpha1/clusters", cluster)


def published(world: World) -> dict[str, Any] | None:
    return world.garden.find(SEED_SECRETS, "a.monitoring", "garden-dev")


def password(world: World) -> bytes:
    return base64.b64decode((published(world) or {})["data"]["password"])


def web(world: World) -> dict[str, Any]:
    """What its Prometheus lets people in by."""
    secret = world.seed.find(SEED_SECRETS, prometheus.NAME, NAMESPACE)
    return dict(json.loads(base64.b64decode(secret["data"]["web.yaml"])))


async def test_its_owner_gets_an_address_and_a_password_that_it_takes(world: World) -> None:
    pin(world)
    result = await ObservabilityActivities(world.clusters).deploy_observability(TASK)
    assert result.note == HOST
    assert published(world)["metadata"]["annotations"] == {"prometheus-url": f"https://{HOST}"}
    hashed = web(world)["basic_auth_users"]["admin"]
    assert bcrypt.checkpw(password(world), hashed.encode())
    names = {each.rpartition("-")[0] for each in result.secrets} | set(result.secrets)
    assert any(each.startswith("observability-ingress-users") for each in names)
    text = json.dumps([world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE), str(result)])
    assert password(world).decode() not in text


async def test_a_second_run_writes_nothing(world: World) -> None:
    pin(world)
    activities = ObservabilityActivities(world.clusters)
    await activities.deploy_observability(TASK)
    before, seen = password(world), len(world.seed.requests)
    await activities.deploy_observability(TASK)
    assert password(world) == before
    assert {method for method, _ in world.seed.requests[seen:]} == {"GET"}


async def test_a_rotation_replaces_the_password_and_restarts_who_knows_it(world: World) -> None:
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
async def test_where_it_is_not_wanted_nothing_of_it_is_left(world: World, unwanted: dict[str, Any]) -> None:
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


async def test_asleep_it_sleeps(world: World) -> None:
    pin(world, hibernation={"enabled": True})
    await ObservabilityActivities(world.clusters).deploy_observability(
        TASK.model_copy(update={"operation": OperationType.RECONCILE})
    )
    assert world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE)["spec"]["replicas"] == 0


@pytest.mark.parametrize("workers", [True, False])
def test_what_it_asks(workers: bool) -> None:
    values = prometheus.Prometheus(NAMESPACE, "kubeconfig", "ca", "tls", {}, (HOST,), workers=workers)
    jobs = {each["job_name"]: each for each in prometheus.configuration(values)["scrape_configs"]}
    always = {"kube-apiserver", "kube-controller-manager", "etcd-main", "etcd-events", "gardener-resource-manager"}
    of_nodes = {"kube-scheduler", "machine-controller-manager", "cluster-autoscaler", "kubelet", "cadvisor"}
    assert set(jobs) == (always | of_nodes if workers else always)
    for job in jobs.values():
        assert job.get("scheme") != "https" or (
            job["tls_config"]["ca_file"] and job["authorization"]["credentials_file"]
        )

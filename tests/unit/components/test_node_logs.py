"""Logs of nodes: the store in the control plane's namespace, what the owner gets of it, and its removal."""

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import pytest

from activities.components import node_logs, prometheus, victoria_logs
from activities.seed.node_logs import NodeLogs
from activities.seed.observability import ObservabilityActivities
from activities.seed.operating_system_configs import OperatingSystemConfigActivities
from api import resources
from api.contracts.operations import OperationType
from tests.unit.components.test_control_plane import NAMESPACE, SHOOT, TASK, World, world
from tests.unit.components.test_manifests import IN_THE_SEED
from tests.unit.components.test_observability import DEPLOYMENTS, SEED_SECRETS, password, pin, published
from workers.admission.seed_writes import OWNED

__all__ = ["world"]

HOST = "v-dev--a.ingress.seed-1.example.org"
PRODUCTION = NodeLogs(frozenset({"production"}))
CLAIMS, OSCS = "/api/v1/persistentvolumeclaims", "/apis/extensions.gardener.cloud/v1alpha1/operatingsystemconfigs"


def observability(world: World, which: NodeLogs = PRODUCTION) -> ObservabilityActivities:
    return ObservabilityActivities(world.clusters, which)


def store(world: World) -> dict[str, Any] | None:
    found: dict[str, Any] | None = world.seed.find(DEPLOYMENTS, victoria_logs.NAME, NAMESPACE)
    return found


def all_of_store(world: World) -> list[str]:
    """Objects of the store. Certificates of the secrets manager are deleted by its next cleanup."""
    return sorted(
        f"{path.rpartition('/')[2]} {name}"
        for path, _, name in world.seed.objects
        if name.startswith(victoria_logs.NAME) and "-tls" not in name
    )


async def test_the_owner_gets_the_address_of_the_store_beside_that_of_prometheus(world: World) -> None:
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)

    annotations = (published(world) or {})["metadata"]["annotations"]
    assert annotations["logs-url"] == f"https://{HOST}"
    assert annotations["prometheus-url"] == f"https://p{HOST.removeprefix('v')}"
    owned = OWNED[resources.SECRET, ""]
    for name in annotations:
        admitted = {f"metadata.annotations[{name}]" in paths for paths in (owned.created, owned.changed)}
        assert admitted == {True}, "admission lets a gardenlet write it"
    users = base64.b64decode(world.seed.find(SEED_SECRETS, victoria_logs.NAME, NAMESPACE)["data"]["users"]).decode()
    assert users == f"admin:{{SHA}}{base64.b64encode(hashlib.sha1(password(world)).digest()).decode()}\n"


async def test_no_object_but_a_secret_holds_the_password(world: World) -> None:
    pin(world, purpose="production")
    result = await observability(world).deploy_observability(TASK)

    users = base64.b64decode(world.seed.find(SEED_SECRETS, victoria_logs.NAME, NAMESPACE)["data"]["users"]).decode()
    others = [item for (path, _, _), item in world.seed.objects.items() if path != SEED_SECRETS]
    text = json.dumps([others, str(result)])
    assert password(world).decode() not in text
    assert users.partition("}")[2].strip() not in text


async def test_the_store_verifies_clients_by_the_authority_of_the_shoots_clients(world: World) -> None:
    """The kube-controller-manager signs the certificates of kubelets with it."""
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)

    volumes = {each["name"]: each for each in (store(world) or {})["spec"]["template"]["spec"]["volumes"]}
    secret = volumes["clients"]["secret"]
    found = world.seed.find(SEED_SECRETS, secret["secretName"], NAMESPACE)
    assert found["metadata"]["labels"]["bundle-for"] == "ca-client"
    assert [each["key"] for each in secret["items"]] == ["bundle.crt"]


async def test_a_second_run_writes_nothing(world: World) -> None:
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)
    seen = len(world.seed.requests)
    await observability(world).deploy_observability(TASK)

    assert {method for method, _ in world.seed.requests[seen:]} == {"GET"}


@pytest.mark.parametrize(
    ("which", "spec"),
    [
        (NodeLogs(), {}),
        (PRODUCTION, {"purpose": "evaluation"}),
        (NodeLogs(frozenset({"testing"})), {"purpose": "testing"}),
        (PRODUCTION, {"ingress": False}),
        (PRODUCTION, {"provider": {"type": "local"}}),
        (PRODUCTION, {"networking": {**SHOOT["spec"].get("networking", {}), "ipFamilies": ["IPv6"]}}),
    ],
    ids=["off", "another purpose", "testing", "no ingress domain", "no nodes", "IPv6 alone"],
)
async def test_a_shoot_that_has_no_store_keeps_nothing_of_an_earlier_one(
    world: World, which: NodeLogs, spec: dict[str, Any]
) -> None:
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)
    assert len(all_of_store(world)) >= 6

    networks = {"networking": {"pods": ["fd12::/56"], "services": ["fd12:1::/112"]}}
    pin(world, status=networks, **{"purpose": "production", **spec})
    await observability(world, which).deploy_observability(TASK)

    assert all_of_store(world) == []
    assert "logs-url" not in ((published(world) or {}).get("metadata") or {}).get("annotations", {})


async def test_without_logging_the_objects_of_a_shoot_are_those_of_a_version_that_has_none(world: World) -> None:
    pin(world, purpose="production")
    await ObservabilityActivities(world.clusters).deploy_observability(TASK)

    assert all_of_store(world) == []
    assert world.seed.find(DEPLOYMENTS, prometheus.NAME, NAMESPACE)
    assert set((published(world) or {})["metadata"]["annotations"]) == {"prometheus-url"}


async def test_a_rotation_of_the_password_restarts_the_store(world: World) -> None:
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)
    before, pods = password(world), (store(world) or {})["spec"]["template"]
    rotation = {"observability": {"lastInitiationTime": "2026-11-23T04:00:00Z"}}
    pin(world, purpose="production", status={"credentials": {"rotation": rotation}})
    await observability(world).deploy_observability(TASK)

    assert password(world) != before
    assert (store(world) or {})["spec"]["template"] != pods


async def test_a_hibernated_shoot_keeps_the_volume_and_runs_no_store(world: World) -> None:
    pin(world, purpose="production", hibernation={"enabled": True})
    task = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    await observability(world).deploy_observability(task)

    assert (store(world) or {})["spec"]["replicas"] == 0
    assert world.seed.find(CLAIMS, victoria_logs.NAME, NAMESPACE)


async def test_the_condition_of_observability_covers_the_store(world: World) -> None:
    """Care checks Deployments by this label."""
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)

    assert (store(world) or {})["metadata"]["labels"]["gardener.cloud/role"] == "monitoring"


async def test_nodes_send_their_logs_to_the_name_that_the_store_has(world: World) -> None:
    pin(world, purpose="production")
    await observability(world).deploy_observability(TASK)
    served = [
        json.loads(each["data"]["service.json"])
        for each in await world.clusters.seed.list(resources.CONFIG_MAP, NAMESPACE)
        if "service.json" in each["data"] and HOST in each["data"]["service.json"]
    ]
    assert [each["upstream"] for each in served] == [{"service": victoria_logs.NAME, "port": victoria_logs.PORT}]

    [unit] = node_logs.units(HOST, certificate="/pki/client.pem", cluster_ca="/ca.crt")
    command = unit["content"].partition("ExecStart=")[2].partition("\nStateDirectory")[0].replace("\\\n", " ").split()
    assert f"--url=https://{HOST}:443/insert/journald" in command
    assert {"--key=/pki/client.pem", "--cert=/pki/client.pem", "--trust=/ca.crt"} <= set(command)
    assert unit["filePaths"] == ["/ca.crt"], "it reads a renewed certificate by itself, but new authorities once a day"


def units(world: World) -> list[dict[str, Any]]:
    """Units of all pools' configurations that are about logs."""
    found: Iterable[dict[str, Any]] = (item for (path, _, _), item in world.seed.objects.items() if path == OSCS)
    return [unit for each in found for unit in each["spec"]["units"] if unit["name"] == node_logs.UNIT]


@pytest.mark.parametrize(("which", "sends"), [(PRODUCTION, True), (NodeLogs(), False)], ids=["on", "off"])
async def test_nodes_have_the_unit_only_if_there_is_a_store(world: World, which: NodeLogs, sends: bool) -> None:
    pool = {"name": "a", "machine": {"type": "local", "image": {"name": "local", "version": "1"}}}
    pin(world, purpose="production", provider={"type": "local", "workers": [pool]})
    await OperatingSystemConfigActivities(world.clusters, which).deploy_os_configs(TASK)

    found = units(world)
    assert bool(found) is sends
    assert all(f"https://{HOST}:443" in each["content"] for each in found)


def test_disk_and_memory_of_a_store_are_limited() -> None:
    [deployment] = [each for each in IN_THE_SEED[victoria_logs.NAME] if each["kind"] == "Deployment"]
    program, proxy = deployment["spec"]["template"]["spec"]["containers"]

    assert "-retentionPeriod=14d" in program["command"]
    assert "-retention.maxDiskSpaceUsageBytes=12GiB" in program["command"]
    assert "-storage.minFreeDiskSpaceBytes=1GiB" in program["command"]
    assert "-httpListenAddr=127.0.0.1:9481" in program["command"], "only Envoy reaches the store"
    assert all(each["resources"]["limits"]["memory"] for each in (program, proxy))

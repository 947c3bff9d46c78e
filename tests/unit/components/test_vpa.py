"""A Shoot's vertical pod autoscaler: what its programs are told, who asks, and what is left where it is unwanted."""

import base64
import json
import re
from typing import Any

import pytest
from cryptography import x509

from activities.components import vpa
from activities.seed.vpa import VpaActivities
from api.contracts.flows import FlowInput
from api.contracts.operations import OperationType
from api.core.v1beta1.shoot import VerticalPodAutoscaler
from api.crds import crds
from tests.unit.components.test_control_plane import NAMESPACE, SHOOT, TASK, World, with_settings, world
from tests.unit.workflows.test_skip_columns import FACTS
from workflows.shoot.reconcile import reconcile_flow

__all__ = ["world"]

SECRETS = "/api/v1/secrets"
SERVICES = "/api/v1/services"
DEPLOYMENTS = "/apis/apps/v1/deployments"
PROGRAMS = {"vpa-recommender", "vpa-updater", "vpa-admission-controller"}


def pin(world: World, *, enabled: bool = True, **spec: Any) -> None:
    shoot = with_settings(verticalPodAutoscaler={"enabled": enabled})
    world.pin({**shoot, "spec": {**shoot["spec"], **spec}})


def programs(world: World) -> dict[str, dict[str, Any]]:
    return {
        name: item for (path, _, name), item in world.seed.objects.items() if path == DEPLOYMENTS and name in PROGRAMS
    }


def in_shoot(world: World) -> list[dict[str, Any]]:
    """What the resource manager is told to apply."""
    secret = world.secret("managedresource-shoot-core-vpa")
    return [json.loads(base64.b64decode(text)) for text in secret["data"].values()]


def flags(name: str, **settings: Any) -> dict[str, str]:
    autoscaler = vpa.Autoscaler(
        namespace=NAMESPACE,
        generic_kubeconfig="generic",
        server="server",
        settings=VerticalPodAutoscaler.model_validate({"enabled": True, **settings}),
    )
    (deployment,) = (program[-1] for program in vpa.programs(autoscaler) if program[-1]["metadata"]["name"] == name)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(argument.removeprefix("--").split("=", 1) for argument in container["command"][1:])


def test_where_nothing_is_said_its_programs_go_by_gardeners_defaults() -> None:
    recommender, updater = flags("vpa-recommender"), flags("vpa-updater")
    assert (
        recommender.items()
        >= {
            "recommender-interval": "1m",
            "recommendation-margin-fraction": "0.15",
            "target-cpu-percentile": "0.9",
            "recommendation-lower-bound-cpu-percentile": "0.5",
            "recommendation-upper-bound-cpu-percentile": "0.95",
            "target-memory-percentile": "0.9",
            "recommendation-lower-bound-memory-percentile": "0.5",
            "recommendation-upper-bound-memory-percentile": "0.95",
            "cpu-histogram-decay-half-life": "24h",
            "memory-histogram-decay-half-life": "24h",
            "memory-aggregation-interval": "24h",
            "memory-aggregation-interval-count": "8",
            "update-worker-count": "10",
        }.items()
    )
    assert (
        updater.items()
        >= {
            "updater-interval": "1m",
            "evict-after-oom-threshold": "10m",
            "eviction-rate-burst": "1",
            "eviction-rate-limit": "-1",
            "eviction-tolerance": "0.5",
        }.items()
    )
    assert not [flag for flag in {**recommender, **updater} if "max-allowed" in flag or flag == "feature-gates"]


def test_its_programs_go_by_what_the_owner_says() -> None:
    settings = {
        "evictionRateLimit": -1.0,
        "updaterInterval": "30s",
        "recommendationMarginFraction": 0.2,
        "maxAllowed": {"cpu": "8", "memory": "16Gi"},
        "featureGates": {"InPlace": True, "CPUStartupBoost": False},
    }
    recommender, updater = flags("vpa-recommender", **settings), flags("vpa-updater", **settings)
    assert recommender["recommendation-margin-fraction"] == "0.2"
    assert recommender["container-recommendation-max-allowed-cpu"] == "8"
    assert recommender["container-recommendation-max-allowed-memory"] == "16Gi"
    assert (updater["eviction-rate-limit"], updater["updater-interval"]) == ("-1", "30s")
    for name in PROGRAMS:
        assert flags(name, **settings)["feature-gates"] == "CPUStartupBoost=false,InPlace=true"


async def test_the_api_server_reaches_its_webhook_and_trusts_it(world: World) -> None:
    pin(world)
    result = await VpaActivities(world.clusters).deploy_vpa(TASK)
    (webhook,) = (each for each in in_shoot(world) if each["kind"] == "MutatingWebhookConfiguration")
    (one,) = webhook["webhooks"]
    found = re.fullmatch(r"https://([a-z-]+)\.([a-z-]+):443", one["clientConfig"]["url"])
    assert found
    service = world.seed.find(SERVICES, found[1], found[2])
    assert [port["port"] for port in service["spec"]["ports"]] == [443]

    deployment = programs(world)["vpa-admission-controller"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    pod = deployment["spec"]["template"]["spec"]
    (mounted,) = (each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each)
    assert mounted in result.secrets
    certificate = x509.load_pem_x509_certificate(base64.b64decode(world.secret(mounted)["data"]["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{found[1]}.{found[2]}" in names.get_values_for_type(x509.DNSName)
    authorities = x509.load_pem_x509_certificates(base64.b64decode(one["clientConfig"]["caBundle"]))
    certificate.verify_directly_issued_by(authorities[0])


async def test_no_pod_waits_for_it_and_no_remedy_is_needed(world: World) -> None:
    """Its pods are down while a cluster sleeps, wakes up or goes away."""
    pin(world)
    await VpaActivities(world.clusters).deploy_vpa(TASK)
    (webhook,) = (each for each in in_shoot(world) if each["kind"] == "MutatingWebhookConfiguration")
    assert {each["failurePolicy"] for each in webhook["webhooks"]} == {"Ignore"}
    assert webhook["metadata"]["labels"] == {"remediation.webhook.shoot.gardener.cloud/exclude": "true"}


async def test_each_program_has_a_token_of_its_own_with_rights_of_its_own(world: World) -> None:
    pin(world)
    await VpaActivities(world.clusters).deploy_vpa(TASK)
    objects = in_shoot(world)
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    bound = {each["subjects"][0]["name"] for each in objects if each["kind"] == "ClusterRoleBinding"}
    assert accounts == bound == PROGRAMS == set(programs(world))
    for name in PROGRAMS:
        annotations = world.secret(f"shoot-access-{name}")["metadata"]["annotations"]
        assert annotations["serviceaccount.resources.gardener.cloud/name"] == name
    roles = {each["metadata"]["name"].rpartition(":")[2]: each for each in objects if each["kind"] == "ClusterRole"}
    may = {name: json.dumps(role["rules"]) for name, role in roles.items()}
    assert [name for name in sorted(may) if "pods/eviction" in may[name]] == ["vpa-updater"]
    assert not [name for name in may if "secrets" in may[name]]


async def test_a_second_run_writes_nothing(world: World) -> None:
    pin(world)
    activities = VpaActivities(world.clusters)
    await activities.deploy_vpa(TASK)
    seen = len(world.seed.requests)
    await activities.deploy_vpa(TASK)
    assert {method for method, _ in world.seed.requests[seen:]} == {"GET"}


@pytest.mark.parametrize("unwanted", ["switched off", "never mentioned"])
async def test_where_it_is_not_wanted_nothing_of_it_is_left(world: World, unwanted: str) -> None:
    activities = VpaActivities(world.clusters)
    there = set(world.seed.objects)
    pin(world)
    await activities.deploy_vpa(TASK)
    assert programs(world)
    if unwanted == "switched off":
        pin(world, enabled=False)
    else:
        world.pin(SHOOT)
    assert (await activities.deploy_vpa(TASK)).note == "not wanted"
    assert (await activities.wait_vpa(TASK)).note == "not wanted"
    # The certificate goes with the next cleanup, what the resource manager has in the shoot by its finalizer.
    left = {name for _, _, name in set(world.seed.objects) - there}
    assert {re.sub(r"-[0-9a-f]{8}$", "", name) for name in left} == {"vpa-admission-controller-server"}


async def test_asleep_it_sleeps(world: World) -> None:
    pin(world, hibernation={"enabled": True})
    task = TASK.model_copy(update={"operation": OperationType.RECONCILE})
    await VpaActivities(world.clusters).deploy_vpa(task)
    assert {each["spec"]["replicas"] for each in programs(world).values()} == {0}


async def test_there_are_two_of_each_where_the_loss_of_a_node_is_to_be_survived(world: World) -> None:
    pin(world, controlPlane={"highAvailability": {"failureTolerance": {"type": "node"}}})
    await VpaActivities(world.clusters).deploy_vpa(TASK)
    for each in programs(world).values():
        assert each["spec"]["replicas"] == 2
        spread = each["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {constraint["whenUnsatisfiable"] for constraint in spread} == {"DoNotSchedule"}


@pytest.mark.parametrize("operation", [OperationType.CREATE, OperationType.RESTORE, OperationType.RECONCILE])
def test_nobody_waits_for_it_to_get_a_cluster(operation: OperationType) -> None:
    flow = reconcile_flow(FlowInput(task=TASK.model_copy(update={"operation": operation}), facts=FACTS))
    assert flow.comes_after("deploy_vpa", "wait_tunnel")
    assert bool(flow.skipped("wait_vpa")) == (operation is not OperationType.RECONCILE)


# Its kinds


def schemas() -> dict[str, dict[str, Any]]:
    return {
        each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in crds("autoscaled shoot")
    }


def test_its_kinds_have_names_that_the_api_server_takes() -> None:
    for each in crds("autoscaled shoot"):
        assert each["metadata"]["name"] == f"{each['spec']['names']['plural']}.autoscaling.k8s.io"
        assert "api-approved.kubernetes.io" in each["metadata"]["annotations"]


def test_users_say_whose_pods_they_mean_and_how_they_are_changed() -> None:
    spec = schemas()["VerticalPodAutoscaler"]["properties"]["spec"]
    assert spec["required"] == ["targetRef"]
    assert set(spec["properties"]) == {"targetRef", "updatePolicy", "resourcePolicy", "recommenders", "startupBoost"}
    modes = spec["properties"]["updatePolicy"]["properties"]["updateMode"]["enum"]
    assert modes == ["Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto"]
    assert schemas()["VerticalPodAutoscaler"]["required"] == ["spec"]


@pytest.mark.parametrize(
    ("amount", "taken"),
    [
        ("100m", True),
        ("1.5Gi", True),
        ("2", True),
        (".5", True),
        ("1e3", True),
        ("-1", True),
        ("1GiB", False),
        ("", False),
    ],
)
def test_amounts_are_those_of_kubernetes(amount: str, taken: bool) -> None:
    status = schemas()["VerticalPodAutoscaler"]["properties"]["status"]
    recommended = status["properties"]["recommendation"]["properties"]["containerRecommendations"]["items"]
    pattern = recommended["properties"]["target"]["additionalProperties"]["pattern"]
    assert bool(re.search(pattern, amount)) == taken

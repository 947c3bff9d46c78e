"""From a Worker to machine deployments and classes (spec/extensions.md 3)."""

from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.provider_local.machines import WantedDeployment, machine_class, machine_deployment, wanted_deployments
from api.local import CloudProfileConfig, InfrastructureStatus
from api.machine.objects import chosen_machines

PROFILE = {
    "metadata": {"name": "local"},
    "spec": {
        "machineTypes": [{"name": "local", "cpu": "2", "memory": "4Gi"}, {"name": "odd", "cpu": "500m", "memory": "1G"}]
    },
}
FACTS = CloudProfileConfig(machine_network="198.18.8.0/22", images_directory="/images")


def pool(**changes: Any) -> dict[str, Any]:
    return {
        "name": "worker",
        "minimum": 1,
        "maximum": 2,
        "maxSurge": 1,
        "maxUnavailable": 0,
        "machineType": "local",
        "machineImage": {"name": "local", "version": "1.0.0"},
        "nodeAgentSecretName": "gardener-node-agent-worker-0123456789abcdef",
        "userDataSecretRef": {"name": "osc-result", "key": "cloud_config"},
        "zones": ["0"],
        **changes,
    }


def wanted(*pools: dict[str, Any], namespace: str = "infra-shoot--dev--one") -> list[WantedDeployment]:
    status = InfrastructureStatus(namespace=namespace)
    return wanted_deployments("shoot--dev--one", {"pools": list(pools)}, {}, PROFILE, FACTS, status, "machine:v1")


def in_place(**changes: Any) -> dict[str, Any]:
    settings = {"nodeAgentSecretName": "gardener-node-agent-worker", "kubernetesVersion": "1.36.3"}
    return pool(**{"updateStrategy": "AutoInPlaceUpdate", **settings, **changes})


def test_names_tell_shoot_pool_zone_and_class() -> None:
    (only,) = wanted(pool())

    assert only.name == "shoot--dev--one-worker-z1"
    assert only.class_name.startswith("shoot--dev--one-worker-z1-")
    assert len(only.class_name) == len("shoot--dev--one-worker-z1-") + 5


@pytest.mark.parametrize(
    "change", [{"nodeAgentSecretName": "other"}, {"machineType": "odd"}], ids=lambda change: next(iter(change))
)
def test_a_change_that_nodes_cannot_apply_creates_a_new_class(change: dict[str, Any]) -> None:
    assert wanted(pool())[0].class_name != wanted(pool(**change))[0].class_name


@pytest.mark.parametrize(
    "change",
    [
        {"minimum": 2},
        {"labels": {"a": "b"}},
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"maxSurge": 3},
        {"nodeTemplate": {"capacity": {"cpu": "2"}}},
        {"kubeletConfig": {"maxPods": 50}},
    ],
)
def test_a_change_that_nodes_can_apply_keeps_the_class(change: dict[str, Any]) -> None:
    """Or every new label would replace all machines."""
    assert wanted(pool())[0].class_name == wanted(pool(**change))[0].class_name


@pytest.mark.parametrize(
    ("change", "updates"),
    [
        ({"kubernetesVersion": "1.37.1"}, True),
        ({"machineImage": {"name": "local", "version": "1.0.1"}}, True),
        ({"kubeletConfig": {"kubeReserved": {"cpu": "90m"}}}, True),
        ({"kubernetesVersion": "1.36.9"}, False),
        ({"kubeletConfig": {"maxPods": 50}}, False),
        ({"updateStrategy": "ManualInPlaceUpdate"}, False),
    ],
)
def test_settings_that_update_machines_in_place_are_part_of_the_class(change: dict[str, Any], updates: bool) -> None:
    """The name of the Secret with the configuration is always the same in such pools."""
    (before,), (after,) = wanted(in_place()), wanted(in_place(**change))
    assert (before.class_name != after.class_name) is updates
    assert (before.update != after.update) is updates


@pytest.mark.parametrize(
    ("change", "strategy"),
    [
        ({"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto"}),
        ({"updateStrategy": "ManualInPlaceUpdate"}, {"orchestrationType": "Manual"}),
    ],
)
def test_a_deployment_says_how_its_machines_are_updated_in_place(
    change: dict[str, Any], strategy: dict[str, Any]
) -> None:
    timeout = {"machineControllerManager": {"inPlaceUpdateTimeout": "7m"}}
    made = machine_deployment(wanted(in_place(**change, **timeout))[0], "shoot--dev--one", "local", 1)
    assert made["spec"]["strategy"] == {"type": "InPlaceUpdate", "inPlaceUpdate": strategy}
    assert made["spec"]["template"]["spec"]["inPlaceUpdateTimeout"] == "7m"
    replaced = machine_deployment(wanted(pool())[0], "shoot--dev--one", "local", 1)
    assert replaced["spec"]["strategy"]["type"] == "RollingUpdate"


def test_zones_share_replicas_and_the_first_get_the_rest() -> None:
    found = wanted(pool(zones=["a", "b", "c"], minimum=5, maximum=7, maxSurge=2, maxUnavailable="50%"))

    assert [each.name[-2:] for each in found] == ["z1", "z2", "z3"]
    assert [each.minimum for each in found] == [2, 2, 1]
    assert [each.maximum for each in found] == [3, 2, 2]
    assert [each.max_surge for each in found] == [1, 1, 0]
    assert [each.max_unavailable for each in found] == [2, 1, 1]


@pytest.mark.parametrize(
    ("live", "hibernated", "replicas"),
    [(None, False, 1), (2, False, 2), (9, False, 3), (0, False, 1), (2, True, 0)],
)
def test_replicas_are_the_autoscalers_within_bounds(live: int | None, hibernated: bool, replicas: int) -> None:
    (only,) = wanted(pool(maximum=3))

    assert only.replicas(live, hibernated=hibernated) == replicas


@pytest.mark.parametrize(
    ("text", "alive", "names"),
    [
        (None, "abc", []),
        ("", "abc", []),
        ("b,, a,", "abc", ["b", "a"]),
        ("b,gone", "abc", ["b"]),
        ("b", "ab", []),
    ],
)
def test_chosen_machines_are_deleted_while_there_are_too_many(text: str | None, alive: str, names: list[str]) -> None:
    annotations = None if text is None else {"node.machine.sapcloud.io/trigger-deletion-by-mcm": text}

    assert chosen_machines({"metadata": {"annotations": annotations}, "spec": {"replicas": 2}}, set(alive)) == names


@pytest.mark.parametrize(("kind", "cpu", "memory"), [("local", 100, 214748364), ("odd", 25, 50_000_000)])
def test_machines_request_a_part_of_their_type(kind: str, cpu: int, memory: int) -> None:
    (only,) = wanted(pool(machineType=kind))

    assert (only.provider.cpu_millis, only.provider.memory_bytes) == (cpu, memory)


def test_an_unknown_machine_type_is_a_configuration_problem() -> None:
    with pytest.raises(ApplicationError, match="no machine type huge") as refused:
        wanted(pool(machineType="huge"))

    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


def test_a_deployment_carries_what_its_nodes_get() -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}]
    controller = {"machineDrainTimeout": "1h0m0s", "nodeConditions": ["A", "B"], "disableHealthTimeout": True}
    (only,) = wanted(
        pool(
            labels={"mine": "yes"},
            annotations={"note": "x"},
            taints=taints,
            machineControllerManager=controller,
            clusterAutoscaler={"scaleDownUnneededTime": "10m"},
        )
    )
    made = machine_deployment(only, "shoot--dev--one", "local", 1)
    template = made["spec"]["template"]["spec"]

    assert template["disableHealthTimeout"] is True
    assert template["nodeTemplate"]["metadata"]["labels"]["mine"] == "yes"
    assert template["nodeTemplate"]["metadata"]["labels"]["topology.kubernetes.io/zone"] == "0"
    assert template["nodeTemplate"]["metadata"]["annotations"] == {"note": "x"}
    assert template["nodeTemplate"]["spec"]["taints"] == taints
    assert template["drainTimeout"] == "1h0m0s"
    assert template["nodeConditions"] == "A,B"
    assert "healthTimeout" not in template
    assert made["metadata"]["annotations"] == {"autoscaler.gardener.cloud/scale-down-unneeded-time": "10m"}
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_class_names_credentials_and_user_data_but_holds_neither() -> None:
    (only,) = wanted(pool())
    made = machine_class(only, "shoot--dev--one", {"name": "cloudprovider", "namespace": "shoot--dev--one"}, "local")

    assert made["credentialsSecretRef"]["name"] == "cloudprovider"
    assert made["secretRef"] == {"name": only.class_name, "namespace": "shoot--dev--one"}
    assert made["providerSpec"]["namespace"] == "infra-shoot--dev--one"
    assert made["providerSpec"]["imagesDirectory"] == "/images"

"""Care for running clusters."""

from typing import Any

import pytest

from activities.components import base, coredns
from activities.seed.facts import taints_of_system_pools
from tests.unit.care.test_constraints import NOT_SYSTEM, NOW, disrupted, pod, webhook
from workers.gardenlet.care import garbage, webhooks


@pytest.mark.exhibit(
    threads=["gardener/gardener#5956"],
    happened="A webhook for namespaces that leaves out kube-system by its object selector or its namespace selector "
    "was called problematic.",
    here="Both selectors are compared with the labels of kube-system, as the API server does.",
)
@pytest.mark.parametrize("selector", ["objectSelector", "namespaceSelector"])
def test_gardener_5956_a_webhook_for_namespaces_that_leaves_out_kube_system(selector: str) -> None:
    rule: Any = {"operations": ["CREATE", "UPDATE", "DELETE"], "scope": "*"}
    by_name = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
                                     "values": ["kube-system", "bar"]}]}  # fmt: skip
    for leaves_out in (NOT_SYSTEM, by_name):
        selectors: dict[str, Any] = {selector: leaves_out}
        found = webhook(["namespaces"], failurePolicy="Fail", rule=rule, **selectors)
        assert webhooks.fault(found) is None
    assert webhooks.fault(webhook(["namespaces"], failurePolicy="Fail", rule=rule))


@pytest.mark.exhibit(
    threads=["gardener/gardener#14518"],
    happened="Pods that the kubelet had preempted stayed for ever: those with reason Preempting, and those that had "
    "succeeded with condition DisruptionTarget.",
    here="The care of a cluster deletes both.",
)
@pytest.mark.parametrize("found", [pod("Preempting", "Failed"), disrupted("Succeeded"), disrupted("Failed")])
def test_gardener_14518_preempted_pods_are_deleted(found: dict[str, Any]) -> None:
    assert [each.pod for each in garbage.removals([found], NOW)] == [found]
    kept = garbage.outline(found, NOW)
    assert kept is not None, "the cache keeps what is to be deleted"
    assert len(garbage.removals([kept], NOW)) == 1


@pytest.mark.exhibit(
    threads=["gardener/gardener#11505", "k3s-io/k3s#12979"],
    happened="An owner's forward in ConfigMap coredns-custom had no effect, because CoreDNS asks the first forward "
    "that matches, and the owner's settings were imported after that for all names.",
    here="The owner's settings are imported before our forward and our cache.",
)
def test_gardener_11505_settings_of_the_owner_come_before_ours() -> None:
    made = coredns.objects(coredns.CoreDns("100.68.0.0/16", "api.example.org"))
    corefile = next(each for each in made if each["kind"] == "ConfigMap")["data"]["Corefile"]
    lines = [each.strip() for each in corefile.splitlines()]
    imported = lines.index("import custom/*.override")
    ours = [index for index, each in enumerate(lines) if each.startswith(("forward ", "cache "))]
    assert len(ours) == 2
    assert all(index > imported for index in ours)


@pytest.mark.exhibit(
    threads=["gardener/gardener#7104", "gardener/gardener#7103", "gardener/gardener#3537", "gardener/gardener#2067"],
    happened="A pool for system components could have taints that those components do not tolerate, and if all pools "
    "had taints the reconciliation failed.",
    here="System components tolerate the taints of each pool that allows them, and of no other one.",
)
def test_gardener_7104_system_components_tolerate_the_taints_of_their_pools() -> None:
    taint = {"key": "for", "value": "system", "effect": "NoSchedule"}
    other = {"key": "for", "value": "batch", "effect": "NoExecute"}
    pools: list[dict[str, Any]] = [{"taints": [taint]}, {"taints": [other], "systemComponents": {"allow": False}}]
    made = base.tolerating(coredns.objects(coredns.CoreDns("100.68.0.0/16", "a")), taints_of_system_pools(pools))

    deployments = [each for each in made if each["kind"] == "Deployment"]
    assert deployments
    for each in deployments:
        tolerations = each["spec"]["template"]["spec"]["tolerations"]
        assert {**taint, "operator": "Equal"} in tolerations
        assert not [toleration for toleration in tolerations if toleration.get("value") == "batch"]

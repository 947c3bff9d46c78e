"""An extension controller uses the rights that its chart and the gardenlet give it, or asks the gardenlet for more."""

from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.unit.gardenlet.test_extension_access import OLD, Running, gardenlet  # noqa: F401  # a fixture
from tests.unit.kube.waiting import until
from tests.unit.seed.test_extension_access import CLUSTER_ROLES, ROLES, cluster_role

ROOT = Path(__file__).parents[2]
EXTENSIONS = "/apis/extensions.gardener.cloud/v1alpha1"
CORE_KINDS = {"*", "secrets", "configmaps", "serviceaccounts", "serviceaccounts/token", "pods", "deployments"}
"""By any of these, in a namespace of others, an extension becomes what runs there."""


def _provider_local() -> list[dict[str, Any]]:
    values = {"seedName": "seed-1", "loadBalancerIp": "198.18.2.2"}
    with helm.Chart.load(ROOT / "charts/provider-local") as chart:
        files: dict[str, str] = chart.render(values, name="release", namespace="garden")
    return [each for path, text in files.items() if path.endswith(".yaml") for each in yaml.safe_load_all(text) if each]


def _example() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "examples/local_extension/rbac.yaml").read_text()))


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
@pytest.mark.parametrize("objects", [_provider_local, _example], ids=["provider-local", "example"])
def test_an_extension_as_installed_has_no_right_on_core_kinds_outside_of_control_planes(objects: Any) -> None:
    """As installed it is bound in the whole seed and in its own namespace, which may be garden."""
    found = objects()
    roles = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in found if "rules" in each}
    bound = [(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in found if "roleRef" in each]

    granted = {resource for role in bound for rule in roles[role] for resource in rule["resources"]}

    assert bound
    assert granted.isdisjoint(CORE_KINDS)
    assert {"secrets"} <= {resource for rules in roles.values() for rule in rules for resource in rule["resources"]}


@pytest.mark.attack(actor="T4", asset="A1", finding=14)
async def test_an_extension_names_another_secret_in_its_object_and_gets_no_right_on_it(
    gardenlet: Running,  # noqa: F811
) -> None:
    """An extension may change the spec of its objects. The gardenlet shares the Secrets that it named itself."""
    reference = {"name": "gardenlet-kubeconfig", "namespace": "garden"}
    for kind, name, namespace in (
        ("backupbuckets", "5eed", None),
        ("backupentries", f"{OLD}--uid", None),
        ("dnsrecords", "seed-ingress", "garden"),
    ):
        spec = {"type": "x", "secretRef": reference}
        gardenlet.seed.put(f"{EXTENSIONS}/{kind}", {"metadata": {"name": name}, "spec": spec}, namespace)
    gardenlet.seed.put(CLUSTER_ROLES, cluster_role())

    await until(lambda: gardenlet.readable("dnsrecord-seed-ingress") and gardenlet.readable("backup-bucket"))

    rules = [rule for (path, _, _), role in gardenlet.seed.objects.items() if path == ROLES for rule in role["rules"]]
    assert rules
    assert all(rule["resourceNames"] for rule in rules)
    assert "gardenlet-kubeconfig" not in {name for rule in rules for name in rule["resourceNames"]}

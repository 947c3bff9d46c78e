"""An extension controller uses its credentials of the seed for what it does not serve, on a landscape.

The credentials are of the ServiceAccount of provider-local. The Shoot, which it serves, shows what it does by right.
"""

import asyncio
import json
from pathlib import Path

import pytest

from api.decisions.extension_charts import namespace_of
from landscape import extensions
from landscape.cluster import Credentials
from landscape.pki import token_kubeconfig, write_kubeconfig
from landscape.plan import load
from tests.landscape.conftest import BIN, run
from tests.landscape.shoots import Shoot, refused
from workers.provider_local.access import NAME

pytestmark = pytest.mark.landscape

CLOSED = ("garden", "kube-system", "istio-ingress", "default")
"""Namespaces that no extension serves."""


def _as_extension(shoot: Shoot, *arguments: str) -> list[str]:
    """Command line of kubectl with a token of provider-local's ServiceAccount in the Shoot's seed."""
    return [str(BIN / "kubectl"), f"--kubeconfig={_kubeconfig(shoot)}", *arguments]


def _kubeconfig(shoot: Shoot) -> Path:
    plan = load(shoot.landscape.name)
    assert plan is not None
    file, seed = shoot.kubeconfig.with_name("provider-local.yaml"), plan.cluster(shoot.seed)
    if not file.exists():
        installation = asyncio.run(extensions.installed_as(plan, seed))
        account = ("create", "token", NAME, "--namespace", namespace_of(installation))
        token = shoot.landscape.kubectl(shoot.seed, *account).strip()
        write_kubeconfig(file, token_kubeconfig(seed.server, Credentials.of(seed).ca, token, seed.name))
    return file


@pytest.mark.attack(actor="T4", asset="A1", finding=14)
def test_an_extension_reads_the_credentials_of_the_gardenlet_and_is_refused(shoot: Shoot) -> None:
    """With them it would be the gardenlet in the garden, for all Shoots of the seed."""
    admin = shoot.landscape.kubectl(shoot.seed, "-n", "garden", "get", "secret", "gardenlet-kubeconfig", "-o", "name")
    assert admin.strip() == "secret/gardenlet-kubeconfig"

    said = refused(*_as_extension(shoot, "-n", "garden", "get", "secret", "gardenlet-kubeconfig"))

    assert "Forbidden" in said


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
@pytest.mark.parametrize("kind", ["secrets", "configmaps", "serviceaccounts", "pods", "deployments"])
def test_an_extension_lists_objects_outside_of_control_planes_and_is_refused(shoot: Shoot, kind: str) -> None:
    for place in (*(f"--namespace={each}" for each in CLOSED), "--all-namespaces"):
        assert "Forbidden" in refused(*_as_extension(shoot, "get", kind, place))


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
@pytest.mark.parametrize("namespace", CLOSED)
def test_an_extension_writes_outside_of_control_planes_and_is_refused(shoot: Shoot, namespace: str) -> None:
    """A Deployment or a token there would act with the rights of the accounts there."""
    for what in (("deployment", "intruder", "--image=x"), ("secret", "generic", "intruder"), ("token", "default")):
        argv = _as_extension(shoot, "create", *what, f"--namespace={namespace}")
        dry = () if what[0] == "token" else ("--dry-run=server",)
        assert "orbidden" in refused(*argv, *dry)


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
def test_an_extension_changes_what_the_gardenlet_works_from_and_is_refused(shoot: Shoot) -> None:
    """The Cluster pins the desired state; labels of a namespace say what is a control plane."""
    for what in (
        ("patch", "cluster.extensions.gardener.cloud", shoot.technical_id, "--type=merge", "-p", '{"spec": {}}'),
        ("label", "namespace", "kube-system", "gardener.cloud/role=shoot"),
        ("create", "namespace", "shoot--local--intruder"),
        ("create", "clusterrole", "intruder", "--verb=get", "--resource=secrets"),
        ("create", "clusterrolebinding", "intruder", "--clusterrole=cluster-admin", "--user=intruder"),
        ("-n", shoot.technical_id, "create", "rolebinding", "intruder", "--clusterrole=admin", "--user=intruder"),
        ("-n", "garden", "create", "rolebinding", "intruder", "--clusterrole=admin", "--user=intruder"),
    ):
        assert "orbidden" in refused(*_as_extension(shoot, *what, "--dry-run=server"))


@pytest.mark.attack(actor="T4", asset="A2", finding=14)
def test_an_extension_has_the_seeds_resource_manager_apply_objects_and_is_refused(shoot: Shoot) -> None:
    """A seed may have a resource manager for ManagedResources of a class; it may do everything in the seed."""
    managed = {
        "apiVersion": "resources.gardener.cloud/v1alpha1",
        "kind": "ManagedResource",
        "metadata": {"name": "intruder", "namespace": shoot.technical_id},
        "spec": {"secretRefs": [{"name": "intruder"}]},
    }
    argv = _as_extension(shoot, "create", "--dry-run=server", "-f", "-")
    assert "intruder" in run(*argv, stdin=json.dumps(managed)), "those for the shoot are its by right"

    managed["spec"] = {"secretRefs": [{"name": "intruder"}], "class": "seed"}

    assert "of a class" in refused(*argv, stdin=json.dumps(managed))

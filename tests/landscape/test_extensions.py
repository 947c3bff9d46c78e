"""An extension of one's own in the life of a Shoot; and the end of a Shoot whose cloud is out of reach.

The tests run in the order in which they stand.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from landscape import extensions
from landscape.plan import SEEDS
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.installations import GOOD, apply, conditions, deploy, installations, unregister
from tests.landscape.shoots import CREATION, DELETION, NAMESPACE, CloudCredentials, Shoot, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]

EXAMPLE = Path(__file__).parents[2] / "examples/local_extension"
SEED = "seed-1"
TYPES = ("local-ext-before", "local-ext", "local-ext-after-worker")
FORCE = "confirmation.gardener.cloud/force-deletion=true"


@pytest.fixture(scope="module")
def extension(landscape: Landscape) -> Iterator[None]:
    """Its registration and its chart are in the garden; the gardenlet of a seed that needs it installs it."""
    registration = yaml.safe_load((EXAMPLE / "controllerregistration.yaml").read_text())
    registration["spec"]["deployment"] = {"deploymentRefs": [{"name": "local-ext"}]}
    deploy(landscape, "local-ext", {"rawChart": b64encode(extensions.packaged(EXAMPLE / "chart")).decode()})
    apply(landscape, registration)
    yield
    unregister(landscape, "local-ext")


@pytest.fixture(scope="module")
def extended(
    landscape: Landscape, extension: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shoot, CloudCredentials]]:
    """A Shoot with all three types, and cloud credentials of its own."""
    shoot = Shoot(landscape, "extended", tmp_path_factory.mktemp("kubeconfigs"))
    credentials = CloudCredentials(shoot, "mortal")
    credentials.write(credentials.good)
    credentials.bind()
    asked = [{"type": each, "providerConfig": {"greeting": f"for {each}"}} for each in TYPES]
    shoot.apply(shoot.manifest(seedName=SEED, credentialsBindingName=credentials.name, extensions=asked))
    shoot.wait_for_state("Succeeded", CREATION)
    assert shoot.uid
    yield shoot, credentials
    credentials.write(credentials.good)
    shoot.remove()
    credentials.remove()


def test_the_gardenlets_have_installed_the_landscapes_extension(landscape: Landscape) -> None:
    """Also seen in the command of the landscape, and by a pod in each seed in place of a process of the machine."""
    found = installations(landscape, "provider-local")

    assert {each["spec"]["seedRef"]["name"] for each in found} == set(SEEDS)
    for each in found:
        assert GOOD.items() <= conditions(each).items()
        namespace, seed = f"extension-{each['metadata']['name']}", each["spec"]["seedRef"]["name"]
        pods = landscape.kubectl(seed, "-n", namespace, "get", "pods", "-o", "name").split()
        assert [name for name in pods if name.startswith("pod/gardener-extension-provider-local-")]
    status = landscape.status
    assert {name for name in status["extensions"] if name.startswith("provider-local-")} == {
        each["metadata"]["name"] for each in found
    }
    assert not [name for name in status["processes"] if name.endswith("/provider-local")]


def _found(shoot: Shoot, type_: str) -> dict[str, str]:
    config_map = json.loads(shoot.control_plane("get", "configmap", f"extension-{type_}", "-o", "json"))
    data: dict[str, str] = config_map["data"]
    return data


@pytest.mark.timeout(CREATION + 60, func_only=True)
def test_each_extension_runs_in_its_phase(extended: tuple[Shoot, CloudCredentials]) -> None:
    """Seen from what each of them found when it was asked, and from the flow."""
    shoot, _ = extended
    before, after, last = (_found(shoot, each) for each in TYPES)

    assert (before["apiServer"], before["machines"]) == ("false", "false")
    assert (after["apiServer"], after["machines"]) == ("true", "false")
    assert (last["apiServer"], last["machines"]) == ("true", "true")
    assert before["at"] < after["at"] < last["at"]
    tasks = {each["name"]: each for each in shoot.flow()["tasks"]}
    assert tasks["wait_extensions_before_apiserver"]["ended"] <= tasks["deploy_apiserver"]["started"]
    assert tasks["wait_extensions_after_apiserver"]["ended"] <= tasks["deploy_os_configs"]["started"]
    assert tasks["wait_extensions_after_worker"]["ended"] <= tasks["wait_worker"]["started"]


def test_an_extension_works_in_the_cluster_with_its_provider_config(
    extended: tuple[Shoot, CloudCredentials],
) -> None:
    shoot, _ = extended
    sent = ("-n", "kube-system", "get", "configmap", "extension-local-ext", "-o", "jsonpath={.data.greeting}")

    assert shoot.kubectl(*sent) == "for local-ext"
    identity = ("-n", "kube-system", "get", "configmap", "cluster-identity", "-o", "jsonpath={.data.cluster-identity}")
    assert shoot.kubectl(*identity).startswith(f"{shoot.technical_id}-{shoot.uid}-")


def test_an_extension_that_leaves_the_spec_is_deleted_and_no_other(extended: tuple[Shoot, CloudCredentials]) -> None:
    shoot, _ = extended
    left = [{"type": each} for each in TYPES if each != "local-ext"]
    generation = shoot.get()["metadata"]["generation"]

    shoot.garden("patch", "shoot", shoot.name, "--type=merge", "-p", json.dumps({"spec": {"extensions": left}}))
    eventually(lambda: _done(shoot, generation + 1), "the reconciliation of the new generation", 110)

    names = shoot.control_plane("get", "extensions.extensions.gardener.cloud", "-o", "name").split()
    assert names == [f"extension.extensions.gardener.cloud/{each['type']}" for each in sorted(left, key=str)]
    gone = refused(*shoot.argv("-n", "kube-system", "get", "configmap", "extension-local-ext"))
    assert "NotFound" in gone


def _done(shoot: Shoot, generation: int) -> bool:
    status = shoot.get()["status"]
    return bool(status["observedGeneration"] == generation and status["lastOperation"]["state"] == "Succeeded")


# The cloud is out of reach


@pytest.mark.slow
@pytest.mark.timeout(DELETION, func_only=True)
def test_force_deletion_is_refused_before_the_deletion_has_failed(extended: tuple[Shoot, CloudCredentials]) -> None:
    shoot, credentials = extended
    garden = f"--kubeconfig={shoot.landscape.directory}/kubeconfigs/garden.yaml"
    kubectl: list[str | Path] = [BIN / "kubectl", garden, "-n", NAMESPACE]
    assert "delete it first" in refused(*kubectl, "annotate", "shoot", shoot.name, FORCE)

    credentials.write(credentials.with_token("expired"))
    shoot.delete(wait=False)
    assert "is allowed once the deletion has failed" in refused(*kubectl, "annotate", "shoot", shoot.name, FORCE)

    shoot.wait_for_state("Failed", DELETION)
    codes = {code for error in shoot.get()["status"]["lastErrors"] for code in error.get("codes") or ()}
    assert codes == {"ERR_INFRA_UNAUTHENTICATED"}


@pytest.mark.slow
@pytest.mark.timeout(DELETION + 60, func_only=True)
def test_a_force_deletion_with_invalid_credentials_leaves_only_cloud_resources(
    extended: tuple[Shoot, CloudCredentials],
) -> None:
    shoot, _ = extended

    shoot.garden("annotate", "shoot", shoot.name, FORCE)
    shoot.garden("wait", "--for=delete", f"shoot/{shoot.name}", f"--timeout={DELETION}s", timeout=DELETION + 10)

    traces = shoot.traces()
    left: Any = traces.pop("cloud")
    assert traces == {"garden": [], "seed": [], "dns": [], "bucket": []}
    assert left, "its machines are its owner's to delete"
    newest = shoot.flows()[0]
    assert (newest["operation"], newest["state"]) == ("Delete", "Completed")
    assert "/force-delete/" in newest["workflowId"]
    shoot.landscape.kubectl("cloud", "delete", "namespace", f"infra-{shoot.technical_id}", "--timeout=110s")

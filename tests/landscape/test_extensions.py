"""An extension of one's own in the life of a Shoot; and the end of a Shoot whose cloud is out of reach.

The tests run in the order in which they stand.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, DELETION, NAMESPACE, CloudCredentials, Shoot, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]

EXAMPLE = Path(__file__).parents[2] / "examples/local_extension"
SEED = "seed-1"
TYPES = ("local-ext-before", "local-ext", "local-ext-after-worker")
FORCE = "confirmation.gardener.cloud/force-deletion=true"


@pytest.fixture(scope="module")
def extension(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its process runs next to the seed with a token of its ServiceAccount, its registration is in the garden."""
    registration = (EXAMPLE / "controllerregistration.yaml").read_text()
    landscape.kubectl("garden", "apply", "-f", "-", stdin=registration)
    landscape.kubectl(SEED, "apply", "-f", str(EXAMPLE / "rbac.yaml"))
    directory = tmp_path_factory.mktemp("local-extension")
    log, token = directory / "extension.log", directory / "token"
    token.write_text(landscape.kubectl(SEED, "-n", "extension-local-ext", "create", "token", "local-ext"))
    kubeconfig = landscape.directory / f"kubeconfigs/{SEED}.yaml"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/gardener-{landscape.name}-{SEED}", "--",
             sys.executable, str(EXAMPLE / "extension.py"), "--kubeconfig", str(kubeconfig),
             "--token-file", str(token)],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        yield
        process.terminate()
        process.wait(10)
    landscape.kubectl(SEED, "delete", "-f", str(EXAMPLE / "rbac.yaml"), "--timeout=60s")
    landscape.kubectl("garden", "delete", "controllerregistration", "local-ext", "--timeout=30s")


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

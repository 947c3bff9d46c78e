"""Extensions that cannot be installed say what to do; installations succeed although processes are killed meanwhile."""

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from landscape import pki
from landscape.lifecycle import require
from landscape.plan import SEEDS
from tests.landscape.conftest import Landscape
from tests.landscape.installations import (
    GOOD,
    apply,
    conditions,
    deploy,
    everywhere,
    installations,
    raw_chart,
    register,
    unregister,
)
from tests.landscape.kills import CONTROLLER_MANAGER, GARDENLETS, kill
from tests.landscape.shoots import CREATION, Shoot, background, eventually
from tests.registries import CONFIG_MAP, Registry

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.chaos, pytest.mark.timeout(600, func_only=True)]

PORT = 5443
NO_VALUES = {"templates/a.yaml": '{{ required "set values.region of the ControllerDeployment" .Values.region }}'}
NEVER_HEALTHY = {
    "templates/a.yaml": """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: notes}
spec:
  selector: {matchLabels: {app: notes}}
  template:
    metadata: {labels: {app: notes}}
    spec:
      containers: [{name: notes, image: "registry.invalid/notes:1.0.0"}]
"""
}
NOTES = {"templates/a.yaml": CONFIG_MAP}
WRONG = f"sha256:{'0' * 64}"
TOLD = {
    "no-values": ("Valid", "ChartCannotBeRendered: .*set values.region of the ControllerDeployment"),
    "wrong-digest": ("Valid", f"OCIChartCannotBePulled: .*{WRONG}"),
    "never-healthy": ("Healthy", "ControllerNotHealthy: Deployment .*/notes is unhealthy"),
}
"""For each registration that cannot be installed, a condition that is False, and its reason and message."""


@pytest.fixture
def registry(landscape: Landscape, tmp_path: Path) -> Iterator[str]:
    """A registry in the garden's network, with a CA of its own; returns the repository of its chart."""
    plan = require(landscape.name)
    authority = pki.Authority(tmp_path, "registry-ca")
    pair = authority.issue("registry", "registry", names=[plan.central_address])
    apply(
        landscape,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "registry-ca", "namespace": "garden"},
            "stringData": {"bundle.crt": authority.files.certificate.read_text()},
        },
    )
    network = ("ip", "netns", "exec", plan.garden.netns)
    server = (sys.executable, "-m", "tests.registries", plan.central_address, str(PORT))
    with background([*network, *server, str(pair.certificate), str(pair.key)]):
        eventually(lambda: _listens(plan.central_address), "the registry listens", 20)
        yield f"{plan.central_address}:{PORT}/charts/notes"
    # Its ControllerDeployment protects the Secret from deletion.
    unregister(landscape, *TOLD, "good")
    landscape.kubectl("garden", "-n", "garden", "delete", "secret", "registry-ca", "--timeout=30s")


def _listens(address: str) -> bool:
    try:
        with socket.create_connection((address, PORT), 1):
            return True
    except OSError:
        return False


def test_extensions_that_cannot_be_installed_say_what_to_do_and_others_go_on(
    landscape: Landscape, shoot: Shoot, registry: str
) -> None:
    chart = {"repository": registry, "caBundleSecretRef": {"name": "registry-ca"}}
    register(landscape, "no-values", raw_chart(NO_VALUES))
    register(landscape, "wrong-digest", {"ociRepository": {**chart, "digest": WRONG}})
    register(landscape, "never-healthy", raw_chart(NEVER_HEALTHY))
    register(landscape, "good", raw_chart(NOTES))

    for name, (condition, _) in TOLD.items():
        eventually(lambda: everywhere(landscape, name, {condition: "False"}), f"condition {condition} of {name}", 60)
    eventually(lambda: everywhere(landscape, "good", GOOD), "the extension beside them", 60)
    assert everywhere(landscape, "provider-local", GOOD)
    for name, (condition, said) in TOLD.items():
        for each in installations(landscape, name):
            text = f"{conditions(each, 'reason')[condition]}: {conditions(each, 'message')[condition]}"
            assert re.search(said, text), text
    header, *rows = landscape.kubectl("garden", "get", "controllerinstallations").splitlines()
    assert header.split() == [
        "NAME", "REGISTRATION", "SEED", "VALID", "INSTALLED", "HEALTHY", "PROGRESSING", "AGE",
    ]  # fmt: skip
    assert len(rows) == len(SEEDS) * 5
    shoot.reconcile(CREATION)

    deploy(landscape, "no-values", raw_chart(NO_VALUES) | {"values": {"region": "# comment"}})
    deploy(landscape, "wrong-digest", {"ociRepository": {**chart, "digest": Registry().digest}})
    deploy(landscape, "never-healthy", raw_chart(NOTES))
    for name in TOLD:
        eventually(lambda: everywhere(landscape, name, GOOD), f"{name}, corrected", 60)


def test_each_installation_ends_well_though_gardenlets_and_controller_manager_are_killed(landscape: Landscape) -> None:
    """They are killed while installations are made, and while they are deleted."""
    names = [f"killed-{number}" for number in range(3)]

    for name in names:
        register(landscape, name, raw_chart(NOTES))
    _kill(landscape, lambda: bool(installations(landscape, *names)))
    _kill(landscape, lambda: any(conditions(each) for each in installations(landscape, *names)))
    for name in names:
        eventually(lambda: everywhere(landscape, name, GOOD), f"the installations of {name}", 120)
    for each in installations(landscape, *names):
        seed, namespace = each["spec"]["seedRef"]["name"], f"extension-{each['metadata']['name']}"
        landscape.kubectl(seed, "-n", namespace, "get", "configmap", "notes")
    for seed in SEEDS:
        assert len(_installed(landscape, seed, "namespaces")) == len(names), "each installation has one namespace"
        assert len(_installed(landscape, seed, "managedresources")) == len(names), "and one ManagedResource"

    landscape.kubectl("garden", "delete", "controllerregistrations", *names, "--wait=false")
    _kill(landscape, lambda: len(installations(landscape, *names)) < len(names) * len(SEEDS))
    eventually(lambda: not installations(landscape, *names), "the end of the installations", 120)
    eventually(lambda: not _registered(landscape, names), "the end of the registrations", 30)
    landscape.kubectl("garden", "delete", "controllerdeployments", *names, "--timeout=30s")
    for seed in SEEDS:
        assert not _installed(landscape, seed, "namespaces,managedresources")


def _installed(landscape: Landscape, seed: str, kinds: str) -> list[str]:
    """Objects of these kinds that a seed has for the installations, which processes were killed for."""
    found = landscape.kubectl(seed, "get", kinds, "-A", "-o", "name")
    return [each for each in found.split() if "killed-" in each]


def _kill(landscape: Landscape, when: Callable[[], bool]) -> None:
    eventually(when, "the moment in which the processes are killed", 60)
    kill(landscape, CONTROLLER_MANAGER, *GARDENLETS)


def _registered(landscape: Landscape, names: list[str]) -> list[str]:
    found = json.loads(landscape.kubectl("garden", "get", "controllerregistrations", "-o", "json"))["items"]
    return [each["metadata"]["name"] for each in found if each["metadata"]["name"] in names]

"""``gardener test`` against the garden of a landscape, of which it knows a kubeconfig only."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from api import images
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import Shoot
from workers.cli.garden_tests import changes, default
from workers.cli.garden_tests.context import RUN_LABEL, USED_BY

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

_POLICY = "no-deployments-of-tests"


def run(shoot: Shoot, directory: Path, *arguments: str, seconds: float = 590) -> tuple[int, dict[str, Any]]:
    """Exit status and results."""
    garden = shoot.landscape.directory / "kubeconfigs/garden.yaml"
    seed = shoot.landscape.directory / f"kubeconfigs/{shoot.seed}.yaml"
    done = subprocess.run(
        [
            *(BIN / "gardener", "test", "--garden", garden, "--project", shoot.project, "--seed", seed),
            *("--shoot", shoot.name, "--image", images.GARDENER, "--dump", directory / "dump", "-o", "json"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "GARDENER_LANDSCAPE": shoot.landscape.name},  # its DNS has the Shoot's name
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@contextmanager
def refusing_deployments(shoot: Shoot) -> Iterator[None]:
    """The planted fault: the Shoot's API server refuses the Deployments of tests."""
    rules = [
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE", "UPDATE"]}
    ]
    expression = f"!('{RUN_LABEL}' in object.metadata.?labels.orValue({{}}))"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": _POLICY},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": expression, "message": "planted fault"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": _POLICY},
        "spec": {"policyName": _POLICY, "validationActions": ["Deny"]},
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [policy, binding]}
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
    try:
        yield
    finally:
        shoot.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", _POLICY)


def test_default_tests_pass_and_leave_nothing(shoot: Shoot, tmp_path: Path) -> None:
    status, told = run(shoot, tmp_path)

    outcomes = {each["name"]: (each["outcome"], each["text"]) for each in told["tests"]}
    assert status == 0, outcomes
    assert {each.name for each in default.TESTS} < outcomes.keys()
    assert set(outcomes.values()) == {("passed", "")}
    assert shoot.kubectl("get", "namespaces", "-l", RUN_LABEL, "-o", "name") == ""
    assert USED_BY not in (shoot.get()["metadata"].get("annotations") or {})


def test_planted_fault_fails_the_run_and_is_dumped_without_secrets(shoot: Shoot, tmp_path: Path) -> None:
    """An attack, too: logs, arguments and status of control planes may repeat what is in Secrets."""
    with refusing_deployments(shoot):
        status, told = run(shoot, tmp_path)

    assert status == 1, told
    failed = {each["name"]: each for each in told["tests"] if each["outcome"] == "failed"}
    assert default.deployment.name in failed
    assert default.conditions.name not in failed
    assert "planted fault" in failed[default.deployment.name]["text"]
    dump = Path(failed[default.deployment.name]["dump"])
    for file in ("garden/shoots.json", "cluster/nodes.json", "cluster/pods.json", "seed/etcds.json"):
        assert json.loads((dump / file).read_text()), file
    assert list(dump.glob("seed/logs/*_kube-apiserver-*_kube-apiserver.log"))
    assert shoot.kubectl("get", "namespaces", "-l", RUN_LABEL, "-o", "name") == ""

    values = {
        value
        for secret in shoot.secrets()
        for key, value in (secret.get("data") or {}).items()
        if len(value) >= 40 and key not in ("ca.crt", "bundle.crt", "namespace", "service-account.pub")
    }
    assert values
    decoded = {base64.b64decode(value).decode(errors="ignore").strip() for value in values}
    values |= {value for value in decoded if len(value) >= 20}
    for each in told["tests"]:
        for path in Path(each["dump"]).rglob("*.*") if each["dump"] else ():
            text = path.read_text()
            assert not [value for value in values if value in text], path


@pytest.mark.timeout(1800)
def test_all_tests_of_a_release_pass(
    landscape: Landscape, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They change the Shoot, so it is one of their own: it hibernates, gets other credentials, and loses a machine."""
    shoot = Shoot(landscape, "tested", tmp_path_factory.mktemp("tested"))
    with shoot.created():
        status, told = run(shoot, tmp_path, "--labels", "release,serial,disruptive", seconds=1500)

    outcomes = {each["name"]: (each["outcome"], each["text"]) for each in told["tests"]}
    assert status == 0, outcomes
    assert {each.name for each in (*default.TESTS, *changes.TESTS)} <= outcomes.keys()
    assert set(outcomes.values()) == {("passed", "")}

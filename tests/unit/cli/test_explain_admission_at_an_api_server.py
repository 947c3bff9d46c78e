"""``gardener explain-admission`` against a real API server with the garden's kinds: nothing is stored."""

import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api import resources
from api.core.v1beta1.shoot import Shoot
from api.crds import crd
from kube.client import KubeClient
from kube.errors import ApiError
from tests import api_servers
from tests.api_servers import free_port, process
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.kube.waiting import until
from workers.cli.explain_admission import Decision, decide

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

NEW = {**SHOOT, "metadata": {"name": "demo", "namespace": "default"}}
POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "regions"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["core.gardener.cloud"],
                    "apiVersions": ["*"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["shoots"],
                }
            ]
        },
        "validations": [{"expression": "object.spec.region != 'old'", "message": 'region "old" is closed soon'}],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "regions"},
    "spec": {"policyName": "regions", "validationActions": ["Warn"]},
}


@pytest.fixture
async def garden(tmp_path: Path) -> AsyncIterator[KubeClient]:
    port = free_port()
    tokens = "a,admin,1,system:masters\n"
    commands = api_servers.commands(tmp_path, port, tokens, "--authorization-mode", "RBAC")
    started = (process(tmp_path, *command) for command in commands)
    async with next(started), next(started), api_servers.client(port, "a") as client:
        await api_servers.ready(client)
        for each in (crd(Shoot), POLICY, BINDING):
            await client.apply(each, manager="test")
        await until(functools.partial(_serves_shoots, client), 60)
        yield client


async def _serves_shoots(client: KubeClient) -> bool:
    with contextlib.suppress(ApiError):
        await client.list(resources.SHOOT, "default")
        return True
    return False


async def decided(garden: KubeClient, path: str = "", value: Any = None) -> Decision:
    return await decide(garden, changed(NEW, path, value))


async def test_defaults_refusals_and_warnings_come_from_the_api_server(garden: KubeClient) -> None:
    accepted = await decided(garden)
    assert (accepted.accepted, accepted.operation, accepted.warnings) == (True, "Create", ())
    assert {each.field: each.value for each in accepted.defaults}["spec.purpose"] == "evaluation"

    refused = await decided(garden, "spec.provider.workers.0.minimum", -1)
    assert not refused.accepted
    assert any("spec.provider.workers[0].minimum" in each for each in refused.refusals)

    unknown = await decided(garden, "spec.provider.workers.0.minimun", 1)
    assert not unknown.accepted
    assert any("minimun" in each for each in unknown.refusals)

    async def warns() -> bool:
        return any(
            'region "old" is closed soon' in each for each in (await decided(garden, "spec.region", "old")).warnings
        )

    await until(warns)  # the API server enforces a policy some time after it was written
    assert await garden.list(resources.SHOOT, "default") == []


async def test_an_object_that_exists_is_updated(garden: KubeClient) -> None:
    await garden.create(NEW)

    decision = await decided(garden, "spec.purpose", "testing")
    assert (decision.accepted, decision.operation) == (True, "Update")
    moved = await decided(garden, "spec.region", "other")
    assert [each for each in moved.refusals if "spec.region" in each and "immutable" in each]
    (live,) = await garden.list(resources.SHOOT, "default")
    assert (live["spec"]["purpose"], live["spec"]["region"]) == ("evaluation", "local")

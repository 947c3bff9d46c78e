"""A machine of a self-hosted Shoot, or a reader of its token, tries to become another one, or to get the keys."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.components import self_hosted_controller
from activities.secrets.sealing import CannotOpen
from activities.self_hosted.join import seal, take
from activities.self_hosted.secrets import FileSecrets
from api.access import machine_bootstrap_group
from api.contracts.self_hosted import InitTask
from kube.cache import Caches
from tests.security.signing import KUBELET_SIGNER, SERVING_SIGNER, cn, o, pem
from tests.security.test_certificates import NODES, TOKEN, Decide, deciding
from tests.unit.kube.api_server import ApiServer
from tests.unit.self_hosted.test_control_plane import secrets, task
from workers.cli.shoot_join import _group_of, _keys
from workers.resource_manager.csr_approver import CSRApprover

__all__ = ["secrets", "task"]
KEY = b"k" * 32
KUBELETS = "system:nodes"


@pytest.fixture
async def shoot() -> AsyncIterator[Decide]:
    """A cluster whose node cp-1 joined an hour ago, and its approver."""
    async with ApiServer().running() as api, api.client() as client:
        created = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        api.put(NODES, {"kind": "Node", "metadata": {"name": "cp-1", "creationTimestamp": created}})
        caches = Caches(client)
        approver = CSRApprover(
            source=client, target=client, target_caches=caches, machine_namespace=None, tokens_of_nodes=True
        )
        async with deciding(api, approver.run()) as decide:
            yield decide
        await caches.close()


def _of(node: str) -> list[str]:
    return ["system:bootstrappers", machine_bootstrap_group(node)]


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
@pytest.mark.parametrize(
    ("subject", "groups"),
    [
        ((o(KUBELETS), cn("system:node:cp-2")), _of("worker-1")),
        ((o(KUBELETS), cn("system:node:cp-1")), _of("worker-1")),
        ((o(KUBELETS), cn("system:node:worker-1")), ["system:bootstrappers"]),
        ((o("system:masters"), cn("system:node:worker-1")), _of("worker-1")),
        ((o(KUBELETS), cn("system:kube-scheduler")), _of("worker-1")),
    ],
    ids=["node-that-has-not-joined", "node-of-the-control-plane", "token-for-no-node", "administrators", "component"],
)
async def test_a_token_of_a_worker_asks_for_another_certificate_and_is_denied(
    shoot: Decide, subject: Any, groups: list[str]
) -> None:
    """A kubelet of the control plane reads the Secrets of all pods there."""
    assert await shoot(pem(*subject), user=TOKEN, groups=groups, signer=KUBELET_SIGNER) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
async def test_a_token_of_a_node_that_has_joined_asks_for_its_certificate_and_is_denied(shoot: Decide) -> None:
    """The file with the token may lie on the machine, or in the mail of its owner."""
    request = pem(o(KUBELETS), cn("system:node:cp-1"))
    assert await shoot(request, user=TOKEN, groups=_of("cp-1"), signer=KUBELET_SIGNER) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
async def test_a_worker_asks_for_the_serving_certificate_of_a_node_of_the_control_plane_and_is_denied(
    shoot: Decide,
) -> None:
    """The API server would send the commands and logs of that node's pods to the worker."""
    request = pem(o(KUBELETS), cn("system:node:cp-1"))
    user = "system:node:worker-1"
    assert await shoot(request, user=user, groups=[KUBELETS], signer=SERVING_SIGNER) == "Denied"


async def test_a_worker_joins_with_its_own_token(shoot: Decide) -> None:
    request = pem(o(KUBELETS), cn("system:node:worker-1"))
    assert await shoot(request, user=TOKEN, groups=_of("worker-1"), signer=KUBELET_SIGNER) == "Approved"


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
def test_a_reader_of_all_secrets_reads_the_keys_of_the_control_plane(
    task: InitTask, secrets: FileSecrets, tmp_path: Path
) -> None:
    """The Secret is encrypted by a key that only the file of the joining machine has."""
    sealed = seal(task.directory, task.shoot, KEY, [])
    assert "PRIVATE KEY" not in sealed
    with pytest.raises(CannotOpen):
        take(tmp_path / "theirs", task.shoot, b"x" * 32, sealed)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
def test_the_token_of_one_machine_reads_the_keys_for_another_one() -> None:
    """One token may read one Secret, and nothing else. A worker's token has no such group at all."""
    role, binding, secret = _keys("join-abcdef", "abcdef", "sealed")
    [rule] = role["rules"]
    assert (rule["resources"], rule["verbs"], rule["resourceNames"]) == (["secrets"], ["get"], ["join-abcdef"])
    assert secret["metadata"]["name"] == "join-abcdef"
    assert [each["name"] for each in binding["subjects"]] == [_group_of("abcdef")]
    assert _group_of("abcdef") != _group_of("abcdeg")
    assert _group_of("abcdef") not in _of("worker-1")


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
def test_a_broken_controller_reads_the_secrets_of_users() -> None:
    """It may read the one Secret with which exposures are made, and approve the certificates of kubelets alone."""
    rules = [rule for each in self_hosted_controller.rights("cloudprovider") for rule in each.get("rules") or ()]
    assert not [each for each in rules if "*" in (*each["apiGroups"], *each["resources"], *each["verbs"])]
    of_secrets = [each for each in rules if "secrets" in each["resources"]]
    assert [(each["verbs"], each["resourceNames"]) for each in of_secrets] == [(["get"], ["cloudprovider"])]
    [signers] = [each["resourceNames"] for each in rules if "signers" in each["resources"]]
    assert signers == ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"]

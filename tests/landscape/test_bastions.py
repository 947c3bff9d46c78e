"""A Bastion in the life of a Shoot. The test makes the hosts, as a cloud's extension would.

The tests run in the order in which they stand.
"""

import base64
import functools
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.secrets.crypto import public_ssh
from api.times import timestamp
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, DELETION, Shoot, decoded, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]

KEY = public_ssh(Ed25519PrivateKey.generate()).decode()
NAME = "alice"
KIND = "bastions.operations.gardener.cloud"
HOST_KIND = "bastions.extensions.gardener.cloud"
HOST_FINALIZER = "extensions.gardener.cloud/bastion"
FROM = "203.0.113.0/24"
REGISTRATION = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "ControllerRegistration",
    "metadata": {"name": "local-bastion"},
    "spec": {"resources": [{"kind": "Bastion", "type": "local"}]},
}


@pytest.fixture(scope="module")
def reached(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot whose nodes are to be reached by SSH, and a cloud that makes Bastions for it."""
    landscape.kubectl("garden", "apply", "-f", "-", stdin=json.dumps(REGISTRATION))
    shoot = Shoot(landscape, "reached", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created():
        yield shoot
        for host in _hosts(shoot):
            shoot.control_plane("patch", host, "--type=merge", "-p", _patch(finalizers=None))
    landscape.kubectl("garden", "delete", "controllerregistration", "local-bastion", "--timeout=30s")


@pytest.mark.timeout(CREATION + 60, func_only=True)
def test_one_that_nobody_could_make_is_refused(reached: Shoot) -> None:
    said = refused(*_create(reached), stdin=json.dumps(_bastion(shootRef={"name": "nobody"})))
    assert "shoot garden-local/nobody not found" in said
    said = refused(*_create(reached), stdin=json.dumps(_bastion(sshPublicKey="ssh-ed25519 AAAA")))
    assert "must be a public key as in authorized_keys" in said


def test_it_is_made_in_the_cloud_and_its_owner_is_told_where(reached: Shoot) -> None:
    order(reached)
    host = _host(reached)
    assert host["spec"]["type"] == "local"
    assert host["spec"]["ingress"] == [{"ipBlock": {"cidr": FROM}}]
    assert KEY in base64.b64decode(host["spec"]["userData"]).decode()

    serve(reached, ip="198.51.100.7")
    reached.garden("wait", "--for=condition=BastionReady", f"{KIND}/{NAME}", "--timeout=20s")
    bastion = _get(reached)
    assert bastion["spec"]["seedName"] == reached.seed
    assert bastion["status"]["ingress"] == {"ip": "198.51.100.7"}
    assert bastion["metadata"]["annotations"]["gardener.cloud/created-by"]
    assert reached.name in reached.garden("get", KIND)


def test_nodes_let_in_who_has_the_key_of_the_shoot(reached: Shoot) -> None:
    pair = json.loads(reached.garden("get", "secret", f"{reached.name}.ssh-keypair", "-o", "json"))
    public = decoded(pair)["id_rsa.pub"].decode().strip()
    assert _authorized(reached) == {public}


def test_who_needs_it_longer_says_so(reached: Shoot) -> None:
    before = _lifetime(_get(reached))
    eventually(lambda: datetime.now(before[0].tzinfo) - before[0] > timedelta(seconds=1), "another second", 5)
    reached.garden("annotate", KIND, NAME, "gardener.cloud/operation=keepalive")
    eventually(lambda: "gardener.cloud/operation" not in _get(reached)["metadata"]["annotations"], "it is heard", 10)

    heard, expires = _lifetime(_get(reached))
    assert heard > before[0]
    assert expires - heard == timedelta(hours=1)


def test_its_owner_may_come_from_elsewhere_but_with_no_other_key(reached: Shoot) -> None:
    elsewhere = [{"ipBlock": {"cidr": "192.0.2.7/32"}}]
    reached.garden("patch", KIND, NAME, "--type=merge", "-p", json.dumps({"spec": {"ingress": elsewhere}}))
    eventually(lambda: _host(reached)["spec"]["ingress"] == elsewhere, "the cloud is asked to let them in", 10)
    serve(reached, ip="198.51.100.7")

    patch = json.dumps({"spec": {"sshPublicKey": f"{KEY} another"}})
    argv = reached.landscape.argv("garden", "-n", "garden-local", "patch", KIND, NAME, "--type=merge", "-p", patch)
    assert "field is immutable" in refused(*argv)


def test_it_goes_with_the_access_that_it_was_for(reached: Shoot) -> None:
    reached.change({"provider": {"workersSettings": {"sshAccess": {"enabled": False}}}})
    let_go(reached)
    eventually(lambda: not _names(reached, KIND), "the garden's is gone, too", 20)
    reached.wait_until_reconciled(90)
    tasks = {each["name"]: each["state"] for each in reached.flow()["tasks"]}
    assert tasks["delete_bastions"] == "Finished"
    assert _authorized(reached) == {""}

    said = refused(*_create(reached), stdin=json.dumps(_bastion()))
    assert "ssh access is disabled for worker nodes" in said
    reached.change({"provider": {"workersSettings": {"sshAccess": {"enabled": True}}}})
    reached.wait_until_reconciled(90)


@pytest.mark.timeout(DELETION, func_only=True)
def test_a_shoot_goes_after_its_bastions(reached: Shoot) -> None:
    order(reached)
    assert _host(reached)
    reached.delete(wait=False)
    state = "--for=jsonpath={.status.lastOperation.state}=Error"
    reached.garden("wait", state, f"shoot/{reached.name}", "--timeout=30s")
    assert (
        f"Bastions exist: {NAME}; they must be deleted first" in reached.get()["status"]["lastOperation"]["description"]
    )
    assert "infrastructure" in reached.control_plane("get", "infrastructures", "-o", "name")

    let_go(reached)
    reached.garden("wait", "--for=delete", f"shoot/{reached.name}", f"--timeout={DELETION}s", timeout=DELETION + 10)
    assert not _names(reached, KIND)


def order(shoot: Shoot) -> None:
    """Make the Bastion in the garden, and hold what is made of it as a cloud's extension does."""
    shoot.garden("create", "-f", "-", stdin=json.dumps(_bastion()))
    eventually(lambda: NAME in " ".join(_hosts(shoot)), "the gardenlet orders the host", 20)
    shoot.control_plane("patch", HOST_KIND, NAME, "--type=merge", "-p", _patch(finalizers=[HOST_FINALIZER]))


def serve(shoot: Shoot, **ingress: str) -> None:
    """Say that the host is as it was asked for."""
    shoot.control_plane("annotate", HOST_KIND, NAME, "gardener.cloud/operation-")
    done = {"type": "Reconcile", "state": "Succeeded", "progress": 100, "lastUpdateTime": timestamp()}
    generation = _host(shoot)["metadata"]["generation"]
    status = {"status": {"ingress": ingress, "observedGeneration": generation, "lastOperation": done}}
    shoot.control_plane("patch", HOST_KIND, NAME, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def let_go(shoot: Shoot) -> None:
    """Once it is to be deleted, as a cloud's extension that has deleted the host."""
    eventually(lambda: "deletionTimestamp" in _host(shoot)["metadata"], "the host is to go", 60)
    shoot.control_plane("patch", HOST_KIND, NAME, "--type=merge", "-p", _patch(finalizers=None))


def _authorized(shoot: Shoot) -> set[str]:
    """Whose keys the machines of a Shoot take."""
    command = "cat /home/gardener/.ssh/authorized_keys 2> /dev/null || true"
    cloud = functools.partial(shoot.landscape.kubectl, "cloud", "-n", f"infra-{shoot.technical_id}")
    machines = cloud("get", "pods", "-o", "name").split()
    return {cloud("exec", each, "--", "sh", "-c", command).strip() for each in machines}


def _patch(**metadata: Any) -> str:
    return json.dumps({"metadata": metadata})


def _bastion(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "operations.gardener.cloud/v1alpha1",
        "kind": "Bastion",
        "metadata": {"name": NAME, "namespace": "garden-local"},
        "spec": {"shootRef": {"name": "reached"}, "sshPublicKey": KEY, "ingress": [{"ipBlock": {"cidr": FROM}}]} | spec,
    }


def _create(shoot: Shoot) -> list[str]:
    return shoot.landscape.argv("garden", "create", "-f", "-")


def _get(shoot: Shoot) -> dict[str, Any]:
    live: dict[str, Any] = json.loads(shoot.garden("get", KIND, NAME, "-o", "json"))
    return live


def _names(shoot: Shoot, kind: str) -> list[str]:
    return shoot.garden("get", kind, "-o", "name").split()


def _hosts(shoot: Shoot) -> list[str]:
    return shoot.control_plane("get", HOST_KIND, "-o", "name").split()


def _host(shoot: Shoot) -> dict[str, Any]:
    live: dict[str, Any] = json.loads(shoot.control_plane("get", HOST_KIND, NAME, "-o", "json"))
    return live


def _lifetime(bastion: dict[str, Any]) -> tuple[datetime, datetime]:
    status = bastion["status"]
    return (
        datetime.fromisoformat(status["lastHeartbeatTimestamp"]),
        datetime.fromisoformat(status["expirationTimestamp"]),
    )

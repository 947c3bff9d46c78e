"""A Bastion in the life of a Shoot. The test makes the hosts, as a cloud's extension would.

The tests run in the order in which they stand. The deletion of a Shoot that has a Bastion is in test_shoot.
"""

import base64
import functools
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.landscape.bastions import FROM, KEY, KIND, NAME, bastion, host_of, let_go, names, offered, order, serve
from tests.landscape.shoots import Shoot, decoded, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]


@pytest.fixture(scope="module")
def reached(shoot: Shoot) -> Iterator[Shoot]:
    """The Shoot that tests share, whose nodes are to be reached by SSH, and a cloud that makes Bastions for it."""
    with offered(shoot):
        yield shoot


def test_an_impossible_bastion_is_refused(reached: Shoot) -> None:
    said = refused(*_create(reached), stdin=json.dumps(bastion(reached, shootRef={"name": "missing"})))
    assert "shoot garden-local/missing not found" in said
    said = refused(*_create(reached), stdin=json.dumps(bastion(reached, sshPublicKey="ssh-ed25519 AAAA")))
    assert "must be a public key as in authorized_keys" in said


def test_a_bastion_is_created_in_the_cloud_and_reports_its_address(reached: Shoot) -> None:
    order(reached)
    host = host_of(reached)
    assert host["spec"]["type"] == "local"
    assert host["spec"]["ingress"] == [{"ipBlock": {"cidr": FROM}}]
    assert KEY in base64.b64decode(host["spec"]["userData"]).decode()

    serve(reached, ip="198.51.100.7")
    reached.garden("wait", "--for=condition=BastionReady", f"{KIND}/{NAME}", "--timeout=20s")
    made = _get(reached)
    assert made["spec"]["seedName"] == reached.seed
    assert made["status"]["ingress"] == {"ip": "198.51.100.7"}
    assert made["metadata"]["annotations"]["gardener.cloud/created-by"]
    assert reached.name in reached.garden("get", KIND)


def test_nodes_accept_ssh_with_the_key_of_the_shoot(reached: Shoot) -> None:
    pair = json.loads(reached.garden("get", "secret", f"{reached.name}.ssh-keypair", "-o", "json"))
    public = decoded(pair)["id_rsa.pub"].decode().strip()
    assert _authorized(reached) == {public}


def test_a_keepalive_request_extends_the_life_of_a_bastion(reached: Shoot) -> None:
    before = _lifetime(_get(reached))
    eventually(lambda: datetime.now(before[0].tzinfo) - before[0] > timedelta(seconds=1), "another second", 5)
    reached.garden("annotate", KIND, NAME, "gardener.cloud/operation=keepalive")
    eventually(lambda: "gardener.cloud/operation" not in _get(reached)["metadata"]["annotations"], "it is heard", 10)

    heard, expires = _lifetime(_get(reached))
    assert heard > before[0]
    assert expires - heard == timedelta(hours=1)


def test_a_bastion_accepts_changed_sources_but_no_other_key(reached: Shoot) -> None:
    elsewhere = [{"ipBlock": {"cidr": "192.0.2.7/32"}}]
    reached.garden("patch", KIND, NAME, "--type=merge", "-p", json.dumps({"spec": {"ingress": elsewhere}}))
    eventually(lambda: host_of(reached)["spec"]["ingress"] == elsewhere, "the cloud is asked to let them in", 10)
    serve(reached, ip="198.51.100.7")

    patch = json.dumps({"spec": {"sshPublicKey": f"{KEY} another"}})
    argv = reached.landscape.argv("garden", "-n", "garden-local", "patch", KIND, NAME, "--type=merge", "-p", patch)
    assert "field is immutable" in refused(*argv)


def test_a_bastion_is_deleted_with_the_ssh_access_of_its_shoot(reached: Shoot) -> None:
    reached.change({"provider": {"workersSettings": {"sshAccess": {"enabled": False}}}})
    let_go(reached)
    eventually(lambda: not names(reached, KIND), "the garden's is gone, too", 20)
    reached.wait_until_reconciled(90)
    tasks = {each["name"]: each["state"] for each in reached.flow()["tasks"]}
    assert tasks["delete_bastions"] == "Finished"
    assert _authorized(reached) == {""}

    said = refused(*_create(reached), stdin=json.dumps(bastion(reached)))
    assert "ssh access is disabled for worker nodes" in said
    reached.change({"provider": {"workersSettings": {"sshAccess": {"enabled": True}}}})
    reached.wait_until_reconciled(90)


def _authorized(shoot: Shoot) -> set[str]:
    """Keys that the machines of a Shoot accept."""
    command = "cat /home/gardener/.ssh/authorized_keys 2> /dev/null || true"
    cloud = functools.partial(shoot.landscape.kubectl, "cloud", "-n", f"infra-{shoot.technical_id}")
    machines = cloud("get", "pods", "-o", "name").split()
    return {cloud("exec", each, "--", "sh", "-c", command).strip() for each in machines}


def _create(shoot: Shoot) -> list[str]:
    return shoot.landscape.argv("garden", "create", "-f", "-")


def _get(shoot: Shoot) -> dict[str, Any]:
    live: dict[str, Any] = json.loads(shoot.garden("get", KIND, NAME, "-o", "json"))
    return live


def _lifetime(bastion: dict[str, Any]) -> tuple[datetime, datetime]:
    status = bastion["status"]
    return (
        datetime.fromisoformat(status["lastHeartbeatTimestamp"]),
        datetime.fromisoformat(status["expirationTimestamp"]),
    )

"""A Bastion in the life of a Shoot, from its creation in the cloud to its end.

The tests run in the order in which they stand. The deletion of a Shoot that has a Bastion is in test_shoot.
"""

import base64
import json
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from activities.provider_local.bastion import LABEL
from api.local import MACHINE_LABEL
from landscape.plan import load
from tests.landscape.bastions import (
    FROM,
    KEY,
    KIND,
    NAME,
    bastion,
    host_of,
    in_cloud,
    left_in_cloud,
    names,
    order,
)
from tests.landscape.shoots import Shoot, decoded, eventually, refused

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]


def test_an_impossible_bastion_is_refused(shoot: Shoot) -> None:
    said = refused(*_create(shoot), stdin=json.dumps(bastion(shoot, shootRef={"name": "missing"})))
    assert "shoot garden-local/missing not found" in said
    said = refused(*_create(shoot), stdin=json.dumps(bastion(shoot, sshPublicKey="ssh-ed25519 AAAA")))
    assert "must be a public key as in authorized_keys" in said


def test_a_bastion_is_created_in_the_cloud_and_reports_its_address(shoot: Shoot) -> None:
    order(shoot)
    host = host_of(shoot)
    assert host["spec"]["type"] == "local"
    assert host["spec"]["ingress"] == [{"ipBlock": {"cidr": FROM}}]
    assert KEY in base64.b64decode(host["spec"]["userData"]).decode()

    made = _get(shoot)
    assert made["spec"]["seedName"] == shoot.seed
    plan = load(shoot.landscape.name)
    assert plan is not None
    assert IPv4Address(made["status"]["ingress"]["ip"]) in IPv4Network(plan.public_network)
    assert made["metadata"]["annotations"]["gardener.cloud/created-by"]
    assert shoot.name in shoot.garden("get", KIND)


def test_nodes_accept_ssh_with_the_key_of_the_shoot(shoot: Shoot) -> None:
    pair = json.loads(shoot.garden("get", "secret", f"{shoot.name}.ssh-keypair", "-o", "json"))
    public = decoded(pair)["id_rsa.pub"].decode().strip()
    assert _authorized(shoot) == {public}


def test_a_keepalive_request_extends_the_life_of_a_bastion(shoot: Shoot) -> None:
    before = _lifetime(_get(shoot))
    eventually(lambda: datetime.now(before[0].tzinfo) - before[0] > timedelta(seconds=1), "another second", 5)
    shoot.garden("annotate", KIND, NAME, "gardener.cloud/operation=keepalive")
    eventually(lambda: "gardener.cloud/operation" not in _get(shoot)["metadata"]["annotations"], "it is heard", 10)

    heard, expires = _lifetime(_get(shoot))
    assert heard > before[0]
    assert expires - heard == timedelta(hours=1)


def test_a_bastion_accepts_changed_sources_but_no_other_key(shoot: Shoot) -> None:
    elsewhere = [{"ipBlock": {"cidr": "192.0.2.7/32"}}]
    shoot.garden("patch", KIND, NAME, "--type=merge", "-p", json.dumps({"spec": {"ingress": elsewhere}}))
    eventually(lambda: _sources(shoot) == ["192.0.2.7/32"], "the cloud lets the others in", 20)

    patch = json.dumps({"spec": {"sshPublicKey": f"{KEY} another"}})
    argv = shoot.landscape.argv("garden", "-n", "garden-local", "patch", KIND, NAME, "--type=merge", "-p", patch)
    assert "field is immutable" in refused(*argv)


def test_a_bastion_is_deleted_with_the_ssh_access_of_its_shoot(shoot: Shoot) -> None:
    shoot.change({"provider": {"workersSettings": {"sshAccess": {"enabled": False}}}})
    eventually(lambda: not names(shoot, KIND), "it is gone", 30)
    assert left_in_cloud(shoot) == []
    shoot.wait_until_reconciled(90)
    tasks = {each["name"]: each["state"] for each in shoot.flow()["tasks"]}
    assert tasks["delete_bastions"] == "Finished"
    assert _authorized(shoot) == {""}

    said = refused(*_create(shoot), stdin=json.dumps(bastion(shoot)))
    assert "ssh access is disabled for worker nodes" in said
    shoot.change({"provider": {"workersSettings": {"sshAccess": {"enabled": True}}}})
    shoot.wait_until_reconciled(90)


def _authorized(shoot: Shoot) -> set[str]:
    """Keys that the machines of a Shoot accept."""
    command = "cat /home/gardener/.ssh/authorized_keys 2> /dev/null || true"
    machines = in_cloud(shoot, "get", "pods", "-l", MACHINE_LABEL, "-o", "name").split()
    return {in_cloud(shoot, "exec", each, "--", "sh", "-c", command).strip() for each in machines}


def _sources(shoot: Shoot) -> list[str]:
    [service] = json.loads(in_cloud(shoot, "get", "services", "-l", LABEL, "-o", "json"))["items"]
    sources: list[str] = service["spec"]["loadBalancerSourceRanges"]
    return sources


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

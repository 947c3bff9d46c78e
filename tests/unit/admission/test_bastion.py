"""Bastions as the garden's API takes them: what is filled in, and what is refused."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.secrets.crypto import private_pem, public_ssh
from api.decisions import ssh
from tests.unit.admission.webhooks import ask, patched
from tests.unit.api.shoots import REGISTRATION, changed, complete

KEY = public_ssh(Ed25519PrivateKey.generate()).decode()
BASTION = {
    "apiVersion": "operations.gardener.cloud/v1alpha1",
    "kind": "Bastion",
    "metadata": {"name": "alice", "namespace": "garden-local"},
    "spec": {
        "shootRef": {"name": "demo"},
        "sshPublicKey": KEY,
        "ingress": [{"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.7/32"]}}],
    },
}
PROVIDER = changed(REGISTRATION, "spec.resources", [{"kind": "Bastion", "type": "local"}])
SHOOT = complete("spec.seedName", "seed-1", bound=True).to_wire()


@pytest.fixture(autouse=True)
def surroundings(garden):
    garden.objects += [SHOOT, PROVIDER]


async def refusal(client, bastion, old=None):
    operation = "UPDATE" if old else "CREATE"
    response = await ask(client, "/validate", operation, patched(bastion, await mutated(client, bastion, old)), old)
    return "" if response["allowed"] else response["status"]["message"]


async def mutated(client, bastion, old=None):
    return {"patch": base64.b64encode(b"[]")} | await ask(
        client, "/mutate", "UPDATE" if old else "CREATE", bastion, old
    )


async def stored(client):
    return patched(changed(BASTION), await mutated(client, BASTION))


async def test_it_knows_who_made_it_and_where_its_shoot_is(client):
    bastion = await stored(client)
    assert (bastion["spec"]["seedName"], bastion["spec"]["providerType"]) == ("seed-1", "local")
    assert bastion["metadata"]["annotations"] == {"gardener.cloud/created-by": "alice"}
    [owner] = bastion["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Shoot", "demo", SHOOT["metadata"]["uid"])
    assert await refusal(client, bastion) == ""


async def test_who_writes_it_again_cannot_take_it_elsewhere(client, garden):
    before = await stored(client)
    garden.objects.remove(SHOOT)
    garden.objects.append(changed(SHOOT, "spec.seedName", "seed-2"))
    again = changed(before, "spec.seedName", None)
    assert patched(again, await mutated(client, again, before))["spec"]["seedName"] == "seed-1"

    other = changed(before, "metadata.annotations", {"gardener.cloud/created-by": "mallory"})
    assert "field is immutable" in await refusal(client, other, before)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z", "shoot is in deletion"),
        ("spec.seedName", None, "shoot is not yet assigned to a seed"),
        ("spec.provider.workersSettings.sshAccess.enabled", False, "ssh access is disabled for worker nodes"),
        ("spec.provider.workers", [], "ssh access is disabled for worker nodes"),
        ("metadata.name", "other", "shoot garden-local/demo not found"),
    ],
)
async def test_a_shoot_without_nodes_to_get_into_has_none(client, garden, path, value, said):
    garden.objects.remove(SHOOT)
    garden.objects.append(changed(SHOOT, path, value))
    assert said in await refusal(client, changed(BASTION))


async def test_one_that_nobody_would_make_is_refused(client, garden):
    garden.objects.remove(PROVIDER)
    assert "no extension is registered for Bastion" in await refusal(client, changed(BASTION))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.name", "a.b", "must be a DNS label"),
        ("spec.ingress.0.ipBlock.cidr", "203.0.113.0/33", "spec.ingress[0].ipBlock.cidr"),
        ("spec.ingress.0.ipBlock.except.0", "somewhere", "spec.ingress[0].ipBlock.except[0]"),
        ("spec.ingress.0.ipBlock.except.0", "198.51.100.0/24", "must be within 203.0.113.0/24"),
        ("spec.ingress.0.ipBlock.except.0", "2001:db8::/64", "must be within 203.0.113.0/24"),
        ("spec.sshPublicKey", "ssh-ed25519 AAAA", "must be a public key"),
    ],
)
async def test_faults_are_named(client, path, value, said):
    assert said in await refusal(client, changed(BASTION, path, value))


async def test_a_private_key_that_is_given_by_mistake_is_not_repeated(client):
    private = private_pem(generate_private_key(SECP256R1())).decode()
    said = await refusal(client, changed(BASTION, "spec.sshPublicKey", private))
    assert "must be one line with a public key" in said
    assert private.splitlines()[1] not in said


@pytest.mark.parametrize(
    "line",
    [KEY, f"{KEY} alice@home, her own", f'from="192.0.2.1, ::1",no-pty {KEY}', f" {KEY}\n"],
    ids=["key alone", "with a comment", "with options", "with spaces"],
)
def test_lines_of_authorized_keys(line):
    assert ssh.key_fault(line) == ""


@pytest.mark.parametrize(
    "line",
    ["", "ssh-ed25519", f"{KEY}\n{KEY}", f"two words {KEY}", "ssh-dss AAAA", f"{KEY[:-8]}"],
    ids=["empty", "type alone", "two keys", "unknown options", "refused type", "cut key"],
)
def test_no_lines_of_authorized_keys(line):
    assert ssh.key_fault(line)


def test_what_its_owner_says_is_no_command_on_the_host():
    script = base64.b64decode(ssh.user_data(f"{KEY} $(reboot) '; reboot")).decode()
    [line] = [line for line in script.splitlines() if "reboot" in line]
    assert line == f"echo '{KEY} $(reboot) '\"'\"'; reboot' > /home/gardener/.ssh/authorized_keys"

"""A gardenlet uses its certificate to write fields that it does not own.

seed-1 has the Shoot "demo", seed-2 has "other", and "mover" goes from seed-2 to seed-1. The attacker holds the
certificate of seed-1. A write goes through all webhooks that are registered for it.
"""

from copy import deepcopy
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from temporalio.exceptions import ApplicationError

from activities.seed import observability, secrets
from api import resources
from api.constants import SEEDS_GROUP
from api.contracts.operations import OperationType, ShootRef
from tests.unit.admission.test_seed_authorizer import GARDEN, Garden, bastion, bucket
from tests.unit.admission.webhooks import FakeGarden
from tests.unit.garden.test_shoot_activities import World
from workers.admission import seed_authorizer
from workers.admission.app import application
from workers.admission.webhooks import webhook_configurations

PREFIX = "gardener.cloud:system:seed:"
OWNER = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "name": "demo", "uid": "uid-demo"}
VICTIM = {"apiVersion": "v1", "kind": "Secret", "namespace": "garden-victim", "name": "cloud"}
DEMO, MOVER = "shoot--local--demo--uid-demo", "shoot--local--mover--uid-mover"
API_VERSIONS = {
    "Secret": "v1",
    "ConfigMap": "v1",
    "Lease": "coordination.k8s.io/v1",
    "Bastion": "operations.gardener.cloud/v1alpha1",
    "Gardenlet": "seedmanagement.gardener.cloud/v1alpha1",
    "ManagedSeed": "seedmanagement.gardener.cloud/v1alpha1",
}
BASTION = bastion("full", "seed-1")
BASTION["spec"] |= {
    "shootRef": {"name": "demo"},
    "providerType": "local",
    "sshPublicKey": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAoAWXqYpPZcfYVwjzBmPBzUhZpEuq2Ogyt8DAkXkVSU me",
    "ingress": [{"ipBlock": {"cidr": "198.18.0.0/24"}}],
}

Object = dict[str, Any]


def stored(kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
    """An object of the garden, as the API server has it."""
    known = [*GARDEN, BASTION]
    found = next((each for each in known if (each["kind"], each["metadata"]["name"]) == (kind, name)), {})
    metadata = {"name": name, "uid": f"uid of {name}", **({"namespace": namespace} if namespace else {})}
    version = API_VERSIONS.get(kind, "core.gardener.cloud/v1beta1")
    return deepcopy(
        {**found, "apiVersion": version, "kind": kind, "metadata": found.get("metadata", metadata), **fields}
    )


def patched(old: Object, patch: Object) -> Object:
    """The object after a merge patch."""
    new = deepcopy(old)
    _merge(new, patch)
    return new


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


async def write(new: Object, old: Object | None = None, subresource: str = "", user: str = f"{PREFIX}seed-1") -> str:
    """Refusal by the webhooks that are registered for a write; empty if all of them allow it."""
    garden, resource = FakeGarden(), resources.resource_of(new)
    garden.objects = deepcopy(
        [*GARDEN, {"kind": "Secret", "metadata": {"name": "cloud", "namespace": "garden-victim"}}]
    )
    request = {
        "uid": "r-1",
        "operation": "UPDATE" if old else "CREATE",
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "subResource": subresource,
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "namespace": new["metadata"].get("namespace", ""),
        "name": new["metadata"]["name"],
        "userInfo": {"username": user, "groups": [SEEDS_GROUP, "system:authenticated"]},
        "object": new,
        "oldObject": old,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    plural = "/".join(filter(None, (resource.plural, subresource)))
    _, validating = webhook_configurations("", "")
    said = []
    async with TestClient(TestServer(application(garden))) as client:
        for webhook in validating["webhooks"]:
            if any(
                resource.group in rule["apiGroups"]
                and plural in rule["resources"]
                and request["operation"] in rule["operations"]
                for rule in webhook["rules"]
            ):
                answer = await client.post(webhook["clientConfig"]["url"], json=body)
                response = (await answer.json())["response"]
                if not response["allowed"]:
                    said.append(response["status"]["message"])
    return "; ".join(said)


def new_seed(name: str) -> Object:
    """A Seed before it has a status."""
    return {key: value for key, value in stored("Seed", name).items() if key != "status"}


async def patch(old: Object, change: Object, subresource: str = "") -> str:
    return await write(patched(old, change), old, subresource)


# Secrets of others


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_gardenlet_names_the_secret_of_a_project_in_its_seed_and_is_refused() -> None:
    """The authorizer lets a gardenlet read the Secrets that its Seed names."""
    said = await patch(stored("Seed", "seed-1"), {"spec": {"dns": {"provider": {"credentialsRef": VICTIM}}}})

    assert "may not set spec.dns.provider.credentialsRef" in said


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_gardenlet_registers_its_seed_with_the_secret_of_a_project_and_is_refused() -> None:
    """The spec of the first registration is the gardenlet's, but an operator says which Secrets it may name."""
    new = new_seed("seed-1")
    new["spec"]["dns"]["internal"]["credentialsRef"] = VICTIM

    said = await write(new)

    assert "spec.dns.internal.credentialsRef: Secret garden-victim/cloud lacks label" in said


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_gardenlet_reads_a_secret_that_its_seed_names_without_an_operators_label_and_is_refused() -> None:
    """The Seed may be from before admission looked, or an operator may have been misled."""
    named = stored("Seed", "seed-1")
    named["spec"]["dns"]["provider"]["credentialsRef"] = VICTIM
    victim = {"kind": "Secret", "metadata": {"name": "cloud", "namespace": "garden-victim"}}
    garden = Garden([named, victim, *(each for each in GARDEN if each["metadata"]["name"] != "seed-1")])
    request = seed_authorizer.Request(f"{PREFIX}seed-1", "get", resources.SECRET, "", "garden-victim", "cloud")

    assert not await seed_authorizer.allows(request, garden)


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_gardenlet_reads_secrets_of_a_namespace_with_the_name_of_its_seed_and_is_refused() -> None:
    """The garden keeps copies for a seed in namespace ``seed-<name>``. One that is older than the Seed is not its."""
    foreign = {"kind": "Namespace", "metadata": {"name": "seed-seed-1", "uid": "older"}}
    garden = Garden([foreign, *(each for each in GARDEN if each["metadata"]["name"] != "seed-seed-1")])
    for verb, name in (("list", ""), ("get", "victim")):
        request = seed_authorizer.Request(f"{PREFIX}seed-1", verb, resources.SECRET, "", "seed-seed-1", name)
        assert not await seed_authorizer.allows(request, garden)
        assert await seed_authorizer.allows(request, Garden(GARDEN)), "its own namespace is readable"


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "kubernetes.io/service-account-token"}, "type: must be Opaque"),
        ({"metadata": {"annotations": {"kubernetes.io/service-account.name": "admin"}}}, "metadata.annotations"),
        ({"metadata": {"labels": {"gardener.cloud/role": "alerting"}}}, "metadata.labels[gardener.cloud/role]"),
        ({"metadata": {"finalizers": ["mine/mine"]}}, "metadata.finalizers"),
        ({"metadata": {"ownerReferences": [OWNER | {"name": "other", "uid": "uid-other"}]}}, "ownerReferences"),
        ({"metadata": {"ownerReferences": [OWNER | {"blockOwnerDeletion": True}]}}, "ownerReferences"),
    ],
)
async def test_a_gardenlet_publishes_a_secret_that_is_more_than_a_copy_and_is_refused(
    change: Object, field: str
) -> None:
    """A token controller would fill it in, others would select it, or it would keep its project from being deleted."""
    plain = stored("Secret", "demo.monitoring", "garden-local", data={}, type="Opaque")

    assert field in await write(patched(plain, change))


# Backups of others


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
async def test_a_gardenlet_points_the_backups_of_its_shoot_to_another_seeds_bucket_and_is_refused() -> None:
    """The authorizer lets a gardenlet read the credentials of the bucket that a BackupEntry of its Shoots names."""
    said = await patch(stored("BackupEntry", DEMO), {"spec": {"bucketName": "uid-seed-2"}})

    assert "spec.bucketName: must be the bucket of seed seed-1" in said


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
@pytest.mark.parametrize("name", [f"source-{DEMO}", f"source-{MOVER}"])
async def test_a_gardenlet_names_a_source_of_backups_that_the_garden_does_not_know_and_is_refused(name: str) -> None:
    """The source of a move is the bucket that the BackupEntry of the Shoot names."""
    new = stored("BackupEntry", name, "garden-local", spec={"bucketName": "uid-seed-3", "seedName": "seed-1"})

    assert "spec.bucketName: must be the bucket that the BackupEntry of the Shoot names" in await write(new)


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
async def test_a_gardenlet_gives_its_bucket_settings_that_its_seed_does_not_have_and_is_refused() -> None:
    """An operator sets them, for example how long a backup cannot be deleted."""
    said = await patch(stored("BackupBucket", "uid-seed-1"), {"spec": {"providerConfig": {"kind": "Other"}}})

    assert "spec.providerConfig: must be spec.backup.providerConfig of Seed seed-1" in said


LEFT = stored("BackupEntry", "source-shoot--local--left--uid-left")
KEY = {"bucketName": "dWlkLXNlZWQtMQ==", "accessKeyID": "a2V5", "endpoint": "aHR0cHM6Ly9zdG9yZQ=="}


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
@pytest.mark.parametrize(
    ("shoot", "data", "why"),
    [
        (
            "demo",
            KEY | {"endpoint": "aHR0cHM6Ly9vdGhlcg=="},
            "data: endpoint must be as in Secret garden/backup-seed-1",
        ),
        ("demo", KEY | {"trustedCaCert": "YQ=="}, "data: trustedCaCert must be as in Secret garden/backup-seed-1"),
        ("demo", KEY | {"bucketName": "dWlkLXNlZWQtMg=="}, "data.bucketName: must be uid-seed-1"),
        ("mover", KEY, "the backups of Shoot mover are not in the bucket of seed seed-1"),
        ("demo", KEY, ""),
    ],
    ids=["another store", "another authority", "another bucket", "of the source", "allowed"],
)
async def test_a_gardenlet_publishes_a_key_that_leads_another_seed_to_a_store_of_its_own_and_is_refused(
    shoot: str, data: Object, why: str
) -> None:
    """The destination of a move connects to the address beside the key, and restores what it finds there."""
    labels = {"gardener.cloud/role": "etcd-backup"}
    name = f"{shoot}.etcd-backup"
    metadata = {"name": name, "namespace": "garden-local", "labels": labels}
    said = await write(stored("InternalSecret", name, metadata=metadata, type="Opaque", data=data))
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ({"spec": {"seedName": "seed-1"}}, "spec.seedName: belongs to seed seed-3"),
        (
            {"metadata": {"annotations": {"backupentry.core.gardener.cloud/taken-over": "true"}}},
            "belongs to seed seed-3",
        ),
        ({"metadata": {"finalizers": ["gardener"]}}, ""),
    ],
    ids=["takes it", "says that it is lost", "its finalizer"],
)
async def test_the_seed_that_a_control_plane_has_left_changes_the_entry_of_the_other_seed_and_is_refused(
    patch: Object, why: str
) -> None:
    said = await write(patched(LEFT, patch), LEFT)
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
async def test_a_gardenlet_makes_a_backup_entry_of_another_name_and_is_refused() -> None:
    """A Shoot has two names for BackupEntries, and no other."""
    new = stored(
        "BackupEntry", "mine--uid-demo", "garden-local", spec={"bucketName": "uid-seed-1", "seedName": "seed-1"}
    )

    assert "belongs to no Shoot" in await write(new)


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
async def test_a_gardenlet_points_its_bucket_to_another_secret_and_is_refused() -> None:
    """The authorizer lets gardenlets read the Secret that a BackupBucket names."""
    said = await patch(stored("BackupBucket", "uid-seed-1"), {"spec": {"credentialsRef": VICTIM}})

    assert "spec.credentialsRef: must name what spec.backup.credentialsRef of Seed seed-1 names" in said


# Decisions of the garden


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
@pytest.mark.parametrize(
    "status", [{"seedName": "seed-2"}, {"technicalID": "shoot--local--other"}, {"uid": "u"}, {"lastOperation": {}}]
)
async def test_a_gardenlet_writes_where_its_shoot_is_and_is_refused(status: Object) -> None:
    """Operations run in the seed that the status names."""
    said = await patch(stored("Shoot", "demo"), {"status": status}, "status")

    assert f"may not set status.{next(iter(status))}" in said


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
async def test_an_operation_on_a_shoot_whose_status_names_another_control_plane_does_not_start() -> None:
    """The technical ID is computed. A status that says something else was written by an attacker."""
    world = World()
    await world.change(status={"seedName": "seed-2", "technicalID": "shoot--local--victim"})

    with pytest.raises(ApplicationError, match="names of Project and Shoot make shoot--local--demo"):
        await world.start(OperationType.RECONCILE)


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
@pytest.mark.parametrize(
    ("kind", "name", "change", "field"),
    [
        ("Seed", "seed-1", {"spec": {"taints": [{"key": "mine"}]}}, "spec.taints"),
        ("Seed", "seed-1", {"spec": {"provider": {"type": "aws"}}}, "spec.provider.type"),
        ("Seed", "seed-1", {"metadata": {"labels": {"mine": "yes"}}}, "metadata.labels.mine"),
        ("Seed", "seed-1", {"metadata": {"finalizers": ["mine/mine"]}}, "metadata.finalizers"),
        ("Shoot", "demo", {"spec": {"kubernetes": {"version": "1.37.0"}}}, "may not set spec.kubernetes.version"),
        ("Shoot", "demo", {"metadata": {"annotations": {"gardener.cloud/operation": "retry"}}}, "may not set metadata"),
        ("Shoot", "demo", {"metadata": {"finalizers": []}}, "metadata.finalizers"),
        ("BackupBucket", "uid-seed-1", {"spec": {"seedName": "seed-2"}}, "spec.seedName"),
        ("BackupEntry", DEMO, {"spec": {"shootRef": {"name": "a", "namespace": "b"}}}, "spec.shootRef"),
        ("BackupEntry", DEMO, {"spec": {"seedName": "seed-3"}}, "spec.seedName"),
        ("BackupEntry", "shoot--local--gone--uid-gone", {"spec": {"bucketName": "uid-seed-2"}}, "belongs to no Shoot"),
        ("Bastion", "full", {"spec": {"seedName": "seed-2"}}, "spec.seedName"),
        ("ManagedSeed", "nested", {"spec": {"shoot": {"name": "far"}}}, "spec.shoot.name"),
        ("Gardenlet", "seed-1", {"spec": {"config": {"identity": "other"}}}, "spec.config"),
        ("Gardenlet", "seed-1", {"metadata": {"labels": {"mine": "yes"}}}, "metadata.labels.mine"),
    ],
)
async def test_a_gardenlet_changes_what_others_own_and_is_refused(
    kind: str, name: str, change: Object, field: str
) -> None:
    """Specifications belong to owners and operators, finalizers and most labels to the garden."""
    assert field in await patch(stored(kind, name), change)


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_member_of_the_group_without_a_seeds_name_writes_nothing() -> None:
    """Rules compare with the seed in the user's name."""
    old = stored("Shoot", "demo")

    assert "its name is not gardener.cloud:system:seed:" in await write(old, old, "status", user="mallory")


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
async def test_a_gardenlet_registers_the_seed_of_another_one_and_is_refused() -> None:
    """Also where the garden's API server does not ask the seed authorizer."""
    assert "registers no other Seed" in await write(new_seed("seed-2"))


# Events


def event(kind: str, name: str, namespace: str = "", where: str = "", **about: str) -> Object:
    """An Event about an object of the garden; ``where``: its namespace, by default that of the object."""
    live = stored(kind, name, namespace)
    involved = {
        "apiVersion": live["apiVersion"],
        "kind": kind,
        "name": name,
        "namespace": namespace,
        "uid": live["metadata"].get("uid", ""),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": where or namespace or "default"},
        "involvedObject": involved | about,
        "type": "Warning",
        "reason": "Lie",
        "message": "run this command",
        "source": {"component": "gardenlet"},
    }


@pytest.mark.attack(actor="T3", asset="A1", finding=6)
@pytest.mark.parametrize(
    ("new", "why"),
    [
        (event("Shoot", "other", "garden-local"), "Shoot garden-local/other is not of seed seed-1"),
        (event("Seed", "seed-2"), "Seed seed-2 is not of seed seed-1"),
        (event("Bastion", "theirs", "garden-local"), "Bastion garden-local/theirs is not of seed seed-1"),
        (event("BackupBucket", "uid-seed-2"), "BackupBucket uid-seed-2 is not of seed seed-1"),
        (event("Secret", "cloud", "garden-victim"), "gardenlets write no Events about Secret v1"),
        (event("Shoot", "demo", "garden-local", apiVersion="v1"), "gardenlets write no Events about Shoot v1"),
        (event("Shoot", "demo", "garden-local", uid="another"), "uid: must be that of Shoot garden-local/demo"),
        (event("Shoot", "demo", "garden-local", where="garden-victim"), "namespace: must be garden-local"),
        (event("Seed", "seed-1", where="kube-system"), "namespace: must be default"),
        (event("Seed", "seed-1") | {"related": {"kind": "Shoot"}}, "may not set related"),
    ],
    ids=lambda new: new if isinstance(new, str) else "",
)
async def test_a_gardenlet_writes_an_event_about_an_object_of_another_and_is_refused(new: Object, why: str) -> None:
    """Users see Events below their own objects, and do as they say."""
    assert why in await write(new)


@pytest.mark.attack(actor="T3", asset="A1", finding=6)
@pytest.mark.parametrize(
    ("old", "change", "why"),
    [
        (event("Shoot", "demo", "garden-local"), {"message": "now run that"}, "may not set message"),
        (event("Shoot", "demo", "garden-local"), {"involvedObject": {"name": "other"}}, "may not set involvedObject"),
        (event("Shoot", "other", "garden-local"), {"count": 2}, "Shoot garden-local/other is not of seed seed-1"),
    ],
    ids=["text", "object", "object of another seed"],
)
async def test_a_gardenlet_changes_an_event_that_another_wrote_and_is_refused(
    old: Object, change: Object, why: str
) -> None:
    assert why in await write(patched(old, change), old)


@pytest.mark.attack(actor="T3", asset="A1", finding=6)
@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_gardenlet_writes_no_event_of_the_other_group(verb: str) -> None:
    """The webhook judges Events of the core group alone, and both groups have the same objects."""
    request = seed_authorizer.Request(f"{PREFIX}seed-1", verb, resources.EVENTS_EVENT, "", "garden-local", "demo.1")

    assert not await seed_authorizer.allows(request, Garden(GARDEN))


# What gardenlets do all the time


@pytest.mark.parametrize(
    ("old", "change", "subresource"),
    [
        (stored("Seed", "seed-1"), {"status": {"allocatable": {"shoots": "10"}, "conditions": []}}, "status"),
        (stored("Seed", "seed-1"), {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}}, ""),
        (stored("Seed", "seed-1"), {"metadata": {"annotations": {"seed.gardener.cloud/remains": "[]"}}}, ""),
        (stored("Shoot", "demo"), {"metadata": {"labels": {"shoot.gardener.cloud/status": "healthy"}}}, ""),
        (stored("Shoot", "demo"), {"status": {"conditions": [], "networking": {}, "clusterIdentity": "i"}}, "status"),
        (stored("BackupEntry", DEMO), {"metadata": {"finalizers": ["gardener"]}}, ""),
        (stored("BackupEntry", MOVER), {"spec": {"bucketName": "uid-seed-1", "seedName": "seed-1"}}, ""),
        (
            stored("BackupEntry", "shoot--local--gone--uid-gone"),
            {
                "metadata": {
                    "finalizers": None,
                    "annotations": {"backup.gardener.cloud/expired": "2026-11-25T10:00:00Z"},
                }
            },
            "",
        ),
        (stored("Bastion", "full"), {"status": {"ingress": {"ip": "198.18.0.9"}}}, "status"),
        (stored("Bastion", "full"), {"metadata": {"finalizers": ["gardener"]}}, ""),
        (stored("ManagedSeed", "nested"), {"status": {"conditions": [{"type": "SeedRegistered"}]}}, "status"),
        (stored("ManagedSeed", "nested"), {"metadata": {"finalizers": ["gardener"]}}, ""),
        (stored("Gardenlet", "seed-1"), {"metadata": {"annotations": {"gardener.cloud/operation": None}}}, ""),
        (stored("Gardenlet", "seed-1"), {"status": {"conditions": [], "observedGeneration": 2}}, "status"),
    ],
    ids=str,
)
async def test_a_gardenlet_changes_what_it_owns(old: Object, change: Object, subresource: str) -> None:
    assert await patch(old, change, subresource) == ""


@pytest.mark.parametrize(
    "new",
    [
        new_seed("seed-1"),
        stored("BackupBucket", "uid-seed-1", spec=bucket("seed-1")["spec"] | {"provider": {"type": "local"}}),
        stored(
            "BackupEntry",
            f"source-{MOVER}",
            "garden-local",
            spec={"bucketName": "uid-seed-2", "seedName": "seed-1"},
        ),
        *(
            {"apiVersion": "v1", "data": {}}
            | secrets.garden_object(ShootRef(namespace="garden-local", name="demo", uid="uid-demo"), "v1", kind, suffix)
            for kind, suffix in (
                ("Secret", observability._SUFFIX),
                ("Secret", "ssh-keypair"),
                ("ConfigMap", "ca-kubelet"),
            )
        ),
        stored("ShootState", "demo", "garden-local", spec={"gardener": []}),
        event("Seed", "seed-1"),
        event("Shoot", "demo", "garden-local"),
        event("Shoot", "mover", "garden-local"),
        event("BackupBucket", "uid-seed-1"),
        event("BackupEntry", DEMO, "garden-local"),
        event("Bastion", "mine", "garden-local"),
    ],
    ids=lambda new: f"{new['kind']}-{new['metadata']['name']}",
)
async def test_a_gardenlet_creates_what_it_owns(new: Object) -> None:
    assert await write(new) == ""


async def test_a_gardenlet_counts_an_event_that_comes_again() -> None:
    old = event("Shoot", "demo", "garden-local") | {"count": 1, "lastTimestamp": "2026-11-25T10:00:00Z"}
    new = patched(old, {"count": 2, "lastTimestamp": "2026-11-25T10:01:00Z"})

    assert await write(new, old) == ""


async def test_the_source_of_a_move_hands_its_backups_over() -> None:
    old = stored("BackupEntry", MOVER)
    new = patched(old, {"spec": {"seedName": "seed-1"}})

    assert await write(new, old, user=f"{PREFIX}seed-2") == ""


# Extensions of other seeds


def about(verb: str, resource: resources.Resource, name: str, namespace: str = "", **rest: Any) -> Any:
    return seed_authorizer.Request(
        f"{PREFIX}seed-1", verb, resource, rest.pop("subresource", ""), namespace, name, **rest
    )


@pytest.mark.attack(actor="T3", asset="A1", finding=14)
@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_gardenlet_writes_the_installation_of_another_seed_and_is_refused(subresource: str) -> None:
    """It could say that the extension is healthy or not required, so that the garden removes it from that seed."""
    request = about("patch", resources.CONTROLLER_INSTALLATION, "notes-theirs", subresource=subresource)

    assert not await seed_authorizer.allows(request, Garden(GARDEN))


@pytest.mark.attack(actor="T3", asset="A1", finding=14)
@pytest.mark.parametrize(
    ("resource", "name", "namespace"),
    [
        (resources.CONTROLLER_DEPLOYMENT, "theirs", ""),
        (resources.SECRET, "pull-theirs", "garden"),
        (resources.CONTROLLER_INSTALLATION, "notes-theirs", ""),
    ],
)
async def test_a_gardenlet_reads_what_another_seed_installs_and_is_refused(
    resource: resources.Resource, name: str, namespace: str
) -> None:
    """Values of a chart and credentials of a registry are for the seeds that install it."""
    assert not await seed_authorizer.allows(about("get", resource, name, namespace), Garden(GARDEN))


@pytest.mark.attack(actor="T3", asset="A1", finding=14)
@pytest.mark.parametrize("fields", [frozenset[str](), frozenset({"spec.seedRef.name=seed-2"})])
async def test_a_gardenlet_lists_the_installations_of_other_seeds_and_is_refused(fields: frozenset[str]) -> None:
    request = about("list", resources.CONTROLLER_INSTALLATION, "", fields=fields)

    assert not await seed_authorizer.allows(request, Garden(GARDEN))


@pytest.mark.attack(actor="T3", asset="A1", finding=14)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"spec": {"deploymentRef": {"name": "theirs"}}}, "spec.deploymentRef.name"),
        ({"spec": {"seedRef": {"name": "seed-2"}}}, "spec.seedRef.name"),
        ({"metadata": {"labels": {"deployment-hash": "x"}}}, "metadata.labels"),
    ],
)
async def test_a_gardenlet_has_its_seed_install_another_chart_and_is_refused(change: Object, field: str) -> None:
    """With the deployment of another seed in its own installation, it could read that deployment and its Secrets."""
    said = await patch(stored("ControllerInstallation", "notes-mine"), change)

    assert f"may not set {field}" in said

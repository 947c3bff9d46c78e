"""A gardenlet's real certificate is used against a real garden for more than its seed needs."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import NAMESPACE, Shoot, eventually
from tests.landscape.test_seed_authorizer import as_elsewhere, ask

pytestmark = pytest.mark.landscape

VICTIM = {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": "gardener-admission"}
"""Holds the key of the webhooks' authority."""


@pytest.fixture(scope="module")
def certificate(landscape: Landscape, shoot: Shoot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kubeconfig of the gardenlet that has the Shoot, stolen from its seed."""
    listed = landscape.kubectl(shoot.seed, "-n", "garden", "get", "secret", "gardenlet-kubeconfig", "-o", "json")
    stolen = tmp_path_factory.mktemp("stolen") / "gardenlet.kubeconfig"
    stolen.write_bytes(base64.b64decode(json.loads(listed)["data"]["kubeconfig"]))
    return stolen


def garden(landscape: Landscape, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(landscape.kubectl("garden", *arguments, "-o", "json"))
    return found


def patch(certificate: Path, what: str, change: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    return ask(certificate, "patch", *what.split(), "--type=merge", "-p", json.dumps(change), *more)


def is_refused(done: subprocess.CompletedProcess[str], why: str) -> bool:
    print(done.stdout, done.stderr)
    return done.returncode == 1 and why in done.stderr


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
def test_the_seed_is_pointed_to_any_secret_of_the_garden_and_neither_write_nor_read_is_allowed(
    landscape: Landscape, shoot: Shoot, certificate: Path
) -> None:
    """The authorizer reads in the Seed which Secrets a gardenlet needs."""
    change = {"spec": {"dns": {"provider": {"type": "local", "credentialsRef": VICTIM}}}}

    written = patch(certificate, f"seed {shoot.seed}", change)
    read = ask(certificate, "-n", "garden", "get", "secret", VICTIM["name"])

    assert is_refused(written, "may not set spec.dns.provider.credentialsRef")
    assert is_refused(read, f"nothing of seed {shoot.seed} needs that")


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
def test_a_seed_that_is_not_there_yet_is_registered_with_any_secret_and_is_refused(landscape: Landscape) -> None:
    """An operator may have deleted the Seed, and its certificate is still valid."""
    spec = garden(landscape, "get", "seed", "seed-1")["spec"]
    spec["dns"]["internal"]["credentialsRef"] = VICTIM
    seed = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "metadata": {"name": "seed-3"}, "spec": spec}

    done = as_elsewhere(landscape, "apply", "--server-side", "-f", "-", stdin=json.dumps(seed))

    assert is_refused(done, "Secret garden/gardener-admission lacks label name.seed.gardener.cloud/seed-3=true")


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
def test_the_backups_of_a_shoot_are_said_to_be_in_another_seeds_bucket_and_that_is_refused(
    landscape: Landscape, shoot: Shoot, certificate: Path
) -> None:
    """The authorizer reads in BackupEntries to which buckets a gardenlet needs a way."""
    bucket = garden(landscape, "get", "seed", shoot.other_seed)["metadata"]["uid"]
    entry = f"{shoot.technical_id}--{shoot.uid}"
    source = {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "BackupEntry",
        "metadata": {"name": f"source-{entry}", "namespace": NAMESPACE},
        "spec": {"bucketName": bucket, "seedName": shoot.seed},
    }

    changed = patch(certificate, f"backupentry {entry}", {"spec": {"bucketName": bucket}})
    created = ask(certificate, "apply", "--server-side", "-f", "-", stdin=json.dumps(source))

    assert is_refused(changed, "spec.bucketName: must be the bucket of seed")
    assert is_refused(created, "spec.bucketName: must be the bucket that the BackupEntry of the Shoot names")


@pytest.mark.attack(actor="T3", asset="A4", finding=2)
def test_the_bucket_of_the_seed_is_pointed_to_another_secret_and_that_is_refused(
    landscape: Landscape, shoot: Shoot, certificate: Path
) -> None:
    """The authorizer reads in BackupBuckets which credentials a destination needs."""
    own = garden(landscape, "get", "seed", shoot.seed)["metadata"]["uid"]

    done = patch(certificate, f"backupbucket {own}", {"spec": {"credentialsRef": VICTIM}})

    assert is_refused(done, "spec.credentialsRef: must name what spec.backup.credentialsRef of Seed")


@pytest.mark.attack(actor="T3", asset="A2", finding=6)
@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("seedName", "may not set status.seedName"),
        ("lastOperation", "may not set status.lastOperation"),
        # The schema is asked first, and keeps these as they were set.
        ("technicalID", "status.technicalID: Invalid value: field is immutable"),
        ("uid", "status.uid: Invalid value: field is immutable"),
    ],
)
def test_the_status_of_a_shoot_is_pointed_to_another_control_plane_and_that_is_refused(
    shoot: Shoot, certificate: Path, field: str, why: str
) -> None:
    """Operations run in the seed and in the namespace that the garden has recorded."""
    led = {
        "seedName": shoot.other_seed,
        "technicalID": "shoot--y--victim",
        "uid": "u",
        "lastOperation": {"type": "Delete"},
    }

    done = patch(certificate, f"shoot {shoot.name}", {"status": {field: led[field]}}, "--subresource=status")

    assert is_refused(done, why)


@pytest.mark.attack(actor="T3", asset="A1", finding=2)
def test_a_secret_of_the_shoot_is_made_one_that_a_token_controller_fills_in_and_that_is_refused(
    shoot: Shoot, certificate: Path
) -> None:
    """The gardenlet may write Secrets of some names into the namespaces of projects, and read them again."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"{shoot.name}.ssh-keypair.old",
            "namespace": NAMESPACE,
            "annotations": {"kubernetes.io/service-account.name": "default"},
        },
        "type": "kubernetes.io/service-account-token",
    }

    done = ask(certificate, "apply", "--server-side", "-f", "-", stdin=json.dumps(secret))

    assert is_refused(done, "may not set metadata.annotations[kubernetes.io/service-account.name]")


@pytest.mark.attack(actor="T3", asset="A1", finding=6)
def test_an_event_is_written_below_the_seed_of_another_and_that_is_refused(
    landscape: Landscape, shoot: Shoot, certificate: Path
) -> None:
    """Operators see Events below an object and do as they say."""

    def write(seed: str, **more: Any) -> subprocess.CompletedProcess[str]:
        about = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "name": seed}
        uid = garden(landscape, "get", "seed", seed)["metadata"]["uid"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{seed}.{uuid4().hex}", "namespace": "default"},
            "involvedObject": about | {"uid": uid},
            "type": "Warning",
            "reason": "Attack",
            "message": "delete me",
            "source": {"component": "gardenlet"},
            **more,
        }
        return ask(certificate, "-n", "default", "create", "-f", "-", stdin=json.dumps(event))

    assert is_refused(write(shoot.other_seed), f"Seed {shoot.other_seed} is not of seed {shoot.seed}")
    assert is_refused(write(shoot.seed, related={"kind": "Seed", "name": "seed-3"}), "may not set related")
    own = write(shoot.seed)
    assert own.returncode == 0, own.stderr
    _, name = own.stdout.split()[0].split("/")
    for change, refusal in (({"count": 2}, ""), ({"message": "delete others"}, "may not set message")):
        again = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}, **change}
        apply = ("-n", "default", "apply", "--server-side", "--force-conflicts", "-f", "-")
        done = ask(certificate, *apply, stdin=json.dumps(again))
        assert is_refused(done, refusal) if refusal else done.returncode == 0, done.stderr


def test_the_gardenlet_still_writes_its_own_objects(landscape: Landscape, shoot: Shoot, certificate: Path) -> None:
    """Its own writes pass the same webhook: the Seed is reconciled when it asks for that itself."""
    asked = {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}}

    done = patch(certificate, f"seed {shoot.seed}", asked)

    assert done.returncode == 0, done.stderr
    eventually(
        lambda: "annotations" not in garden(landscape, "get", "seed", shoot.seed)["metadata"],
        "the gardenlet has heard that its Seed is to be reconciled",
        30,
    )

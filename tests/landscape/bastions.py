"""A Bastion of a Shoot. The tests do for it what the extension of a cloud would do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from activities.secrets.crypto import KeyAlgorithm, new_key, public_ssh
from api.times import timestamp
from tests.landscape.shoots import NAMESPACE, Shoot, eventually

KEY = public_ssh(new_key(KeyAlgorithm.P256)).decode()
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


@contextmanager
def offered(shoot: Shoot) -> Iterator[None]:
    """Register the type of Bastion of this cloud meanwhile, and let go of the hosts that are left."""
    shoot.landscape.kubectl("garden", "apply", "-f", "-", stdin=json.dumps(REGISTRATION))
    try:
        yield
        if shoot.garden("get", "shoot", shoot.name, "--ignore-not-found", "-o", "name"):
            for host in _hosts(shoot):
                shoot.control_plane("patch", host, "--type=merge", "-p", _patch(finalizers=None))
    finally:
        shoot.landscape.kubectl("garden", "delete", "controllerregistration", "local-bastion", "--timeout=30s")


def order(shoot: Shoot) -> None:
    """Make the Bastion in the garden, and hold what is made of it as a cloud's extension does."""
    shoot.garden("create", "-f", "-", stdin=json.dumps(bastion(shoot)))
    eventually(lambda: NAME in " ".join(_hosts(shoot)), "the gardenlet orders the host", 20)
    shoot.control_plane("patch", HOST_KIND, NAME, "--type=merge", "-p", _patch(finalizers=[HOST_FINALIZER]))


def serve(shoot: Shoot, **ingress: str) -> None:
    """Report that the host is as ordered."""
    shoot.control_plane("annotate", HOST_KIND, NAME, "gardener.cloud/operation-")
    done = {"type": "Reconcile", "state": "Succeeded", "progress": 100, "lastUpdateTime": timestamp()}
    generation = host_of(shoot)["metadata"]["generation"]
    status = {"status": {"ingress": ingress, "observedGeneration": generation, "lastOperation": done}}
    shoot.control_plane("patch", HOST_KIND, NAME, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def let_go(shoot: Shoot) -> None:
    """Once it is to be deleted, as a cloud's extension that has deleted the host."""
    eventually(lambda: "deletionTimestamp" in host_of(shoot)["metadata"], "the host is to go", 60)
    shoot.control_plane("patch", HOST_KIND, NAME, "--type=merge", "-p", _patch(finalizers=None))


def _patch(**metadata: Any) -> str:
    return json.dumps({"metadata": metadata})


def bastion(shoot: Shoot, **spec: Any) -> dict[str, Any]:
    """Manifest of a Bastion for a Shoot."""
    ingress = [{"ipBlock": {"cidr": FROM}}]
    return {
        "apiVersion": "operations.gardener.cloud/v1alpha1",
        "kind": "Bastion",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"shootRef": {"name": shoot.name}, "sshPublicKey": KEY, "ingress": ingress, **spec},
    }


def names(shoot: Shoot, kind: str) -> list[str]:
    return shoot.garden("get", kind, "-o", "name").split()


def _hosts(shoot: Shoot) -> list[str]:
    return shoot.control_plane("get", HOST_KIND, "-o", "name").split()


def host_of(shoot: Shoot) -> dict[str, Any]:
    live: dict[str, Any] = json.loads(shoot.control_plane("get", HOST_KIND, NAME, "-o", "json"))
    return live

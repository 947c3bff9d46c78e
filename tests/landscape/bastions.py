"""A Bastion of a Shoot, its host in the cloud, and what the cloud has of it."""

import json
from typing import Any

from activities.provider_local.bastion import LABEL
from activities.secrets.crypto import KeyAlgorithm, new_key, public_ssh
from tests.landscape.shoots import NAMESPACE, Shoot, eventually

KEY = public_ssh(new_key(KeyAlgorithm.P256)).decode()
NAME = "alice"
KIND = "bastions.operations.gardener.cloud"
HOST_KIND = "bastions.extensions.gardener.cloud"
FROM = "203.0.113.0/24"
_HELD = "example.org/held-by-a-test"


def order(shoot: Shoot) -> None:
    """Create the Bastion in the garden, and wait until it is ready."""
    shoot.garden("create", "-f", "-", stdin=json.dumps(bastion(shoot)))
    wait_until_ready(shoot)


def wait_until_ready(shoot: Shoot) -> None:
    shoot.garden("wait", "--for=condition=BastionReady", f"{KIND}/{NAME}", "--timeout=60s", timeout=70)


def hold(shoot: Shoot) -> None:
    """Keep the host's object from being deleted, as a cloud does whose API does not answer."""
    change = [{"op": "add", "path": "/metadata/finalizers/-", "value": _HELD}]
    shoot.control_plane("patch", HOST_KIND, NAME, "--type=json", "-p", json.dumps(change))


def let_go(shoot: Shoot) -> None:
    """Release the host's object, once its extension has deleted the host."""
    eventually(lambda: host_of(shoot)["metadata"]["finalizers"] == [_HELD], "the host is deleted", 60)
    change = {"metadata": {"finalizers": None}}
    shoot.control_plane("patch", HOST_KIND, NAME, "--type=merge", "-p", json.dumps(change))


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


def host_of(shoot: Shoot) -> dict[str, Any]:
    live: dict[str, Any] = json.loads(shoot.control_plane("get", HOST_KIND, NAME, "-o", "json"))
    return live


def in_cloud(shoot: Shoot, *arguments: str, timeout: float = 60) -> str:
    """kubectl in the Shoot's namespace of the cloud."""
    return shoot.landscape.kubectl("cloud", "-n", f"infra-{shoot.technical_id}", *arguments, timeout=timeout)


def left_in_cloud(shoot: Shoot) -> list[str]:
    """Objects of bastions in the cloud."""
    return in_cloud(shoot, "get", "pods,services,secrets", "-l", LABEL, "-o", "name").split()

"""Gardener's own access to a shoot: Secrets ``gardener`` (by the shoot's public name) and ``gardener-internal``."""

import base64
from collections.abc import Mapping
from typing import Any

import yaml

from activities.components import base
from activities.components.base import Manifest

EXTERNAL = "gardener"
INTERNAL = "gardener-internal"


def objects(namespace: str, *, servers: Mapping[str, str], ca_bundle: bytes) -> list[Manifest]:
    """Token-requestor Secrets with a kubeconfig each. ``servers``: host name of the server, by name of the Secret.

    The resource manager adds the token later; see ``with_user``.
    """
    made = []
    for name, host in servers.items():
        secret = base.shoot_access(name, namespace)
        secret["metadata"]["name"] = name
        secret["data"] = {"kubeconfig": _encode(_kubeconfig(host, ca_bundle))}
        made.append(secret)
    return made


def with_user(secret: Manifest, live: Mapping[str, Any]) -> Manifest | None:
    """``secret`` with the user of the live Secret's kubeconfig; None if the live Secret differs at most in the user.

    The resource manager writes the token into the data key that also holds the server's name.
    """
    wanted = _decode(secret)
    found = _decode(live)
    if found is None or wanted is None:
        return secret
    same_metadata = all(
        (live["metadata"].get(part) or {}).get(key) == value
        for part in ("labels", "annotations")
        for key, value in secret["metadata"][part].items()
    )
    if same_metadata and found.get("clusters") == wanted["clusters"]:
        return None
    merged = {**wanted, "users": found.get("users") or wanted["users"]}
    return {**secret, "data": {"kubeconfig": _encode(merged)}}


def shoot_objects() -> list[Manifest]:
    """Binding that gives Gardener all rights in a shoot, which it needs to operate the shoot."""
    subjects = [base.account(name) for name in (EXTERNAL, INTERNAL)]
    return [base.binding("gardener.cloud:system:gardener", subjects, cluster_role="cluster-admin")]


def _kubeconfig(host: str, ca_bundle: bytes) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "shoot",
                "cluster": {
                    "server": f"https://{host}",
                    "certificate-authority-data": base64.b64encode(ca_bundle).decode(),
                },
            }
        ],
        "users": [{"name": "shoot", "user": {}}],
        "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": "shoot"}}],
        "current-context": "shoot",
    }


def _encode(kubeconfig: Manifest) -> str:
    return base64.b64encode(base.to_json(kubeconfig).encode()).decode()


def _decode(secret: Mapping[str, Any]) -> Manifest | None:
    encoded = (secret.get("data") or {}).get("kubeconfig")
    if not encoded:
        return None
    decoded = yaml.safe_load(base64.b64decode(encoded))
    return decoded if isinstance(decoded, dict) else None

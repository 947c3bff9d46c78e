"""Bootstrap tokens: what a machine shows its cluster before it has a certificate."""

import base64
import secrets
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.kube.client import KubeClient
from activities.kube.errors import AlreadyExists
from api.local import bootstrap_token_id
from api.resources import SECRET
from api.times import timestamp

_NAMESPACE = "kube-system"
_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_LENGTH = 16


async def ensure_token(shoot: KubeClient, machine: Mapping[str, Any], lifetime: timedelta) -> str:
    """The machine's token. Its public half follows from the machine, so a second try finds it and makes no other."""
    name = _secret_name(machine)
    token_id = bootstrap_token_id(machine["metadata"]["uid"])
    try:
        token = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
        await shoot.create(_secret(name, token_id, token, machine, lifetime))
    except AlreadyExists:
        live = await shoot.get(SECRET, name, _NAMESPACE)
        token = base64.b64decode(live["data"]["token-secret"]).decode()
    return f"{token_id}.{token}"


async def delete_token(shoot: KubeClient, machine: Mapping[str, Any]) -> None:
    """Nobody joins with it any more."""
    await shoot.delete(SECRET, _secret_name(machine), _NAMESPACE)


def _secret_name(machine: Mapping[str, Any]) -> str:
    return f"bootstrap-token-{bootstrap_token_id(machine['metadata']['uid'])}"


def _secret(name: str, token_id: str, token: str, machine: Mapping[str, Any], lifetime: timedelta) -> dict[str, Any]:
    fields = {
        "description": f"Bootstrap token for machine {machine['metadata']['name']}"
        " (created by the machine controller manager)",
        "token-id": token_id,
        "token-secret": token,
        "expiration": timestamp(datetime.now(UTC) + lifetime),
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in fields.items()},
    }

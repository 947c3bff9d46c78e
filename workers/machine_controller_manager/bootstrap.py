"""Inputs of a machine's boot: its script, and the token that authenticates it until it has a certificate."""

import base64
import hashlib
import secrets
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from api.access import bootstrap_token, machine_bootstrap_group
from api.resources import SECRET
from kube.client import KubeClient
from kube.errors import AlreadyExists

_NAMESPACE = "kube-system"
_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_LENGTH = 16
_GROUPS = "auth-extra-groups"
"""Key of a token's Secret: groups of the token's holder, in addition to the group of all tokens."""


async def ensure_token(shoot: KubeClient, machine: Mapping[str, Any], lifetime: timedelta) -> str:
    """The machine's token; created if there is none.

    The token's id is derived from the machine, so a retry finds the token and creates no second one. The resource
    manager approves only certificates of this machine for the token. A token that an earlier version created without
    the machine's group gets the group here.
    """
    name = _secret_name(machine)
    token_id = _token_id(machine)
    try:
        token = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
        await shoot.create(_secret(token_id, token, machine["metadata"]["name"], lifetime))
    except AlreadyExists:
        live = await shoot.get(SECRET, name, _NAMESPACE)
        token = base64.b64decode(live["data"]["token-secret"]).decode()
        group = _encoded(machine_bootstrap_group(machine["metadata"]["name"]))
        if live["data"].get(_GROUPS) != group:
            await shoot.patch(SECRET, name, _NAMESPACE, {"data": {_GROUPS: group}})
    return f"{token_id}.{token}"


async def delete_token(shoot: KubeClient, machine: Mapping[str, Any]) -> None:
    """Delete the machine's token, so that nothing can join with it any more."""
    await shoot.delete(SECRET, _secret_name(machine), _NAMESPACE)


def fill_in(user_data: bytes, machine: str, token: str) -> bytes:
    """User data of one machine: its name and its token in place of the placeholders."""
    return user_data.replace(b"<<BOOTSTRAP_TOKEN>>", token.encode()).replace(b"<<MACHINE_NAME>>", machine.encode())


def _secret_name(machine: Mapping[str, Any]) -> str:
    return f"bootstrap-token-{_token_id(machine)}"


def _token_id(machine: Mapping[str, Any]) -> str:
    """Public part of a machine's bootstrap token: the same for each attempt to create the machine."""
    return hashlib.sha256(str(machine["metadata"]["uid"]).encode()).hexdigest()[:6]


def _secret(token_id: str, token: str, machine: str, lifetime: timedelta) -> dict[str, Any]:
    description = f"Bootstrap token for machine {machine} (created by the machine controller manager)"
    until = datetime.now(UTC) + lifetime
    made = bootstrap_token(description, token_id, token, until, machine_bootstrap_group(machine))
    made["data"]["usage-bootstrap-signing"] = _encoded("true")
    return made


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()

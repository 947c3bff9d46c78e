"""Mails about a Shoot: whom its owner wants to be written to, and by which server the garden sends them.

The server is in a Secret of the garden of role ``alerting``, as Gardener's. Source: spec/api-core.md 2.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from api.constants import PURPOSE_TESTING, ROLE

ALERTING_ROLE = "alerting"
SELECTOR = f"{ROLE}={ALERTING_ROLE}"
"""Of the Secret in namespace ``garden``."""
_SMTP = "smtp"
_REQUIRED = ("from", "smarthost")


@dataclass(frozen=True)
class Smarthost:
    """The server that takes the mails; it must speak TLS."""

    address: str
    """Host and port."""
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)
    identity: str = ""
    ca: str = ""
    """Who has signed its certificate, as PEM; empty: one whom everybody trusts."""


def receivers(shoot: Mapping[str, Any]) -> list[str]:
    """Addresses of people who are to be written to about a Shoot, as the API has it."""
    spec = shoot["spec"]
    if spec.get("purpose") == PURPOSE_TESTING:
        return []
    return list(((spec.get("monitoring") or {}).get("alerting") or {}).get("emailReceivers") or ())


def servers(secrets: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What the Secrets with this label that are of mail servers have; others are of other ways to tell people."""
    return [data for each in secrets if (data := _decoded(each)).get("auth_type") == _SMTP]


def smarthost(secrets: Iterable[Mapping[str, Any]]) -> Smarthost | None:
    """That of the garden; None if it has none.

    Raises:
        ValueError: the Secret lacks something, or there are several.
    """
    found = servers(secrets)
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"there are {len(found)} Secrets with label {SELECTOR} and auth_type {_SMTP}: one is enough")
    data = found[0]
    if missing := [key for key in _REQUIRED if not data.get(key)]:
        raise ValueError(f"the Secret with label {SELECTOR} lacks {', '.join(missing)}")
    return Smarthost(
        address=data["smarthost"],
        sender=data["from"],
        user=data.get("auth_username", ""),
        password=data.get("auth_password", ""),
        identity=data.get("auth_identity", ""),
        ca=data.get("ca.crt", ""),
    )


def _decoded(secret: Mapping[str, Any]) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}

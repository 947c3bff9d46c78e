"""Mails of alerts of a Shoot: their receivers, and the mail server of the garden.

A Secret of the garden with role ``alerting`` names the server, as in Gardener. Source: spec/api-core.md 2.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from api.constants import PURPOSE_TESTING, ROLE

ALERTING_ROLE = "alerting"
SELECTOR = f"{ROLE}={ALERTING_ROLE}"
"""Label selector of the Secret in namespace ``garden``."""
_SMTP = "smtp"
_REQUIRED = ("from", "smarthost")


@dataclass(frozen=True)
class Smarthost:
    """Mail server of the garden; it must support TLS."""

    address: str
    """Host and port of the server."""
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)
    identity: str = ""
    ca: str = ""
    """Certificate of the CA that issued its certificate, as PEM; empty if a public CA did."""


def receivers(shoot: Mapping[str, Any]) -> list[str]:
    """Mail addresses that get the alerts of a Shoot, which is given as the API has it."""
    spec = shoot["spec"]
    if spec.get("purpose") == PURPOSE_TESTING:
        return []
    return list(((spec.get("monitoring") or {}).get("alerting") or {}).get("emailReceivers") or ())


def servers(secrets: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Data of the Secrets with this label that describe a mail server; others describe other receivers of alerts."""
    return [data for each in secrets if (data := _decoded(each)).get("auth_type") == _SMTP]


def smarthost(secrets: Iterable[Mapping[str, Any]]) -> Smarthost | None:
    """Mail server of the garden; None if it has none.

    Raises:
        ValueError: a required key is missing in the Secret, or there are several Secrets.
    """
    found = servers(secrets)
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"{len(found)} Secrets have label {SELECTOR} and auth_type {_SMTP}: only one is allowed")
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

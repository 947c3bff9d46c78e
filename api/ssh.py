"""SSH to the nodes of a Shoot: whether there is any, whose key it takes, and what lets that key in."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

_LINE = re.compile(r'(?:(?:[^\s"]|"(?:[^"\\]|\\.)*")+\s+)??(?P<key>(?:ssh|ecdsa|sk)-\S+\s+\S+)(?:\s.*)?')
"""Options if any, the type of the key, the key, and what its owner wants to say."""


def has_access(shoot: Mapping[str, Any]) -> bool:
    """Whether the nodes of a Shoot, as the API has it, are to be reached by SSH; it has some, then."""
    provider = shoot["spec"]["provider"]
    settings = (provider.get("workersSettings") or {}).get("sshAccess") or {}
    return bool(provider.get("workers")) and bool(settings.get("enabled", True))


def key_fault(text: str) -> str:
    """Why this is not one line of ``authorized_keys``; empty if it is."""
    line = text.strip()
    found = _LINE.fullmatch(line) if line.isprintable() else None
    if found is None:
        return "must be one line with a public key, as in authorized_keys"
    try:
        load_ssh_public_key(found["key"].encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        return f"must be a public key as in authorized_keys: {error}"
    return ""


def user_data(public_key: str) -> str:
    """What a bastion runs when it starts, in base64: it makes user ``gardener``, who gets in with this key.

    Source: Gardener pkg/gardenlet/controller/bastion/reconciler.go, which hands the key to the shell unquoted.
    """
    script = f"""#!/bin/bash -eu

id gardener || useradd gardener -mU
mkdir -p /home/gardener/.ssh
echo {shlex.quote(public_key.strip())} > /home/gardener/.ssh/authorized_keys
chown gardener:gardener /home/gardener/.ssh/authorized_keys
echo "gardener ALL=(ALL) NOPASSWD:ALL" >/etc/sudoers.d/99-gardener-user
systemctl start sshd || systemctl start ssh
"""
    return base64.b64encode(script.encode()).decode()

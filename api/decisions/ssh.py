"""SSH to the nodes of a Shoot: whether it is enabled, validation of public keys, and user data of bastions."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

_LINE = re.compile(r'(?:(?:[^\s"]|"(?:[^"\\]|\\.)*")+\s+)??(?P<key>(?:ssh|ecdsa|sk)-\S+\s+\S+)(?:\s.*)?')
"""A line of ``authorized_keys``: options (optional), type of the key, the key, and a comment."""


def has_access(shoot: Mapping[str, Any]) -> bool:
    """Whether SSH access to the nodes of a Shoot is enabled; false for a Shoot without nodes."""
    provider = shoot["spec"]["provider"]
    settings = (provider.get("workersSettings") or {}).get("sshAccess") or {}
    return bool(provider.get("workers")) and bool(settings.get("enabled", True))


def key_fault(text: str) -> str:
    """Error in a line of ``authorized_keys``; empty if it is valid."""
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
    """Script that a bastion runs when it starts, in base64: it creates user ``gardener``, with this key.

    Source: Gardener pkg/gardenlet/controller/bastion/reconciler.go, which does not quote the key for the shell.
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

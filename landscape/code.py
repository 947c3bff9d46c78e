"""Digest of our code: the next ``up`` restarts a process that runs other code than the checkout has."""

import hashlib
from functools import cache
from pathlib import Path

ROOMS = ("api", "kube", "etcd", "activities", "workflows", "workers")
"""Packages of our processes."""
_CHECKOUT = Path(__file__).parents[1]


@cache
def code_digest(*rooms: str) -> str:
    """Digest of all modules in our packages."""
    digest = hashlib.sha256()
    for room in rooms:
        for file in sorted((_CHECKOUT / room).rglob("*.py")):
            digest.update(f"{file.relative_to(_CHECKOUT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]

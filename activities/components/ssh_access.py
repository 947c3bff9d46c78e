"""SSH access to machines: files and units that the node agent keeps in place.

User ``gardener`` may log in with the newest key pair of the Shoot and the key pair before it. If SSH is disabled, no
user may log in, also not with an earlier key. Names: as Gardener's gardener-user and sshd-ensurer.
"""

from collections.abc import Sequence
from typing import Any

USER = "gardener"
AUTHORIZED_KEYS = "/var/lib/gardener-user-authorized-keys"

_USER_SCRIPT = "/var/lib/gardener-user/run.sh"
_SSHD_SCRIPT = "/var/lib/sshd-ensurer/run.sh"
_SUDOERS = "/etc/sudoers.d/99-gardener-user"
_SERVICES, _SOCKETS = "ssh.service sshd.service", "ssh.socket sshd.socket"
"""Units of the SSH server: its name depends on the machine image."""

_LET_IN = f"""#!/bin/bash -eu

id {USER} > /dev/null 2>&1 || useradd {USER} -mU -s /bin/bash
install -o {USER} -g {USER} -m 0700 -d /home/{USER}/.ssh
install -o {USER} -g {USER} -m 0600 {AUTHORIZED_KEYS} /home/{USER}/.ssh/authorized_keys
if [ -d {_SUDOERS.rpartition("/")[0]} ]; then
  echo "{USER} ALL=(ALL) NOPASSWD:ALL" > {_SUDOERS}
fi
"""
_KEEP_OUT = f"""#!/bin/bash -eu

rm -f /home/{USER}/.ssh/authorized_keys {_SUDOERS}
"""
_SERVE = f"""#!/bin/bash -eu

for unit in {_SERVICES}; do
  if systemctl cat "$unit" > /dev/null 2>&1; then
    exec systemctl enable --now "$unit"
  fi
done
echo "the image of this machine brings no SSH server" >&2
"""
_STOP_SERVING = f"""#!/bin/bash -eu

for unit in {_SOCKETS} {_SERVICES}; do
  if systemctl cat "$unit" > /dev/null 2>&1; then
    systemctl disable --now "$unit"
  fi
done
# End the sessions that are open.
pkill -x sshd || true
"""


def files(keys: Sequence[str]) -> list[tuple[str, str, int]]:
    """Path, content and permissions of each file. ``keys``: lines of ``authorized_keys``; empty if SSH is disabled."""
    scripts = {_USER_SCRIPT: _LET_IN if keys else _KEEP_OUT, _SSHD_SCRIPT: _SERVE if keys else _STOP_SERVING}
    known = [(AUTHORIZED_KEYS, "".join(f"{key}\n" for key in keys), 0o644)] if keys else []
    return [*((path, script, 0o755) for path, script in scripts.items()), *known]


def units(keys: Sequence[str]) -> list[dict[str, Any]]:
    """Units that run at each boot, and when one of their files has changed."""
    return [
        _unit("gardener-user", "Let user gardener in by SSH", _USER_SCRIPT, [AUTHORIZED_KEYS] if keys else []),
        _unit("sshd-ensurer", "Run the SSH server, or none", _SSHD_SCRIPT, []),
    ]


def _unit(name: str, description: str, script: str, beside: list[str]) -> dict[str, Any]:
    content = f"""\
[Unit]
Description={description}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={script}

[Install]
WantedBy=multi-user.target
"""
    return {
        "name": f"{name}.service",
        "enable": True,
        "command": "start",
        "content": content,
        "filePaths": [script, *beside],
    }

"""Certificates that machines trust: files and a unit that the node agent keeps in place.

They are for the machine itself: containerd pulls images from registries whose certificates they signed. Source of the
names: Gardener's component root-certificates.
"""

from typing import Any

CERTIFICATES = "/var/lib/ca-certificates-local/ROOTcerts.crt"
UNIT = "updatecacerts.service"

_DIRECTORY = CERTIFICATES.rpartition("/")[0]
_SCRIPT_FILE = "/var/lib/ssl/update-local-ca-certificates.sh"
_ANCHOR = "/etc/pki/trust/anchors/ROOTcerts.pem"
"""The file from which systems other than Debian take certificates."""

_SCRIPT = f"""#!/bin/bash -eu

# "trust" adds the certificates to the store of the machine, "distrust" takes them out again.
if [ ! -f /etc/debian_version ]; then
  if [ "$1" = trust ]; then
    install -D -m 0644 {CERTIFICATES} {_ANCHOR}
  else
    rm -f {_ANCHOR}
  fi
  update-ca-certificates
elif [ "$1" = trust ]; then
  # The directory of the image may be read-only, so its certificates join those of the cluster.
  if [ -d /usr/local/share/ca-certificates ]; then
    cp -a /usr/local/share/ca-certificates/. {_DIRECTORY}/
  fi
  update-ca-certificates --fresh --localcertsdir {_DIRECTORY}
else
  update-ca-certificates --fresh
fi
# containerd reads the store once, when it starts. systemd refuses the restart while the machine shuts down.
systemctl try-restart --no-block containerd.service || true
"""
_UNIT = f"""\
[Unit]
Description=Trust the certificates of the cluster
Before=containerd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={_SCRIPT_FILE} trust
ExecStop={_SCRIPT_FILE} distrust

[Install]
WantedBy=multi-user.target
"""


def bundle(*parts: str | None) -> str:
    """One PEM bundle of several; empty if all are empty."""
    found = [each.strip() for each in parts if each and each.strip()]
    return "\n".join(found) + "\n" if found else ""


def files(certificates: str) -> list[tuple[str, str, int]]:
    """Path, content and permissions of each file; none without certificates."""
    return [(CERTIFICATES, certificates, 0o644), (_SCRIPT_FILE, _SCRIPT, 0o755)] if certificates else []


def units(certificates: str) -> list[dict[str, Any]]:
    """The unit that adds the certificates at each boot and after each change, and removes them when it is stopped."""
    if not certificates:
        return []
    return [
        {
            "name": UNIT,
            "enable": True,
            "command": "start",
            "content": _UNIT,
            "filePaths": [_SCRIPT_FILE, CERTIFICATES],
        }
    ]

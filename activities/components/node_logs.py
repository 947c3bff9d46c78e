"""The unit of a node that sends the node's journal to the store of logs in the seed."""

from typing import Any

from activities.components import victoria_logs
from activities.components.gateway import SNI_PORT

UNIT = "gardener-node-logs.service"
_PROGRAM = "/lib/systemd/systemd-journal-upload"
_STATE = "gardener-node-logs"


def units(host: str, *, certificate: str, cluster_ca: str) -> list[dict[str, Any]]:
    """The unit, with which a node sends what the journal has and will have; none without a host.

    ``certificate``: file with the client certificate of the kubelet and its key. ``cluster_ca``: file with the
    authorities by which the node verifies the store.
    """
    if not host:
        return []
    content = _unit(host, certificate, cluster_ca)
    # The program reads the certificate for each connection, but the authorities only once a day.
    return [{"name": UNIT, "enable": True, "command": "start", "content": content, "filePaths": [cluster_ca]}]


def _unit(host: str, certificate: str, cluster_ca: str) -> str:
    options = [
        f"--url=https://{host}:{SNI_PORT}{victoria_logs.UPLOAD}",
        f"--key={certificate}",
        f"--cert={certificate}",
        f"--trust={cluster_ca}",
        # Place in the journal behind the last entry that the store has taken.
        f"--save-state=/var/lib/{_STATE}/state",
    ]
    command = " \\\n    ".join([_PROGRAM, *options])
    return f"""\
[Unit]
Description=Send the journal to the store of logs in the seed
After=kubelet.service
StartLimitIntervalSec=0
# Machine images of earlier versions lack the program.
ConditionPathExists={_PROGRAM}

[Service]
# The program ends when the store does not take an entry, and begins again with this entry.
Restart=always
RestartSec=5
WatchdogSec=3min
ExecStart={command}
StateDirectory={_STATE}
Nice=10
CapabilityBoundingSet=
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
LimitNOFILE=524288

[Install]
WantedBy=multi-user.target
"""

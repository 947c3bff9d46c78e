"""Processes in the networks of a landscape's clusters."""

import subprocess
import sys

from tests.landscape.conftest import Landscape


def connects(landscape: Landscape, cluster: str, address: str, port: int) -> bool:
    """Whether a process in the cluster's network can open a TCP connection."""
    code = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
    return in_namespace(landscape, cluster, sys.executable, "-c", code).wait(30) == 0


def in_namespace(landscape: Landscape, cluster: str, *argv: str) -> "subprocess.Popen[bytes]":
    """Start a process in the cluster's network."""
    namespace = f"/run/netns/gardener-{landscape.name}-{cluster}"
    command = ["nsenter", f"--net={namespace}", "--", *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

"""The tunnel from a control plane to its nodes, and a client whose requests go through it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.landscape.probe import Probe
from tests.landscape.repeating import repeating
from tests.landscape.shoots import Shoot

_REQUEST_SECONDS = 30.0


class Asking:
    """Ask the kubelet of a node for its health through the API server and the tunnel, ten times a second.

    Each request has a connection of its own to the API server. One that fails is repeated once, as clients may do.
    """

    def __init__(self, shoot: Shoot, node: str = "") -> None:
        self._probe = Probe(shoot, "tunnel", timeout=_REQUEST_SECONDS)
        node = node or shoot.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
        self._path = f"/api/v1/nodes/{node}/proxy/healthz"
        self.answered = 0
        self.repeated: list[str] = []
        self.failed: list[str] = []
        self.slowest = 0.0

    def __str__(self) -> str:
        return f"{self.answered} answered, {len(self.repeated)} repeated, slowest {self.slowest:.1f} s"

    @contextmanager
    def running(self) -> Iterator["Asking"]:
        with repeating(self._ask, 0.1):
            yield self

    def _ask(self) -> None:
        begun = time.monotonic()
        if fault := self._probe.fault(self._path):
            self.repeated.append(fault)
            if again := self._probe.fault(self._path):
                self.failed.append(again)
                return
        self.answered += 1
        self.slowest = max(self.slowest, time.monotonic() - begun)

    def has_answers(self, more_than: int) -> bool:
        return self.answered > more_than


def pods_of_tunnel(shoot: Shoot, *, server: bool) -> list[str]:
    if server:
        found = shoot.control_plane("get", "pods", "-l", "networking.gardener.cloud/vpn-server", "-o", "name")
    else:
        found = shoot.kubectl("-n", "kube-system", "get", "pods", "-l", "app=vpn-shoot", "-o", "name")
    return sorted(found.split())

"""Shoots of namespace garden that ManagedSeeds make seeds, and the objects of such a seed in garden, seed and cloud."""

import json
from pathlib import Path
from typing import Any

import yaml

from landscape import plan as plans
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually

EXAMPLES = Path(__file__).parents[2] / "examples/managed-seed"
GARDEN = "garden"
READY_SECONDS = 480.0
CONDITIONS = ("GardenletReady", "ExtensionsReady", "BackupBucketsReady", "SeedSystemComponentsHealthy")


def example(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return manifest


class SeedShoot(Shoot):
    """A Shoot of namespace garden that becomes a seed."""

    namespace, project = GARDEN, "garden"

    def find(self, *what: str) -> dict[str, Any]:
        """An object of the garden; empty if there is none."""
        text = self.garden("get", *what, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def wait(self, condition: str, what: str, seconds: float) -> None:
        """Watch an object of the garden until it fulfils the condition."""
        self.garden("wait", f"--for={condition}", what, f"--timeout={seconds:.0f}s", timeout=seconds + 10)

    def conditions(self, kind: str) -> dict[str, str]:
        found = (self.find(kind, self.name).get("status") or {}).get("conditions") or ()
        return {each["type"]: each["status"] for each in found}

    def is_ready(self) -> bool:
        """Whether the Seed has all conditions of a seed that may host Shoots."""
        found = self.conditions("seed")
        return all(found.get(each) == "True" for each in CONDITIONS)

    def installed(self) -> list[str]:
        """Names of the ControllerRegistrations of all ControllerInstallations for the Seed, in order."""
        listed = json.loads(self.garden("get", "controllerinstallations", "-o", "json"))["items"]
        here = [each for each in listed if each["spec"]["seedRef"]["name"] == self.name]
        return sorted(each["spec"]["registrationRef"]["name"] for each in here)

    def machines(self) -> list[str]:
        """Names of the machines in the cloud, in order."""
        listed = self.landscape.kubectl("cloud", "-n", f"infra-{self.technical_id}", "get", "pods", "-o", "name")
        return sorted(each.removeprefix("pod/") for each in listed.split())

    def on_machine(self, machine: str, program: str, *arguments: str) -> str:
        """Output of a Python program on a machine."""
        command = ("exec", machine, "--", "python3", "-c", program, *arguments)
        return self.landscape.kubectl("cloud", "-n", f"infra-{self.technical_id}", *command)

    def open_ports(self) -> list[int]:
        """Ports of the central services that a machine of this Shoot reaches."""
        plan = plans.load(self.landscape.name)
        assert plan is not None
        machine = self.machines()[0]
        asked = plan.services_for_seeds.items()
        said = [self.on_machine(machine, _CONNECT, address, *map(str, ports)) for address, ports in asked]
        return [int(port) for each in said for port in each.split()]

    def kill_gardenlet(self) -> None:
        """Kill the gardenlet of the new seed, a process on a machine of the Shoot; its kubelet starts it again."""
        machines = self.machines()
        killed = eventually(
            lambda: "".join(self.on_machine(each, _KILL) for each in machines), f"the gardenlet of {self.name} runs", 60
        )
        assert len(killed.split()) == 1, f"several gardenlets of {self.name} run: {killed.split()}"


def objects(landscape: Landscape, cluster: str, *names: str) -> list[tuple[str, ...]]:
    """Objects of a cluster with one of these texts in their name, namespace, Seed or claim; Events are history.

    Each is a tuple of kind, namespace, name, and the other names of the object.
    """
    verbs = ("--verbs=list", "-o", "name")
    kinds = [kind for kind in landscape.kubectl(cluster, "api-resources", *verbs).split() if _kept(kind)]
    fields = ("kind", *(f"metadata.{each}" for each in ("namespace", "name")))
    fields += tuple(f"spec.{each}" for each in ("seedName", "seedRef.name", "claimRef.namespace"))
    columns = "custom-columns=" + ",".join(f":.{each}" for each in fields)
    listed = landscape.kubectl(cluster, "get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
    rows = [tuple(line.split()) for line in listed.splitlines()]
    return [row for row in rows if any(name in each for each in row[1:] for name in names)]


def _kept(kind: str) -> bool:
    return kind.partition(".")[0] not in ("events", "componentstatuses") and not kind.endswith("metrics.k8s.io")


_CONNECT = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), 3).close()
    except OSError:
        continue
    print(port)
"""

_KILL = """
import os, pathlib, signal
for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        if b"\\0worker\\0gardenlet\\0" in each.read_bytes():
            os.kill(int(each.parent.name), signal.SIGKILL)
            print(each.parent.name)
    except (FileNotFoundError, ProcessLookupError):
        continue
"""

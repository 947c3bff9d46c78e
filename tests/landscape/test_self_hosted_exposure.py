"""A SelfHostedShootExposure leads clients to the machines of its endpoints, at an address that outlives each of them.

The machines are those of a Shoot with a control plane in a seed, whose kubelets stand for
API servers: each serves TLS with a certificate that names its node.
"""

import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.landscape.repeating import repeating
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

NAME = "exposed"
_KUBELET = 10250
_PERIOD = 0.1
_NO_FRESH_LEASE = 60.0
"""Limit for another process of provider-local to lead after one was killed."""


@dataclass
class Exposure:
    shoot: Shoot

    def apply(self, *endpoints: tuple[str, str]) -> None:
        """Name these nodes and addresses as endpoints, and have them reconciled, as a gardenlet does."""
        reference = {"apiVersion": "v1", "kind": "Secret", "name": "cloudprovider"}
        made = {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "SelfHostedShootExposure",
            "metadata": {"name": NAME, "annotations": {"gardener.cloud/operation": "reconcile"}},
            "spec": {
                "type": "local",
                "port": _KUBELET,
                "credentialsRef": {**reference, "namespace": self.shoot.technical_id},
                "endpoints": [
                    {"nodeName": node, "addresses": [{"type": "InternalIP", "address": address}]}
                    for node, address in endpoints
                ],
            },
        }
        self._kubectl("apply", "-f", "-", stdin=json.dumps(made))

    def get(self) -> dict[str, Any]:
        live: dict[str, Any] = json.loads(self._kubectl("get", "selfhostedshootexposures", NAME, "-o", "json"))
        return live

    def wait(self, state: str, seconds: float) -> dict[str, Any]:
        """Wait until the newest spec is reconciled with this result; returns the status."""

        def done() -> bool:
            live = self.get()
            status, metadata = live.get("status") or {}, live["metadata"]
            accepted = "gardener.cloud/operation" not in (metadata.get("annotations") or {})
            seen = status.get("observedGeneration") == metadata["generation"]
            return accepted and seen and status["lastOperation"]["state"] == state

        eventually(done, f"the exposure is {state}", seconds)
        status: dict[str, Any] = self.get()["status"]
        return status

    def delete(self) -> None:
        confirmed = "confirmation.gardener.cloud/deletion=true"
        self._kubectl("annotate", "selfhostedshootexposures", NAME, "--overwrite", confirmed)
        self._kubectl("delete", "selfhostedshootexposures", NAME, "--timeout=60s")

    def exists(self) -> bool:
        return bool(self._kubectl("get", "selfhostedshootexposures", NAME, "--ignore-not-found", "-o", "name"))

    def in_cloud(self) -> list[str]:
        """Names of the load balancers of exposures in the cloud's namespace of the Shoot."""
        listed = ("-n", f"infra-{self.shoot.technical_id}", "get", "services", "-o", "name")
        found = self.shoot.landscape.kubectl("cloud", *listed).split()
        return [each for each in found if each.startswith("service/exposure-")]

    def kill_controller(self) -> None:
        """End provider-local in the seed by SIGKILL; its Deployment starts another one."""
        seed = partial(self.shoot.landscape.kubectl, self.shoot.seed)
        label = "controllerregistration.core.gardener.cloud/name=provider-local"
        namespace = seed("get", "namespaces", "-l", label, "-o", "jsonpath={.items[0].metadata.name}")
        seed("-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")

    def _kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        own = ("-n", self.shoot.technical_id)
        return self.shoot.landscape.kubectl(self.shoot.seed, *own, *arguments, stdin=stdin)


def answering(address: str) -> str:
    """Name of the node at the other end of a new connection. Raises OSError if there is none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address, _KUBELET), 2) as opened, context.wrap_socket(opened) as wrapped:
        found = x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"")
    [name] = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value).removeprefix("system:node:")


@dataclass
class Probe:
    """Connects to an address every 100 ms, and counts the nodes that answer."""

    address: str
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    last: str = ""

    def running(self) -> AbstractContextManager[None]:
        return repeating(self._connect, _PERIOD)

    def _connect(self) -> None:
        started = time.monotonic()
        try:
            self.last = answering(self.address)
            self.answers[self.last] += 1
        except OSError as error:
            self.faults.append(f"after {time.monotonic() - started:.1f} s: {error}")


@pytest.fixture
def exposure(shoot: Shoot) -> Iterator[Exposure]:
    made = Exposure(shoot)
    yield made
    if made.exists():
        made.delete()


def _nodes(shoot: Shoot) -> list[tuple[str, str]]:
    """Names and addresses of the nodes."""
    listed = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    addresses = [{each["type"]: each["address"] for each in node["status"]["addresses"]} for node in listed]
    return sorted((node["metadata"]["name"], each["InternalIP"]) for node, each in zip(listed, addresses, strict=True))


def test_clients_follow_the_endpoints_and_miss_none_while_the_controller_is_killed(
    shoot: Shoot, exposure: Exposure
) -> None:
    first, second = _nodes(shoot)
    exposure.apply(first)
    [ingress] = exposure.wait("Succeeded", 60)["ingress"]
    address = ingress["ip"]
    eventually(lambda: _answers(address) == first[0], "the first node answers at the address", 30)

    probe = Probe(address)
    with probe.running():
        exposure.apply(first, second)
        exposure.kill_controller()
        assert exposure.wait("Succeeded", _NO_FRESH_LEASE)["ingress"] == [ingress]
        eventually(lambda: probe.answers[second[0]], "the second node gets connections, too", 30)

        exposure.apply(second)
        exposure.wait("Succeeded", 60)
        seen = probe.answers.total()
        eventually(lambda: probe.answers.total() > seen + 60 and probe.last == second[0], "the first node is out", 30)
        before = probe.answers[first[0]]
        eventually(lambda: probe.answers.total() > seen + 120, "further connections", 30)
        assert probe.answers[first[0]] == before
    assert not probe.faults
    print(f"{probe.answers.total()} connections, {dict(probe.answers)}, none failed")

    exposure.delete()
    assert not exposure.in_cloud()


def test_an_endpoint_that_is_no_machine_of_the_shoot_gets_no_connection(shoot: Shoot, exposure: Exposure) -> None:
    """The cloud's own addresses are refused, and machines of others are no backends of this Shoot's namespace."""
    exposure.apply(("gateway", "198.18.0.1"))
    assert "no address of type InternalIP" in exposure.wait("Error", 60)["lastError"]["description"]
    assert not exposure.in_cloud()


def _answers(address: str) -> str:
    try:
        return answering(address)
    except OSError:
        return ""

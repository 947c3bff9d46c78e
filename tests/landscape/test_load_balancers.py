"""Load balancers of a Shoot: a Service of type LoadBalancer answers at an address of the cloud, and goes with it."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kube.objects import ip_family
from tests.landscape import pods
from tests.landscape.pods import PROBE
from tests.landscape.repeating import repeating
from tests.landscape.shoots import Shoot, eventually

WEB = """
import http.server, socket
class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.client_address[0].removeprefix("::ffff:").encode())
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
Server(("", 8080), Web).serve_forever()
"""
"""Tells the address of its client, of either family."""


class Balanced:
    """A workload of a user with a Service of type LoadBalancer."""

    def __init__(self, shoot: Shoot) -> None:
        self.shoot = shoot

    def apply(self, *objects: dict[str, Any]) -> None:
        self.shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def make(self, name: str, **spec: Any) -> None:
        """Make the Service or change it."""
        self.apply({**pods.service("balanced", 80), "metadata": {"name": name, "namespace": PROBE}} | _of_type(spec))

    def service(self, name: str, **spec: Any) -> dict[str, Any]:
        """Make the Service or change it, and wait for its address."""
        self.make(name, **spec)
        return self.wait(name)

    def wait(self, name: str) -> dict[str, Any]:
        path = "jsonpath={.status.loadBalancer.ingress[0].ip}"
        self.shoot.kubectl("-n", PROBE, "wait", f"--for={path}", f"service/{name}", "--timeout=60s")
        live: dict[str, Any] = json.loads(self.shoot.kubectl("-n", PROBE, "get", "service", name, "-o", "json"))
        return live

    def in_cloud(self) -> list[str]:
        """Names of the load balancers of this Shoot in the cloud."""
        label = "local.provider.extensions.gardener.cloud/load-balancer"
        listed = ("-n", f"infra-{self.shoot.technical_id}", "get", "services", "-l", label, "-o", "name")
        return self.shoot.landscape.kubectl("cloud", *listed).split()


def _of_type(spec: dict[str, Any]) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {"spec": {"type": "LoadBalancer", "selector": {"app": "balanced"}, "ports": ports, **spec}}


def addresses_of(service: dict[str, Any]) -> list[str]:
    return [each["ip"] for each in service["status"]["loadBalancer"]["ingress"]]


def address_of(service: dict[str, Any]) -> str:
    [address] = addresses_of(service)
    return address


def asked(address: str) -> str:
    """Answer of the Service; empty if there is none."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    host = f"[{address}]" if ip_family(address) == "IPv6" else address
    try:
        with opener.open(f"http://{host}/", timeout=2) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@dataclass
class Visitor:
    """A client outside the cluster that asks a Service ten times a second."""

    address: str
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    """When requests failed."""

    def __str__(self) -> str:
        return f"{self.address}: {self.answered} answered, {len(self.failed)} failed"

    @contextmanager
    def asking(self) -> Iterator["Visitor"]:
        with repeating(self._ask, 0.1):
            yield self

    def _ask(self) -> None:
        if asked(self.address):
            self.answered += 1
        else:
            self.failed.append(time.strftime("%T"))


def own_address(address: str) -> str:
    """Address by which the cloud knows this machine."""
    family = socket.AF_INET6 if ip_family(address) == "IPv6" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as opened:
        opened.connect((address, 80))
        return str(opened.getsockname()[0])


@pytest.fixture(scope="module")
def balanced(shoot: Shoot) -> Iterator[Balanced]:
    with served(shoot) as made:
        yield made


@contextmanager
def served(shoot: Shoot) -> Iterator[Balanced]:
    """A pod for Services."""
    made = Balanced(shoot)
    made.apply(pods.namespace(), pods.python("balanced", 1, WEB))
    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/balanced", "--timeout=60s")
    yield made
    shoot.kubectl("-n", PROBE, "delete", "deployment/balanced", "--timeout=60s")


def test_a_service_answers_from_outside_until_it_is_deleted(balanced: Balanced) -> None:
    # In a Shoot of IPv4 alone, both families are one.
    service = balanced.service("public", ipFamilyPolicy="PreferDualStack")
    address = address_of(service)
    assert "service.kubernetes.io/load-balancer-cleanup" in service["metadata"]["finalizers"]
    eventually(lambda: asked(address), "the Service answers", 30)

    inside = balanced.shoot.kubectl(
        *("-n", PROBE, "exec", "deployment/balanced", "--", "python3", "-c"),
        f"import urllib.request; print(urllib.request.urlopen('http://{address}/', timeout=5).status)",
    )
    assert inside.strip() == "200"

    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "public", "--timeout=30s")
    assert not balanced.in_cloud()
    assert not asked(address)


def test_with_local_traffic_the_pod_sees_its_client_and_only_its_node_is_asked(balanced: Balanced) -> None:
    service = balanced.service("local", externalTrafficPolicy="Local")
    address = address_of(service)

    eventually(lambda: asked(address) == own_address(address), "the pod sees the address of its client", 30)
    [name] = balanced.in_cloud()
    slice_ = (f"infra-{balanced.shoot.technical_id}", "get", "endpointslice", f"{name.partition('/')[2]}-machines")
    found = json.loads(balanced.shoot.landscape.kubectl("cloud", "-n", *slice_, "-o", "json"))
    assert len(found["endpoints"]) == 1
    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "local", "--timeout=30s")


def test_only_the_sources_of_a_service_reach_it(balanced: Balanced) -> None:
    service = balanced.service("closed", loadBalancerSourceRanges=["203.0.113.0/24"])
    address = address_of(service)
    own = own_address(address)

    balanced.service("closed", loadBalancerSourceRanges=["203.0.113.0/24", f"{own}/32"])
    eventually(lambda: asked(address), "a named source is answered", 30)
    balanced.service("closed", loadBalancerSourceRanges=["203.0.113.0/24"])
    eventually(lambda: not asked(address), "another source is not answered", 30)

    balanced.shoot.kubectl("-n", PROBE, "delete", "service", "closed", "--timeout=30s")

"""Clients that the Temporal of a landscape answers, and a gardenlet whose certificate is renewed."""

import json
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from landscape import plan as plans
from landscape.pki import KeyPair, TemporalAuthority
from landscape.plan import Plan
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import eventually
from tests.temporal_endpoint import serial

pytestmark = pytest.mark.landscape

_ASK = """
import asyncio, os, sys
from pathlib import Path
from temporalio.client import Client
from temporalio.service import TLSConfig

async def ask(address, ca):
    tls = TLSConfig(Path(ca).read_bytes()) if ca else None
    try:
        await asyncio.wait_for(Client.connect(address, tls=tls), 30)
    except RuntimeError as error:
        print("refused:", error, flush=True)
    else:
        print("answered", flush=True)
    os._exit(0)  # the SDK's threads may crash an interpreter that ends by itself

asyncio.run(ask(*sys.argv[1:]))
"""
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
_PLACES = ("", "seed-1", "cloud")
"""Clusters in whose network an attacker is; the empty one: on the machine itself."""


@pytest.fixture(scope="module")
def plan(landscape: Landscape) -> Plan:
    found = plans.load(landscape.name)
    assert found is not None
    return found


@pytest.mark.attack(actor="T6", asset="A5", finding=4)
@pytest.mark.parametrize("place", _PLACES)
def test_temporal_answers_no_plain_grpc(plan: Plan, place: str) -> None:
    """The address that all processes connect to takes TLS alone, from the machine and from the clusters."""
    said = _run(plan, place, _ASK, plan.temporal_address, "")
    assert said.startswith("refused: "), said


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
@pytest.mark.parametrize("place", _PLACES)
def test_temporal_answers_no_client_without_a_certificate(plan: Plan, place: str) -> None:
    """A process that knows Temporal's authority, and has no certificate of its own, gets no answer."""
    said = _run(plan, place, _ASK, plan.temporal_address, plan.facts["temporal"]["tls"]["ca"])
    assert said.startswith("refused: "), said


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
@pytest.mark.parametrize("place", _PLACES)
def test_http_api_and_inner_ports_of_temporal_answer_no_client(plan: Plan, place: str) -> None:
    """The dev server's own ports, which know no certificates, listen on the loopback address alone."""
    ports = _ports_of(plan, "temporal")
    assert {7233, 7243} < ports, "this test would see nothing otherwise"
    open_ports = {port for port in ports if _connects(plan, place, plan.central_address, port)}
    of_envoy, of_people = {7233, 7253}, {8233}
    assert open_ports - of_envoy == (set() if place else of_people)


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
def test_a_seed_does_not_reach_the_ui_which_asks_for_no_certificate(plan: Plan) -> None:
    """People of the machine read histories in the UI; processes of seeds and machines of shoots do not reach it."""
    url = urlsplit(plan.temporal_ui)
    assert url.hostname is not None
    assert url.port is not None
    assert _connects(plan, "", url.hostname, url.port)
    assert not _connects(plan, "seed-1", url.hostname, url.port)
    assert not _connects(plan, "cloud", url.hostname, url.port)


def test_metrics_of_temporal_are_where_they_were(plan: Plan) -> None:
    with urllib.request.urlopen(plan.temporal_metrics, timeout=20) as answer:
        assert b"service_requests" in answer.read()


def test_a_gardenlet_uses_a_renewed_certificate_without_a_restart(landscape: Landscape, plan: Plan) -> None:
    authority = TemporalAuthority(plan.temporal_authority)
    old = authority.for_gardenlet("seed-1")
    first, pid = _serial(old), landscape.pids["seed-1/gardenlet"]
    eventually(lambda: first in _serials(plan, "gardener.cloud:system:seed:seed-1"), "it polls", 120)

    old.certificate.unlink()
    old.key.unlink()
    second = _serial(authority.for_gardenlet("seed-1"))

    eventually(lambda: _serials(plan, "gardener.cloud:system:seed:seed-1")[-1] == second, "it polls with it", 120)
    assert landscape.pids["seed-1/gardenlet"] == pid
    assert f"certificate {old.certificate} is renewed" in (plan.logs / "seed-1-gardenlet.log").read_text()


def _serial(pair: KeyPair) -> str:
    return serial(x509.load_pem_x509_certificate(pair.certificate.read_bytes()))


def _serials(plan: Plan, name: str) -> list[str]:
    """Serial numbers of the certificates with this common name, in the order in which polls began."""
    lines = (plan.directory / "temporal/gateway/polls.log").read_text().splitlines(keepends=True)
    polls = [json.loads(line) for line in lines if line.endswith("\n")]
    return [each["serial"] for each in polls if each["event"] == "DownstreamStart" and f"CN={name}" in each["subject"]]


def _run(plan: Plan, place: str, code: str, *arguments: str) -> str:
    done = _python(plan, place, code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _connects(plan: Plan, place: str, address: str, port: int) -> bool:
    return _python(plan, place, _CONNECT, address, str(port)).returncode == 0


def _python(plan: Plan, place: str, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Python in the network of a cluster, or in that of the machine."""
    enter = ["nsenter", f"--net=/run/netns/{plan.netns(place)}", "--"] if place else []
    command = [*enter, sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _ports_of(plan: Plan, process: str) -> set[int]:
    """Ports that a process of the garden's network listens on, at any address."""
    pid = json.loads((plan.directory / f"processes/{process}.json").read_text())["pid"]
    return {int(line.split()[3].rsplit(":", 1)[1]) for line in _listening(plan) if f"pid={pid}," in line}


def _listening(plan: Plan) -> list[str]:
    command = ["nsenter", f"--net=/run/netns/{plan.garden.netns}", "--", "ss", "-ltnpH"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()

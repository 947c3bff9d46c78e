"""CoreDNS of a shoot: its replicas, and names that it answers although a client asked with a search domain."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dns.asyncresolver
import dns.resolver
import pytest

from activities.components import coredns
from activities.components.coredns import CoreDns
from landscape import binaries
from landscape.progress import Progress

SUFFIXES = (".example.org", "deep.test")


def made(kind: str, **settings: Any) -> dict[str, Any]:
    wanted = CoreDns("100.68.0.0/16", "api.example.org", **settings)
    (found,) = (
        each for each in coredns.objects(wanted) if each["kind"] == kind and each["metadata"]["name"] == coredns.NAME
    )
    return found


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
async def resolver(tmp_path: Path) -> AsyncIterator[dns.asyncresolver.Resolver]:
    """A real CoreDNS with our rules; instead of the cluster and the internet, it knows two names."""
    corefile, port = made("ConfigMap", common_suffixes=SUFFIXES)["data"]["Corefile"], free_port()
    rules = corefile[corefile.index("  rewrite") : corefile.index("  kubernetes")]
    hosts = "  hosts {\n    192.0.2.1 www.example.org\n    192.0.2.2 a.b.deep.test\n  }\n"
    (tmp_path / "Corefile").write_text(f".:{port} {{\n  bind 127.0.0.1\n{rules}{hosts}}}\n")
    program = (await binaries.ensure((binaries.coredns(),), Progress(quiet=True)))["coredns"]
    process = await asyncio.create_subprocess_exec(
        program, "-conf", tmp_path / "Corefile", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        while b"CoreDNS-" not in (line := await process.stdout.readline()):  # printed once it serves
            assert line, "CoreDNS has ended"
        found = dns.asyncresolver.Resolver(configure=False)
        found.nameservers, found.port = ["127.0.0.1"], port
        yield found
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("www.example.org.", "192.0.2.1"),
        ("www.example.org.default.svc.cluster.local.", "192.0.2.1"),
        ("a.b.deep.test.kube-system.svc.cluster.local.", "192.0.2.2"),
        ("a.b.deep.test.svc.cluster.local.", None),
        ("www.other.org.default.svc.cluster.local.", None),
    ],
)
async def test_a_name_with_a_common_suffix_is_answered_with_the_first_search_domain(
    resolver: dns.asyncresolver.Resolver, name: str, address: str | None
) -> None:
    """Otherwise each such name would cost a client several queries that find nothing."""
    if address is None:
        with pytest.raises((dns.resolver.NoNameservers, dns.resolver.NXDOMAIN)):
            await resolver.resolve(name, "A", lifetime=5)
        return
    answer = await resolver.resolve(name, "A", lifetime=5)

    assert [each.address for each in answer] == [address]
    assert answer.rrset is not None
    assert str(answer.rrset.name) == name, "the client takes an answer to another name for a forgery"


def test_without_suffixes_nothing_is_rewritten() -> None:
    assert "rewrite" not in made("ConfigMap")["data"]["Corefile"]


def test_the_number_of_replicas_follows_the_cpu_usage() -> None:
    scaled = made("HorizontalPodAutoscaler")["spec"]

    assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "coredns"}
    assert (scaled["minReplicas"], scaled["maxReplicas"]) == (2, 5)
    annotations = made("Deployment")["metadata"]["annotations"]
    assert annotations["resources.gardener.cloud/preserve-replicas"] == "true", "or each sync would undo the scaling"

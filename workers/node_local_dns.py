"""Routes a node's DNS requests: to the DNS server on the node while it answers, otherwise to the cluster's CoreDNS.

The addresses of the DNS server, all of one IP family, are addresses of the node. While the server answers, iptables
rules exclude packets to these addresses from connection tracking. So kube-proxy does not translate them to a Service,
and they reach the server on the node. Without the rules, kube-proxy forwards the requests to CoreDNS.
"""

import asyncio
import ipaddress
import logging

import aiohttp
from pydantic import Field

from api.model import ApiModel
from workers.lib.runtime import Health, HealthConfig, load_config, run_until_signal

_log = logging.getLogger(__name__)

_CHAIN = "NODE-LOCAL-DNS"
_ENTRANCES = ("PREROUTING", "OUTPUT")
_LOOK_SECONDS = 1.0


class NodeLocalDnsConfig(ApiModel):
    """Content of ``config.yaml``. The process must run in the node's network namespace, as its administrator."""

    addresses: tuple[str, ...] = Field(min_length=1)
    """Addresses that the DNS server on the node listens on."""
    server: str
    """URL that answers with status 200 while the DNS server works."""
    health: HealthConfig = HealthConfig()

    @property
    def tool(self) -> str:
        """Command for the packet filter of the addresses' family."""
        return "ip6tables" if ":" in self.addresses[0] else "iptables"


async def run(config_path: str) -> None:
    """Run until SIGTERM, then remove rules and addresses. After a kill, the next process continues with them."""
    config = load_config(NodeLocalDnsConfig, config_path)
    health = Health()
    runner = await health.serve(config.health)
    await prepare(config)
    health.ready = True
    try:
        await run_until_signal(lead(config))
    finally:
        await give_back(config)
        await runner.cleanup()


async def lead(config: NodeLocalDnsConfig) -> None:
    """Route requests to the node's DNS server while it answers, and to the cluster's while it does not."""
    led: bool | None = None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LOOK_SECONDS)) as session:
        while True:
            answers = await _answers(session, config.server)
            if answers != led:
                await _restore(config, rules(config.addresses if answers else ()))
                _log.info("DNS requests go to %s", "this node's server" if answers else "the cluster's")
                led = answers
            await asyncio.sleep(_LOOK_SECONDS)  # the clock of a poll


def rules(addresses: tuple[str, ...]) -> str:
    """The chain with the rules for these addresses, and no other rules.

    It is input of ``iptables-restore --noflush``, or with addresses of IPv6 of ``ip6tables-restore``.
    """
    lines = [
        f"-A {_CHAIN} {match} -j CT --notrack"
        for address in addresses
        for protocol in ("udp", "tcp")
        for match in (
            f"-d {_alone(address)} -p {protocol} --dport 53",
            f"-s {_alone(address)} -p {protocol} --sport 53",
        )
    ]
    return "\n".join(("*raw", f":{_CHAIN} - [0:0]", *lines, "COMMIT", ""))


async def prepare(config: NodeLocalDnsConfig) -> None:
    """Create the empty chain, and make all packets pass it. A second run finds the jumps to the chain."""
    await _restore(config, rules(()))
    for entrance in _ENTRANCES:
        if await _run(config.tool, "--wait", "-t", "raw", "-C", entrance, "-j", _CHAIN):
            await _must(config.tool, "--wait", "-t", "raw", "-I", entrance, "-j", _CHAIN)


async def give_back(config: NodeLocalDnsConfig) -> None:
    """Remove everything from the node: first the rules, so that CoreDNS gets all requests, then the addresses."""
    await _restore(config, rules(()))
    for entrance in _ENTRANCES:
        await _run(config.tool, "--wait", "-t", "raw", "-D", entrance, "-j", _CHAIN)
    await _run(config.tool, "--wait", "-t", "raw", "-X", _CHAIN)
    for address in config.addresses:
        await _run("ip", "address", "delete", _alone(address), "dev", "lo")


def _alone(address: str) -> str:
    """Network with this address alone."""
    return str(ipaddress.ip_network(address))


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _restore(config: NodeLocalDnsConfig, text: str) -> None:
    await _must(f"{config.tool}-restore", "--wait", "--noflush", stdin=text)


async def _must(*argv: str, stdin: str = "") -> None:
    if code := await _run(*argv, stdin=stdin):
        raise RuntimeError(f"{' '.join(argv)} ended with {code}")


async def _run(*argv: str, stdin: str = "") -> int:
    """Run a command; returns its exit code. Its error messages go to the standard error of this process."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE)
    await process.communicate(stdin.encode())
    return process.returncode or 0

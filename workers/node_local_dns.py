"""The way of a node's DNS requests: to the server on the node while that answers, else to the cluster's.

Requests to these addresses are kept from being tracked, so that no Service is looked for behind them, and the addresses
are the node's own: whoever asks reaches the server there. Without that, kube-proxy leads them to CoreDNS as ever.
"""

import asyncio
import logging

import aiohttp

from api.model import ApiModel
from workers.runtime import Health, HealthConfig, load_config, run_until_signal

_log = logging.getLogger(__name__)

_CHAIN = "NODE-LOCAL-DNS"
_ENTRANCES = ("PREROUTING", "OUTPUT")
_LOOK_SECONDS = 1.0


class NodeLocalDnsConfig(ApiModel):
    """Content of ``config.yaml``. The process needs the node's network, and to be its administrator."""

    addresses: tuple[str, ...]
    """What the server on the node answers at."""
    server: str
    """URL that answers 200 while it does."""
    health: HealthConfig = HealthConfig()


async def run(config_path: str) -> None:
    """Run until SIGTERM, then give everything back. One that was killed is found, and gone on with, by the next."""
    config = load_config(NodeLocalDnsConfig, config_path)
    health = Health()
    runner = await health.serve(config.health)
    await prepare()
    health.ready = True
    try:
        await run_until_signal(lead(config))
    finally:
        await give_back(config)
        await runner.cleanup()


async def lead(config: NodeLocalDnsConfig) -> None:
    """Lead requests to the node's server whenever it answers, and past it whenever it does not."""
    led: bool | None = None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LOOK_SECONDS)) as session:
        while True:
            answers = await _answers(session, config.server)
            if answers != led:
                await _iptables_restore(rules(config.addresses if answers else ()))
                _log.info("DNS requests go to %s", "this node's server" if answers else "the cluster's")
                led = answers
            await asyncio.sleep(_LOOK_SECONDS)  # the clock of a poll


def rules(addresses: tuple[str, ...]) -> str:
    """Input of ``iptables-restore --noflush``: the chain with what leads to these addresses, and nothing else."""
    lines = [
        f"-A {_CHAIN} {match} -j CT --notrack"
        for address in addresses
        for protocol in ("udp", "tcp")
        for match in (f"-d {address}/32 -p {protocol} --dport 53", f"-s {address}/32 -p {protocol} --sport 53")
    ]
    return "\n".join(("*raw", f":{_CHAIN} - [0:0]", *lines, "COMMIT", ""))


async def prepare() -> None:
    """Have all packets pass the chain, which is empty. A second run finds the ways into it."""
    await _iptables_restore(rules(()))
    for entrance in _ENTRANCES:
        if await _run("iptables", "--wait", "-t", "raw", "-C", entrance, "-j", _CHAIN):
            await _must("iptables", "--wait", "-t", "raw", "-I", entrance, "-j", _CHAIN)


async def give_back(config: NodeLocalDnsConfig) -> None:
    """Leave nothing on the node: first the way to its server, at once, then the server's addresses."""
    await _iptables_restore(rules(()))
    for entrance in _ENTRANCES:
        await _run("iptables", "--wait", "-t", "raw", "-D", entrance, "-j", _CHAIN)
    await _run("iptables", "--wait", "-t", "raw", "-X", _CHAIN)
    for address in config.addresses:
        await _run("ip", "address", "delete", f"{address}/32", "dev", "lo")


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _iptables_restore(text: str) -> None:
    await _must("iptables-restore", "--wait", "--noflush", stdin=text)


async def _must(*argv: str, stdin: str = "") -> None:
    if code := await _run(*argv, stdin=stdin):
        raise RuntimeError(f"{' '.join(argv)} ended with {code}")


async def _run(*argv: str, stdin: str = "") -> int:
    """Exit code; what it complains of goes to our own standard error."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE)
    await process.communicate(stdin.encode())
    return process.returncode or 0

"""Addresses to which a tenant may make one of our processes connect."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import BeforeValidator

from api.validation.hosts import address_fault, reached_by

Network = Annotated[
    ipaddress.IPv4Network | ipaddress.IPv6Network, BeforeValidator(lambda each: ipaddress.ip_network(str(each)))
]
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""IPv6 addresses that are assigned to the public Internet."""


def public_only(blocked: Iterable[Network] = (), allowed: Iterable[Network] = ()) -> Callable[[str], str]:
    """The guard of a client of servers that tenants name: why it must not connect to an address; empty if it may.

    It refuses addresses that are not public, unless they are in ``allowed``, and the addresses in ``blocked``. It
    refuses addresses of the machine itself and link-local ones, at which clouds serve credentials, in any case.
    """
    refused, permitted = tuple(blocked), tuple(allowed)

    def fault(text: str) -> str:
        if why := blocked_fault(text, refused):
            return why
        address = _reached(text)
        public = address.is_global and (address.version == 4 or address in _UNICAST)
        if not public and not _is_in(address, permitted):
            return "is not a public address, and the operator has not allowed it"
        return ""

    return fault


def blocked_fault(
    text: str, blocked: Iterable[Network], why_blocked: str = "is in a network that the operator has blocked"
) -> str:
    """Why a tenant may not make a process connect to an address that may be private; empty if it may."""
    try:
        address = _reached(text)
    except ValueError:
        return "is no IP address"
    return address_fault(address) or (why_blocked if _is_in(address, blocked) else "")


def _reached(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return reached_by(ipaddress.ip_address(text.partition("%")[0]))


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


class OwnThreads(AbstractResolver):
    """Resolves names in threads of its own. A tenant's DNS server that delays its answers delays nothing else."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "tenants-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        ask = partial(
            socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=each,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for each, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Clients that share the resolver call this; the threads stay."""

"""Addresses of the garden, of Temporal and of a Shoot's API server, as the CLI finds them."""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from api.names import in_url
from kube.client import KubeClient
from kube.kubeconfig import Endpoint, endpoint_of, parse_kubeconfig, resolved

SYSTEM_RESOLVER = "resolved by the system"


def landscape_facts(name: str | None = None) -> dict[str, Any]:
    """``landscape.json`` of a landscape; the default is named by GARDENER_LANDSCAPE, else ``default``.

    Raises:
        click.ClickException: the file is missing; the text says how to bring the landscape up.
    """
    name = name or os.environ.get("GARDENER_LANDSCAPE", "default")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    path = state / "gardener/landscapes" / name / "landscape.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise click.ClickException(
            f"landscape {name!r} is not up ({path} is missing): run `gardener landscape up --name {name}`, "
            "or say where the garden and Temporal are"
        ) from None
    return facts


def find_garden_kubeconfig(path: str | None) -> Path:
    """The garden's kubeconfig: the given one, GARDEN_KUBECONFIG, or the landscape's."""
    given = path or os.environ.get("GARDEN_KUBECONFIG")
    return Path(given) if given else Path(landscape_facts()["clusters"]["garden"]["kubeconfig"])


def garden_client(path: str | None) -> KubeClient:
    """A client of the garden by the user's own kubeconfig."""
    return own_client(find_garden_kubeconfig(path))


def own_client(kubeconfig: str | Path) -> KubeClient:
    """A client by a kubeconfig of the user's own, which may get credentials from a program."""
    return KubeClient.from_kubeconfig(kubeconfig, run_programs=True)


def garden_credentials(path: Path) -> Endpoint:
    """The garden and the user's credentials, as a kubeconfig holds them, or as its program issues them now.

    Raises OSError or KubeconfigError.
    """
    return resolved(endpoint_of(parse_kubeconfig(path.read_bytes()), path.parent, trusted=path))


def namespaced_name(_: click.Context, __: click.Parameter, value: str) -> tuple[str, str]:
    """Callback for an argument NAMESPACE/NAME."""
    namespace, slash, name = value.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise click.BadParameter(f"{value!r} is not NAMESPACE/NAME, for example garden-local/demo")
    return namespace, name


def optional_name(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """Callback for an optional argument NAMESPACE/NAME."""
    return None if value is None else namespaced_name(context, parameter, value)


@dataclass(frozen=True)
class Reach:
    """Address at which this machine reaches a Shoot's API server."""

    server: str
    tls_server_name: str | None
    how: str


def reach(url: str) -> Reach:
    """The URL itself if its name resolves, otherwise the address from the landscape's DNS server.

    The landscape does not change the resolver of its machine, so the CLI asks the landscape's DNS server. kubectl then
    gets the IP address, and the name that the server's certificate must have.
    """
    host = urlsplit(url).hostname or ""
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        pass
    else:
        return Reach(url, None, SYSTEM_RESOLVER)
    import dns.exception

    server = landscape_facts()["dns"]["server"]
    try:
        address = _address(host, server)
    except dns.exception.DNSException as error:
        raise click.ClickException(
            f"{host} is not in the DNS (asked the system and {server}: {type(error).__name__}); "
            "has its DNSRecord been created?"
        ) from None
    return Reach(f"https://{in_url(address)}:443", host, f"{host} is {address} by the landscape's DNS {server}")


def _address(host: str, server: str) -> str:
    """Address of a host by a DNS server: of IPv4, or of IPv6 if it has no other, as a Shoot with IPv6 alone."""
    import dns.resolver

    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers = [server]
    try:
        return str(resolver.resolve(host, "A", lifetime=5)[0])
    except dns.resolver.NoAnswer:
        return str(resolver.resolve(host, "AAAA", lifetime=5)[0])

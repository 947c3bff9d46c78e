"""Validation of URLs to which a process of a control plane connects because a tenant names them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from api.validation.field import Faults, Path
from api.validation.values import SUBDOMAIN

_INTERNAL_DOMAINS = ("localhost", "svc", "cluster.local", "google.internal")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def check_https(url: str, path: Path, faults: Faults, *, any_host: bool = False) -> None:
    """Faults of a URL to which a process of a control plane will connect because a tenant names it.

    ``any_host``: the host may be inside, because an operator names it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        faults.invalid(path, url, "is not a URL")
        return
    if parts.scheme != "https":
        faults.invalid(path, url, "must be an https URL")
    elif parts.username is not None or parts.password is not None:
        faults.forbidden(path, "must not contain a user name or a password")
    elif parts.query or parts.fragment or url.endswith(("?", "#")):
        faults.invalid(path, url, "must have neither query nor fragment")
    elif (fault := host_fault(host)) and not (any_host and host):
        faults.invalid(path, url, f"host {host or 'is missing'}: {fault}" if host else "has no host")


def host_fault(host: str) -> str:
    """Why a tenant may not make a process of a control plane connect to a host; empty if the host may be public.

    A name may still resolve to an internal address. A process of ours also checks the address that it connects to.
    """
    host = host.rstrip(".").lower()
    if not host:
        return "is missing"
    try:
        return address_fault(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        return "is a number, but no IP address in its usual form"
    if len(labels) == 1:
        return "has no domain, so it may name a Service of the seed"
    if not SUBDOMAIN.fullmatch(host):
        # Clients take other letters for ASCII: a full stop of Japanese for a dot, and 127.0.0。1 for 127.0.0.1.
        return "is no DNS name in ASCII letters: write a name in other letters as xn--"
    if any(host == domain or host.endswith(f".{domain}") for domain in _INTERNAL_DOMAINS):
        return "is a name inside the seed or its machines"
    return ""


def address_fault(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Why a tenant may not make a process connect to an address of this kind; empty if it may."""
    address = reached_by(address)
    if address.is_loopback or address.is_unspecified:
        return "is an address of the machine itself"
    if address.is_link_local:
        return "is a link-local address, at which clouds serve credentials"
    if address.is_multicast:
        return "is a multicast address"
    return ""


def reached_by(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 address stands for; the address itself if it stands for no other one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address

"""Addresses at which the command line reaches the API servers of Shoots."""

import socket
from typing import Any

import click
import dns.resolver
import pytest

from workers.cli import connection

URL = "https://api.demo.local.shoot.default.garden.test"


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Records of the name in the landscape's DNS, which the system does not know."""
    found: dict[str, str] = {}

    def unknown(*_: Any) -> None:
        raise socket.gaierror

    def resolve(_: Any, host: str, kind: str, **__: Any) -> list[str]:
        if kind not in found:
            raise dns.resolver.NoAnswer if found else dns.resolver.NXDOMAIN
        return [found[kind]]

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(dns.resolver.Resolver, "resolve", resolve)
    monkeypatch.setattr(connection, "landscape_facts", lambda: {"dns": {"server": "198.18.0.1"}})
    return found


@pytest.mark.parametrize(
    ("known", "server"),
    [
        ({"A": "198.18.2.2"}, "https://198.18.2.2:443"),
        ({"A": "198.18.2.2", "AAAA": "2001:2:0:9::11"}, "https://198.18.2.2:443"),
        ({"AAAA": "2001:2:0:9::11"}, "https://[2001:2:0:9::11]:443"),
    ],
)
def test_the_landscapes_dns_gives_the_address(records: dict[str, str], known: dict[str, str], server: str) -> None:
    records.update(known)

    found = connection.reach(URL)
    assert (found.server, found.tls_server_name) == (server, "api.demo.local.shoot.default.garden.test")


def test_a_name_that_does_not_exist_is_an_error(records: dict[str, str]) -> None:
    with pytest.raises(click.ClickException, match="is not in the DNS") as error:
        connection.reach(URL)
    assert "198.18.0.1: NXDOMAIN" in str(error.value)

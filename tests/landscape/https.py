"""Requests by a name of the landscape's DNS, or by an address, which trust exactly one authority."""

import http.client
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.landscape.shoots import Shoot


def get(
    shoot: Shoot,
    url: str,
    authority: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    certificate: Path | None = None,
) -> tuple[int, bytes]:
    """Status and content; ``authority``: PEM. A body is posted. ``certificate``: file of a client's, with its key."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    address = host if host.replace(".", "").isdigit() else shoot.address_of(host)
    raw = socket.create_connection((address, parts.port or 443), 10)
    connection = http.client.HTTPSConnection(parts.netloc, timeout=10)
    context = ssl.create_default_context(cadata=authority)
    if certificate:
        context.load_cert_chain(certificate)
    connection.sock = context.wrap_socket(raw, server_hostname=host)
    try:
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()

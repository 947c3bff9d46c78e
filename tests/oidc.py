"""An issuer of OpenID Connect tokens by HTTPS: documents, a page to log in, and tokens, its own and forged ones.

As a program, it serves the garden of a landscape: see docs/tutorial.md.
"""

import base64
import hmac
import json
import os
import secrets
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from landscape import plan
from landscape.pki import Authority

AUDIENCE = "temporal"
ROLES = {"look": ["everyone"], "repair": ["on-call"], "administer": ["platform"]}
_HOST = "127.0.0.1"
_PAGE = """<title>Log in</title><form method="post">
<input name="name" placeholder="name"><input name="password" type="password"><button>Log in</button></form>"""


@dataclass
class Issuer:
    """A running issuer, and the server's configuration that trusts it."""

    url: str
    key: rsa.RSAPrivateKey
    config_file: Path
    ca_file: Path
    client: "Client"
    """The client that may send people here to log in."""
    documents: dict[str, Any]
    """Answers to GET, by path."""
    key_id: str = "first"
    people: dict[str, "Person"] = field(default_factory=dict)
    """People that can log in, by name."""
    given: dict[str, str] = field(default_factory=dict)
    """Names of the people that have logged in, by access token."""

    def token(self, name: str, /, *groups: str, key: rsa.RSAPrivateKey | None = None, **claims: Any) -> str:
        """Signed by the issuer's key, or by another ``key`` of the same id. ``claims`` replace the usual ones."""
        signed = _content({"alg": "RS256", "kid": self.key_id}, self._claims(name, groups, claims))
        signature = (key or self.key).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def unsigned_token(self, name: str, *groups: str, **claims: Any) -> str:
        return f"{_content({'alg': 'none', 'kid': self.key_id}, self._claims(name, groups, claims))}."

    def token_by_public_key(self, name: str, *groups: str, **claims: Any) -> str:
        """Signed with the issuer's public key as a shared secret."""
        signed = _content({"alg": "HS256", "kid": self.key_id}, self._claims(name, groups, claims))
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return f"{signed}.{_base64(hmac.digest(public, signed.encode(), sha256))}"

    def rotate(self) -> None:
        """Sign with a new key, and publish no other one any more."""
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = secrets.token_urlsafe(6)
        self.documents["/keys"] = {"keys": [_jwk(self.key, self.key_id)]}

    def _claims(self, name: str, groups: tuple[str, ...], changed: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC)
        usual = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": name,
            "groups": groups,
            "iat": int(now.timestamp()),
            "exp": int((now + timedelta(minutes=10)).timestamp()),
        }
        return {**usual, **changed}


@dataclass(frozen=True)
class Person:
    groups: tuple[str, ...] = ()
    password: str = field(default_factory=secrets.token_urlsafe)


@dataclass
class Client:
    """An application that people log in to, as it is registered."""

    id: str = "temporal-ui"
    secret: str = field(default_factory=secrets.token_urlsafe)
    callback: str = ""


class _Login:
    """The authorization code flow (OpenID Connect Core, 3.1)."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._codes: dict[str, tuple[str, str]] = {}
        """Name and nonce, by a code that was not used yet."""

    def asked_by_client(self, query: Mapping[str, str]) -> bool:
        client = self._issuer.client
        return (query.get("client_id"), query.get("redirect_uri")) == (client.id, client.callback)

    def log_in(self, query: Mapping[str, str], form: Mapping[str, str]) -> str | None:
        """Where the browser goes next; None: no person has this name and password."""
        person = self._issuer.people.get(form.get("name", ""))
        if person is None or person.password != form.get("password"):
            return None
        code = secrets.token_urlsafe()
        self._codes[code] = form["name"], query.get("nonce", "")
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query.get('state', '')})}"

    def tokens(self, form: Mapping[str, str], authorization: str) -> dict[str, Any] | None:
        """Tokens that the client gets for a code; None: another client, or the code is not valid."""
        issuer, client = self._issuer, self._issuer.client
        basic = base64.b64encode(f"{client.id}:{client.secret}".encode()).decode()
        found = self._codes.pop(form.get("code", ""), None)
        if authorization != f"Basic {basic}" or found is None:
            return None
        name, nonce = found
        access = issuer.token(name, *issuer.people[name].groups)
        issuer.given[access] = name
        id_token = issuer.token(name, aud=client.id, nonce=nonce, name=name)
        return {"access_token": access, "id_token": id_token, "token_type": "Bearer", "expires_in": 600}


@contextmanager
def issuer(directory: Path, host: str = _HOST) -> Iterator[Issuer]:
    """Runs until the end of the block; ``directory`` takes its certificate and the configuration.

    ``host``: address of this machine at which it listens.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = Authority(directory, "issuer-ca").issue("issuer", "issuer", names=[host])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    documents: dict[str, Any] = {"/keys": {"keys": [_jwk(key, "first")]}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path == "/authorize" and login.asked_by_client(_values(address.query)):
                self._answer(200, _PAGE.encode(), "text/html")
            elif (found := documents.get(address.path)) is not None:
                self._answer(200, json.dumps(found).encode())
            else:
                self._answer(404)

        def do_POST(self) -> None:
            address, form = urlsplit(self.path), _values(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if address.path == "/authorize" and login.asked_by_client(query := _values(address.query)):
                onwards = login.log_in(query, form)
                self._answer(303 if onwards else 403, location=onwards)
            elif address.path == "/token" and (given := login.tokens(form, self.headers.get("Authorization", ""))):
                self._answer(200, json.dumps(given).encode())
            else:
                self._answer(401)

        def _answer(
            self, status: int, body: bytes = b"", kind: str = "application/json", location: str | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests say what fails."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    url = f"https://{host}:{server.server_port}"
    documents["/.well-known/openid-configuration"] = {
        "issuer": url,
        "jwks_uri": f"{url}/keys",
        "authorization_endpoint": f"{url}/authorize",
        "token_endpoint": f"{url}/token",
    }
    config, authority = directory / "oidc.yaml", directory / "issuer-ca.crt"
    running = Issuer(url, key, config, authority, Client(), documents)
    login = _Login(running)
    trusted = {"url": url, "audience": AUDIENCE, "certificateAuthorityFile": str(authority)}
    config.write_text(yaml.safe_dump({"issuer": trusted, "roles": ROLES}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _values(encoded: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(encoded).items()}


def _jwk(key: rsa.RSAPrivateKey, key_id: str) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    modulus, exponent = (each.to_bytes((each.bit_length() + 7) // 8, "big") for each in (numbers.n, numbers.e))
    return {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": key_id,
        "n": _base64(modulus),
        "e": _base64(exponent),
    }


def _content(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    return ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _serve(names: list[str]) -> None:
    """Write a token of each person into this directory, print the address of the issuer, and serve until the end."""
    found = plan.load(os.environ.get("GARDENER_LANDSCAPE", plan.DEFAULT_NAME))
    if found is None:
        raise SystemExit("there is no landscape: run `gardener landscape up`")
    with issuer(Path.cwd(), found.host_link("garden").left_address) as running:
        for name in names:
            file = Path(f"{name}.token")
            file.touch(mode=0o600)
            file.write_text(running.token(name, aud="garden", exp=int(datetime.now(UTC).timestamp()) + 3600))
        print(f"export ISSUER={running.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    _serve(sys.argv[1:])

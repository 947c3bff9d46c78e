"""An issuer of OpenID Connect tokens: its discovery document and keys by HTTPS, and tokens, its own and forged ones."""

import base64
import hmac
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from landscape.pki import Authority

AUDIENCE = "temporal"
ROLES = {"look": ["everybody"], "repair": ["on-call"], "administer": ["platform"]}
_KEY_ID = "first"
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Issuer:
    """A running issuer, and the server's configuration that trusts it."""

    url: str
    key: rsa.RSAPrivateKey
    config_file: Path

    def token(self, name: str, *groups: str, key: rsa.RSAPrivateKey | None = None, **claims: Any) -> str:
        """Signed by the issuer's key, or by another ``key`` of the same id. ``claims`` replace the usual ones."""
        signed = _content({"alg": "RS256", "kid": _KEY_ID}, self._claims(name, groups, claims))
        signature = (key or self.key).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def unsigned_token(self, name: str, *groups: str) -> str:
        return f"{_content({'alg': 'none', 'kid': _KEY_ID}, self._claims(name, groups, {}))}."

    def token_by_public_key(self, name: str, *groups: str) -> str:
        """Signed with the issuer's public key as a shared secret."""
        signed = _content({"alg": "HS256", "kid": _KEY_ID}, self._claims(name, groups, {}))
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return f"{signed}.{_base64(hmac.digest(public, signed.encode(), sha256))}"

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


@contextmanager
def issuer(directory: Path) -> Iterator[Issuer]:
    """Runs until the end of the block; ``directory`` takes its certificate and the configuration."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = Authority(directory, "issuer-ca").issue("issuer", "issuer", names=[_HOST])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    documents: dict[str, Any] = {"/keys": {"keys": [_jwk(key)]}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests say what fails."""

    server = ThreadingHTTPServer((_HOST, 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    url = f"https://{_HOST}:{server.server_port}"
    documents["/.well-known/openid-configuration"] = {"issuer": url, "jwks_uri": f"{url}/keys"}
    config = directory / "oidc.yaml"
    trusted = {"url": url, "audience": AUDIENCE, "certificateAuthorityFile": str(directory / "issuer-ca.crt")}
    config.write_text(yaml.safe_dump({"issuer": trusted, "roles": ROLES}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Issuer(url, key, config)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _jwk(key: rsa.RSAPrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    modulus, exponent = (each.to_bytes((each.bit_length() + 7) // 8, "big") for each in (numbers.n, numbers.e))
    return {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": _KEY_ID,
        "n": _base64(modulus),
        "e": _base64(exponent),
    }


def _content(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    return ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

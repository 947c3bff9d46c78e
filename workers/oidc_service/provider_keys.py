"""Public keys of issuers, fetched from addresses to which a tenant may make a process of a control plane connect."""

import asyncio
import ipaddress
import json
import logging
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from cryptography.hazmat.primitives.asymmetric import rsa

from api.validation.field import Faults, Path
from api.validation.hosts import check_https
from workers.lib.addresses import Network, blocked_fault

log = logging.getLogger(__name__)

FRESH_SECONDS = 300.0
"""Keys are fetched again after this time, so that a key that the issuer has withdrawn loses its power."""
LONGEST_SECONDS = 3600.0
"""Keys are used for so long while the issuer does not answer."""
PAUSE_SECONDS = 10.0
"""Time between two fetches for one issuer: each client can send tokens with made-up key ids."""
_FETCH_SECONDS = 10.0
_LARGEST = 512 * 1024
"""Bytes of the largest document."""
_MOST_KEYS = 100
_SHORTEST_RSA_KEY = 2048
_KEY_TYPES = frozenset({"RSA", "EC"})

_INSIDE = "is an address inside the seed"


class ProviderFault(Exception):
    """An issuer gives no usable keys. The text names no token and quotes no answer."""


@dataclass(frozen=True)
class Key:
    id: str
    algorithm: str
    """Algorithm that the issuer names for the key; empty if it names none."""
    public: Any


@dataclass(frozen=True)
class Provider:
    """Source of keys: two OpenIDConnects with the same values share them."""

    issuer: str
    ca_bundle: bytes = b""


class ProviderKeys:
    """Keys of all issuers, kept in memory."""

    def __init__(self, blocked: Iterable[Network] = (), *, check_addresses: bool = True) -> None:
        """``blocked``: networks of the seed. ``check_addresses``: False only in tests with issuers on this machine."""
        self._blocked = tuple(blocked)
        self._check = check_addresses
        self._known: dict[Provider, tuple[float, tuple[Key, ...]]] = {}
        """Time of the fetch and its keys."""
        self._asked: dict[Provider, float] = {}
        self._locks: dict[Provider, asyncio.Lock] = {}

    def forget(self, used: Iterable[Provider]) -> None:
        """Drop the keys of issuers that no OpenIDConnect names any more."""
        kept = set(used)
        for memory in (self._known, self._asked, self._locks):
            for each in [each for each in memory if each not in kept]:
                del memory[each]

    async def find(self, provider: Provider, key_id: str | None) -> list[Key]:
        """Keys that may have signed a token: those with this id, or all keys for a token without one.

        Raises ProviderFault if the issuer has given no keys for an hour.
        """
        lock = self._locks.setdefault(provider, asyncio.Lock())
        async with lock:
            fetched, keys = self._known.get(provider, (0.0, ()))
            now = time.monotonic()
            age = now - fetched if fetched else LONGEST_SECONDS
            unknown = key_id is not None and all(each.id != key_id for each in keys)
            asked = self._asked.get(provider)
            may_ask = asked is None or now - asked >= PAUSE_SECONDS
            if (age >= FRESH_SECONDS or unknown) and may_ask:
                self._asked[provider] = now
                try:
                    keys = await self._fetch(provider)
                    self._known[provider] = time.monotonic(), keys
                    age = 0.0
                except ProviderFault as fault:
                    log.warning("issuer %s: %s", provider.issuer, fault)
            if age >= LONGEST_SECONDS:
                raise ProviderFault(f"issuer {provider.issuer} gives no keys")
        return [each for each in keys if key_id is None or each.id == key_id]

    async def _fetch(self, provider: Provider) -> tuple[Key, ...]:
        base = provider.issuer.rstrip("/")
        try:
            async with asyncio.timeout(_FETCH_SECONDS), self._session(provider) as session:
                document = await self._get(session, f"{base}/.well-known/openid-configuration")
                if document.get("issuer") != provider.issuer:
                    raise ProviderFault("its discovery document names another issuer")
                key_set = await self._get(session, str(document.get("jwks_uri") or ""))
        except TimeoutError:
            raise ProviderFault(f"it does not answer within {_FETCH_SECONDS:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderFault(f"it cannot be reached ({type(error).__name__})") from None
        keys = tuple(_keys_in(key_set))
        if not keys:
            raise ProviderFault("its key set has no RSA or elliptic-curve key for signatures")
        return keys

    def _session(self, provider: Provider) -> aiohttp.ClientSession:
        try:
            tls = ssl.create_default_context(cadata=provider.ca_bundle.decode() if provider.ca_bundle else None)
        except (ssl.SSLError, UnicodeDecodeError):
            raise ProviderFault("caBundle holds no certificates in PEM format") from None
        resolver = _Resolver(self._blocked) if self._check else None
        connector = aiohttp.TCPConnector(ssl=tls, resolver=resolver, use_dns_cache=False, force_close=True)
        return aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=False)

    async def _get(self, session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
        self._check_url(url)
        # No redirects: each would be another address to check, and discovery needs none.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with session.get(url, allow_redirects=False, headers=headers) as answer:
            if answer.status != 200:
                raise ProviderFault(f"it answers with status {answer.status}")
            body = b""
            async for chunk in answer.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > _LARGEST:
                    raise ProviderFault(f"its answer is longer than {_LARGEST} bytes")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise ProviderFault("its answer is no JSON") from None
        if not isinstance(document, dict):
            raise ProviderFault("its answer is no JSON object")
        return document

    def _check_url(self, url: str) -> None:
        faults = Faults()
        check_https(url, Path("url"), faults)
        if self._check:
            if faults:
                raise ProviderFault(f"it may not be reached: {faults}")
            with_address = urlsplit(url).hostname or ""
            try:
                address = ipaddress.ip_address(with_address)
            except ValueError:
                return  # a name, which the resolver checks
            if fault := blocked_fault(str(address), self._blocked, _INSIDE):
                raise ProviderFault(f"it may not be reached: {fault}")
        elif urlsplit(url).scheme != "https":
            raise ProviderFault("it is no https URL")


class _Resolver(AbstractResolver):
    """Resolves names to the addresses that a tenant may name; the connection then uses one of just these."""

    def __init__(self, blocked: tuple[Network, ...]) -> None:
        self._blocked = blocked
        self._inner = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        allowed = [each for each in found if not blocked_fault(each["host"], self._blocked, _INSIDE)]
        if not allowed:
            raise OSError("the name has only addresses inside the seed or its machines")
        return allowed

    async def close(self) -> None:
        await self._inner.close()


def _keys_in(key_set: dict[str, Any]) -> Iterable[Key]:
    """Keys that may verify signatures. Others are left out: an issuer may publish keys for encryption, too."""
    found = key_set.get("keys")
    for each in (found if isinstance(found, list) else [])[:_MOST_KEYS]:
        if not isinstance(each, dict) or each.get("kty") not in _KEY_TYPES or each.get("use", "sig") != "sig":
            continue
        # Only the public members: a key set with private ones is the issuer's mistake, and no reason to keep them.
        public = {name: each[name] for name in ("kty", "n", "e", "crv", "x", "y", "alg", "kid") if name in each}
        try:
            key = jwt.PyJWK(public)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        if isinstance(key.key, rsa.RSAPublicKey) and key.key.key_size < _SHORTEST_RSA_KEY:
            continue
        yield Key(str(each.get("kid") or ""), str(each.get("alg") or ""), key.key)

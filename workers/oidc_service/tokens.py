"""Verifies tokens of OpenID Connect against OpenIDConnect objects: which user does a token name?

Source: GEP-12; OpenID Connect Core 3.1.3.7; RFC 8725 for the algorithms.
"""

import base64
import binascii
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from api.authentication.v1alpha1.openid_connect import NO_PREFIX, OpenIDConnect
from workers.oidc_service.provider_keys import Key, Provider, ProviderFault, ProviderKeys

log = logging.getLogger(__name__)

LONGEST_TOKEN = 64 * 1024
"""Characters."""
_SYSTEM = "system:"
_NAME, _UID = "gardener.cloud/authenticator/name", "gardener.cloud/authenticator/uid"
_CLOCK_SKEW = 10.0
"""Seconds by which the clocks of issuer and authenticator may differ."""
_PUBLIC_KEY_ALGORITHMS = frozenset(f"{kind}{bits}" for kind in ("RS", "ES", "PS") for bits in (256, 384, 512))


class Rejected(Exception):
    """A token is not accepted. The text quotes neither the token nor its claims."""


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...]
    extra: Mapping[str, str]


async def user_of(token: str, connects: Iterable[OpenIDConnect], keys: ProviderKeys) -> User:
    """The user that a token names by the first OpenIDConnect that accepts it. Raises Rejected."""
    if len(token) > LONGEST_TOKEN:
        raise Rejected("the token is too long")
    try:
        header = jwt.get_unverified_header(token)
        # Not verified yet: the issuer only selects the OpenIDConnect whose keys must have signed the token.
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Rejected("it is no token of OpenID Connect") from None
    reasons = []
    for connect in connects:
        if connect.spec.issuer_url != issuer:
            continue
        try:
            return _user(connect, await _claims(token, header, connect, keys))
        except (Rejected, ProviderFault) as why:
            reasons.append(f"OpenIDConnect {connect.metadata.name}: {why}")
    raise Rejected("; ".join(reasons) or "no OpenIDConnect names its issuer")


async def _claims(
    token: str, header: Mapping[str, Any], connect: OpenIDConnect, keys: ProviderKeys
) -> Mapping[str, Any]:
    """Claims of a token that a key of the issuer has signed for the client, and that is valid now."""
    algorithm = header.get("alg")
    allowed = _PUBLIC_KEY_ALGORITHMS.intersection(connect.spec.supported_signing_algs)
    if algorithm not in allowed:
        raise Rejected("supportedSigningAlgs does not have its algorithm")
    key_id = header.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise Rejected("the id of its key is no text")
    found = await keys.find(provider_of(connect), key_id)
    fitting = [each for each in found if each.algorithm in ("", algorithm)]
    why = "its issuer has no key that fits"
    for key in fitting:
        try:
            return _verified(token, str(algorithm), key, connect)
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError, ValueError, TypeError):
            why = "no key of its issuer has signed it"
        except jwt.PyJWTError as error:
            raise Rejected(f"it is not valid ({type(error).__name__})") from None
    raise Rejected(why)


def _verified(token: str, algorithm: str, key: Key, connect: OpenIDConnect) -> Mapping[str, Any]:
    claims: dict[str, Any] = jwt.decode(
        token,
        key.public,
        algorithms=[algorithm],
        audience=connect.spec.client_id,
        issuer=connect.spec.issuer_url,
        leeway=_CLOCK_SKEW,
        options={"require": ["exp", "iss", "aud"], "verify_sub": False},
    )
    return claims


def _user(connect: OpenIDConnect, claims: Mapping[str, Any]) -> User:
    spec, name = connect.spec, connect.metadata.name
    for claim, value in (spec.required_claims or {}).items():
        if claims.get(claim) != value:
            raise Rejected(f"claim {claim} has not the required value")
    username = claims.get(spec.username_claim)
    if not isinstance(username, str) or not username:
        raise Rejected(f"claim {spec.username_claim} is no text")
    if spec.username_claim == "email" and claims.get("email_verified", True) is not True:
        raise Rejected("the issuer has not verified the email address")
    groups = claims.get(spec.groups_claim) or []
    if isinstance(groups, str):
        groups = [groups]
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        raise Rejected(f"claim {spec.groups_claim} is neither a text nor a list of texts")
    username = _prefix(spec.username_prefix, name) + username
    groups = tuple(_prefix(spec.groups_prefix, name) + each for each in groups)
    if any(each.startswith(_SYSTEM) for each in (username, *groups)):
        # The control plane's own components have such names: an issuer must not be able to act as one of them.
        raise Rejected(f"it names a user or a group that begins with {_SYSTEM}")
    return User(username, groups, {_NAME: name, _UID: connect.metadata.uid})


def _prefix(chosen: str | None, name: str) -> str:
    return f"{name}/" if chosen is None else "" if chosen == NO_PREFIX else chosen


def provider_of(connect: OpenIDConnect) -> Provider:
    """Source of the keys of an OpenIDConnect."""
    try:
        bundle = base64.b64decode(connect.spec.ca_bundle or "", validate=True)
    except (binascii.Error, ValueError):
        bundle = b"no PEM"  # no connection succeeds with it, and the log says why
    return Provider(connect.spec.issuer_url, bundle)

"""Rotation of the keys of the issuer of WorkloadIdentities, as pure functions of the keys and the time.

A new key is published first, and signs later, when no recipient has an older copy of the published keys. From then on
the earlier key signs no more. It stays published until its last token has expired.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from api.contracts.issuer_keys import IssuerKey, IssuerKeys
from api.decisions.workload_identity import LONGEST

_SKEW = timedelta(minutes=5)
"""How much later a key is withdrawn than its last token expires: clocks of servers and recipients differ."""


def needs_key(keys: IssuerKeys, now: datetime, period: timedelta, *, requested: bool) -> bool:
    """Whether to make another key: there is none that signs, its period is over, or an operator requests it.

    Never two at a time: a key that does not sign yet answers the request.
    """
    newest = keys.keys[-1] if keys.keys else None
    if newest is None or not newest.private:
        return True
    if newest.signs_from is None or newest.signs_from > now:
        return False
    return requested or now >= newest.signs_from + period


def published(keys: IssuerKeys, now: datetime, delay: timedelta) -> IssuerKeys:
    """The keys after their publication: a new key signs after ``delay``; the first key of an issuer signs at once."""
    starts = now + delay if any(each.signs_from for each in keys.keys) else now
    return _with(
        keys, [each if each.signs_from else each.model_copy(update={"signs_from": starts}) for each in keys.keys]
    )


def settled(keys: IssuerKeys, now: datetime) -> IssuerKeys:
    """The keys without private parts of keys that were replaced, and without keys whose last token has expired."""
    signing = keys.signing(now)
    found = []
    for each in keys.keys:
        older = signing is not None and each.signs_from is not None and each.signs_from < (signing.signs_from or now)
        if older and each.private:
            each = each.model_copy(update={"private": "", "until": now + LONGEST + _SKEW})
        if each.until is None or each.until > now:
            found.append(each)
    return _with(keys, found)


def next_change(keys: IssuerKeys, now: datetime, period: timedelta) -> datetime:
    """When the keys must be looked at again."""
    times = [each.until for each in keys.keys if each.until]
    times += [each.signs_from for each in keys.keys if each.signs_from and each.signs_from > now]
    if signing := keys.signing(now):
        times.append((signing.signs_from or now) + period)
    return min(times, default=now + period)


def documents(keys: IssuerKeys) -> tuple[dict[str, Any], dict[str, Any]]:
    """The OpenID configuration, and the set of all public keys."""
    configuration = {
        "issuer": keys.issuer,
        "jwks_uri": f"{keys.issuer}/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
    }
    return configuration, {"keys": [each.public for each in keys.keys]}


def _with(keys: IssuerKeys, found: list[IssuerKey]) -> IssuerKeys:
    return keys.model_copy(update={"keys": tuple(found)})

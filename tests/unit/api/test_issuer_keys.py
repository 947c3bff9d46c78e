"""Keys of the issuer of WorkloadIdentities: recipients must know a key before it signs, and while its tokens live."""

from datetime import UTC, datetime, timedelta

import pytest

from api.contracts.issuer_keys import IssuerKey, IssuerKeys, data_of, keys_in
from api.decisions.issuer_keys import documents, needs_key, next_change, published, settled

NOW = datetime(2026, 11, 26, tzinfo=UTC)
PERIOD, DELAY = timedelta(days=90), timedelta(minutes=10)


def key(number: int, signs_from: datetime | None = None, until: datetime | None = None) -> IssuerKey:
    public = {"kty": "RSA", "kid": f"key-{number}", "n": "AQ", "e": "AQAB"}
    private = "" if until else f"SENTINEL-{number}"
    return IssuerKey(id=f"key-{number}", public=public, private=private, signs_from=signs_from, until=until)


def keys(*found: IssuerKey) -> IssuerKeys:
    return IssuerKeys(issuer="https://issuer.example.org/x", keys=found)


def test_the_first_key_signs_at_once_and_a_further_key_after_it_was_published_for_a_while() -> None:
    first = published(keys(key(1)), NOW, DELAY)
    assert first.keys[0].signs_from == NOW

    second = published(keys(*first.keys, key(2)), NOW, DELAY)
    assert [each.signs_from for each in second.keys] == [NOW, NOW + DELAY]
    for moment, signing in ((NOW, "key-1"), (NOW + DELAY - timedelta(seconds=1), "key-1"), (NOW + DELAY, "key-2")):
        found = second.signing(moment)
        assert found is not None
        assert found.id == signing


def test_a_key_that_is_not_published_signs_nothing() -> None:
    assert keys(key(1)).signing(NOW) is None


def test_a_replaced_key_stays_published_until_its_last_token_has_expired() -> None:
    later = NOW + DELAY
    both = settled(keys(key(1, NOW), key(2, later)), later)

    old, new = both.keys
    assert (old.private, new.private) == ("", "SENTINEL-2")
    assert old.until == later + timedelta(hours=48, minutes=5)
    assert [each["kid"] for each in documents(both)[1]["keys"]] == ["key-1", "key-2"]
    assert settled(both, old.until - timedelta(seconds=1)) == both
    assert [each.id for each in settled(both, old.until).keys] == ["key-2"]


def test_the_earlier_key_keeps_its_private_part_until_the_new_one_signs() -> None:
    both = keys(key(1, NOW), key(2, NOW + DELAY))
    assert settled(both, NOW + DELAY - timedelta(seconds=1)) == both


@pytest.mark.parametrize(
    ("found", "requested", "wanted"),
    [
        ((), False, True),
        ((key(1, NOW),), False, False),
        ((key(1, NOW),), True, True),
        ((key(1, NOW - PERIOD),), False, True),
        ((key(1, NOW), key(2, NOW + DELAY)), True, False),
        ((key(1, NOW), key(2)), True, False),
        ((key(1, NOW, NOW + PERIOD),), False, True),
    ],
    ids=["no key", "in its period", "requested", "period over", "next one waits", "next one unpublished", "lost"],
)
def test_when_another_key_is_made(found: tuple[IssuerKey, ...], requested: bool, wanted: bool) -> None:
    assert needs_key(keys(*found), NOW, PERIOD, requested=requested) is wanted


def test_the_keys_are_looked_at_when_a_key_starts_ends_or_is_due() -> None:
    end = NOW + timedelta(hours=1)
    assert next_change(keys(key(1, NOW)), NOW, PERIOD) == NOW + PERIOD
    assert next_change(keys(key(1, NOW), key(2, NOW + DELAY)), NOW, PERIOD) == NOW + DELAY
    assert next_change(keys(key(1, NOW - DELAY, end), key(2, NOW)), NOW, PERIOD) == end


def test_documents_are_those_of_openid_connect_discovery() -> None:
    configuration, key_set = documents(keys(key(1, NOW)))

    assert configuration == {
        "issuer": "https://issuer.example.org/x",
        "jwks_uri": "https://issuer.example.org/x/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
    }
    assert "SENTINEL" not in str(key_set)


def test_keys_survive_the_secret_and_show_no_private_part_in_a_text() -> None:
    both = keys(key(1, NOW), key(2, NOW + DELAY))

    assert keys_in({"data": data_of(both)}) == both
    assert keys_in({"data": {}}) is None
    assert keys_in(None) is None
    assert "SENTINEL" not in repr(both)
    for damaged in ("bm8ganNvbg==", "#"):
        with pytest.raises(ValueError, match="cannot be read"):
            keys_in({"data": {"keys.json": damaged}})

"""Which certificate a seed uses for the names of its control planes."""

from datetime import UTC, datetime, timedelta

import pytest

from api.decisions.wildcard_certificates import choose, is_for
from tests.certificates import authority, pair, secret

DOMAIN = "ingress.seed-1.example.org"


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ((f"*.{DOMAIN}",), True),
        (("*.INGRESS.seed-1.Example.org",), True),
        (("*.other.example.org", f"*.{DOMAIN}"), True),
        ((DOMAIN,), False),
        ((f"api-dev--a.{DOMAIN}",), False),
        (("*.seed-1.example.org",), False),
        ((f"*.x.{DOMAIN}",), False),
        ((), False),
    ],
)
def test_a_certificate_is_for_the_seed_whose_names_it_covers(names: tuple[str, ...], wanted: bool) -> None:
    assert is_for(secret(pair(*names)), DOMAIN) is wanted
    assert (choose([secret(pair(*names))], DOMAIN, datetime.now(UTC))[0] is not None) is wanted


def test_a_seed_without_a_domain_has_no_certificate() -> None:
    assert not is_for(secret(pair("*.")), "")


def test_a_secret_that_is_no_certificate_is_for_no_seed() -> None:
    assert not is_for({"metadata": {"name": "x"}, "data": {"tls.crt": "YQ=="}}, DOMAIN)
    assert not is_for({"metadata": {"name": "x"}}, DOMAIN)


def test_of_several_certificates_the_one_that_ends_last_is_used() -> None:
    """So a new certificate is put beside the old one, and clients never see one that has ended."""
    old, new = pair(f"*.{DOMAIN}", days=2), pair(f"*.{DOMAIN}", days=9)

    chosen, faults = choose([secret(new, "b"), secret(old, "a")], DOMAIN, datetime.now(UTC))
    assert chosen
    assert (chosen.certificate, chosen.key) == (new.certificate.decode(), new.key.decode())
    assert faults == []


def test_the_whole_chain_is_used() -> None:
    ca = authority()
    made = pair(f"*.{DOMAIN}", ca=ca)
    chained = secret(type(made)(made.certificate + ca.certificate, made.key))

    chosen, _ = choose([chained], DOMAIN, datetime.now(UTC))
    assert chosen
    assert chosen.certificate.count("BEGIN CERTIFICATE") == 2


def test_what_an_api_server_could_not_start_with_is_not_used_and_named_without_its_content() -> None:
    good, other = pair(f"*.{DOMAIN}"), pair(f"*.{DOMAIN}")
    begun = datetime.now(UTC) - timedelta(days=3)
    bad = {
        "mixed": secret(type(good)(good.certificate, other.key), "mixed"),
        "ended": secret(pair(f"*.{DOMAIN}", begun=begun, days=1), "ended"),
        "elsewhere": secret(pair("*.example.com"), "elsewhere"),
        "no-key": secret(type(good)(good.certificate, b"SENTINEL"), "no-key"),
        "empty": {"metadata": {"name": "empty"}},
    }

    chosen, faults = choose(bad.values(), DOMAIN, datetime.now(UTC))
    assert chosen is None
    for name, fault in zip(bad, faults, strict=True):
        assert fault.startswith(f"Secret {name} is not used: ")
        assert "SENTINEL" not in fault
        assert "BEGIN" not in fault


def test_a_key_is_in_no_logged_text() -> None:
    chosen, _ = choose([secret(pair(f"*.{DOMAIN}"))], DOMAIN, datetime.now(UTC))
    assert "PRIVATE" not in repr(chosen)

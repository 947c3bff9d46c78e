"""Which user a token names, by the OpenIDConnects of a shoot."""

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests import oidc
from tests.unit.oidc_service.conftest import connect, token
from workers.oidc_service import provider_keys
from workers.oidc_service.provider_keys import ProviderKeys
from workers.oidc_service.tokens import Rejected, User, user_of


async def test_a_token_names_a_user_with_prefixes_and_the_authenticator(
    issuer: oidc.Issuer, keys: ProviderKeys
) -> None:
    user = await user_of(token(issuer, "ann", "developers", "qa"), [connect(issuer)], keys)

    extra = {
        "gardener.cloud/authenticator/name": "company",
        "gardener.cloud/authenticator/uid": "uid-of-company",
    }
    assert user == User("company/ann", ("company/developers", "company/qa"), extra)


async def test_an_owner_chooses_claims_and_prefixes(issuer: oidc.Issuer, keys: ProviderKeys) -> None:
    chosen = connect(
        issuer, usernameClaim="email", usernamePrefix="-", groupsClaim="roles", groupsPrefix="role:",
        requiredClaims={"tenant": "a"},
    )  # fmt: skip
    claims = {"email": "ann@example.org", "roles": "admin", "tenant": "a"}

    user = await user_of(token(issuer, "1", **claims), [chosen], keys)
    assert (user.name, user.groups) == ("ann@example.org", ("role:admin",))
    with pytest.raises(Rejected, match="claim tenant has not the required value"):
        await user_of(token(issuer, "1", **{**claims, "tenant": "b"}), [chosen], keys)
    with pytest.raises(Rejected, match="has not verified the email address"):
        await user_of(token(issuer, "1", **claims, email_verified=False), [chosen], keys)


async def test_a_second_client_of_the_same_issuer_is_found(issuer: oidc.Issuer, keys: ProviderKeys) -> None:
    both = [connect(issuer, "first", clientID="other"), connect(issuer, "second")]
    assert (await user_of(token(issuer, "ann"), both, keys)).name == "second/ann"


async def test_new_keys_of_the_issuer_work_and_withdrawn_keys_do_not(
    issuer: oidc.Issuer, keys: ProviderKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_keys, "PAUSE_SECONDS", 0.0)
    before = token(issuer, "ann")
    assert await user_of(before, [connect(issuer)], keys)

    issuer.rotate()
    assert (await user_of(token(issuer, "bob"), [connect(issuer)], keys)).name == "company/bob"
    with pytest.raises(Rejected, match="no key that fits"):
        await user_of(before, [connect(issuer)], keys)


async def test_keys_are_used_while_the_issuer_does_not_answer_and_for_an_hour_at_most(
    issuer: oidc.Issuer, keys: ProviderKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_keys, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(provider_keys, "PAUSE_SECONDS", 0.0)
    assert await user_of(token(issuer, "ann"), [connect(issuer)], keys)

    issuer.documents.clear()
    assert await user_of(token(issuer, "ann"), [connect(issuer)], keys)
    monkeypatch.setattr(provider_keys, "LONGEST_SECONDS", 0.0)
    with pytest.raises(Rejected, match="gives no keys"):
        await user_of(token(issuer, "ann"), [connect(issuer)], keys)


async def test_made_up_key_ids_do_not_flood_the_issuer(issuer: oidc.Issuer, keys: ProviderKeys) -> None:
    asked = []
    fetch = ProviderKeys._fetch

    async def counting(self: ProviderKeys, provider: provider_keys.Provider) -> tuple[provider_keys.Key, ...]:
        asked.append(provider)
        return await fetch(self, provider)

    keys._fetch = counting.__get__(keys)  # type: ignore[method-assign]
    for number in range(20):
        issuer.key_id = f"made-up-{number}"
        with pytest.raises(Rejected):
            await user_of(token(issuer, "ann"), [connect(issuer)], keys)
    assert len(asked) == 1


async def test_a_short_key_verifies_nothing(issuer: oidc.Issuer, keys: ProviderKeys) -> None:
    issuer.key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    issuer.documents["/keys"] = {"keys": [oidc._jwk(issuer.key, issuer.key_id)]}
    with pytest.raises(Rejected, match="gives no keys"):
        await user_of(token(issuer, "ann"), [connect(issuer)], keys)


@pytest.mark.parametrize("groups", [1, {"a": 1}, ["a", 1]])
async def test_groups_of_another_type_are_rejected(issuer: oidc.Issuer, keys: ProviderKeys, groups: object) -> None:
    with pytest.raises(Rejected, match="neither a text nor a list"):
        await user_of(token(issuer, "ann", groups=groups), [connect(issuer)], keys)

"""Connections to a cloud with tokens of WorkloadIdentities: one for each Secret, also after a renewal of its token."""

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from temporalio.exceptions import ApplicationError

from activities.provider_local.cloud import Clouds, cloud_errors, endpoint_in
from kube.errors import Forbidden, Unauthorized

CONFIG = {
    "apiVersion": "local.provider.extensions.gardener.cloud/v1alpha1",
    "kind": "WorkloadIdentityConfig",
    "server": "https://cloud.example.org",
    "certificateAuthorityData": base64.b64encode(b"PEM").decode(),
}


def secret(token: str = "one", **changes: Any) -> dict[str, str]:
    texts = {"config": json.dumps({**CONFIG, **changes}), "token": token}
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


@pytest.fixture
async def clouds() -> AsyncIterator[Clouds]:
    made = Clouds()
    yield made
    await made.close()


def test_the_address_comes_from_the_configuration_and_the_token_from_the_secret() -> None:
    found = endpoint_in(secret(server="https://cloud.example.org:6443/"), "a/b")
    assert (found.server, found.ca, found.token) == ("https://cloud.example.org:6443", "PEM", "one")


async def test_a_renewed_token_is_sent_by_the_same_client(clouds: Clouds) -> None:
    first = await clouds.connect(secret("one"), "shoot--a/cloudprovider")
    second = await clouds.connect(secret("two"), "shoot--a/cloudprovider")
    assert second is first
    assert second.endpoint.token == "two"


async def test_two_shoots_with_one_cloud_never_share_a_token(clouds: Clouds) -> None:
    first = await clouds.connect(secret("one"), "shoot--a/cloudprovider")
    second = await clouds.connect(secret("two"), "shoot--b/cloudprovider")
    assert second is not first
    assert (first.endpoint.token, second.endpoint.token) == ("one", "two")


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (secret(""), "ERR_INFRA_UNAUTHENTICATED", "has no token of its WorkloadIdentity yet"),
        (secret(server="http://cloud.example.org"), "ERR_CONFIGURATION_PROBLEM", "server"),
        (secret(server="https://user:password@cloud"), "ERR_CONFIGURATION_PROBLEM", "server"),
        (secret(kind="Other"), "ERR_CONFIGURATION_PROBLEM", "kind"),
        (secret(certificateAuthorityData="#"), "ERR_CONFIGURATION_PROBLEM", "certificateAuthorityData is not base64"),
        ({"config": "bm8ganNvbg=="}, "ERR_CONFIGURATION_PROBLEM", "config is not JSON"),
        ({"config": "#"}, "ERR_CONFIGURATION_PROBLEM", "config is not JSON"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(data: dict[str, str], code: str, reason: str) -> None:
    with pytest.raises(ApplicationError, match=reason) as refused:
        endpoint_in(data, "shoot--a/cloudprovider")
    assert (refused.value.type, refused.value.non_retryable) == (code, True)
    assert "shoot--a/cloudprovider" in str(refused.value)
    assert "password" not in str(refused.value)


LATER = (datetime.now(UTC) + timedelta(hours=1)).timestamp()


def token(**claims: Any) -> str:
    return jwt.encode(claims, "k" * 32, "HS256")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "check the Secret behind the Shoot's binding"),
        (secret("x"), "which is no token of a WorkloadIdentity"),
        (secret(token(sub="s")), "which is no token of a WorkloadIdentity"),
        (secret(token(exp=1)), "the token has expired at 1970-01-01 00:00:01 UTC"),
        (
            secret(
                token(iss="https://i", sub="s", aud=["a"], exp=(datetime.now(UTC) + timedelta(hours=1)).timestamp())
            ),
            r"it must trust issuer https://i, audience \['a'\] and subject s",
        ),
    ],
)
def test_a_refused_credential_is_explained(data: dict[str, str], reason: str) -> None:
    with pytest.raises(ApplicationError, match=reason) as refused, cloud_errors("asking", data):
        raise Unauthorized(401, "Unauthorized", "asking")
    assert refused.value.type == "ERR_INFRA_UNAUTHENTICATED"


def test_an_error_of_the_cloud_names_what_the_cloud_has_refused() -> None:
    message = 'User "tenant" cannot create resource "pods" in namespace "infra"'
    refusal = Forbidden(403, "Forbidden", "applying Pod infra/machine-1", message)

    with pytest.raises(ApplicationError) as error, cloud_errors("creating machine-1"):
        raise refusal

    assert error.value.message == (
        "creating machine-1: the credentials may not do this in the cloud: applying Pod infra/machine-1: API server "
        f"answered 403 Forbidden ({message})"
    )

"""The subresource server issues tokens of WorkloadIdentities; a real API server authenticates and authorizes."""

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest

from api import resources
from api.access import rule
from tests.garden_api_server import NAMESPACE, OPERATOR, Garden
from tests.workload_identities import (
    AUDIENCE,
    GARDENLET,
    ISSUER,
    PATH,
    SEEDS,
    a_key,
    identity_in,
    rotate,
    shoot_in_seed,
    with_keys,
)
from workers.lib.runtime import log_context

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]


@pytest.fixture
async def identity(garden: Garden) -> Any:
    await with_keys(garden.admin)
    return await identity_in(garden.admin)


def claims(token: str, key: Any) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(
        token, jwt.PyJWK(key.public).key, algorithms=["RS256"], audience=AUDIENCE, issuer=ISSUER
    )
    return found


async def test_a_token_has_the_claims_of_its_workload_identity(garden: Garden, identity: Any) -> None:
    answer = await garden.ask(OPERATOR, path=PATH, body='{"spec":{"expirationSeconds":7200}}')

    assert answer.status == 201, answer.content
    assert (answer.content["apiVersion"], answer.content["kind"]) == (
        "security.gardener.cloud/v1alpha1",
        "TokenRequest",
    )
    assert answer.headers["Cache-Control"] == "no-store"
    found = claims(answer.content["status"]["token"], a_key())
    metadata = identity["metadata"]
    assert found["sub"] == f"gardener.cloud:workloadidentity:garden-local:cloud:{metadata['uid']}"
    assert found["gardener.cloud"] == {
        "workloadIdentity": {"name": "cloud", "namespace": NAMESPACE, "uid": metadata["uid"]}
    }
    assert found["exp"] - found["iat"] == 7200
    assert found["nbf"] == found["iat"]
    expires = datetime.fromisoformat(answer.content["status"]["expirationTimestamp"])
    assert expires.timestamp() == pytest.approx(found["exp"], abs=1)
    again = await garden.ask(OPERATOR, path=PATH)
    assert claims(again.content["status"]["token"], a_key())["jti"] != found["jti"]


@pytest.mark.parametrize(("asked", "granted"), [(None, 3600), (600, 3600), (172800, 172800), (2**32, 172800)])
async def test_the_lifetime_of_a_token_is_an_hour_to_two_days(
    garden: Garden, identity: Any, asked: int | None, granted: int
) -> None:
    answer = await garden.ask(OPERATOR, path=PATH, body={"spec": {"expirationSeconds": asked}})

    assert answer.content["spec"] == {"expirationSeconds": granted}
    left = datetime.fromisoformat(answer.content["status"]["expirationTimestamp"]) - datetime.now(UTC)
    assert timedelta(seconds=granted - 30) < left <= timedelta(seconds=granted)


@pytest.mark.parametrize(("seconds", "said"), [(599, "less than 10 minutes"), (2**32 + 1, "larger than 2^32")])
async def test_a_lifetime_out_of_bounds_is_invalid(garden: Garden, identity: Any, seconds: int, said: str) -> None:
    answer = await garden.ask(OPERATOR, path=PATH, body={"spec": {"expirationSeconds": seconds}})

    assert answer.status == 422
    assert answer.content["details"]["causes"][0]["field"] == "spec.expirationSeconds"
    assert said in answer.message


async def test_the_token_of_a_seed_names_the_shoot_its_project_and_the_seed(garden: Garden, identity: Any) -> None:
    objects = await shoot_in_seed(garden.admin)

    answer = await garden.ask(GARDENLET, path=PATH, headers=[SEEDS], body={"spec": {"contextObject": objects.context}})

    assert answer.status == 201, answer.content
    found = claims(answer.content["status"]["token"], a_key())["gardener.cloud"]
    assert found["shoot"] == {"name": "demo", "namespace": NAMESPACE, "uid": objects.context["uid"]}
    assert found["seed"] == {"name": "seed-1", "uid": objects.seed["metadata"]["uid"]}
    assert found["project"] == {"name": "local", "uid": objects.project["metadata"]["uid"]}
    assert found["workloadIdentity"]["uid"] == identity["metadata"]["uid"]


async def test_a_new_key_signs_when_its_time_has_come(garden: Garden, identity: Any) -> None:
    await with_keys(garden.admin, rotate(datetime.now(UTC) + timedelta(hours=1)))
    before = await garden.ask(OPERATOR, path=PATH)
    await with_keys(garden.admin, rotate(datetime.now(UTC) - timedelta(seconds=1)))
    after = await garden.ask(OPERATOR, path=PATH)

    first, second = (jwt.get_unverified_header(each.content["status"]["token"]) for each in (before, after))
    assert first == {"alg": "RS256", "kid": a_key().id, "typ": "JWT"}
    assert second["kid"] == a_key(1).id


async def test_without_an_issuer_the_answer_says_what_is_missing(garden: Garden, identity: Any) -> None:
    await garden.admin.delete(resources.SECRET, "workload-identity-issuer", "garden")

    answer = await garden.ask(OPERATOR, path=PATH)

    assert answer.status == 503
    assert "no issuer of tokens for WorkloadIdentities yet: an operator must name its host" in answer.message


async def test_keys_that_cannot_be_read_are_not_quoted(garden: Garden, identity: Any) -> None:
    patch = {"data": {"keys.json": "U0VOVElORUw="}}
    await garden.admin.patch(resources.SECRET, "workload-identity-issuer", "garden", patch)

    answer = await garden.ask(OPERATOR, path=PATH)

    assert answer.status == 500
    assert "Secret garden/workload-identity-issuer: key keys.json of the Secret cannot be read" in answer.message
    assert "SENTINEL" not in json.dumps(answer.content)


async def test_a_dry_run_checks_all_and_makes_no_token(garden: Garden, identity: Any) -> None:
    answer = await garden.ask(OPERATOR, path=PATH, query="?dryRun=All")

    assert answer.status == 201
    assert "status" not in answer.content


async def test_an_unknown_workload_identity_is_not_found(garden: Garden, identity: Any) -> None:
    answer = await garden.ask(OPERATOR, path=PATH.replace("/cloud/", "/gone/"))

    assert answer.status == 404
    assert answer.message == 'NotFound: workloadidentities.security.gardener.cloud "gone" not found'


async def test_a_context_of_another_user_is_ignored_with_a_warning(garden: Garden, identity: Any) -> None:
    objects = await shoot_in_seed(garden.admin)

    answer = await garden.ask(OPERATOR, path=PATH, body={"spec": {"contextObject": objects.context}})

    assert "spec.contextObject is ignored" in answer.headers["Warning"]
    assert set(claims(answer.content["status"]["token"], a_key())["gardener.cloud"]) == {"workloadIdentity"}


async def test_the_log_names_the_token_and_does_not_hold_it(
    garden: Garden, identity: Any, caplog: pytest.LogCaptureFixture
) -> None:
    contexts = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            contexts.append(log_context.get({}))

    handler = Keep()
    logging.getLogger("workers.subresources.tokens").addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            answer = await garden.ask(OPERATOR, path=PATH)
    finally:
        logging.getLogger("workers.subresources.tokens").removeHandler(handler)

    token = answer.content["status"]["token"]
    [facts] = [each for each in contexts if each.get("audit")]
    assert facts["audit"] == "workload identity token issued"
    assert (facts["user"], facts["jti"]) == (OPERATOR, claims(token, a_key())["jti"])
    for part in token.split(".")[1:]:
        assert part not in caplog.text + json.dumps(facts)


async def test_a_role_for_the_subresource_lets_a_user_get_tokens(garden: Garden, identity: Any) -> None:
    """Members of a Project have no such right; an operator may grant it by a role."""
    refused = await garden.ask("stranger", path=PATH)
    group = "rbac.authorization.k8s.io"
    metadata = {"name": "tokens", "namespace": NAMESPACE}
    rules = [rule(["security.gardener.cloud"], ["workloadidentities/token"], ["create"]) | {"resourceNames": ["cloud"]}]
    subject = {"apiGroup": group, "kind": "User", "name": "stranger"}
    reference = {"apiGroup": group, "kind": "Role", "name": "tokens"}
    for each in (
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": reference}
        | {"subjects": [subject]},
    ):
        await garden.admin.apply(each, manager="test")

    granted = await garden.ask("stranger", path=PATH)
    await garden.admin.delete(resources.ROLE_BINDING, "tokens", NAMESPACE)

    assert (refused.status, granted.status) == (403, 201), granted.content
    assert 'cannot create resource "workloadidentities/token"' in refused.message

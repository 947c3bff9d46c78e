"""The issuers that the garden of a landscape trusts: the file of its API server, and a real one that reads it."""

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.errors import Unauthorized
from landscape import logins
from landscape.errors import LandscapeError
from landscape.plan import Plan
from tests import api_servers, oidc
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until

PAGE = Path(__file__).parents[3] / "docs/operations/install.md"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan("mine", 1, "1.37.1", state_home=tmp_path)


def shown() -> dict[str, Any]:
    """The configuration that the page shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    (found,) = (block for block in blocks if "kind: AuthenticationConfiguration" in block)
    return dict(yaml.safe_load(found))


def configured(issuer: oidc.Issuer) -> str:
    """The configuration of the page with another issuer."""
    config = shown()
    (trusted,) = config["jwt"]
    trusted["issuer"] |= {"url": issuer.url, "certificateAuthority": issuer.ca_file.read_text()}
    return yaml.safe_dump(config)


def written(plan: Plan) -> Any:
    return json.loads(Path(logins.api_server_flags(plan)["authentication-config"]).read_text())


def test_a_garden_trusts_no_issuer_until_one_is_named_and_then_keeps_it(plan: Plan) -> None:
    assert written(plan)["jwt"] == []

    logins.trust(plan, yaml.safe_dump(shown()))
    (trusted,) = written(plan)["jwt"]
    assert trusted["issuer"] == shown()["jwt"][0]["issuer"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"jwt": [{"issuer": {"url": "http://a.example.org"}}]}, "must be an https URL"),
        ({"anonymous": {"enabled": True}}, "anonymous: Forbidden: the API server reads it only when it starts"),
        ({"jwt": [{"claimValidationRules": [{"expression": "claims.("}]}]}, "claimValidationRules[0].expression"),
        ({"jwts": []}, "jwts: Forbidden: is not a field of this file"),
        ({"kind": "Secret"}, "kind: Forbidden"),
    ],
)
def test_a_configuration_that_the_api_server_would_refuse_is_not_written(
    plan: Plan, content: dict[str, Any], said: str
) -> None:
    before = written(plan)
    with pytest.raises(LandscapeError, match=re.escape(said)):
        logins.trust(plan, yaml.safe_dump({**shown(), **content}))
    assert written(plan) == before


@contextlib.contextmanager
def garden(plan: Plan, directory: Path) -> Iterator[ApiServer]:
    """The API server of the landscape's garden, as far as logins are concerned."""
    flags = [f"--{name}={value}" for name, value in logins.api_server_flags(plan).items()]
    server = ApiServer(directory, {}, flags=flags)
    plan.kubeconfig("garden").parent.mkdir(parents=True)
    plan.kubeconfig("garden").write_text(json.dumps(server.kubeconfig(ADMIN)))
    with server.running():
        yield server


async def user(server: ApiServer, token: str) -> tuple[str, list[str]] | None:
    """Name and groups that the API server sees in a token; None if it refuses the token."""
    async with server.client(token) as client:
        try:
            found = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=REVIEW)
        except Unauthorized:
            return None
    return found["status"]["userInfo"]["username"], found["status"]["userInfo"]["groups"]


async def trusts(plan: Plan, server: ApiServer, configuration: str) -> None:
    """Configure issuers, and return once the API server trusts them."""
    async with server.client() as admin:
        await api_servers.ready(admin)
    logins.trust(plan, configuration)
    await until(functools.partial(logins.are_trusted, plan), 90)


@pytest.mark.binaries
@pytest.mark.usefixtures("kubernetes_is_built")
@pytest.mark.timeout(240, func_only=True)
async def test_people_of_a_new_issuer_log_in_without_a_restart(plan: Plan, tmp_path: Path) -> None:
    (audience,) = shown()["jwt"][0]["issuer"]["audiences"]
    with oidc.issuer(tmp_path) as issuer, garden(plan, tmp_path) as server:
        token = issuer.token("7", "developers", aud=audience, email="bob@example.org")
        async with server.client() as admin:
            await api_servers.ready(admin)
        assert await logins.are_trusted(plan)
        assert await user(server, token) is None

        await trusts(plan, server, configured(issuer))

        assert await user(server, token) == ("oidc:bob@example.org", ["oidc:developers", "system:authenticated"])
        assert await user(server, issuer.token("7", aud="another", email="bob@example.org")) is None

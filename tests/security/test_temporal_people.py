"""People named by a token, in a Temporal cluster: a real server, an issuer of tokens, and a gateway's certificate."""

import asyncio
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from temporalio.client import WorkflowExecutionStatus
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from api import constants
from api.contracts.operations import GARDEN_QUEUE
from api.contracts.repair import Action, Repair
from landscape.pki import KeyPair
from tests.oidc import Issuer, issuer
from tests.security.test_temporal_authorization import Flow
from tests.temporal_methods import check_refused, not_refused
from tests.temporal_server import Cluster, cluster, start_refused
from tests.unit.kube.waiting import until
from workers.lib.callers import Callers

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with issuer(tmp_path_factory.mktemp("issuer")) as running:
        yield running


@pytest.fixture(scope="module")
def temporal(tokens: Issuer) -> Iterator[Cluster]:
    """A server that has read the issuer's keys."""
    with cluster(f"--oidc-config={tokens.config_file}") as running:
        asyncio.run(until(lambda: _knows(running, tokens.token("anyone", "everyone")), 30))
        yield running


async def _knows(temporal: Cluster, token: str) -> bool:
    try:
        await temporal.by_token(token)
    except RuntimeError:
        return False
    return True


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_people_with_a_token_do_what_their_groups_may_and_repair_under_the_name_in_it(
    temporal: Cluster, tokens: Issuer
) -> None:
    """A viewer changes nothing; a repairer repairs under the token's subject, and ends nothing."""
    viewer = await temporal.by_token(tokens.token("alice", "everyone"))
    repairer = await temporal.by_token(tokens.token("bob", "everyone", "on-call"))
    admin = await temporal.by_token(tokens.token("carol", "platform"))
    garden = await temporal.process()
    spoken = Repair(action=Action.PAUSE, reason="a flood", by="mallory")
    async with Worker(
        garden,
        task_queue=GARDEN_QUEUE,
        workflows=[Flow],
        interceptors=[Callers(required=True)],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        flow = await garden.start_workflow(Flow.run, "", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        seen = viewer.get_workflow_handle(flow.id)
        assert (await seen.describe()).status is WorkflowExecutionStatus.RUNNING
        await check_refused(
            seen.execute_update(Flow.repair, spoken),
            seen.terminate(),
            repairer.get_workflow_handle(flow.id).terminate(),
            repairer.start_workflow("Flow", "", id="shoot/y", task_queue=GARDEN_QUEUE),
        )
        assert await repairer.get_workflow_handle(flow.id).execute_update(Flow.repair, spoken) == "bob"
        assert await flow.result() == "bob"

        other = await garden.start_workflow(Flow.run, "", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        await admin.get_workflow_handle(other.id).terminate()


def _foreign() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _past() -> int:
    return int((datetime.now(UTC) - timedelta(minutes=1)).timestamp())


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda by: by.token("m", "platform", iss="https://issuer.example.org"), "the token is of another issuer"),
        (lambda by: by.token("m", "platform", aud="kubernetes"), "the token is for another audience"),
        (lambda by: by.token("m", "platform", exp=_past()), "the token has expired"),
        (lambda by: by.unsigned_token("m", "platform"), "the token is no JSON Web Token that is signed by"),
        (lambda by: by.token_by_public_key("m", "platform"), "the token is no JSON Web Token that is signed by"),
        (lambda by: by.token("m", "platform", key=_foreign()), "the token is not signed by a key of the issuer"),
        (lambda by: by.token("m", "guests"), "no group in claim"),
        (lambda by: by.token("gardener.cloud:system:seed:a", "platform"), "has a name of machines"),
        (lambda by: None, "a gateway may do nothing without the token of a person"),
    ],
    ids=[
        "another issuer",
        "another audience",
        "expired",
        "not signed",
        "signed by the public key",
        "signed by another key",
        "unknown group",
        "name of a gardenlet",
        "no token",
    ],
)
async def test_a_token_that_the_issuer_did_not_give_for_temporal_is_worth_nothing(
    temporal: Cluster, tokens: Issuer, forge: Callable[[Issuer], str | None], reason: str
) -> None:
    """The attacker holds the certificate of a gateway, which alone may do nothing."""
    token = forge(tokens)

    async def told() -> bool:
        """Refused again, since the log leaves refusals out where there are many at once."""
        assert await asyncio.to_thread(http_status, temporal, temporal.authority.for_gateway("ui"), token) == 403
        return any(reason in line for line in temporal.refusals())

    await until(told)
    if token is not None:
        with pytest.raises(RuntimeError, match="PermissionDenied"):
            await temporal.by_token(token)
        assert token.split(".")[1] not in temporal.log.read_text(errors="replace")


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_gardenlet_with_the_token_of_an_administrator_may_nothing_at_all(
    temporal: Cluster, tokens: Issuer
) -> None:
    """A stolen token does not widen a gardenlet's rights, nor those of a process or of another person."""
    admin = tokens.token("carol", "platform")
    garden, attacker = await temporal.process(), await temporal.gardenlet("a")
    flow = await garden.start_workflow("Flow", "", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
    attacker.service_client.update_api_key(admin)
    assert await not_refused(attacker, flow, "seed-a", b"token") == {}
    assert (await flow.describe()).status is WorkflowExecutionStatus.RUNNING
    await flow.terminate()

    for certificate in (
        temporal.authority.for_gardenlet("a"),
        temporal.authority.for_extension("provider-local", "a"),
        temporal.authority.for_process("controller-manager"),
        temporal.authority.for_person("alice", constants.TEMPORAL_VIEWERS),
    ):
        assert await asyncio.to_thread(http_status, temporal, certificate, admin) == 403
    assert any("a token counts with the certificate of a gateway alone" in line for line in temporal.refusals())


async def test_the_http_api_asks_for_the_token_too(temporal: Cluster, tokens: Issuer) -> None:
    gateway = temporal.authority.for_gateway("ui")
    assert await asyncio.to_thread(http_status, temporal, gateway, tokens.token("alice", "everyone")) == 200


def http_status(temporal: Cluster, pair: KeyPair, token: str | None) -> int:
    """Status of the answer of Temporal's HTTP API to a client that lists workflows."""
    context = ssl.create_default_context(cafile=str(temporal.authority.of_servers))
    context.load_cert_chain(pair.certificate, pair.key)
    request = urllib.request.Request(f"https://{temporal.http_address}/api/v1/namespaces/default/workflows")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("issuer: {url: 'http://issuer.example.org', audience: temporal}\nroles: {look: [all]}", "must be https://"),
        ("issuer: {url: 'https://issuer.example.org'}\nroles: {look: [all]}", "issuer.audience must be given"),
        ("issuer: {url: 'https://issuer.example.org', audience: temporal}", "roles must name groups"),
        ("algorithms: [none]", "field algorithms not found"),
    ],
    ids=["plain text", "no audience", "no roles", "unknown field"],
)
def test_a_server_that_would_take_tokens_of_others_does_not_start(tmp_path: Path, content: str, said: str) -> None:
    """A configuration that leaves something open is refused, and named."""
    file, keys = tmp_path / "oidc.yaml", tmp_path / "keys"
    file.write_text(content)
    keys.write_text(f"first {'A' * 43}=\n")
    options = f"--oidc-config={file}", f"--task-token-keys={keys}"
    assert said in start_refused(tmp_path, lambda _: None, *options)

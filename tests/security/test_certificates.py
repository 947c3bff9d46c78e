"""Certificates that a compromised seed, node or bootstrap token asks for. Both approvers deny them."""

import asyncio
import base64
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, ExtendedKeyUsageOID, NameOID

from activities.components.operating_system_config import rbac
from kube.cache import Caches
from tests.security.signing import CLIENT_SIGNER, KUBELET_SIGNER, SERVING_SIGNER, cn, manifest, o, pem
from tests.unit.garden_controllers.conftest import Garden
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.controller_manager.seed_certificates import run_seed_certificate_controller
from workers.resource_manager.csr_approver import CSRApprover

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SEEDS_PATH = "/apis/core.gardener.cloud/v1beta1/seeds"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
MACHINES = "/apis/machine.sapcloud.io/v1alpha1/machines"
NODES = "/api/v1/nodes"
NAMESPACE = "shoot--dev--one"

SEEDS = "gardener.cloud:system:seeds"
SEED_A, SEED_B = "gardener.cloud:system:seed:seed-a", "gardener.cloud:system:seed:seed-b"
TOKEN = "system:bootstrap:abcdef"
OF_SEED_A = ("system:bootstrappers", "system:bootstrappers:gardener-seed:seed-a", "system:authenticated")

AGENTS = "gardener.cloud:node-agents"
AGENT = "gardener.cloud:node-agent:machine:machine-1"
OTHER_AGENT = "gardener.cloud:node-agent:machine:machine-2"
NODE_USER = "system:node:machine-1"
OF_MACHINE_1 = ["system:bootstrappers", "system:bootstrappers:machine:machine-1"]
ADDRESSES = (x509.DNSName("machine-1"), x509.IPAddress(ipaddress.ip_address("10.0.0.1")))

Decide = Callable[..., Any]


def verdict(server: ApiServer, name: str) -> list[str]:
    conditions = ((server.find(CSRS, name) or {}).get("status") or {}).get("conditions") or ()
    return [condition["type"] for condition in conditions]


def message(server: ApiServer, name: str) -> str:
    [condition] = (server.find(CSRS, name) or {})["status"]["conditions"]
    return str(condition["message"])


@asynccontextmanager
async def deciding(server: ApiServer, work: Any) -> AsyncIterator[Decide]:
    """A running approver, and a function that waits for its verdict on a request."""

    async def decide(request: bytes, **rest: Any) -> str:
        server.put(CSRS, manifest("asked", request, **rest))
        await until(lambda: verdict(server, "asked"))
        [decision] = verdict(server, "asked")
        return str(decision)

    task = asyncio.create_task(work)
    try:
        yield decide
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """An API server whose roles let each user ask for a gardenlet's certificate."""
    async with ApiServer().running() as server:
        allowed = {"status": {"allowed": True}}
        server.answer = lambda asked: web.json_response(allowed, status=201) if asked.path == REVIEWS else None
        yield server


@pytest.fixture
async def garden(api: ApiServer) -> AsyncIterator[Decide]:
    """The garden with its approver."""
    garden = Garden(api)
    async with deciding(api, run_seed_certificate_controller(garden.client, garden.caches)) as decide:
        yield decide
    await garden.caches.close()
    await garden.client.close()


@pytest.fixture
async def shoot(api: ApiServer) -> AsyncIterator[Decide]:
    """A Shoot with two Machines, of which the first one's Node has joined, and its approver."""
    addresses = [{"type": "Hostname", "address": "machine-1"}, {"type": "InternalIP", "address": "10.0.0.1"}]
    labels = {"node": "machine-1"}
    api.put(MACHINES, {"kind": "Machine", "metadata": {"name": "machine-1", "namespace": NAMESPACE, "labels": labels}})
    api.put(MACHINES, {"kind": "Machine", "metadata": {"name": "machine-2", "namespace": NAMESPACE}})
    api.put(NODES, {"kind": "Node", "metadata": {"name": "machine-1"}, "status": {"addresses": addresses}})
    async with api.client() as client:
        caches = Caches(client)
        approver = CSRApprover(source=client, target=client, target_caches=caches, machine_namespace=NAMESPACE)
        async with deciding(api, approver.run()) as decide:
            yield decide
        await caches.close()


def wrong_subjects(own: str, group: str, foreign: str, admins: str) -> list[Any]:
    """Subjects of which Go's and Python's parsers could see different names, or that name more than one identity."""
    unit = [(NameOID.ORGANIZATIONAL_UNIT_NAME, "unit")]
    wrong = {
        "two-names-own-first": (o(group), cn(own), cn(foreign)),
        "two-names-own-last": (o(group), cn(foreign), cn(own)),
        "two-names-in-one-part": (o(group), [*cn(own), *cn(foreign)]),
        "name-and-group-in-one-part": ([*o(group), *cn(own)],),
        "second-group": (o(group), o(admins), cn(own)),
        "second-group-first": (o(admins), o(group), cn(own)),
        "other-group": (o(admins), cn(own)),
        "no-group": (cn(own),),
        "unit": (o(group), unit, cn(own)),
        "uid": (o(group), [(NameOID.USER_ID, "1")], cn(own)),
        "nul-at-the-end": (o(group), cn(f"{own}\0")),
    }
    return [pytest.param(subject, id=name) for name, subject in wrong.items()]


# Garden


@pytest.mark.attack(actor="T3", asset="A1", finding=1)
@pytest.mark.parametrize("subject", wrong_subjects(SEED_A, SEEDS, SEED_B, "gardener.cloud:system:operators"))
async def test_a_gardenlet_asks_for_a_certificate_of_another_identity_and_is_denied(
    garden: Decide, subject: Any
) -> None:
    """The certificate would carry the last of two common names, and open all that the other seed may read."""
    assert await garden(pem(*subject), user=SEED_A, groups=[SEEDS]) == "Denied"


@pytest.mark.attack(actor="T3", asset="A1", finding=1)
@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(pem(o(SEEDS), cn(SEED_A), names=[x509.DNSName("kubernetes")]), id="dns"),
        pytest.param(pem(o(SEEDS), cn(SEED_A), names=[x509.RFC822Name("a@example.org")]), id="email"),
        pytest.param(pem(o(SEEDS), cn(SEED_A), names=[x509.UniformResourceIdentifier("spiffe://b")]), id="uri"),
        pytest.param(pem(o(SEEDS), cn(SEED_A), extensions=[x509.BasicConstraints(True, None)]), id="authority"),
        pytest.param(
            pem(o(SEEDS), cn(SEED_A), extensions=[x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])]),
            id="usage",
        ),
        pytest.param(pem(o(SEEDS), cn(SEED_A), attributes=[(AttributeOID.CHALLENGE_PASSWORD, "x")]), id="attribute"),
        pytest.param(pem(o(SEEDS), cn(SEED_A)) + pem(o(SEEDS), cn(SEED_B)), id="two-requests"),
    ],
)
async def test_a_gardenlet_asks_for_names_and_extensions_and_is_denied(garden: Decide, request_: bytes) -> None:
    """A client certificate of a gardenlet holds its subject and nothing else."""
    assert await garden(request_, user=SEED_A, groups=[SEEDS]) == "Denied"


@pytest.mark.attack(actor="T3", asset="A1", finding=1)
async def test_a_gardenlet_asks_with_a_signature_of_another_key_and_is_denied(garden: Decide) -> None:
    """The requester has to prove that it holds the key."""
    der = bytearray(x509.load_pem_x509_csr(pem(o(SEEDS), cn(SEED_A))).public_bytes(Encoding.DER))
    der[-1] ^= 1
    broken = b"-----BEGIN CERTIFICATE REQUEST-----\n%s-----END CERTIFICATE REQUEST-----\n" % base64.encodebytes(der)
    assert await garden(broken, user=SEED_A, groups=[SEEDS]) == "Denied"


@pytest.mark.attack(actor="T3", asset="A1", finding=1)
@pytest.mark.parametrize("request_", [b"", b"not a request", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
async def test_a_request_that_cannot_be_read_is_denied_once_and_not_read_again(
    garden: Decide, api: ApiServer, request_: bytes
) -> None:
    """An approver that fails and retries would work for the attacker without end."""
    assert await garden(request_, user=SEED_A, groups=[SEEDS]) == "Denied"
    assert "cannot be read" in message(api, "asked")


@pytest.mark.attack(actor="T3", asset="A1", finding=1)
async def test_a_gardenlet_asks_for_the_certificate_of_an_operator_and_is_denied(garden: Decide) -> None:
    """A gardenlet has no business with any client certificate but its own."""
    request = pem(o("gardener.cloud:system:operators"), cn("gardener.cloud:system:controller-manager"))
    assert await garden(request, user=SEED_A, groups=[SEEDS]) == "Denied"


@pytest.mark.attack(actor="T3", asset="A1", finding=13)
@pytest.mark.parametrize("groups", [OF_SEED_A, ("system:bootstrappers",)], ids=["of-another-seed", "of-no-seed"])
async def test_a_bootstrap_token_of_one_seed_asks_for_the_certificate_of_another_and_is_denied(
    garden: Decide, api: ApiServer, groups: tuple[str, ...]
) -> None:
    """A token found in one seed would otherwise make its finder any seed."""
    assert await garden(pem(o(SEEDS), cn(SEED_B)), user=TOKEN, groups=groups) == "Denied"
    assert "system:bootstrappers:gardener-seed:seed-b" in message(api, "asked")


def living(until_: timedelta, **metadata: Any) -> dict[str, Any]:
    end = (datetime.now(UTC) + until_).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "Seed",
        "metadata": {"name": "seed-a", **metadata},
        "status": {"clientCertificateExpirationTimestamp": end},
    }


@pytest.mark.attack(actor="T3", asset="A1", finding=13)
async def test_a_bootstrap_token_asks_for_the_certificate_of_a_living_seed_and_is_denied(
    garden: Decide, api: ApiServer
) -> None:
    """A gardenlet that holds a certificate renews it by that certificate."""
    api.put(SEEDS_PATH, living(timedelta(hours=1)))
    assert await garden(pem(o(SEEDS), cn(SEED_A)), user=TOKEN, groups=OF_SEED_A) == "Denied"
    assert "seed.gardener.cloud/bootstrap-token-id" in message(api, "asked")


@pytest.mark.attack(actor="T3", asset="A1", finding=13)
async def test_an_old_token_asks_while_the_operator_lets_another_one_bootstrap_a_living_seed_and_is_denied(
    garden: Decide, api: ApiServer
) -> None:
    """The annotation names the token that the operator has just created."""
    annotations = {"seed.gardener.cloud/bootstrap-token-id": "newone"}
    api.put(SEEDS_PATH, living(timedelta(hours=1), annotations=annotations))
    assert await garden(pem(o(SEEDS), cn(SEED_A)), user=TOKEN, groups=OF_SEED_A) == "Denied"


@pytest.mark.parametrize(
    "seed",
    [
        None,
        living(timedelta(hours=-1)),
        living(timedelta(hours=1), annotations={"seed.gardener.cloud/bootstrap-token-id": "abcdef"}),
        {"kind": "Seed", "metadata": {"name": "seed-a"}},
    ],
    ids=["new", "expired", "annotated", "without-a-certificate"],
)
async def test_a_bootstrap_token_makes_the_gardenlet_of_its_own_seed(
    garden: Decide, api: ApiServer, seed: dict[str, Any] | None
) -> None:
    """A new seed, and one that has lost its certificate, still come in."""
    if seed is not None:
        api.put(SEEDS_PATH, seed)
    assert await garden(pem(o(SEEDS), cn(SEED_A)), user=TOKEN, groups=OF_SEED_A) == "Approved"


@pytest.mark.parametrize("subject", [(o(SEEDS), cn(SEED_A)), (cn(SEED_A), o(SEEDS))])
async def test_a_gardenlet_renews_its_own_certificate(garden: Decide, subject: Any) -> None:
    """Both orders of the two names are well-formed."""
    usages = ["digital signature", "key encipherment", "client auth"]
    assert await garden(pem(*subject), user=SEED_A, groups=[SEEDS], usages=usages) == "Approved"


# Shoot


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
@pytest.mark.parametrize(
    "subject", wrong_subjects(AGENT, AGENTS, "system:kube-controller-manager", "gardener.cloud:system:admins")
)
async def test_a_node_asks_for_a_certificate_of_another_identity_and_is_denied(shoot: Decide, subject: Any) -> None:
    """An agent's certificate with the organization of administrators is cluster-admin of the Shoot."""
    assert await shoot(pem(*subject), user=AGENT, groups=[AGENTS]) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
async def test_a_machines_bootstrap_token_asks_for_an_administrators_certificate_and_is_denied(shoot: Decide) -> None:
    """The token lies in the user data of the machine before its Node has joined."""
    request = pem(o("gardener.cloud:system:admins"), cn(OTHER_AGENT))
    assert await shoot(request, user=TOKEN, groups=["system:bootstrappers"]) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=13)
@pytest.mark.parametrize(
    "user",
    [TOKEN, NODE_USER],
    ids=["token", "kubelet"],
)
@pytest.mark.parametrize(
    "groups",
    [["system:bootstrappers"], ["system:bootstrappers", "system:bootstrappers:machine:machine-1"]],
    ids=["for-no-machine", "for-another-machine"],
)
async def test_a_machine_asks_for_the_certificate_of_a_machine_that_has_not_joined_and_is_denied(
    shoot: Decide, user: str, groups: list[str]
) -> None:
    """Each pod that can read a machine's user data finds its token there."""
    assert await shoot(pem(o(AGENTS), cn(OTHER_AGENT)), user=user, groups=groups) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=13)
@pytest.mark.parametrize(
    ("subject", "groups"),
    [
        ((o("system:nodes"), cn("system:node:machine-2")), OF_MACHINE_1),
        ((o("system:nodes"), cn("system:node:machine-2")), ["system:bootstrappers"]),
        ((o("system:nodes"), cn("system:node:machine-1"), cn("system:node:machine-2")), OF_MACHINE_1),
        ((o("system:masters"), cn("system:node:machine-1")), OF_MACHINE_1),
        ((o("system:nodes"), cn("system:kube-scheduler")), OF_MACHINE_1),
    ],
)
async def test_a_machines_bootstrap_token_asks_for_the_certificate_of_another_kubelet_and_is_denied(
    shoot: Decide, subject: Any, groups: list[str]
) -> None:
    """A kubelet reads the Secrets of all pods on its Node."""
    assert await shoot(pem(*subject), user=TOKEN, groups=groups, signer=KUBELET_SIGNER) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=13)
def test_a_bootstrap_token_asks_the_controller_manager_for_a_kubelets_certificate_and_has_no_right() -> None:
    """Its approver does not know Machines: with that right, each token is good for each Node."""
    groups = {
        subject["name"]
        for each in rbac()
        if each.get("roleRef", {}).get("name") == "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
        for subject in each["subjects"]
    }
    assert groups == set()


@pytest.mark.parametrize(
    ("subject", "signer"),
    [
        ((o(AGENTS), cn(OTHER_AGENT)), CLIENT_SIGNER),
        ((o("system:nodes"), cn("system:node:machine-2")), KUBELET_SIGNER),
    ],
)
async def test_a_machine_joins_with_its_own_bootstrap_token(shoot: Decide, subject: Any, signer: str) -> None:
    groups = ["system:bootstrappers", "system:bootstrappers:machine:machine-2"]
    assert await shoot(pem(*subject), user=TOKEN, groups=groups, signer=signer) == "Approved"


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
@pytest.mark.parametrize(
    ("request_", "usages"),
    [
        (pem(o(AGENTS), cn(AGENT), names=ADDRESSES), ["digital signature", "client auth"]),
        (pem(o(AGENTS), cn(AGENT)), ["digital signature", "client auth", "server auth"]),
        (pem(o(AGENTS), cn(AGENT)), ["digital signature", "client auth", "cert sign"]),
        (pem(o(AGENTS), cn(AGENT)), ["digital signature"]),
    ],
    ids=["names", "server", "authority", "no-client"],
)
async def test_a_node_agent_asks_for_more_than_a_client_certificate_and_is_denied(
    shoot: Decide, request_: bytes, usages: list[str]
) -> None:
    """The agent is a client of the API server and serves nothing."""
    assert await shoot(request_, user=AGENT, groups=[AGENTS], usages=usages) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
@pytest.mark.parametrize(
    "request_",
    [pem(o(AGENTS), cn("alice")), pem(o("gardener.cloud:system:admins"), cn("alice"))],
    ids=["group", "nothing-of-agents"],
)
async def test_a_node_agent_asks_in_a_persons_name_and_is_denied(shoot: Decide, request_: bytes) -> None:
    """Left undecided, the request could be approved by another approver that the owner runs."""
    assert await shoot(request_, user=AGENT, groups=[AGENTS]) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
@pytest.mark.parametrize("request_", [b"", b"not a request"])
@pytest.mark.parametrize("signer", [CLIENT_SIGNER, SERVING_SIGNER])
async def test_a_node_sends_a_request_that_cannot_be_read_and_is_denied(
    shoot: Decide, request_: bytes, signer: str
) -> None:
    """An approver that fails and retries would work for the attacker without end."""
    assert await shoot(request_, user=NODE_USER, signer=signer, age=60) == "Denied"


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
@pytest.mark.parametrize(
    ("request_", "usages"),
    [
        (pem(o("system:nodes"), cn(NODE_USER), names=ADDRESSES), ["digital signature", "server auth", "client auth"]),
        (pem(o("system:nodes"), cn(NODE_USER), names=ADDRESSES), ["digital signature"]),
        (
            pem(o("system:nodes"), cn(NODE_USER), names=[*ADDRESSES, x509.RFC822Name("a@example.org")]),
            ["digital signature", "server auth"],
        ),
        (
            pem(o("system:nodes"), cn("system:node:machine-2"), cn(NODE_USER), names=ADDRESSES),
            ["digital signature", "server auth"],
        ),
        (
            pem(o("system:nodes"), cn(NODE_USER), cn("system:node:machine-2"), names=ADDRESSES),
            ["digital signature", "server auth"],
        ),
    ],
    ids=["client", "no-server", "email", "two-names-own-last", "two-names-own-first"],
)
async def test_a_kubelet_asks_for_more_than_a_serving_certificate_and_is_denied(
    shoot: Decide, request_: bytes, usages: list[str]
) -> None:
    """A serving certificate is good for the addresses of one Node, and for no client."""
    decided = await shoot(request_, user=NODE_USER, groups=["system:nodes"], signer=SERVING_SIGNER, usages=usages)
    assert decided == "Denied"


@pytest.mark.parametrize("subject", [(o(AGENTS), cn(AGENT)), (cn(AGENT), o(AGENTS))])
@pytest.mark.parametrize(
    "usages", [["digital signature", "client auth"], ["digital signature", "key encipherment", "client auth"]]
)
async def test_a_node_agent_renews_its_own_certificate(shoot: Decide, subject: Any, usages: list[str]) -> None:
    """The agents that run today ask like this."""
    assert await shoot(pem(*subject), user=AGENT, groups=[AGENTS], usages=usages) == "Approved"


async def test_a_kubelet_gets_a_certificate_for_its_addresses(shoot: Decide) -> None:
    """The kubelet asks like this, with a key of an elliptic curve."""
    request = pem(o("system:nodes"), cn(NODE_USER), names=ADDRESSES)
    usages = ["digital signature", "server auth"]
    decided = await shoot(request, user=NODE_USER, groups=["system:nodes"], signer=SERVING_SIGNER, usages=usages)
    assert decided == "Approved"

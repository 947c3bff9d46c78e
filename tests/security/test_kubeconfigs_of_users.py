"""Users ask the subresource server for kubeconfigs and bindings that are not theirs; a real API server authorizes."""

import asyncio
import contextlib
import copy
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from cryptography import x509
from cryptography.x509.oid import NameOID
from prometheus_client import REGISTRY

from activities.secrets.crypto import load_private
from api import resources
from api.access import OPERATORS, SUBRESOURCE_SERVERS
from api.constants import CHANGED_BY
from api.resources import Object, Resource
from kube.client import KubeClient
from kube.errors import Forbidden
from landscape import pki
from tests.garden_api_server import (
    ALICE,
    NAMESPACE,
    OPERATOR,
    OTHER_NAMESPACE,
    SERVER,
    STRANGER,
    VICTOR,
    Garden,
    api_server,
    garden_of,
)
from tests.gardens import ApiServer
from tests.unit.admission.webhooks import FakeGarden, ask, patched
from tests.unit.kube.waiting import until
from workers.admission.app import application
from workers.lib.access import User, may
from workers.subresources import kubeconfigs

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

MASTERS = ("X-Remote-Group", "system:masters")


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
async def garden(server: ApiServer, tmp_path: Path) -> AsyncIterator[Garden]:
    async with garden_of(server, tmp_path) as made:
        yield made
        assert not [serial for serial, each in (await made.records()).items() if "victor" in each["user"]], (
            "a refused request was served"
        )


@pytest.mark.attack(actor="T6", asset="A3", finding=12)
async def test_headers_of_a_client_without_certificate_get_no_kubeconfig(garden: Garden, tmp_path: Path) -> None:
    """A client that reaches the port names itself an operator."""
    foreign = garden.door(authority=pki.Authority(tmp_path / "foreign", "front-proxy-ca"))
    own = garden.door(authority=garden.servers)
    for certificate in (foreign, own):
        with pytest.raises(aiohttp.ClientError):
            await garden.ask(OPERATOR, headers=[MASTERS], certificate=certificate)

    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector, headers={"X-Remote-User": OPERATOR}) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"{garden.url}/apis/core.gardener.cloud/v1beta1/namespaces/a/shoots/a/adminkubeconfig")
    assert await garden.records() == {}


@pytest.mark.attack(actor="T6", asset="A3", finding=12)
async def test_headers_of_another_client_of_the_same_authority_get_no_kubeconfig(garden: Garden) -> None:
    """The request-header CA signs for aggregators, too; only the names in the configuration are front doors."""
    answer = await garden.ask(OPERATOR, headers=[MASTERS], certificate=garden.door("aggregator"))

    assert answer.status == 403
    assert await garden.records() == {}


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-Remote-Group", "system:masters")],
        [("Authorization", "Bearer made-up")],
        [("Authorization", "Basic YWxpY2U6")],
        [("X-Remote-User", VICTOR), ("X-Remote-User", OPERATOR)],
        [("Impersonate-User", OPERATOR)],
    ],
    ids=["nothing", "group alone", "unknown token", "password", "two users", "impersonation alone"],
)
async def test_a_request_without_one_authenticated_user_is_unauthorized(
    garden: Garden, headers: list[tuple[str, str]]
) -> None:
    answer = await garden.ask(headers=headers)

    assert (answer.status, answer.content["reason"]) == (401, "Unauthorized")
    assert "made-up" not in answer.message


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
@pytest.mark.parametrize(
    ("user", "shoot", "subresource"),
    [
        (VICTOR, f"{NAMESPACE}/demo", "adminkubeconfig"),
        (STRANGER, f"{NAMESPACE}/demo", "adminkubeconfig"),
        (STRANGER, f"{NAMESPACE}/demo", "viewerkubeconfig"),
        (ALICE, f"{OTHER_NAMESPACE}/demo", "adminkubeconfig"),
        (ALICE, f"{OTHER_NAMESPACE}/no-such-shoot", "adminkubeconfig"),
        ("system:anonymous", f"{NAMESPACE}/demo", "viewerkubeconfig"),
    ],
)
async def test_a_user_without_the_right_gets_no_kubeconfig(
    garden: Garden, user: str, shoot: str, subresource: str
) -> None:
    """A viewer asks for an administrator's; members ask in another project. No answer reveals which Shoots exist."""
    await garden.shoot("demo", OTHER_NAMESPACE)
    await garden.authorities("demo", OTHER_NAMESPACE)

    answer = await garden.ask(user, subresource, shoot=shoot)

    assert answer.status == 403
    namespace, name = shoot.split("/")
    assert answer.message == (
        f'Forbidden: shoots.core.gardener.cloud "{name}" is forbidden: User "{user}" cannot create resource '
        f'"shoots/{subresource}" in API group "core.gardener.cloud" in the namespace "{namespace}"'
    )


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
@pytest.mark.parametrize(
    "headers",
    [
        [("Impersonate-User", OPERATOR)],
        [("Impersonate-User", VICTOR), ("Impersonate-Group", "system:masters")],
        [("Impersonate-User", VICTOR), ("Impersonate-Uid", "1")],
        [("Impersonate-User", VICTOR), ("Impersonate-Extra-scopes", "all")],
        [("Impersonate-User", f"system:serviceaccount:{NAMESPACE}:robot")],
    ],
    ids=["user", "group", "uid", "extra", "service account"],
)
async def test_impersonation_needs_the_right_for_each_part(garden: Garden, headers: list[tuple[str, str]]) -> None:
    """Alice may act as Victor, and as no other user, and with no other group."""
    answer = await garden.ask(ALICE, "viewerkubeconfig", headers=headers)

    assert answer.status == 403
    assert 'User "alice" cannot impersonate resource' in answer.message


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_impersonation_does_not_keep_the_rights_of_its_author(garden: Garden) -> None:
    answer = await garden.ask(ALICE, "adminkubeconfig", headers=[("Impersonate-User", VICTOR)])

    assert answer.status == 403
    assert 'User "victor" cannot create resource "shoots/adminkubeconfig"' in answer.message


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_request_for_years_gets_the_maximum(garden: Garden) -> None:
    """A kubeconfig cannot be revoked: it must not outlive the bound of the server."""
    answer = await garden.ask(ALICE, body={"spec": {"expirationSeconds": 2**31}})

    made = answer.certificate
    assert answer.content["spec"]["expirationSeconds"] == 86400
    assert (made.not_valid_after_utc - made.not_valid_before_utc).total_seconds() <= 86400 + 60


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
@pytest.mark.parametrize(
    "body",
    [
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "AdminKubeconfigRequest", "spec": {}},
        {"kind": "ViewerKubeconfigRequest"},
        {"metadata": {"name": "another"}},
        {"metadata": {"namespace": OTHER_NAMESPACE}},
        {"spec": {"expirationSeconds": "600"}},
        {"spec": {"expirationSeconds": 600.5}},
        {"spec": []},
        [],
        b"[" * 60000,
        b'{"spec": {"expirationSeconds": NaN}}',
        b"\xff\xfe",
        b"spec: {expirationSeconds: 600}",
    ],
)
async def test_a_body_of_another_kind_or_form_is_refused(garden: Garden, body: Any) -> None:
    answer = await garden.ask(ALICE, body=body)

    assert (answer.status, answer.content["reason"]) == (400, "BadRequest")
    assert await garden.records() == {}


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_body_chooses_neither_name_nor_group(garden: Garden) -> None:
    body = {"spec": {"groups": ["system:masters"], "user": OPERATOR}, "status": {"kubeconfig": "eA=="}}

    answer = await garden.ask(ALICE, body=body)

    assert answer.subject() == (["gardener.cloud:admin:alice"], ["gardener.cloud:project:admins"])


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_the_names_of_unknown_fields_make_no_headers(garden: Garden) -> None:
    """Warnings are headers, and repeat what the body says."""
    names = ["x\r\nSet-Cookie: a=b", "\u2028", 'y"', *(f"{number}-{'z' * 500}" for number in range(50))]

    answer = await garden.ask(ALICE, body=dict.fromkeys(names, 1))

    assert answer.status == 201
    assert "Set-Cookie" not in answer.headers
    warnings = answer.headers.getall("Warning")
    assert warnings[0] == '299 - "unknown field \\"x??Set-Cookie: a=b\\""'
    assert (len(warnings), max(map(len, warnings)) < 300) == (10, True)


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_name_with_separators_stays_one_name(garden: Garden) -> None:
    """The subject of a certificate is not text: a comma or a plus begins no other attribute."""
    name = 'alice,O=system:masters+O=system:masters/CN=admin"'

    answer = await garden.ask(name, headers=[MASTERS, ("X-Remote-Group", "a,system:masters")])

    assert answer.subject()[0] == [f"gardener.cloud:admin:{name}"]


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
@pytest.mark.parametrize("name", ["alice\u2028admin", "alice\u202eadmin", "a" * 600])
async def test_a_name_that_logs_would_not_show_is_refused(garden: Garden, name: str) -> None:
    answer = await garden.ask(name, headers=[MASTERS])

    assert answer.status == 403
    assert "printable characters" in answer.message
    assert await garden.records() == {}


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_header_with_a_newline_names_no_user(garden: Garden) -> None:
    """Two lines in one header would be two headers for the next server."""
    certificate = garden.door()
    context = ssl.create_default_context(cafile=garden.servers.files.certificate)
    context.load_cert_chain(certificate.certificate, certificate.key)
    host, port = garden.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    path = f"/apis/core.gardener.cloud/v1beta1/namespaces/{NAMESPACE}/shoots/demo/adminkubeconfig"
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: a\r\nX-Remote-User: alice\n bob\x00\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    )
    status = await reader.readline()
    writer.close()

    assert b" 400 " in status
    assert await garden.records() == {}


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_huge_body_is_not_read(garden: Garden) -> None:
    for subresource, method, size in (("adminkubeconfig", "POST", 65 * 1024), ("binding", "PUT", 2049 * 1024)):
        answer = await garden.ask(OPERATOR, subresource, method=method, body=b'{"a": "' + b"x" * size + b'"}')

        assert (answer.status, answer.content["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_shoot_without_authority_gives_no_kubeconfig(garden: Garden) -> None:
    """A deleted control plane has none left, and a young one none yet."""
    await garden.admin.patch(resources.SHOOT, "demo", NAMESPACE, {"metadata": {"finalizers": ["gardener"]}})
    await garden.admin.delete(resources.SHOOT, "demo", NAMESPACE)
    assert (await garden.ask(ALICE)).status == 201, "until its end, an administrator may have to clean it up"

    await garden.admin.delete(resources.INTERNAL_SECRET, "demo.ca-client", NAMESPACE)
    answer = await garden.ask(ALICE)

    assert (answer.status, answer.content["reason"]) == (500, "InternalError")
    assert "has no certificate authority (InternalSecret demo.ca-client)" in answer.message


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_an_unusable_authority_reveals_nothing(garden: Garden) -> None:
    secret = await garden.admin.get(resources.INTERNAL_SECRET, "demo.ca-client", NAMESPACE)
    secret["data"]["ca.key"] = secret["data"]["ca.crt"]
    await garden.admin.replace(secret)

    answer = await garden.ask(ALICE)

    assert answer.status == 500
    assert answer.message.endswith("the client CA of Shoot garden-local/demo cannot sign: rotate it")


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_one_user_cannot_use_up_the_records_of_a_shoot(garden: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ConfigMap that is full would lock out all other users of the Shoot."""
    monkeypatch.setattr(kubeconfigs, "_OF_USER", 2)

    answers = [await garden.ask(ALICE) for _ in range(3)]
    other = await garden.ask(OPERATOR)

    assert [each.status for each in answers] == [201, 201, 429]
    assert answers[-1].headers["Retry-After"]
    assert other.status == 201


@pytest.fixture
async def strict(server: ApiServer, tmp_path: Path) -> AsyncIterator[Garden]:
    """A server that lets each user make 3 requests at once, and one an hour afterwards."""
    limits = {"requestsPerSecond": 1 / 3600, "burst": 3, "atOnce": 2}
    async with garden_of(server, tmp_path, limitsOfUsers=limits) as made:
        yield made


@pytest.mark.attack(actor="T1", asset="A1", finding=12)
async def test_a_user_who_asks_in_a_loop_is_refused_and_no_other_user_is(strict: Garden) -> None:
    """Requests that the garden forbids count, too: the server asks the garden about each of them."""
    before = _limited("user-rate")
    answers = [await strict.ask(ALICE) for _ in range(4)]
    forbidden = [await strict.ask(STRANGER) for _ in range(4)]
    other = await strict.ask(OPERATOR)

    assert [each.status for each in answers] == [201, 201, 201, 429]
    assert [each.status for each in forbidden] == [403, 403, 403, 429]
    assert other.status == 201
    assert 3500 < int(answers[-1].headers["Retry-After"]) <= 3600
    assert answers[-1].content["details"]["retryAfterSeconds"] == int(answers[-1].headers["Retry-After"])
    assert answers[-1].message.startswith("TooManyRequests: you have made more than 3 requests")
    assert len(await strict.records()) == 4
    assert _limited("user-rate") == before + 2


@pytest.mark.attack(actor="T1", asset="A1", finding=12)
async def test_service_accounts_of_a_project_do_not_multiply_its_requests(strict: Garden) -> None:
    """Members make as many ServiceAccounts as they want. Those of another project have requests of their own."""
    names = [f"system:serviceaccount:{NAMESPACE}:robot-{number}" for number in range(4)]
    answers = [await strict.ask(each) for each in names]
    foreign = await strict.ask(f"system:serviceaccount:{OTHER_NAMESPACE}:robot-0")

    assert [each.status for each in answers] == [403, 403, 403, 429]
    assert foreign.status == 403


@pytest.mark.attack(actor="T1", asset="A1", finding=12)
async def test_a_user_who_sends_bodies_slowly_holds_few_places_and_not_for_long(
    strict: Garden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers a limited number of requests at once: one user must not hold all places."""
    monkeypatch.setattr("workers.subresources.app._BODY_SECONDS", 1.0)
    before = _limited("user-at-once")
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(_half_a_request(strict, ALICE)) for _ in range(2)]
        await until(lambda: REGISTRY.get_sample_value("gardener_subresource_requests_in_progress") == 2, 10)
        refused = await strict.ask(ALICE)
        other = await strict.ask(OPERATOR)
        ended = [await reader.readline() for reader in slow]

    assert (refused.status, other.status) == (429, 201)
    assert "you have 2 requests in progress" in refused.message
    assert ended == [b"HTTP/1.1 408 Request Timeout\r\n"] * 2
    assert _limited("user-at-once") == before + 1


@contextlib.asynccontextmanager
async def _half_a_request(garden: Garden, user: str) -> AsyncIterator[asyncio.StreamReader]:
    """Answer to a request whose body never ends."""
    context = ssl.create_default_context(cafile=garden.servers.files.certificate)
    context.load_cert_chain(garden.door().certificate, garden.door().key)
    host, port = garden.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    path = f"/apis/core.gardener.cloud/v1beta1/namespaces/{NAMESPACE}/shoots/demo/adminkubeconfig"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nX-Remote-User: {user}\r\nContent-Length: 9\r\n\r\n{{".encode())
    try:
        yield reader
    finally:
        writer.close()


def _limited(reason: str) -> float:
    return REGISTRY.get_sample_value("gardener_subresource_limited_requests_total", {"reason": reason}) or 0.0


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
@pytest.mark.parametrize("name", ["demo%2fadminkubeconfig", "..%2f..%2fshoots%2fdemo", "DEMO", "demo%00"])
async def test_a_name_that_is_no_name_is_not_found(garden: Garden, name: str) -> None:
    path = f"/apis/core.gardener.cloud/v1beta1/namespaces/{NAMESPACE}/shoots/{name}/adminkubeconfig"

    answer = await garden.ask(OPERATOR, path=path)

    assert answer.status == 404


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_a_kubeconfig_is_signed_by_the_shoots_own_authority(garden: Garden) -> None:
    """The certificate of one Shoot must be worth nothing at another one."""
    await garden.shoot("other")
    authority = await garden.authorities("other", generation="of-other")

    answer = await garden.ask(ALICE, shoot=f"{NAMESPACE}/other")

    own = x509.load_pem_x509_certificate(authority.certificate)
    answer.certificate.verify_directly_issued_by(own)
    assert load_private(authority.key).public_key() == own.public_key()
    assert not answer.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert [each.value for each in answer.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "gardener.cloud:admin:alice"
    ]


@pytest.mark.attack(actor="T1", asset="A1", finding=12)
async def test_the_author_of_a_binding_is_the_servers_word_and_no_other_users(
    server: ApiServer, garden: Garden, tmp_path: Path
) -> None:
    """Admission asks the garden whether the author of a write may name another user. A member may choose a seed here,
    and an operator's process may write each Shoot; both name a victim."""
    before = await garden.admin.get(resources.SHOOT, "demo", NAMESPACE)
    before["metadata"]["annotations"] = {CHANGED_BY: STRANGER}
    await garden.admin.replace(before)
    before = await garden.admin.get(resources.SHOOT, "demo", NAMESPACE)
    asked = copy.deepcopy(before)
    asked["spec"]["seedName"] = "seed-1"
    bound = (await garden.ask(OPERATOR, "binding", method="PUT", body=asked)).content
    assert bound["metadata"]["annotations"][CHANGED_BY] == OPERATOR, "the server names its requester"
    forged = copy.deepcopy(before)
    forged["metadata"]["annotations"][CHANGED_BY] = VICTOR
    forged["spec"]["seedName"] = "seed-1"
    with_more = copy.deepcopy(bound)
    with_more["spec"]["purpose"] = "production"

    async with server.client(SERVER) as asks, TestClient(TestServer(application(_Rights(asks)))) as admission:

        async def author(user: str, group: str, new: Object) -> str:
            return await _recorded(admission, User(user, (group, "system:authenticated")), new, before)

        assert await author(SERVER, SUBRESOURCE_SERVERS, bound) == OPERATOR
        assert await author(ALICE, "staff", forged) == STRANGER
        assert await author(VICTOR, SUBRESOURCE_SERVERS + "-2", forged) == STRANGER
        assert await author("gardener.cloud:system:scheduler", OPERATORS, forged) == STRANGER
        assert await author(SERVER, SUBRESOURCE_SERVERS, with_more) == STRANGER, "its word counts for the seed alone"


class _Rights(FakeGarden):
    """Admission's view of a garden, whose API server says what a user may do."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__()
        self.client = client

    async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str) -> bool:
        return await may(self.client, user, verb, resource, namespace or "", name)


async def _recorded(admission: TestClient[Any, Any], user: User, new: Object, old: Object) -> str:
    """Name that admission records as the author of a change."""
    response = await ask(admission, "/mutate", "UPDATE", new, old, user=user.name, groups=user.groups)
    stored = patched(copy.deepcopy(new), response) if "patch" in response else new
    return str(stored["metadata"]["annotations"][CHANGED_BY])


@pytest.mark.attack(actor="T1", asset="A1", finding=12)
async def test_members_cannot_read_the_key_that_signs(server: ApiServer, garden: Garden) -> None:
    async with server.client(ALICE) as alice:
        for verb in ("get", "list"):
            path = resources.INTERNAL_SECRET.path(NAMESPACE, "demo.ca-client" if verb == "get" else "")
            with pytest.raises(Forbidden):
                await alice.request("GET", path)

"""The subresource server issues kubeconfigs; a real API server authenticates and authorizes."""

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from api import resources
from tests.garden_api_server import ALICE, NAMESPACE, OPERATOR, ROBOT, SERVER, VICTOR, Garden, garden_of
from tests.gardens import ApiServer
from workers.lib.runtime import log_context

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]

KIND = {"apiVersion": "authentication.gardener.cloud/v1alpha1", "kind": "AdminKubeconfigRequest"}


async def test_a_project_admin_gets_a_kubeconfig_as_gardener_documents_it(garden: Garden) -> None:
    """The body of ``kubectl create --raw`` has neither apiVersion nor kind, and the request no Content-Type."""
    answer = await garden.ask(ALICE, body='{"spec":{"expirationSeconds":600}}')

    assert answer.status == 201, answer.content
    assert {field: answer.content[field] for field in KIND} == KIND
    assert answer.content["spec"] == {"expirationSeconds": 600}
    assert answer.subject() == (["gardener.cloud:admin:alice"], ["gardener.cloud:project:admins"])
    expires = datetime.fromisoformat(answer.content["status"]["expirationTimestamp"])
    assert expires == answer.certificate.not_valid_after_utc
    assert timedelta(seconds=580) < expires - datetime.now(UTC) <= timedelta(seconds=600)
    assert answer.headers["Cache-Control"] == "no-store"


async def test_a_kubeconfig_has_a_cluster_for_each_advertised_address_of_the_api_server(garden: Garden) -> None:
    config = (await garden.ask(ALICE)).kubeconfig

    names = [f"garden-local--demo-{each}" for each in ("external", "wildcard-tls-seed-bound", "internal")]
    assert [each["name"] for each in config["clusters"]] == names
    assert [each["name"] for each in config["contexts"]] == names
    assert {each["context"]["user"] for each in config["contexts"]} == {names[0]}
    assert config["current-context"] == config["users"][0]["name"] == names[0]
    external, wildcard, _ = (each["cluster"] for each in config["clusters"])
    assert external == {
        "server": "https://api.demo.local.example.org",
        "certificate-authority-data": "dGhlIGJ1bmRsZQ==",
    }
    assert wildcard == {"server": "https://api-demo.ingress.example.org"}


@pytest.mark.parametrize(
    ("user", "subresource", "name", "group"),
    [
        (VICTOR, "viewerkubeconfig", "gardener.cloud:viewer:victor", "gardener.cloud:project:viewers"),
        (ALICE, "viewerkubeconfig", "gardener.cloud:viewer:alice", "gardener.cloud:project:viewers"),
        (OPERATOR, "viewerkubeconfig", "gardener.cloud:viewer:operator", "gardener.cloud:system:viewers"),
        (OPERATOR, "adminkubeconfig", "gardener.cloud:admin:operator", "gardener.cloud:system:admins"),
        (ROBOT, "adminkubeconfig", f"gardener.cloud:admin:{ROBOT}", "gardener.cloud:project:admins"),
    ],
)
async def test_name_and_group_come_from_the_rights_of_the_requester(
    garden: Garden, user: str, subresource: str, name: str, group: str
) -> None:
    answer = await garden.ask(user, subresource)

    assert answer.status == 201, answer.content
    assert answer.subject() == ([name], [group])


async def test_a_user_with_a_long_name_gets_a_kubeconfig(garden: Garden) -> None:
    """X.520 allows 64 characters in a common name; the names of service accounts are longer."""
    answer = await garden.ask("long-" * 60, headers=[("X-Remote-Group", "system:masters")])

    assert answer.subject()[0] == [f"gardener.cloud:admin:{'long-' * 60}"]


@pytest.mark.parametrize(("asked", "granted"), [(None, 3600), (600, 600), (7200, 7200), (2**32 - 1, 7200)])
async def test_validity_is_bounded_by_the_servers_maximum(
    server: ApiServer, tmp_path: Path, asked: int | None, granted: int
) -> None:
    async with garden_of(server, tmp_path, shootAdminKubeconfigMaxExpiration=7200) as garden:
        answer = await garden.ask(ALICE, body={**KIND, "spec": {"expirationSeconds": asked}})

    assert answer.content["spec"] == {"expirationSeconds": granted}
    left = answer.certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(seconds=granted - 20) < left <= timedelta(seconds=granted)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "less than 10 minutes"), (599, "less than 10 minutes"), (2**32, "larger than 2^32")]
)
async def test_a_validity_out_of_bounds_is_invalid(garden: Garden, seconds: int, said: str) -> None:
    answer = await garden.ask(ALICE, body={"spec": {"expirationSeconds": seconds}})

    assert (answer.status, answer.content["kind"]) == (422, "Status")
    assert answer.content["details"]["causes"][0]["field"] == "spec.expirationSeconds"
    assert said in answer.message


async def test_a_kubeconfig_is_recorded_by_its_serial_until_it_has_expired(garden: Garden) -> None:
    first = await garden.ask(ALICE)
    stale = json.dumps({"user": "x", "issuer": "y", "expires": "2026-01-01T00:00:00+00:00"})
    name = "demo.issued-kubeconfigs"
    await garden.admin.patch(resources.CONFIG_MAP, name, NAMESPACE, {"data": {"stale": stale}})

    second = await garden.ask(VICTOR, "viewerkubeconfig")

    records = await garden.records()
    assert set(records) == {f"{each.certificate.serial_number:032x}" for each in (first, second)}
    assert len({serial[:8] for serial in records}) == 2, "commands show and take the first digits"
    entry = records[f"{second.certificate.serial_number:032x}"]
    assert (entry["user"], entry["issuer"]) == ("gardener.cloud:viewer:victor", "ca-client-1")
    assert datetime.fromisoformat(entry["expires"]) == second.certificate.not_valid_after_utc
    shoot = await garden.admin.get(resources.SHOOT, "demo", NAMESPACE)
    written = await garden.admin.get(resources.CONFIG_MAP, name, NAMESPACE)
    assert [each["uid"] for each in written["metadata"]["ownerReferences"]] == [shoot["metadata"]["uid"]]


@pytest.mark.parametrize(
    "entry",
    [
        "no record",
        "{}",
        json.dumps({"user": "x", "issuer": "y", "expires": "soon"}),
        json.dumps({"user": "x", "issuer": "y", "expires": "2026-01-01T00:00:00"}),
        json.dumps({"user": "x", "issuer": "y", "expires": "2126-01-01T00:00:00Z", "discarded": True}),
    ],
)
async def test_an_entry_of_a_member_that_is_no_record_is_removed(garden: Garden, entry: str) -> None:
    """Members may write the ConfigMap: an entry must not keep others from their kubeconfigs."""
    first = await garden.ask(ALICE)
    await garden.admin.patch(resources.CONFIG_MAP, "demo.issued-kubeconfigs", NAMESPACE, {"data": {"mine": entry}})

    second = await garden.ask(ALICE)

    assert second.status == 201
    assert set(await garden.records()) == {f"{each.certificate.serial_number:032x}" for each in (first, second)}


async def test_two_replicas_record_side_by_side(server: ApiServer, garden: Garden, tmp_path: Path) -> None:
    async with garden_of(server, tmp_path) as other:
        answers = [await each.ask(ALICE) for each in (garden, other, garden, other)]

    assert set(await garden.records()) == {f"{each.certificate.serial_number:032x}" for each in answers}


async def test_after_the_start_of_a_rotation_the_new_authority_signs(garden: Garden) -> None:
    before = await garden.ask(ALICE)
    await garden.authorities(generation="2")
    after = await garden.ask(ALICE)

    assert [each.certificate.issuer.rfc4514_string() for each in (before, after)] == [
        "CN=ca-client-1",
        "CN=ca-client-2",
    ]


async def test_each_issue_is_a_line_of_the_log_without_key(garden: Garden, caplog: pytest.LogCaptureFixture) -> None:
    facts: list[dict[str, str]] = []

    class Keeping(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            facts.append(dict(log_context.get({})))
            return True

    logger, keeping = logging.getLogger("workers.subresources.kubeconfigs"), Keeping()
    logger.addFilter(keeping)
    try:
        with caplog.at_level(logging.INFO):
            answer = await garden.ask(ALICE)
    finally:
        logger.removeFilter(keeping)

    [line] = facts
    assert line == {
        "audit": "kubeconfig issued",
        "subresource": "shoots/adminkubeconfig",
        "shoot": "garden-local/demo",
        "shootUid": line["shootUid"],
        "user": "alice",
        "group": "gardener.cloud:project:admins",
        "serial": f"{answer.certificate.serial_number:032x}",
        "issuer": "ca-client-1",
        "expires": answer.content["status"]["expirationTimestamp"],
    }
    assert answer.kubeconfig["users"][0]["user"]["client-key-data"] not in caplog.text
    assert answer.content["status"]["kubeconfig"] not in caplog.text


async def test_a_dry_run_issues_and_records_nothing(garden: Garden) -> None:
    answer = await garden.ask(ALICE, query="?dryRun=All&fieldManager=kubectl-create&fieldValidation=Strict")

    assert answer.status == 201
    assert "status" not in answer.content
    assert await garden.records() == {}


@pytest.mark.parametrize("name", ["missing", "demo.ca-client"])
async def test_an_unknown_shoot_is_not_found(garden: Garden, name: str) -> None:
    answer = await garden.ask(ALICE, shoot=f"{NAMESPACE}/{name}")

    assert (answer.status, answer.content["details"]["kind"]) == (404, "shoots")
    assert answer.message == f'NotFound: shoots.core.gardener.cloud "{name}" not found'


async def test_a_shoot_without_address_is_invalid(garden: Garden) -> None:
    await garden.shoot("young", advertisedAddresses=[])
    await garden.authorities("young")

    answer = await garden.ask(ALICE, shoot=f"{NAMESPACE}/young")

    assert answer.status == 422
    assert "its control plane is not created yet; see its lastOperation" in answer.message


@pytest.mark.parametrize(
    ("subresource", "method"), [("adminkubeconfig", "GET"), ("viewerkubeconfig", "DELETE"), ("binding", "POST")]
)
async def test_another_method_is_not_allowed(garden: Garden, subresource: str, method: str) -> None:
    answer = await garden.ask(ALICE, subresource, method=method)

    assert (answer.status, answer.content["reason"]) == (405, "MethodNotAllowed")
    assert answer.headers["Allow"] == ("PUT" if subresource == "binding" else "POST")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Content-Type", "application/json; charset=utf-8")], 201),
        ([("Content-Type", "application/vnd.kubernetes.protobuf")], 415),
        ([("Content-Type", "application/yaml")], 415),
        ([("Content-Type", "application/json"), ("Content-Encoding", "gzip")], 415),
        ([("Accept", "application/vnd.kubernetes.protobuf,application/json")], 201),
        ([("Accept", "application/json, */*")], 201),
        ([("Accept", "application/vnd.kubernetes.protobuf")], 406),
        ([("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], 406),
    ],
)
async def test_json_alone_is_read_and_written(garden: Garden, headers: list[tuple[str, str]], status: int) -> None:
    answer = await garden.ask(ALICE, headers=headers)

    assert answer.status == status, answer.content
    assert answer.headers["Content-Type"].startswith("application/json")
    assert status == 201 or "application/json" in answer.message


@pytest.mark.parametrize(
    ("query", "status"), [("", 201), ("?fieldValidation=Ignore", 201), ("?fieldValidation=Strict", 400)]
)
async def test_an_unknown_field_is_never_accepted_in_silence(garden: Garden, query: str, status: int) -> None:
    answer = await garden.ask(ALICE, body={"spec": {"expirationSecond": 600}}, query=query)

    assert answer.status == status
    assert answer.headers.get("Warning") == (None if query else '299 - "unknown field \\"spec.expirationSecond\\""')
    if status == 400:
        assert answer.message == 'BadRequest: strict decoding error: unknown field "spec.expirationSecond"'


async def test_a_request_of_gardeners_go_client_is_served(garden: Garden) -> None:
    """It writes fields that it did not set, and asks with a version of its own."""
    body = {
        **KIND,
        "metadata": {"creationTimestamp": None},
        "spec": {"expirationSeconds": 3600},
        "status": {"kubeconfig": None, "expirationTimestamp": None},
    }

    answer = await garden.ask(
        ALICE, body=body, query="?fieldValidation=Strict", headers=[("Accept", "application/json")]
    )

    assert answer.status == 201, answer.content


async def test_a_bearer_token_names_its_user(garden: Garden) -> None:
    answer = await garden.ask(headers=[("Authorization", f"Bearer {ALICE}")])

    assert answer.subject()[0] == ["gardener.cloud:admin:alice"]


async def test_a_user_acts_as_another_user_with_the_right_to_impersonate(garden: Garden) -> None:
    answer = await garden.ask(ALICE, "viewerkubeconfig", headers=[("Impersonate-User", VICTOR)])
    as_robot = await garden.ask(OPERATOR, headers=[("Impersonate-User", ROBOT), ("Impersonate-Extra-a%2fb", "c")])

    assert answer.subject()[0] == ["gardener.cloud:viewer:victor"]
    assert as_robot.subject()[0] == [f"gardener.cloud:admin:{ROBOT}"]


async def test_the_server_has_the_rights_that_it_needs_and_no_others(server: ApiServer, garden: Garden) -> None:
    async with server.client(SERVER) as own:
        for verb, resource, expected in (
            ("get", "internalsecrets", True),
            ("list", "internalsecrets", False),
            ("watch", "internalsecrets", False),
            ("patch", "internalsecrets", False),
            ("list", "shoots", False),
            ("delete", "shoots", False),
            ("get", "secrets", False),
        ):
            group = "" if resource == "secrets" else "core.gardener.cloud"
            attributes = {"namespace": NAMESPACE, "verb": verb, "group": group, "resource": resource}
            review = await own.request(
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                body={
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": attributes},
                },
            )
            assert review["status"]["allowed"] is expected, (verb, resource)

"""The client against a server that behaves, and one that does not."""

import asyncio
import json
import logging
import socket
import ssl
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from activities.errors import api_failure
from api.resources import CLUSTER, CONFIG_MAP, NAMESPACE, POD, SECRET, SERVICE_ACCOUNT, SHOOT, UnknownKind, resource_of
from kube.client import KubeClient
from kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unreachable,
)
from kube.kubeconfig import KubeconfigError, endpoint_of, parse_kubeconfig
from tests.unit.kube.api_server import refuse
from tests.unit.kube.pki import certificates
from tests.unit.kube.waiting import until

CONFIG_MAPS = "/api/v1/configmaps"


def config_map(name="one", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns"}, "data": data}


def secret(name="one"):
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "ns"},
        "data": {"password": "U0VOVElORUw="},
        "immutable": True,
    }


async def test_a_created_object_can_be_read_and_listed(client):
    await client.create(config_map(a="1"))

    assert (await client.get(CONFIG_MAP, "one", "ns"))["data"] == {"a": "1"}
    listed = await client.list(CONFIG_MAP)
    assert [(obj["kind"], obj["apiVersion"], obj["metadata"]["name"]) for obj in listed] == [("ConfigMap", "v1", "one")]


async def test_already_exists_is_distinguished_from_conflict(client):
    """One means read back and compare, the other means look again."""
    made = await client.create(config_map(a="1"))
    await client.patch(CONFIG_MAP, "one", "ns", {"data": {"a": "2"}})

    with pytest.raises(AlreadyExists):
        await client.create(config_map())
    with pytest.raises(Conflict):
        await client.replace(made)


async def test_a_missing_object_is_not_found(client):
    assert await client.find(CONFIG_MAP, "none", "ns") is None
    with pytest.raises(NotFound, match="getting ConfigMap ns/none"):
        await client.get(CONFIG_MAP, "none", "ns")


async def test_applying_less_than_before_takes_the_rest_away_and_leaves_what_others_own(client):
    await client.apply(config_map(a="1", b="2"), manager="us")
    await client.patch(CONFIG_MAP, "one", "ns", {"data": {"c": "theirs"}})
    await client.apply(config_map(a="1"), manager="us")

    assert (await client.get(CONFIG_MAP, "one", "ns"))["data"] == {"a": "1", "c": "theirs"}


async def test_an_object_that_was_read_can_be_applied(api, client):
    """Servers refuse managedFields in an apply, and a resourceVersion would make it conditional."""
    read = {**await client.create(config_map(a="1"))}
    read["metadata"] = {**read["metadata"], "managedFields": [{}]}
    await client.patch(CONFIG_MAP, "one", "ns", {"data": {"b": "2"}})

    applied = await client.apply(read, manager="us")

    assert {} not in applied["metadata"]["managedFields"]
    assert applied["data"] == {"a": "1", "b": "2"}


async def test_apply_with_a_resource_version_refuses_a_changed_object(client):
    read = await client.create(config_map(a="1"))
    await client.patch(CONFIG_MAP, "one", "ns", {"data": {"a": "theirs"}})

    with pytest.raises(Conflict):
        await client.apply(config_map(a="2"), manager="us", version=read["metadata"]["resourceVersion"])

    assert (await client.get(CONFIG_MAP, "one", "ns"))["data"] == {"a": "theirs"}


async def test_a_second_deletion_reports_a_missing_object(client):
    await client.create(config_map())

    assert await client.delete(CONFIG_MAP, "one", "ns") is True
    assert await client.delete(CONFIG_MAP, "one", "ns") is False


async def test_a_namesake_that_came_later_is_not_deleted(client):
    """The flow wanted to delete the shoot's old object; the new one belongs to another owner."""
    old = await client.create(config_map())
    await client.delete(CONFIG_MAP, "one", "ns")
    await client.create(config_map())

    assert await client.delete(CONFIG_MAP, "one", "ns", uid=old["metadata"]["uid"]) is False
    assert await client.find(CONFIG_MAP, "one", "ns") is not None


async def test_lists_longer_than_a_page_come_whole(api, client):
    for number in range(1234):
        api.put(CONFIG_MAPS, config_map(f"cm-{number:04}"))

    listed = await client.list(CONFIG_MAP, "ns")

    assert [obj["metadata"]["name"] for obj in listed] == [f"cm-{number:04}" for number in range(1234)]
    assert api.count("GET", "/api/v1/namespaces/ns/configmaps") == 3


async def test_a_page_that_expired_makes_the_list_start_over(api, client):
    for number in range(600):
        api.put(CONFIG_MAPS, config_map(f"cm-{number:04}"))
    api.answer = lambda request: refuse(410, "Expired", "token expired") if "continue" in request.query else None

    assert len(await client.list(CONFIG_MAP, "ns")) == 600


async def test_a_secrets_content_is_in_no_error_text(api, client, caplog):
    """A 422 quotes what it does not like, and errors end in histories and logs."""
    caplog.set_level(logging.DEBUG)
    await client.create(secret())

    with pytest.raises(Invalid) as refused:
        await client.patch(SECRET, "one", "ns", {"data": {"password": "T1RIRVItU0VOVElORUw="}})

    shown = f"{refused.value} {refused.value!r} {api_failure(refused.value)} {refused.value.message} {caplog.text}"
    assert "T1RIRVItU0VOVElORUw" not in shown
    assert "U0VOVElORUw" not in shown
    assert "patching Secret ns/one: API server answered 422 Invalid" in shown


async def test_an_error_about_other_kinds_says_what_is_wrong(api, client):
    api.answer = lambda _: refuse(403, "Forbidden", 'user "x" cannot list resource "pods"')

    with pytest.raises(Forbidden, match=r"listing pods: API server answered 403 Forbidden .*cannot list resource"):
        await client.list(POD)


@pytest.mark.parametrize(
    ("status", "final"),
    [(400, True), (422, True), (401, False), (403, False), (404, False), (409, False), (500, False)],
)
async def test_only_permanent_refusals_are_final_for_an_activity(api, client, status, final):
    api.answer = lambda _: refuse(status, "Reason", "text")

    with pytest.raises(ApiError) as refused:
        await client.get(CONFIG_MAP, "one", "ns")

    assert api_failure(refused.value).non_retryable is final


async def test_a_field_that_is_not_in_the_schema_is_final_though_the_server_says_500(api, client):
    message = "failed to create typed patch object (ns/one; /v1, Kind=ConfigMap): .dota: field not declared in schema"
    api.answer = lambda _: refuse(500, "", message)

    with pytest.raises(Invalid) as refused:
        await client.apply(config_map(), manager="us")

    assert api_failure(refused.value).non_retryable


async def test_an_error_page_of_something_in_between_is_an_error_too(api, client):
    api.answer = lambda _: web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")

    with pytest.raises(ApiError, match="502 Bad Gateway") as refused:
        await client.get(CONFIG_MAP, "one", "ns")

    assert "html" not in str(refused.value)


async def test_a_server_that_is_busy_is_asked_again_when_it_says(api, client):
    refusals = (refuse(429, "TooManyRequests", "later", retryAfterSeconds=0.01) for _ in range(2))
    api.answer = lambda _: next(refusals, None)

    await client.create(config_map())

    assert api.count("POST", "/api/v1/namespaces/ns/configmaps") == 3


async def test_a_busy_server_is_not_retried_forever(api, client):
    api.answer = lambda _: refuse(429, "TooManyRequests", "later", retryAfterSeconds=0.01)

    with pytest.raises(ApiError, match="429"):
        await client.get(CONFIG_MAP, "one", "ns")

    assert len(api.requests) == 4


async def test_a_refused_connection_is_reported():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with KubeClient.from_kubeconfig(kubeconfig(f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(Unreachable, match="getting Namespace x: API server can't be reached"):
            await client.get(NAMESPACE, "x")


async def test_a_connection_that_dies_while_idle_is_replaced_for_a_patch(api, client):
    """aiohttp repeats idempotent methods itself; server-side apply is one, but is sent as PATCH."""
    died: list[str] = []

    def die_once(request):
        if request.method == "PATCH" and not died:
            died.append(request)
            request.transport.abort()

    api.answer = die_once

    await client.apply(config_map(a="1"), manager="us")

    assert api.find(CONFIG_MAPS, "one", "ns")["data"] == {"a": "1"}


async def test_a_creation_whose_answer_was_lost_is_not_sent_twice(api, client):
    def die(request):
        if request.method == "POST":
            request.transport.abort()

    api.answer = die

    with pytest.raises(Unreachable, match="connection to API server was lost"):
        await client.create(config_map())

    assert api.count("POST", "/api/v1/namespaces/ns/configmaps") == 1


async def test_requests_beyond_the_limit_wait_and_all_get_through(api, client):
    await asyncio.gather(*(client.apply(config_map(f"cm-{n}"), manager="us") for n in range(100)))

    assert len(api.objects) == 100


async def test_a_closed_client_fails_instead_of_reconnecting(api):
    client = api.client()
    await client.list(NAMESPACE)
    await client.close()

    with pytest.raises(Unreachable, match="client is closed"):
        await client.list(NAMESPACE)


async def test_unknown_kinds_are_looked_up_once(api, client):
    api.kinds["example.org/v1"] = [
        {"name": "foos", "kind": "Foo", "namespaced": False},
        {"name": "foos/status", "kind": "Foo", "namespaced": False},
    ]
    foo = {"apiVersion": "example.org/v1", "kind": "Foo", "metadata": {"name": "x"}}

    await asyncio.gather(client.create(foo), client.resource_for("example.org/v1", "Foo"))

    assert api.find("/apis/example.org/v1/foos", "x") is not None
    assert api.count("GET", "/apis/example.org/v1") == 1


async def test_a_kind_that_comes_with_a_later_definition_is_found_then(api, client):
    with pytest.raises(NotFound):
        await client.resource_for("example.org/v1", "Foo")
    api.kinds["example.org/v1"] = [{"name": "foos", "kind": "Foo", "namespaced": True}]

    assert (await client.resource_for("example.org/v1", "Foo")).namespaced


async def test_an_object_without_its_namespace_is_refused_before_it_is_sent(api, client):
    with pytest.raises(ValueError, match="ConfigMap 'one' has no namespace"):
        await client.create({**config_map(), "metadata": {"name": "one"}})

    assert api.requests == []


async def test_a_watch_yields_changes_and_bookmarks_and_lines_of_any_length(api, client):
    api.put(CONFIG_MAPS, config_map())
    events = []

    async def follow():
        async for event in client.watch(CONFIG_MAP, "ns", resource_version="100"):
            events.append((event.type, len(json.dumps(event.object))))
            if len(events) == 3:
                return

    task = asyncio.create_task(follow())
    await until(lambda: api.watching)
    api.change(CONFIG_MAPS, "one", "ns", {"data": {"a": "x" * 3_000_000}})
    api.bookmark()
    await asyncio.wait_for(task, 10)

    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "BOOKMARK"]
    assert events[1][1] > 3_000_000


async def test_a_watch_from_an_expired_version_ends_with_gone(api, client):
    api.put(CONFIG_MAPS, config_map())
    api.compact()

    with pytest.raises(Gone):
        async for _ in client.watch(CONFIG_MAP, resource_version="1"):
            pass


def kubeconfig(server, **user):
    return {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server, "tls-server-name": "kube-apiserver.x.svc"}}],
        "users": [{"name": "a", "user": user}],
    }


async def test_a_token_file_that_rotated_is_read_again_when_the_old_token_is_refused(api, tmp_path):
    (tmp_path / "token").write_text("old")
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig(api.url, tokenFile="token")))
    good = {"value": "old"}
    seen = []

    def check(request):
        seen.append(request.headers["Authorization"])
        return None if seen[-1] == f"Bearer {good['value']}" else refuse(401, "Unauthorized", "no")

    api.answer = check
    async with KubeClient.from_kubeconfig(tmp_path / "kubeconfig") as client:
        await client.list(NAMESPACE)
        good["value"] = "new"
        with pytest.raises(Unauthorized):
            await client.list(NAMESPACE)
        (tmp_path / "token").write_text("new")
        await client.list(NAMESPACE)

    assert seen == ["Bearer old", "Bearer old", "Bearer old", "Bearer new"]


async def test_a_kubeconfig_file_that_names_another_server_is_followed(api, tmp_path, monkeypatch):
    monkeypatch.setattr("kube.client._REREAD_FILES", 0.0)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(api.url, token="t")))
    async with KubeClient.from_kubeconfig(path) as client:
        await client.list(NAMESPACE)
        path.write_text(json.dumps(kubeconfig(api.url.replace("127.0.0.1", "localhost"), token="t")))
        await client.list(NAMESPACE)

        assert client.endpoint.server.startswith("http://localhost:")


def test_a_kubeconfig_may_come_as_text_or_parsed():
    parsed = kubeconfig("https://x", token="t")

    for form in (parsed, json.dumps(parsed), json.dumps(parsed, indent=1)):
        assert KubeClient.from_kubeconfig(form).endpoint.token == "t"


async def test_a_truncated_kubeconfig_file_keeps_the_old_credentials(api, tmp_path, monkeypatch):
    """A writer that does not rename shows us the file half written."""
    monkeypatch.setattr("kube.client._REREAD_FILES", 0.0)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(api.url, token="t")))
    async with KubeClient.from_kubeconfig(path) as client:
        path.write_text(path.read_text()[:40])
        await client.list(NAMESPACE)


def test_a_kubeconfig_with_a_program_is_refused_with_the_reason():
    with pytest.raises(KubeconfigError, match="credentials from a program"):
        endpoint_of(kubeconfig("https://x", exec={"command": "rm"}))


def test_a_broken_kubeconfig_is_not_quoted():
    with pytest.raises(KubeconfigError) as refused:
        parse_kubeconfig("users: [{token: SENTINEL")

    assert "SENTINEL" not in str(refused.value)


def test_an_endpoint_does_not_print_its_credentials():
    assert "SENTINEL" not in repr(endpoint_of(kubeconfig("https://x", token="SENTINEL")))


async def test_a_server_is_verified_by_the_name_in_the_kubeconfig_and_the_client_shows_its_certificate(tmp_path):
    """Shoots are reached by cluster IP, which is in no certificate: only tls-server-name makes that safe."""
    ca, server, user = certificates("kube-apiserver.x.svc")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=ca.decode())
    (tmp_path / "server.pem").write_bytes(server)
    context.load_cert_chain(tmp_path / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    peers: list[Any] = []
    async with tls_server(context, peers) as port:
        (tmp_path / "ca.pem").write_bytes(ca)
        (tmp_path / "user.pem").write_bytes(user)
        config = kubeconfig(f"https://127.0.0.1:{port}", **{"client-certificate": "user.pem", "client-key": "user.pem"})
        config["clusters"][0]["cluster"]["certificate-authority"] = "ca.pem"
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        config["clusters"][0]["cluster"]["tls-server-name"] = "another.x.svc"
        (tmp_path / "wrong").write_text(json.dumps(config))
        async with KubeClient.from_kubeconfig(tmp_path / "kubeconfig") as client:
            assert await client.list(NAMESPACE) == []
        async with KubeClient.from_kubeconfig(tmp_path / "wrong") as client:
            with pytest.raises(Unreachable, match="certificate is not trusted"):
                await client.list(NAMESPACE)

    assert [dict(pair[0] for pair in peer["subject"])["commonName"] for peer in peers] == ["someone"]


async def test_a_pod_follows_the_ca_of_its_cluster(tmp_path, monkeypatch):
    """The CA changes below a running pod when the cluster's CAs are rotated."""
    (old, _, _), (new, server, _) = certificates("localhost"), certificates("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    (tmp_path / "server.pem").write_bytes(server)
    context.load_cert_chain(tmp_path / "server.pem")
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(old)
    monkeypatch.setattr("kube.client._REREAD_FILES", 0.0)
    monkeypatch.setattr("kube.kubeconfig._SERVICE_ACCOUNT", tmp_path)
    async with tls_server(context, []) as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        async with KubeClient.in_cluster() as client:
            with pytest.raises(Unreachable, match="certificate is not trusted"):
                await client.list(NAMESPACE)
            (tmp_path / "ca.crt").write_bytes(new)
            assert await client.list(NAMESPACE) == []


@asynccontextmanager
async def tls_server(context, peers):
    """The port of a server with empty lists; ``peers`` gets the certificate of each client."""

    async def handle(request):
        peers.append(request.transport.get_extra_info("peercert"))
        return web.json_response({"metadata": {}, "items": []})

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_invalid_certificates_are_reported(api):
    config = kubeconfig(api.url)
    config["clusters"][0]["cluster"]["certificate-authority-data"] = "bm9uZQ=="
    async with KubeClient.from_kubeconfig(config) as client:
        with pytest.raises(Unreachable, match="certificates of the kubeconfig can't be used"):
            await client.list(NAMESPACE)


def test_resources_know_their_urls():
    assert SHOOT.path("garden-dev", "one", "status") == (
        "/apis/core.gardener.cloud/v1beta1/namespaces/garden-dev/shoots/one/status"
    )
    assert SECRET.path() == "/api/v1/secrets"
    assert CLUSTER.path("ignored", "one") == "/apis/extensions.gardener.cloud/v1alpha1/clusters/one"


def test_kinds_are_found_by_object_and_by_name_and_unknown_ones_are_named():
    assert resource_of({"apiVersion": "v1", "kind": "ServiceAccount"}) is SERVICE_ACCOUNT
    assert resource_of("v1", "ServiceAccount") is SERVICE_ACCOUNT
    with pytest.raises(UnknownKind, match="kind 'Foo' of 'v1'"):
        resource_of(("v1", "Foo"))


async def test_delete_reports_whether_finalizers_are_left(api, client):
    free = await client.create(config_map("free"))
    held = config_map("held")
    held["metadata"]["finalizers"] = ["test/held"]
    held = await client.create(held)

    assert await client.remove(CONFIG_MAP, "free", "ns", uid=free["metadata"]["uid"]) is None
    left = await client.remove(CONFIG_MAP, "held", "ns", uid=held["metadata"]["uid"])

    assert left is not None
    assert left["metadata"]["deletionTimestamp"]
    assert api.count("GET", "/api/v1/namespaces/ns/configmaps/free") == 0
    assert await client.remove(CONFIG_MAP, "held", "ns", uid="of an earlier one") is None

"""The gateway's files: where connections are routed, and that a change leaves other routes alone."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.components import apiserver_proxy, gateway, vpn_seed_server, vpn_shoot
from activities.components.gateway import (
    ApiServerExposure,
    Forwarding,
    Route,
    ServiceExposure,
    ServiceRoute,
    Upstream,
)
from kube.cache import Caches
from tests.unit.kube.api_server import ApiServer
from workers.gateway import Gateway
from workers.lib.runtime import Health

ENVOY = Path(sys.prefix) / "bin" / "envoy"
A = Route(
    "shoot--dev--a", ("api.a.example.org", "api.a.internal.example.org"), ("100.64.1.1", 443), ("100.64.1.2", 1194)
)
B = Route("shoot--dev--b", ("api.b.example.org",), ("100.64.1.3", 443), None)
GONE = Route("shoot--dev--gone", ("api.gone.example.org",), ("192.0.2.7", 443), None, elsewhere=True)
NAMED = Route("shoot--dev--named", ("api.named.example.org",), ("gateway.example.org", 443), None, elsewhere=True)

PROMETHEUS = ServiceRoute(
    "outbound|80||prometheus.shoot--dev--a.svc.cluster.local", ("p-dev--a.ingress.example.org",), ("100.64.1.4", 80)
)


def chains(files):
    listeners = {each["name"]: each for each in files[gateway.LISTENERS_FILE]["resources"]}
    return {each["name"]: each for each in listeners.get("sni", {}).get("filter_chains", [])}


def destinations(files, name):
    routes = files[name]["resources"][0]["virtual_hosts"][0]["routes"]
    return [each["match"]["headers"][0]["string_match"]["exact"] for each in routes]


def test_each_server_name_routes_to_its_own_api_server():
    files = gateway.xds_files([A, B])
    clusters = {each["name"]: each for each in files[gateway.CLUSTERS_FILE]["resources"]}
    chain = chains(files)["shoot--dev--b"]

    assert chain["filter_chain_match"]["server_names"] == ["api.b.example.org"]
    target = clusters[chain["filters"][0]["typed_config"]["cluster"]]
    endpoint = target["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["socket_address"] == {"address": "100.64.1.3", "port_value": 443}


def test_only_known_destinations_can_be_dialled():
    """The CONNECT ports are open to the world: no header may select any other Service of the seed."""
    files = gateway.xds_files([A, B])

    assert destinations(files, gateway.VPN_ROUTES_FILE) == [
        "outbound|1194||vpn-seed-server.shoot--dev--a.svc.cluster.local"
    ]
    assert destinations(files, gateway.PROXY_ROUTES_FILE) == [
        "outbound|443||kube-apiserver.shoot--dev--a.svc.cluster.local",
        "outbound|443||kube-apiserver.shoot--dev--b.svc.cluster.local",
    ]


@pytest.fixture
async def two_gateways(tmp_path, monkeypatch):
    """Two Envoys: what is forwarded by the first one, at 127.0.0.3, ends at a pod behind the second one."""
    there = Route(A.namespace, A.hosts, ("127.0.0.2", 443), None, elsewhere=True)

    async def answer(reader, writer):
        writer.write(b"pod:" + await reader.read(100))
        await writer.drain()

    pod = await asyncio.start_server(answer, "127.0.0.1")
    at = pod.sockets[0].getsockname()[:2]
    envoys = []
    for address, route in (("127.0.0.3", there), ("127.0.0.2", Route(A.namespace, A.hosts, at, at))):
        directory = tmp_path / address
        directory.mkdir()
        monkeypatch.setattr(gateway, "XDS_DIRECTORY", str(directory))
        files = {**gateway.xds_files([route]), "envoy.json": gateway.bootstrap_config()}
        for name, content in files.items():
            text = json.dumps(content).replace("0.0.0.0", address)
            (directory / name).write_text(text.replace("/tmp/envoy-admin.sock", f"{directory}/admin.sock"))
        argv = (str(ENVOY), "--config-path", str(directory / "envoy.json"), "--disable-hot-restart")
        envoys.append(await asyncio.create_subprocess_exec(*argv, "--concurrency", "1", "--log-level", "error"))
    yield "127.0.0.3"
    for envoy in envoys:
        envoy.kill()
        await envoy.wait()
    pod.close()


@pytest.mark.parametrize(
    ("port", "header", "status"),
    [
        (gateway.PROXY_PORT, f"{gateway.PROXY_HEADER}: {gateway.proxy_header(A.namespace)}", b"200"),
        (gateway.VPN_PORT, f"{gateway.VPN_HEADER}: {gateway.vpn_header(A.namespace)}", b"200"),
        (gateway.VPN_PORT, f"{gateway.VPN_HEADER}: {gateway.vpn_header(A.namespace, 'vpn-seed-server-1')}", b"404"),
        (gateway.PROXY_PORT, f"{gateway.PROXY_HEADER}: {gateway.proxy_header(B.namespace)}", b"404"),
    ],
)
async def test_after_a_move_clients_of_both_connect_ports_are_forwarded(two_gateways, port, header, status):
    """Pods of the cluster and its end of the tunnel may have an old DNS answer, too."""
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection(two_gateways, port)
                writer.write(f"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n{header}\r\n\r\n".encode())
                answered = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            except (OSError, asyncio.IncompleteReadError):
                answered = b"503"
            if answered != b"503":
                break
            await asyncio.sleep(0.1)  # until both listen
        assert answered == status
        if status == b"200":
            writer.write(b"hello")
            assert await reader.readexactly(9) == b"pod:hello"
        writer.close()


def test_each_of_two_vpn_servers_can_be_dialled():
    files = gateway.xds_files([Route(A.namespace, A.hosts, A.api_server, A.vpn, ("100.64.1.9", 1194))])
    servers = ("vpn-seed-server", "vpn-seed-server-1")
    names = [f"outbound|1194||{each}.shoot--dev--a.svc.cluster.local" for each in servers]

    assert destinations(files, gateway.VPN_ROUTES_FILE) == names
    found = {
        each["name"]: each["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        for each in files[gateway.CLUSTERS_FILE]["resources"]
    }
    assert found[names[1]] == {"socket_address": {"address": "100.64.1.9", "port_value": 1194}}


def test_a_new_shoot_changes_no_chain_of_another_and_no_shared_listener():
    """Envoy ends the connections of a chain that changes: another shoot's watches, or all tunnels."""
    before, after = gateway.xds_files([A]), gateway.xds_files([A, B])

    assert chains(before)[A.namespace] == chains(after)[A.namespace]
    shared = [
        [each for each in files[gateway.LISTENERS_FILE]["resources"] if each["name"] != "sni"]
        for files in (before, after)
    ]
    assert shared[0] == shared[1]


def test_a_service_is_reached_by_its_server_name_alone():
    """The header of the CONNECT ports selects no Service, and established connections stay."""
    before, after = gateway.xds_files([A]), gateway.xds_files([A], [PROMETHEUS])
    clusters = {each["name"]: each for each in after[gateway.CLUSTERS_FILE]["resources"]}
    chain = chains(after)[PROMETHEUS.cluster]

    assert chain["filter_chain_match"]["server_names"] == ["p-dev--a.ingress.example.org"]
    assert chain["filters"][0]["typed_config"]["cluster"] == PROMETHEUS.cluster
    endpoint = clusters[PROMETHEUS.cluster]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["socket_address"] == {"address": "100.64.1.4", "port_value": 80}
    assert chains(before)[A.namespace] == chains(after)[A.namespace]
    for routes in (gateway.VPN_ROUTES_FILE, gateway.PROXY_ROUTES_FILE):
        assert before[routes] == after[routes]


def test_a_service_without_a_name_gets_no_connections():
    """A chain without server names would match all."""
    nameless = ServiceRoute(PROMETHEUS.cluster, (), PROMETHEUS.address)

    assert chains(gateway.xds_files([A], [nameless])).keys() == chains(gateway.xds_files([A])).keys()


def test_a_shoot_without_an_address_yet_is_left_out():
    files = gateway.xds_files([Route("shoot--dev--c", ("c.example.org",), None, None)])

    assert "shoot--dev--c" not in chains(files)
    assert files[gateway.CLUSTERS_FILE]["resources"] == []


def test_clusters_are_written_before_their_listeners():
    first, *_, last = gateway.xds_files([A])
    assert (first, last) == (gateway.CLUSTERS_FILE, gateway.LISTENERS_FILE)


def test_envoy_takes_every_configuration_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway, "XDS_DIRECTORY", str(tmp_path))
    for name, content in gateway.xds_files([A, B, GONE, NAMED], [PROMETHEUS, ETCD]).items():
        (tmp_path / name).write_text(json.dumps(content))
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", key, "-out", certificate, "-subj", "/CN=test", "-days", "1"],
        check=True, capture_output=True,
    )  # fmt: skip
    proxy = apiserver_proxy.ApiServerProxy("shoot--dev--a", "api.a.internal.example.org")
    node_proxy = next(item for item in apiserver_proxy.objects(proxy) if item["kind"] == "ConfigMap")
    vpn = json.dumps(vpn_seed_server.proxy_config("198.19.255.0/24"))
    for path in ("/srv/secrets/server/tls.key", "/srv/secrets/server/tls.crt", "/srv/secrets/ca/bundle.crt"):
        vpn = vpn.replace(path, str(key if path.endswith("key") else certificate))
    client = vpn_shoot.VpnShoot("shoot--dev--a", "api.a.internal.example.org", {}, b"", b"")
    for name, text in {
        "gateway": json.dumps(gateway.bootstrap_config()),
        "apiserver-proxy": node_proxy["data"]["envoy.json"],
        "vpn": vpn,
        "vpn-shoot": json.dumps(vpn_shoot.proxy_config(client)),
    }.items():
        file = tmp_path / f"{name}.json"
        file.write_text(text)
        answer = subprocess.run(
            [ENVOY, "--config-path", file, "--mode", "validate", "--log-level", "error"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert answer.returncode == 0, f"{name}: {answer.stdout}{answer.stderr}"


def test_the_service_of_the_gateway_has_the_settings_of_the_seed():
    def service(settings):
        objects = gateway.objects(internal_domain="internal.example.org", load_balancer=settings)
        return next(each for each in objects if each["kind"] == "Service")

    assert service(None)["spec"]["externalTrafficPolicy"] == "Cluster"
    assert "loadBalancerClass" not in service({})["spec"]
    made = service({"annotations": {"a.example.org/b": "c"}, "class": "fast", "externalTrafficPolicy": "Local"})
    assert made["metadata"]["annotations"]["a.example.org/b"] == "c"
    assert (made["spec"]["loadBalancerClass"], made["spec"]["externalTrafficPolicy"]) == ("fast", "Local")


def test_a_pod_that_is_deleted_serves_until_clients_go_elsewhere():
    objects = gateway.objects(internal_domain="internal.example.org")
    pod = next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    [proxy] = pod["containers"]

    assert 5 <= proxy["lifecycle"]["preStop"]["sleep"]["seconds"] < pod["terminationGracePeriodSeconds"]


# The controller next to Envoy


@pytest.fixture
async def world(tmp_path):
    async with ApiServer().running() as api, api.client() as client:
        caches, health = Caches(client), Health()
        task = asyncio.create_task(Gateway(caches, tmp_path, health).run())
        try:
            yield api, tmp_path, health
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.close()


def service(name, namespace, address):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": gateway.LABELS},
        "spec": {"clusterIP": address},
    }


def expose(api, namespace, *hosts, vpn=True, handler=""):
    what = ApiServerExposure(
        hosts=hosts,
        api_server=Upstream(service="kube-apiserver", port=443),
        vpn=Upstream(service="vpn-seed-server", port=1194) if vpn else None,
    )
    api.put("/api/v1/configmaps", gateway.exposure("apiserver-exposure", namespace, what, handler))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a change of a file sends no event
            await asyncio.sleep(0.005)


def written(directory):
    files = {}
    for name in (gateway.CLUSTERS_FILE, gateway.VPN_ROUTES_FILE, gateway.PROXY_ROUTES_FILE, gateway.LISTENERS_FILE):
        path = directory / name
        files[name] = json.loads(path.read_text()) if path.exists() else {"resources": []}
    return files


async def test_an_exposure_is_served_as_soon_as_its_services_have_addresses(world):
    api, directory, health = world
    await until(lambda: health.ready)
    expose(api, "shoot--dev--a", "api.a.example.org")
    api.put("/api/v1/services", service("kube-apiserver", "shoot--dev--a", "100.64.1.1"))
    await until(lambda: "shoot--dev--a" in chains(written(directory)))
    assert destinations(written(directory), gateway.VPN_ROUTES_FILE) == []

    api.put("/api/v1/services", service("vpn-seed-server", "shoot--dev--a", "100.64.1.2"))
    await until(lambda: len(destinations(written(directory), gateway.VPN_ROUTES_FILE)) == 1)

    api.put("/api/v1/services", service("vpn-seed-server-1", "shoot--dev--a", "100.64.1.9"))
    await until(lambda: len(destinations(written(directory), gateway.VPN_ROUTES_FILE)) == 2)

    api.remove("/api/v1/configmaps", "apiserver-exposure", "shoot--dev--a")
    await until(lambda: "shoot--dev--a" not in chains(written(directory)))


async def test_a_shoot_cannot_take_the_server_name_of_another_shoot(world):
    """Two chains for one name would make Envoy refuse all files, and with them every later shoot."""
    api, directory, _ = world
    for namespace, address in (("shoot--dev--a", "100.64.1.1"), ("shoot--dev--b", "100.64.1.3")):
        api.put("/api/v1/services", service("kube-apiserver", namespace, address))
        expose(api, namespace, "api.a.example.org", f"api.{namespace}.example.org", vpn=False)
    await until(lambda: "shoot--dev--b" in chains(written(directory)))

    found = chains(written(directory))
    assert "api.a.example.org" in found["shoot--dev--a"]["filter_chain_match"]["server_names"]
    assert "api.a.example.org" not in found["shoot--dev--b"]["filter_chain_match"]["server_names"]


def expose_service(api, name, *hosts, namespace="shoot--dev--a", service="prometheus", port=80):
    what = ServiceExposure(hosts=hosts, upstream=Upstream(service=service, port=port))
    api.put("/api/v1/configmaps", gateway.service_exposure(name, namespace, what))


async def test_a_service_is_served_next_to_the_api_server(world):
    api, directory, _ = world
    expose(api, "shoot--dev--a", "api.a.example.org", vpn=False)
    api.put("/api/v1/services", service("kube-apiserver", "shoot--dev--a", "100.64.1.1"))
    expose_service(api, "prometheus", "p-dev--a.ingress.example.org")
    await until(lambda: "shoot--dev--a" in chains(written(directory)))
    assert PROMETHEUS.cluster not in chains(written(directory)), "it has no address yet"

    api.put("/api/v1/services", service("prometheus", "shoot--dev--a", "100.64.1.4"))
    await until(lambda: PROMETHEUS.cluster in chains(written(directory)))
    assert written(directory) == gateway.xds_files(
        [Route("shoot--dev--a", ("api.a.example.org",), ("100.64.1.1", 443), None)], [PROMETHEUS]
    )

    api.remove("/api/v1/configmaps", "prometheus", "shoot--dev--a")
    await until(lambda: PROMETHEUS.cluster not in chains(written(directory)))
    assert "shoot--dev--a" in chains(written(directory))


ETCD = ServiceRoute(
    "outbound|2380||etcd-main-0-exposed.shoot--dev--a.svc.cluster.local",
    ("etcd-main-0.etcd-main-peer.shoot--dev--a.svc",),
    ("100.64.1.5", 2380),
    2380,
)


def test_the_gateway_listens_for_etcds_only_while_there_are_some():
    def ports(*services):
        listeners = gateway.xds_files([A], services)[gateway.LISTENERS_FILE]["resources"]
        return {each["name"]: each["address"]["socket_address"]["port_value"] for each in listeners}

    assert "etcd-2380" not in ports(PROMETHEUS)
    assert (ports(PROMETHEUS, ETCD)["etcd-2380"], len(ports(PROMETHEUS, ETCD))) == (2380, 4)
    assert ETCD.cluster not in chains(gateway.xds_files([A], [ETCD])), "its port is another one"


def test_only_the_seeds_own_gateway_has_ports_for_etcds():
    def ports(place):
        found = gateway.objects(internal_domain="internal.example.org", place=place)
        [service] = (each for each in found if each["kind"] == "Service")
        return {each["port"] for each in service["spec"]["ports"]}

    assert ports(gateway.OWN) == {443, 8132, 8443, 2379, 2380}
    assert ports(gateway.Place("istio-ingress-handler-a", "a")) == {443, 8132, 8443}


@pytest.mark.parametrize("port", [22, 8132])
def test_an_exposure_names_no_other_port(port):
    with pytest.raises(ValueError, match="passes TLS through"):
        ServiceExposure(hosts=("a",), upstream=Upstream(service="a", port=1), port=port)


async def test_a_service_takes_neither_an_api_servers_name_nor_its_cluster(world):
    """Envoy refuses files in which a name or a cluster is there twice."""
    api, directory, _ = world
    expose(api, "shoot--dev--a", "api.a.example.org", vpn=False)
    for name in ("kube-apiserver", "prometheus", "zzz"):
        api.put("/api/v1/services", service(name, "shoot--dev--a", "100.64.1.1"))
    expose_service(api, "kube", "kube.example.org", service="kube-apiserver", port=443)
    expose_service(api, "p", "api.a.example.org", "p.example.org")
    expose_service(api, "q", "q.example.org")
    expose_service(api, "z", "z.example.org", service="zzz")
    last = "outbound|80||zzz.shoot--dev--a.svc.cluster.local"
    await until(lambda: last in chains(written(directory)))

    served = {name: each["filter_chain_match"]["server_names"] for name, each in chains(written(directory)).items()}
    assert served == {
        "blackhole": ["blackhole.invalid"],
        "shoot--dev--a": ["api.a.example.org"],
        PROMETHEUS.cluster: ["p.example.org"],
        last: ["z.example.org"],
    }


def forward(api, *hosts, namespace=gateway.NAMESPACE, seconds=60.0):
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    manifest = gateway.forwarding("shoot--dev--a", Forwarding(hosts=hosts, address="192.0.2.7", until=until))
    manifest["metadata"]["namespace"] = namespace
    api.put("/api/v1/configmaps", manifest)


def leads_to(files, namespace):
    clusters = {each["name"]: each for each in files[gateway.CLUSTERS_FILE]["resources"]}
    endpoint = clusters[gateway.proxy_header(namespace)]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    return endpoint["endpoint"]["address"]["socket_address"]["address"]


async def test_clients_are_forwarded_after_a_move_until_dns_answers_expire(world):
    api, directory, _ = world
    api.put("/api/v1/services", service("kube-apiserver", "shoot--dev--a", "100.64.1.1"))
    expose(api, "shoot--dev--a", "api.a.example.org", vpn=False)
    forward(api, "api.a.example.org", seconds=2)
    await until(lambda: "shoot--dev--a" in chains(written(directory)))
    assert leads_to(written(directory), "shoot--dev--a") == "100.64.1.1"

    api.remove("/api/v1/configmaps", "apiserver-exposure", "shoot--dev--a")
    await until(lambda: leads_to(written(directory), "shoot--dev--a") == "192.0.2.7")
    assert chains(written(directory))["shoot--dev--a"]["filter_chain_match"]["server_names"] == ["api.a.example.org"]

    await until(lambda: "shoot--dev--a" not in chains(written(directory)))
    assert not [name for (_, _, name) in api.objects if name == "shoot--dev--a"]


async def test_only_the_gateways_own_namespace_may_forward_out_of_the_seed(world):
    api, directory, _ = world
    forward(api, "api.a.example.org", namespace="shoot--dev--a")
    forward(api, "api.b.example.org")
    await until(lambda: "shoot--dev--a" in chains(written(directory)))

    assert chains(written(directory))["shoot--dev--a"]["filter_chain_match"]["server_names"] == ["api.b.example.org"]


async def test_a_handlers_gateway_serves_its_own_shoots_and_the_seeds_own_gateway_all_others(world, tmp_path_factory):
    api, directory, _ = world
    other = tmp_path_factory.mktemp("handler")
    for namespace, address in (("shoot--dev--a", "100.64.1.1"), ("shoot--dev--b", "100.64.1.3")):
        api.put("/api/v1/services", service("kube-apiserver", namespace, address))
        api.put("/api/v1/services", service("vpn-seed-server", namespace, address))
    expose(api, "shoot--dev--a", "api.a.example.org")
    expose(api, "shoot--dev--b", "api.b.example.org", handler="internal")
    forwarding = Forwarding(hosts=("api.c.example.org",), address="192.0.2.7", until=datetime(2100, 1, 1, tzinfo=UTC))
    place = gateway.Place("istio-ingress-handler-internal", "internal")
    api.put("/api/v1/configmaps", gateway.forwarding("shoot--dev--c", forwarding, place))
    async with api.client() as client:
        caches = Caches(client)
        task = asyncio.create_task(Gateway(caches, other, Health(), "", place).run())
        await until(lambda: "shoot--dev--b" in chains(written(other)))
        await until(lambda: "shoot--dev--a" in chains(written(directory)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.close()

    assert chains(written(other)).keys() == {"blackhole", "shoot--dev--b", "shoot--dev--c"}
    assert chains(written(directory)).keys() == {"blackhole", "shoot--dev--a"}
    forwarded = [gateway.vpn_header("shoot--dev--c", server) for server in gateway.VPN_SERVERS]
    assert destinations(written(other), gateway.VPN_ROUTES_FILE) == [gateway.vpn_header("shoot--dev--b"), *forwarded]
    assert destinations(written(other), gateway.PROXY_ROUTES_FILE) == [
        gateway.proxy_header("shoot--dev--b"),
        gateway.proxy_header("shoot--dev--c"),
    ]
    assert destinations(written(directory), gateway.VPN_ROUTES_FILE) == [gateway.vpn_header("shoot--dev--a")]
    assert destinations(written(directory), gateway.PROXY_ROUTES_FILE) == [gateway.proxy_header("shoot--dev--a")]


@pytest.mark.parametrize("key", [gateway.EXPOSURE_KEY, gateway.SERVICE_EXPOSURE_KEY])
async def test_an_invalid_exposure_does_not_affect_others(world, key):
    api, directory, _ = world
    broken = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "aaa", "labels": gateway.LABELS},
        "data": {key: "{"},
    }
    api.put("/api/v1/configmaps", broken)
    api.put("/api/v1/services", service("kube-apiserver", "shoot--dev--a", "100.64.1.1"))
    expose(api, "shoot--dev--a", "api.a.example.org", vpn=False)

    await until(lambda: "shoot--dev--a" in chains(written(directory)))

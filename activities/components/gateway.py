"""The gateway of a seed: the Envoy through which all clients reach the API servers of the seed's shoots.

The gateway also serves other Services of a control plane that have a name in the seed's ingress domain.

Three ports: 443 passes TLS through by server name; 8132 accepts the VPN's HTTP CONNECT; 8443 accepts the HTTP CONNECT
of the apiserver-proxies on the nodes. Two more, 2379 and 2380, pass TLS through to members of an etcd while it has
members in two seeds; without such an etcd Envoy does not listen there. Envoy reads its listeners, clusters and routes
from files (filesystem xDS). A controller in the same pod writes these files from the exposures of each control plane:
``ApiServerExposure``,
``ServiceExposure``. Why not Istio: docs/decisions/0003-envoy-with-filesystem-xds.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import field_validator

from activities.components import base, connections, envoy, priority
from activities.components.base import Manifest
from api import images
from api.constants import EXPOSURE_CLASS_HANDLER, ROLE, ROLE_EXPOSURE_CLASS_HANDLER
from api.labels import pod_security
from api.model import ApiModel
from api.names import is_ip_address

NAME = "istio-ingressgateway"
NAMESPACE = "istio-ingress"
SELECT = base.control_plane_labels(NAME)
"""Labels that select the pods of all versions."""
KEEPS_SERVING = {"networking.gardener.cloud/keeps-serving": "true"}
"""Label of pods that serve on after their deletion. Pods of earlier versions lack it: they end at once."""

SNI_PORT = 443
VPN_PORT = 8132
PROXY_PORT = 8443
SNI_TARGET_PORT = 9443
ETCD_PORTS = (2379, 2380)
"""Ports of etcd, for its clients and its peers: by these the members of two seeds reach each other."""
_CONTROLLER_PORT = 8080

VPN_SERVERS = ("vpn-seed-server", "vpn-seed-server-1")
"""Names of the VPN servers of a control plane. Only a highly available control plane has the second server.

An exposure names the first server. The second server needs no field of the exposure, which gateways of earlier
versions would refuse: the gateway finds its Service by name.
"""
VPN_HEADER = "Reversed-VPN"
PROXY_HEADER = "X-Gardener-Destination"

LABEL = "networking.gardener.cloud/gateway"
"""Label of ConfigMaps with an exposure, and of the Services that these ConfigMaps name."""
LABELS = {LABEL: NAME}
SELECTOR = f"{LABEL}={NAME}"
EXPOSURE_KEY = "exposure.json"
SERVICE_EXPOSURE_KEY = "service.json"
FORWARDING_KEY = "forwarding.json"

XDS_DIRECTORY = "/var/lib/envoy"
LISTENERS_FILE = "listeners.json"
CLUSTERS_FILE = "clusters.json"
VPN_ROUTES_FILE = "routes-vpn.json"
PROXY_ROUTES_FILE = "routes-apiserver-proxy.json"

_BLACKHOLE = "blackhole"

_CONNECT_ATTEMPTS = 8
_CONNECT_TIMEOUT = "0.3s"
"""Timeout of one attempt to connect to an API server.

The timeout is short: the address of an API server that has just ended does not answer at all until kube-proxy knows of
the end. A client that waits for such a connection cannot resolve the API server's name again meanwhile.
"""

_REFRESHED = "5s"
"""Maximum age of a DNS answer about another seed's gateway."""

_LEAVING_SECONDS = 10
"""Time that a pod serves after its deletion: kube-proxy sends it new connections until it has noticed the deletion."""

_HANDOVER_SECONDS = 30
"""Time that pods of an earlier version stay after a new pod is ready.

The Service then selects the new pod alone, nodes learn of it, and requests that the earlier pods have begun end.
"""

EXPOSURE = "apiserver-exposure"
"""ConfigMap in a control plane's namespace with the names that the gateway serves."""


@dataclass(frozen=True)
class Place:
    """A gateway of a seed: the seed's own one, or the gateway of one handler of ExposureClasses."""

    namespace: str = NAMESPACE
    handler: str = ""
    """Name of the handler; empty: the seed's own gateway."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Deployment, its pods and the Service, in addition to those that select the pods."""

    @property
    def role(self) -> str:
        """Name of the ClusterRoleBinding, and of the ClusterRole that it binds."""
        return f"gardener.cloud:{NAME}{f':{self.handler}' if self.handler else ''}"


OWN = Place()
"""The seed's own gateway, for all Shoots without an ExposureClass."""


class Upstream(ApiModel):
    """A port of a Service in the namespace of the exposure."""

    service: str
    port: int


class ApiServerExposure(ApiModel):
    """The parts of one control plane that the gateway serves, like Istio's Gateway and VirtualService."""

    hosts: tuple[str, ...]
    """Server names of the API server."""
    api_server: Upstream
    vpn: Upstream | None = None


class ServiceExposure(ApiModel):
    """Another Service of a control plane that the gateway serves. The Service, not the gateway, terminates TLS."""

    hosts: tuple[str, ...]
    """Server names of the Service."""
    upstream: Upstream
    port: int = SNI_PORT
    """Port of the gateway: ``SNI_PORT`` or one of ``ETCD_PORTS``. Gateways of earlier versions know no other port."""

    @field_validator("port")
    @classmethod
    def _passes_tls(cls, port: int) -> int:
        if port not in (SNI_PORT, *ETCD_PORTS):
            raise ValueError(f"the gateway passes TLS through on {SNI_PORT} and {ETCD_PORTS} only")
        return port


class Forwarding(ApiModel):
    """Forwards clients with an old DNS answer to the gateway of the seed that has the API server of this name now.

    So it does with clients of all three ports.
    """

    hosts: tuple[str, ...]
    address: str
    """IP address or host name of the other seed's gateway."""
    until: datetime


@dataclass(frozen=True)
class Route:
    """An exposure with its Services resolved to addresses; an upstream without an address is left out."""

    namespace: str
    hosts: tuple[str, ...]
    api_server: tuple[str, int] | None
    vpn: tuple[str, int] | None
    second_vpn: tuple[str, int] | None = None
    """The second VPN server, which only highly available control planes have."""
    elsewhere: bool = False
    """The route goes to the gateway of another seed, which itself routes by server name."""


@dataclass(frozen=True)
class ServiceRoute:
    """A ``ServiceExposure`` with its Service resolved to an address. Clients reach it only by its server name."""

    cluster: str
    """Name of the cluster, see ``service_cluster``; each route needs its own."""
    hosts: tuple[str, ...]
    address: tuple[str, int]
    port: int = SNI_PORT
    """Port of the gateway."""


def vpn_header(namespace: str, server: str = VPN_SERVERS[0]) -> str:
    """Value of ``Reversed-VPN`` for one VPN server of a control plane."""
    return service_cluster(namespace, Upstream(service=server, port=1194))


def proxy_header(namespace: str) -> str:
    """Value of ``X-Gardener-Destination`` for one control plane."""
    return service_cluster(namespace, Upstream(service="kube-apiserver", port=443))


def service_cluster(namespace: str, upstream: Upstream) -> str:
    """Name of a Service's port in Envoy, as in Istio."""
    return f"outbound|{upstream.port}||{upstream.service}.{namespace}.svc.cluster.local"


def exposure(name: str, namespace: str, what: ApiServerExposure, handler: str = "") -> Manifest:
    """The ConfigMap that the gateways' controllers read; only the gateway of ``handler`` serves it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(name, namespace, labels=LABELS | _of_handler(handler)),
        "data": {EXPOSURE_KEY: what.model_dump_json(exclude_none=True)},
    }


def service_exposure(name: str, namespace: str, what: ServiceExposure) -> Manifest:
    """The ConfigMap for one more Service. The Service must have ``LABELS``, too, and an address in the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(name, namespace, labels=LABELS),
        "data": {SERVICE_EXPOSURE_KEY: what.model_dump_json(exclude_defaults=True)},
    }


def handler_of(item: Mapping[str, Any]) -> str:
    """Name of the handler whose gateway serves an exposure; empty: the seed's own gateway."""
    name: str = (item["metadata"].get("labels") or {}).get(EXPOSURE_CLASS_HANDLER, "")
    return name


def _of_handler(name: str) -> dict[str, str]:
    return {EXPOSURE_CLASS_HANDLER: name} if name else {}


def forwarding(technical_id: str, what: Forwarding, place: Place = OWN) -> Manifest:
    """The ConfigMap of a forwarding. It stays after the control plane's namespace is gone, until the time ``until``.

    Then the gateway's controller deletes the ConfigMap.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(technical_id, place.namespace, labels=LABELS | _of_handler(place.handler)),
        "data": {FORWARDING_KEY: what.model_dump_json()},
    }


# Files that Envoy reads


def xds_files(routes: Sequence[Route], services: Sequence[ServiceRoute] = ()) -> dict[str, Manifest]:
    """All files by name, in the order to write: no listener or route may name a cluster that does not exist yet."""
    return {
        CLUSTERS_FILE: _response("cluster.v3.Cluster", _clusters(routes, services)),
        VPN_ROUTES_FILE: _response("route.v3.RouteConfiguration", [_vpn_routes(routes)]),
        PROXY_ROUTES_FILE: _response("route.v3.RouteConfiguration", [_proxy_routes(routes)]),
        LISTENERS_FILE: _response("listener.v3.Listener", _listeners(routes, services)),
    }


def _response(kind: str, items: Iterable[Manifest]) -> Manifest:
    resources = [{"@type": f"type.googleapis.com/envoy.config.{kind}", **item} for item in items]
    return {"version_info": base.checksum(resources)[:16], "resources": resources}


def _clusters(routes: Sequence[Route], services: Sequence[ServiceRoute]) -> list[Manifest]:
    made = []
    for route in routes:
        if route.api_server:
            name, (host, port) = proxy_header(route.namespace), route.api_server
            made.append(
                envoy.static_cluster(name, host, port, connect_timeout=_CONNECT_TIMEOUT)
                if is_ip_address(host)
                else envoy.dns_cluster(name, host, port, refreshed=_REFRESHED)
            )
        if route.api_server and route.elsewhere:
            made += [_gateway_cluster(route.namespace, route.api_server[0], port) for port in (PROXY_PORT, VPN_PORT)]
        made += [envoy.static_cluster(header, *address) for header, address in _vpns(route)]
    return [*made, *(envoy.static_cluster(each.cluster, *each.address) for each in services)]


def _gateway_cluster(namespace: str, host: str, port: int) -> Manifest:
    """A port of the other seed's gateway, to which clients of that port here are forwarded."""
    name = _forwarded(namespace, port)
    if is_ip_address(host):
        return envoy.static_cluster(name, host, port)
    return envoy.dns_cluster(name, host, port, refreshed=_REFRESHED)


def _forwarded(namespace: str, port: int) -> str:
    return f"forwarded|{port}||{namespace}"


def _listeners(routes: Sequence[Route], services: Sequence[ServiceRoute]) -> list[Manifest]:
    inspector = {
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": envoy.typed("filters.listener.tls_inspector.v3.TlsInspector"),
    }
    chains = [
        _chain(route.namespace, route.hosts, proxy_header(route.namespace))
        for route in routes
        if route.api_server and route.hosts
    ]
    chains += _chains(services, SNI_PORT)
    # A listener needs a filter chain. This chain matches no client, so that the listener exists before the first shoot.
    unused = _chain(_BLACKHOLE, ["blackhole.invalid"], _BLACKHOLE)
    return [
        # If only filter chains change, Envoy keeps the connections of all chains that stay the same.
        envoy.listener("sni", "0.0.0.0", SNI_TARGET_PORT, [unused, *chains], listener_filters=[inspector]),
        # These listeners never change. Their routes are separate files, because a changed chain ends its connections.
        _connect_listener("vpn", VPN_PORT, VPN_ROUTES_FILE),
        _connect_listener("apiserver-proxy", PROXY_PORT, PROXY_ROUTES_FILE),
        *(
            envoy.listener(f"etcd-{port}", "0.0.0.0", port, found, listener_filters=[inspector])
            for port in ETCD_PORTS
            if (found := _chains(services, port))
        ),
    ]


def _chains(services: Sequence[ServiceRoute], port: int) -> list[Manifest]:
    return [_chain(each.cluster, each.hosts, each.cluster) for each in services if each.hosts and each.port == port]


def _chain(name: str, hosts: Sequence[str], cluster: str) -> Manifest:
    return {
        "name": name,
        "filter_chain_match": {"server_names": list(hosts)},
        # kube-proxy chooses a pod for each attempt, also a pod of a lost node until the seed has noticed the loss.
        # If one of two pods is lost, all of 8 attempts meet it once in 256 connections.
        "filters": [envoy.tcp_proxy(cluster, max_connect_attempts=_CONNECT_ATTEMPTS)],
    }


def _connect_listener(name: str, port: int, routes_file: str) -> Manifest:
    rds = {"route_config_name": name, "config_source": _file(routes_file)}
    http = envoy.http(name, rds=rds, upgrade_configs=[{"upgrade_type": "CONNECT"}])
    return envoy.listener(name, "0.0.0.0", port, [{"filters": [http]}])


def _vpn_routes(routes: Sequence[Route]) -> Manifest:
    here = {header: header for route in routes for header, _ in _vpns(route)}
    there = {
        vpn_header(route.namespace, server): _forwarded(route.namespace, VPN_PORT)
        for route in _elsewhere(routes)
        for server in VPN_SERVERS
    }
    return _routes("vpn", VPN_HEADER, here, there)


def _elsewhere(routes: Sequence[Route]) -> list[Route]:
    return [each for each in routes if each.elsewhere and each.api_server]


def _vpns(route: Route) -> list[tuple[str, tuple[str, int]]]:
    """Header and address of each VPN server of a control plane."""
    found = zip(VPN_SERVERS, (route.vpn, route.second_vpn), strict=True)
    return [(vpn_header(route.namespace, server), address) for server, address in found if address]


def _proxy_routes(routes: Sequence[Route]) -> Manifest:
    wanted = [proxy_header(route.namespace) for route in routes if route.api_server and not route.elsewhere]
    there = {proxy_header(each.namespace): _forwarded(each.namespace, PROXY_PORT) for each in _elsewhere(routes)}
    return _routes("apiserver-proxy", PROXY_HEADER, {each: each for each in wanted}, there)


def _routes(name: str, header: str, here: Mapping[str, str], there: Mapping[str, str]) -> Manifest:
    """Routes by a header to clusters, which are pods or, ``there``, the other gateway. Any other request gets a 404."""
    made = [
        envoy.connect_route(cluster, ends=each in here, headers=[{"name": header, "string_match": {"exact": each}}])
        for each, cluster in {**here, **there}.items()
    ]
    return {"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": made}]}


def _file(name: str) -> Manifest:
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": f"{XDS_DIRECTORY}/{name}",
            "watched_directory": {"path": XDS_DIRECTORY},
        },
    }


# Objects in the seed


def objects(
    *, internal_domain: str, load_balancer: Mapping[str, Any] | None = None, replicas: int = 1, place: Place = OWN
) -> list[Manifest]:
    """A whole gateway of a seed, in the order to apply.

    ``internal_domain`` and ``load_balancer`` (``spec.settings.loadBalancerServices``) as in its Seed.
    """
    namespace = place.namespace
    account = base.service_account(NAME, namespace)
    config = base.versioned_config_map(
        NAME,
        namespace,
        {"envoy.json": base.to_json(bootstrap_config()), "gateway.yaml": _controller(internal_domain, place)},
        labels=SELECT,
    )
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": base.metadata(namespace, labels={**_namespace_labels(place), **pod_security("restricted")}),
        },
        account,
        base.cluster_role(place.role, [base.rule("core", "configmaps services", "get list watch")]),
        base.binding(place.role, [base.account(NAME, namespace)], cluster_role=place.role),
        base.role(NAME, namespace, [base.rule("core", "configmaps", "delete")]),
        base.binding(NAME, [base.account(NAME, namespace)], role=NAME, namespace=namespace),
        config,
        base.pod_disruption_budget(NAME, namespace, SELECT),
        _service(load_balancer or {}, place),
        _deployment(config, replicas, place),
    ]


def handed_over(objects: Iterable[Manifest], selector: Mapping[str, str]) -> list[Manifest]:
    """The objects of a gateway as they are until the first pod that keeps serving is ready.

    ``selector`` is the live selector of the Service: it selects pods that end at once. The Deployment deletes no pod
    until a new one has been ready for ``_HANDOVER_SECONDS``. The objects of a gateway without such pods have no such
    time, so that a new gateway is available as soon as it is ready.
    """
    changes: dict[str, Manifest] = {
        "Service": {"selector": dict(selector)},
        "Deployment": {"minReadySeconds": _HANDOVER_SECONDS},
    }
    return [
        {**each, "spec": {**each["spec"], **changes[each["kind"]]}} if each["kind"] in changes else each
        for each in objects
    ]


def keeps_serving(pod: Mapping[str, Any]) -> bool:
    """Whether a pod serves on after its deletion."""
    return KEEPS_SERVING.items() <= (pod["metadata"].get("labels") or {}).items()


def _namespace_labels(place: Place) -> dict[str, str]:
    return _marks(place) or {ROLE: "istio-ingress"}


def _labels(place: Place) -> dict[str, str]:
    """Labels of a gateway's objects. Those that select its pods, and those of its handler, override configured ones."""
    return {**place.labels, **SELECT, **_marks(place)}


def _marks(place: Place) -> dict[str, str]:
    """Labels that mark objects of a handler's gateway, with Gardener's names."""
    return {ROLE: ROLE_EXPOSURE_CLASS_HANDLER, **_of_handler(place.handler)} if place.handler else {}


def _service(settings: Mapping[str, Any], place: Place) -> Manifest:
    made = base.service(
        NAME,
        place.namespace,
        select=SELECT,
        labels=_labels(place),
        ports={
            "tls": (SNI_PORT, SNI_TARGET_PORT),
            "vpn": VPN_PORT,
            "apiserver-proxy": PROXY_PORT,
            **_etcd_ports(place),
        },
        selector={**SELECT, **KEEPS_SERVING},
        type="LoadBalancer",
        externalTrafficPolicy=settings.get("externalTrafficPolicy") or "Cluster",
        **({"loadBalancerClass": settings["class"]} if settings.get("class") else {}),
    )
    clients = connections.of_gateway(SNI_TARGET_PORT, VPN_PORT, PROXY_PORT, *_etcd_ports(place).values())
    return connections.annotated(made, {**(settings.get("annotations") or {}), **clients})


def _etcd_ports(place: Place) -> dict[str, int]:
    """Only the seed's own gateway routes to etcds, whatever gateway routes to their API server."""
    return {} if place.handler else {f"etcd-{port}": port for port in ETCD_PORTS}


def bootstrap_config() -> Manifest:
    """Envoy's configuration at its start: the files with all other configuration."""
    return envoy.bootstrap(
        node={"id": NAME, "cluster": NAME},
        dynamic_resources={"lds_config": _file(LISTENERS_FILE), "cds_config": _file(CLUSTERS_FILE)},
    )


def _controller(internal_domain: str, place: Place) -> str:
    config = {
        "directory": XDS_DIRECTORY,
        "internalDomain": internal_domain,
        "namespace": place.namespace,
        "handler": place.handler,
        "health": {"address": "0.0.0.0", "port": _CONTROLLER_PORT},
    }
    return base.to_json(config)


def _deployment(config: Mapping[str, Any], replicas: int, place: Place) -> Manifest:
    controller = base.container(
        "gateway",
        images.GARDENER,
        ["gardener", "worker", "gateway", "--config", "/etc/gardener/gateway.yaml"],
        cpu="20m",
        memory="64Mi",
        mounts={"config": "/etc/gardener", "token": "/var/run/secrets/kubernetes.io/serviceaccount"},
        writable={"xds": XDS_DIRECTORY, "tmp": "/tmp"},
        ports={"health": _CONTROLLER_PORT},
        # A sidecar: Envoy starts when the controller has written its first files.
        restartPolicy="Always",
        startupProbe=base.http_probe("/readyz", _CONTROLLER_PORT, scheme="HTTP", period=1, failures=60),
        livenessProbe=base.http_probe("/healthz", _CONTROLLER_PORT, scheme="HTTP"),
    )
    proxy = envoy.container(
        "envoy",
        config="/etc/envoy/envoy.json",
        cpu="50m",
        memory="64Mi",
        mounts={"config": "/etc/envoy", "xds": XDS_DIRECTORY},
        ports={"tls": SNI_TARGET_PORT, "vpn": VPN_PORT, "apiserver-proxy": PROXY_PORT},
        lifecycle={"preStop": {"sleep": {"seconds": _LEAVING_SECONDS}}},
    )
    return base.deployment(
        NAME,
        place.namespace,
        select=SELECT,
        labels=_labels(place),
        replicas=replicas,
        # Outside: gateways of other seeds, while control planes move.
        pod_labels={
            **connections.SEED_API,
            **connections.OUTSIDE,
            **connections.BEHIND_GATEWAYS,
            **KEEPS_SERVING,
        },
        pod={
            "serviceAccountName": NAME,
            "priorityClassName": priority.SYSTEM_CRITICAL,
            # Envoy is reachable from the internet, and does not need a token of the seed.
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "terminationGracePeriodSeconds": _LEAVING_SECONDS + 5,
            "topologySpreadConstraints": base.spread_over_hosts(SELECT),
            "initContainers": [controller],
            "containers": [proxy],
            "volumes": [
                base.config_map_volume("config", config["metadata"]["name"]),
                base.empty_dir("xds", memory=True),
                base.empty_dir("tmp", memory=True),
                _token_volume(),
            ],
        },
    )


def _token_volume() -> Manifest:
    """Volume with the token that Kubernetes mounts into every container by default, for containers that mount it."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    return {"name": "token", "projected": {"defaultMode": 0o644, "sources": sources}}

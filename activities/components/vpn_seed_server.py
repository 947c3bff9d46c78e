"""The seed's end of the reversed VPN: an OpenVPN server, and an HTTP CONNECT proxy into its tunnels.

Client pods of the shoot connect through the gateway, each with its own tunnel. kube-apiserver reaches nodes, pods and
services of the shoot through the proxy, which is its ``cluster`` egress. The proxy forwards requests to the proxy of a
connected client pod. No process in this pod can open a connection into the seed, and the shoot can open no connection
into this pod: see ``_START``.

Why no request is refused while either end is replaced:
docs/decisions/0009-a-proxy-at-both-ends-of-the-tunnel.md.
"""

import ipaddress
from dataclasses import dataclass
from typing import Any

from activities.components import base, connections, envoy, gateway, vpn_shoot
from activities.components.base import Manifest
from api import images
from api.labels import ZONE

NAMES = gateway.VPN_SERVERS
NAME = NAMES[0]
OPENVPN_PORT = 1194
PROXY_PORT = 9443
TUNNEL_PATH = "/tunnel"
"""Path at which the proxy of one of two servers tells whether a client of the shoot answers."""
OTHER_SERVER_HEADER = "x-other-vpn-server"
"""Header of requests that the client sends to the other server if this server answers ``NO_CLIENT``."""
NO_CLIENT = 521
"""HTTP status of a server without a client that answers. Components of the shoot do not use this status."""
_ATTEMPTS = 3
"""Attempts of a request that the other server may take: one for each client pod, and one for a pod that ends."""
_TUNNELS = 6
"""Maximum number of tunnels at once: of two pods, of one more pod during a rollout, and of some lost pods.

A lost pod has ended without notice. OpenVPN ends a silent tunnel after two minutes.
"""
SELECT = base.control_plane_labels(NAME)
_SERVERS = {"networking.gardener.cloud/vpn-server": "true"}
"""Label of the pods of both servers, by which they are spread."""

_START = """\
set -eu
mkdir -p /dev/net
[ -c /dev/net/tun ] || mknod -m 600 /dev/net/tun c 10 200

once() { iptables -w -C "$@" 2>/dev/null || iptables -w -A "$@"; }
# While there is no tunnel, its addresses would be the seed's: refused.
once OUTPUT -o eth0 -m conntrack --ctstate NEW -j REJECT
# Answers may come out of the tunnel, connections may not.
once INPUT -i tun0 -m conntrack --ctstate NEW -j DROP
iptables -w -P FORWARD DROP

exec openvpn --config /etc/openvpn/openvpn.conf
"""
_MANAGEMENT = "/run/management.sock"
_DRAIN = vpn_shoot.drain(f"-p tcp --dport {OPENVPN_PORT}", PROXY_PORT, _MANAGEMENT)


@dataclass(frozen=True)
class VpnSeedServer:
    namespace: str
    network: str
    """CIDR of the tunnels of all servers."""
    server: str
    ca_bundle: str
    tls_auth: str
    """Names of the Secrets that the server mounts."""
    replicas: int = 1
    index: int = 0
    """Number of this server among the servers of the control plane, from 0."""
    servers: int = 1
    """Number of servers: two in a highly available control plane."""
    failure_tolerance: str | None = None

    @property
    def name(self) -> str:
        return NAMES[self.index]

    @property
    def own_network(self) -> str:
        """CIDR of the tunnels of this server: two servers have one half each, so clients reach each by its route."""
        network = ipaddress.ip_network(self.network)
        return str(list(network.subnets())[self.index] if self.servers > 1 else network)


def objects(server: VpnSeedServer) -> list[Manifest]:
    """Objects of one server. Each server is a Deployment of its own, with a Service that clients dial by name."""
    name, select = server.name, base.control_plane_labels(server.name)
    labels = {**select, "gardener.cloud/role": "controlplane"}
    openvpn = base.versioned_config_map(name, server.namespace, _openvpn_files(server), labels=labels)
    config = proxy_config(server.own_network, chosen=server.servers > 1)
    proxy = base.versioned_config_map(
        f"{name}-envoy", server.namespace, {"envoy.json": base.to_json(config)}, labels=labels
    )
    return [
        openvpn,
        proxy,
        connections.annotated(
            base.service(
                name,
                server.namespace,
                select=select,
                ports={"openvpn": OPENVPN_PORT, "http-proxy": PROXY_PORT, "metrics": envoy.METRICS_PORT},
                labels=gateway.LABELS,
            ),
            connections.behind_gateways(OPENVPN_PORT) | connections.scraped(envoy.METRICS_PORT),
        ),
        base.pod_disruption_budget(name, server.namespace, select),
        _deployment(server, openvpn, proxy),
    ]


def _openvpn_files(server: VpnSeedServer) -> dict[str, str]:
    network = ipaddress.ip_network(server.own_network)
    pool = _addresses(server.own_network)
    lines = [
        "proto tcp-server",
        f"port {OPENVPN_PORT}",
        "dev tun0",
        "dev-type tun",
        "topology subnet",
        f"server {network.network_address} {network.netmask} nopool",
        f"ifconfig-pool {pool[0]} {pool[-1]} {network.netmask}",
        # All client pods of the shoot present the same certificate.
        "duplicate-cn",
        "ca /srv/secrets/ca/bundle.crt",
        "cert /srv/secrets/server/tls.crt",
        "key /srv/secrets/server/tls.key",
        "tls-auth /srv/secrets/tls-auth/vpn.tlsauth",
        "verify-x509-name vpn-shoot-client name-prefix",
        "remote-cert-tls client",
        "tls-version-min 1.2",
        "dh none",
        "data-ciphers AES-256-GCM",
        "auth SHA256",
        "keepalive 10 60",
        'push "socket-flags TCP_NODELAY"',
        "socket-flags TCP_NODELAY",
        "persist-key",
        "persist-tun",
        f"management {_MANAGEMENT} unix",
        "verb 3",
    ]
    return {"openvpn.conf": "\n".join(lines) + "\n", "start.sh": _START, **vpn_shoot.DRAIN_FILE}


def _addresses(network: str) -> list[str]:
    """Addresses of the tunnels' client ends, in the order in which they are assigned and used.

    The network's first address, which is left out, belongs to the server.
    """
    hosts = ipaddress.ip_network(network).hosts()
    return [str(address) for address, _ in zip(hosts, range(_TUNNELS + 1), strict=False)][1:]


def proxy_config(network: str, *, chosen: bool = False) -> Manifest:
    """Envoy's configuration: mutual TLS, and CONNECT forwarded to the first client that answers, in order of tunnels.

    While no client answers, Envoy retries requests: clients need seconds to connect again.

    ``chosen``: API servers choose between two servers (``vpn_egress``). Then Envoy tells them whether a client answers.
    A request that may go to the other server gets ``NO_CLIENT`` after a few attempts.
    """
    again = envoy.elsewhere("connect-failure")
    passed_on: dict[str, Any] = {
        "match": {"connect_matcher": {}},
        "route": {
            "cluster": "shoot",
            "timeout": "0s",
            "retry_policy": again,
            "upgrade_configs": [{"upgrade_type": "CONNECT"}],
        },
    }
    routes: list[Manifest] = [passed_on]
    rest: dict[str, Any] = {}
    if chosen:
        few = {**again, "retry_on": "connect-failure,reset", "num_retries": _ATTEMPTS - 1}
        other = {"headers": [{"name": OTHER_SERVER_HEADER, "present_match": True}]}
        routes = [
            {"match": {**passed_on["match"], **other}, "route": {**passed_on["route"], "retry_policy": few}},
            passed_on,
        ]
        rest = {"filters": [_health()], "local_reply_config": {"mappers": [_no_client()]}}
    hosts = [{"name": "shoot", "domains": ["*"], "routes": routes}]
    tls = envoy.typed(
        "transport_sockets.tls.v3.DownstreamTlsContext",
        require_client_certificate=True,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": "/srv/secrets/server/tls.crt"},
                    "private_key": {"filename": "/srv/secrets/server/tls.key"},
                }
            ],
            "validation_context": {"trusted_ca": {"filename": "/srv/secrets/ca/bundle.crt"}},
        },
    )
    chain = {
        "filters": [
            envoy.http(
                "connect",
                route_config={"virtual_hosts": hosts},
                upgrade_configs=[{"upgrade_type": "CONNECT"}],
                **rest,
            )
        ],
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
    }
    cluster = {
        "name": "shoot",
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": {"thresholds": [{"max_connections": 10000, "max_retries": 10000}]},
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 15}},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_interval": "0.5s",
                # A client that ends refuses so many checks before it is gone. A client on a busy node stays healthy.
                "unhealthy_threshold": 6,
                "healthy_threshold": 1,
                "reuse_connection": False,
                "tcp_health_check": {},
            }
        ],
        "load_assignment": {
            "cluster_name": "shoot",
            # Each client has its own priority: Envoy uses one client at a time, and the others are spare.
            "endpoints": [
                {
                    "priority": priority,
                    "lb_endpoints": [{"endpoint": {"address": envoy.socket(address, vpn_shoot.PROXY_PORT)}}],
                }
                for priority, address in enumerate(_addresses(network))
            ],
        },
    }
    if chosen:
        cluster |= envoy.noticing_loss()
    return envoy.bootstrap(listeners=[envoy.listener("connect", "0.0.0.0", PROXY_PORT, [chain])], clusters=[cluster])


def _health() -> Manifest:
    """Filter that answers at ``TUNNEL_PATH``: 200 while at least one client answers, else 503."""
    config = envoy.typed(
        "filters.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[{"name": ":path", "string_match": {"exact": TUNNEL_PATH}}],
        cluster_min_healthy_percentages={"shoot": {"value": 1}},
    )
    return {"name": "envoy.filters.http.health_check", "typed_config": config}


def _no_client() -> Manifest:
    """Status of answers that this Envoy gives because no client answers. Answers of clients stay as they are."""
    return {"filter": {"response_flag_filter": {"flags": ["UF", "UH", "URX"]}}, "status_code": NO_CLIENT}


def _apart(server: VpnSeedServer) -> Manifest:
    """Keeps the pods of the two servers on different hosts, and with failure tolerance ``zone`` in different zones.

    The constraints of ``base.spread`` count the pods of both servers, also those that a rollout replaces. The affinity
    keeps a replaced pod off the host of the other server. It is a preference: a seed with one node takes both servers.
    """
    if server.servers == 1:
        return {}
    others = [{"matchLabels": base.control_plane_labels(name)} for name in NAMES if name != server.name]
    keys = ["kubernetes.io/hostname", *([ZONE] if server.failure_tolerance == "zone" else [])]
    preferred = [
        {"weight": 100, "podAffinityTerm": {"labelSelector": other, "topologyKey": key}}
        for other in others
        for key in keys
    ]
    return {
        "topologySpreadConstraints": base.spread(_SERVERS, server.failure_tolerance),
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
    }


def _deployment(server: VpnSeedServer, openvpn: Manifest, proxy: Manifest) -> Manifest:
    secrets = {"ca": "/srv/secrets/ca", "server": "/srv/secrets/server"}
    tunnel = base.container(
        "openvpn",
        images.GARDENER,
        ["/bin/sh", "/etc/openvpn/start.sh"],
        cpu="20m",
        memory="24Mi",
        mounts={**secrets, "tls-auth": "/srv/secrets/tls-auth", "openvpn": "/etc/openvpn"},
        ports={"openvpn": OPENVPN_PORT},
        # Only the rights for the tunnel's device and its firewall.
        security={
            "runAsNonRoot": False,
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "MKNOD"]},
        },
        # No probe by TCP: the log would show each such connection as a failed client. No probe after the start: the
        # tunnel's device is there until OpenVPN ends.
        startupProbe=base.command_probe(["test", "-d", "/sys/class/net/tun0"], period=1, failures=120),
        lifecycle={"preStop": {"exec": {"command": _DRAIN}}},
    )
    http_proxy = envoy.container(
        "http-proxy",
        config="/etc/envoy/envoy.json",
        cpu="20m",
        memory="48Mi",
        mounts={**secrets, "envoy": "/etc/envoy"},
        ports={"http-proxy": PROXY_PORT},
        # A sidecar: the proxy ends after the tunnel.
        restartPolicy="Always",
    )
    return base.control_plane_deployment(
        server.name,
        server.namespace,
        select=base.control_plane_labels(server.name),
        replicas=server.replicas,
        pod_labels=_SERVERS if server.servers > 1 else None,
        pod={
            **_apart(server),
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "terminationGracePeriodSeconds": vpn_shoot.GRACE,
            "initContainers": [http_proxy],
            "containers": [tunnel],
            "volumes": [
                base.secret_volume("ca", server.ca_bundle, "bundle.crt"),
                base.secret_volume("server", server.server, "tls.crt", "tls.key"),
                base.secret_volume("tls-auth", server.tls_auth, "vpn.tlsauth"),
                base.config_map_volume("openvpn", openvpn["metadata"]["name"]),
                base.config_map_volume("envoy", proxy["metadata"]["name"]),
                base.empty_dir("tmp", memory=True),
            ],
        },
    )

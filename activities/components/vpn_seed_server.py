"""The seed's end of the reversed VPN: an OpenVPN server, and an HTTP CONNECT proxy into its tunnel.

The shoot dials in through the gateway; kube-apiserver reaches nodes, pods and services of the shoot by the
proxy, as its ``cluster`` egress. Nothing in this pod can open a connection into the seed, and the shoot can
open none into this pod: see ``_START``.

While a new pod takes over, the shoot stays with the old one to its end, and then dials again. API servers go to the
new one at once: what they send is sent again until the tunnel is there. So they wait, and are not refused.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from activities.components import base, envoy, gateway
from activities.components.base import Manifest
from api import images

NAME = "vpn-seed-server"
OPENVPN_PORT = 1194
PROXY_PORT = 9443
SELECT = base.control_plane_labels(NAME)

_START = """\
set -eu
mkdir -p /dev/net
[ -c /dev/net/tun ] || mknod -m 600 /dev/net/tun c 10 200

once() { iptables -w -C "$@" 2>/dev/null || iptables -w -A "$@"; }
# The proxy connects to whatever address it is told. Addresses beyond the tunnel are the seed's: refused.
once OUTPUT -o eth0 -m conntrack --ctstate NEW -j REJECT
# Answers may come out of the tunnel, connections may not.
once INPUT -i tun0 -m conntrack --ctstate NEW -j DROP
iptables -w -P FORWARD DROP

exec openvpn --config /etc/openvpn/openvpn.conf
"""
_TUNNEL_IS_UP = ["test", "-d", "/sys/class/net/tun0"]
_LINGER = {"preStop": {"sleep": {"seconds": 2}}}
"""Until the seed's nodes have learned that the pod is going, they still send it new connections."""


@dataclass(frozen=True)
class VpnSeedServer:
    namespace: str
    network: str
    """CIDR of the tunnel itself."""
    shoot_networks: Sequence[str]
    """CIDRs of the shoot's pods, services and nodes."""
    server: str
    ca_bundle: str
    tls_auth: str
    """Names of the Secrets it mounts."""
    replicas: int = 1


def objects(server: VpnSeedServer) -> list[Manifest]:
    labels = {**SELECT, "gardener.cloud/role": "controlplane"}
    openvpn = base.versioned_config_map(NAME, server.namespace, _openvpn_files(server), labels=labels)
    proxy = base.versioned_config_map(
        f"{NAME}-envoy", server.namespace, {"envoy.json": base.to_json(proxy_config())}, labels=labels
    )
    return [
        openvpn,
        proxy,
        base.service(
            NAME,
            server.namespace,
            select=SELECT,
            ports={"openvpn": OPENVPN_PORT, "http-proxy": PROXY_PORT, "metrics": envoy.METRICS_PORT},
            labels=gateway.LABELS,
        ),
        base.pod_disruption_budget(NAME, server.namespace, SELECT),
        _deployment(server, openvpn, proxy),
    ]


def _openvpn_files(server: VpnSeedServer) -> dict[str, str]:
    tunnel = ipaddress.ip_network(server.network)
    lines = [
        "proto tcp-server",
        f"port {OPENVPN_PORT}",
        "dev tun0",
        "dev-type tun",
        "topology subnet",
        f"server {tunnel.network_address} {tunnel.netmask}",
        *(f"route {_net(cidr)}" for cidr in server.shoot_networks),
        "client-config-dir /etc/openvpn",
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
        "verb 3",
    ]
    # One file for whoever connects: what lies behind it.
    behind = [f"iroute {_net(cidr)}" for cidr in server.shoot_networks]
    return {
        "openvpn.conf": "\n".join(lines) + "\n",
        "DEFAULT": "\n".join(behind) + "\n",
        "start.sh": _START,
    }


def _net(cidr: str) -> str:
    network = ipaddress.ip_network(cidr)
    return f"{network.network_address} {network.netmask}"


def proxy_config() -> Manifest:
    """Envoy's configuration: mutual TLS, then CONNECT to whatever IP address of the shoot is named."""
    cache = {"name": "shoot", "dns_lookup_family": "V4_ONLY"}
    forward = {
        "name": "envoy.filters.http.dynamic_forward_proxy",
        "typed_config": envoy.typed("filters.http.dynamic_forward_proxy.v3.FilterConfig", dns_cache_config=cache),
    }
    hosts = [{"name": "shoot", "domains": ["*"], "routes": [envoy.connect_route("shoot")]}]
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
                filters=[forward],
                route_config={"virtual_hosts": hosts},
                upgrade_configs=[{"upgrade_type": "CONNECT"}],
            )
        ],
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
    }
    cluster = {
        "name": "shoot",
        # A server that is new waits for the shoot to dial in; whoever has come to it meanwhile waits with it.
        "connect_timeout": "30s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.dynamic_forward_proxy",
            "typed_config": envoy.typed("clusters.dynamic_forward_proxy.v3.ClusterConfig", dns_cache_config=cache),
        },
    }
    return envoy.bootstrap(listeners=[envoy.listener("connect", "0.0.0.0", PROXY_PORT, [chain])], clusters=[cluster])


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
        # The tunnel's device and the firewall around it, no more.
        security={
            "runAsNonRoot": False,
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "MKNOD"]},
        },
        # Not by TCP: each connection would be a client that fails, in the log.
        readinessProbe={"exec": {"command": _TUNNEL_IS_UP}, "periodSeconds": 2},
        livenessProbe={"exec": {"command": _TUNNEL_IS_UP}, "periodSeconds": 10, "initialDelaySeconds": 10},
        lifecycle=_LINGER,
    )
    http_proxy = envoy.container(
        "http-proxy",
        config="/etc/envoy/envoy.json",
        cpu="20m",
        memory="48Mi",
        mounts={**secrets, "envoy": "/etc/envoy"},
        ports={"http-proxy": PROXY_PORT},
        lifecycle=_LINGER,
    )
    return base.control_plane_deployment(
        NAME,
        server.namespace,
        select=SELECT,
        replicas=server.replicas,
        annotations=base.references([openvpn, proxy]),
        pod_labels={"networking.gardener.cloud/to-shoot-networks": "allowed"},
        pod={
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "terminationGracePeriodSeconds": 5,
            "containers": [tunnel, http_proxy],
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

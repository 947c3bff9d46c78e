"""The proxy beside an API server of a highly available control plane: it chooses one of two VPN servers.

kube-apiserver knows one proxy for all connections into the shoot. So in the API server's pod an Envoy listens on a
socket file, and passes each HTTP CONNECT to the first VPN server that has a client which answers. A connection belongs
to one server from its beginning to its end.

How a lost server costs no request: docs/decisions/0009-a-proxy-at-both-ends-of-the-tunnel.md.
"""

from collections.abc import Sequence

from activities.components import envoy, vpn_seed_server
from activities.components.base import Manifest

NAME = "vpn-egress"
SOCKET_VOLUME = f"{NAME}-socket"
DIRECTORY = "/run/vpn-egress"
SOCKET = f"{DIRECTORY}/proxy.sock"
CONFIG = "/etc/kubernetes/vpn-egress"
FILE = "envoy.json"
_REFRESHED = "5s"
"""Maximum age of a DNS answer about a VPN server's Service."""
_MODE = 0o660
"""Only processes of the pod's group open the socket file, which no other pod mounts."""


def proxy_config(servers: Sequence[str], secrets: str) -> Manifest:
    """Envoy's configuration. ``secrets``: directory with ``vpn-ca`` and ``vpn-client``, the API server's Secrets.

    While no server has a client, Envoy retries requests: clients need seconds to connect again.
    """
    # Only a CONNECT is sent again: the API server's own request follows once a server has accepted the CONNECT.
    again = envoy.elsewhere(
        "connect-failure,reset,retriable-status-codes", retriable_status_codes=[vpn_seed_server.NO_CLIENT]
    )
    route = {
        "match": {"connect_matcher": {}},
        "route": {
            "cluster": "servers",
            "timeout": "0s",
            "retry_policy": again,
            "upgrade_configs": [{"upgrade_type": "CONNECT"}],
        },
        "request_headers_to_add": [{"header": {"key": vpn_seed_server.OTHER_SERVER_HEADER, "value": "true"}}],
    }
    connect = envoy.http(
        "connect",
        route_config={"virtual_hosts": [{"name": "shoot", "domains": ["*"], "routes": [route]}]},
        upgrade_configs=[{"upgrade_type": "CONNECT"}],
    )
    listening = {
        **envoy.listener("connect", "", 0, [{"filters": [connect]}]),
        "address": {"pipe": {"path": SOCKET, "mode": _MODE}},
    }
    return envoy.bootstrap(listeners=[listening], clusters=[_servers(servers, secrets)])


def _servers(servers: Sequence[str], secrets: str) -> Manifest:
    # Both servers present the certificate of the first one.
    name = servers[0]
    tls = envoy.typed(
        "transport_sockets.tls.v3.UpstreamTlsContext",
        sni=name,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": f"{secrets}/vpn-client/tls.crt"},
                    "private_key": {"filename": f"{secrets}/vpn-client/tls.key"},
                }
            ],
            "validation_context": {
                "trusted_ca": {"filename": f"{secrets}/vpn-ca/bundle.crt"},
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": name}}],
            },
        },
    )
    return {
        "name": "servers",
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_ONLY",
        "dns_refresh_rate": _REFRESHED,
        # Short: the address of a lost node does not answer at all, and the other server is at hand.
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [{"max_connections": 10000, "max_retries": 10000}]},
        **envoy.noticing_loss(),
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_interval": "0.5s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                # A new connection for each check: the Service then leads to the pod that new requests reach.
                "reuse_connection": False,
                "http_health_check": {"host": name, "path": vpn_seed_server.TUNNEL_PATH},
            }
        ],
        "load_assignment": {
            "cluster_name": "servers",
            # Each server has its own priority: Envoy uses one server at a time, and the other is spare.
            "endpoints": [
                {
                    "priority": priority,
                    "lb_endpoints": [{"endpoint": {"address": envoy.socket(each, vpn_seed_server.PROXY_PORT)}}],
                }
                for priority, each in enumerate(servers)
            ],
        },
    }


def container(secrets: str) -> Manifest:
    """A sidecar: the proxy starts before the API server and ends after it."""
    return envoy.container(
        NAME,
        config=f"{CONFIG}/{FILE}",
        cpu="20m",
        memory="48Mi",
        mounts={"vpn-ca": f"{secrets}/vpn-ca", "vpn-client": f"{secrets}/vpn-client", NAME: CONFIG},
        writable={SOCKET_VOLUME: DIRECTORY},
        restartPolicy="Always",
    )

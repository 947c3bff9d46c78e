"""Parts of Envoy configurations that our Envoys share: gateway, VPN proxy, apiserver-proxy, front door."""

from collections.abc import Mapping, Sequence
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import images

_TYPE = "type.googleapis.com/envoy.extensions"
_ADMIN_SOCKET = "/tmp/envoy-admin.sock"
METRICS_PORT = 15000


def typed(path: str, **fields: Any) -> Manifest:
    """A ``typed_config``: ``path`` below envoy.extensions, for example ``filters.http.router.v3.Router``."""
    return {"@type": f"{_TYPE}.{path}", **fields}


def socket(address: str, port: int) -> Manifest:
    return {"socket_address": {"address": address, "port_value": port}}


def listener(name: str, address: str, port: int, chains: Sequence[Manifest], **rest: Any) -> Manifest:
    return {"name": name, "address": socket(address, port), "filter_chains": list(chains), **rest}


def tcp_proxy(cluster: str, **rest: Any) -> Manifest:
    """Network filter that joins two connections. Idle connections stay open, since watches may be silent for long."""
    config = typed(
        "filters.network.tcp_proxy.v3.TcpProxy",
        stat_prefix=cluster,
        cluster=cluster,
        idle_timeout="0s",
        **rest,
    )
    return {"name": "envoy.filters.network.tcp_proxy", "typed_config": config}


def http(
    name: str, *, filters: Sequence[Manifest] = (), router: Mapping[str, Any] | None = None, **rest: Any
) -> Manifest:
    """Network filter for HTTP, with CONNECT if the routes allow it. Streams may be idle for ever."""
    last = {"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router", **router or {})}
    config = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        stream_idle_timeout="0s",
        http_filters=[*filters, last],
        **rest,
    )
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}


def connect_route(cluster: str, *, ends: bool = True, **match: Any) -> Manifest:
    """Route that terminates an HTTP CONNECT and joins it with a connection to ``cluster``.

    Unless it ``ends`` here: then ``cluster``, another Envoy, gets the request.
    """
    upgrade: Manifest = {"upgrade_type": "CONNECT", **({"connect_config": {}} if ends else {})}
    return {
        "match": {"connect_matcher": {}, **match},
        "route": {"cluster": cluster, "timeout": "0s", "upgrade_configs": [upgrade]},
    }


def elsewhere(retry_on: str, **rest: Any) -> Manifest:
    """Retry policy that tries the priorities of a cluster in turn, for up to about a minute: peers connect again."""
    config = typed("retry.priority.previous_priorities.v3.PreviousPrioritiesConfig", update_frequency=1)
    return {
        "retry_on": retry_on,
        "num_retries": 40,
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
        "retry_priority": {"name": "envoy.retry_priorities.previous_priorities", "typed_config": config},
        **rest,
    }


def noticing_loss() -> Manifest:
    """Fields of a cluster whose connections end about 5 s after their peer is lost without notice.

    The peer's kernel answers probes and acknowledges data also on a busy node, so only a lost peer is concerned.
    """
    tcp, user_timeout = 6, 18
    option = {"level": tcp, "name": user_timeout, "int_value": 5000, "state": "STATE_PREBIND"}
    return {
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 3, "keepalive_interval": 1}},
        "upstream_bind_config": {"socket_options": [{**option, "description": "TCP_USER_TIMEOUT"}]},
    }


def static_cluster(name: str, address: str, port: int, *, connect_timeout: str = "5s") -> Manifest:
    """A cluster with one IP address."""
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": connect_timeout,
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 15}},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(address, port)}}]}],
        },
    }


def dns_cluster(name: str, host: str, port: int, *, refreshed: str, ipv6: bool = False) -> Manifest:
    """A cluster whose host name is resolved again after this time, so that it follows the name to another seed.

    ``ipv6``: connect to addresses of IPv6, and not to those of IPv4.
    """
    return {
        "name": name,
        "type": "LOGICAL_DNS",
        "dns_lookup_family": "V6_ONLY" if ipv6 else "V4_ONLY",
        "dns_refresh_rate": refreshed,
        "connect_timeout": "5s",
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 15}},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(host, port)}}]}],
        },
    }


def tunnel(hostname: str, header: str, value: str) -> Manifest:
    """Configuration of a TCP proxy that connects by HTTP CONNECT; the header names the destination for the gateway."""
    return {"hostname": hostname, "headers_to_add": [{"header": {"key": header, "value": value}}]}


def bootstrap(
    *,
    listeners: Sequence[Manifest] = (),
    clusters: Sequence[Manifest] = (),
    metrics_address: str = "0.0.0.0",
    metrics_port: int = METRICS_PORT,
    admin_socket: str = _ADMIN_SOCKET,
    **rest: Any,
) -> Manifest:
    """A whole configuration. The admin interface listens on a socket file; only metrics and readiness have a port."""
    admin = {
        "name": "admin",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": "admin",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": admin_socket}}}}]}],
        },
    }
    shown = [{"match": {"path": path}, "route": {"cluster": "admin"}} for path in ("/ready", "/stats/prometheus")]
    routes = {"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": shown}]}
    metrics = listener("metrics", metrics_address, metrics_port, [{"filters": [http("metrics", route_config=routes)]}])
    return {
        "application_log_config": {
            "log_format": {"json_format": {"time": "%Y-%m-%dT%T.%eZ", "level": "%l", "logger": "%n", "message": "%j"}}
        },
        "admin": {"address": {"pipe": {"path": admin_socket}}},
        "static_resources": {
            "listeners": [metrics, *listeners],
            "clusters": [admin, *clusters],
        },
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": typed(
                        "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        max_active_downstream_connections=50000,
                    ),
                }
            ]
        },
        **rest,
    }


def container(
    name: str,
    *,
    config: str,
    cpu: str,
    memory: str,
    mounts: Mapping[str, str],
    ports: Mapping[str, int] | None = None,
    metrics_port: int = METRICS_PORT,
    probe_host: str = "",
    drain_seconds: int = 60,
    writable: Mapping[str, str] | None = None,
    **rest: Any,
) -> Manifest:
    """Envoy with the configuration file ``config``; ``/tmp`` must be a volume named ``tmp``."""

    def probe(period: int, failures: int, delay: int = 0) -> Manifest:
        return base.http_probe(
            "/ready",
            metrics_port,
            scheme="HTTP",
            host=probe_host,
            period=period,
            failures=failures,
            delay=delay,
        )

    return base.container(
        name,
        images.ENVOY,
        [
            "/usr/local/bin/envoy",
            "--config-path",
            config,
            "--concurrency",
            "2",
            "--drain-time-s",
            str(drain_seconds),
            "--disable-hot-restart",
            "--log-level",
            "warn",
        ],
        cpu=cpu,
        memory=memory,
        mounts=mounts,
        writable={"tmp": "/tmp", **(writable or {})},
        ports={"metrics": metrics_port, **(ports or {})},
        readinessProbe=probe(period=1, failures=3),
        livenessProbe=probe(period=10, failures=6, delay=10),
        **rest,
    )

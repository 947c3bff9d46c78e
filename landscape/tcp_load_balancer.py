"""Files of an Envoy that balances TCP connections: for addresses outside of the nodes that serve them.

Envoy checks each backend four times a second. A backend that fails two checks in a row gets no new connection, and its
open connections end, so that clients reconnect at once. If a connection to a backend fails, Envoy tries other backends
before the client notices.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.components import envoy
from kube.client import Object

_LISTENERS, _CLUSTERS = "listeners.json", "clusters.json"
BACKENDS = "backends-"
"""Prefix of the files with the backends."""
_CHECK_PERIOD = "0.25s"
_CONNECT_TIMEOUT = "0.25s"
_FAILURES = 2
"""Failed checks in a row after which a backend gets no connections."""
_CONNECT_ATTEMPTS = 6


@dataclass(frozen=True)
class Balancer:
    """One port of one address, and its backends."""

    name: str
    address: str
    port: int
    backends: tuple[tuple[str, int], ...]
    """Address and port of each."""


def bootstrap(node: str, directory: Path, *, admin_socket: Path, metrics_port: int) -> str:
    """Configuration with which Envoy starts; it names the files in ``directory``. Metrics are on a loopback address."""
    config = envoy.bootstrap(
        node={"id": node, "cluster": node},
        metrics_address="127.0.0.1",
        metrics_port=metrics_port,
        admin_socket=str(admin_socket),
        dynamic_resources={"lds_config": _file(directory, _LISTENERS), "cds_config": _file(directory, _CLUSTERS)},
    )
    return _json(config)


def files(wanted: Iterable[Balancer], directory: Path) -> dict[str, str]:
    """Files by name in the order to write: no listener names a cluster that does not exist yet.

    The backends of each balancer have a file of their own. A changed cluster would end all of its connections.
    """
    ours = list(wanted)
    made = {
        f"{BACKENDS}{each.name}.json": _response("endpoint.v3.ClusterLoadAssignment", [_backends(each)])
        for each in ours
    }
    made[_CLUSTERS] = _response("cluster.v3.Cluster", [_cluster(each, directory) for each in ours])
    made[_LISTENERS] = _response("listener.v3.Listener", [_listener(each) for each in ours])
    return made


def _response(kind: str, items: Iterable[Object]) -> str:
    resources = [{"@type": f"type.googleapis.com/envoy.config.{kind}", **item} for item in items]
    return _json({"version_info": hashlib.sha256(_json(resources).encode()).hexdigest()[:16], "resources": resources})


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, indent=1)


def _listener(balancer: Balancer) -> Object:
    proxy = envoy.tcp_proxy(balancer.name, max_connect_attempts=_CONNECT_ATTEMPTS)
    return envoy.listener(balancer.name, balancer.address, balancer.port, [{"filters": [proxy]}])


def _cluster(balancer: Balancer, directory: Path) -> Object:
    return {
        "name": balancer.name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _file(directory, f"{BACKENDS}{balancer.name}.json")},
        "connect_timeout": _CONNECT_TIMEOUT,
        # The next attempt of a connection goes to another backend.
        "lb_policy": "ROUND_ROBIN",
        "close_connections_on_host_health_failure": True,
        "health_checks": [
            {
                "tcp_health_check": {},
                "interval": _CHECK_PERIOD,
                "no_traffic_interval": _CHECK_PERIOD,
                "timeout": _CHECK_PERIOD,
                "unhealthy_threshold": _FAILURES,
                "healthy_threshold": 1,
            }
        ],
    }


def _backends(balancer: Balancer) -> Object:
    endpoints = [{"endpoint": {"address": envoy.socket(*each)}} for each in balancer.backends]
    return {"cluster_name": balancer.name, "endpoints": [{"lb_endpoints": endpoints}]}


def _file(directory: Path, name: str) -> Object:
    return {
        "resource_api_version": "V3",
        "path_config_source": {"path": str(directory / name), "watched_directory": {"path": str(directory)}},
    }

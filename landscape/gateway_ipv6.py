"""Addresses of IPv6 of a seed's gateways: the seed's cluster has IPv4 only.

Envoy accepts the connections, and connects to the same port of the gateway's address of IPv4. It knows no pods, so it
goes on when they change. If a gateway refuses a connection, Envoy ends the client's connection at once.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.components import envoy
from landscape.files import write_if_changed
from landscape.network import GATEWAY_PORTS
from landscape.plan import ClusterPlan, Plan
from landscape.processes import ProcessSpec

_METRICS_PORT = 15091
_CONNECT_TIMEOUT = "5s"


def process(plan: Plan, seed: ClusterPlan) -> ProcessSpec:
    """Write Envoy's configuration; returns how to start it, in the network namespace that has the addresses."""
    socket = seed.run_directory / "gateway-ipv6.sock"
    config = bootstrap(seed.name, plan.gateway_addresses(seed.name), GATEWAY_PORTS, admin_socket=socket)
    file = seed.directory / "gateway-ipv6.json"
    write_if_changed(file, config)
    executable = str(Path(sys.executable).parent / "envoy")
    argv = (executable, "-c", str(file), "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart")
    # ``up`` restarts the process if its configuration has changed.
    version = hashlib.sha256(config.encode()).hexdigest()[:12]
    return ProcessSpec(f"{seed.name}/gateway-ipv6", argv, seed.netns, {"GARDENER_VERSION": version})


def bootstrap(
    node: str,
    addresses: Mapping[str, str],
    ports: Sequence[int],
    *,
    admin_socket: Path,
    metrics_port: int = _METRICS_PORT,
) -> str:
    """Envoy's configuration. ``addresses``: IPv6 by IPv4. Metrics are on a loopback address."""
    pairs = [(f"{address}:{port}", port, address, ipv6) for address, ipv6 in addresses.items() for port in ports]
    config = envoy.bootstrap(
        node={"id": node, "cluster": node},
        metrics_address="127.0.0.1",
        metrics_port=metrics_port,
        admin_socket=str(admin_socket),
        listeners=[
            envoy.listener(name, ipv6, port, [{"filters": [envoy.tcp_proxy(name)]}]) for name, port, _, ipv6 in pairs
        ],
        clusters=[
            envoy.static_cluster(name, address, port, connect_timeout=_CONNECT_TIMEOUT)
            for name, port, address, _ in pairs
        ],
    )
    return json.dumps(config, sort_keys=True, indent=1)

"""A DNS server on each node of a shoot: it caches answers, and asks the cluster's CoreDNS for names of the cluster.

The server is a CoreDNS, too. It listens on an address that is the same on all nodes, and on the address of the
cluster's DNS, so that pods need no other configuration. If kube-proxy uses IPVS, it listens only on the first address,
and kubelets configure this address in pods. A process of our own in the same pod (``gardener worker node-local-dns``)
directs requests to the server as long as the server answers. Names and files: as Gardener's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activities.components import base, coredns, own
from activities.components.base import Manifest
from api import images
from api.core.v1beta1.shoot import NodeLocalDNS
from api.names import in_url

NAME = "node-local-dns"
NAMESPACE = "kube-system"
SELECT = {"k8s-app": NAME}
ADDRESS = "169.254.20.10"
"""Link-local address: on each node it belongs to the node's own server."""
ADDRESS_IPV6 = "fd30:1319:f1e:230b::1"
"""The same for Shoots with IPv6 alone: a link-local address of IPv6 would need the name of an interface.

Source: Gardener's NodeLocalIPVSIPv6Address.
"""

_UPSTREAM = "kube-dns-upstream"
_UPSTREAM_ADDRESS = "{$KUBE_DNS_UPSTREAM_SERVICE_HOST}"
"""Variable that kubelets set in pods of the Service's namespace. The cluster's DNS address would lead back here."""
_HEALTH_PORT = 8099
_METRICS_PORT = 9253
_WAY_PORT = 8098
_LOOPBACK = "127.0.0.1"
_CONFIG = "/etc/coredns"
_CUSTOM = "/etc/coredns/custom"
_LOCK = "/run/xtables.lock"


@dataclass(frozen=True)
class Server:
    settings: NodeLocalDNS
    cluster_dns: str
    """Address of the Service to which pods send queries."""
    ipvs: bool = False
    """True if kube-proxy uses IPVS: then only kube-proxy may assign the addresses of Services to a node."""

    @property
    def ipv6(self) -> bool:
        """Whether pods have addresses of IPv6 alone."""
        return ":" in self.cluster_dns

    @property
    def address(self) -> str:
        return address(ipv6=self.ipv6)

    @property
    def health(self) -> str:
        """Address and port of the server's health check."""
        return f"{in_url(self.address)}:{_HEALTH_PORT}"

    @property
    def addresses(self) -> list[str]:
        return [self.address] if self.ipvs else [self.address, self.cluster_dns]


def address(*, ipv6: bool) -> str:
    """Address that belongs to the DNS server of each node. ``ipv6``: whether pods have addresses of IPv6 alone."""
    return ADDRESS_IPV6 if ipv6 else ADDRESS


def is_wanted(shoot_spec: Mapping[str, Any]) -> bool:
    return bool(settings_of(shoot_spec).get("enabled"))


def settings_of(shoot_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return (shoot_spec.get("systemComponents") or {}).get("nodeLocalDNS") or {}


def objects(server: Server) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    way = {
        "addresses": server.addresses,
        "server": f"http://{server.health}/health",
        "health": {"address": _LOOPBACK, "port": _WAY_PORT},
    }
    files = {"Corefile": _corefile(server), "config.yaml": base.to_json(way)}
    config = base.versioned_config_map(NAME, NAMESPACE, files, labels=SELECT)
    upstream = coredns.dns_service(_UPSTREAM, {}, labels={"k8s-app": _UPSTREAM})
    return [base.service_account(NAME, NAMESPACE), config, upstream, _daemon_set(server, config)]


def _corefile(server: Server) -> str:
    settings = server.settings
    bind = f"bind {' '.join(server.addresses)}"
    cluster = server.cluster_dns if server.ipvs else _UPSTREAM_ADDRESS
    to_cluster = _forward(cluster, tcp=settings.force_tcp_to_cluster_dns is not False)
    outside = cluster if settings.disable_forward_to_upstream_dns else "/etc/resolv.conf"
    to_outside = _forward(outside, tcp=settings.force_tcp_to_upstream_dns is not False)
    common = f"{bind}\n  errors\n  loop\n  reload\n  prometheus :{_METRICS_PORT}"
    custom = "import custom/*.override"
    blocks = {
        "cluster.local": f"{custom}\n  health {server.health} {{\n    lameduck 5s\n  }}\n"
        f"  cache {{\n    success 9984 30\n    denial 9984 5\n  }}\n  {to_cluster}",
        "in-addr.arpa": f"cache 30\n  {to_cluster}",
        "ip6.arpa": f"cache 30\n  {to_cluster}",
        ".": f"{custom}\n  cache 30\n  {to_outside}",
    }
    return "".join(f"{zone}:53 {{\n  {common}\n  {block}\n}}\n" for zone, block in blocks.items())


def _forward(where: str, *, tcp: bool) -> str:
    return f"forward . {where} {{\n    {'force_tcp' if tcp else 'prefer_udp'}\n  }}"


def _daemon_set(server: Server, config: Manifest) -> Manifest:
    labels = {
        **SELECT,
        "gardener.cloud/role": "system-component",
        "node.gardener.cloud/critical-component": "true",
    }
    root = {"runAsUser": 0, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    network = {**root, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}}
    # The DNS server needs these addresses to start. Adding them early is safe: no query is directed to them yet.
    addresses = base.container(
        "addresses",
        images.GARDENER,
        [
            "sh",
            "-ec",
            "\n".join(f"ip address replace {each}/{128 if server.ipv6 else 32} dev lo" for each in server.addresses),
        ],
        cpu="5m",
        memory="10Mi",
        security=network,
    )
    way = own.process(
        "way",
        NAME,
        _WAY_PORT,
        host=_LOOPBACK,
        cpu="5m",
        memory="40Mi",
        mounts={"config": own.CONFIG_DIR},
        writable={"lock": _LOCK, "tmp": "/tmp"},
        security=network,
    )
    main = base.container(
        "node-cache",
        images.COREDNS,
        ["/coredns", "-conf", f"{_CONFIG}/Corefile"],
        cpu="25m",
        memory="25Mi",
        mounts={"config": _CONFIG, "custom": _CUSTOM},
        ports={"metrics": _METRICS_PORT},
        security={**root, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
        **base.probes("/health", _HEALTH_PORT, scheme="HTTP", host=server.address, every=10),
    )
    return base.daemon_set(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels=labels,
        max_unavailable="10%",
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": False,
            # Longer than the time for which the server still answers queries while it ends.
            "terminationGracePeriodSeconds": 10,
            "initContainers": [addresses],
            "containers": [main, way],
            "volumes": [
                base.config_map_volume("config", config["metadata"]["name"]),
                coredns.custom_volume(),
                {"name": "lock", "hostPath": {"path": _LOCK, "type": "FileOrCreate"}},
                base.empty_dir("tmp", memory=True),
            ],
        },
    )

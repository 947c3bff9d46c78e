"""Addresses, names and paths of a landscape, computed from its name and index.

Nothing here touches the machine. Landscapes differ by index, so several run side by side: each owns one /20 out of
198.18.0.0/15 (hosts) and its own /24s out of 100.96.0.0/11 (pods) and 100.64.0.0/13 (services). Its machines, its load
balancers, the gateways of its seeds and its DNS server have addresses of IPv6, too: of a /60 out of 2001:2::/48, which
RFC 5180 reserves for such networks.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from landscape.errors import LandscapeError
from landscape.files import write_if_changed

MAX_LANDSCAPES = 16
SEEDS = ("seed-1", "seed-2")
ZONES = ("0", "1", "2")
"""Zones of the landscape's only region. A cluster with one node is in the first one."""
DEFAULT_NAME = "default"

STATE_HOME = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gardener/landscapes"
CACHE_HOME = Path.home() / ".cache/gardener/landscape"
RUN_HOME = Path("/run/gardener")
"""Directory of sockets: a path in the home directory could exceed the maximum of 107 characters for a socket."""

SUBRESOURCES_PORTS = (8446, 8447)
"""Ports of the replicas of the subresource server, at the central address."""

LOOPBACK = "127.0.0.1"
"""Loopback address in a cluster's network namespace, where no other process listens."""

SHOOT_PODS = "100.112.0.0/16"
SHOOT_SERVICES = "100.68.0.0/16"
VPN_NETWORK = "198.19.255.0/24"
IPV6_BLOCK = "2001:2::/48"
"""Network of all addresses of IPv6, of all landscapes."""

# Host-side interfaces are named gard<index>-<peer>, at most 15 characters.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


@dataclass(frozen=True)
class NodePlan:
    """A node of a cluster: containerd, kubelet and kube-proxy in one network namespace."""

    name: str
    address: str
    netns: str
    pods: str
    """Network of its pods."""
    zone: str
    directory: Path
    run_directory: Path
    cgroup: str
    pods_ipv6: str = ""
    """IPv6 network of its pods, beside the other one; empty: they have IPv4 only."""

    @property
    def containerd_socket(self) -> Path:
        return self.run_directory / "containerd.sock"

    @property
    def network_policies_socket(self) -> Path:
        """At which new pods are announced to the agent that enforces NetworkPolicies."""
        return self.run_directory / "network-policies.sock"


@dataclass(frozen=True)
class ClusterPlan:
    """One Kubernetes cluster of the landscape."""

    name: str
    address: str
    """Address of its API, port 6443; also of the gateway, if it is a seed."""
    api_server_address: str
    """Address of kube-apiserver, port 6443. The garden's kube-apiserver is behind the front door."""
    netns: str
    """Network namespace of its control plane, and of its node if it has one node only."""
    services: str
    directory: Path
    run_directory: Path
    nodes: tuple[NodePlan, ...]
    node_network: str
    """Network of all addresses of nodes; empty without nodes, as is the next one."""
    pods: str
    """Network of the pods of all nodes."""
    services_ipv6: str = ""
    """IPv6 network of Services, beside the other one; empty: they have IPv4 only."""

    @property
    def pods_ipv6(self) -> str:
        """IPv6 network of the pods of all nodes; empty: they have IPv4 only."""
        return next((node.pods_ipv6 for node in self.nodes), "")

    @property
    def server(self) -> str:
        return f"https://{self.address}:6443"

    @property
    def server_names(self) -> tuple[str, ...]:
        """Names in the certificate of the cluster's API."""
        service = self.services.removesuffix(".0/24") + ".1"
        return (self.address, service, "kubernetes.default", "kubernetes.default.svc", "localhost")

    @property
    def has_node(self) -> bool:
        return bool(self.nodes)

    def has_process(self, name: str) -> bool:
        """Whether a process of this name is of this cluster or of one of its nodes."""
        return name.partition("/")[0] in {self.name, *(node.name for node in self.nodes)}

    @property
    def is_zonal(self) -> bool:
        """Whether it has a node in each zone, each with a network namespace of its own."""
        return len(self.nodes) > 1

    @property
    def is_seed(self) -> bool:
        return self.name in SEEDS

    @property
    def dns_address(self) -> str:
        """ClusterIP of the cluster's DNS Service."""
        return str(IPv4Network(self.services)[10])


@dataclass(frozen=True)
class Link:
    """A veth pair between two network namespaces (``None``: the host), each end with its address in a /30."""

    left_netns: str | None
    left_interface: str
    left_address: str
    right_netns: str
    right_interface: str
    right_address: str
    ipv6: str = ""
    """A /64 in which the left end has the first address, and the right end the second one; empty: IPv4 only."""

    @property
    def left_ipv6(self) -> str:
        return str(IPv6Network(self.ipv6)[1])

    @property
    def right_ipv6(self) -> str:
        return str(IPv6Network(self.ipv6)[2])


@dataclass(frozen=True)
class Plan:
    """The landscape ``name``, which has the ``index``-th block of addresses."""

    name: str
    index: int
    kubernetes_version: str
    """Version of Kubernetes of the landscape's own clusters, and the newest one for shoots."""
    older_versions: tuple[str, ...] = ()
    """Further versions of Kubernetes for shoots."""
    zonal: tuple[str, ...] = ()
    """Seeds with a node in each of ``ZONES``; others have one node."""
    external_temporal: str = ""
    """Address of an external Temporal, ``host:port``, as the host reaches it; the landscape then runs a relay to it."""
    closed: bool = False
    """Whether the nodes of seeds enforce NetworkPolicies, which close the namespaces of the seeds."""
    node_logs: bool = False
    """Whether nodes of Shoots send their logs to a store in the seed."""
    state_home: Path = field(default=STATE_HOME)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LandscapeError(f"{self.name!r} is no landscape name: at most 20 of a-z, 0-9 and -")
        if not 0 <= self.index < MAX_LANDSCAPES:
            raise LandscapeError(f"landscape index {self.index} is not in 0..{MAX_LANDSCAPES - 1}")

    @property
    def shoot_versions(self) -> tuple[str, ...]:
        """Versions of Kubernetes that shoots may have, newest first."""
        return (self.kubernetes_version, *self.older_versions)

    # -- paths

    @property
    def directory(self) -> Path:
        return self.state_home / self.name

    @property
    def run_directory(self) -> Path:
        return RUN_HOME / self.name

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def audit_log(self, cluster: str) -> Path:
        """Audit log of the cluster's API server: one JSON line for each write."""
        return self.logs / f"{cluster}-audit.log"

    @property
    def configs(self) -> Path:
        return self.directory / "config"

    def journal(self, process: str) -> Path:
        """Directory in which this process notes its running activities."""
        return self.directory / "journals" / process

    @property
    def codec_key(self) -> Path:
        """Directory of the root keys, which the processes of the garden have."""
        return self.directory / "codec-root.key"

    @property
    def shared_key(self) -> Path:
        """File with the key of all processes; it exists only in landscapes of an earlier version, which had one key."""
        return self.directory / "codec.key"

    def derived_key(self, name: str) -> Path:
        """Directory with the keys of one process of a seed, ``<seed>-<process>``, or of ``operators``."""
        return self.directory / "codec-keys" / f"{name}.key"

    @property
    def temporal_authority(self) -> Path:
        """Directory of the CAs for Temporal, and of all certificates that they issued."""
        return self.directory / "temporal" / "tls"

    @property
    def tsig_key(self) -> Path:
        return self.directory / "dns" / "tsig.key"

    def bootstrap_token(self, seed: str) -> Path:
        """File with the token by which the seed's gardenlet gets its first certificate; its kubeconfig has it, too."""
        return self.directory / "garden" / "bootstrap-tokens" / seed

    @property
    def object_store(self) -> Path:
        """Directory of the object store: its buckets, its users, and the administrator's key."""
        return self.directory / "object-store"

    @property
    def registry(self) -> Path:
        """Directory of the registry: its images, and the configurations of its processes."""
        return self.directory / "registry"

    @property
    def machine_images(self) -> Path:
        """Directory of the images that every machine of the cloud has at boot."""
        return self.directory / "machine-images"

    def kubeconfig(self, cluster: str) -> Path:
        return self.directory / "kubeconfigs" / f"{cluster}.yaml"

    # -- addresses

    @property
    def block(self) -> IPv4Network:
        base = IPv4Address("198.18.0.0") if self.index < 4 else IPv4Address("198.19.0.0")
        return IPv4Network((int(base) + (self.index % 4 if self.index < 4 else self.index - 4) * 16 * 256, 20))

    def _address(self, third: int, last: int) -> str:
        return str(self.block[third * 256 + last])

    @property
    def central_address(self) -> str:
        """Address of all central services: Temporal, the garden, DNS, the object store, our own processes."""
        return self._address(0, 1)

    @property
    def dns_address_ipv6(self) -> str:
        """Second address of the central DNS server. No other central service listens there."""
        return str(self._network_ipv6(9)[1])

    @property
    def temporal_address(self) -> str:
        return f"{self.central_address}:7233"

    @property
    def temporal_metrics(self) -> str:
        """Address of the dev server's metrics; an external Temporal has its own."""
        return f"http://{self.central_address}:7253/metrics"

    @property
    def temporal_ui(self) -> str:
        return f"http://{self.central_address}:8233"

    @property
    def codec_endpoint(self) -> str:
        return f"https://{self.central_address}:8234"

    @property
    def services_for_seeds(self) -> dict[str, tuple[int, ...]]:
        """Ports, by address, of the central services that a seed needs: the garden, Temporal and the object store."""
        return _ports(f"//{self.temporal_address}", self.garden.server, *self._object_store)

    @property
    def services_for_backups(self) -> dict[str, tuple[int, ...]]:
        """Ports, by address, of the object store: of its objects, and of its users."""
        return _ports(*self._object_store)

    @property
    def _object_store(self) -> tuple[str, str]:
        return self.iam_endpoint, self.object_store_endpoint

    @property
    def discovery_host(self) -> str:
        """Host at which the discovery server publishes the public keys of shoots, and of the garden.

        An address, because the cloud's API server reads these keys, and this machine does not know the landscape's DNS.
        """
        return self.central_address

    @property
    def object_store_address(self) -> str:
        """Address of the buckets. Pods of closed seeds reach them, and no other central service."""
        return self._address(0, 2) if self.closed else self.central_address

    @property
    def object_store_endpoint(self) -> str:
        return f"http://{self.object_store_address}:9002"

    @property
    def iam_endpoint(self) -> str:
        """Where the object store's administrators manage its users."""
        return f"http://{self.central_address}:9001"

    @property
    def registry_endpoint(self) -> str:
        """Where machines pull images; an address of the cloud, which they reach as its API server."""
        return f"https://{self.cloud.address}:5000"

    @property
    def machine_network(self) -> str:
        """Pod network of the cloud cluster: its pods are the machines, which are the nodes of all shoots."""
        return f"{self._address(8, 0)}/22"

    @property
    def machine_network_ipv6(self) -> str:
        """Network of the second address of each machine."""
        return str(self._network_ipv6(8))

    def _network_ipv6(self, number: int) -> IPv6Network:
        """One of the 16 networks of the landscape's /60. A link has the number of its network of IPv4."""
        first = int(IPv6Network(IPV6_BLOCK).network_address)
        return IPv6Network((first + ((16 * self.index + number) << 64), 64))

    @property
    def public_network(self) -> str:
        """Addresses of the cloud's load balancers, which users reach; bastions have such addresses."""
        return f"{self._address(4, 0)}/24"

    @property
    def public_network_ipv6(self) -> str:
        """Addresses of IPv6 of the cloud's load balancers."""
        return str(self._network_ipv6(4))

    @property
    def dns_zone(self) -> str:
        return f"{self.name}.garden.test"

    @property
    def internal_domain(self) -> str:
        return f"internal.{self.dns_zone}"

    @property
    def default_domain(self) -> str:
        return f"shoot.{self.dns_zone}"

    # -- clusters and links

    @property
    def clusters(self) -> tuple[ClusterPlan, ...]:
        return (self.garden, self.cloud, *self.seeds)

    def cluster(self, name: str) -> ClusterPlan:
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        known = ", ".join(cluster.name for cluster in self.clusters)
        raise LandscapeError(f"no cluster {name!r} in landscape {self.name}: there are {known}")

    @property
    def places(self) -> tuple[str, ...]:
        """Names of all that can be switched off: the seeds, and the nodes of zonal ones."""
        nodes = (node.name for seed in self.seeds if seed.is_zonal for node in seed.nodes)
        return (*SEEDS, *nodes)

    def nodes_of(self, place: str) -> tuple[NodePlan, ...]:
        """Nodes that lose their power with a place."""
        if place in SEEDS:
            return self.cluster(place).nodes
        return tuple(node for seed in self.seeds for node in seed.nodes if node.name == place)

    @property
    def garden(self) -> ClusterPlan:
        return self._cluster(
            "garden", self.central_address, self.netns("garden"), f"100.64.{16 * self.index + 8}.0/24", ""
        )

    @property
    def cloud(self) -> ClusterPlan:
        services = f"100.64.{16 * self.index}.0/24"
        cloud = self._cluster("cloud", self._address(1, 2), self.netns("cloud"), services, self.machine_network)
        nodes = tuple(replace(node, pods_ipv6=self.machine_network_ipv6) for node in cloud.nodes)
        services_ipv6 = f"{self._network_ipv6(0).network_address}/112"
        return replace(cloud, nodes=nodes, services_ipv6=services_ipv6)

    @property
    def seeds(self) -> tuple[ClusterPlan, ...]:
        seeds = (
            self._cluster(
                name,
                self._address(1 + number, 2),
                self.netns(name),
                f"100.64.{16 * self.index + number}.0/24",
                f"100.96.{16 * self.index + number}.0/24",
            )
            for number, name in enumerate(SEEDS, start=1)
        )
        return tuple(self._with_zones(seed) if seed.name in self.zonal else seed for seed in seeds)

    def further_address(self, seed: str) -> str:
        """Second address of a seed's node: for the gateway of a handler of ExposureClasses."""
        return self._address(2 + SEEDS.index(seed), 5)

    def gateway_addresses(self, seed: str) -> dict[str, str]:
        """Addresses of a seed's gateways: IPv4, and the address of IPv6 that leads to the same gateway."""
        first = 16 * (1 + SEEDS.index(seed))
        addresses = self.host_link(seed).right_address, self.further_address(seed)
        return {each: str(self._network_ipv6(9)[first + number]) for number, each in enumerate(addresses, start=1)}

    def _cluster(self, name: str, address: str, netns: str, services: str, pods: str) -> ClusterPlan:
        """A cluster whose only node, if ``pods`` is not empty, is in the network namespace of its control plane."""
        nodes = () if not pods else (self._node(name, address, netns, pods, ZONES[0]),)
        return ClusterPlan(
            name=name,
            address=address,
            api_server_address=LOOPBACK if name == "garden" else address,
            netns=netns,
            services=services,
            directory=self.directory / name,
            run_directory=self.run_directory / name,
            nodes=nodes,
            node_network=f"{address}/32" if nodes else "",
            pods=pods,
        )

    def _node(self, name: str, address: str, netns: str, pods: str, zone: str) -> NodePlan:
        return NodePlan(
            name=name,
            address=address,
            netns=netns,
            pods=pods,
            zone=zone,
            directory=self.directory / name,
            run_directory=self.run_directory / name,
            cgroup=f"/gardener-{self.name}-{name}",
        )

    def _with_zones(self, seed: ClusterPlan) -> ClusterPlan:
        """The seed with a node in each zone in place of its only one."""
        number = 1 + SEEDS.index(seed.name)
        pods = 16 * self.index + 4 * number
        nodes = tuple(
            self._node(
                f"{seed.name}-{zone}",
                self.node_link(seed.name, zone).right_address,
                self.netns(f"{seed.name}-{zone}"),
                f"100.96.{pods + place}.0/24",
                zone,
            )
            for place, zone in enumerate(ZONES)
        )
        network = f"{self._address(15, 16 * (number - 1))}/28"
        return replace(seed, nodes=nodes, node_network=network, pods=f"100.96.{pods}.0/22")

    def netns(self, cluster: str) -> str:
        return f"gardener-{self.name}-{cluster}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        nodes = (node.netns for seed in self.seeds if seed.is_zonal for node in seed.nodes)
        return (*(self.netns(name) for name in ("garden", "cloud", *SEEDS)), *nodes)

    def host_link(self, cluster: str) -> Link:
        """Link to the host, through which commands of the user reach the landscape."""
        third = {"garden": 7, "cloud": 1}.get(cluster) or 2 + SEEDS.index(cluster)
        return Link(
            left_netns=None,
            left_interface=f"gard{self.index}-{cluster}",
            left_address=self._address(third, 1),
            right_netns=self.netns(cluster),
            right_interface="host",
            right_address=self._address(third, 2),
            ipv6=str(self._network_ipv6(third)),
        )

    def garden_link(self, cluster: str) -> Link:
        third = 12 if cluster == "cloud" else 13 + SEEDS.index(cluster)
        return Link(
            left_netns=self.netns("garden"),
            left_interface=cluster,
            left_address=self._address(third, 1),
            right_netns=self.netns(cluster),
            right_interface="garden",
            right_address=self._address(third, 2),
            ipv6=str(self._network_ipv6(third)) if cluster == "cloud" else "",
        )

    def cloud_link(self, seed: str) -> Link:
        third = 5 + SEEDS.index(seed)
        return Link(
            left_netns=self.netns("cloud"),
            left_interface=seed,
            left_address=self._address(third, 1),
            right_netns=self.netns(seed),
            right_interface="cloud",
            right_address=self._address(third, 2),
            ipv6=str(self._network_ipv6(third)),
        )

    def node_link(self, seed: str, zone: str) -> Link:
        """Link of a zonal seed to one of its nodes."""
        last = 16 * SEEDS.index(seed) + 4 * ZONES.index(zone)
        return Link(
            left_netns=self.netns(seed),
            left_interface=f"node-{zone}",
            left_address=self._address(15, last + 1),
            right_netns=self.netns(f"{seed}-{zone}"),
            right_interface="seed",
            right_address=self._address(15, last + 2),
        )

    @property
    def links(self) -> tuple[Link, ...]:
        return (
            *(self.host_link(cluster) for cluster in ("garden", "cloud", *SEEDS)),
            *(self.garden_link(cluster) for cluster in ("cloud", *SEEDS)),
            *(self.cloud_link(seed) for seed in SEEDS),
            *(self.node_link(seed.name, node.zone) for seed in self.seeds if seed.is_zonal for node in seed.nodes),
        )

    # -- what is kept on disk

    @property
    def facts(self) -> dict[str, Any]:
        """Addresses and paths for users of the landscape; kept in ``landscape.json``."""
        return {
            "name": self.name,
            "index": self.index,
            "kubernetesVersion": self.kubernetes_version,
            "olderVersions": list(self.older_versions),
            "zonalSeeds": list(self.zonal),
            "closedSeeds": self.closed,
            "nodeLogs": self.node_logs,
            "temporal": {
                "address": self.temporal_address,
                "ui": self.temporal_ui,
                "metrics": self.temporal_metrics,
                "codec": self.codec_endpoint,
                "codecCa": str(self.garden.directory / "pki" / "ca.crt"),
                "tls": {
                    "ca": str(self.temporal_authority / "servers.crt"),
                    "certificate": str(self.temporal_authority / "admin.crt"),
                    "key": str(self.temporal_authority / "admin.key"),
                },
                "operatorKeyFile": str(self.derived_key("operators")),
                "external": self.external_temporal,
            },
            "dns": {"server": self.central_address, "zone": self.dns_zone},
            "objectStore": {"endpoint": self.object_store_endpoint},
            "registry": {"endpoint": self.registry_endpoint, "ca": str(self.cloud.directory / "pki" / "ca.crt")},
            "codecKeyFile": str(self.codec_key),
            "clusters": {
                cluster.name: {"kubeconfig": str(self.kubeconfig(cluster.name)), "server": cluster.server}
                for cluster in self.clusters
            },
        }

    def save(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        write_if_changed(self.directory / "landscape.json", json.dumps(self.facts, indent=2) + "\n")


def load(name: str, state_home: Path = STATE_HOME) -> Plan | None:
    """Plan of a landscape that was started and not taken down; ``None`` if there is none of that name."""
    try:
        content = json.loads((state_home / name / "landscape.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    older = tuple(content.get("olderVersions", ()))
    external = content["temporal"].get("external", "")
    zonal = tuple(content.get("zonalSeeds", ()))
    closed = content.get("closedSeeds", False)
    version, node_logs = content["kubernetesVersion"], content.get("nodeLogs", False)
    return Plan(content["name"], content["index"], version, older, zonal, external, closed, node_logs, state_home)


def existing(state_home: Path = STATE_HOME) -> Iterator[Plan]:
    """All landscapes with a state directory."""
    if not state_home.is_dir():
        return
    for directory in sorted(state_home.iterdir()):
        if plan := load(directory.name, state_home):
            yield plan


def choose(
    name: str,
    kubernetes_version: str,
    state_home: Path = STATE_HOME,
    *,
    zonal: Sequence[str] = (),
    open_seeds: bool = False,
) -> Plan:
    """A plan for a new landscape: index 0 belongs to the one called ``default``, others take the lowest that is free.

    ``zonal``: seeds with a node in each zone. ``open_seeds``: no NetworkPolicies close the seeds. They are open, too,
    if a seed is zonal: its gardenlet and its API server run outside of its nodes, where no policy lets them reach pods.

    Raises LandscapeError if all blocks of addresses are taken.
    """
    made = Plan(
        name, 0, kubernetes_version, zonal=tuple(zonal), closed=not (zonal or open_seeds), state_home=state_home
    )
    if name == DEFAULT_NAME:
        return made
    taken = {plan.index for plan in existing(state_home)} | {0}
    free = [index for index in range(MAX_LANDSCAPES) if index not in taken]
    if not free:
        raise LandscapeError(
            f"all {MAX_LANDSCAPES - 1} blocks of addresses for named landscapes are taken: take one down first"
        )
    return replace(made, index=free[0])


def _ports(*urls: str) -> dict[str, tuple[int, ...]]:
    """Ports of URLs, by address."""
    ports: dict[str, list[int]] = {}
    for place in map(urlsplit, urls):
        if place.hostname and place.port:
            ports.setdefault(place.hostname, []).append(place.port)
    return {address: tuple(sorted(found)) for address, found in ports.items()}

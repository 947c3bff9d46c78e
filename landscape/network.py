"""Network namespaces, links, routes and rules of a landscape.

The garden with all central services, the cloud and each seed have a namespace of their own. The host itself forwards
nothing, gets no iptables rule and serves nothing: it only has a link to each namespace. What has no route ends at an
``unreachable`` one, so nothing leaves the machine.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from landscape import plan as plans
from landscape import residue
from landscape.kernel import has_ipv6
from landscape.plan import IPV6_BLOCK, SEEDS, ClusterPlan, Link, NodePlan, Plan
from landscape.shell import run

GATEWAY_PORTS = (443, 8132, 8443)
"""Ports of a seed's gateway that machines may reach: SNI, the VPN's HTTP CONNECT, and the API server proxy."""
ETCD_PORTS = (2379, 2380)
"""Ports of a seed's gateway that other seeds may reach, too: by these an etcd has members in two seeds."""

POD_BRIDGE = "cni0"
"""Interface of a cluster's pods on its node. Machines are pods of the cloud."""

_DNS = ("udp", "tcp")

_SEED_MACHINES = "GARDENER-SEED-MACHINES"
"""Chain of the cloud with the rules for machines of Shoots that are seeds."""

SEED_LINKS = ("host", "garden", "cloud")
"""Interfaces of a seed: to users, to central services, to machines."""

# Networks of all landscapes; traffic to these ranges must not take the host's default route.
_PRIVATE = ("198.18.0.0/15", "100.96.0.0/11", "100.64.0.0/13", *([IPV6_BLOCK] if has_ipv6() else []))
_NAMESPACES = Path("/run/netns")
_OF_A_NODE = {
    "net/ipv4/ip_forward": "1",
    # Pods on one bridge may connect through a ClusterIP: the answers must pass iptables, too.
    "net/bridge/bridge-nf-call-iptables": "1",
    # And what they send each other by IPv6 must pass the rules that drop it.
    "net/bridge/bridge-nf-call-ip6tables": "1",
}
"""Settings of the kernel."""
_LAST_RESORT = "metric 4096"


async def up(plan: Plan) -> None:
    """Create the network of the landscape; a second run completes it."""
    existing = _namespaces()
    for namespace in plan.namespaces:
        if namespace not in existing:
            await run("ip", "netns", "add", namespace)
    for link in plan.links:
        await _link(link)
    routes = [f"route replace unreachable {network} {_LAST_RESORT}" for network in _PRIVATE]
    routes.append(f"route replace {plan.central_address}/32 via {plan.host_link('garden').right_address}")
    # Users have one address, by which the garden and the cloud know them, as on the internet.
    user = plan.host_link("garden").left_address
    routes.append(f"route replace {plan.public_network} via {plan.host_link('cloud').right_address} src {user}")
    for seed in SEEDS:
        routes.append(f"route replace {plan.further_address(seed)}/32 via {plan.host_link(seed).right_address}")
    if plan.closed:
        routes.append(f"route replace {plan.object_store_address}/32 via {plan.host_link('garden').right_address}")
    if has_ipv6():
        link = plan.host_link("cloud")
        routes.append(f"route replace {plan.public_network_ipv6} via {link.right_ipv6} src {link.left_ipv6}")
        routes.append(f"route replace {plan.dns_address_ipv6}/128 via {plan.host_link('garden').right_ipv6}")
        for seed in SEEDS:
            routes += _routes_ipv6(plan, seed, plan.host_link(seed))
    await _batch(None, routes)
    nodes = (_node(seed, node) for seed in plan.seeds if seed.is_zonal for node in seed.nodes)
    await asyncio.gather(_garden(plan), _cloud(plan), *(_seed(plan, seed) for seed in SEEDS), *nodes)


async def admit_machines(plan: Plan, of_seeds: Sequence[str], with_backups: Sequence[str] = ()) -> bool:
    """Let these machines, and no others, reach central services; returns whether rules changed.

    ``of_seeds``: addresses of machines that reach what a seed needs. ``with_backups``: of those that reach the object
    store alone. All rules change at once. Connections that were open from other machines end, too.
    """
    namespace = plan.cloud.netns
    rules = [
        f"-A {_SEED_MACHINES} -s {address}/32 -d {service}/32 -p tcp -m multiport --dports {','.join(map(str, ports))} "
        "-j ACCEPT"
        for addresses, services in (
            (of_seeds, plan.services_for_seeds),
            (with_backups, plan.services_for_backups),
        )
        for address in addresses
        for service, ports in services.items()
    ]
    live = await run("iptables-save", "-t", "filter", netns=namespace)
    if [line for line in live.splitlines() if line.startswith(f"-A {_SEED_MACHINES} ")] == rules:
        return False
    if f"-j {_SEED_MACHINES}" not in live:
        rules.insert(0, f"-I GARDENER-MACHINES 1 -j {_SEED_MACHINES}")
    script = "\n".join(["*filter", f":{_SEED_MACHINES} - [0:0]", *rules, "COMMIT"])
    await run("iptables-restore", "--noflush", stdin=f"{script}\n", netns=namespace)
    return True


async def down(plan: Plan) -> None:
    """Remove the network. The interfaces of pods are removed with their namespaces."""
    for link in plan.links:
        if link.left_netns is None:
            await run("ip", "link", "delete", link.left_interface, check=False)
    for namespace in set(plan.namespaces) & _namespaces():
        await run("ip", "netns", "delete", namespace)
    _forget_namespaces_directory()
    others = {name for other in plans.existing() if other.name != plan.name for name in other.namespaces}
    if not others & _namespaces():
        for network in _PRIVATE:
            await run("ip", "route", "delete", "unreachable", network, *_LAST_RESORT.split(), check=False)


def _forget_namespaces_directory(directory: Path = _NAMESPACES) -> None:
    """Unmount and remove the directory of namespaces if it is empty: ``ip netns add`` mounts it on itself."""
    if directory.is_dir() and not any(directory.iterdir()):
        residue.unmount_below(directory)
        directory.rmdir()


async def set_seed_links(plan: Plan, seed: str, state: str, interfaces: Sequence[str] = SEED_LINKS) -> None:
    """Set the links of a seed ``down``, which cuts it off from garden, Temporal and cloud; or ``up`` again."""
    namespace = plan.cluster(seed).netns
    await _batch(namespace, [f"link set {interface} {state}" for interface in interfaces])
    if state == "up":
        # Routes through an interface vanish with it, and so do its addresses of IPv6.
        for link in (plan.host_link(seed), plan.cloud_link(seed)):
            await _link_ipv6(link)
            # The kernel takes no route of IPv6 by a neighbour that it has not found, and asks again after a minute.
            await _batch(link.left_netns, [f"neigh flush dev {link.left_interface}"])
        await _seed(plan, seed)


def is_cut(plan: Plan, seed: str) -> bool:
    """Whether the seed's link to the host was taken down."""
    interface = plan.host_link(seed).left_interface
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/sys/class/net/{interface}/operstate").read_text().strip() != "up"
    return False


def _namespaces() -> set[str]:
    return {entry.name for entry in _NAMESPACES.iterdir()} if _NAMESPACES.is_dir() else set()


async def _link(link: Link) -> None:
    """Create a veth pair with its addresses, unless it exists."""
    listing = ["ip", *_in(link.left_netns), "-brief", "link", "show", link.left_interface]
    if not await run(*listing, check=False):
        await run(
            *("ip", *_in(link.left_netns), "link", "add", link.left_interface, "type", "veth"),
            *("peer", "name", link.right_interface, "netns", link.right_netns),
        )
    for namespace, interface, address in (
        (link.left_netns, link.left_interface, link.left_address),
        (link.right_netns, link.right_interface, link.right_address),
    ):
        await _batch(namespace, [f"addr replace {address}/30 dev {interface}", f"link set {interface} up"])
    await _link_ipv6(link)


async def _link_ipv6(link: Link) -> None:
    if not link.ipv6 or not has_ipv6():
        return
    for namespace, interface, address in (
        (link.left_netns, link.left_interface, link.left_ipv6),
        (link.right_netns, link.right_interface, link.right_ipv6),
    ):
        await _add_ipv6(namespace, interface, f"{address}/64")


async def _add_ipv6(namespace: str | None, interface: str, *addresses: str) -> None:
    # A machine may have switched IPv6 off for new interfaces.
    await _sysctl(namespace, {f"net/ipv6/conf/{interface}/disable_ipv6": "0"})
    # Without ``nodad``, the kernel would use the address only after a second.
    await _batch(namespace, [f"addr replace {each} dev {interface} nodad" for each in addresses])


def _routes_ipv6(plan: Plan, seed: str, link: Link) -> list[str]:
    """Routes to the addresses of IPv6 of a seed's gateways, from the left end of a link to the seed."""
    return [f"route replace {each}/128 via {link.right_ipv6}" for each in plan.gateway_addresses(seed).values()]


async def _garden(plan: Plan) -> None:
    """Namespace of the central services. Their address is reachable by all links, and opens no connection.

    Temporal's UI is reachable from this machine only.
    """
    namespace, port = plan.garden.netns, plan.temporal_ui.rsplit(":", 1)[1]
    await _batch(namespace, [*_common(), f"addr replace {plan.central_address}/32 dev lo"])
    if plan.closed:
        await _batch(namespace, [f"addr replace {plan.object_store_address}/32 dev lo"])
    if has_ipv6():
        await _add_ipv6(namespace, "lo", f"{plan.dns_address_ipv6}/128")
    if "GARDENER-UI" in await run("iptables-save", "-t", "filter", netns=namespace):
        return
    rules = ["*filter", ":GARDENER-UI - [0:0]", f"-A INPUT -p tcp --dport {port} -j GARDENER-UI"]
    # The UI needs no certificate: each client of its port has all rights of the UI.
    rules += [f"-A GARDENER-UI -i {interface} -j RETURN" for interface in ("lo", "host")]
    rules += ["-A GARDENER-UI -p tcp -j REJECT --reject-with tcp-reset", "COMMIT"]
    await run("iptables-restore", "--noflush", stdin="\n".join(rules) + "\n", netns=namespace)


async def _cloud(plan: Plan) -> None:
    """Namespace of the cloud. It forwards its machines to the central DNS and to the gateways of the seeds, with NAT.

    The gateways reach each other through it, too, as they would through the internet. ``admit_machines`` opens it for
    the machines of seeds, and for those that back up.
    """
    cloud, namespace = plan.cloud, plan.cloud.netns
    services = dict.fromkeys([plan.central_address, plan.object_store_address])
    routes = [f"route replace {address}/32 via {plan.garden_link('cloud').left_address}" for address in services]
    user = plan.host_link("garden").left_address
    routes.append(f"route replace {user}/32 via {plan.host_link('cloud').left_address}")
    for seed in plan.seeds:
        for address in (seed.address, plan.further_address(seed.name)):
            routes.append(f"route replace {address}/32 via {plan.cloud_link(seed.name).right_address}")
    await _batch(namespace, _common() + routes + _service_routes(cloud.services, cloud.address))
    await _sysctl(namespace, {"net/ipv4/ip_forward": "1"})
    ports, etcds = (",".join(map(str, each)) for each in (GATEWAY_PORTS, ETCD_PORTS))
    rules = ["*filter", ":FORWARD ACCEPT [0:0]", ":GARDENER-GATEWAYS - [0:0]"]
    rules.append("-A GARDENER-GATEWAYS -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
    sources = [plan.machine_network]
    for seed in plan.seeds:
        further = plan.further_address(seed.name)
        for address in (seed.address, further):
            to_gateway = f"-d {address}/32 -p tcp -m multiport --dports"
            rules.append(f"-A GARDENER-GATEWAYS {to_gateway} {ports} -j ACCEPT")
            rules.append(f"-A GARDENER-GATEWAYS ! -s {plan.machine_network} {to_gateway} {etcds} -j ACCEPT")
        # Here, packets of a seed's pods have the address of the seed's link as source.
        for address in (seed.address, further, plan.cloud_link(seed.name).right_address):
            rules.append(f"-A GARDENER-GATEWAYS -d {address}/32 -j REJECT")
            sources.append(f"{address}/32")
    rules += [f"-A FORWARD -s {source} -j GARDENER-GATEWAYS" for source in sources]
    # Of the central address, machines need DNS only. They must not reach Temporal, the codec endpoint, the object store
    # and the garden, which are there, too.
    rules.append(":GARDENER-MACHINES - [0:0]")
    rules += [f"-A GARDENER-MACHINES -d {plan.central_address}/32 -p {each} --dport 53 -j ACCEPT" for each in _DNS]
    # Match by the bridge and not by the destination: machines of a Shoot forward packets of its pods to each other.
    rules += [
        f"-A GARDENER-MACHINES ! -o {POD_BRIDGE} -j REJECT",
        f"-A FORWARD -s {plan.machine_network} -j GARDENER-MACHINES",
        "COMMIT",
    ]
    # Machines reach the load balancers of others as through the internet. Without this rule, a machine would answer the
    # other one past the load balancer, because both are on one bridge.
    hairpin = f"-s {plan.machine_network} -m conntrack --ctstate DNAT --ctorigdst {plan.public_network} -j MASQUERADE"
    await _rules(namespace, "\n".join(rules), [plan.machine_network], [hairpin])
    if has_ipv6():
        # The packets of machines to each other must pass the rules, too.
        await _sysctl(namespace, {"net/bridge/bridge-nf-call-ip6tables": "1"})
        await _machines_ipv6(namespace)
        await _public_ipv6(plan)
        await _gateways_ipv6(plan)
    await _public(plan, sources[1:])


async def _machines_ipv6(namespace: str) -> None:
    """Let machines reach each other by IPv6, and nothing else: no other namespace, and no server of the cloud.

    ``_public_ipv6`` lets them answer users. ``_gateways_ipv6`` lets them reach gateways of seeds, and the DNS server.

    A machine must not become the gateway of others, so no router advertisement of machines passes. The rules match the
    bridge and not the addresses of machines, because machines of a Shoot forward packets of its pods to each other. A
    landscape of an earlier version gets these rules, too.
    """
    if "GARDENER-MACHINES" in await run("ip6tables-save", "-t", "filter", netns=namespace):
        return
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    rules = ["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD DROP [0:0]", ":GARDENER-MACHINES - [0:0]"]
    for type_ in ("router-advertisement", "redirect"):
        rules.append(f"-A GARDENER-MACHINES -p ipv6-icmp -m icmp6 --icmpv6-type {type_} -j DROP")
    rules += [
        f"-A FORWARD -i {POD_BRIDGE} -j GARDENER-MACHINES",
        f"-A FORWARD -i {POD_BRIDGE} -o {POD_BRIDGE} -j ACCEPT",
        f"-A FORWARD -i {POD_BRIDGE} -j REJECT",
        f"-A INPUT -i {POD_BRIDGE} -j GARDENER-MACHINES",
        f"-A INPUT -i {POD_BRIDGE} {known}",
        f"-A INPUT -i {POD_BRIDGE} -p ipv6-icmp -j ACCEPT",
        f"-A INPUT -i {POD_BRIDGE} -j REJECT",
        "COMMIT",
    ]
    await run("ip6tables-restore", "--noflush", stdin="\n".join([*rules, ""]), netns=namespace)


async def _public_ipv6(plan: Plan) -> None:
    """Let users and machines reach load balancers by IPv6. Machines answer users, and open no connections to them.

    A landscape of an earlier version gets these rules, too.
    """
    namespace, public = plan.cloud.netns, f"--ctorigdst {plan.public_network_ipv6}"
    if "GARDENER-PUBLIC" in await run("ip6tables-save", "-t", "filter", netns=namespace):
        return
    rules = [
        "*filter",
        ":GARDENER-PUBLIC - [0:0]",
        f"-A GARDENER-PUBLIC -i host -o {POD_BRIDGE} -m conntrack --ctstate DNAT {public} -j ACCEPT",
        f"-A GARDENER-PUBLIC -i {POD_BRIDGE} -o host -m conntrack --ctstate ESTABLISHED,RELATED {public} -j ACCEPT",
        # Before the rule that rejects all that machines send to others.
        "-I FORWARD 1 -j GARDENER-PUBLIC",
        "COMMIT",
        # As by IPv4: otherwise, a machine would answer the other one past the load balancer.
        "*nat",
        f"-A POSTROUTING -s {plan.machine_network_ipv6} -m conntrack --ctstate DNAT {public} -j MASQUERADE",
        "COMMIT",
    ]
    await run("ip6tables-restore", "--noflush", stdin="\n".join([*rules, ""]), netns=namespace)


async def _gateways_ipv6(plan: Plan) -> None:
    """Let machines reach gateways of seeds and the DNS server by IPv6, with NAT, and nothing else behind these links.

    A landscape of an earlier version gets these routes and rules, too.
    """
    namespace, to_garden = plan.cloud.netns, plan.garden_link("cloud")
    routes = [f"route replace {plan.dns_address_ipv6}/128 via {to_garden.left_ipv6}"]
    for seed in SEEDS:
        routes += _routes_ipv6(plan, seed, plan.cloud_link(seed))
    await _batch(namespace, routes)
    if "GARDENER-GATEWAYS" in await run("ip6tables-save", "-t", "filter", netns=namespace):
        return
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    links = [to_garden.right_interface, *(plan.cloud_link(seed).left_interface for seed in SEEDS)]
    opened = f"-A GARDENER-GATEWAYS -s {plan.machine_network_ipv6}"
    rules = ["*filter", ":GARDENER-GATEWAYS - [0:0]", f"-A GARDENER-GATEWAYS {known}"]
    rules += [f"{opened} -d {plan.dns_address_ipv6}/128 -p {each} --dport 53 -j ACCEPT" for each in _DNS]
    for seed in SEEDS:
        for address in plan.gateway_addresses(seed).values():
            ports = ",".join(map(str, GATEWAY_PORTS))
            rules.append(f"{opened} -d {address}/128 -p tcp -m multiport --dports {ports} -j ACCEPT")
    for link in links:
        # Before the rule that rejects all that machines send to others.
        rules.append(f"-I FORWARD 1 -i {POD_BRIDGE} -o {link} -j GARDENER-GATEWAYS")
        rules.append(f"-I FORWARD 1 -i {link} -o {POD_BRIDGE} {known}")
    rules += ["COMMIT", "*nat"]
    # Behind the links, the network of machines has no route.
    rules += [f"-A POSTROUTING -s {plan.machine_network_ipv6} -o {link} -j MASQUERADE" for link in links]
    await run("ip6tables-restore", "--noflush", stdin="\n".join([*rules, "COMMIT", ""]), netns=namespace)


async def _public(plan: Plan, seeds: Sequence[str]) -> None:
    """Let seeds reach the gateway of a seed that is a Shoot, at its public address, and no other load balancers.

    A landscape of an earlier version gets these rules, too. ``seeds``: source addresses of their packets.
    """
    namespace = plan.cloud.netns
    if "GARDENER-PUBLIC" in await run("iptables-save", "-t", "filter", netns=namespace):
        return
    public = f"-A GARDENER-PUBLIC -p tcp -m conntrack --ctorigdst {plan.public_network}"
    rules = ["*filter", ":GARDENER-PUBLIC - [0:0]"]
    rules += [f"{public} --ctorigdstport {port} -j ACCEPT" for port in (*GATEWAY_PORTS, *ETCD_PORTS)]
    rules.append("-A GARDENER-PUBLIC -j REJECT")
    rules += [f"-A FORWARD -s {source} -o {POD_BRIDGE} -j GARDENER-PUBLIC" for source in seeds]
    await run("iptables-restore", "--noflush", stdin="\n".join([*rules, "COMMIT", ""]), netns=namespace)


async def _seed(plan: Plan, name: str) -> None:
    """Namespace of a seed: it reaches central services, the cloud's API server, other seeds' gateways, its own pods.

    The gateway of another seed may have a public address of the cloud.
    """
    seed, cloud = plan.cluster(name), plan.cloud
    namespace = seed.netns
    routes = [
        f"route replace {plan.central_address}/32 via {plan.garden_link(name).left_address}",
        f"route replace {cloud.address}/32 via {plan.cloud_link(name).left_address} src {seed.address}",
        f"route replace {plan.public_network} via {plan.cloud_link(name).left_address}",
    ]
    if plan.closed:
        routes.append(f"route replace {plan.object_store_address}/32 via {plan.garden_link(name).left_address}")
    for other in plan.seeds:
        if other.name != name:
            # To the other seed's gateway, and from the gateway's pods.
            further = plan.further_address(other.name)
            for address in (other.address, further, plan.cloud_link(other.name).right_address):
                routes.append(f"route replace {address}/32 via {plan.cloud_link(name).left_address}")
    further = f"addr replace {plan.further_address(name)}/32 dev lo"
    await _batch(namespace, [*_common(), further, *routes, *_service_routes(seed.services, seed.address)])
    await _sysctl(namespace, _OF_A_NODE)
    if has_ipv6():
        await _add_ipv6(namespace, "lo", *(f"{each}/128" for each in plan.gateway_addresses(name).values()))
    own = [seed.pods]
    if seed.is_zonal:
        own.append(seed.node_network)
        links = ((node, plan.node_link(name, node.zone)) for node in seed.nodes)
        await _batch(namespace, [f"route replace {node.pods} via {link.right_address}" for node, link in links])
    filters = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT"
    if seed.is_zonal:
        filters += "\n" + _to_load_balancer([seed.address, plan.further_address(name)])
    await _rules(namespace, filters, own)


def _to_load_balancer(addresses: Sequence[str]) -> str:
    """Rules by which connections to the gateways reach the load balancer of a zonal seed.

    kube-proxy would forward them to pods by itself, and does not know for seconds that a node is lost. Its rules are of
    table nat, which sees no packet without a conntrack entry.
    """
    ports = ",".join(map(str, (*GATEWAY_PORTS, *ETCD_PORTS)))
    rules = ["*raw"]
    for address in addresses:
        for chain in ("PREROUTING", "OUTPUT"):
            rules.append(f"-A {chain} -d {address}/32 -p tcp -m multiport --dports {ports} -j CT --notrack")
            rules.append(f"-A {chain} -s {address}/32 -p tcp -m multiport --sports {ports} -j CT --notrack")
    return "\n".join([*rules, "COMMIT"])


async def _node(seed: ClusterPlan, node: NodePlan) -> None:
    """Namespace of a node of a zonal seed. All its routes lead through the namespace of the seed."""
    router = str(IPv4Address(node.address) - 1)
    await _batch(node.netns, ["link set lo up", f"route replace default via {router}"])
    await _batch(node.netns, _service_routes(seed.services, node.address))
    await _sysctl(node.netns, _OF_A_NODE)


def _common() -> list[str]:
    return ["link set lo up", f"route replace unreachable default {_LAST_RESORT}"]


def _service_routes(services: str, source: str) -> list[str]:
    """Routes to ClusterIPs: the kernel needs a route before DNAT, for the namespace's own processes.

    They use an empty bridge, because not every kernel has dummy devices.
    """
    return [
        "link add svc type bridge",
        "link set svc up",
        f"route replace {services} dev svc src {source}",
    ]


async def _rules(namespace: str, filters: str, own: Sequence[str], first: Sequence[str] = ()) -> None:
    """Load the iptables rules of a namespace, once; kube-proxy has its own chains.

    ``own``: networks that others do not know. One chain masquerades all packets from there to others. CNI's ``ipMasq``
    would add several rules for each pod, and delay its start. ``first``: rules before these.
    """
    if "GARDENER-MASQUERADE" in await run("iptables-save", "-t", "nat", netns=namespace):
        return
    nat = "\n".join(
        [
            "*nat\n:GARDENER-MASQUERADE - [0:0]",
            *(f"-A GARDENER-MASQUERADE {each}" for each in first),
            *(f"-A GARDENER-MASQUERADE -d {each} -j RETURN" for each in own),
            *(f"-A GARDENER-MASQUERADE -s {each} -j MASQUERADE" for each in own),
            "-A POSTROUTING -j GARDENER-MASQUERADE\nCOMMIT",
        ]
    )
    await run("iptables-restore", "--noflush", stdin=f"{filters}\n{nat}\n", netns=namespace)


async def _sysctl(namespace: str | None, values: dict[str, str]) -> None:
    script = "\n".join(f"echo {value} > /proc/sys/{key}" for key, value in values.items())
    await run("sh", "-ec", script, netns=namespace)


async def _batch(namespace: str | None, lines: list[str]) -> None:
    """Run ``ip`` commands in one process. To add something that exists is no error."""
    links = [line for line in lines if line.startswith("link add")]
    if links:
        await run("ip", *_in(namespace), "-force", "-batch", "-", stdin="\n".join(links) + "\n", check=False)
    rest = "".join(f"{line}\n" for line in lines if line not in links)
    await run("ip", *_in(namespace), "-batch", "-", stdin=rest)


def _in(namespace: str | None) -> list[str]:
    return ["-netns", namespace] if namespace else []

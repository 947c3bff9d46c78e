"""Bastion: a machine in the cloud that lets SSH through to the machines of a shoot, from the sources in ``ingress``.

The machine is a pod beside the shoot's machines. Users reach it at the address of a Service of type LoadBalancer, whose
``loadBalancerSourceRanges`` are the sources: the cloud drops all other packets. Connections through the Service come
from the gateway of the machines' network, and the bastion's own rules accept new connections from there only, so that
other machines of that network cannot go round the Service. The rules let no connection out but to port 22 of machines.

All objects are named after the uid of the Bastion, so that a retry finds the objects that an earlier attempt created.
"""

import asyncio
import base64
import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

from activities.errors import permanent, transient
from activities.extension import Extension
from activities.provider_local.cloud_actuator import CloudActuator, address_of
from activities.provider_local.computers import computer_pod, user_data_name, user_data_secret
from activities.provider_local.infrastructure import cloud_profile_config
from activities.provider_local.provider import MANAGER
from api import images
from api.decisions import dual_stack
from api.decisions.conditions import find_condition
from api.errors import ErrorCode
from api.local import infrastructure_namespace
from api.resources import BASTION, POD, SECRET, SERVICE
from kube.cache import Cache
from kube.client import Object
from kube.errors import AlreadyExists

LABEL = "local.provider.extensions.gardener.cloud/bastion"
_SSH_PORT = 22
_READY_SECONDS = 120.0
"""A wait for the machine or its address fails after so long; a retry goes on with the same machine."""
_GONE_SECONDS = 60.0
_CPU_MILLIS, _MEMORY_BYTES = 10, 32 * 1024 * 1024
_FIREWALL = """\
set -eu
gateway=$(ip -4 route show default | awk '{ print $3 }')
iptables-restore <<RULES
*filter
:INPUT DROP
:FORWARD DROP
:OUTPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -s $gateway/32 -p tcp --dport 22 -j ACCEPT
-A OUTPUT -o lo -j ACCEPT
-A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A OUTPUT -d $MACHINES -p tcp --dport 22 -j ACCEPT
-A OUTPUT -j REJECT
COMMIT
RULES
ip6tables-restore <<RULES
*filter
:INPUT DROP
:FORWARD DROP
:OUTPUT DROP
-A INPUT -i lo -j ACCEPT
-A OUTPUT -o lo -j ACCEPT
COMMIT
RULES
"""
_TO_MACHINES_BY_IPV6 = """\
ip6tables-restore --noflush <<RULES
*filter
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-solicitation -j ACCEPT
-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-advertisement -j ACCEPT
-A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A OUTPUT -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-solicitation -j ACCEPT
-A OUTPUT -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-advertisement -j ACCEPT
-A OUTPUT -d $MACHINES_IPV6 -p tcp --dport 22 -j ACCEPT
COMMIT
RULES
"""
"""More rules for a Shoot with IPv6 alone: users know no other addresses of its machines."""


class BastionActuator(CloudActuator):
    """Creates the machine, and reports its address when its SSH server answers."""

    resource = BASTION

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        """Apply Service, user data and pod, and wait until the pod is ready and the Service has an address.

        A second run finds them by their name. It applies changed sources; the machine keeps its user data.
        """
        sources = source_ranges(extension)
        credentials = await self._required_credentials(extension)
        name, namespace = _name(extension), infrastructure_namespace(extension.namespace)
        user_data = user_data_secret(name, namespace, base64.b64decode(extension.spec["userData"]), {LABEL: name})
        profile = cloud_profile_config(extension)
        ipv6 = profile.machine_network_ipv6 if dual_stack.is_ipv6_alone(extension.shoot) else ""
        pod = bastion_pod(name, namespace, profile.machine_network, ipv6)
        async with self._cloud(extension, credentials, f"making bastion {namespace}/{name} in the cloud") as cloud:
            # First of all the rules: no moment may exist at which the machine is open to others.
            await cloud.apply(service(name, namespace, sources), manager=MANAGER)
            for each in (user_data, pod):
                with contextlib.suppress(AlreadyExists):
                    await cloud.create(each)
            selector = f"{LABEL}={name}"
            async with (
                Cache(cloud, SERVICE, namespace, labels=selector) as services,
                Cache(cloud, POD, namespace, labels=selector) as pods,
            ):
                try:
                    address, _ = await asyncio.gather(
                        services.wait_for(name, namespace, address_of, _READY_SECONDS),
                        pods.wait_for(name, namespace, _is_ready, _READY_SECONDS),
                    )
                except TimeoutError as error:
                    raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{extension}: {error}") from None
        return {"ingress": {"ip": address}}

    async def delete(self, extension: Extension) -> None:
        """Delete all objects in the cloud; returns when they are gone. A second run deletes what is left."""
        credentials = await self._credentials(extension)
        if credentials is None:
            return  # leave objects in the cloud: the credentials are gone (spec/extensions.md 1.5)
        name, namespace = _name(extension), infrastructure_namespace(extension.namespace)
        async with self._cloud(extension, credentials, f"deleting bastion {namespace}/{name} in the cloud") as cloud:
            for resource in (SERVICE, POD):
                await cloud.delete(resource, name, namespace)
            async with Cache(cloud, POD, namespace, labels=f"{LABEL}={name}") as pods:
                try:
                    await pods.wait_for(name, namespace, lambda found: found is None, _GONE_SECONDS)
                except TimeoutError:
                    raise transient(
                        ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                        f"pod {namespace}/{name} of {extension} is not gone after {_GONE_SECONDS:.0f} s",
                    ) from None
            await cloud.delete(SECRET, user_data_name(name), namespace)

    def _secret(self, _: Extension) -> str:
        """The Secret of the Shoot's cloud: the kind has no ``secretRef``."""
        return "cloudprovider"


def source_ranges(extension: Extension) -> list[str]:
    """Networks from which the bastion is reached: each block without its exceptions.

    Raises ApplicationError for blocks of IPv6: a bastion has an address of IPv4 alone, and a Service without a range of
    its own family is open to all.
    """
    blocks = [each["ipBlock"] for each in extension.spec["ingress"]]
    found = []
    for block in blocks:
        network = ipaddress.ip_network(block["cidr"], strict=False)
        if not isinstance(network, ipaddress.IPv4Network):
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{extension} asks for connections from {block['cidr']}, only IPv4 is possible here",
            )
        found += list(_without(network, block.get("except") or []))
    if not found:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM, f"{extension} lets no address in: the exceptions of its blocks are all"
        )
    return [str(each) for each in sorted(set(found))]


def _without(network: ipaddress.IPv4Network, exceptions: Iterable[str]) -> Iterator[ipaddress.IPv4Network]:
    left = [network]
    for text in exceptions:
        excluded = ipaddress.IPv4Network(text, strict=False)
        # Two networks are disjoint, or one contains the other.
        apart = [each for each in left if not each.overlaps(excluded)]
        left = apart + [part for each in left if excluded.subnet_of(each) for part in each.address_exclude(excluded)]
    yield from left


def service(name: str, namespace: str, sources: list[str]) -> Object:
    """Address of a bastion, with the sources that it is open to."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: name}},
        "spec": {
            "type": "LoadBalancer",
            "allocateLoadBalancerNodePorts": False,
            "externalTrafficPolicy": "Cluster",
            "ipFamilyPolicy": "SingleStack",
            "loadBalancerSourceRanges": sources,
            "selector": {LABEL: name},
            "ports": [{"name": "ssh", "protocol": "TCP", "port": _SSH_PORT, "targetPort": _SSH_PORT}],
        },
    }


def bastion_pod(name: str, namespace: str, machine_network: str, machine_network_ipv6: str = "") -> Object:
    """Pod that is the bastion. Its rules are there before its first process starts.

    ``machine_network_ipv6``: network of machines with which it connects by IPv6, too; empty: it uses no IPv6.
    """
    pod = computer_pod(
        name,
        namespace,
        image=images.MACHINE,
        labels={"app": "bastion", LABEL: name},
        cpu_millis=_CPU_MILLIS,
        memory_bytes=_MEMORY_BYTES,
    )
    firewall = {
        "name": "firewall",
        "image": images.MACHINE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/bash", "-c", _FIREWALL + (_TO_MACHINES_BY_IPV6 if machine_network_ipv6 else "")],
        "env": [
            {"name": "MACHINES", "value": machine_network},
            *([{"name": "MACHINES_IPV6", "value": machine_network_ipv6}] if machine_network_ipv6 else []),
        ],
        "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}},
    }
    [computer] = pod["spec"]["containers"]
    # It runs no containers of its own.
    computer["args"] = ["systemd.mask=containerd.service"]
    computer["readinessProbe"] = {"tcpSocket": {"port": _SSH_PORT}, "periodSeconds": 1}
    pod["spec"]["initContainers"] = [firewall]
    return pod


def _is_ready(found: Object | None) -> bool:
    return find_condition(found, "Ready").get("status") == "True"


def _name(extension: Extension) -> str:
    return f"bastion-{extension.uid}"

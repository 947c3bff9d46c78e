"""Names and routes by which members of ``etcd-main`` in two seeds reach each other, through these seeds' gateways.

A member keeps its name in the other seed: there a Service without pods gives the address of the gateway to each host.
The gateway passes TLS through by that name. So it neither holds a certificate nor sees data.
Why: docs/decisions/0026-members-of-two-seeds-in-one-cluster.md.
"""

import hashlib
from ipaddress import ip_address

from activities.components import base, connections, gateway
from activities.components.base import Manifest
from activities.components.etcd import CLIENT_PORT, CLIENTS_HOST, MAIN, PEER_PORT, name_of, peer_service
from api import resources

LABELS = {"networking.gardener.cloud/etcd-between-seeds": "true"}
"""Labels of all objects of this module."""

_ETCD = name_of(MAIN)
_SELECT = {"role": MAIN, "app": "etcd-statefulset"}
_POD = "statefulset.kubernetes.io/pod-name"


def member_prefix(seed: str) -> str:
    """Part before the names of the members that a seed adds. The members of two seeds never have the same one."""
    return f"s{hashlib.sha256(seed.encode()).hexdigest()[:8]}-"


def own_members(namespace: str, prefix: str, replicas: int) -> list[Manifest]:
    """Routes of the gateway to the members in this seed: one to each for its peers, one to all of them for clients."""
    domain = _domain(namespace, prefix)
    made: list[Manifest] = []
    for pod in _pods(replicas):
        made += _route(_exposed(pod), namespace, f"{pod}.{domain}", {_POD: pod}, ("peer", PEER_PORT))
    clients = _route(_exposed(_ETCD), namespace, f"{CLIENTS_HOST}.{domain}", _SELECT, ("client", CLIENT_PORT))
    return [*made, *clients]


def other_members(namespace: str, prefix: str, replicas: int, address: str) -> list[Manifest]:
    """Names of the members in the other seed. All have the address of its gateway, an IP address."""
    name = peer_service(MAIN, prefix)
    ports = {"client": CLIENT_PORT, "peer": PEER_PORT}
    service = base.service(name, namespace, select={}, labels=LABELS, ports=ports, clusterIP="None")
    del service["spec"]["selector"]
    hosts = [*_pods(replicas), CLIENTS_HOST]
    return [
        service,
        {
            "apiVersion": resources.ENDPOINT_SLICE.api_version,
            "kind": resources.ENDPOINT_SLICE.kind,
            "metadata": base.metadata(
                name,
                namespace,
                labels={
                    **LABELS,
                    "kubernetes.io/service-name": name,
                    "endpointslice.kubernetes.io/managed-by": "gardenlet",
                },
            ),
            "addressType": f"IPv{ip_address(address).version}",
            "endpoints": [{"addresses": [address], "hostname": each, "conditions": {"ready": True}} for each in hosts],
            "ports": [{"name": key, "port": port, "protocol": "TCP"} for key, port in ports.items()],
        },
    ]


def _route(name: str, namespace: str, host: str, pods: base.Labels, port: tuple[str, int]) -> tuple[Manifest, Manifest]:
    labels, starting = gateway.LABELS | LABELS, _POD in pods
    service = base.service(
        name, namespace, select=pods, ports=dict([port]), labels=labels, publishNotReadyAddresses=starting
    )
    upstream = gateway.Upstream(service=name, port=port[1])
    exposure = gateway.ServiceExposure(hosts=(host,), upstream=upstream, port=port[1])
    config_map = gateway.service_exposure(name, namespace, exposure)
    config_map["metadata"]["labels"] |= LABELS
    return connections.annotated(service, connections.behind_gateways(port[1])), config_map


def _domain(namespace: str, prefix: str) -> str:
    return f"{peer_service(MAIN, prefix)}.{namespace}.svc"


def _pods(replicas: int) -> list[str]:
    return [f"{_ETCD}-{number}" for number in range(replicas)]


def _exposed(name: str) -> str:
    return f"{name}-exposed"

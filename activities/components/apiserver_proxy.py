"""Lets pods of the shoot reach their API server as ``kubernetes.default``.

Clients in the cluster connect to an IP address and so send no usable server name. The endpoint of the Service
``kubernetes`` is an address on the interface ``lo`` of each node. This proxy tunnels connections from this address
through the gateway, and names the API server in a header for the gateway. TLS stays end to end.

The endpoint is an object of our own, not of the API server: an API server that stops would remove the endpoint, and
the API server that replaces it checks the endpoint only every 10 s.
"""

from dataclasses import dataclass

from activities.components import apiserver, base, envoy, gateway
from activities.components.base import Manifest
from api import images

NAME = "apiserver-proxy"
NAMESPACE = "kube-system"
SELECT = {"app": "kubernetes", "role": "apiserver-proxy"}
_METRICS_PORT = 16910


@dataclass(frozen=True)
class ApiServerProxy:
    control_plane: str
    """Namespace of the control plane in its seed."""
    gateway_host: str
    """Name of the API server. DNS resolves it to the gateway of the seed that hosts the control plane."""
    ipv6: bool = False
    """Whether pods have addresses of IPv6 alone."""

    @property
    def address(self) -> str:
        return apiserver.ADVERTISE_ADDRESS_IPV6 if self.ipv6 else apiserver.ADVERTISE_ADDRESS


def objects(proxy: ApiServerProxy) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(NAME, NAMESPACE, labels=SELECT),
        "data": {"envoy.json": base.to_json(_envoy(proxy))},
    }
    return [
        *_endpoint(proxy),
        base.service_account(NAME, NAMESPACE),
        config_map,
        _daemon_set(proxy, base.checksum(config_map["data"])),
    ]


def _endpoint(proxy: ApiServerProxy) -> list[Manifest]:
    """The endpoint of ``default/kubernetes``: an EndpointSlice, and Endpoints for clients that still read those."""
    port = {"name": "https", "port": apiserver.PORT, "protocol": "TCP"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": base.metadata(
                "kubernetes", "default", labels={"endpointslice.kubernetes.io/skip-mirror": "true"}
            ),
            "subsets": [{"addresses": [{"ip": proxy.address}], "ports": [port]}],
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": base.metadata("kubernetes", "default", labels={"kubernetes.io/service-name": "kubernetes"}),
            "addressType": "IPv6" if proxy.ipv6 else "IPv4",
            "endpoints": [{"addresses": [proxy.address], "conditions": {"ready": True}}],
            "ports": [port],
        },
    ]


def _envoy(proxy: ApiServerProxy) -> Manifest:
    where = f"kube-apiserver.{proxy.control_plane}.svc.cluster.local:443"
    tunnel = envoy.tunnel(where, gateway.PROXY_HEADER, gateway.proxy_header(proxy.control_plane))
    cluster = envoy.dns_cluster("gateway", proxy.gateway_host, gateway.PROXY_PORT, refreshed="30s", ipv6=proxy.ipv6)
    filters = [envoy.tcp_proxy("gateway", tunneling_config=tunnel)]
    return envoy.bootstrap(
        listeners=[envoy.listener("apiserver", proxy.address, 443, [{"filters": filters}])],
        clusters=[cluster],
        metrics_address="127.0.0.1",
        metrics_port=_METRICS_PORT,
    )


def _daemon_set(proxy: ApiServerProxy, checksum: str) -> Manifest:
    add_address = base.container(
        "address",
        images.GARDENER,
        ["ip", "address", "replace", f"{proxy.address}/{128 if proxy.ipv6 else 32}", "dev", "lo"],
        cpu="10m",
        memory="8Mi",
        security={
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
    )
    main = envoy.container(
        NAME,
        config="/etc/envoy/envoy.json",
        cpu="20m",
        memory="32Mi",
        mounts={"config": "/etc/envoy"},
        metrics_port=_METRICS_PORT,
        probe_host="127.0.0.1",
    )
    # The proxy binds port 443 in the host's network.
    main["securityContext"] = {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }
    labels = {
        **SELECT,
        "gardener.cloud/role": "system-component",
        "node.gardener.cloud/critical-component": "true",
    }
    return base.daemon_set(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels=labels,
        annotations={"checksum/configuration": checksum},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [add_address],
            "containers": [main],
            "volumes": [base.config_map_volume("config", NAME), base.empty_dir("tmp", memory=True)],
        },
    )

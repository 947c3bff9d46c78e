"""The shoot's end of the reversed VPN: client pods that connect to the gateway, each with a proxy for the API server.

There are two pods: when one pod or its node is replaced, the other pod serves at once. When the server in the seed is
replaced, the pod that is not in use connects to the next server, while the other pod still serves. With two servers,
each pod needs a node of its own.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from activities.components import base, envoy, gateway, vpn_drain
from activities.components.base import Manifest
from api import high_availability, images

NAME = "vpn-shoot"
NAMESPACE = "kube-system"
SELECT = {"app": NAME}

PROXY_PORT = 9444
"""Port of the proxy; only connections from the tunnel may use it."""
_DIAL_PORT = 1194
_RESOLVED = "5s"
DRAINS = 7
"""Seconds for which an ending pod of either end serves its open connections, while other pods take new connections."""
GRACE = DRAINS + 23
"""Grace period in seconds. Most pods end sooner; slow nodes need the rest."""
_CONNECTS_WITHIN = 3600
"""Seconds after which a client that has never connected is started again: it waits for a seed that is lost."""
DRAIN_FILE = {"drain.py": Path(vpn_drain.__file__).read_text()}


def _firewall(interfaces: str) -> str:
    return f"""\
set -eu
closed="INPUT -p tcp --dport {PROXY_PORT} ! -i {interfaces} -j REJECT"
iptables -w -C $closed 2>/dev/null || iptables -w -A $closed
"""


_START = """\
set -eu
mkdir -p /dev/net
[ -c /dev/net/tun ] || mknod -m 600 /dev/net/tun c 10 200
rm -f /run/vpn/connected@

# The gateway's name may lead elsewhere while the old gateway still answers: in a seed that is cut off from all but us.
# The proxy beside us, by which we dial, knows it a little later.
addresses() { getent @hosts "$GATEWAY" | cut -d' ' -f1 | sort -u; }
follow() {
  known=$(addresses)
  while sleep 10; do
    now=$(addresses)
    [ -n "$now" ] || continue
    [ -z "$known" ] || [ "$now" = "$known" ] || { sleep 6; kill -USR1 1; }
    known=$now
  done
}
follow &

exec openvpn --config /etc/openvpn/openvpn@.conf
"""

_OPENVPN = """\
client
proto tcp-client
remote 127.0.0.1 @port
dev @tun
dev-type tun
nobind
connect-retry 1 5
connect-timeout 10
ca /srv/secrets/ca.crt
cert /srv/secrets/tls.crt
key /srv/secrets/tls.key
tls-auth /srv/secrets/vpn.tlsauth
verify-x509-name vpn-seed-server name
remote-cert-tls server
tls-version-min 1.2
data-ciphers AES-256-GCM
auth SHA256
socket-flags TCP_NODELAY
persist-key
script-security 2
up /etc/openvpn/up@.sh
down /etc/openvpn/down@.sh
verb 3
"""

# The probes check whether the file exists.
_UP = "#!/bin/sh\ntouch /run/vpn/connected@\n"
_DOWN = "#!/bin/sh\nrm -f /run/vpn/connected@\n"


@dataclass(frozen=True)
class VpnShoot:
    control_plane: str
    """Namespace of the control plane in its seed."""
    gateway_host: str
    """Name of the API server. DNS resolves it to the gateway of the seed that hosts the control plane."""
    certificate: Mapping[str, bytes] = field(repr=False)
    ca_bundle: bytes = field(repr=False)
    tls_auth: bytes = field(repr=False)
    servers: Sequence[str] = (gateway.VPN_SERVERS[0],)
    """Names of the VPN servers. Each client pod has a tunnel to each of them."""
    ipv6: bool = False
    """Whether the pods have addresses of IPv6 alone. Inside the tunnels there are addresses of IPv4 in any case."""

    @property
    def interfaces(self) -> str:
        """The tunnels' interfaces, as a rule of iptables names them."""
        return "tun0" if len(self.servers) == 1 else "tun+"


def objects(vpn: VpnShoot) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    secret = _secret(vpn)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(NAME, NAMESPACE, labels=SELECT),
        "data": {
            **{name: text for index in range(len(vpn.servers)) for name, text in _tunnel_files(vpn, index).items()},
            **DRAIN_FILE,
            "envoy.json": base.to_json(proxy_config(vpn)),
        },
    }
    return [
        base.service_account(NAME, NAMESPACE),
        secret,
        config_map,
        base.pod_disruption_budget(NAME, NAMESPACE, SELECT),
        _deployment(vpn, base.checksum([secret["data"], config_map["data"]])),
    ]


def _suffix(index: int) -> str:
    """Suffix of names that belong to the tunnel to one server; the first tunnel's names have none."""
    return f"-{index}" if index else ""


def _tunnel_files(vpn: VpnShoot, index: int) -> dict[str, str]:
    """Files of the tunnel to one server, by name. ``@`` in the templates stands for the suffix of the tunnel."""
    suffix = _suffix(index)
    start = _START.replace("@hosts", "ahostsv6" if vpn.ipv6 else "ahostsv4")
    openvpn = _OPENVPN.replace("@port", str(_DIAL_PORT + index)).replace("@tun", f"tun{index}")
    return {
        f"openvpn{suffix}.conf": openvpn.replace("@", suffix),
        f"start{suffix}.sh": start.replace("@", suffix),
        f"up{suffix}.sh": _UP.replace("@", suffix),
        f"down{suffix}.sh": _DOWN.replace("@", suffix),
    }


def _dial(vpn: VpnShoot, index: int) -> Manifest:
    """Listener that connects OpenVPN to one server through the gateway."""
    name = vpn.servers[index]
    where = f"{name}.{vpn.control_plane}.svc.cluster.local:1194"
    tunnel = envoy.tunnel(where, gateway.VPN_HEADER, gateway.vpn_header(vpn.control_plane, name))
    chain = {"filters": [envoy.tcp_proxy("gateway", tunneling_config=tunnel)]}
    return envoy.listener(f"dial{_suffix(index)}", "127.0.0.1", _DIAL_PORT + index, [chain])


def _secret(vpn: VpnShoot) -> Manifest:
    files = {
        "ca.crt": vpn.ca_bundle,
        "tls.crt": vpn.certificate["tls.crt"],
        "tls.key": vpn.certificate["tls.key"],
        "vpn.tlsauth": vpn.tls_auth,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": base.metadata(NAME, NAMESPACE, labels=SELECT),
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def proxy_config(vpn: VpnShoot) -> Manifest:
    """Envoy's configuration: CONNECT to any IP address that is named, and OpenVPN's connection to the gateway.

    OpenVPN could send the CONNECT itself, but needs two seconds for it.
    """
    cache = {"name": "shoot", "dns_lookup_family": "V6_ONLY" if vpn.ipv6 else "V4_ONLY"}
    gateways = envoy.dns_cluster("gateway", vpn.gateway_host, gateway.VPN_PORT, refreshed=_RESOLVED, ipv6=vpn.ipv6)
    forward = {
        "name": "envoy.filters.http.dynamic_forward_proxy",
        "typed_config": envoy.typed("filters.http.dynamic_forward_proxy.v3.FilterConfig", dns_cache_config=cache),
    }
    hosts = [{"name": "shoot", "domains": ["*"], "routes": [envoy.connect_route("shoot")]}]
    connect = envoy.http(
        "connect",
        filters=[forward],
        route_config={"virtual_hosts": hosts},
        upgrade_configs=[{"upgrade_type": "CONNECT"}],
    )
    cluster = {
        "name": "shoot",
        "connect_timeout": "10s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.dynamic_forward_proxy",
            "typed_config": envoy.typed("clusters.dynamic_forward_proxy.v3.ClusterConfig", dns_cache_config=cache),
        },
    }
    return envoy.bootstrap(
        listeners=[
            envoy.listener("connect", "0.0.0.0", PROXY_PORT, [{"filters": [connect]}]),
            *(_dial(vpn, index) for index in range(len(vpn.servers))),
        ],
        clusters=[cluster, gateways],
        metrics_address="::" if vpn.ipv6 else "0.0.0.0",
    )


def _deployment(vpn: VpnShoot, checksum: str) -> Manifest:
    firewall = base.container(
        "firewall",
        images.GARDENER,
        ["/bin/sh", "-c", _firewall(vpn.interfaces)],
        cpu="10m",
        memory="8Mi",
        security=_security("NET_ADMIN", "NET_RAW"),
    )
    proxy = envoy.container(
        "proxy",
        config="/etc/openvpn/envoy.json",
        cpu="20m",
        memory="48Mi",
        mounts={"openvpn": "/etc/openvpn"},
        ports={"proxy": PROXY_PORT},
        # A sidecar: the proxy ends after the tunnel, which goes through the proxy.
        restartPolicy="Always",
    )
    tunnels = [_tunnel(vpn, index) for index in range(len(vpn.servers))]
    made = base.deployment(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels={"gardener.cloud/role": "system-component"},
        pod_labels={"type": "tunnel"},
        replicas=2,
        annotations={"checksum/configuration": checksum},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": False,
            "priorityClassName": "system-cluster-critical",
            # Use the node's resolver, because the cluster's DNS depends on this tunnel.
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": GRACE,
            "nodeSelector": {"worker.gardener.cloud/system-components": "true"},
            "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
            "topologySpreadConstraints": base.spread_over_hosts(SELECT),
            "securityContext": base.non_root_pod(),
            "initContainers": [firewall, proxy],
            "containers": tunnels,
            "volumes": [
                {"name": "secrets", "secret": {"secretName": NAME, "defaultMode": 0o400}},
                base.config_map_volume("openvpn", NAME, mode=0o755),
                base.empty_dir("state", memory=True),
                base.empty_dir("tmp", memory=True),
            ],
        },
    )
    if len(vpn.servers) > 1:
        # The first node takes both pods, because it is alone. The webhook moves one of them when the second node comes.
        del made["metadata"]["labels"][high_availability.SKIP]
        made["metadata"]["annotations"][high_availability.HOST_SPREAD] = "true"
    return made


def _tunnel(vpn: VpnShoot, index: int) -> Manifest:
    """OpenVPN with the tunnel to one server.

    A pod is ready with any of its tunnels: while a server is lost, pods with a tunnel to the other server must not
    count as unhealthy, since unhealthy pods may be evicted at once. So one container has the probes for all.
    Each container drains the pod: they end together.
    """
    probes = {}
    if index == 0:
        files = [f"/run/vpn/connected{_suffix(each)}" for each in range(len(vpn.servers))]
        connected = ["test", *[part for each in files for part in ("-o", "-f", each)][1:]]
        probes = {
            "startupProbe": base.command_probe(connected, period=1, failures=_CONNECTS_WITHIN),
            "readinessProbe": base.command_probe(connected, period=10, failures=2),
        }
    leave = drain(f"-i {vpn.interfaces} -p tcp --dport {PROXY_PORT}", PROXY_PORT)
    return base.container(
        f"{NAME}{_suffix(index)}",
        images.GARDENER,
        ["/bin/sh", f"/etc/openvpn/start{_suffix(index)}.sh"],
        cpu="20m",
        memory="24Mi",
        mounts={"secrets": "/srv/secrets", "openvpn": "/etc/openvpn"},
        writable={"state": "/run/vpn"},
        env=[{"name": "GATEWAY", "value": vpn.gateway_host}],
        security=_security("NET_ADMIN", "NET_RAW", "MKNOD"),
        lifecycle={"preStop": {"exec": {"command": leave}}},
        **probes,
    )


def drain(refused: str, port: int, *management: str) -> list[str]:
    """Command that a pod of either end runs before it ends: see ``vpn_drain``."""
    return ["python3", "/etc/openvpn/drain.py", refused, str(port), str(DRAINS), *management]


def _security(*capabilities: str) -> Manifest:
    return {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(capabilities)},
    }

"""The shoot's end of the reversed VPN: client pods that connect to the gateway, each with a proxy for the API server.

There are two pods: when one pod or its node is replaced, the other pod serves at once. When the server in the seed is
replaced, the pod that is not in use connects to the next server, while the other pod still serves.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.components import base, envoy, gateway, vpn_drain
from activities.components.base import Manifest
from api import images

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
DRAIN_FILE = {"drain.py": Path(vpn_drain.__file__).read_text()}

_FIREWALL = f"""\
set -eu
closed="INPUT -p tcp --dport {PROXY_PORT} ! -i tun0 -j REJECT"
iptables -w -C $closed 2>/dev/null || iptables -w -A $closed
"""

_START = """\
set -eu
mkdir -p /dev/net
[ -c /dev/net/tun ] || mknod -m 600 /dev/net/tun c 10 200
rm -f /run/vpn/connected

# The gateway's name may lead elsewhere while the old gateway still answers: in a seed that is cut off from all but us.
# The proxy beside us, by which we dial, knows it a little later.
addresses() { getent ahostsv4 "$GATEWAY" | cut -d' ' -f1 | sort -u; }
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

exec openvpn --config /etc/openvpn/openvpn.conf
"""

_OPENVPN = f"""\
client
proto tcp-client
remote 127.0.0.1 {_DIAL_PORT}
dev tun0
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
up /etc/openvpn/up.sh
down /etc/openvpn/down.sh
verb 3
"""

# The readiness probe checks whether the file exists.
_UP = "#!/bin/sh\ntouch /run/vpn/connected\n"
_DOWN = "#!/bin/sh\nrm -f /run/vpn/connected\n"


@dataclass(frozen=True)
class VpnShoot:
    control_plane: str
    """Namespace of the control plane in its seed."""
    gateway_host: str
    """Name of the API server. DNS resolves it to the gateway of the seed that hosts the control plane."""
    certificate: Mapping[str, bytes] = field(repr=False)
    ca_bundle: bytes = field(repr=False)
    tls_auth: bytes = field(repr=False)


def objects(vpn: VpnShoot) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    secret = _secret(vpn)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(NAME, NAMESPACE, labels=SELECT),
        "data": {
            "openvpn.conf": _OPENVPN,
            "start.sh": _START,
            "up.sh": _UP,
            "down.sh": _DOWN,
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
    where = f"vpn-seed-server.{vpn.control_plane}.svc.cluster.local:1194"
    tunnel = envoy.tunnel(where, gateway.VPN_HEADER, gateway.vpn_header(vpn.control_plane))
    dial = [envoy.tcp_proxy("gateway", tunneling_config=tunnel)]
    cache = {"name": "shoot", "dns_lookup_family": "V4_ONLY"}
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
            envoy.listener("dial", "127.0.0.1", _DIAL_PORT, [{"filters": dial}]),
        ],
        clusters=[cluster, envoy.dns_cluster("gateway", vpn.gateway_host, gateway.VPN_PORT, refreshed=_RESOLVED)],
    )


def _deployment(vpn: VpnShoot, checksum: str) -> Manifest:
    firewall = base.container(
        "firewall",
        images.GARDENER,
        ["/bin/sh", "-c", _FIREWALL],
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
    main = base.container(
        NAME,
        images.GARDENER,
        ["/bin/sh", "/etc/openvpn/start.sh"],
        cpu="20m",
        memory="24Mi",
        mounts={"secrets": "/srv/secrets", "openvpn": "/etc/openvpn"},
        writable={"state": "/run/vpn"},
        env=[{"name": "GATEWAY", "value": vpn.gateway_host}],
        security=_security("NET_ADMIN", "NET_RAW", "MKNOD"),
        readinessProbe={"exec": {"command": ["test", "-f", "/run/vpn/connected"]}, "periodSeconds": 2},
        lifecycle={"preStop": {"exec": {"command": drain(f"-i tun0 -p tcp --dport {PROXY_PORT}", PROXY_PORT)}}},
    )
    return base.deployment(
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
            "containers": [main],
            "volumes": [
                {"name": "secrets", "secret": {"secretName": NAME, "defaultMode": 0o400}},
                base.config_map_volume("openvpn", NAME, mode=0o755),
                base.empty_dir("state", memory=True),
                base.empty_dir("tmp", memory=True),
            ],
        },
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

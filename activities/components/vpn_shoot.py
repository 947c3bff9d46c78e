"""The shoot's end of the reversed VPN: it dials the gateway and lets the API server in."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from activities.components import base, gateway
from activities.components.base import Manifest
from api import images

NAME = "vpn-shoot"
NAMESPACE = "kube-system"
SELECT = {"app": NAME}

_PREPARE = "echo 1 > /proc/sys/net/ipv4/ip_forward"

_START = """\
set -eu
mkdir -p /dev/net
[ -c /dev/net/tun ] || mknod -m 600 /dev/net/tun c 10 200
rm -f /run/vpn/connected

# Nodes and pods know no way back into the tunnel: to them, this pod is calling.
iptables -w -t nat -C POSTROUTING -o eth0 -s "$TUNNEL" -j MASQUERADE 2>/dev/null ||
  iptables -w -t nat -A POSTROUTING -o eth0 -s "$TUNNEL" -j MASQUERADE

# The gateway's name may lead elsewhere while the old gateway still answers: in a seed that is cut off from all but us.
addresses() { getent ahostsv4 "$GATEWAY" | cut -d' ' -f1 | sort -u; }
follow() {
  known=$(addresses)
  while sleep 10; do
    now=$(addresses)
    [ -n "$now" ] || continue
    [ -z "$known" ] || [ "$now" = "$known" ] || kill -USR1 1
    known=$now
  done
}
follow &

exec openvpn --config /etc/openvpn/openvpn.conf
"""

# The readiness probe looks for the file.
_UP = "#!/bin/sh\ntouch /run/vpn/connected\n"
_DOWN = "#!/bin/sh\nrm -f /run/vpn/connected\n"


@dataclass(frozen=True)
class VpnShoot:
    control_plane: str
    """Namespace of the control plane in its seed."""
    gateway_host: str
    """Name of the API server: it leads to the gateway, wherever the control plane lives."""
    network: str
    """CIDR of the tunnel itself."""
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
        "data": {"openvpn.conf": _openvpn(vpn), "start.sh": _START, "up.sh": _UP, "down.sh": _DOWN},
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


def _openvpn(vpn: VpnShoot) -> str:
    header = gateway.vpn_header(vpn.control_plane)
    lines = [
        "client",
        "proto tcp-client",
        # What CONNECT names; the gateway goes by the header.
        f"remote vpn-seed-server.{vpn.control_plane}.svc.cluster.local 1194",
        f"http-proxy {vpn.gateway_host} {gateway.VPN_PORT}",
        f'http-proxy-option CUSTOM-HEADER {gateway.VPN_HEADER} "{header}"',
        "dev tun0",
        "dev-type tun",
        "nobind",
        "resolv-retry infinite",
        "connect-retry 1 5",
        "connect-timeout 10",
        "ca /srv/secrets/ca.crt",
        "cert /srv/secrets/tls.crt",
        "key /srv/secrets/tls.key",
        "tls-auth /srv/secrets/vpn.tlsauth",
        "verify-x509-name vpn-seed-server name",
        "remote-cert-tls server",
        "tls-version-min 1.2",
        "data-ciphers AES-256-GCM",
        "auth SHA256",
        "socket-flags TCP_NODELAY",
        "persist-key",
        "persist-tun",
        "script-security 2",
        "up /etc/openvpn/up.sh",
        "down /etc/openvpn/down.sh",
        "up-restart",
        "verb 3",
    ]
    return "\n".join(lines) + "\n"


def _deployment(vpn: VpnShoot, checksum: str) -> Manifest:
    prepare = base.container(
        "prepare",
        images.GARDENER,
        ["/bin/sh", "-c", _PREPARE],
        cpu="10m",
        memory="8Mi",
        # /proc/sys is writable for the privileged alone; the container that talks to the world is not.
        security={"privileged": True, "runAsUser": 0},
    )
    main = base.container(
        NAME,
        images.GARDENER,
        ["/bin/sh", "/etc/openvpn/start.sh"],
        cpu="20m",
        memory="24Mi",
        mounts={"secrets": "/srv/secrets", "openvpn": "/etc/openvpn"},
        writable={"state": "/run/vpn"},
        env=[{"name": "TUNNEL", "value": vpn.network}, {"name": "GATEWAY", "value": vpn.gateway_host}],
        security={
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "MKNOD"]},
        },
        readinessProbe={"exec": {"command": ["test", "-f", "/run/vpn/connected"]}, "periodSeconds": 2},
    )
    return base.deployment(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels={"gardener.cloud/role": "system-component"},
        pod_labels={"type": "tunnel"},
        replicas=1,
        recreate=True,
        annotations={"checksum/configuration": checksum},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": False,
            "priorityClassName": "system-cluster-critical",
            # The node's resolver: cluster DNS needs what comes through this tunnel.
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 5,
            "nodeSelector": {"worker.gardener.cloud/system-components": "true"},
            "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
            "initContainers": [prepare],
            "containers": [main],
            "volumes": [
                {"name": "secrets", "secret": {"secretName": NAME, "defaultMode": 0o400}},
                base.config_map_volume("openvpn", NAME, mode=0o755),
                base.empty_dir("state", memory=True),
            ],
        },
    )

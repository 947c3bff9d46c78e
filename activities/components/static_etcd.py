"""The etcd of a self-hosted Shoot: a static pod of each node of the control plane, with the data on the node."""

from typing import Any

from activities.components import base, etcd
from activities.components.static_pod import Content, StaticPod, static_pod
from api import images

NAME = etcd.name_of(etcd.MAIN)
DATA = "/var/lib/etcd-main"
_TLS = "/var/etcd/tls"
_METRICS_PORT = 2381


def pod(node: str, address: str, secrets: Content) -> StaticPod:
    """The first member. ``secrets``: ca-etcd, etcd-server, ca-etcd-peer and etcd-peer-server."""
    client, peer = f"https://{address}:{etcd.CLIENT_PORT}", f"https://{address}:{etcd.PEER_PORT}"
    flags = {
        "name": node,
        "data-dir": "/var/etcd/data",
        "listen-client-urls": f"https://127.0.0.1:{etcd.CLIENT_PORT},{client}",
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"{node}={peer}",
        "initial-cluster-state": "new",
        "listen-metrics-urls": f"http://127.0.0.1:{_METRICS_PORT}",
        "client-cert-auth": "true",
        "trusted-ca-file": f"{_TLS}/client-ca/bundle.crt",
        "cert-file": f"{_TLS}/client-server/tls.crt",
        "key-file": f"{_TLS}/client-server/tls.key",
        "peer-client-cert-auth": "true",
        "peer-trusted-ca-file": f"{_TLS}/peer-ca/bundle.crt",
        "peer-cert-file": f"{_TLS}/peer-server/tls.crt",
        "peer-key-file": f"{_TLS}/peer-server/tls.key",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "30m",
        "quota-backend-bytes": str(8 * 1024**3),
    }
    volumes = {
        "client-ca": (f"{etcd.CA}-bundle", "bundle.crt"),
        "client-server": (f"etcd-server-{etcd.MAIN}", "tls.crt", "tls.key"),
        "peer-ca": (f"{etcd.PEER_CA}-bundle", "bundle.crt"),
        "peer-server": (f"etcd-peer-server-{etcd.MAIN}", "tls.crt", "tls.key"),
    }
    probe = base.http_probe("/readyz", _METRICS_PORT, scheme="HTTP", period=1, host="127.0.0.1")
    main = base.container(
        "etcd",
        images.GARDENER,
        ["/usr/local/bin/etcd", *sorted(f"--{flag}={value}" for flag, value in flags.items())],
        cpu="60m",
        memory="150Mi",
        mounts={name: f"{_TLS}/{name}" for name in volumes},
        writable={"data": "/var/etcd/data"},
        startupProbe={**probe, "failureThreshold": 120},
        livenessProbe={**probe, "httpGet": {**probe["httpGet"], "path": "/livez"}, "periodSeconds": 10},
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "containers": [main],
        "volumes": [
            *(base.secret_volume(name, *source) for name, source in volumes.items()),
            {"name": "data", "hostPath": {"path": DATA, "type": "DirectoryOrCreate"}},
        ],
    }
    labels = {"app": "etcd-statefulset", "role": etcd.MAIN, "gardener.cloud/role": "controlplane"}
    return static_pod(NAME, labels, spec, secrets)

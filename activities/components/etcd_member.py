"""Ports, files and TLS settings of a member of an etcd, in a pod of a seed as on a node of a self-hosted Shoot."""

METRICS_PORT = 2381
"""Plain HTTP, because probes of the kubelet have no client certificate. Nothing secret is served there."""
WRAPPER_PORT = 9095
"""If there are several members: the port at which a member tells the others the state of its data, and the kubelet
whether it serves."""

CONFIG, RUN, DATA, TLS = "/var/etcd/config", "/var/etcd/run", "/var/etcd/data", "/var/etcd/tls"
BACKUP_CREDENTIALS = "/var/etcd/backup"
EXISTING = "existing.json"
"""File that names the cluster to join. Members read it when they need it: they stay when it comes or goes."""
BUNDLE = "bundle.crt"
"""Key of the CA certificates in a Secret."""

RESTORE_SECONDS = 3600
"""How long a restore may take before the kubelet restarts the container, and so the restore."""


def transport_security(side: str, ca_key: str = BUNDLE) -> dict[str, str | bool]:
    """etcd's settings for its client or its peer port: both accept only clients with a certificate."""
    return {
        "cert-file": f"{TLS}/{side}-server/tls.crt",
        "key-file": f"{TLS}/{side}-server/tls.key",
        "trusted-ca-file": f"{TLS}/{side}-ca/{ca_key}",
        "client-cert-auth": True,
    }


def client_files(ca_key: str = BUNDLE) -> dict[str, str]:
    """Files with which the wrapper is a client of the members."""
    return {
        "ca": f"{TLS}/client-ca/{ca_key}",
        "certificate": f"{TLS}/client-client/tls.crt",
        "key": f"{TLS}/client-client/tls.key",
    }


def sidecar_files(ca_key: str = BUNDLE) -> dict[str, str]:
    """Files with which the sidecar is a client of its member, and serves."""
    return {
        "ca": f"{TLS}/client-ca/{ca_key}",
        "serverCertificate": f"{TLS}/client-server/tls.crt",
        "serverKey": f"{TLS}/client-server/tls.key",
        "clientCertificate": f"{TLS}/client-client/tls.crt",
        "clientKey": f"{TLS}/client-client/tls.key",
    }

"""The controllers of a self-hosted Shoot: a static pod of each node of its control plane. One of them leads."""

import json
from collections.abc import Mapping
from typing import Any

from activities.components import base, etcd
from activities.components.base import Manifest
from activities.components.static_pod import Content, StaticPod, static_pod
from api import images
from api.constants import EXTENSIONS, SELF_HOSTED_NAMESPACE

NAME = "self-hosted-controller"
USER = f"gardener.cloud:system:{NAME}"
_CONFIG, _KUBECONFIG, _CA, _CLIENT = (
    f"/etc/{NAME}/{each}" for each in ("config", "kubeconfig", "etcd-ca", "etcd-client")
)
_PORT = 10290


def pod(secrets: Content, exposure: str, record: str = "") -> StaticPod:
    """``secrets``: the kubeconfig of this name, and etcd's authority and client certificate.

    ``exposure``, ``record``: names of the exposure and of the DNSRecord; empty if there is none.
    """
    config: Mapping[str, Any] = {
        "clientConnection": {"kubeconfig": f"{_KUBECONFIG}/kubeconfig"},
        "etcd": {
            "endpoint": f"https://127.0.0.1:{etcd.CLIENT_PORT}",
            "ca": f"{_CA}/bundle.crt",
            "certificate": f"{_CLIENT}/tls.crt",
            "key": f"{_CLIENT}/tls.key",
        },
        "exposure": exposure,
        "dnsRecord": record,
        "leaderElection": {"leaderElect": True, "resourceNamespace": SELF_HOSTED_NAMESPACE},
        "health": {"port": _PORT},
    }
    main = base.container(
        NAME,
        images.GARDENER,
        ["gardener", "worker", "self-hosted", "--config", f"{_CONFIG}/config.yaml"],
        cpu="10m",
        memory="80Mi",
        mounts={"config": _CONFIG, "kubeconfig": _KUBECONFIG, "etcd-ca": _CA, "etcd-client": _CLIENT},
        **base.probes("/readyz", _PORT, alive="/healthz", scheme="HTTP", host="127.0.0.1"),
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [main],
        "volumes": [
            base.config_map_volume("config", "config"),
            base.secret_volume("kubeconfig", NAME, "kubeconfig"),
            base.secret_volume("etcd-ca", f"{etcd.CA}-bundle", "bundle.crt"),
            base.secret_volume("etcd-client", "etcd-client", "tls.crt", "tls.key"),
        ],
    }
    data = {**secrets, "config": {"config.yaml": json.dumps(config, indent=1).encode()}}
    return static_pod(NAME, {"app": NAME, "gardener.cloud/role": "controlplane"}, spec, data)


def rights(*credentials: str) -> list[Manifest]:
    """Rights of the controller's user. ``credentials``: names of the Secrets by which the API servers are exposed."""
    cluster = [
        base.rule("core", "nodes", "get list watch patch update"),
        base.rule("certificates.k8s.io", "certificatesigningrequests", "get list watch"),
        base.rule("certificates.k8s.io", "certificatesigningrequests/approval", "update patch"),
        base.rule(
            "certificates.k8s.io",
            "signers",
            "approve",
            ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"],
        ),
        base.rule(EXTENSIONS, "clusters", "get list watch"),
        base.rule(
            EXTENSIONS,
            "selfhostedshootexposures selfhostedshootexposures/status dnsrecords dnsrecords/status",
            "get list watch update patch",
        ),
        base.rule("coordination.k8s.io", "leases", "get list watch"),
    ]
    own = [
        base.rule("core", "secrets", "get", list(credentials)),
        base.rule("core", "pods", "get list watch"),
        base.rule("coordination.k8s.io", "leases", "create"),
        base.rule("coordination.k8s.io", "leases", "update patch delete", [NAME]),
    ]
    return [
        base.cluster_role(USER, cluster),
        base.binding(USER, [base.user(USER)], cluster_role=USER),
        base.role(USER, SELF_HOSTED_NAMESPACE, own),
        base.binding(USER, [base.user(USER)], role=USER, namespace=SELF_HOSTED_NAMESPACE),
    ]

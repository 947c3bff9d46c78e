"""What the Prometheus and the Alertmanager of a Shoot share: how people come to them, and where they keep data.

Both end TLS themselves and ask for the password of ``observability-ingress-users``; the gateway passes through.
"""

import base64
from collections.abc import Mapping
from typing import Any

from activities.components import base, gateway
from activities.components.base import Manifest

CONFIG, WEB, TLS = "/etc/monitoring/config", "/etc/monitoring/web", "/etc/monitoring/tls"
WEB_FILE = f"{WEB}/web.yaml"
"""For their option ``--web.config.file``."""


def labels(name: str) -> dict[str, str]:
    """Of all objects of one of them."""
    return {**base.control_plane_labels(name), "gardener.cloud/role": "monitoring"}


def web_config(users: Mapping[str, str]) -> Manifest:
    """``users``: hashes of passwords by bcrypt, by user. Certificate and key are mounted at ``TLS``."""
    return {
        "tls_server_config": {"cert_file": f"{TLS}/tls.crt", "key_file": f"{TLS}/tls.key"},
        "basic_auth_users": dict(users),
    }


def secret(name: str, namespace: str, **files: Manifest) -> Manifest:
    """With configurations that nobody else is to read, by file name without its ending."""
    texts = {f"{each}.yaml": base.to_json(content) for each, content in files.items()}
    data = {each: base64.b64encode(text.encode()).decode() for each, text in texts.items()}
    metadata = base.metadata(name, namespace, labels=labels(name))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def volume_claim(name: str, namespace: str, storage: str) -> Manifest:
    """Of the same name as what mounts it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": base.metadata(name, namespace, labels=labels(name)),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}},
    }


def served(name: str, namespace: str, port: int, host: str) -> list[Manifest]:
    """Its Service, and the ConfigMap that tells the gateway under which name it leads there."""
    exposure = gateway.ServiceExposure(hosts=(host,), upstream=gateway.Upstream(service=name, port=port))
    select = base.control_plane_labels(name)
    return [
        base.service(name, namespace, select=select, ports={"https": port}, labels={**labels(name), **gateway.LABELS}),
        gateway.service_exposure(name, namespace, exposure),
    ]


def deployment(
    name: str,
    namespace: str,
    *,
    replicas: int,
    annotations: base.Labels,
    container: Manifest,
    volumes: list[Manifest],
    **pod: Any,
) -> Manifest:
    """Of one pod, since its database is one process's, and its claim."""
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
    return base.deployment(
        name,
        namespace,
        select=base.control_plane_labels(name),
        labels=labels(name),
        replicas=replicas,
        recreate=True,
        annotations=annotations,
        pod={"securityContext": base.non_root_pod(), "containers": [container], "volumes": [*volumes, claim], **pod},
    )


def probes(port: int) -> Manifest:
    """Of its container.

    Whoever asks for a page needs the password, which is nothing for a probe; each that only connects is an error in its
    log.
    """
    return {
        "startupProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": 120},
        "livenessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 60},
    }

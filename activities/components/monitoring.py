"""Parts that Prometheus, Alertmanager and the store of logs of a Shoot share: access for users, and storage.

Each terminates TLS itself and asks for the password of ``observability-ingress-users``; the gateway passes TLS through.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, connections, gateway, priority
from activities.components.base import Manifest

CONFIG, SECRET = "/etc/monitoring/config", "/etc/monitoring/secret"
"""Directories of the configuration files: files without secrets, and files with secrets."""
_TLS = "/etc/monitoring/tls"


@dataclass(frozen=True)
class Served:
    """Prometheus, Alertmanager or the store of logs of a Shoot: its place in the seed, and access for users."""

    name: str
    namespace: str
    port: int
    host: str
    """Host name under which the gateway serves the component."""
    certificate: str
    """Name of the Secret with the server certificate."""
    users: Mapping[str, str] = field(repr=False)
    """bcrypt hashes of passwords, by user."""
    replicas: int = 1

    @property
    def select(self) -> dict[str, str]:
        return base.control_plane_labels(self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all objects of the component."""
        return {**self.select, "gardener.cloud/role": "monitoring"}

    def configuration(self) -> Manifest:
        """Content of the file for option ``--web.config.file``."""
        return {
            "tls_server_config": {"cert_file": f"{_TLS}/tls.crt", "key_file": f"{_TLS}/tls.key"},
            "basic_auth_users": dict(self.users),
        }


def objects(served: Served, storage: str, **secret: Manifest) -> list[Manifest]:
    """All objects but the Deployment: ServiceAccount, Secret with configurations, volume, Service and exposure.

    ``secret``: configurations with secrets, by file name without its extension; the file ``web`` is added to them.
    """
    texts = {f"{each}.yaml": base.to_json(content) for each, content in _files(served, secret).items()}
    return parts(served, storage, texts)


def parts(served: Served, storage: str, texts: Mapping[str, str]) -> list[Manifest]:
    """ServiceAccount, Secret with these files, volume, Service and exposure of a component with its own password."""
    name, namespace, labels = served.name, served.namespace, served.labels
    exposure = gateway.ServiceExposure(hosts=(served.host,), upstream=gateway.Upstream(service=name, port=served.port))
    return [
        base.service_account(name, namespace),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": base.metadata(name, namespace, labels=labels),
            "type": "Opaque",
            "data": {each: base64.b64encode(text.encode()).decode() for each, text in texts.items()},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": base.metadata(name, namespace, labels=labels),
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}},
        },
        connections.annotated(
            base.service(
                name, namespace, select=served.select, ports={"https": served.port}, labels={**labels, **gateway.LABELS}
            ),
            connections.behind_gateways(served.port),
        ),
        gateway.service_exposure(name, namespace, exposure),
    ]


def checksum(served: Served, **secret: Manifest) -> dict[str, str]:
    """Annotation by which a change of the Secret of ``objects`` restarts the pod."""
    return {"checksum/secret": base.checksum(_files(served, secret))}


def _files(served: Served, secret: Mapping[str, Manifest]) -> dict[str, Manifest]:
    return {**secret, "web": served.configuration()}


def deployment(
    served: Served,
    program: str,
    image: str,
    options: Sequence[str],
    *,
    data: str,
    cpu: str,
    memory: str,
    annotations: base.Labels,
    mounts: Mapping[str, str] | None = None,
    volumes: Sequence[Manifest] = (),
    pod_labels: base.Labels,
    **pod: Any,
) -> Manifest:
    """A Deployment with one pod, because only one process may use the database in directory ``data``.

    ``mounts``: paths by name of one of ``volumes``.
    """
    container = base.container(
        program,
        image,
        [f"/bin/{program}", f"--web.config.file={SECRET}/web.yaml", f"--web.listen-address=:{served.port}", *options,
         "--log.format=json"],
        cpu=cpu,
        memory=memory,
        mounts={"secret": SECRET, "tls": _TLS, **(mounts or {})},
        writable={"data": data},
        ports={"https": served.port},
        # Probes by TCP, since HTTP requests need the password. The log shows an error for each probe by TCP, so the
        # liveness probe is rare.
        startupProbe={"tcpSocket": {"port": served.port}, "periodSeconds": 1, "failureThreshold": 120},
        livenessProbe={"tcpSocket": {"port": served.port}, "periodSeconds": 60},
    )  # fmt: skip
    own = [
        base.secret_volume("secret", served.name),
        base.secret_volume("tls", served.certificate),
        {"name": "data", "persistentVolumeClaim": {"claimName": served.name}},
    ]
    return base.deployment(
        served.name,
        served.namespace,
        select=served.select,
        labels=served.labels,
        replicas=served.replicas,
        recreate=True,
        annotations=annotations,
        pod_labels=pod_labels,
        pod={
            "serviceAccountName": served.name,
            "priorityClassName": priority.class_of(program),
            "securityContext": base.non_root_pod(),
            "containers": [container],
            "volumes": [*own, *volumes],
            **pod,
        },
    )

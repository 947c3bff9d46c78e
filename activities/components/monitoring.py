"""What the Prometheus and the Alertmanager of a Shoot share: how people come to them, and where they keep data.

Both end TLS themselves and ask for the password of ``observability-ingress-users``; the gateway passes through.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, gateway
from activities.components.base import Manifest

CONFIG, SECRET = "/etc/monitoring/config", "/etc/monitoring/secret"
"""Where their configurations are: what everybody may read, and what nobody else may."""
_TLS = "/etc/monitoring/tls"


@dataclass(frozen=True)
class Served:
    """One of them: where it runs, and how people come to it."""

    name: str
    namespace: str
    port: int
    host: str
    """Name under which the gateway leads to it."""
    certificate: str
    """Name of the Secret with what it shows."""
    users: Mapping[str, str] = field(repr=False)
    """Hashes of passwords by bcrypt, by user."""
    replicas: int = 1

    @property
    def select(self) -> dict[str, str]:
        return base.control_plane_labels(self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Of all its objects."""
        return {**self.select, "gardener.cloud/role": "monitoring"}

    def configuration(self) -> Manifest:
        """For its option ``--web.config.file``."""
        return {
            "tls_server_config": {"cert_file": f"{_TLS}/tls.crt", "key_file": f"{_TLS}/tls.key"},
            "basic_auth_users": dict(self.users),
        }


def objects(served: Served, storage: str, **secret: Manifest) -> list[Manifest]:
    """All but its Deployment: account, configurations that nobody else is to read, volume, way in.

    ``secret``: such configurations by file name without its ending; ``web`` is added to them.
    """
    name, namespace, labels = served.name, served.namespace, served.labels
    texts = {f"{each}.yaml": base.to_json(content) for each, content in _files(served, secret).items()}
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
        base.service(
            name, namespace, select=served.select, ports={"https": served.port}, labels={**labels, **gateway.LABELS}
        ),
        gateway.service_exposure(name, namespace, exposure),
    ]


def checksum(served: Served, **secret: Manifest) -> dict[str, str]:
    """Annotation by which a change of the Secret of ``objects`` starts it anew."""
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
    **pod: Any,
) -> Manifest:
    """Of one pod, since its database in directory ``data`` is one process's.

    ``mounts``: by name of one of ``volumes``.
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
        # Whoever asks for a page needs the password, which is nothing for a probe; each that only connects is an error
        # in its log.
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
        pod={
            "serviceAccountName": served.name,
            "securityContext": base.non_root_pod(),
            "containers": [container],
            "volumes": [*own, *volumes],
            **pod,
        },
    )

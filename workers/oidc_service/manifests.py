"""Objects of one authenticator: beside the control plane, and in the shoot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from activities.components import base, connections, own
from activities.components.base import Manifest
from api.authentication.v1alpha1.openid_connect import OpenIDConnect
from api.constants import AUTHENTICATION, EXTENSION_TOKEN_WEBHOOK
from api.crds import crd
from workers.oidc_service.authenticator import PATH, PORT

TYPE = "shoot-oidc-service"
NAME = "oidc-webhook-authenticator"
HEALTH_PORT = 8081
SELECT = base.control_plane_labels(NAME)
CERTIFICATES = f"extension-{TYPE}-certificates"
"""Secret with the authority, and with the certificates of authenticator and API server."""
WEBHOOK = f"extension-{TYPE}-webhook"
"""Secret with the kubeconfig with which the API server reaches the authenticator."""
MANAGED_RESOURCE = f"extension-{TYPE}"

_CERTIFICATES_DIR = "/etc/oidc-webhook-authenticator"


@dataclass(frozen=True)
class Authenticator:
    namespace: str
    generic_kubeconfig: str
    """Name of a Secret."""
    replicas: int
    blocked_networks: Sequence[str]
    failure_tolerance: str | None = None


def service(namespace: str) -> Manifest:
    made = base.service(NAME, namespace, select=SELECT, ports={"https": (443, PORT)})
    return connections.annotated(made, connections.called_as_webhook(PORT))


def objects(authenticator: Authenticator) -> list[Manifest]:
    """Objects in the seed, except for the Secrets with certificates; the Deployment is the last one."""
    namespace = authenticator.namespace
    config = {
        "targetClientConnection": {"kubeconfig": base.KUBECONFIG_PATH},
        "server": {
            "port": PORT,
            "certificateFile": f"{_CERTIFICATES_DIR}/tls.crt",
            "privateKeyFile": f"{_CERTIFICATES_DIR}/tls.key",
            "clientCaFile": f"{_CERTIFICATES_DIR}/ca.crt",
        },
        "blockedNetworks": list(authenticator.blocked_networks),
        "health": {"address": "0.0.0.0", "port": HEALTH_PORT},
    }
    text = base.to_json(config)
    container = own.process(
        NAME,
        NAME,
        HEALTH_PORT,
        cpu="10m",
        memory="60Mi",
        mounts={"config": own.CONFIG_DIR, "kubeconfig": base.KUBECONFIG_DIR, "certificates": _CERTIFICATES_DIR},
        writable={"tmp": "/tmp"},
    )
    container["ports"].append({"name": "https", "containerPort": PORT, "protocol": "TCP"})
    deployment = base.control_plane_deployment(
        NAME,
        namespace,
        select=SELECT,
        replicas=authenticator.replicas,
        annotations={"checksum/config": base.checksum(text)},
        # Outside: issuers of tokens.
        pod_labels={**connections.SHOOT_API, **connections.OUTSIDE},
        pod={
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread(SELECT, authenticator.failure_tolerance),
            "containers": [container],
            "volumes": [
                base.config_map_volume("config", f"extension-{TYPE}-config"),
                base.shoot_access_volume(NAME, authenticator.generic_kubeconfig),
                base.secret_volume("certificates", CERTIFICATES, "ca.crt", "tls.crt", "tls.key"),
                base.empty_dir("tmp", memory=True),
            ],
        },
    )
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": base.metadata(f"extension-{TYPE}-config", namespace, labels=SELECT),
            "data": {"config.yaml": text},
        },
        base.shoot_access(NAME, namespace),
        service(namespace),
        base.pod_disruption_budget(NAME, namespace, SELECT),
        deployment,
    ]


def webhook(namespace: str, ca: str, certificate: str, key: str) -> Manifest:
    """The Secret by which the gardenlet finds the webhook. ``ca``, ``certificate``, ``key``: PEM in base64."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": NAME,
                "cluster": {"server": f"https://{NAME}{PATH}", "certificate-authority-data": ca},
            }
        ],
        "users": [{"name": NAME, "user": {"client-certificate-data": certificate, "client-key-data": key}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    labels = {**SELECT, EXTENSION_TOKEN_WEBHOOK: TYPE}
    return base.secret(WEBHOOK, namespace, {"kubeconfig": base.to_json(kubeconfig)}, labels=labels)


def shoot_objects() -> list[Manifest]:
    """The kind OpenIDConnect, and the right of the authenticator to read it."""
    role = f"extensions.gardener.cloud:{TYPE}:{NAME}"
    rules: list[dict[str, Any]] = [base.rule(AUTHENTICATION, "openidconnects", "get list watch")]
    return [
        crd(OpenIDConnect),
        base.service_account(NAME, "kube-system"),
        base.cluster_role(role, rules),
        base.binding(role, [base.account(NAME)], cluster_role=role),
    ]

"""Secrets with certificates for the names of a seed, as operators make them."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed


def authority() -> KeyPair:
    validity = timedelta(days=30)
    return self_signed_ca("authority", algorithm=KeyAlgorithm.P256, now=datetime.now(UTC), validity=validity)


def pair(*names: str, ca: KeyPair | None = None, days: int = 7, begun: datetime | None = None) -> KeyPair:
    return signed(
        "control planes",
        ca=ca or authority(),
        usage=Usage.SERVER,
        algorithm=KeyAlgorithm.P256,
        now=begun or datetime.now(UTC),
        validity=timedelta(days=days),
        dns_names=names,
    )


def secret(made: KeyPair, name: str = "wildcard", namespace: str = "garden") -> dict[str, Any]:
    """Secret with a certificate and its key, with the role of a certificate for control planes."""
    data = {"tls.crt": made.certificate, "tls.key": made.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"gardener.cloud/role": "controlplane-cert"}},
        "type": "kubernetes.io/tls",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }

"""Address and credentials of one cluster, from the current context of a kubeconfig or from the files of a pod."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from api.names import in_url
from kube.credentials import Issuer
from kube.errors import KubeconfigError as KubeconfigError

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, repr=False)  # no repr, because credentials must not appear in a log
class Endpoint:
    """Address and credentials of one API server."""

    server: str
    ca: str = ""
    """PEM bundle of CA certificates; empty: the CAs of this machine."""
    insecure: bool = False
    tls_server_name: str = ""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    token_file: Path | None = None
    proxy: str = ""
    issuer: Issuer | None = None
    """Issues the credentials, if the kubeconfig does not hold them."""

    def same_connection(self, other: "Endpoint") -> bool:
        """True if open connections can be used further. A bearer token may differ: each request sends it."""
        return (
            self.server,
            self.ca,
            self.insecure,
            self.tls_server_name,
            self.certificate,
            self.key,
            self.proxy,
            self.issuer,
        ) == (
            other.server,
            other.ca,
            other.insecure,
            other.tls_server_name,
            other.certificate,
            other.key,
            other.proxy,
            other.issuer,
        )


def in_cluster_endpoint() -> Endpoint:
    """Endpoint for a process in a pod: the cluster of the pod, with the mounted token of its service account."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeconfigError("not in a cluster: KUBERNETES_SERVICE_HOST is not set")
    return Endpoint(
        server=f"https://{in_url(host)}:{port}",
        ca=(_SERVICE_ACCOUNT / "ca.crt").read_text(),
        token_file=_SERVICE_ACCOUNT / "token",
    )


def parse_kubeconfig(text: str | bytes) -> dict[str, Any]:
    """Parse the YAML or JSON of a kubeconfig. Raises KubeconfigError, which does not quote the kubeconfig."""
    try:
        parsed = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        raise KubeconfigError("kubeconfig is not YAML") from None
    if not isinstance(parsed, dict):
        raise KubeconfigError("kubeconfig is not a mapping")
    return parsed


def endpoint_of(config: Mapping[str, Any], directory: Path | None = None, *, trusted: Path | None = None) -> Endpoint:
    """Cluster and user of the current context; relative file names are relative to ``directory``.

    ``trusted``: path of the kubeconfig, if it belongs to the person who runs this process. Only then may it name a
    program that issues credentials, or an identity provider: its author can run any command here.

    Raises KubeconfigError if something is missing, or if credentials would come from a program without ``trusted``.
    """
    context = _named(config, "contexts", "context", config.get("current-context"))
    cluster = _named(config, "clusters", "cluster", context.get("cluster"))
    user = _named(config, "users", "user", context.get("user")) if context.get("user") else {}
    issued = "exec" in user or "auth-provider" in user
    if issued and trusted is None:
        raise KubeconfigError(
            "kubeconfig gets credentials from a program (exec or auth-provider), and only a user's own kubeconfig may: "
            "put a token or a client certificate into it"
        )
    if not cluster.get("server"):
        raise KubeconfigError("kubeconfig names no server")
    token_file = user.get("tokenFile")
    return Endpoint(
        server=str(cluster["server"]).rstrip("/"),
        ca=_data(cluster, "certificate-authority", directory).decode(),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=str(cluster.get("tls-server-name") or ""),
        certificate=_data(user, "client-certificate", directory),
        key=_data(user, "client-key", directory),
        token=str(user.get("token") or ""),
        token_file=_resolve(token_file, directory) if token_file else None,
        proxy=str(cluster.get("proxy-url") or ""),
        issuer=Issuer.of(trusted, str(context.get("user")), user, cluster) if issued and trusted else None,
    )


def resolved(endpoint: Endpoint) -> Endpoint:
    """The endpoint with credentials from its issuer, if it has one. Blocks; raises KubeconfigError."""
    if endpoint.issuer is None:
        return endpoint
    issued = endpoint.issuer.issue()
    return replace(
        endpoint,
        token=issued.token or endpoint.token,
        certificate=issued.certificate or endpoint.certificate,
        key=issued.key or endpoint.key,
        issuer=None,
    )


def _named(config: Mapping[str, Any], group: str, inner: str, name: object) -> dict[str, Any]:
    for entry in config.get(group) or ():
        if entry.get("name") == name:
            return dict(entry.get(inner) or {})
    raise KubeconfigError(f"kubeconfig has no {inner} {name!r}")


def _data(section: Mapping[str, Any], key: str, directory: Path | None) -> bytes:
    if encoded := section.get(f"{key}-data"):
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError:
            raise KubeconfigError(f"{key}-data is not base64") from None
    if path := section.get(key):
        return _resolve(path, directory).read_bytes()
    return b""


def _resolve(path: str, directory: Path | None) -> Path:
    return directory / path if directory else Path(path)

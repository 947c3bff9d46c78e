"""Files with which the garden's API server calls admission: its webhooks and its seed authorizer.

Kubernetes reads the credentials for webhooks, and the address of an authorizer, only from files.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlsplit

from workers.admission import seed_authorizer

Object = dict[str, Any]

AUTHORIZATION, ADMISSION = "authorization.json", "admission.json"
CERTIFICATE, KEY = "client.crt", "client.key"
"""The API server's client certificate for admission. The kubeconfigs name these files; the API server reads changed
files again."""

_AUTHORIZER_KUBECONFIG = "seed-authorizer.kubeconfig"
_WEBHOOKS_KUBECONFIG = "webhooks.kubeconfig"
_USER = "kube-apiserver"


def flags(directory: str) -> dict[str, str]:
    """Flags of the API server that name the files; the first one replaces ``--authorization-mode``."""
    return {
        "authorization-config": f"{directory}/{AUTHORIZATION}",
        "admission-control-config-file": f"{directory}/{ADMISSION}",
    }


def files(directory: str, *, webhooks_url: str, authorizer_url: str, authority: bytes) -> dict[str, Object]:
    """Contents by file name, without certificate and key.

    ``directory``: directory in which the API server finds the files. ``webhooks_url`` and ``authorizer_url``: URLs of
    both ports of admission, without a path. ``authority``: PEM of the authority of the seed authorizer's certificate.
    """
    user = {"client-certificate": f"{directory}/{CERTIFICATE}", "client-key": f"{directory}/{KEY}"}
    cluster = {
        "server": f"{authorizer_url.rstrip('/')}{seed_authorizer.PATH}",
        "certificate-authority-data": base64.b64encode(authority).decode(),
    }
    return {
        AUTHORIZATION: seed_authorizer.configuration(f"{directory}/{_AUTHORIZER_KUBECONFIG}"),
        ADMISSION: _admission(f"{directory}/{_WEBHOOKS_KUBECONFIG}"),
        _AUTHORIZER_KUBECONFIG: {
            **_config([{"name": _USER, "user": user}]),
            "current-context": _USER,
            "clusters": [{"name": _USER, "cluster": cluster}],
            "contexts": [{"name": _USER, "context": {"cluster": _USER, "user": _USER}}],
        },
        # In this file, the name of a user is the host that its credentials are for.
        _WEBHOOKS_KUBECONFIG: _config([{"name": _host_and_port(webhooks_url), "user": user}]),
    }


def _admission(kubeconfig: str) -> Object:
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": kubeconfig,
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {"name": name, "configuration": configuration}
            for name in ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
        ],
    }


def _config(users: list[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "Config", "users": users}


def _host_and_port(url: str) -> str:
    """Host and port of a URL; the API server looks credentials up by this name, which always has a port."""
    parts = urlsplit(url)
    return parts.netloc if parts.port else f"{parts.netloc}:443"

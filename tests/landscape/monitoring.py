"""A Shoot's Prometheus, by address and password from the project's namespace."""

import base64
import http.client
import json
import socket
import ssl
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.landscape.shoots import Shoot

JOBS = {
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd-main", "etcd-events",
    "gardener-resource-manager", "machine-controller-manager", "kubelet", "cadvisor",
}  # fmt: skip
"""What it asks where there are nodes."""


def access(shoot: Shoot) -> tuple[str, str]:
    """Its host, and what to say there."""
    secret = json.loads(shoot.garden("get", "secret", f"{shoot.name}.monitoring", "-o", "json"))
    user, password = (base64.b64decode(secret["data"][key]).decode() for key in ("username", "password"))
    words = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urlsplit(secret["metadata"]["annotations"]["prometheus-url"]).hostname or "", f"Basic {words}"


def ask(shoot: Shoot, query: str, host: str, words: str) -> tuple[int, Any]:
    """Status and result; trusts what the project publishes of the cluster's authority, and nothing else."""
    bundle = json.loads(shoot.garden("get", "configmap", f"{shoot.name}.ca-cluster", "-o", "json"))["data"]["ca.crt"]
    raw = socket.create_connection((shoot.address_of(host), 443), 10)
    connection = http.client.HTTPSConnection(host, timeout=10)
    connection.sock = ssl.create_default_context(cadata=bundle).wrap_socket(raw, server_hostname=host)
    try:
        connection.request("GET", f"/api/v1/query?{urlencode({'query': query})}", headers={"Authorization": words})
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content)["data"]["result"] if response.status == 200 else None
    finally:
        connection.close()

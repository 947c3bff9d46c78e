"""A Shoot's Prometheus, by address and password from the project's namespace."""

import base64
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.landscape import https
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
    url = f"https://{host}/api/v1/query?{urlencode({'query': query})}"
    status, content = https.get(shoot, url, bundle, {"Authorization": words})
    return status, json.loads(content)["data"]["result"] if status == 200 else None

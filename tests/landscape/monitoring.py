"""A Shoot's Prometheus and Alertmanager, by address and password from the project's namespace."""

import base64
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.landscape import https
from tests.landscape.shoots import Shoot

JOBS = {
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd-main", "etcd-events",
    "gardener-resource-manager", "machine-controller-manager", "kubelet", "cadvisor", "node-exporter",
    "blackbox-exporter-k8s-service-check", "kube-state-metrics", "blackbox-apiserver",
}  # fmt: skip
"""Scrape jobs of a shoot with nodes."""


def access(shoot: Shoot, name: str = "prometheus") -> tuple[str, str]:
    """The host of one of them, and what to say there."""
    secret = json.loads(shoot.garden("get", "secret", f"{shoot.name}.monitoring", "-o", "json"))
    user, password = (base64.b64decode(secret["data"][key]).decode() for key in ("username", "password"))
    words = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urlsplit(secret["metadata"]["annotations"].get(f"{name}-url", "")).hostname or "", f"Basic {words}"


def ask(shoot: Shoot, query: str, host: str, words: str) -> tuple[int, Any]:
    """Status and result of a query."""
    status, answer = get(shoot, f"/api/v1/query?{urlencode({'query': query})}", host, words)
    return status, answer["data"]["result"] if status == 200 else None


def get(shoot: Shoot, path: str, host: str, words: str, body: Any = None) -> tuple[int, Any]:
    """Status and answer; trusts what the project publishes of the cluster's authority, and nothing else."""
    bundle = json.loads(shoot.garden("get", "configmap", f"{shoot.name}.ca-cluster", "-o", "json"))["data"]["ca.crt"]
    headers = {"Authorization": words, "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    status, answer = https.get(shoot, f"https://{host}{path}", bundle, headers, content)
    return status, json.loads(answer) if status == 200 and answer else None

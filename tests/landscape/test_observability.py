"""What an owner sees of the control plane: its Prometheus, by address and password from the project's namespace."""

import base64
import http.client
import json
import socket
import ssl
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.landscape.shoots import Shoot, eventually

pytestmark = pytest.mark.landscape

JOBS = {
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd-main", "etcd-events",
    "gardener-resource-manager", "machine-controller-manager", "kubelet", "cadvisor",
}  # fmt: skip
_ROTATION_SECONDS = 120.0


def _access(shoot: Shoot) -> tuple[str, str]:
    """Its host, and what to say there."""
    secret = json.loads(shoot.garden("get", "secret", f"{shoot.name}.monitoring", "-o", "json"))
    user, password = (base64.b64decode(secret["data"][key]).decode() for key in ("username", "password"))
    words = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urlsplit(secret["metadata"]["annotations"]["prometheus-url"]).hostname or "", f"Basic {words}"


def _ask(shoot: Shoot, query: str, host: str, words: str) -> tuple[int, Any]:
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


def _last_rotation(shoot: Shoot) -> str:
    """When the last one was done; empty if there was none."""
    rotation = (shoot.get()["status"].get("credentials") or {}).get("rotation") or {}
    done: str = (rotation.get("observability") or {}).get("lastCompletionTime", "")
    return done


def test_all_of_a_control_plane_and_its_nodes_is_seen(shoot: Shoot) -> None:
    host, words = _access(shoot)

    def whole() -> bool:
        try:
            _, found = _ask(shoot, "up == 1", host, words)
        except OSError:  # nobody waits for it while a Shoot is created
            return False
        return {each["metric"]["job"] for each in found} >= JOBS

    eventually(whole, "everything is seen", 90)
    _, found = _ask(shoot, "count(container_memory_working_set_bytes) by (node)", host, words)
    nodes = shoot.kubectl("get", "nodes", "-o", "name").split()
    assert {f"node/{each['metric']['node']}" for each in found} == set(nodes)


def test_nobody_sees_it_without_the_password(shoot: Shoot) -> None:
    host, _ = _access(shoot)
    assert _ask(shoot, "up", host, "Basic YWRtaW46YWRtaW4=") == (401, None)


def test_a_new_password_is_taken_and_the_old_one_refused(shoot: Shoot) -> None:
    host, old = _access(shoot)
    before = _last_rotation(shoot)
    shoot.garden("annotate", "shoot", shoot.name, "gardener.cloud/operation=rotate-observability-credentials")
    eventually(lambda: _last_rotation(shoot) != before, "the rotation is done", _ROTATION_SECONDS)
    _, new = _access(shoot)
    assert new != old
    assert _ask(shoot, "up", host, new)[0] == 200
    assert _ask(shoot, "up", host, old) == (401, None)

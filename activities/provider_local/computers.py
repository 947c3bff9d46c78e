"""Computers of the local cloud: pods that boot an operating system with user data."""

import base64
from collections.abc import Mapping
from typing import Any

PRIORITY_CLASS = "gardener-extension-provider-local-computer"
"""Computers are pods of the seed beside control planes: a full node must neither evict a computer for the pods of
control planes, nor these for a computer."""
_USER_DATA_FILE = "userdata"
_GRACE_SECONDS = 1
"""Short, because a machine that is deleted was drained before, or is deleted with its whole cluster."""


def user_data_secret(name: str, namespace: str, script: bytes, labels: Mapping[str, str]) -> dict[str, Any]:
    """Secret with the script that a computer boots with."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": user_data_name(name), "namespace": namespace, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {_USER_DATA_FILE: base64.b64encode(script).decode()},
    }


def user_data_name(computer: str) -> str:
    """Name of the Secret with the user data of a computer."""
    return f"{computer}-user-data"


def computer_pod(
    name: str, namespace: str, *, image: str, labels: Mapping[str, str], cpu_millis: int, memory_bytes: int
) -> dict[str, Any]:
    """Pod whose first process is systemd. What the operating system mounts and runs ends with the pod."""
    volumes: list[dict[str, Any]] = [
        {"name": "userdata", "secret": {"secretName": user_data_name(name), "defaultMode": 0o400}},
        {"name": "run", "emptyDir": {"medium": "Memory"}},
        {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}},
    ]
    # No mount propagation: mounts in the pod must not stay behind on the cloud's host.
    mounts: list[dict[str, Any]] = [
        {"name": "userdata", "mountPath": "/etc/machine", "readOnly": True},
        {"name": "run", "mountPath": "/run"},
        {"name": "cgroup", "mountPath": "/sys/fs/cgroup"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "hostname": name,
            "priorityClassName": PRIORITY_CLASS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "machine",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": "container", "value": "oci"}],
                    "securityContext": {"privileged": True},
                    "resources": {"requests": {"cpu": f"{cpu_millis}m", "memory": str(memory_bytes)}},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }

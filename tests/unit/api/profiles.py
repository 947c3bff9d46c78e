"""A NamespacedCloudProfile of the garden in small, for tests to change."""

from typing import Any

from tests.unit.api.shoots import CORE

CHILD: dict[str, Any] = {
    "apiVersion": CORE,
    "kind": "NamespacedCloudProfile",
    "metadata": {"name": "mine", "namespace": "garden-local", "uid": "n-1", "generation": 1},
    "spec": {"parent": {"kind": "CloudProfile", "name": "local"}},
}
BIG = {"name": "big", "cpu": "8", "gpu": "0", "memory": "16Gi", "usable": True, "architecture": "amd64"}

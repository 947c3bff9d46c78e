"""Components that work for a cluster's owners once it is there: who watches its nodes, and who sizes its pods."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api import images
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(240, func_only=True)]

LEAST = "23m"
"""CPU that the autoscaler is to recommend at least: what uses next to none gets just that."""
LABELS = {"app": "sized"}
SIZED: list[dict[str, Any]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sized"},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [{"name": "idle", "image": images.PAUSE}]},
            },
        },
    },
    {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "sized"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sized"},
            "updatePolicy": {"updateMode": "Initial"},
            "resourcePolicy": {"containerPolicies": [{"containerName": "*", "minAllowed": {"cpu": LEAST}}]},
        },
    },
]


def test_each_node_says_whether_its_kernel_complains(shoot: Shoot) -> None:
    def conditions() -> list[dict[str, tuple[str, str]]]:
        nodes = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
        found = [{each["type"]: (each["status"], each["reason"]) for each in node["status"]["conditions"]}
                 for node in nodes]  # fmt: skip
        return found if all("KernelDeadlock" in each for each in found) else []

    for each in eventually(conditions, "what the detector of problems says of all nodes", 60):
        assert each["KernelDeadlock"] == ("False", "KernelHasNoDeadlock")
        assert each["ReadonlyFilesystem"] == ("False", "FilesystemIsNotReadOnly")


@pytest.fixture
def sized(shoot: Shoot) -> Iterator[Shoot]:
    """The shoot, with a Deployment that asks for nothing, and an autoscaler for it."""
    for name in ("vpa-recommender", "vpa-admission-controller"):
        shoot.control_plane("rollout", "status", f"deployment/{name}", "--timeout=60s")
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": SIZED})
    shoot.kubectl("apply", "-f", "-", stdin=manifest)
    yield shoot
    shoot.kubectl("delete", "-f", "-", stdin=manifest)


def test_a_new_pod_gets_what_is_recommended(sized: Shoot) -> None:
    sized.kubectl("rollout", "status", "deployment/sized", "--timeout=60s")
    provided = "--for=condition=RecommendationProvided"
    sized.kubectl("wait", provided, "verticalpodautoscaler/sized", "--timeout=170s", timeout=180)

    sized.kubectl("delete", "pod", "-l", "app=sized", "--wait=true")
    sized.kubectl("rollout", "status", "deployment/sized", "--timeout=60s")

    [pod] = json.loads(sized.kubectl("get", "pods", "-l", "app=sized", "-o", "json"))["items"]
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == LEAST
    assert "sized" in pod["metadata"]["annotations"]["vpaUpdates"]

"""Components that the gardenlet deploys for the seed itself, on a landscape: resource manager and placeholders."""

import base64
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from api.quantities import parse_quantity
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(240, func_only=True)]

SEED = "seed-1"
PLACEHOLDERS = "--selector=role=reserve-excess-capacity"
_FREE = 100 * 2**20
"""Bytes of memory that stay free beside the placeholder."""
_WANTED = 300 * 2**20
"""Bytes of memory that a control plane needs: there is room for it in place of the placeholder only."""
_MIB = 2**20


def in_garden(landscape: Landscape, *arguments: str, stdin: str | None = None) -> str:
    """kubectl in namespace garden of the seed."""
    return landscape.kubectl(SEED, "--namespace=garden", *arguments, stdin=stdin)


def apply(landscape: Landscape, *objects: dict[str, Any]) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    in_garden(landscape, "apply", "--server-side", "-f", "-", stdin=json.dumps(listing))


def test_the_seeds_resource_manager_applies_managed_resources(landscape: Landscape) -> None:
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-seed", "namespace": "default"}}
    content = base64.b64encode(json.dumps({**wanted, "data": {"by": "seed"}}).encode()).decode()
    metadata = {"name": "test-of-seed", "namespace": "garden"}
    managed = {
        "apiVersion": "resources.gardener.cloud/v1alpha1",
        "kind": "ManagedResource",
        "metadata": metadata,
        "spec": {"class": "seed", "secretRefs": [{"name": "test-of-seed"}]},
    }

    apply(
        landscape,
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"map.json": content}},
        managed,
    )

    for condition, status in (("Applied", "True"), ("Healthy", "True"), ("Progressing", "False")):
        reached = f"jsonpath={{.status.conditions[?(@.type=='Resources{condition}')].status}}={status}"
        in_garden(landscape, "wait", f"--for={reached}", "managedresource/test-of-seed", "--timeout=60s")
    found = landscape.kubectl(SEED, "--namespace=default", "get", "configmap", "of-seed", "-o", "jsonpath={.data.by}")
    assert found == "seed"
    in_garden(landscape, "delete", "managedresource,secret", "test-of-seed", "--timeout=60s")
    gone = ("get", "configmap", "of-seed", "--ignore-not-found", "-o", "name")
    assert landscape.kubectl(SEED, "--namespace=default", *gone) == ""


@pytest.fixture
def reservation(landscape: Landscape) -> Iterator[int]:
    """The placeholder takes the memory that is free on the seed's node but ``_FREE``; gives its amount in MiB."""
    seed = json.loads(landscape.kubectl("garden", "get", "seed", SEED, "-o", "json"))
    before = seed["spec"]["settings"]["excessCapacityReservation"]
    _reserve(landscape, {"enabled": False})
    eventually(lambda: not _placeholders(landscape), "no placeholder", 60)
    amount = int((_free_memory(landscape) - _FREE) / _MIB)
    _reserve(landscape, {"enabled": True, "configs": [{"resources": {"memory": f"{amount}Mi"}}]})
    yield amount
    _reserve(landscape, before)


def _reserve(landscape: Landscape, reservation: dict[str, Any]) -> None:
    patch = {"spec": {"settings": {"excessCapacityReservation": reservation}}}
    landscape.kubectl("garden", "patch", "seed", SEED, "--type=merge", "-p", json.dumps(patch))


def _placeholders(landscape: Landscape) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(in_garden(landscape, "get", "pods", PLACEHOLDERS, "-o", "json"))["items"]
    return found


def _free_memory(landscape: Landscape) -> Decimal:
    """Bytes of the only node that no pod has requested."""
    [node] = json.loads(landscape.kubectl(SEED, "get", "nodes", "-o", "json"))["items"]
    pods = json.loads(landscape.kubectl(SEED, "get", "pods", "--all-namespaces", "-o", "json"))["items"]
    running = [each for each in pods if each["status"]["phase"] in ("Pending", "Running")]
    return parse_quantity(node["status"]["allocatable"]["memory"]) - sum(map(_requested, running), Decimal())


def _requested(pod: dict[str, Any]) -> Decimal:
    """Memory of all containers, also of those that only prepare the pod: not less than the scheduler counts."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    amounts = (each.get("resources", {}).get("requests", {}).get("memory", "0") for each in containers)
    return sum(map(parse_quantity, amounts), Decimal())


@pytest.mark.slow
def test_a_placeholder_makes_room_for_a_control_plane(landscape: Landscape, reservation: int) -> None:
    def placed() -> dict[str, Any] | None:
        found = [each for each in _placeholders(landscape) if each["status"]["phase"] == "Running"]
        wanted = [each for each in found if _requested(each) == reservation * _MIB]
        return wanted[0] if wanted else None

    placeholder = eventually(placed, "a placeholder that fills the node", 120)
    container = {
        "name": "main",
        "image": placeholder["spec"]["containers"][0]["image"],
        "resources": {"requests": {"memory": str(_WANTED)}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "control-plane", "namespace": "garden"},
        "spec": {"priorityClassName": "gardener-system-500", "containers": [container]},
    }
    try:
        apply(landscape, pod)
        in_garden(landscape, "wait", "--for=condition=Ready", "pod/control-plane", "--timeout=120s")
        evicted = eventually(
            lambda: [each for each in _placeholders(landscape) if each["status"]["phase"] == "Pending"],
            "a placeholder that waits for room",
            60,
        )
        assert evicted[0]["metadata"]["uid"] != placeholder["metadata"]["uid"]
    finally:
        in_garden(landscape, "delete", "pod", "control-plane", "--ignore-not-found", "--wait=false")

    again = eventually(placed, "the placeholder, once there is room", 120)
    assert again["metadata"]["uid"] != placeholder["metadata"]["uid"]

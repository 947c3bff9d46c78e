"""Telling from managedFields whether an apply would change anything."""

import copy
from typing import Any

import pytest

from kube.unchanged import unchanged
from tests.unit.kube.api_server import ApiServer

MANAGER = "gardenlet"
WANTED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "web",
        "namespace": "demo",
        "labels": {"app": "web"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
    },
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "web",
                        "args": ["--a", "--b"],
                        "ports": [{"containerPort": 80}],
                        "env": [{"name": "ONE", "value": "1"}, {"name": "TWO", "value": "2"}],
                    }
                ],
                "volumes": [{"name": "empty", "emptyDir": {}}],
            }
        },
    },
}
"""Object that we apply; below, the same object as an API server of 1.37 stored it."""
FIELDS: dict[str, Any] = {
    "f:metadata": {
        "f:labels": {"f:app": {}},
        "f:ownerReferences": {'k:{"uid":"u"}': {}},
    },
    "f:spec": {
        "f:replicas": {},
        "f:selector": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"web"}': {
                        ".": {},
                        "f:name": {},
                        "f:args": {},
                        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                        "f:env": {
                            'k:{"name":"ONE"}': {".": {}, "f:name": {}, "f:value": {}},
                            'k:{"name":"TWO"}': {".": {}, "f:name": {}, "f:value": {}},
                        },
                    }
                },
                "f:volumes": {'k:{"name":"empty"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
            }
        },
    },
}


def live() -> dict[str, Any]:
    obj = copy.deepcopy(WANTED)
    obj["metadata"] |= {
        "uid": "x",
        "resourceVersion": "5",
        "managedFields": [
            {"manager": "kubelet", "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": {"f:status": {}}},
            {"manager": MANAGER, "operation": "Apply", "apiVersion": "apps/v1", "fieldsV1": copy.deepcopy(FIELDS)},
        ],
    }
    obj["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP"
    obj["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    obj["status"] = {"replicas": 1}
    return obj


def changed(path: str, value: Any) -> dict[str, Any]:
    """WANTED with another value at ``path``; None takes it away."""
    obj: Any = copy.deepcopy(WANTED)
    place = obj
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return dict(obj)


CONTAINER = "spec.template.spec.containers.0"


def test_an_unchanged_applied_object_needs_no_request() -> None:
    """Defaults that the server added, and fields of others, are not ours."""
    assert unchanged(live(), WANTED, MANAGER)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicas", 2),
        ("spec.replicas", True),
        ("spec.replicas", None),
        ("spec.paused", False),
        ("metadata.labels", {"app": "web", "new": "x"}),
        ("metadata.labels", {}),
        ("metadata.annotations", {"new": "x"}),
        ("spec.selector", {"matchLabels": {"app": "web", "tier": "x"}}),
        (f"{CONTAINER}.args", ["--b", "--a"]),
        (f"{CONTAINER}.args", ["--a"]),
        (f"{CONTAINER}.ports", [{"containerPort": 81}]),
        (f"{CONTAINER}.ports", [{"containerPort": 80, "protocol": "TCP"}]),
        (f"{CONTAINER}.env.0.value", "3"),
        (f"{CONTAINER}.env", [{"name": "TWO", "value": "2"}, {"name": "ONE", "value": "1"}]),
        (f"{CONTAINER}.env", [{"name": "ONE", "value": "1"}]),
        ("spec.template.spec.volumes.0.emptyDir", {"medium": "Memory"}),
        ("apiVersion", "apps/v1beta1"),
    ],
)
def test_a_difference_is_sent(path: str, value: Any) -> None:
    assert not unchanged(live(), changed(path, value), MANAGER)


def test_a_field_that_another_manager_changed_is_applied_again() -> None:
    """A manager that changes a value with an update takes the field from us; a value that differs is enough."""
    edited = live()
    edited["spec"]["replicas"] = 3
    taken = live()
    del taken["metadata"]["managedFields"][1]["fieldsV1"]["f:spec"]["f:replicas"]

    assert not unchanged(edited, WANTED, MANAGER)
    assert not unchanged(taken, WANTED, MANAGER)


def test_a_field_that_another_manager_applied_is_taken_over_by_a_request() -> None:
    assert not unchanged(live(), WANTED, "another-manager")


async def test_the_second_apply_of_the_same_is_no_write(api: ApiServer) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "b"}, "data": {"k": "dg=="}}
    async with api.client() as client:
        first = await client.apply(secret, manager=MANAGER)
        second = await client.apply(secret, manager=MANAGER)
        api.change("/api/v1/secrets", "a", "b", {"data": {"k": "eA=="}})
        mended = await client.apply(secret, manager=MANAGER)

    assert [method for method, _ in api.requests] == ["GET", "PATCH", "GET", "GET", "PATCH"]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert mended["data"] == {"k": "dg=="}

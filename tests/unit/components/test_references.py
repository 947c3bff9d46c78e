"""Workloads name the versioned objects that they use: otherwise the garbage collector would delete these."""

import json
from typing import Any

import pytest

from activities.components import base

NAME = "x-01234567"
SECRET, CONFIG_MAP = {"name": NAME}, {"name": NAME}


def workload(**pod: Any) -> Any:
    return base.deployment("x", "ns", select={"app": "x"}, replicas=1, pod={"containers": [], **pod})


@pytest.mark.row("garbage collector", "references are found in volumes, projected volumes, envFrom, env, pull secrets")
@pytest.mark.parametrize(
    ("kind", "pod"),
    [
        ("secret", {"volumes": [{"name": "v", "secret": {"secretName": NAME}}]}),
        ("configmap", {"volumes": [{"name": "v", "configMap": CONFIG_MAP}]}),
        ("secret", {"volumes": [{"name": "v", "projected": {"sources": [{"secret": SECRET}]}}]}),
        ("configmap", {"volumes": [{"name": "v", "projected": {"sources": [{"configMap": CONFIG_MAP}]}}]}),
        ("secret", {"containers": [{"name": "c", "envFrom": [{"secretRef": SECRET}]}]}),
        ("configmap", {"initContainers": [{"name": "c", "envFrom": [{"configMapRef": CONFIG_MAP}]}]}),
        ("secret", {"containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"secretKeyRef": SECRET}}]}]}),
        ("configmap", {"containers": [{"name": "c", "env": [{"valueFrom": {"configMapKeyRef": CONFIG_MAP}}]}]}),
        ("secret", {"imagePullSecrets": [SECRET]}),
    ],
    ids=json.dumps,
)
def test_a_versioned_object_is_named_on_the_workload_and_its_template(kind: str, pod: Any) -> None:
    made = workload(**pod)
    wanted = {f"reference.resources.gardener.cloud/{kind}-{base.checksum(NAME)[:8]}": NAME}

    assert made["metadata"]["annotations"] == wanted
    assert made["spec"]["template"]["metadata"]["annotations"] == wanted


def test_objects_without_a_hash_in_their_name_are_not_named() -> None:
    """No garbage collector deletes these, and an annotation on the template would roll the pods."""
    made = workload(volumes=[{"name": "v", "secret": {"secretName": "shoot-access-x"}}, {"name": "e", "emptyDir": {}}])

    assert "annotations" not in made["metadata"]
    assert "annotations" not in made["spec"]["template"]["metadata"]

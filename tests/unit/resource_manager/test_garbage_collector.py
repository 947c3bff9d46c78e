"""Versioned ConfigMaps and Secrets are deleted when no object refers to them, and not before."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.resource_manager.conftest import CONFIG_MAPS, DEPLOYMENTS, SECRETS
from workers.resource_manager.garbage_collector import GarbageCollector

OLD = (datetime.now(UTC) - timedelta(minutes=11)).isoformat()
LABEL = {"resources.gardener.cloud/garbage-collectable-reference": "true"}


def candidate(kind, name, created=OLD, labels=LABEL, namespace="kube-system"):
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created, "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


@pytest.mark.row(
    "garbage collector", "labelled objects that are 10 minutes old and that no annotation names are deleted"
)
async def test_only_old_unreferenced_objects_of_ours_go(target, clients):
    _, client = clients
    young = datetime.now(UTC).isoformat()
    target.put(CONFIG_MAPS, candidate("ConfigMap", "used"))
    target.put(CONFIG_MAPS, candidate("ConfigMap", "unused"))
    target.put(CONFIG_MAPS, candidate("ConfigMap", "young", created=young))
    target.put(CONFIG_MAPS, candidate("ConfigMap", "not-ours", labels={}))
    target.put(CONFIG_MAPS, candidate("ConfigMap", "used", namespace="elsewhere"))
    target.put(SECRETS, candidate("Secret", "used"))
    reference = {"reference.resources.gardener.cloud/configmap-12345678": "used"}
    target.put(
        DEPLOYMENTS,
        {"kind": "Deployment", "metadata": {"name": "d", "namespace": "kube-system", "annotations": reference}},
    )

    await GarbageCollector(client, [None], timedelta(hours=1)).sweep(None)

    left = sorted((where, name) for path, where, name in target.objects if path == CONFIG_MAPS)
    assert left == [("kube-system", "not-ours"), ("kube-system", "used"), ("kube-system", "young")]
    assert target.find(SECRETS, "used", "kube-system") is None

"""A member of a project watches a foreign cluster, at a real garden; a real API server is the foreign cluster, too."""

import asyncio
import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from api import resources
from kube.cache import Caches
from kube.errors import Forbidden, Invalid
from tests.foreign_cluster import HOST, reachable
from tests.gardens import RealGarden, person, real_garden
from tests.unit.api.test_plants import PLANT, kubeconfig
from tests.unit.kube.waiting import until
from workers.controller_manager.plants import PlantConfig, run_plant_controller
from workers.controller_manager.protection import run_protection_controllers

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(180, func_only=True)]

NAMESPACE = "garden-local"


def secret(content: dict[str, Any]) -> dict[str, Any]:
    data = {"kubeconfig": base64.b64encode(json.dumps(content).encode()).decode()}
    metadata = {"name": "crazy-kubeconfig", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def plant() -> dict[str, Any]:
    return {**PLANT, "metadata": {"name": "crazy", "namespace": NAMESPACE}}


def of_the_garden(garden: RealGarden, directory: Path) -> dict[str, Any]:
    """A kubeconfig for the garden's own API server, by the name that only the test's resolver knows."""
    bundle = base64.b64encode((directory / "certs/apiserver.crt").read_bytes()).decode()
    port = urlsplit(garden.admin.endpoint.server).port
    cluster = {"certificate-authority-data": bundle, "tls-server-name": "kubernetes"}
    return kubeconfig(f"https://{HOST}:{port}", {"token": "admin"}, **cluster)


@pytest.mark.attack(actor="T1", asset="A1", finding=26)
@pytest.mark.usefixtures("kubernetes_is_built")
async def test_members_watch_clusters_of_their_own_project_alone(tmp_path: Path) -> None:
    async with real_garden(tmp_path, "alice", "victor", "stranger") as garden:
        await garden.project("local", person("alice", "admin"), person("victor", "viewer"))
        await garden.project("other", person("stranger", "admin"))
        alice, victor, stranger = (garden.clients[each] for each in ("alice", "victor", "stranger"))
        await until(lambda: garden.may("alice", "create", resources.PLANT, NAMESPACE), 60)
        await until(lambda: garden.may("victor", "list", resources.PLANT, NAMESPACE), 60)

        runs = kubeconfig(user={"exec": {"command": "sh"}})
        with pytest.raises(Invalid):  # the client quotes no message on a Secret
            await alice.create(secret(runs))
        await alice.create(secret(of_the_garden(garden, tmp_path)))
        with pytest.raises(Forbidden):
            await victor.create(plant())
        with pytest.raises(Forbidden):
            await stranger.create(plant())
        with pytest.raises(Forbidden):
            await stranger.list(resources.PLANT, NAMESPACE)
        made = await alice.create(plant())
        with pytest.raises(Forbidden):
            await alice.patch(resources.PLANT, "crazy", NAMESPACE, {"status": {}}, subresource="status")

        labelled = {"name": "a", "labels": {"topology.kubernetes.io/region": "eu-1"}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": labelled, "spec": {"providerID": "aws:///z/i-1"}}
        await garden.admin.create(node)
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await garden.admin.patch(resources.NODE, "a", None, {"status": ready}, subresource="status")

        caches = Caches(garden.process)
        config = PlantConfig(sync_period=timedelta(seconds=0.2))
        tasks = [
            asyncio.create_task(run_plant_controller(garden.process, caches, config, reachable())),
            asyncio.create_task(run_protection_controllers(garden.process, caches)),
        ]
        try:
            await _becomes(garden, {"APIServerAvailable": "True", "EveryNodeReady": "True"})
            found = await victor.get(resources.PLANT, "crazy", NAMESPACE)
            provider = {"type": "aws", "region": "eu-1"}
            assert found["status"]["clusterInfo"]["provider"] == provider
            assert found["status"]["clusterInfo"]["kubernetes"]["version"].startswith("v1.")
            assert found["status"]["observedGeneration"] == made["metadata"]["generation"]

            await garden.admin.patch(resources.NODE, "a", None, {"status": {"conditions": None}}, subresource="status")
            await _becomes(garden, {"APIServerAvailable": "True", "EveryNodeReady": "Progressing"})

            with pytest.raises(Invalid):
                await alice.patch(resources.SECRET, "crazy-kubeconfig", NAMESPACE, {"data": None})
            await until(lambda: _held(garden), 60)
            with pytest.raises(Forbidden):
                await alice.patch(resources.SECRET, "crazy-kubeconfig", NAMESPACE, {"metadata": {"finalizers": None}})
            await alice.delete(resources.SECRET, "crazy-kubeconfig", NAMESPACE)
            assert "deletionTimestamp" in (await alice.get(resources.SECRET, "crazy-kubeconfig", NAMESPACE))["metadata"]
            await alice.delete(resources.PLANT, "crazy", NAMESPACE)
            await until(lambda: _gone(garden), 60)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await caches.close()


async def _becomes(garden: RealGarden, wanted: dict[str, str]) -> None:
    async def reached() -> bool:
        found = await garden.admin.get(resources.PLANT, "crazy", NAMESPACE)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return {each["type"]: each["status"] for each in conditions} == wanted

    await until(reached, 60)


async def _held(garden: RealGarden) -> bool:
    found = await garden.admin.get(resources.SECRET, "crazy-kubeconfig", NAMESPACE)
    return "gardener.cloud/reference-protection" in (found["metadata"].get("finalizers") or ())


async def _gone(garden: RealGarden) -> bool:
    return await garden.admin.find(resources.SECRET, "crazy-kubeconfig", NAMESPACE) is None

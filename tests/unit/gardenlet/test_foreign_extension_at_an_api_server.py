"""An extension of another project's making serves an Extension object, with the rights that its published chart gives.

Etcd, kube-apiserver and the extension are real.
"""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from api import resources
from api.crds import crds
from kube.client import KubeClient, Object
from tests import api_servers, gardener_extension
from tests.api_servers import free_port, process
from tests.gardener_extension import IN_SHOOT
from tests.unit.kube.waiting import until
from workers.gardenlet.charts import Chart, rendered

# The first run compiles the extension.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OWN, CONTROL_PLANE = "extension-foreign", "shoot--local--demo"
ACCOUNT = f"system:serviceaccount:{OWN}:gardener-extension-provider-local"
RIGHTS = ("ClusterRole", "ClusterRoleBinding")
SHOOT = yaml.safe_load((Path(__file__).parents[3] / "examples/shoot.yaml").read_text())


def _object(api_version: str, kind: str, name: str, namespace: str = "", **content: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def _garden_object(kind: str, **spec: Any) -> Object:
    return _object("core.gardener.cloud/v1beta1", kind, "local", spec=spec)


async def _prepare(admin: KubeClient, installed: tuple[Object, ...]) -> None:
    """Write what the gardenlet writes: the kinds, the rights of the chart, and the Cluster of a Shoot."""
    for each in crds("seed"):
        await admin.apply(each, manager="test")
    for name in (OWN, CONTROL_PLANE):
        await admin.apply(_object("v1", "Namespace", name), manager="test")
    for each in installed:
        if each["kind"] in RIGHTS:
            await admin.apply(each, manager="test")
    networks = {"pods": "10.0.0.0/16", "services": "10.1.0.0/16"}
    spec = {
        "shoot": {**SHOOT, "status": {"technicalID": CONTROL_PLANE}},
        "cloudProfile": _garden_object("CloudProfile", type="local"),
        "seed": _garden_object("Seed", provider={"type": "local", "region": "local"}, networks=networks),
    }
    cluster = _object("extensions.gardener.cloud/v1alpha1", "Cluster", CONTROL_PLANE, spec=spec)
    await admin.apply(cluster, manager="test")


def _arguments(installed: tuple[Object, ...], kubeconfig: Path) -> list[str]:
    """Arguments of the container in the chart, with ports that are free here."""
    [container] = next(each for each in installed if each["kind"] == "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    own = {
        "--kubeconfig": str(kubeconfig),
        "--webhook-config-server-port": str(free_port()),
        "--metrics-bind-address": "127.0.0.1:0",
        "--health-bind-address": f"127.0.0.1:{free_port()}",
    }
    kept = [each for each in container["args"] if each.partition("=")[0] not in own]
    return [*kept, *(f"{name}={value}" for name, value in own.items())]


async def test_a_foreign_extension_serves_an_object_with_the_rights_of_its_chart(
    kubernetes_is_built: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, published = await gardener_extension.built(), await gardener_extension.chart()
    values = {**gardener_extension.VALUES, "gardener": {"seed": {"name": "seed-1", "provider": "local"}}}
    found = await rendered(Chart("foreign", OWN, values, raw=base64.b64encode(published).decode()))
    port = free_port()
    tokens = f"a,admin,1,system:masters\ne,{ACCOUNT},2\n"
    servers = api_servers.commands(tmp_path, port, tokens, "--authorization-mode", "RBAC")
    started = (process(tmp_path, *command) for command in servers)
    kubeconfig = tmp_path / "extension.yaml"
    kubeconfig.write_text(yaml.safe_dump(api_servers.kubeconfig(port, "e")))
    for name in ("LEADER_ELECTION_NAMESPACE", "WEBHOOK_CONFIG_NAMESPACE"):
        monkeypatch.setenv(name, OWN)

    async with next(started), next(started), api_servers.client(port, "a") as admin:
        await api_servers.ready(admin)
        await _prepare(admin, found.objects)
        extension = _object("extensions.gardener.cloud/v1alpha1", "Extension", IN_SHOOT, CONTROL_PLANE)
        extension["metadata"]["annotations"] = {"gardener.cloud/operation": "reconcile"}
        await admin.apply({**extension, "spec": {"type": IN_SHOOT}}, manager="test")
        async with process(tmp_path, str(program), *_arguments(found.objects, kubeconfig)):

            async def succeeded() -> bool:
                live = await admin.get(resources.EXTENSION, IN_SHOOT, CONTROL_PLANE)
                await asyncio.sleep(0.1)  # the clock of a poll
                return ((live.get("status") or {}).get("lastOperation") or {}).get("state") == "Succeeded"

            await until(succeeded, 60)
            assert await admin.find(resources.MANAGED_RESOURCE, IN_SHOOT, CONTROL_PLANE)
            heartbeat = await admin.get(resources.LEASE, "gardener-extension-heartbeat", OWN)
            assert heartbeat["spec"]["renewTime"]

            await admin.patch(
                resources.EXTENSION, IN_SHOOT, CONTROL_PLANE,
                {"metadata": {"annotations": {"confirmation.gardener.cloud/deletion": "true"}}},
            )  # fmt: skip
            await admin.delete(resources.EXTENSION, IN_SHOOT, CONTROL_PLANE)

            async def gone() -> bool:
                await asyncio.sleep(0.1)  # the clock of a poll
                return await admin.find(resources.EXTENSION, IN_SHOOT, CONTROL_PLANE) is None

            await until(gone, 60)
            assert not await admin.find(resources.MANAGED_RESOURCE, IN_SHOOT, CONTROL_PLANE)

"""A gardenlet upgrades itself, at real API servers of a garden and a seed, by a chart of a registry.

Helm has installed the gardenlet into the seed. The gardenlet has the rights of its chart there.
"""

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from activities.clusters import Clusters
from api import images, resources
from api.constants import SEED_USER_PREFIX, SEEDS_GROUP
from api.decisions.conditions import find_condition
from api.decisions.managed_seeds import changes
from kube.client import KubeClient
from tests.api_servers import ready
from tests.gardens import ADMIN, ApiServer
from tests.unit.api.shoots import SEED
from tests.unit.charts import archive
from tests.unit.gardenlet.test_chart_registry import LOGIN, Running, registry
from tests.unit.kube.waiting import until
from workers.gardenlet.child_gardenlet import _CHART, _archive
from workers.gardenlet.config import GardenletConfig
from workers.gardenlet.self_upgrade import SelfUpgrade, values
from workers.setup import set_up_garden

__all__ = ["registry"]

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

Object = dict[str, Any]
GARDENLET, ACCOUNT = f"{SEED_USER_PREFIX}seed-1", "system:serviceaccount:garden:gardenlet"
VALUES: Object = {
    "priorityClassName": "gardener-system-critical",
    "garden": {"bootstrapKubeconfigSecret": "my-bootstrap"},
    "temporal": {"address": "temporal.test:7233", "codecKeySecret": "my-codec"},
    "seedConfig": {"metadata": {"name": "seed-1"}, "spec": SEED["spec"]},
    "nodeSelector": {"pool": "system"},
    "config": {"vpn": {"network": "192.168.7.0/24"}, "shootCare": {"syncPeriod": 30}},
}
CONFIG = GardenletConfig.model_validate(
    {
        "gardenClientConnection": {"kubeconfig": "/x"},
        "seedConfig": VALUES["seedConfig"],
        "temporal": {"address": "t:7233", "codecKeyFile": "/k"},
    }
)


def chart(**changed: str) -> bytes:
    """The gardenlet's chart of version 9.9.9. ``changed``: texts of its files by name without suffix."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(_archive()))) as made:
        for each in made:
            content = made.extractfile(each)
            assert content is not None
            files[each.name.partition("/")[2]] = content.read().decode()
    files["Chart.yaml"] = files["Chart.yaml"].replace("appVersion: v0.1.0", "appVersion: v9.9.9")
    files |= {f"templates/{name}.yaml": text for name, text in changed.items()}
    return archive(files, "gardenlet")


class World:
    def __init__(self, operator: KubeClient, admin: KubeClient, clusters: Clusters, registry: Running) -> None:
        self.operator, self.admin, self.clusters, self.registry = operator, admin, clusters, registry

    async def write(self, *, version: str = ":v9.9.9", config: Object | None = None, **deployment: Any) -> None:
        """Write the Gardenlet as an operator."""
        repository = {
            "ref": f"{self.registry.host}/charts/notes{version}",
            "pullSecretRef": {"name": "pull"},
            "caBundleSecretRef": {"name": "authority"},
        }
        spec = {"deployment": {"helm": {"ociRepository": repository}, **deployment}, "config": config or {}}
        await self.operator.apply(
            {
                "apiVersion": resources.GARDENLET.api_version,
                "kind": "Gardenlet",
                "metadata": {"name": "seed-1", "namespace": "garden"},
                "spec": spec,
            },
            manager="operator",
        )

    async def live(self) -> Object:
        return await self.operator.get(resources.GARDENLET, "seed-1", "garden")

    async def deployment(self) -> Object:
        return await self.admin.get(resources.DEPLOYMENT, "gardenlet", "garden")

    async def image(self) -> str:
        found: str = (await self.deployment())["spec"]["template"]["spec"]["containers"][0]["image"]
        return found

    async def becomes(self, status: str, reason: str) -> str:
        """Wait for the condition of the newest generation; returns its message."""

        async def told() -> Object | None:
            found = await self.live()
            condition = find_condition(found, "GardenletReconciled")
            newest = (found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"]
            found_so = newest and (condition.get("status"), condition.get("reason")) == (status, reason)
            return dict(condition) if found_so else None

        condition = await until(told, 60)
        print(f"GardenletReconciled {status} {reason}: {condition['message']}")
        return str(condition["message"])

    async def rolled_out(self) -> None:
        """Play the kubelets and the controller of Deployments."""
        live = await self.deployment()
        count = live["spec"]["replicas"]
        told = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), count)
        status = {"status": {**told, "observedGeneration": live["metadata"]["generation"]}}
        await self.admin.patch(resources.DEPLOYMENT, "gardenlet", "garden", status, subresource="status")

    async def ask(self, operation: str) -> None:
        request = {"metadata": {"annotations": {"gardener.cloud/operation": operation}}}
        await self.operator.patch(resources.GARDENLET, "seed-1", "garden", request)

    async def answered(self) -> bool:
        return "gardener.cloud/operation" not in ((await self.live())["metadata"].get("annotations") or {})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(SelfUpgrade(self.clusters, CONFIG).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None
) -> Iterator[tuple[ApiServer, ApiServer]]:
    garden = ApiServer(tmp_path_factory.mktemp("garden"), {GARDENLET: SEEDS_GROUP})
    seed = ApiServer(tmp_path_factory.mktemp("seed"), {ACCOUNT: ""})
    with garden.running(), seed.running():
        yield garden, seed


@pytest.fixture
async def world(servers: tuple[ApiServer, ApiServer], registry: Running, tmp_path: Path) -> AsyncIterator[World]:
    garden, seed = servers
    async with garden.client(ADMIN) as operator, seed.client(ADMIN) as admin:
        await ready(operator)
        await ready(admin)
        await set_up_garden(operator, None, unrestricted_gardenlets=True)
        bare = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "spec": SEED["spec"]}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden"}}
        await admin.apply(namespace, manager="test")
        secrets = {
            "pull": {".dockerconfigjson": json.dumps({"auths": {registry.host: {"auth": LOGIN}}})},
            "authority": {"bundle.crt": registry.authority},
        }
        for each in (
            {**bare, "metadata": {"name": "seed-1"}},
            *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "garden"},
               "stringData": data} for name, data in secrets.items()),
        ):  # fmt: skip
            await operator.apply(each, manager="test")
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(seed.kubeconfig(ADMIN)))
        with helm.Config(kubeconfig_path=kubeconfig, namespace="garden") as config:
            await asyncio.to_thread(config.install, _CHART, "mine", VALUES)
        clusters = Clusters(garden.client(GARDENLET), seed.client(ACCOUNT), "seed-1")
        registry.publish(chart())
        try:
            yield World(operator, admin, clusters, registry)
        finally:
            await clusters.close()
            await operator.delete(resources.GARDENLET, "seed-1", "garden")
            with helm.Config(kubeconfig_path=kubeconfig, namespace="garden") as config:
                await asyncio.to_thread(config.uninstall, "mine")


async def test_the_chart_of_the_gardenlet_is_deployed_with_the_values_of_its_installation(world: World) -> None:
    before = (await world.deployment())["spec"]["template"]["spec"]
    async with world.running():
        await world.write(config={"shootCare": {"syncPeriod": 45}}, replicaCount=3, podLabels={"team": "blue"})
        message = await world.becomes("Progressing", "RolloutInProgress")
        assert "Deployment garden/gardenlet is not observed yet" in message
        assert await world.image() == "ghcr.io/gardener-on-temporal/gardener:v9.9.9"
        live = await world.deployment()
        pod = live["spec"]["template"]["spec"]
        for kept in ("volumes", "priorityClassName", "nodeSelector", "serviceAccountName"):
            assert pod[kept] == before[kept]
        assert {"my-bootstrap", "my-codec"} <= {
            each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each
        }
        assert (live["spec"]["replicas"], live["spec"]["template"]["metadata"]["labels"]["team"]) == (3, "blue")
        content = (await world.admin.get(resources.CONFIG_MAP, "gardenlet", "garden"))["data"]["config.yaml"]
        config = yaml.safe_load(content)
        assert (config["vpn"]["network"], config["shootCare"]["syncPeriod"]) == ("192.168.7.0/24", 45)
        assert config["seedConfig"]["metadata"] == {"name": "seed-1"}

        await world.rolled_out()
        assert ":v9.9.9 is deployed" in await world.becomes("True", "GardenletDeployed")

    # The next gardenlet finds the work of this one.
    generation = (await world.deployment())["metadata"]["generation"]
    async with world.running():
        await world.ask("reconcile")
        await until(world.answered, 60)
        await world.becomes("True", "GardenletDeployed")
    assert (await world.deployment())["metadata"]["generation"] == generation


async def test_what_a_gardenlet_does_not_name_any_more_is_as_it_was_installed(world: World) -> None:
    async with world.running():
        kept = {"seedCare": {"syncPeriod": 20}}
        await world.write(config={"shootCare": {"syncPeriod": 45}, **kept}, podLabels={"team": "blue"})
        await world.becomes("Progressing", "RolloutInProgress")
        await world.write(config=kept)
        await world.becomes("Progressing", "RolloutInProgress")
    assert "team" not in (await world.deployment())["spec"]["template"]["metadata"]["labels"]
    content = (await world.admin.get(resources.CONFIG_MAP, "gardenlet", "garden"))["data"]["config.yaml"]
    assert yaml.safe_load(content)["shootCare"]["syncPeriod"] == 30


async def test_a_wrong_digest_and_a_chart_that_does_not_render_change_nothing(world: World) -> None:
    before = await world.deployment()
    async with world.running():
        await world.write(version=f"@sha256:{'0' * 64}")
        assert "charts/notes@sha256:000" in await world.becomes("False", "OCIChartCannotBePulled")

        world.registry.publish(chart(broken='{{ fail "this chart is broken" }}'))
        await world.write(version=":v9.9.8")
        assert "this chart is broken" in await world.becomes("False", "ChartCannotBeRendered")

        world.registry.publish(chart(gardenlet="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"))
        await world.write(version=":v9.9.7")
        assert await world.becomes("False", "GardenletInvalid") == "the chart has no Deployment gardenlet"

        assert (await world.deployment())["metadata"]["generation"] == before["metadata"]["generation"]
        assert not await world.admin.find(resources.CONFIG_MAP, "other", "garden")
        world.registry.publish(chart())
        await world.write()
        await world.becomes("Progressing", "RolloutInProgress")


async def test_a_configuration_that_this_version_refuses_is_told(world: World) -> None:
    before = await world.image()
    async with world.running():
        await world.write(config={"shootCare": {"syncPeriode": 1}}, image={"ref": images.GARDENER})
        message = await world.becomes("False", "GardenletInvalid")
    assert message.startswith("spec.config: shootCare.syncPeriode: Extra inputs are not permitted")
    assert await world.image() == before


async def test_a_gardenlet_that_does_not_start_is_told_and_the_present_pods_stay(world: World) -> None:
    """The Deployment takes no pod away before the next one is ready."""
    async with world.running():
        await world.write()
        await world.becomes("Progressing", "RolloutInProgress")
        live = await world.deployment()
        assert live["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        failed = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        told = {"replicas": 3, "updatedReplicas": 1, "conditions": [failed]}
        status = {"status": {**told, "observedGeneration": live["metadata"]["generation"]}}
        await world.admin.patch(resources.DEPLOYMENT, "gardenlet", "garden", status, subresource="status")
        message = await world.becomes("False", "RolloutFailed")
    assert message == "Deployment garden/gardenlet has 1 of 2 new pods; the present pods go on: correct the Gardenlet"


async def test_force_redeploy_pulls_the_same_tag_again_and_replaces_the_pods(world: World) -> None:
    notes = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"
    async with world.running():
        await world.write()
        await world.becomes("Progressing", "RolloutInProgress")
        world.registry.publish(chart(notes=notes))
        await world.ask("reconcile")
        await until(world.answered, 60)
        assert not await world.admin.find(resources.CONFIG_MAP, "notes", "garden")

        await world.ask("force-redeploy")
        await until(world.answered, 60)
        assert await world.admin.find(resources.CONFIG_MAP, "notes", "garden"), "the chart gives it no namespace"
        await world.rolled_out()
        await world.becomes("True", "GardenletDeployed")
        template = (await world.deployment())["spec"]["template"]
        assert template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"]

        await world.ask("renew-kubeconfig")
        await until(world.answered, 60)
        asked = (await world.operator.get(resources.SEED, "seed-1"))["metadata"]["annotations"]
        assert asked["gardener.cloud/operation"] == "renew-kubeconfig"

        await world.operator.delete(resources.GARDENLET, "seed-1", "garden")
        await until(lambda: _gone(world), 60)
    assert await world.image() == "ghcr.io/gardener-on-temporal/gardener:v9.9.9", "nothing happens"


async def _gone(world: World) -> bool:
    return await world.operator.find(resources.GARDENLET, "seed-1", "garden") is None


async def test_a_gardenlet_that_helm_has_not_installed_says_so(world: World) -> None:
    await world.admin.delete(resources.CONFIG_MAP, "gardenlet-values", "garden")
    async with world.running():
        await world.write()
        assert "run helm upgrade once" in await world.becomes("False", "NotInstalledByHelm")


def test_defaults_of_the_installed_chart_are_not_kept() -> None:
    given = {"networkPolicy": {"enabled": True, "egressPorts": [1]}, "replicas": 2, "config": {}}
    defaults = {"networkPolicy": {"enabled": True, "egressPorts": [2]}, "replicas": 2, "config": {}}
    assert changes(given, defaults) == {"networkPolicy": {"egressPorts": [1]}}


@pytest.mark.parametrize(
    ("installed", "wanted", "image"),
    [
        ({"repository": "mine", "tag": "v1"}, None, {"repository": "mine"}),
        ({"repository": "mine", "tag": "v1"}, {"repository": "other"}, {"repository": "other"}),
        ({"ref": "mine:v1", "pullPolicy": "Never"}, {"ref": "b:v2"}, {"ref": "b:v2", "pullPolicy": "Never"}),
    ],
)
def test_the_image_has_the_version_of_the_chart(installed: Object, wanted: Object | None, image: Object) -> None:
    gardenlet = {"spec": {"deployment": {"image": wanted} if wanted else {}}}
    assert values(gardenlet, {"image": installed})["image"] == image


async def test_an_image_of_one_version_needs_a_decision(world: World) -> None:
    with pytest.raises(Exception, match=r"set spec\.deployment\.image"):
        values({"spec": {"deployment": {}}}, {"image": {"ref": "mine:v1"}})

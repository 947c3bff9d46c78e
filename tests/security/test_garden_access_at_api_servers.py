"""An extension that a gardenlet installs gets a kubeconfig for the garden, limited by the real seed authorizer.

The gardenlet installs a chart with ``injectGardenKubeconfig``. The test plays the resource manager, which applies the
manifests, and the kubelet, which projects the volume of the pod. All else is real: the authorizer, the ServiceAccount
with its token, and the client that uses the files of the pod.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.clusters import Clusters
from api import resources
from api.constants import GARDEN_NAMESPACE, SEED_USER_PREFIX, SEEDS_GROUP
from kube.client import KubeClient
from kube.errors import ApiError, Forbidden
from tests.gardens import ADMIN, ApiServer, SeedAuthorizer
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.api.test_installations import registration
from tests.unit.charts import archive
from tests.unit.garden_controllers.test_installations_at_an_api_server import deployments_without_conversion
from tests.unit.kube.waiting import until
from workers.gardenlet.installations import GARDEN_TOKENS, InstallationController
from workers.lib.token_requestor import TokenRequestor

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]
Object = dict[str, Any]
GARDENLET = f"{SEED_USER_PREFIX}seed-1"
PROJECT = SHOOT["metadata"]["namespace"]
EXTENSION = "extension-notes-x"
"""Namespace of the extension in the seed, and name of its ServiceAccount in the garden."""
MOUNT = "/var/run/secrets/gardener.cloud/garden/generic-kubeconfig"
CHART = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: notes}
spec:
  selector: {matchLabels: {app: notes}}
  template:
    metadata: {labels: {app: notes}}
    spec:
      containers: [{name: notes, image: notes}]
"""


@dataclass
class Running:
    garden: KubeClient
    """Client of an operator."""
    seed: KubeClient
    directory: Path
    """Directory of the pod's projected volume."""

    async def project(self) -> None:
        """Write the files of the pod's volume, as the kubelet does at the start and when a Secret changes."""
        deployment = await self.seed.get(resources.DEPLOYMENT, "notes", EXTENSION)
        pod = deployment["spec"]["template"]["spec"]
        [volume] = pod["volumes"]
        for source in volume["projected"]["sources"]:
            secret = await self.seed.get(resources.SECRET, source["secret"]["name"], EXTENSION)
            for item in source["secret"]["items"]:
                content = base64.b64decode(secret["data"][item["key"]]).decode()
                (self.directory / item["path"]).write_text(content.replace(MOUNT, str(self.directory)))

    async def token(self) -> str:
        found = await self.seed.find(resources.SECRET, "garden-access-extension", EXTENSION)
        return str(((found or {}).get("data") or {}).get("token") or "")

    async def apply_manifests(self) -> bool:
        """Play the resource manager."""
        found = await self.seed.find(resources.MANAGED_RESOURCE, "notes-x", GARDEN_NAMESPACE)
        if found is None:
            return False
        for reference in found["spec"]["secretRefs"]:
            secret = await self.seed.get(resources.SECRET, reference["name"], GARDEN_NAMESPACE)
            for content in secret["data"].values():
                for each in _documents(base64.b64decode(content).decode()):
                    await self.seed.apply(each, manager="test")
        return True


def _documents(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None
) -> Iterator[tuple[ApiServer, ApiServer, SeedAuthorizer]]:
    directory = tmp_path_factory.mktemp("garden")
    authorizer = SeedAuthorizer(directory)
    garden = ApiServer(directory, {GARDENLET: SEEDS_GROUP}, authorization=authorizer.flags())
    seed = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with garden.running(), seed.running():
        yield garden, seed, authorizer


@pytest.fixture
async def running(servers: tuple[ApiServer, ApiServer, SeedAuthorizer], tmp_path: Path) -> AsyncIterator[Running]:
    server, of_seed, authorizer = servers
    names = (GARDEN_NAMESPACE, PROJECT, "seed-seed-1")
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in names]
    await server.prepare(*spaces, *deployments_without_conversion())
    await of_seed.prepare_seed(spaces[0])
    async with server.client(ADMIN) as garden, of_seed.client(ADMIN) as seed, authorizer.running(garden):
        for each in objects():
            await until(lambda each=each: _applied(garden, each), 60)  # type: ignore[misc]
        status = {"status": {"seedName": "seed-1"}}
        await garden.patch(resources.SHOOT, "mine", PROJECT, status, subresource="status")
        yield Running(garden, seed, tmp_path)


@asynccontextmanager
async def gardenlet(servers: tuple[ApiServer, ApiServer, SeedAuthorizer]) -> AsyncIterator[None]:
    """The parts of the gardenlet that give extensions their access, with the gardenlet's rights in the garden."""
    kubeconfig = servers[0].kubeconfig(GARDENLET)
    authority = base64.b64encode(servers[0].bundle.encode()).decode()
    kubeconfig["clusters"][0]["cluster"] = {"server": servers[0].url, "certificate-authority-data": authority}
    clusters = Clusters(KubeClient.from_kubeconfig(kubeconfig), servers[1].client(ADMIN), "seed-1")
    tokens = TokenRequestor(
        source=clusters.seed,
        source_caches=clusters.seed_caches,
        target=clusters.garden,
        namespaces=[None],
        secret_class=GARDEN_NAMESPACE,
        labels=GARDEN_TOKENS,
    )
    tasks = [asyncio.create_task(each) for each in (InstallationController(clusters).run(), tokens.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await clusters.close()


def objects() -> Iterator[Object]:
    yield {
        "apiVersion": resources.CONTROLLER_DEPLOYMENT.api_version,
        "kind": "ControllerDeployment",
        "metadata": {"name": "notes"},
        "helm": {"rawChart": base64.b64encode(archive({"templates/a.yaml": CHART})).decode()},
        "injectGardenKubeconfig": True,
    }
    kind = {"apiVersion": resources.CONTROLLER_REGISTRATION.api_version, "kind": "ControllerRegistration"}
    yield {**registration("Extension", "notes", "notes"), **kind, "metadata": {"name": "notes"}}
    for name in ("seed-1", "seed-2"):
        seed = changed(SEED, "metadata", {"name": name})
        seed.pop("status", None)
        yield seed
    for name, home in (("mine", "seed-1"), ("theirs", "seed-2")):
        yield changed(changed(SHOOT, "metadata", {"name": name, "namespace": PROJECT}), "spec.seedName", home)
    spec = {"registrationRef": {"name": "notes"}, "deploymentRef": {"name": "notes"}, "seedRef": {"name": "seed-1"}}
    kind = {"apiVersion": resources.CONTROLLER_INSTALLATION.api_version, "kind": "ControllerInstallation"}
    yield {**kind, "metadata": {"name": "notes-x"}, "spec": spec}
    for place in (GARDEN_NAMESPACE, PROJECT):
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud", "namespace": place}}


async def _applied(client: KubeClient, obj: Object) -> bool:
    """Whether the API server serves the kind already."""
    try:
        await client.apply_blindly(obj, manager="test")
    except ApiError:
        await asyncio.sleep(0.1)  # the clock of a poll
        return False
    return True


@pytest.mark.attack(actor="T4", asset="A1", finding=14)
async def test_a_pod_of_an_extension_reads_with_its_kubeconfig_what_its_seed_has_and_nothing_else(
    running: Running, servers: tuple[ApiServer, ApiServer, SeedAuthorizer]
) -> None:
    async with gardenlet(servers):
        await until(running.apply_manifests, 60)
        first = await until(running.token, 60)
        await running.project()
        deployment = await running.seed.get(resources.DEPLOYMENT, "notes", EXTENSION)
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        assert {each["name"]: each["value"] for each in container["env"]} == {
            "GARDEN_KUBECONFIG": f"{MOUNT}/kubeconfig",
            "SEED_NAME": "seed-1",
        }
        assert container["volumeMounts"][0]["mountPath"] == MOUNT

        async with KubeClient.from_kubeconfig(running.directory / "kubeconfig") as extension:

            async def reads() -> bool:
                try:
                    await extension.get(resources.SHOOT, "mine", PROJECT)
                except Forbidden:  # the authorizer's caches learn of the installation a moment later
                    return False
                return True

            await until(reads, 60)
            assert (await extension.get(resources.SEED, "seed-1"))["metadata"]["name"] == "seed-1"
            assert await extension.get(resources.CONTROLLER_INSTALLATION, "notes-x")
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "me"}}
            mine = {"name": f"{EXTENSION}-leader", "namespace": "seed-seed-1"}
            await extension.create({**lease, "metadata": mine})

            await _refused(extension.get(resources.SHOOT, "theirs", PROJECT))
            await _refused(extension.list(resources.SHOOT, PROJECT))
            for place in (GARDEN_NAMESPACE, PROJECT):
                await _refused(extension.get(resources.SECRET, "cloud", place))
            await _refused(extension.list(resources.SECRET, "seed-seed-1"))
            await _refused(extension.patch(resources.SHOOT, "mine", PROJECT, {"metadata": {"labels": {"a": "b"}}}))
            await _refused(extension.patch(resources.SEED, "seed-1", None, {"metadata": {"labels": {"a": "b"}}}))
            other = {"name": "extension-other", "namespace": "seed-seed-1"}
            await _refused(extension.patch(resources.LEASE, other["name"], other["namespace"], {"metadata": {}}))

            due = {"serviceaccount.resources.gardener.cloud/token-renew-timestamp": "2026-01-01T00:00:00Z"}
            access = "garden-access-extension"
            await running.seed.patch(resources.SECRET, access, EXTENSION, {"metadata": {"annotations": due}})

            async def renewed() -> bool:
                return await running.token() not in ("", first)

            await until(renewed, 60)
            await running.project()
            assert (running.directory / "token").read_text() == base64.b64decode(await running.token()).decode()
            async with KubeClient.from_kubeconfig(running.directory / "kubeconfig") as again:
                assert await again.get(resources.SHOOT, "mine", PROJECT), "the renewed token"

            # The operator removes the extension; the token itself is valid for hours.
            await running.garden.delete(resources.CONTROLLER_INSTALLATION, "notes-x")
            await until(lambda: _finalized(running), 60)

            async def ended() -> bool:
                try:
                    await extension.get(resources.SHOOT, "mine", PROJECT)
                except ApiError:
                    return True
                return False

            await until(ended, 60)


async def _finalized(running: Running) -> bool:
    """Play the namespace controller; whether the gardenlet has removed the extension then."""
    found = await running.seed.find(resources.NAMESPACE, EXTENSION)
    if found is not None and "deletionTimestamp" in found["metadata"]:
        await running.seed.replace({**found, "spec": {"finalizers": []}}, subresource="finalize")
    return await running.garden.find(resources.CONTROLLER_INSTALLATION, "notes-x") is None


async def _refused(request: Any) -> None:
    with pytest.raises(Forbidden):
        await request

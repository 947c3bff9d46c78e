"""A gardenlet installs the charts of its ControllerInstallations, and tells in conditions what becomes of them."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from activities.clusters import Clusters
from activities.managed_resources import secrets_checksum
from api import resources
from api.decisions.conditions import find_condition
from tests.unit.api.shoots import SEED
from tests.unit.charts import archive
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.garden_server import GardenServer
from tests.unit.kube.waiting import until
from workers.gardenlet.installations import InstallationController

pytestmark = pytest.mark.timeout(60)

CORE = "/apis/core.gardener.cloud"
INSTALLATIONS = f"{CORE}/v1beta1/controllerinstallations"
DEPLOYMENTS = f"{CORE}/v1/controllerdeployments"
CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data: {seed: {{ .Values.gardener.seed.name }}, text: {{ .Values.text | quote }}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: notes, namespace: {{ .Release.Namespace }}}
spec:
  template:
    spec:
      containers: [{name: notes, image: notes}]
"""


def deployment(files: dict[str, str], name: str = "notes", **content: Any) -> dict[str, Any]:
    helm = {"rawChart": base64.b64encode(archive(files)).decode(), "values": content.pop("values", {})}
    return {"metadata": {"name": name}, "helm": helm, **content}


def installation(name: str = "notes-x", chart: str = "notes") -> dict[str, Any]:
    references = {"registrationRef": {"name": "notes"}, "deploymentRef": {"name": chart}}
    return {
        "metadata": {"name": name, "uid": f"uid of {name}", "generation": 1},
        "spec": {**references, "seedRef": {"name": "seed-1"}},
    }


class World:
    def __init__(self, garden: ApiServer, seed: ApiServer) -> None:
        self.garden, self.seed = garden, seed
        self.clusters = Clusters(garden.client(), seed.client(), "seed-1")
        garden.put("/apis/core.gardener.cloud/v1beta1/seeds", {**SEED, "metadata": {"name": "seed-1", "uid": "s"}})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(InstallationController(self.clusters).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def condition(self, type_: str, status: str, name: str = "notes-x") -> str:
        """Its reason and message, once it has the status."""
        cache = self.clusters.garden_caches.of(resources.CONTROLLER_INSTALLATION, fields="spec.seedRef.name=seed-1")
        found = await cache.wait_for(
            name, None, lambda obj: obj if find_condition(obj, type_).get("status") == status else None, 30
        )
        condition = find_condition(found, type_)
        return f"{condition['reason']}: {condition['message']}"

    async def manifests(self, name: str = "notes-x") -> dict[str, Any]:
        """The objects that the resource manager gets, by kind."""
        secret = await self.clusters.seed.get(resources.SECRET, f"managedresource-{name}", "garden")
        objects = [json.loads(base64.b64decode(each)) for each in secret["data"].values()]
        return {each["kind"]: each for each in objects}

    async def apply(self, name: str = "notes-x", **healthy: Any) -> None:
        """Report as the resource manager does."""
        seed = self.clusters.seed
        secret = await seed.get(resources.SECRET, f"managedresource-{name}", "garden")
        managed = await seed.get(resources.MANAGED_RESOURCE, name, "garden")
        good = {"ResourcesApplied": "True", "ResourcesHealthy": "True", "ResourcesProgressing": "False", **healthy}
        status = {
            "observedGeneration": managed["metadata"].get("generation"),
            "secretsDataChecksum": secrets_checksum([secret]),
            "conditions": [
                {"type": type_, "status": status, "reason": "R", "message": f"{type_} is {status}"}
                for type_, status in good.items()
            ],
        }
        await seed.patch(resources.MANAGED_RESOURCE, name, "garden", {"status": status}, subresource="status")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    garden, seed = GardenServer(), ApiServer()
    async with garden.running(), seed.running():
        world = World(garden, seed)
        try:
            yield world
        finally:
            await world.clusters.close()


async def test_a_chart_becomes_a_managed_resource_with_conditions(world: World) -> None:
    """From the chart to conditions that follow the resource manager's."""
    world.garden.put(DEPLOYMENTS, deployment({"templates/a.yaml": CONFIG_MAP}, values={"text": "hi"}))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        assert (await world.condition("Installed", "False")).startswith("InstallationPending: ")

        managed = await world.clusters.seed.get(resources.MANAGED_RESOURCE, "notes-x", "garden")
        assert managed["spec"]["class"] == "seed"
        assert managed["metadata"]["labels"]["controllerinstallation-name"] == "notes-x"
        made = (await world.manifests())["ConfigMap"]
        assert made["metadata"]["namespace"] == "extension-notes-x", "as Helm places objects without a namespace"
        assert made["data"] == {"seed": "seed-1", "text": "hi"}
        namespace = await world.clusters.seed.get(resources.NAMESPACE, "extension-notes-x")
        assert namespace["metadata"]["labels"]["gardener.cloud/role"] == "extension"
        assert namespace["metadata"]["labels"]["controllerregistration.core.gardener.cloud/name"] == "notes"

        await world.apply()
        assert await world.condition("Installed", "True")
        assert await world.condition("Healthy", "True")
        assert await world.condition("Progressing", "False")
        assert (await world.condition("Valid", "True")).startswith("RegistrationValid: ")

        await world.apply(ResourcesHealthy="False")
        assert await world.condition("Healthy", "False") == "ControllerNotHealthy: ResourcesHealthy is False"


async def test_a_chart_that_does_not_render_is_told_in_a_condition_and_others_go_on(world: World) -> None:
    broken = {"templates/a.yaml": '{{ required "set values.region" .Values.region }}'}
    world.garden.put(DEPLOYMENTS, deployment(broken, "broken"))
    world.garden.put(INSTALLATIONS, installation("a-broken", "broken"))
    world.garden.put(INSTALLATIONS, installation("b-unread", "unread"))
    world.garden.put(
        DEPLOYMENTS, {"metadata": {"name": "unread"}, "helm": {"rawChart": base64.b64encode(b"no chart").decode()}}
    )
    world.garden.put(INSTALLATIONS, installation("c-lost", "lost"))
    world.garden.put(DEPLOYMENTS, deployment({"templates/a.yaml": CONFIG_MAP}))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        said = await world.condition("Valid", "False", "a-broken")
        assert said.startswith("ChartCannotBeRendered: ")
        assert "set values.region" in said
        assert (await world.condition("Valid", "False", "b-unread")).startswith("ChartInformationInvalid: ")
        lost = await world.condition("Valid", "False", "c-lost")
        assert lost == "ChartInformationInvalid: ControllerDeployment lost does not exist"
        assert await world.condition("Valid", "True")

    assert not await world.clusters.seed.find(resources.MANAGED_RESOURCE, "a-broken", "garden")


async def test_a_new_version_of_the_chart_rolls_and_a_broken_one_leaves_the_old_one_in_place(world: World) -> None:
    def write(version: int, **content: Any) -> None:
        world.garden.put(DEPLOYMENTS, deployment(**content))
        changed = installation()
        changed["spec"]["deploymentRef"]["resourceVersion"] = str(version)
        world.garden.change(INSTALLATIONS, "notes-x", None, changed)

    world.garden.put(INSTALLATIONS, installation())
    world.garden.put(DEPLOYMENTS, deployment({"templates/a.yaml": CONFIG_MAP}, values={"text": "one"}))
    async with world.running():
        assert await world.condition("Valid", "True")
        await world.apply()
        assert await world.condition("Installed", "True")

        write(2, files={"templates/a.yaml": CONFIG_MAP}, values={"text": "two"})
        assert await world.condition("Progressing", "True"), "the resource manager has not applied it"
        assert (await world.manifests())["ConfigMap"]["data"]["text"] == "two"

        write(3, files={"templates/a.yaml": "{{ fail `no` }}"})
        assert "no" in await world.condition("Valid", "False")
        assert (await world.manifests())["ConfigMap"]["data"]["text"] == "two"


async def test_what_values_take_from_a_secret_is_in_no_condition(world: World) -> None:
    """Helm's engine quotes values in its messages."""
    files = {"templates/a.yaml": '{{ fail (printf "cannot use %s" .Values.key) }}'}
    named = [{"name": "store", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "store"}}]
    values = {"key": "{{ .resources.store.data.key | b64dec }}"}
    world.garden.put("/api/v1/secrets", secret("store", key="SENTINEL"))
    world.garden.put(DEPLOYMENTS, deployment(files, values=values, resources=named))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        said = await world.condition("Valid", "False")
        assert "cannot use …" in said

        shown = {"templates/a.yaml": CONFIG_MAP.replace(".Values.text", ".Values.key")}
        world.garden.put(DEPLOYMENTS, deployment(shown, values=values, resources=named))
        assert await world.condition("Valid", "True")
        assert (await world.manifests())["ConfigMap"]["data"]["text"] == "SENTINEL"


def secret(name: str, **data: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"metadata": {"name": name, "namespace": "garden"}, "data": encoded}


async def test_pods_get_access_to_the_garden_with_an_identity_of_their_own(world: World) -> None:
    world.garden.put(DEPLOYMENTS, deployment({"templates/a.yaml": DEPLOYMENT}, injectGardenKubeconfig=True))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        assert await world.condition("Valid", "True")

    made = await world.manifests()
    pod = made["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["SEED_NAME"] == "seed-1"
    [mount] = container["volumeMounts"]
    assert variables["GARDEN_KUBECONFIG"] == f"{mount['mountPath']}/kubeconfig"
    sources = pod["volumes"][0]["projected"]["sources"]
    assert [each["secret"]["name"] for each in sources] == [
        made["Secret"]["metadata"]["name"],
        "garden-access-extension",
    ]
    config = json.loads(base64.b64decode(made["Secret"]["data"]["kubeconfig"]))
    assert config["clusters"][0]["cluster"]["server"] == world.garden.url
    assert config["users"][0]["user"] == {"tokenFile": f"{mount['mountPath']}/token"}
    access = await world.clusters.seed.get(resources.SECRET, "garden-access-extension", "extension-notes-x")
    account = {key.rpartition("/")[2]: value for key, value in access["metadata"]["annotations"].items()}
    assert account == {"name": "extension-notes-x", "namespace": "seed-seed-1"}


ACCOUNT = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: notes, namespace: {{ .Release.Namespace }}}
automountServiceAccountToken: false
"""


def with_account(**pod: Any) -> str:
    spec = {"serviceAccountName": "notes", "containers": [{"name": "notes", "image": "notes"}], **pod}
    metadata = {"name": "notes", "namespace": "{{ .Release.Namespace }}"}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": spec}}}
    )


async def test_pods_get_a_token_of_an_account_that_mounts_none(world: World) -> None:
    """Gardener's charts rely on its resource manager for that."""
    files = {"templates/a.yaml": ACCOUNT, "templates/b.yaml": with_account()}
    world.garden.put(DEPLOYMENTS, deployment(files))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        await world.condition("Valid", "True")
        pod = (await world.manifests())["Deployment"]["spec"]["template"]["spec"]

    [volume] = pod["volumes"]
    sources = {kind: source for each in volume["projected"]["sources"] for kind, source in each.items()}
    assert volume["name"] == "kube-api-access-gardener"
    assert sources["serviceAccountToken"] == {"path": "token", "expirationSeconds": 43200}
    assert sources["configMap"]["name"] == "kube-root-ca.crt"
    [mount] = pod["containers"][0]["volumeMounts"]
    assert mount == {
        "name": "kube-api-access-gardener",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    }


@pytest.mark.parametrize(
    ("account", "pod"),
    [
        (ACCOUNT.replace("false", "true"), {}),
        (ACCOUNT, {"automountServiceAccountToken": False}),
        (ACCOUNT, {"serviceAccountName": "other"}),
        (ACCOUNT, {"volumes": [{"name": "kube-api-access-own", "emptyDir": {}}]}),
    ],
    ids=["the API server mounts one", "the pod wants none", "another account", "the pod has one"],
)
async def test_other_pods_get_no_token(world: World, account: str, pod: dict[str, Any]) -> None:
    files = {"templates/a.yaml": account, "templates/b.yaml": with_account(**pod)}
    world.garden.put(DEPLOYMENTS, deployment(files))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        await world.condition("Valid", "True")
        made = (await world.manifests())["Deployment"]["spec"]["template"]["spec"]

    assert "volumeMounts" not in made["containers"][0]


async def test_a_deleted_installation_leaves_nothing(world: World) -> None:
    """Its objects go first, by the resource manager, which needs the namespace."""
    world.garden.put(DEPLOYMENTS, deployment({"templates/a.yaml": CONFIG_MAP}))
    world.garden.put(INSTALLATIONS, installation())
    garden, seed = world.clusters.garden, world.clusters.seed
    async with world.running():
        assert await world.condition("Valid", "True")
        finalizer = {"metadata": {"finalizers": ["resources.gardener.cloud/gardener-resource-manager-seed"]}}
        await seed.patch(resources.MANAGED_RESOURCE, "notes-x", "garden", finalizer)

        # As the controller-manager deletes it, with an administrator's rights.
        deleted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        world.garden.change(INSTALLATIONS, "notes-x", None, deleted)
        said = await world.condition("Installed", "False")
        await until(lambda: _says(world, "DeletionPending"))
        assert said
        assert await seed.find(resources.NAMESPACE, "extension-notes-x")

        await seed.patch(resources.MANAGED_RESOURCE, "notes-x", "garden", {"metadata": {"finalizers": None}})
        await until(lambda: _gone(world))

    assert not await seed.find(resources.NAMESPACE, "extension-notes-x")
    assert not await seed.find(resources.SECRET, "managedresource-notes-x", "garden")
    assert not await garden.find(resources.CONTROLLER_INSTALLATION, "notes-x")


def _says(world: World, reason: str) -> bool:
    found = world.garden.objects.get((INSTALLATIONS, None, "notes-x"))
    return find_condition(found, "Installed").get("reason") == reason


def _gone(world: World) -> bool:
    return (INSTALLATIONS, None, "notes-x") not in world.garden.objects


async def test_definitions_stay_and_hooks_are_named(world: World) -> None:
    """Helm never deletes the kinds of a chart. Its hooks have no place in a ManagedResource."""
    definition = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.example.org}
spec: {group: example.org, scope: Namespaced, names: {kind: Note, plural: notes}}
"""
    note = "apiVersion: example.org/v1\nkind: Note\nmetadata: {name: first}\n"
    job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: %s, annotations: {helm.sh/hook: %s}}\n"
    files = {
        "crds/note.yaml": definition,
        "templates/note.yaml": note,
        "templates/job.yaml": job % ("migrate", "pre-install"),
        "templates/tests/job.yaml": job % ("probe", "test"),
        "templates/NOTES.txt": "Thank you",
        "templates/empty.yaml": "{{ if false }}a{{ end }}\n---\n# only a comment\n",
    }
    world.garden.put(DEPLOYMENTS, deployment(files))
    world.garden.put(INSTALLATIONS, installation())
    async with world.running():
        said = await world.condition("Valid", "True")

    made = await world.manifests()
    assert said.endswith("Hooks of Helm are not run: Job migrate.")
    assert set(made) == {"CustomResourceDefinition", "Note"}
    assert made["Note"]["metadata"]["namespace"] == "extension-notes-x"
    assert made["CustomResourceDefinition"]["metadata"]["annotations"] == {
        "resources.gardener.cloud/keep-object": "true"
    }

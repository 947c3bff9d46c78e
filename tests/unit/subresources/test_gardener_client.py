"""Gardener's own Go client works with our garden, and its types with our objects.

The client asks at the front door: a real Envoy, a real API server with admission, and the subresource server.
"""

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from api.crds import crd, kinds
from api.meta import KubeObject
from tests import api_servers, gardener_client
from tests.api_servers import free_port
from tests.front_door import API_SERVER_NAME, Door
from tests.garden_api_server import ALICE, NAMESPACE, OTHER_NAMESPACE, Garden, api_server, garden_of
from tests.gardener_client import Said
from tests.gardens import ADMIN, ApiServer, admission, asks_admission
from tests.unit.admission.webhooks import BINDING, SECRET
from tests.unit.api.shoots import PROFILE, PROJECT, REGISTRATION, SEED, SHOOT
from workers.front_door import FrontDoorConfig
from workers.setup import set_up_garden

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(300, func_only=True),  # the first test compiles the client
]

Object = dict[str, Any]

OTHER_MODULES = {"druid.gardener.cloud", "machine.sapcloud.io"}
"""Groups whose types are in other Go modules than Gardener's."""
PROPOSED = {"Plant", "SeedAutoscaler", "SelfHostedShootExposure"}
"""Kinds that only Gardener's proposals describe, or that Gardener has added since the version of its client."""
ADDED: dict[str, set[str]] = {
    "CloudProfile": {
        "spec.controlPlane",
        "spec.kubernetes.versions[].lifecycle",
        "spec.machineImages[].versions[].lifecycle",
        "spec.machineTypes[].machineControllerManager",
        "status",
    },
    "Seed": {
        "spec.dns.defaults",
        "spec.dns.provider.credentialsRef",
        "spec.settings.loadBalancerServices.class",
        "spec.settings.loadBalancerServices.zonalIngress",
        "spec.settings.persistentVolumeClaimAutoscaler",
        "spec.settings.zoneSelection",
    },
    "Project": {"status.conditions"},
    "Shoot": {
        "spec.controlPlane.zones",
        "spec.dns.providers[].credentialsRef",
        "spec.kubernetes.clusterAutoscaler.emitPerNodeGroupMetrics",
        "spec.kubernetes.clusterAutoscaler.initialNodeGroupBackoffDuration",
        "spec.kubernetes.clusterAutoscaler.maxBinpackingTime",
        "spec.kubernetes.clusterAutoscaler.maxNodeGroupBackoffDuration",
        "spec.kubernetes.clusterAutoscaler.nodeGroupBackoffResetTimeout",
        "spec.kubernetes.kubeAPIServer.encryptionConfig.provider",
        "spec.kubernetes.kubeAPIServer.tlsMinVersion",
        "spec.kubernetes.kubeControllerManager.nodeCIDRMaskSizeIPv6",
        "spec.kubernetes.kubelet.imagePullCredentialsVerificationPolicy",
        "spec.kubernetes.kubelet.preloadedImagesVerificationAllowlist",
        "spec.kubernetes.kubelet.singleProcessOOMKill",
        "spec.kubernetes.verticalPodAutoscaler.recommenderUpdateWorkerCount",
        "spec.maintenance.autoRotation",
        "spec.provider.workers[].controlPlane.exposure",
        "spec.provider.workers[].machineControllerManager.autoPreserveFailedMachineMax",
        "spec.provider.workers[].machineControllerManager.machinePreserveTimeout",
        "status.advertisedAddresses[].application",
        "status.credentials.encryptionAtRest",
        "status.liveMigration",
        "status.manualWorkerPoolRollout",
    },
    "BackupBucket": {"spec.shootRef"},
    "BackupEntry": {"spec.shootRef"},
    "ControllerRegistration": {"spec.resources[].continuousEndpointUpdate"},
    "ControllerDeployment": {"helm.ociRepository.caBundleSecretRef", "resources"},
    "ControllerInstallation": {"spec.resourceRefs", "spec.shootRef"},
    "ManagedSeed": {
        "spec.gardenlet.deployment.enableHealthProbes",
        "spec.gardenlet.deployment.image.ref",
        "spec.gardenlet.deployment.tolerations",
    },
    "Gardenlet": {"spec.deployment.helm.ociRepository.caBundleSecretRef"},
    # A custom resource with subresource scale keeps its selector as text in a field of its own.
    "ManagedSeedSet": {"status.selector"},
    "OperatingSystemConfig": {"spec.files[].hostName", "status.extensionFiles[].hostName"},
    "Worker": {"status.machineDeployments[].autoPreserveFailedMachineMax"},
}
"""Fields that Gardener has added since the version of its client; docs/spec names each."""
GONE: dict[str, set[str]] = {
    "Seed": {"spec.dns.provider.secretRef"},
    "Shoot": {
        "spec.kubernetes.kubeAPIServer.oidcConfig",
        "spec.kubernetes.kubelet.systemReserved",
        "status.encryptedResources",
    },
    # Parts of Kubernetes' own types that mean nothing in these places.
    "Bastion": {"status.ingress.ipMode", "status.ingress.ports"},
    "CredentialsBinding": {f"credentialsRef.{each}" for each in ("fieldPath", "resourceVersion", "uid")},
    "ManagedSeedSet": {"spec.template.spec.shoot"},
    "Worker": {"spec.pools[].userDataSecretRef.optional"},
}
"""Fields that Gardener has removed since, and fields that are refused or mean nothing."""
EMBEDDED = [
    ("NamespacedCloudProfile", "status.cloudProfileSpec.", "CloudProfile", "spec."),
    ("NamespacedCloudProfile", "spec.", "CloudProfile", "spec."),
    ("ManagedSeedSet", "spec.shootTemplate.spec.", "Shoot", "spec."),
    ("ManagedSeedSet", "spec.template.spec.gardenlet.", "ManagedSeed", "spec.gardenlet."),
    ("Gardenlet", "spec.deployment.", "ManagedSeed", "spec.gardenlet.deployment."),
    ("Shoot", "spec.provider.workers[].kubernetes.kubelet.", "Shoot", "spec.kubernetes.kubelet."),
]
"""Places in which a kind has a part of another one."""


@pytest.fixture(scope="module")
def program() -> Path:
    return gardener_client.built()


@pytest.fixture(scope="module")
def fields(program: Path) -> dict[str, set[str]]:
    """Paths of the fields of Gardener's types, by group, version and kind."""
    found = json.loads(subprocess.run([program, "fields"], capture_output=True, check=True, timeout=60).stdout)
    return {kind: set(paths) for kind, paths in found.items()}


def named(kind: str, path: str, table: dict[str, set[str]]) -> bool:
    """Whether a table has the field, also as a field of the kind that this kind contains at that place."""
    places = [(kind, path)]
    for place in places:  # grows while it is read
        if any(place[1] == each or place[1].startswith((f"{each}.", f"{each}[]")) for each in table.get(place[0], ())):
            return True
        places += [
            (other, there + place[1].removeprefix(here))
            for outer, here, other, there in EMBEDDED
            if outer == place[0] and place[1].startswith(here)
        ]
    return False


def paths_of(model: type[KubeObject]) -> set[str]:
    """Paths of the fields of a kind of ours; ``.**`` after one that takes any object."""
    versions = crd(model)["spec"]["versions"]
    found: set[str] = set()
    _walk(versions[0]["schema"]["openAPIV3Schema"], "", found)
    return found


def _walk(node: Object, path: str, found: set[str]) -> None:
    inner = {"properties", "items", "additionalProperties"} & node.keys()
    if node.get("x-kubernetes-preserve-unknown-fields") or (node.get("type") == "object" and not inner):
        found.add(f"{path}.**")
    for name, each in node.get("properties", {}).items():
        below = f"{path}.{name}".removeprefix(".")
        found.add(below)
        _walk(each, below, found)
    if "items" in node:
        _walk(node["items"], f"{path}[]", found)
    if isinstance(node.get("additionalProperties"), dict):
        _walk(node["additionalProperties"], f"{path}.*", found)


def lacking(paths: set[str], among: set[str]) -> set[str]:
    """Fields that are not among others, of which each stands for itself, and ``.**`` for all below a path."""

    def has(path: str) -> bool:
        parents = [path[: end.start()] for end in re.finditer(r"\.", path)]
        return path in among or any(f"{each}.**" in among for each in parents)

    return {each for each in paths if not each.endswith(".**") and not has(each)}


COMPARED = [
    model
    for side in ("garden", "seed")
    for model in kinds(side)
    if model.definition.group not in OTHER_MODULES and model.__name__ not in PROPOSED
]


@pytest.mark.parametrize("model", COMPARED, ids=lambda model: f"{model.definition.group} {model.__name__}")
def test_a_kind_has_the_fields_of_gardeners_type(model: type[KubeObject], fields: dict[str, set[str]]) -> None:
    """A field that Gardener's type lacks would be an invention; one that we lack would be dropped in silence."""
    kind, ours = model.__name__, paths_of(model)
    theirs = fields[f"{model.definition.group}/{model.definition.version} {kind}"]

    invented = {each for each in lacking(ours, theirs) if not named(kind, each, ADDED)}
    dropped = {each for each in lacking(theirs, ours) if not named(kind, each, GONE)}

    assert not invented
    assert {each for each in dropped if not re.match(r"spec\.\w*[tT]emplate\.metadata\.", each)} == set()


@pytest.mark.parametrize("table", [ADDED, GONE], ids=["added", "gone"])
def test_each_row_of_a_table_is_needed(table: dict[str, set[str]], fields: dict[str, set[str]]) -> None:
    differing: dict[str, set[str]] = {}
    for model in COMPARED:
        ours, place = paths_of(model), f"{model.definition.group}/{model.definition.version}"
        theirs = fields[f"{place} {model.__name__}"]
        differing.setdefault(model.__name__, set()).update(
            lacking(ours, theirs) if table is ADDED else lacking(theirs, ours)
        )
    assert {kind: paths - differing[kind] for kind, paths in table.items() if paths - differing[kind]} == {}


# Requests at the front door


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


class AtTheDoor:
    """A garden with admission behind its front door, and Gardener's client of each user."""

    def __init__(self, garden: Garden, door: Door, program: Path) -> None:
        self.garden = garden
        self.door = door
        self.program = program

    def kubeconfig(self, user: str) -> Path:
        """A kubeconfig with the token of a user, whose address is the front door."""
        config = api_servers.kubeconfig(self.door.port, user)
        for each in config["clusters"]:
            each["cluster"] = {
                "server": f"https://127.0.0.1:{self.door.port}",
                "certificate-authority": str(self.door.ca.files.certificate),
            }
        file = self.door.directory / f"{user}.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def client(self, user: str) -> Any:
        return gardener_client.running(self.program, self.kubeconfig(user))


class DoorToApiServer(Door):
    """A front door that trusts the certificate which a real API server has made for itself."""

    authority = Path()

    def config(self, **changes: Any) -> FrontDoorConfig:
        api_server = {
            "endpoints": [f"127.0.0.1:{self.api_server_port}"],
            "caFile": str(self.authority),
            "serverName": API_SERVER_NAME,
        }
        return super().config(**{"apiServer": api_server, **changes})


@pytest.fixture
async def garden(server: ApiServer, program: Path, tmp_path: Path) -> AsyncIterator[AtTheDoor]:
    async with server.client() as admin, garden_of(server, tmp_path) as made, admission(admin, tmp_path) as webhooks:
        await set_up_garden(admin, webhooks)
        await asks_admission(admin)
        port = int(made.url.rpartition(":")[2])
        door = DoorToApiServer(tmp_path, free_port(), free_port(), server.port, port, made.servers, made.front_proxy)
        door.authority = server.directory / "certs/apiserver.crt"
        with door.running():
            await door.ready()
            yield AtTheDoor(made, door, program)
        for each in ("mutating", "validating"):  # the next test's objects are prepared without admission
            await admin.request("DELETE", f"/apis/admissionregistration.k8s.io/v1/{each}webhookconfigurations")


def inventions(said: Said, kind: str) -> list[str]:
    """Fields of an answer that the strict decoder does not know, without those that Gardener has added since."""
    fields = [each for error in said.unknown for each in re.findall(r'unknown field "([^"]+)"', error)]
    assert bool(fields) is bool(said.unknown), said.unknown
    bare = [re.sub(r"\[\d+\]", "[]", each).removeprefix("items[].") for each in fields]
    return [each for each in bare if not named(kind, each, ADDED)]


KIND_OF_PROFILE = {"apiVersion": PROFILE["apiVersion"], "kind": "CloudProfile"}
NAMESPACE_OF_GARDEN = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden"}}
DOMAIN_SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "dns", "namespace": "garden"}}
OBJECTS: list[Object] = [
    PROFILE,
    {**PROJECT, "metadata": {"name": "local"}},
    {key: value for key, value in SEED.items() if key != "status"},
    {**BINDING, "metadata": {"name": "local", "namespace": NAMESPACE}},
    {**SHOOT, "metadata": {"name": "typed", "namespace": NAMESPACE}},
]


async def test_the_typed_client_creates_reads_and_watches_each_kind(garden: AtTheDoor) -> None:
    """Gardener's types send each field that has no "omitempty" also if it is empty, which our schemas must take."""
    for needed in (REGISTRATION, SECRET, NAMESPACE_OF_GARDEN, DOMAIN_SECRET):
        await garden.garden.admin.apply(needed, manager="test")
    async with garden.client(ADMIN) as client, garden.client(ADMIN) as other:
        for each in OBJECTS:
            kind = each["kind"]
            place = {key: each["metadata"].get(key, "") for key in ("namespace", "name")}
            watched = asyncio.create_task(other.ask("watch", kind, **place))
            created = await client.ask("create", kind, **place, object=since_130(each))
            assert not created.failure, f"{kind}: {created.failure}"
            assert not created.error, f"{kind}: {created.error}"
            got, listed = await client.ask("get", kind, **place), await client.ask("list", kind, **place)
            event = await watched
            assert got.object["metadata"]["uid"] == created.object["metadata"]["uid"]
            assert place["name"] in [item["metadata"]["name"] for item in listed.object["items"]]
            assert event.object["type"] == "ADDED"
            assert event.object["object"]["metadata"]["uid"] == created.object["metadata"]["uid"]
            for said in (created, got, listed, event):
                assert not inventions(said, kind), said.unknown


def since_130(content: Object) -> Object:
    """The object without the fields that the client's version of Gardener lacks."""
    if content["kind"] != "Seed":
        return content
    spec = content["spec"]
    return {**content, "spec": {**spec, "dns": {"internal": spec["dns"]["internal"]}}}


async def test_a_typed_update_keeps_what_it_has_read(garden: AtTheDoor) -> None:
    await garden.garden.admin.apply(PROFILE, manager="test")
    async with garden.client(ADMIN) as client:
        read = await client.done("get", "CloudProfile", name="local")
        read["spec"]["regions"].append({"name": "south"})
        changed = await client.done("update", "CloudProfile", object=read | KIND_OF_PROFILE)

    assert changed["metadata"]["generation"] == read["metadata"]["generation"] + 1
    assert changed["spec"] == read["spec"]


async def test_kubeconfigs_by_the_client_of_gardenctl(garden: AtTheDoor) -> None:
    """Its mapper finds the kind by discovery at the front door, and its decoder reads the answer strictly."""
    async with garden.client(ALICE) as client:
        for role in ("admin", "viewer"):
            said = await client.ask(f"{role}kubeconfig", namespace=NAMESPACE, name="demo", seconds=600)
            assert not said.error, said.error
            assert not said.unknown, said.unknown
            config = yaml.safe_load(base64.b64decode(said.object["status"]["kubeconfig"]))
            pem = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
            subject = x509.load_pem_x509_certificate(pem).subject.rfc4514_string()
            assert subject == f"CN=gardener.cloud:{role}:alice,O=gardener.cloud:project:{role}s"
            assert said.object["status"]["expirationTimestamp"] is not None


async def test_a_refusal_is_a_status_that_the_client_decodes(garden: AtTheDoor) -> None:
    async with garden.client(ALICE) as client:
        foreign = await client.ask("adminkubeconfig", namespace=OTHER_NAMESPACE, name="demo", seconds=600)
        invalid = await client.ask("create", "Shoot", namespace=NAMESPACE, object={**SHOOT, "spec": {}})

    assert (foreign.error["reason"], foreign.error["code"]) == ("Forbidden", 403)
    assert 'User "alice" cannot create resource "shoots/adminkubeconfig"' in foreign.error["message"]
    assert invalid.error["reason"] in ("Invalid", "Forbidden")

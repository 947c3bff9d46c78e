"""Rights of a gardenlet in the garden: seed-1 has the Shoot "demo", seed-2 has "other", "mover" goes from 2 to 1."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from activities.seed import observability, secrets
from api import resources
from api.constants import BACKUP_KEY, SEEDS_GROUP
from api.resources import Resource
from tests.unit.api.shoots import PROJECT, SEED, SHOOT, changed
from workers.admission import seed_authorizer
from workers.admission.indexes import INDEXES, Index
from workers.admission.seed_authorizer import PUBLISHED, RIGHTS, application, configuration

USER = "gardener.cloud:system:seed:"
_SECRET = {"kind": "Secret", "namespace": "garden"}


def shoot(name: str, home: str, goal: str, **spec: Any) -> dict[str, Any]:
    made = changed(changed(SHOOT, "metadata.name", name), "metadata.uid", f"uid-{name}")
    made["spec"] |= {"seedName": goal, "credentialsBindingName": f"of-{name}", **spec}
    return made | {"status": {"seedName": home, "technicalID": f"shoot--local--{name}"}}


def seed(name: str) -> dict[str, Any]:
    dns = SEED["spec"]["dns"] | {"provider": {"type": "local", "credentialsRef": _SECRET | {"name": "ingress"}}}
    backup = {"provider": "local", "credentialsRef": _SECRET | {"name": f"backup-{name}"}}
    return SEED | {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": SEED["spec"] | {"dns": dns, "backup": backup},
    }


def binding(shoot: str) -> dict[str, Any]:
    reference = {"kind": "Secret", "namespace": "team", "name": f"cloud-{shoot}"}
    return _object("CredentialsBinding", f"of-{shoot}", "garden-local") | {"credentialsRef": reference}


def bucket(seed: str) -> dict[str, Any]:
    reference = _SECRET | {"name": f"backup-{seed}"}
    return _object("BackupBucket", f"uid-{seed}") | {"spec": {"credentialsRef": reference, "seedName": seed}}


def entry(name: str, seed: str) -> dict[str, Any]:
    spec = {"bucketName": f"uid-{seed}", "seedName": seed}
    return _object("BackupEntry", f"shoot--local--{name}--uid-{name}", "garden-local") | {"spec": spec}


def left_entry(name: str, source: str, destination: str) -> dict[str, Any]:
    """The entry by which a destination copies backups from the bucket of the source."""
    spec = {"bucketName": f"uid-{source}", "seedName": destination}
    return _object("BackupEntry", f"source-shoot--local--{name}--uid-{name}", "garden-local") | {"spec": spec}


def bastion(name: str, seed: str) -> dict[str, Any]:
    return _object("Bastion", name, "garden-local") | {"spec": {"seedName": seed}}


def managed_seed(name: str, shoot: str, namespace: str = "garden") -> dict[str, Any]:
    return _object("ManagedSeed", name, namespace) | {"spec": {"shoot": {"name": shoot}}}


def gardenlet(name: str) -> dict[str, Any]:
    repository = {"ref": "registry.example.org/gardenlet:v1", "pullSecretRef": {"name": f"pull-{name}"}}
    return _object("Gardenlet", name, "garden") | {
        "spec": {"deployment": {"helm": {"ociRepository": repository}}, "config": {}}
    }


def installation(name: str, seed: str, deployment: str) -> dict[str, Any]:
    spec = {"registrationRef": {"name": "notes"}, "seedRef": {"name": seed}, "deploymentRef": {"name": deployment}}
    return _object("ControllerInstallation", name) | {"spec": spec}


def deployment(name: str, secret: str) -> dict[str, Any]:
    repository = {"ref": "registry.example.org/notes:v1", "pullSecretRef": {"name": secret}}
    return _object("ControllerDeployment", name) | {"helm": {"ociRepository": repository}}


def namespace(seed: str) -> dict[str, Any]:
    """The namespace of a seed, with copies of Secrets."""
    owner = {"kind": "Seed", "name": seed, "uid": f"uid-{seed}"}
    return {"kind": "Namespace", "metadata": {"name": f"seed-{seed}", "ownerReferences": [owner]}}


def credentials(name: str, *seeds: str) -> dict[str, Any]:
    """A Secret that an operator has labelled for some seeds."""
    labels = {f"name.seed.gardener.cloud/{each}": "true" for each in seeds}
    metadata = {"name": name, "namespace": "garden", "labels": labels}
    return {"kind": "Secret", "metadata": metadata, "data": {"endpoint": "aHR0cHM6Ly9zdG9yZQ=="}}


def _object(kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid of {name}", **({"namespace": namespace} if namespace else {})}
    return {"kind": kind, "metadata": metadata}


def named(profile: str) -> dict[str, str]:
    return {"kind": "NamespacedCloudProfile", "name": profile}


RESOURCES = [
    {"name": "a", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "named"}},
    {"name": "b", "resourceRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "named"}},
    {
        "name": "c",
        "resourceRef": {
            "apiVersion": "security.gardener.cloud/v1alpha1",
            "kind": "WorkloadIdentity",
            "name": "named",
        },
    },
]
SEEDS = ("seed-1", "seed-2", "seed-3")
GARDEN = [
    PROJECT,
    _object("NamespacedCloudProfile", "of-demo", "garden-local") | {"spec": {"parent": {"name": "local"}}},
    _object("NamespacedCloudProfile", "of-other", "garden-local") | {"spec": {"parent": {"name": "local"}}},
    credentials("dns", *SEEDS),
    credentials("ingress", *SEEDS),
    *(credentials(f"backup-{name}", name) for name in SEEDS),
    shoot("demo", "seed-1", "seed-1", resources=RESOURCES, cloudProfile=named("of-demo")),
    shoot("other", "seed-2", "seed-2", cloudProfile=named("of-other")),
    shoot("mover", "seed-2", "seed-1"),
    *(seed(name) for name in SEEDS),
    *(namespace(name) for name in SEEDS),
    *(binding(name) for name in ("demo", "other", "mover")),
    *(bucket(name) for name in SEEDS),
    *(entry(name, home) for name, home in (("demo", "seed-1"), ("other", "seed-2"), ("mover", "seed-2"))),
    entry("gone", "seed-1"),
    left_entry("left", "seed-1", "seed-3"),
    left_entry("passed", "seed-2", "seed-3"),
    bastion("mine", "seed-1"),
    bastion("theirs", "seed-2"),
    {**shoot("base", "seed-1", "seed-1"), "metadata": {"name": "base", "namespace": "garden", "uid": "uid-base"}},
    {**shoot("far", "seed-2", "seed-2"), "metadata": {"name": "far", "namespace": "garden", "uid": "uid-far"}},
    *(gardenlet(name) for name in ("seed-1", "seed-2")),
    managed_seed("nested", "base"),
    managed_seed("distant", "far"),
    managed_seed("private", "demo", "garden-local"),
    installation("notes-mine", "seed-1", "notes"),
    installation("notes-theirs", "seed-2", "theirs"),
    deployment("notes", "pull"),
    deployment("theirs", "pull-theirs"),
    _object("CertificateSigningRequest", "mine") | {"spec": {"username": f"{USER}seed-1"}},
    _object("CertificateSigningRequest", "theirs") | {"spec": {"username": f"{USER}seed-2"}},
]


class Garden:
    """Holds objects, like the caches of admission and like the API server.

    ``later``: the objects of caches that have caught up. They catch up while a request waits for a change.
    """

    def __init__(self, objects: list[dict[str, Any]], later: list[dict[str, Any]] | None = None) -> None:
        self.objects = objects
        self.later = later

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return next((each for each in await self.list(resource, namespace) if each["metadata"]["name"] == name), None)

    async def by_index(self, index: Index, value: str) -> list[dict[str, Any]]:
        return [each for each in await self.list(index.resource) if value in index.values(each)]

    async def list(self, resource: Resource, namespace: str | None = None) -> list[dict[str, Any]]:
        assert (namespace is None) or resource.namespaced, "no namespace has objects of the cluster"
        return [
            each
            for each in self.objects
            if each["kind"] == resource.kind and (namespace is None or each["metadata"].get("namespace") == namespace)
        ]

    def holds(self, resource: Resource) -> bool:
        return resource in {each.resource for each in INDEXES}

    async def known(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return await self.find(resource, name, namespace)

    def next_change(self) -> asyncio.Event:
        change = asyncio.Event()
        if self.later is not None:
            asyncio.get_running_loop().call_soon(self._catch_up, change)
        return change

    def _catch_up(self, change: asyncio.Event) -> None:
        assert self.later is not None
        self.objects = self.later
        change.set()


@pytest.fixture
async def authorizer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestClient[Any, Any]]:
    """Its caches learn of the Shoot that moves while a request waits."""
    monkeypatch.setattr(seed_authorizer, "_LAG_SECONDS", 0.05)
    early = [each for each in GARDEN if each["metadata"]["name"] != "mover"]
    async with TestClient(TestServer(application(Garden(early, GARDEN), Garden(GARDEN)))) as client:
        yield client


async def ask(authorizer: TestClient[Any, Any], question: str, **spec: Any) -> dict[str, Any]:
    """``question``: verb, plural with group and subresource as kubectl takes them, and namespace/name."""
    verb, what, where = (*question.split(), "")[:3]
    namespace, _, name = where.rpartition("/")
    resource, _, subresource = what.partition("/")
    plural, _, group = resource.partition(".")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"{USER}seed-1",
            "groups": [SEEDS_GROUP, "system:authenticated"],
            "resourceAttributes": attributes | {"namespace": namespace, "name": name},
            **spec,
        },
    }
    answer = await authorizer.post("/authorize-seeds", json=review)
    assert answer.status == 200
    status: dict[str, Any] = (await answer.json())["status"]
    return status


CORE, SECURITY, OPERATIONS = (f"{group}.gardener.cloud" for group in ("core", "security", "operations"))
SEED_MANAGEMENT = "seedmanagement.gardener.cloud"
LEASES = "leases.coordination.k8s.io"
REQUESTS = "certificatesigningrequests.certificates.k8s.io"


@pytest.mark.parametrize(
    "question",
    [
        f"list shoots.{CORE}",
        f"watch seeds.{CORE}",
        f"get cloudprofiles.{CORE} /local",
        f"get exposureclasses.{CORE} /public",
        f"get namespacedcloudprofiles.{CORE} garden-local/of-demo",
        f"patch shoots.{CORE} garden-local/demo",
        f"patch shoots.{CORE}/status garden-local/demo",
        f"patch shoots.{CORE}/status garden-local/mover",
        f"create seeds.{CORE} /seed-1",
        f"patch seeds.{CORE}/status /seed-1",
        f"get controllerinstallations.{CORE} /notes-mine",
        f"patch controllerinstallations.{CORE}/status /notes-mine",
        f"get controllerdeployments.{CORE} /notes",
        "get secrets garden/pull",
        f"watch gardenlets.{SEED_MANAGEMENT} garden/seed-1",
        f"patch gardenlets.{SEED_MANAGEMENT}/status garden/seed-1",
        "get secrets garden/pull-seed-1",
        f"watch managedseeds.{SEED_MANAGEMENT}",
        f"patch managedseeds.{SEED_MANAGEMENT}/status garden/nested",
        "get secrets garden/nested.managed-seed",
        "list secrets seed-seed-1/",
        "watch secrets seed-seed-1/",
        "get secrets seed-seed-1/mail",
        "patch serviceaccounts seed-seed-1/extension-notes-mine",
        "create serviceaccounts/token seed-seed-1/extension-notes-mine",
        f"create backupbuckets.{CORE} /uid-seed-1",
        f"patch backupentries.{CORE} garden-local/shoot--local--demo--uid-demo",
        f"create backupentries.{CORE} garden-local/source-shoot--local--mover--uid-mover",
        f"patch backupentries.{CORE} garden-local/shoot--local--mover--uid-mover",
        f"delete backupentries.{CORE} garden-local/shoot--local--gone--uid-gone",
        f"patch backupentries.{CORE} garden-local/source-shoot--local--left--uid-left",
        f"patch backupentries.{CORE}/status garden-local/shoot--local--demo--uid-demo",
        f"get internalsecrets.{CORE} garden-local/mover.etcd-backup",
        "create secrets garden/generated-bucket-uid-seed-1",
        f"patch backupbuckets.{CORE}/status /uid-seed-1",
        f"create shootstates.{CORE} garden-local/demo",
        f"delete shootstates.{CORE} garden-local/mover",
        f"create internalsecrets.{CORE} garden-local/demo.ca-client",
        f"get credentialsbindings.{SECURITY} garden-local/of-demo",
        f"patch bastions.{OPERATIONS}/status garden-local/mine",
        "get secrets team/cloud-demo",
        "get secrets team/cloud-mover",
        "get secrets garden-local/named",
        "get secrets garden/dns",
        "get secrets garden/ingress",
        "get secrets garden/backup-seed-1",
        "patch secrets garden-local/demo.ssh-keypair.old",
        "delete secrets garden-local/demo.monitoring",
        "create secrets gardener-system-shoot-issuer/local--uid-demo",
        "create configmaps garden-local/demo.ca-cluster",
        "get configmaps garden-local/demo.issued-kubeconfigs",
        "get configmaps garden-local/named",
        "get configmaps kube-system/cluster-identity",
        "create events garden-local/",
        f"patch {LEASES} gardener-system-seed-lease/seed-1",
        f"create {REQUESTS}",
        f"create {REQUESTS}/seedclient",
        f"get {REQUESTS} /mine",
    ],
)
async def test_a_gardenlet_may_access_objects_of_its_seed(authorizer, question):
    assert await ask(authorizer, question) == {"allowed": True}


@pytest.mark.parametrize(
    "question",
    [
        f"patch shoots.{CORE}/status garden-local/other",
        f"patch shoots.{CORE}/binding garden-local/demo",
        f"delete shoots.{CORE} garden-local/demo",
        f"patch seeds.{CORE}/status /seed-2",
        f"patch controllerinstallations.{CORE}/status /notes-theirs",
        f"get controllerinstallations.{CORE} /notes-theirs",
        f"list controllerinstallations.{CORE}",
        f"watch controllerinstallations.{CORE}",
        f"delete controllerinstallations.{CORE} /notes-mine",
        f"get controllerdeployments.{CORE} /theirs",
        f"list controllerdeployments.{CORE}",
        "get secrets garden/pull-theirs",
        f"patch managedseeds.{SEED_MANAGEMENT}/status garden/distant",
        f"patch managedseeds.{SEED_MANAGEMENT} garden-local/private",
        f"create managedseeds.{SEED_MANAGEMENT} garden/nested",
        f"delete managedseeds.{SEED_MANAGEMENT} garden/nested",
        "get secrets garden/distant.managed-seed",
        "get secrets garden-local/nested.managed-seed",
        "get secrets garden-local/private.managed-seed",
        "patch secrets garden/nested.managed-seed",
        "list secrets seed-seed-2/",
        "get secrets seed-seed-2/mail",
        "patch secrets seed-seed-1/mail",
        "delete secrets seed-seed-1/mail",
        "get secrets elsewhere/pull",
        "create serviceaccounts/token seed-seed-1/default",
        "create serviceaccounts/token seed-seed-1/extension-notes-theirs",
        "create serviceaccounts/token seed-seed-2/extension-notes-theirs",
        "patch serviceaccounts garden/extension-notes-mine",
        f"patch backupbuckets.{CORE} /uid-seed-2",
        f"patch backupentries.{CORE} garden-local/shoot--local--other--uid-other",
        f"delete backupentries.{CORE} garden-local/shoot--local--other--uid-other",
        f"get shootstates.{CORE} garden-local/other",
        f"get shootstates.{CORE} elsewhere/demo",
        f"get internalsecrets.{CORE} garden-local/other.ca-client",
        f"get internalsecrets.{CORE} garden-local/demo.anything",
        f"list internalsecrets.{CORE} garden-local/",
        f"get credentialsbindings.{SECURITY} garden-local/of-other",
        f"patch bastions.{OPERATIONS}/status garden-local/theirs",
        f"patch cloudprofiles.{CORE} /local",
        f"list exposureclasses.{CORE}",
        f"patch exposureclasses.{CORE} /public",
        f"get namespacedcloudprofiles.{CORE} garden-local/of-other",
        f"get namespacedcloudprofiles.{CORE} elsewhere/of-demo",
        f"list namespacedcloudprofiles.{CORE} garden-local/",
        f"patch namespacedcloudprofiles.{CORE} garden-local/of-demo",
        f"patch namespacedcloudprofiles.{CORE}/status garden-local/of-demo",
        f"patch controllerregistrations.{CORE} /provider-local",
        f"get projects.{CORE} /local",
        "get secrets team/cloud-other",
        "get secrets garden-local/cloud-demo",
        "get secrets garden-local/other.ssh-keypair",
        "get secrets garden-local/demo.mine",
        "get secrets garden-local/.monitoring",
        "get secrets elsewhere/named",
        "get secrets garden/backup-seed-2",
        "get secrets garden/backup-seed-3",
        "get secrets garden/generated-bucket-uid-seed-2",
        "get secrets garden-local/generated-bucket-uid-seed-1",
        f"get internalsecrets.{CORE} garden-local/other.etcd-backup",
        f"patch backupentries.{CORE} garden-local/source-shoot--local--passed--uid-passed",
        f"patch backupentries.{CORE}/status garden-local/source-shoot--local--left--uid-left",
        f"delete backupentries.{CORE} garden-local/source-shoot--local--left--uid-left",
        f"patch backupentries.{CORE}/status garden-local/shoot--local--other--uid-other",
        f"patch backupbuckets.{CORE}/status /uid-seed-2",
        "get secrets kube-system/bootstrap-token-abcdef",
        "patch secrets garden-local/named",
        "patch secrets garden/dns",
        "patch secrets team/cloud-demo",
        "create secrets garden-local/",
        "list secrets",
        "list secrets garden/",
        "list secrets garden-local/",
        "watch secrets garden/",
        "get secrets gardener-system-shoot-issuer/local--uid-other",
        "patch configmaps garden-local/named",
        "patch configmaps garden-local/demo.issued-kubeconfigs",
        f"create backupentries.{CORE} garden-local/mine--uid-demo",
        "get configmaps kube-system/other",
        "create namespaces /garden-local",
        "list events garden-local/",
        f"patch {LEASES} gardener-system-seed-lease/seed-2",
        f"get {REQUESTS} /theirs",
        f"patch {REQUESTS}/approval /mine",
        "create clusterrolebindings.rbac.authorization.k8s.io /mine",
    ],
)
async def test_a_gardenlet_may_access_no_other_object(authorizer, question):
    """Others may run the seed's cluster: with its gardenlet's credentials they must not reach clusters of other seeds.

    Objects that do not exist yet are refused, too: otherwise a gardenlet that keeps asking would read them first.
    """
    answer = await ask(authorizer, question)

    assert not answer["allowed"]
    assert answer["reason"].startswith("nothing of seed seed-1 needs that: ")


async def test_the_source_of_a_move_loses_the_shoot_when_the_move_ends():
    """This includes a seed that was lost, comes back, and still considers itself the Shoot's seed."""
    request = seed_authorizer.Request(f"{USER}seed-2", "patch", resources.SHOOT, "status", "garden-local", "mover")
    assert await seed_authorizer.allows(request, Garden(GARDEN))

    moved = [shoot("mover", "seed-1", "seed-1"), *(each for each in GARDEN if each["metadata"]["name"] != "mover")]
    assert not await seed_authorizer.allows(request, Garden(moved))


@pytest.mark.parametrize(
    ("role", "operator", "allowed"),
    [
        ("alerting", "In", True),
        ("shoot-service-account-issuer", "In", True),
        ("internal-domain", "In", False),
        ("alerting", "NotIn", False),
    ],
)
async def test_only_objects_for_all_seeds_are_listed_in_the_gardens_namespace(authorizer, role, operator, allowed):
    selector = {"requirements": [{"key": "gardener.cloud/role", "operator": operator, "values": [role]}]}
    attributes = {"verb": "list", "resource": "secrets", "namespace": "garden", "labelSelector": selector}

    answer = await ask(authorizer, "list secrets garden/", resourceAttributes=attributes)

    assert answer["allowed"] is allowed


@pytest.mark.parametrize(
    ("field", "seed", "allowed"),
    [
        ("spec.seedRef.name", "seed-1", True),
        ("spec.seedRef.name", "seed-2", False),
        ("spec.registrationRef.name", "seed-1", False),
    ],
)
async def test_a_gardenlet_lists_the_installations_of_its_seed_alone(authorizer, field, seed, allowed):
    selector = {"requirements": [{"key": field, "operator": "In", "values": [seed]}]}
    for verb in ("list", "watch"):
        attributes = {"verb": verb, "group": CORE, "resource": "controllerinstallations", "fieldSelector": selector}
        answer = await ask(authorizer, f"{verb} controllerinstallations.{CORE}", resourceAttributes=attributes)
        assert answer["allowed"] is allowed


@pytest.mark.parametrize(
    "spec",
    [
        {"user": "alice"},
        {"groups": ["system:authenticated"]},
        {"resourceAttributes": None, "nonResourceAttributes": {"verb": "get", "path": "/metrics"}},
    ],
)
async def test_the_authorizer_has_no_opinion_on_other_users_and_kinds(authorizer, spec):
    """Neither yes nor no: roles decide."""
    assert await ask(authorizer, f"list shoots.{CORE}", **spec) == {"allowed": False}


def extension(seed: str = "seed-1", installation: str = "notes-mine") -> dict[str, Any]:
    """User and groups of an extension's token."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:seed-{seed}", "system:authenticated"]
    return {"user": f"system:serviceaccount:seed-{seed}:extension-{installation}", "groups": groups}


@pytest.mark.parametrize(
    "question",
    [
        f"get shoots.{CORE} garden-local/demo",
        f"get controllerinstallations.{CORE} /notes-mine",
        f"create {LEASES} seed-seed-1/",
        f"patch {LEASES} seed-seed-1/extension-notes-mine-leader",
    ],
)
async def test_an_extension_reads_the_shoots_of_its_seed_and_writes_its_leases(authorizer, question):
    assert await ask(authorizer, question, **extension()) == {"allowed": True}


def test_a_gardenlet_may_write_all_that_activities_publish():
    found = {
        resources.SECRET: {secrets.SSH_KEYPAIR, f"{secrets.SSH_KEYPAIR}.old", observability._SUFFIX},
        resources.INTERNAL_SECRET: {secrets.CLIENT_CA, BACKUP_KEY},
        resources.CONFIG_MAP: {"ca-cluster", secrets.KUBELET_CA},
    }
    assert {resource: set(suffixes) for resource, suffixes in PUBLISHED.items()} == found


def test_each_write_rule_has_a_condition():
    free = {resources.EVENT, resources.EVENTS_EVENT, resources.CERTIFICATE_SIGNING_REQUEST}
    for resource, rights in RIGHTS.items():
        for right in rights:
            assert "*" not in right.verbs
            writes = {"create", "update", "patch", "delete"} & set(right.verbs)
            assert not writes or right.when or resource in free


def test_the_api_server_asks_about_gardenlets_alone_and_remembers_nothing():
    """A remembered answer would still permit access after a Shoot has moved."""
    _, webhook, roles = configuration("/etc/seed-authorizer.kubeconfig")["authorizers"]

    [condition] = webhook["webhook"]["matchConditions"]
    gardenlets, extensions = condition["expression"].split(" || ")
    assert gardenlets == "'gardener.cloud:system:seeds' in request.groups"
    assert extensions == "request.user.startsWith('system:serviceaccount:seed-')"
    assert not webhook["webhook"]["cacheAuthorizedRequests"]
    assert not webhook["webhook"]["cacheUnauthorizedRequests"]
    assert roles["type"] == "RBAC"

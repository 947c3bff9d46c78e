"""The activities that build a control plane, between three API servers in memory."""

import asyncio
import base64
import json
from typing import Any

import pytest
from aiohttp import web
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.components import resource_manager
from activities.managed_resources import secrets_checksum
from activities.secrets.configs import (
    Certificate,
    CertificateAuthority,
    EncryptionConfiguration,
    EtcdEncryptionKey,
    GenericTokenKubeconfig,
    ServiceAccountKey,
    SSHKeyPair,
    StaticToken,
    Usage,
    VPNTlsAuth,
)
from activities.secrets.manager import SecretsManager
from activities.secrets.rotation import Rotation
from activities.seed.control_plane import ControlPlaneActivities
from activities.seed.first_token import FirstToken
from activities.seed.secrets import generate_encryption_configuration
from activities.shoot.system import ShootSystemActivities
from api.constants import SHOOT_TASKS
from api.contracts.operations import ForwardTask, OperationType, ShootRef, ShootTask
from tests import certificates
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.resource_manager.config import ResourceManagerConfig

NAMESPACE = "shoot--dev--a"
SECRETS = "/api/v1/secrets"
MANAGED_RESOURCES = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
DEPLOYMENTS = "/apis/apps/v1/deployments"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
CONFIG_MAPS = "/api/v1/configmaps"
SHOOTS = "/apis/core.gardener.cloud/v1beta1/shoots"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-dev", name="a", uid="u-1"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
)
SHOOT: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Shoot",
    "metadata": {"name": "a", "namespace": "garden-dev", "uid": "u-1"},
    "spec": {
        "region": "local",
        "dns": {"domain": "a.dev.shoot.example.org"},
        "kubernetes": {"version": "1.37.1"},
        "networking": {"pods": "100.112.0.0/16", "services": "100.68.0.0/16", "nodes": "198.18.8.0/22"},
        "provider": {"type": "local", "workers": [{"name": "w"}]},
    },
}
SEED: dict[str, Any] = {
    "metadata": {"name": "seed-1"},
    "spec": {"dns": {"internal": {"domain": "internal.example.org"}}},
}
AUTHORITIES = ("ca", "ca-etcd", "ca-front-proxy", "ca-kubelet", "ca-metrics-server", "ca-vpn")


class World:
    """Garden, seed and shoot, with the secrets that earlier tasks make."""

    def __init__(self, garden, seed, shoot, clusters):
        self.garden, self.seed, self.shoot, self.clusters = garden, seed, shoot, clusters
        self.control_plane = ControlPlaneActivities(clusters, vpn_network="198.19.255.0/24")
        self.system = ShootSystemActivities(clusters)

    def pin(self, shoot, **profile):
        cluster = {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": NAMESPACE},
            "spec": {"shoot": shoot, "seed": SEED, "cloudProfile": {"kind": "CloudProfile", "spec": profile}},
        }
        self.seed.put("/apis/extensions.gardener.cloud/v1alpha1/clusters", cluster)

    def secret(self, name):
        return self.seed.find(SECRETS, name, NAMESPACE)

    def values(self):
        """Everything in Secrets of the seed that must be nowhere else."""
        private = ("ca.key", "tls.key", "id_rsa", "secret", "static_tokens.csv", "vpn.tlsauth", "token")
        for (path, _, _), item in self.seed.objects.items():
            if path == SECRETS:
                for key, value in (item.get("data") or {}).items():
                    if key in private:
                        yield base64.b64decode(value)


@pytest.fixture
async def world(monkeypatch):
    async with (
        ApiServer().running() as garden,
        ApiServer().running() as seed,
        ApiServer().running() as shoot,
    ):
        clusters = Clusters(garden.client(), seed.client(), "seed-1")
        service = {"metadata": {"name": "kube-apiserver", "namespace": NAMESPACE}, "spec": {"clusterIP": "100.64.1.7"}}
        seed.put("/api/v1/services", service)
        garden.put(SHOOTS, {**SHOOT, "status": {"technicalID": NAMESPACE}})
        made = World(garden, seed, shoot, clusters)
        made.pin(SHOOT)
        await generate_what_init_secrets_makes(clusters.seed)

        async def client(_, user):
            return shoot.client(user.get("token", "certificate"))

        monkeypatch.setattr(FirstToken, "_client", client)
        try:
            yield made
        finally:
            await clusters.close()


async def generate_shared(manager):
    """Secrets that several components share: authorities, and keys of the API server."""
    for name in AUTHORITIES:
        await manager.generate(CertificateAuthority(name))
    await manager.generate(CertificateAuthority("ca-client", hashed_name=True))
    await manager.generate(ServiceAccountKey("service-account-key"))
    await manager.generate(SSHKeyPair("ssh-keypair"))
    await manager.generate(StaticToken("kube-apiserver-static-token"))
    key = await manager.generate(EtcdEncryptionKey("kube-apiserver-etcd-encryption-key"))
    await manager.generate(EncryptionConfiguration("kube-apiserver-etcd-encryption-configuration", (key.data,)))


async def generate_what_init_secrets_makes(seed):
    manager = await SecretsManager.load(seed, namespace=NAMESPACE)
    await generate_shared(manager)
    await manager.generate(VPNTlsAuth("vpn-seed-server-tlsauth"))
    await manager.generate(GenericTokenKubeconfig("generic-token-kubeconfig", "https://kube-apiserver", b"ca"))
    await manager.generate(
        Certificate(name="etcd-client", common_name="etcd-client", usage=Usage.CLIENT, signer="ca-etcd")
    )


def with_settings(**settings):
    return {**SHOOT, "spec": {**SHOOT["spec"], "kubernetes": {"version": "1.37.1", **settings}}}


async def test_no_private_key_or_token_leaves_the_secrets(world):
    """A client with the right to read Deployments, ConfigMaps or histories must find no secret in them."""
    results = [
        await activity(TASK)
        for activity in (
            world.control_plane.deploy_apiserver,
            world.control_plane.deploy_kube_controller_manager,
            world.control_plane.deploy_scheduler,
            world.control_plane.deploy_vpn_server,
            world.control_plane.deploy_machine_controller_manager,
            world.system.deploy_vpn_shoot,
            world.system.deploy_metrics_server,
            world.system.deploy_node_problem_detector,
        )
    ]
    elsewhere = json.dumps(
        [item for (path, _, _), item in world.seed.objects.items() if path != SECRETS]
        + [result.model_dump() for result in results]
    )
    values = list(world.values())

    assert len(values) > 15
    for value in values:
        assert base64.b64encode(value).decode() not in elsewhere
        assert json.dumps(value.decode(errors="replace"))[1:-1] not in elsewhere


async def test_secrets_mounted_by_the_api_server_are_reported_for_the_cleanup(world):
    """cleanup_secrets deletes what no task names: a mounted Secret that is not named would be lost."""
    result = await world.control_plane.deploy_apiserver(TASK)
    deployment = world.seed.find("/apis/apps/v1/deployments", "kube-apiserver", NAMESPACE)
    mounted = {
        volume["secret"]["secretName"]
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }

    mounted.remove("kube-apiserver-authorization")  # the gardenlet applies it, without the secrets manager
    assert len(mounted) == 15
    assert mounted <= set(result.secrets)


async def test_a_second_run_creates_no_new_secret(world):
    await world.control_plane.deploy_apiserver(TASK)
    before = {place: item["metadata"]["resourceVersion"] for place, item in world.seed.objects.items()}
    await world.control_plane.deploy_apiserver(TASK)

    assert {place: item["metadata"]["resourceVersion"] for place, item in world.seed.objects.items()} == before


_OF_CONTROL_PLANE = (
    "deploy_api_service",
    "update_advertised_addresses",
    "deploy_apiserver_sni",
    "deploy_apiserver",
    "deploy_scheduler",
    "deploy_kube_controller_manager",
    "deploy_machine_controller_manager",
    "deploy_vpn_server",
    "deploy_gardener_access",
)
_OF_SYSTEM = (
    "deploy_shoot_namespaces",
    "deploy_shoot_system",
    "deploy_apiserver_proxy",
    "deploy_coredns",
    "deploy_metrics_server",
    "deploy_node_local_dns",
    "deploy_node_problem_detector",
    "deploy_node_exporter",
    "deploy_blackbox_exporter",
    "deploy_vpn_shoot",
)


@pytest.mark.parametrize("name", [*_OF_CONTROL_PLANE, *_OF_SYSTEM])
async def test_unchanged_objects_are_not_written_again(world, in_shoot, name):
    """A thousand shoots are reconciled every hour, and nearly all of them are as they should be."""
    owner = world.control_plane if name in _OF_CONTROL_PLANE else world.system
    await getattr(owner, name)(TASK)
    servers = world.garden, world.seed, world.shoot
    for server in servers:
        server.requests.clear()
    await getattr(owner, name)(TASK.model_copy(update={"trigger": "2026-11-21T11:00:00Z"}))

    assert [(method, path) for server in servers for method, path in server.requests if method != "GET"] == []


async def test_owners_learn_all_names_of_their_api_server(world):
    await world.control_plane.update_advertised_addresses(TASK)

    assert world.garden.find(SHOOTS, "a", "garden-dev")["status"] == {
        "technicalID": NAMESPACE,
        "advertisedAddresses": [
            {"name": "external", "url": "https://api.a.dev.shoot.example.org"},
            {"name": "internal", "url": "https://api.a.dev.internal.example.org"},
            {"name": "service-account-issuer", "url": "https://api.a.dev.internal.example.org"},
        ],
    }


async def test_with_a_certificate_of_the_seed_clients_need_no_authority_of_the_cluster(world):
    domain, host = "ingress.seed-1.example.org", "api-dev--a.ingress.seed-1.example.org"
    seed = {**SEED, "spec": {**SEED["spec"], "ingress": {"domain": domain}}}
    world.seed.change(CLUSTERS, NAMESPACE, None, {"spec": {"seed": seed}})
    made = certificates.pair(f"*.{domain}")
    world.garden.put(SECRETS, certificates.secret(made, namespace="seed-seed-1"), "seed-seed-1")

    for activity in ("deploy_apiserver", "deploy_apiserver_sni", "update_advertised_addresses"):
        await getattr(world.control_plane, activity)(TASK)

    found = world.secret("kube-apiserver-wildcard")["data"]
    assert {key: base64.b64decode(value) for key, value in found.items()} == {
        "tls.crt": made.certificate,
        "tls.key": made.key,
    }
    command = _command(world.seed.find(DEPLOYMENTS, "kube-apiserver", NAMESPACE))
    files = "/srv/kubernetes/wildcard/tls.crt,/srv/kubernetes/wildcard/tls.key"
    assert f"--tls-sni-cert-key={files}:{host}" in command
    exposed = json.loads(world.seed.find(CONFIG_MAPS, "apiserver-exposure", NAMESPACE)["data"]["exposure.json"])
    assert exposed["hosts"] == ["api.a.dev.shoot.example.org", "api.a.dev.internal.example.org", host]
    addresses = world.garden.find(SHOOTS, "a", "garden-dev")["status"]["advertisedAddresses"]
    assert [each["name"] for each in addresses][:3] == ["external", "wildcard-tls-seed-bound", "internal"]
    assert addresses[1]["url"] == f"https://{host}"

    world.garden.remove(SECRETS, "wildcard", "seed-seed-1")
    await world.control_plane.deploy_apiserver(TASK)
    assert world.secret("kube-apiserver-wildcard") is None
    assert "tls-sni-cert-key" not in str(_command(world.seed.find(DEPLOYMENTS, "kube-apiserver", NAMESPACE)))


def _command(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]["command"]


async def test_with_a_managed_issuer_tokens_name_the_gardens_host_and_those_of_before_are_accepted(world):
    host = {"hostname": base64.b64encode(b"issuer.example.org").decode()}
    role = {"gardener.cloud/role": "shoot-service-account-issuer"}
    world.garden.put(SECRETS, {"metadata": {"name": "issuer", "namespace": "garden", "labels": role}, "data": host})
    annotations = {"authentication.gardener.cloud/issuer": "managed"}
    world.pin({**SHOOT, "metadata": {**SHOOT["metadata"], "annotations": annotations}})
    await world.control_plane.deploy_apiserver(TASK)
    await world.control_plane.update_advertised_addresses(TASK)

    managed = "https://issuer.example.org/projects/dev/shoots/u-1/issuer"
    server = world.seed.find("/apis/apps/v1/deployments", "kube-apiserver", NAMESPACE)
    command = server["spec"]["template"]["spec"]["containers"][0]["command"]
    issuers = [each.partition("=")[2] for each in command if each.startswith("--service-account-issuer=")]
    assert issuers == [managed, "https://api.a.dev.internal.example.org"]
    assert f"--service-account-jwks-uri={managed}/jwks" in command
    advertised = world.garden.find(SHOOTS, "a", "garden-dev")["status"]["advertisedAddresses"]
    assert advertised[-1] == {"name": "service-account-issuer", "url": managed}


async def test_a_missing_audit_policy_is_a_configuration_problem(world):
    policy = {"auditPolicy": {"configMapRef": {"name": "my-policy"}}}
    world.pin(with_settings(kubeAPIServer={"auditConfig": policy}))

    with pytest.raises(ApplicationError, match="ConfigMap garden-dev/my-policy") as refused:
        await world.control_plane.deploy_apiserver(TASK)
    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"
    assert refused.value.non_retryable


async def test_settings_that_keep_a_component_from_starting_do_not_hold_a_deletion(world):
    """The spec of a Shoot in deletion is fixed, so its owner could not correct them."""
    wrong = {
        "admissionPlugins": [{"name": "NoSuchPlugin"}],
        "auditConfig": {"auditPolicy": {"configMapRef": {"name": "deleted-already"}}},
        "featureGates": {"NoSuchGate": True},
        "runtimeConfig": {"foo/v1": True},
        "eventTTL": "2h",
    }
    world.pin(with_settings(kubeAPIServer=wrong, kubeControllerManager={"featureGates": {"NoSuchGate": True}}))
    deletion = TASK.model_copy(update={"operation": OperationType.DELETE})

    await world.control_plane.deploy_apiserver(deletion)
    await world.control_plane.deploy_kube_controller_manager(deletion)

    for name in ("kube-apiserver", "kube-controller-manager"):
        found = world.seed.find("/apis/apps/v1/deployments", name, NAMESPACE)
        command = " ".join(found["spec"]["template"]["spec"]["containers"][0]["command"])
        assert "NoSuch" not in command
        assert "foo/v1" not in command
        assert ("--event-ttl=2h" in command) == (name == "kube-apiserver"), "other settings stay"


async def test_a_shoot_network_that_overlaps_with_the_tunnel_is_refused(world):
    networking = {**SHOOT["spec"]["networking"], "pods": "198.19.0.0/16"}
    world.pin({**SHOOT, "spec": {**SHOOT["spec"], "networking": networking}})

    with pytest.raises(ApplicationError, match=r"198\.19\.0\.0/16 of the shoot overlaps with the VPN") as refused:
        await world.control_plane.deploy_vpn_server(TASK)
    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


# The resource manager's token


def tell_about_rights(world, *, allowed):
    def answer(request):
        if not request.path.endswith("/selfsubjectaccessreviews"):
            return None
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if token not in world.shoot.tokens:
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    world.shoot.answer = answer


async def test_the_resource_manager_gets_its_first_token_and_keeps_it(world):
    tell_about_rights(world, allowed=True)
    first = await world.control_plane.deploy_resource_manager(TASK)
    access = world.secret("shoot-access-gardener-resource-manager")
    token = base64.b64decode(access["data"]["token"]).decode()
    second = await world.control_plane.deploy_resource_manager(TASK)

    assert (first.note, second.note) == ("got its first token", "its token works")
    assert world.shoot.tokens == {token: "kube-system:gardener-resource-manager"}
    assert "serviceaccount.resources.gardener.cloud/token-renew-timestamp" in access["metadata"]["annotations"]
    assert world.secret("shoot-access-gardener-resource-manager") == access


@pytest.mark.parametrize(("availability", "wanted"), [({}, 1), ({"failureTolerance": {"type": "node"}}, 2)])
async def test_a_resource_manager_has_two_replicas_if_the_control_plane_survives_failures(world, availability, wanted):
    tell_about_rights(world, allowed=True)
    world.pin({**SHOOT, "spec": {**SHOOT["spec"], "controlPlane": {"highAvailability": availability}}})
    await world.control_plane.deploy_resource_manager(TASK)
    [deployment] = [
        each for (_, _, name), each in world.seed.objects.items()
        if name == "gardener-resource-manager" and each["kind"] == "Deployment"
    ]  # fmt: skip

    assert deployment["spec"]["replicas"] == wanted


def test_one_replica_of_a_resource_manager_leads():
    objects = resource_manager.objects(resource_manager.ResourceManager(NAMESPACE, "generic", workers=False))
    [file] = [each for each in objects if each["kind"] == "ConfigMap"]
    [role] = [each for each in objects if each["kind"] == "Role"]

    config = ResourceManagerConfig.model_validate_json(file["data"]["config.yaml"])
    assert (config.leader_election.leader_elect, config.leader_election.resource_namespace) == (True, NAMESPACE)
    [rule] = [each for each in role["rules"] if each["resources"] == ["leases"]]
    assert {"get", "create", "update"} <= set(rule["verbs"])


def of_webhooks(world, what="managedresources"):
    """The ManagedResource that registers the webhooks, or the Deployment that serves them."""
    if what == "managedresources":
        return world.seed.find(MANAGED_RESOURCES, "shoot-core-gardener-resource-manager", NAMESPACE)
    return world.seed.find(DEPLOYMENTS, "gardener-resource-manager", NAMESPACE)


def rolled_out(world):
    """Report that the newest revision of the resource manager runs."""
    generation = of_webhooks(world, "deployments")["metadata"].get("generation", 1)
    status = {"observedGeneration": generation, "updatedReplicas": 1, "replicas": 1, "availableReplicas": 1}
    world.seed.change(DEPLOYMENTS, "gardener-resource-manager", NAMESPACE, {"status": status})


async def test_webhooks_are_registered_once_pods_answer_them(world):
    """A resource manager of an earlier version serves none: pods of the system would be held until its end."""
    tell_about_rights(world, allowed=True)
    await world.control_plane.deploy_resource_manager(TASK)
    world.seed.remove(MANAGED_RESOURCES, "shoot-core-gardener-resource-manager", NAMESPACE)
    earlier = {"spec": {"template": {"metadata": {"labels": {"of": "earlier"}}}}}
    world.seed.change(DEPLOYMENTS, "gardener-resource-manager", NAMESPACE, earlier)
    world.seed.change(
        DEPLOYMENTS,
        "gardener-resource-manager",
        NAMESPACE,
        {"status": {"observedGeneration": 0, "availableReplicas": 1}},
    )
    deploying = asyncio.create_task(world.control_plane.deploy_resource_manager(TASK))
    cache = world.clusters.seed_caches
    await until(lambda: any(each.resource.plural == "deployments" and each.is_synced for each in cache.started()))
    assert of_webhooks(world) is None

    rolled_out(world)
    await deploying
    assert of_webhooks(world)


ROTATION = {"phase": "Preparing", "lastInitiationTime": "2026-11-21T10:00:00Z"}
CONDITIONS = ("Applied", "Healthy", "Progressing")


async def test_a_bundle_with_the_new_ca_comes_before_its_certificate(world, monkeypatch):
    """Otherwise the API server would refuse the certificate, and with it all new pods of the system."""
    tell_about_rights(world, allowed=True)
    await world.control_plane.deploy_resource_manager(TASK)
    rolled_out(world)
    before = world.secret("managedresource-shoot-core-gardener-resource-manager")["data"]
    cluster = {**SHOOT, "status": {"credentials": {"rotation": {"certificateAuthorities": ROTATION}}}}
    manager = await SecretsManager.of_shoot(world.clusters.seed, NAMESPACE, cluster)
    await manager.generate(CertificateAuthority("ca"))
    world.pin(cluster)
    mounted = of_webhooks(world, "deployments")["spec"]["template"]["spec"]["volumes"]

    deploying = asyncio.create_task(world.control_plane.deploy_resource_manager(TASK))
    await until(lambda: world.secret("managedresource-shoot-core-gardener-resource-manager")["data"] != before)
    cache = world.clusters.seed_caches
    await until(lambda: any(each.resource.plural == "managedresources" and each.is_synced for each in cache.started()))
    assert of_webhooks(world, "deployments")["spec"]["template"]["spec"]["volumes"] == mounted

    applied = [{"type": f"Resources{each}", "status": str(each != "Progressing")} for each in CONDITIONS]
    checksum = secrets_checksum([world.secret("managedresource-shoot-core-gardener-resource-manager")])
    status = {"observedGeneration": 1, "secretsDataChecksum": checksum, "conditions": applied}
    world.seed.change(MANAGED_RESOURCES, "shoot-core-gardener-resource-manager", NAMESPACE, {"status": status})
    await deploying
    assert of_webhooks(world, "deployments")["spec"]["template"]["spec"]["volumes"] != mounted


async def test_a_shoot_without_workers_has_no_webhooks(world):
    tell_about_rights(world, allowed=True)
    await world.control_plane.deploy_resource_manager(TASK)
    world.pin({**SHOOT, "spec": {**SHOOT["spec"], "provider": {"type": "local"}}})
    await world.control_plane.deploy_resource_manager(TASK)

    assert of_webhooks(world) is None
    assert world.seed.find("/api/v1/services", "gardener-resource-manager", NAMESPACE) is None


@pytest.mark.parametrize("loss", ["token expired", "rights removed"])
async def test_a_resource_manager_without_a_valid_token_gets_a_new_one(world, loss):
    """It renews its own token, so after a long sleep or a deleted binding only this task can give it a new one."""
    tell_about_rights(world, allowed=True)
    await world.control_plane.deploy_resource_manager(TASK)
    if loss == "token expired":
        world.shoot.tokens.clear()
    else:
        tell_about_rights(world, allowed=False)
    result = await world.control_plane.deploy_resource_manager(TASK)

    assert result.note == "got its first token"


@pytest.mark.parametrize(
    ("activity", "name"),
    [
        ("deploy_machine_controller_manager", "machine-controller-manager"),
        ("deploy_kube_controller_manager", "kube-controller-manager"),
        ("deploy_scheduler", "kube-scheduler"),
    ],
)
async def test_controllers_do_not_wait_for_the_resource_manager_to_get_their_token(world, activity, name):
    """Machines take longest to come, and the resource manager takes its time to start."""
    deploy = getattr(world.control_plane, activity)
    await deploy(TASK)
    access = world.secret(f"shoot-access-{name}")
    token = base64.b64decode(access["data"]["token"]).decode()
    await deploy(TASK)

    assert world.shoot.tokens == {token: f"kube-system:{name}"}
    assert world.secret(f"shoot-access-{name}") == access


async def test_a_token_that_expired_during_hibernation_is_replaced(world):
    await world.control_plane.deploy_machine_controller_manager(TASK)
    name, renewed = "shoot-access-machine-controller-manager", "2026-11-21T11:00:00Z"
    annotations = {"serviceaccount.resources.gardener.cloud/token-renew-timestamp": renewed}
    world.seed.change(SECRETS, name, NAMESPACE, {"metadata": {"annotations": annotations}})
    await world.control_plane.deploy_machine_controller_manager(TASK)

    assert len(world.shoot.tokens) == 2
    assert renewed not in world.secret(name)["metadata"]["annotations"].values()


async def test_owners_have_access_before_the_system_components_run(world):
    tell_about_rights(world, allowed=True)
    await world.control_plane.deploy_resource_manager(TASK)
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

    assert world.shoot.find(bindings, "gardener.cloud:system:admins")


async def test_no_bootstrap_credential_is_stored(world):
    """A certificate of system:masters would open the cluster to every reader of the seed's Secrets."""
    tell_about_rights(world, allowed=True)
    await world.control_plane.deploy_resource_manager(TASK)

    assert not [name for (path, _, name) in world.seed.objects if path == SECRETS and "bootstrap" in name]


# Our own access


async def test_our_token_is_not_lost_when_the_access_is_applied_again(world):
    await world.control_plane.deploy_gardener_access(TASK)
    secret = world.secret("gardener-internal")
    kubeconfig = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    assert kubeconfig["clusters"][0]["cluster"]["server"] == "https://api.a.dev.internal.example.org"
    kubeconfig["users"][0]["user"] = {"token": "t"}
    encoded = base64.b64encode(json.dumps(kubeconfig).encode()).decode()
    world.seed.change(SECRETS, "gardener-internal", NAMESPACE, {"data": {"kubeconfig": encoded}})

    await world.control_plane.deploy_gardener_access(TASK)
    assert world.secret("gardener-internal")["data"]["kubeconfig"] == encoded


async def test_the_wait_for_a_read_only_api_server_is_short(world, monkeypatch):
    """One that has to write to get ready would end half a minute after its start."""
    monkeypatch.setattr("activities.seed.control_plane._READING_SECONDS", 0.2)
    await world.control_plane.deploy_apiserver(TASK)
    waited = await world.control_plane.wait_apiserver_reading(TASK)
    assert waited.note.startswith(f"not waiting any longer: Deployment {NAMESPACE}/kube-apiserver ")
    ready = {"observedGeneration": 1, "updatedReplicas": 1, "replicas": 1, "availableReplicas": 1}
    world.seed.change("/apis/apps/v1/deployments", "kube-apiserver", NAMESPACE, {"status": ready})
    assert not (await world.control_plane.wait_apiserver_reading(TASK)).note


# The way back


async def test_deletion_takes_what_deployment_made_and_can_be_repeated(world):
    tell_about_rights(world, allowed=True)
    for activity in (
        world.control_plane.deploy_apiserver,
        world.control_plane.deploy_apiserver_sni,
        world.control_plane.deploy_resource_manager,
        world.control_plane.deploy_machine_controller_manager,
    ):
        await activity(TASK)
    for _ in range(2):
        await world.control_plane.delete_machine_controller_manager(TASK)
        await world.control_plane.delete_apiserver(TASK)
        await world.control_plane.delete_apiserver_sni(TASK)
        await world.control_plane.delete_api_service(TASK)
        await world.control_plane.delete_resource_manager(TASK)

    kept = (SECRETS, "/apis/extensions.gardener.cloud/v1alpha1/clusters")
    left = [(path, name) for (path, _, name) in world.seed.objects if path not in kept]
    # Another activity deletes all ManagedResources, while the resource manager runs.
    assert {path for path, _ in left} == {MANAGED_RESOURCES}


async def test_clients_are_forwarded_after_a_move_until_the_control_plane_is_back(world):
    def forwarding():
        return world.seed.find("/api/v1/configmaps", NAMESPACE, "istio-ingress")

    async def forward(address):
        await world.control_plane.forward_apiserver_sni(ForwardTask(task=TASK, address=address))
        return json.loads(forwarding()["data"]["forwarding.json"]) if forwarding() else None

    assert await forward("") is None
    first, second = await forward("192.0.2.7"), await forward("192.0.2.7")
    await world.control_plane.deploy_apiserver_sni(TASK)
    exposure = world.seed.find("/api/v1/configmaps", "apiserver-exposure", NAMESPACE)
    assert first["hosts"] == json.loads(exposure["data"]["exposure.json"])["hosts"]
    assert first["address"] == "192.0.2.7"
    assert first["until"] < second["until"]
    await world.control_plane.deploy_api_service(TASK)
    assert forwarding()
    await world.control_plane.deploy_api_service(TASK.model_copy(update={"operation": OperationType.RESTORE}))
    assert not forwarding()


@pytest.fixture
def in_shoot(world, monkeypatch):
    """The shoot as activities see it, without access of its own."""

    async def client(_):
        return world.shoot.client()

    monkeypatch.setattr(world.clusters, "shoot", client)
    return world.shoot


async def test_nodes_that_wait_for_their_replacement_keep_their_kube_proxy(world, in_shoot):
    """A former version of one pool, and a former pool: while they are drained, pods there need their Services."""
    for name, pool, version in (("n1", "w", "1.36.3"), ("n2", "former", "1.37.1"), ("n3", "w", "1.37.1")):
        labels = {"worker.gardener.cloud/pool": pool, "worker.gardener.cloud/kubernetes-version": version}
        in_shoot.put("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    in_shoot.put("/api/v1/nodes", {"metadata": {"name": "n4"}})

    await world.system.deploy_kube_proxy(TASK)

    sent = world.secret("managedresource-shoot-core-kube-proxy")["data"]
    daemons = sorted(name.removeprefix("daemonset__kube-system__") for name in sent if name.startswith("daemonset__"))
    assert daemons == ["kube-proxy-former-v1.37.1.yaml", "kube-proxy-w-v1.36.3.yaml", "kube-proxy-w-v1.37.1.yaml"]


async def test_switching_kube_proxy_off_removes_it(world, in_shoot):
    resources = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
    await world.system.deploy_kube_proxy(TASK)
    assert world.seed.find(resources, "shoot-core-kube-proxy", NAMESPACE)
    assert world.secret("managedresource-shoot-core-kube-proxy")

    world.pin(with_settings(kubeProxy={"enabled": False}))
    await world.system.deploy_kube_proxy(TASK)
    assert world.seed.find(resources, "shoot-core-kube-proxy", NAMESPACE) is None
    assert world.secret("managedresource-shoot-core-kube-proxy") is None


async def test_core_dns_is_restarted_on_request_and_not_again(world, in_shoot):
    """Later operations keep the time of the restart: another one would replace the pods again."""

    async def template():
        await world.system.deploy_coredns(TASK.model_copy(update={"trigger": "2026-11-29T10:00:00Z"}))
        sent = world.secret("managedresource-shoot-core-coredns")["data"]
        deployment = json.loads(base64.b64decode(sent["deployment__kube-system__coredns.yaml"]))
        return deployment["spec"]["template"]["metadata"]["annotations"]

    never = await template()
    world.pin({**SHOOT, "metadata": {**SHOOT["metadata"], "annotations": {SHOOT_TASKS: "other,restartCoreAddons"}}})
    restarted = await template()
    assert restarted == {**never, "gardener.cloud/restarted-at": "2026-11-29T10:00:00Z"}

    earlier = {"metadata": {"annotations": {**restarted, "gardener.cloud/restarted-at": "earlier"}}}
    live = {"metadata": {"name": "coredns", "namespace": "kube-system"}, "spec": {"template": earlier}}
    in_shoot.put("/apis/apps/v1/deployments", live)
    world.pin(SHOOT)
    assert await template() == {**never, "gardener.cloud/restarted-at": "earlier"}


async def test_only_own_objects_are_removed(world, in_shoot):
    """Extensions delete their own ManagedResources, in their own order."""
    resources = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
    foreign = {"metadata": {"name": "extension-network", "namespace": NAMESPACE}, "spec": {}}
    world.seed.put(resources, foreign)
    await world.system.deploy_shoot_namespaces(TASK)
    await world.system.deploy_coredns(TASK)

    result = await world.system.delete_managed_resources(TASK)
    await world.system.wait_managed_resources_deleted(TASK)

    assert result.note == "2 components"
    assert [name for (path, _, name) in world.seed.objects if path == resources] == ["extension-network"]
    assert world.secret("managedresource-shoot-core-coredns") is None


async def test_the_api_server_is_deleted_after_objects_of_extensions_in_the_shoot(world):
    resources = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
    world.seed.put(resources, {"metadata": {"name": "extension-csi", "namespace": NAMESPACE}, "spec": {}})
    world.seed.put(
        resources, {"metadata": {"name": "extension-ccm", "namespace": NAMESPACE}, "spec": {"class": "seed"}}
    )

    waiting = asyncio.create_task(world.system.wait_shoot_managed_resources_deleted(TASK))
    await until(lambda: world.seed.watching)
    assert not waiting.done()
    world.seed.remove(resources, "extension-csi", NAMESPACE)

    await asyncio.wait_for(waiting, 20)


async def test_pods_learn_which_cluster_they_are_in(world):
    """It is computed while the operation runs: the Cluster resource does not know it yet."""
    world.garden.change(SHOOTS, "a", "garden-dev", {"status": {"clusterIdentity": "shoot--dev--a-u-1-garden"}})
    result = await world.system.deploy_cluster_identity(TASK)
    assert result.note == "shoot--dev--a-u-1-garden"
    path = "/apis/resources.gardener.cloud/v1alpha1/managedresources"
    assert world.seed.find(path, "shoot-core-cluster-identity", NAMESPACE)


async def test_only_controllers_restart_and_only_once(world):
    """A pod that started since the operation began is the successor of one that was deleted."""
    task = TASK.model_copy(update={"trigger": "2026-11-21T10:00:00.5Z"})
    labels = {"app": "kubernetes", "role": "controller-manager"}
    for name, created, own in (
        ("old", "2026-11-21T09:00:00Z", labels),
        ("new", "2026-11-21T10:00:00Z", labels),
        ("api-server", "2026-11-21T09:00:00Z", {"app": "kubernetes", "role": "apiserver"}),
    ):
        metadata = {"name": name, "namespace": NAMESPACE, "labels": own, "creationTimestamp": created}
        world.seed.put("/api/v1/pods", {"metadata": metadata})
    assert (await world.control_plane.restart_control_plane_pods(task)).note == "1 pods"
    assert {name for path, _, name in world.seed.objects if path == "/api/v1/pods"} == {"new", "api-server"}
    assert (await world.control_plane.restart_control_plane_pods(task)).note == "0 pods"


async def test_a_new_encryption_key_writes_once_all_replicas_can_read_with_it(world, monkeypatch):
    waited = []

    async def replaced(_):
        waited.append(await first_key())

    async def first_key():
        live = world.seed.find("/apis/apps/v1/deployments", "kube-apiserver", NAMESPACE)
        volumes = {each["name"]: each for each in live["spec"]["template"]["spec"]["volumes"]}
        data = world.secret(volumes["encryption"]["secret"]["secretName"])["data"]["encryption-configuration.yaml"]
        return json.loads(base64.b64decode(data))["resources"][0]["providers"][0]["aescbc"]["keys"][0]["secret"]

    monkeypatch.setattr(world.control_plane, "_wait_apiserver", replaced)
    state = {"phase": "Preparing", "lastInitiationTime": "2026-11-21T10:00:00Z"}
    world.pin({**SHOOT, "status": {"credentials": {"rotation": {"etcdEncryptionKey": state}}}})
    view = await world.clusters.cluster(NAMESPACE)
    secrets = await SecretsManager.load(
        world.clusters.seed, namespace=NAMESPACE, rotation=Rotation.of_shoot(view.shoot)
    )
    await generate_encryption_configuration(world.clusters.seed, view, secrets)
    await world.control_plane.deploy_apiserver(TASK)
    old = await first_key()

    for _ in range(2):
        await world.control_plane.encrypt_with_new_key(TASK)
    new = await first_key()
    assert new != old
    assert waited == [old, new, new, new]
    live = world.seed.find("/apis/apps/v1/deployments", "kube-apiserver", NAMESPACE)
    assert live["metadata"]["annotations"]["credentials.gardener.cloud/new-encryption-key-populated"] == "true"


async def test_the_seeds_end_of_the_tunnel_is_awaited(world, monkeypatch):
    waited = []

    async def rolled_out(name, task, timeout):
        waited.append(name)

    monkeypatch.setattr(world.control_plane, "_wait", rolled_out)
    await world.control_plane.wait_vpn_server(TASK)
    assert waited == ["vpn-seed-server"]

    waited.clear()
    world.pin(_tolerant())
    await world.control_plane.wait_vpn_server(TASK)
    assert waited == ["vpn-seed-server", "vpn-seed-server-1"]


def _tolerant(**annotations):
    available = {"controlPlane": {"highAvailability": {"failureTolerance": {"type": "node"}}}}
    return _annotated({**SHOOT, "spec": {**SHOOT["spec"], **available}}, annotations)


def _annotated(shoot, annotations):
    prefix = "alpha.control-plane.shoot.gardener.cloud/"
    return {**shoot, "metadata": {**shoot["metadata"], "annotations": {prefix + k: v for k, v in annotations.items()}}}


@pytest.mark.parametrize(
    ("shoot", "servers"),
    [
        (SHOOT, 1),
        (_tolerant(), 2),
        (_tolerant(**{"high-availability-vpn": "false"}), 1),
        (_annotated(SHOOT, {"high-availability-vpn": "true"}), 2),
        (_annotated(SHOOT, {"high-availability-vpn": "maybe"}), 1),
    ],
    ids=["plain", "tolerant", "switched off", "switched on", "no boolean"],
)
async def test_a_tolerant_control_plane_or_an_annotation_has_two_vpn_servers(world, shoot, servers):
    world.pin(shoot)
    await world.control_plane.deploy_vpn_server(TASK)
    await world.control_plane.deploy_apiserver(TASK)
    await world.system.deploy_vpn_shoot(TASK)

    names = ("vpn-seed-server", "vpn-seed-server-1")
    found = [name for name in names if world.seed.find("/apis/apps/v1/deployments", name, NAMESPACE)]
    assert len(found) == servers
    api_server = world.seed.find("/apis/apps/v1/deployments", "kube-apiserver", NAMESPACE)
    sidecars = api_server["spec"]["template"]["spec"].get("initContainers", [])
    assert [each["name"] for each in sidecars] == (["vpn-egress"] if servers == 2 else [])


async def test_the_second_vpn_server_is_deleted_when_the_annotation_switches_it_off(world):
    world.pin(_tolerant())
    await world.control_plane.deploy_vpn_server(TASK)
    assert world.seed.find("/api/v1/services", "vpn-seed-server-1", NAMESPACE)

    world.pin(_tolerant(**{"high-availability-vpn": "false"}))
    for _ in range(2):
        await world.control_plane.deploy_vpn_server(TASK)
        for path in ("/apis/apps/v1/deployments", "/api/v1/services", "/apis/policy/v1/poddisruptionbudgets"):
            assert world.seed.find(path, "vpn-seed-server-1", NAMESPACE) is None
            assert world.seed.find(path, "vpn-seed-server", NAMESPACE)

"""The processes that read the landscape's files accept them."""

import importlib
import json
from base64 import b64decode
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from temporalio.common import SearchAttributeKey

from api.access import access
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.local import CloudProfileConfig
from api.resources import NAMESPACE, SECRET
from api.security.v1alpha1.credentials_binding import CredentialsBinding
from api.validation.garden import check_seed
from landscape import containerd, dns, extensions, garden, kernel, object_store, registry, temporal, workers
from landscape.cluster import kubelet_config, resolv_conf
from landscape.errors import LandscapeError
from landscape.pki import KeyPair
from landscape.plan import Plan
from landscape.processes import Processes, ProcessSpec
from tests.unit.kube.fake_cluster import FakeCluster
from workers.gardenlet.config import GardenletConfig
from workers.lib.runtime import load_config
from workflows import visibility

MODELS = {
    "admission": "workers.admission.process:AdmissionConfig",
    "codec-server": "workers.codec_server:CodecServerConfig",
    "controller-manager": "workers.controller_manager.process:ControllerManagerConfig",
    "discovery-server": "workers.discovery_server:DiscoveryServerConfig",
    "gardenlet": "workers.gardenlet.config:GardenletConfig",
    "network-policy-agent": "workers.network_policy_agent.process:NetworkPolicyAgentConfig",
    "provider-local": "workers.provider_local.config:ProviderLocalConfig",
    "scheduler": "workers.scheduler:SchedulerConfig",
    "subresources": "workers.subresources.process:SubresourcesConfig",
}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setattr("landscape.plan.RUN_HOME", tmp_path / "run")
    return Plan("a", 1, "1.37.1", state_home=tmp_path)


def test_every_configuration_fits_the_process_that_reads_it(plan):
    processes = workers.of_garden(plan)
    for seed in plan.seeds:
        processes += workers.of_seed(plan, seed)
        processes += (workers.of_node(plan, seed, node) for node in seed.nodes)

    names = set()
    for process in processes:
        worker, config = process.spec.argv[2], process.spec.argv[4]
        module, model = MODELS[worker].split(":")
        load_config(getattr(importlib.import_module(module), model), config)
        names.add(worker)
    assert names == set(MODELS) - {"provider-local"}, "pods run provider-local, with the configuration of its chart"


def test_processes_of_a_seed_run_in_its_network(plan):
    """Cut off, the seed's gardenlet must not reach Temporal by the host's network."""
    for seed in plan.seeds:
        assert {process.spec.netns for process in workers.of_seed(plan, seed)} == {f"gardener-a-{seed.name}"}


def test_a_changed_configuration_replaces_the_process(plan, monkeypatch):
    before = workers.of_garden(plan)
    assert workers.of_garden(plan) == before

    monkeypatch.setattr(workers, "code_digest", lambda *rooms: "other")

    assert all(now.spec != then.spec for now, then in zip(workers.of_garden(plan), before, strict=True))


def test_changed_code_replaces_the_pods_of_etcds(plan, monkeypatch):
    """Images have the same tag in all versions, so a changed tag does not replace these pods."""

    def digests():
        configs = (process.spec.argv[4] for process in workers.of_seed(plan, plan.seeds[0]))
        gardenlets = [file for file in configs if "gardenlet" in file]
        return [load_config(GardenletConfig, file).etcd.image_digest for file in gardenlets]

    [before] = digests()
    assert before
    assert digests() == [before]

    monkeypatch.setattr(workers, "code_digest", lambda *rooms: "other")

    assert digests() == ["other"]


def test_another_key_of_the_administrator_makes_other_processes_of_the_object_store(plan):
    before = object_store.processes(plan, "versitygw")
    assert object_store.processes(plan, "versitygw") == before

    (plan.object_store / "administrator.json").unlink()

    assert not [each for each in object_store.processes(plan, "versitygw") if each in before]


def test_the_administrators_key_is_in_no_command_line_and_no_environment_that_is_stored(plan):
    key = object_store.administrator(plan)
    for process in object_store.processes(plan, "versitygw"):
        assert key.secret not in str(process)


@pytest.mark.parametrize("own_access", [False, True])
async def test_provider_local_of_an_earlier_version_ends(plan, tmp_path, monkeypatch, own_access):
    """The earliest versions used the seed's own kubeconfig, later ones gave the process a kubeconfig."""
    seed, processes = FakeCluster(), Processes(tmp_path / "processes", tmp_path / "logs")
    monkeypatch.setattr(extensions, "connected", lambda _: nullcontext(seed))
    place = plan.seeds[0]
    access = place.directory / "provider-local.kubeconfig"
    access.parent.mkdir(parents=True, exist_ok=True)
    if own_access:
        access.touch()
        await seed.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "extension-provider-local"}})
    earlier = processes.start(ProcessSpec(f"{place.name}/provider-local", ("sleep", "300")))
    try:
        await extensions.end_earlier(plan, place, processes)
        assert not earlier.alive
        assert processes.find(earlier.spec.name) is None, "the keeper must not start it again"
        await extensions.end_earlier(plan, place, processes)
    finally:
        processes.stop(list(processes.all()), grace=0.2)
    assert not access.exists()
    assert await seed.find(NAMESPACE, "extension-provider-local") is None


@pytest.mark.parametrize("name", ["etcd-backup", "source-etcd-backup"])
async def test_the_store_of_an_earlier_version_goes_on_while_an_etcd_has_a_token(plan, tmp_path, monkeypatch, name):
    seed, processes = FakeCluster(), Processes(tmp_path / "processes", tmp_path / "logs")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "shoot--a--b"}}
    await seed.create(secret | {"data": {"token": "eA=="}})
    monkeypatch.setattr(object_store, "connected", lambda _: nullcontext(seed))
    monkeypatch.setattr("landscape.network.is_cut", lambda *_: False)
    for each in plan.seeds:
        plan.kubeconfig(each.name).parent.mkdir(parents=True, exist_ok=True)
        plan.kubeconfig(each.name).touch()
    buckets = plan.object_store / "buckets"
    (buckets / ".uploads").mkdir(parents=True)
    (buckets / "seed").mkdir()
    (buckets / "seed/Full-1").write_text("snapshot")
    (plan.object_store / "token").write_text("token")
    earlier = processes.start(ProcessSpec("object-store", ("sleep", "300")))
    try:
        assert not [each for each in object_store.processes(plan, "versitygw") if each.name == "object-store"]
        await object_store.end_earlier(plan, processes)
        assert earlier.alive
        assert (buckets / ".uploads").exists()

        await seed.delete(SECRET, name, "shoot--a--b")
        await seed.create(secret | {"data": {"accessKeyID": "eA=="}})
        await object_store.end_earlier(plan, processes)
        assert not earlier.alive
        assert processes.find("object-store") is None
    finally:
        processes.stop(list(processes.all()), grace=0.2)
    assert [path.name for path in buckets.rglob("*")] == ["seed", "Full-1"]
    assert not (plan.object_store / "token").exists()


def test_no_two_processes_answer_at_one_address(plan):
    urls = [process.ready_url for process in workers.of_garden(plan)]
    for seed in plan.seeds:
        urls += [process.ready_url for process in workers.of_seed(plan, seed)]

    assert len(set(urls)) == len(urls)


def test_the_seeds_are_valid(plan):
    for cluster in plan.seeds:
        seed = Seed.model_validate(
            {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", **workers.seed_config(plan, cluster)}
        )
        assert not check_seed(seed)
        assert seed.spec.networks.pods == cluster.pods


def test_each_seed_has_an_ingress_domain_that_its_dns_provider_may_change(plan):
    domains = [workers.seed_config(plan, cluster)["spec"]["ingress"]["domain"] for cluster in plan.seeds]

    assert domains[:2] == ["ingress.seed-1.a.garden.test", "ingress.seed-2.a.garden.test"]
    [secret] = [each for each in garden.credentials(plan, {}) if each["metadata"]["name"] == "internal-domain"]
    assert b64decode(secret["data"]["zone"]) == b"a.garden.test"


def test_the_gardens_objects_are_valid(plan):
    profile = CloudProfile.model_validate(garden.cloud_profile(plan))
    config = CloudProfileConfig.model_validate(profile.spec.provider_config)
    assert config.machine_network == "198.18.24.0/22"
    assert config.machine_network_ipv6 == "2001:2:0:18::/64"
    Project.model_validate(garden.project())
    ControllerRegistration.model_validate(garden.controller_registration())
    binding = garden.cloud_binding()
    CredentialsBinding.model_validate(binding)


def test_a_kernel_without_ipv6_has_no_ipv6_network_of_machines(plan, monkeypatch):
    monkeypatch.setattr(kernel, "has_ipv6", lambda: False)

    config = CloudProfileConfig.model_validate(garden.cloud_profile(plan)["spec"]["providerConfig"])

    assert config.machine_network_ipv6 == ""


def test_secrets_of_a_landscape_are_made_once_and_are_private(plan):
    first = garden.credentials(plan, {})

    assert garden.credentials(plan, {}) == first
    object_store.processes(plan, "versitygw")
    keys = [plan.object_store / f"administrator.{ending}" for ending in ("json", "env")]
    for file in (plan.tsig_key, *keys):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_seed_has_no_rights_of_operators(plan):
    """A seed's credentials lie in a cluster that others may run."""
    granted = access(unrestricted_gardenlets=True)
    bindings = {each["metadata"]["name"]: each for each in granted if each["kind"] == "ClusterRoleBinding"}
    roles = {each["metadata"]["name"]: each for each in granted if each["kind"] == "ClusterRole"}

    assert bindings["gardener.cloud:system:seeds"]["subjects"][0]["name"] == "gardener.cloud:system:seeds"
    for rule in roles["gardener.cloud:system:seeds"]["rules"]:
        assert "*" not in rule["verbs"]
        assert rule["apiGroups"] != ["rbac.authorization.k8s.io"]


def test_each_process_has_its_own_identity(plan):
    kubeconfigs = [yaml.safe_dump(garden.process_kubeconfig(plan, name)) for name in ("seed-1", "seed-2", "admission")]

    assert len(set(kubeconfigs)) == 3


def test_two_kubelets_never_share_a_cgroup_or_directory(plan, tmp_path):
    serving = KeyPair(tmp_path / "c", tmp_path / "k")
    one, two = (
        kubelet_config(
            plan, plan.cluster(name), plan.cluster(name).nodes[0], tmp_path / "ca", serving, tmp_path / "resolv"
        )
        for name in ("seed-1", "seed-2")
    )

    for field in ("cgroupRoot", "podLogsDir", "volumePluginDir", "containerRuntimeEndpoint", "address"):
        assert one[field] != two[field]


def test_search_attributes_are_registered_when_the_server_starts(plan):
    """An unknown one would stall every workflow that sets it."""
    argv = temporal.processes(plan)[0].argv
    registered = {argument.removesuffix("=Keyword") for argument in argv if argument.endswith("=Keyword")}

    assert registered == {"GardenerProject", "GardenerShoot", "GardenerSeed", "GardenerOperation"}
    assert {key.name for key in vars(visibility).values() if isinstance(key, SearchAttributeKey)} == registered


def test_closed_seeds_block_what_is_at_the_central_address_but_not_the_object_store(plan):
    """Etcds write backups, and public addresses of the landscape are out of 198.18.0.0/15."""
    closed = replace(plan, closed=True)
    config = yaml.safe_load(Path(workers.of_seed(closed, closed.cluster("seed-1"))[0].spec.argv[-1]).read_text())

    assert config["networkPolicies"] == {"enabled": True}
    assert config["seedConfig"]["spec"]["networks"]["blockCIDRs"] == [f"{closed.central_address}/32"]
    assert closed.object_store_endpoint != plan.object_store_endpoint
    labels = extensions.controller_deployment(closed)["helm"]["values"]["podLabels"]
    assert labels == {"networking.gardener.cloud/to-blocked-cidrs": "allowed"}
    assert "blockCIDRs" not in workers.seed_config(plan, plan.cluster("seed-1"))["spec"]["networks"]


def test_gardenlets_of_a_landscape_store_logs_on_request(plan):
    """The store is compiled for it, so `up` alone does not ask for it."""

    def purposes(of):
        file = workers.of_seed(of, of.cluster("seed-1"))[0].spec.argv[-1]
        return load_config(GardenletConfig, file).logging.node_logs.purposes

    assert purposes(plan) == frozenset()
    assert "evaluation" in purposes(replace(plan, node_logs=True))


def test_the_registry_that_machines_reach_only_reads(plan):
    """A process with the right to write is in a network namespace of its own."""
    process = registry.process(plan, "registry")
    config = json.loads(Path(process.argv[-1]).read_text())

    assert process.netns == plan.cloud.netns
    assert config["storage"]["maintenance"]["readonly"] == {"enabled": True}
    assert f"https://{config['http']['addr']}" == plan.registry_endpoint
    assert Path(config["http"]["tls"]["key"]).stat().st_mode & 0o777 == 0o600
    assert registry.process(plan, "registry") == process


def test_nodes_verify_the_certificate_of_the_registry(plan):
    values = extensions.controller_deployment(plan)["helm"]["values"]["registryMirror"]
    file = Path(json.loads(Path(registry.process(plan, "registry").argv[-1]).read_text())["http"]["tls"]["certificate"])
    certificate = x509.load_pem_x509_certificate(file.read_bytes())

    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(values["caBundle"].encode()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [f"https://{each}:5000" for each in names.get_values_for_type(x509.IPAddress)] == [values["url"]]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("docker.io/library/app:v1", "library/app:v1"),
        ("registry.k8s.io/pause:3.10", "pause:3.10"),
        ("localhost/app:v1", "app:v1"),
        ("localhost:5000/team/app@sha256:1", "team/app@sha256:1"),
    ],
)
def test_images_of_all_registries_lie_side_by_side(image, expected):
    """containerd asks a mirror for the name without the registry."""
    assert registry.repository(image) == expected


@pytest.mark.parametrize("image", ["import-2026-11-29@sha256:1", "app:v1", "team/app:v1"])
def test_an_image_that_no_pod_could_name_is_refused(image):
    with pytest.raises(LandscapeError, match="docker tag"):
        registry.repository(image)


def test_pods_of_seeds_wait_for_the_rules_of_their_node(plan):
    (node,) = plan.cluster("seed-1").nodes
    agent = yaml.safe_load(Path(workers.of_node(plan, plan.cluster("seed-1"), node).spec.argv[-1]).read_text())

    plugins = json.loads(containerd.cni_config(node, enforces=True))["plugins"]

    assert [each["type"] for each in plugins] == ["bridge", "gardener-network-policies"]
    assert (plugins[1]["socket"], plugins[0]["ipam"]["ranges"]) == (agent["socket"], [[{"subnet": agent["pods"]}]])
    assert len(plugins[1]["socket"]) < 108
    assert len(json.loads(containerd.cni_config(node, enforces=False))["plugins"]) == 1


def test_machines_know_both_addresses_of_the_dns_server_and_seeds_one(plan, monkeypatch):
    """Pods of a Shoot with IPv6 alone reach the second one only; a seed has no way to it."""
    monkeypatch.setattr(dns, "has_ipv6", lambda: True)
    assert resolv_conf(plan, plan.cloud) == "nameserver 198.18.16.1\nnameserver 2001:2:0:19::1\n"
    assert resolv_conf(plan, plan.seeds[0]) == "nameserver 198.18.16.1\n"

    monkeypatch.setattr(dns, "has_ipv6", lambda: False)
    assert resolv_conf(plan, plan.cloud) == "nameserver 198.18.16.1\n"


def test_the_dns_server_is_replaced_when_it_gets_an_address_of_ipv6(plan, monkeypatch):
    """``up`` of a new version finds the server of an earlier one, with the same arguments."""
    monkeypatch.setattr(dns, "has_ipv6", lambda: False)
    before = dns.process(plan)
    monkeypatch.setattr(dns, "has_ipv6", lambda: True)

    after = dns.process(plan)

    assert after.argv == before.argv
    assert after != before
    assert dns.process(plan) == after
    assert "listen: [198.18.16.1@53, 2001:2:0:19::1@53]" in Path(after.argv[2]).read_text()

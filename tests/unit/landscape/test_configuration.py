"""What the landscape writes for others is understood by them."""

import importlib
from base64 import b64decode

import pytest
import yaml
from temporalio.common import SearchAttributeKey

from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.local import CloudProfileConfig
from api.security.v1alpha1.credentials_binding import CredentialsBinding
from api.validation.garden import check_seed
from landscape import garden, temporal, workers
from landscape.cluster import kubelet_config
from landscape.pki import KeyPair
from landscape.plan import Plan
from workers.lib.runtime import load_config
from workflows import visibility

MODELS = {
    "admission": "workers.admission.process:AdmissionConfig",
    "codec-server": "workers.codec_server:CodecServerConfig",
    "controller-manager": "workers.controller_manager.process:ControllerManagerConfig",
    "discovery-server": "workers.discovery_server:DiscoveryServerConfig",
    "gardenlet": "workers.gardenlet.config:GardenletConfig",
    "object-store": "workers.object_store:ObjectStoreConfig",
    "provider-local": "workers.provider_local.config:ProviderLocalConfig",
    "scheduler": "workers.scheduler:SchedulerConfig",
}


@pytest.fixture
def plan(tmp_path):
    return Plan("a", 1, "1.37.1", state_home=tmp_path)


def test_every_configuration_fits_the_process_that_reads_it(plan):
    processes = [workers.object_store(plan), *workers.of_garden(plan)]
    for seed in plan.seeds:
        processes += workers.of_seed(plan, seed)

    names = set()
    for process in processes:
        worker, config = process.spec.argv[2], process.spec.argv[4]
        module, model = MODELS[worker].split(":")
        load_config(getattr(importlib.import_module(module), model), config)
        names.add(worker)
    assert names == set(MODELS)


def test_processes_of_a_seed_run_in_its_network(plan):
    """Cut off, the seed's gardenlet must not reach Temporal by the host's network."""
    for seed in plan.seeds:
        assert {process.spec.netns for process in workers.of_seed(plan, seed)} == {f"gardener-a-{seed.name}"}


def test_another_configuration_makes_another_process(plan, monkeypatch):
    before = workers.object_store(plan).spec
    assert workers.object_store(plan).spec == before

    monkeypatch.setattr(workers, "code_digest", lambda *rooms: "other")

    assert workers.object_store(plan).spec != before


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
    Project.model_validate(garden.project())
    ControllerRegistration.model_validate(garden.controller_registration())
    binding = garden.cloud_binding()
    CredentialsBinding.model_validate(binding)


def test_secrets_of_a_landscape_are_made_once_and_are_private(plan):
    first = garden.credentials(plan, {})

    assert garden.credentials(plan, {}) == first
    for file in (plan.tsig_key, plan.object_store_token):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_seed_may_not_do_what_operators_may(plan):
    """A seed's credentials lie in a cluster that others may run."""
    granted = garden.access(unrestricted_gardenlets=True)
    bindings = {each["metadata"]["name"]: each for each in granted if each["kind"] == "ClusterRoleBinding"}
    roles = {each["metadata"]["name"]: each for each in granted if each["kind"] == "ClusterRole"}

    assert bindings["gardener.cloud:system:seeds"]["subjects"][0]["name"] == "gardener.cloud:system:seeds"
    for rule in roles["gardener.cloud:system:seeds"]["rules"]:
        assert "*" not in rule["verbs"]
        assert rule["apiGroups"] != ["rbac.authorization.k8s.io"]


def test_an_identity_of_its_own_for_each_process(plan):
    kubeconfigs = [yaml.safe_dump(garden.process_kubeconfig(plan, name)) for name in ("seed-1", "seed-2", "admission")]

    assert len(set(kubeconfigs)) == 3


def test_two_kubelets_never_share_a_cgroup_or_directory(plan, tmp_path):
    serving = KeyPair(tmp_path / "c", tmp_path / "k")
    one, two = (
        kubelet_config(plan, plan.cluster(name), tmp_path / "ca", serving, tmp_path / "resolv")
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

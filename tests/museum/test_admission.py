"""Values that are refused when they are written.

Each Shoot goes through admission as the API server sends it: first ``/mutate``, then ``/validate``.
"""

import json
from collections import Counter
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from activities.components.coredns import cluster_dns_address
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions.scheduling import NoSeed, choose_seed
from tests.unit.admission.conftest import client, garden
from tests.unit.admission.test_logins import config_map
from tests.unit.admission.webhooks import FakeGarden, ask, patched
from tests.unit.api.shoots import PROFILE, SEED, changed, complete, profile
from tests.unit.api.test_logins import AUTHENTICATION, with_

__all__ = ["client", "garden"]

Client = TestClient[Any, Any]
Object = dict[str, Any]

POOL = "spec.provider.workers.0"
SERVER = "spec.kubernetes.kubeAPIServer"
ENCRYPTED = f"{SERVER}.encryptionConfig.resources"
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
AUDITED = {"configMapRef": {"name": "audit"}}


def shoot(*changes: tuple[str, Any]) -> Object:
    """A Shoot with a seed, without faults but those of the changes."""
    made = complete(bound=True).to_wire()
    for path, value in changes:
        made = changed(made, path, value)
    return made


async def refusal(client: Client, obj: Object, old: Object | None = None) -> str:
    """Message of admission; empty if the object is admitted."""
    operation, stored = "UPDATE" if old else "CREATE", obj
    if obj["kind"] == "Shoot":
        response = await ask(client, "/mutate", operation, obj, old)
        assert response["allowed"], response
        stored = patched(changed(obj), response) if "patch" in response else obj
    response = await ask(client, "/validate", operation, stored, old)
    return "" if response["allowed"] else str(response["status"]["message"])


async def refused(client: Client, path: str, value: Any, old: Object | None = None) -> str:
    return await refusal(client, changed(old or shoot(), path, value), old)


def audit_policy(text: str) -> Object:
    metadata = {"name": "audit", "namespace": "garden-local"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"policy": text}}


# Networks


@pytest.mark.exhibit(
    threads=["gardener/gardener#15350"],
    happened="A Shoot without a range of services was accepted, got the default range of its seed later, which "
    "overlapped the Shoot's own pods, and could be neither scheduled nor repaired.",
    here="The scheduler compares the ranges with the defaults of each seed, chooses a seed that fits, and names the "
    "ranges if there is none.",
)
async def test_gardener_15350_defaults_that_overlap_the_ranges_of_a_shoot(client: Client) -> None:
    wanted = Shoot.of(changed(complete().to_wire(), "spec.networking", {"type": "flannel", "pods": "100.68.0.0/16"}))
    fits = {"pods": "100.112.0.0/16", "services": "100.99.0.0/16"}
    other = changed(changed(SEED, "metadata.name", "seed-z"), "spec.networks.shootDefaults", fits)
    assert not await refusal(client, wanted.to_wire())

    assert choose_seed(wanted, profile(), [Seed.of(SEED), Seed.of(other)], Counter()) == "seed-z"
    with pytest.raises(NoSeed, match="default networks"):
        choose_seed(wanted, profile(), [Seed.of(SEED)], Counter())


@pytest.mark.exhibit(
    threads=["gardener/gardener#5298"],
    happened="The range of pods had room for fewer nodes than the pools may have, so that the last nodes got no share "
    "of it and stayed NotReady.",
    here="Admission counts the nodes of all pools at their maximum against the shares of the range, also in an update.",
)
async def test_gardener_5298_more_nodes_than_the_range_of_pods_has_shares(client: Client) -> None:
    small = shoot(("spec.networking.pods", "100.126.0.0/23"))
    assert not await refusal(client, small)

    text = await refusal(client, changed(small, f"{POOL}.maximum", 3), small)
    assert "the pools may have 3 nodes" in text
    assert "has room for 2" in text


@pytest.mark.exhibit(
    threads=["gardener/gardener#7779"],
    happened="The check of the range was wrong by a factor of two where the size of a share was not given, and refused "
    "a correct cluster of 128 nodes.",
    here="Admission fills in the default size of a share before it counts, so that exactly 128 nodes fit into a /17.",
)
async def test_gardener_7779_a_range_with_room_for_exactly_as_many_nodes(client: Client) -> None:
    made = shoot(("spec.networking.pods", "10.243.128.0/17"), (f"{POOL}.maximum", 128))
    made["spec"]["kubernetes"].get("kubeControllerManager", {}).pop("nodeCIDRMaskSize", None)

    assert not await refusal(client, made)
    assert "has room for 128" in await refusal(client, changed(made, f"{POOL}.maximum", 129))


@pytest.mark.exhibit(
    threads=["kubernetes/kubernetes#111425"],
    happened="A range of pods that was smaller than the share of one node stopped the first control-plane node of a "
    "cluster in its installation.",
    here="Admission refuses a range of pods that is smaller than one share.",
)
async def test_kubernetes_111425_a_range_of_pods_smaller_than_the_share_of_one_node(client: Client) -> None:
    text = await refused(client, "spec.networking.pods", "100.126.0.0/25")
    assert "is smaller than the share of one node (nodeCIDRMaskSize 24)" in text


@pytest.mark.exhibit(
    threads=["kubernetes/kubeadm#2132"],
    happened="A range of services was not checked for its size before a control plane was installed, and the "
    "installation failed late.",
    here="Admission refuses a range of services without a tenth address, which is the address of DNS.",
)
async def test_kubeadm_2132_a_range_of_services_that_is_too_small(client: Client) -> None:
    assert "must have a prefix of at most /28" in await refused(client, "spec.networking.services", "10.0.0.0/29")
    assert not await refused(client, "spec.networking.services", "10.0.0.0/28")


@pytest.mark.exhibit(
    threads=["kubernetes/kubernetes#12624", "kubernetes/kubernetes#12820"],
    happened="A range of services of /8 was first too large for etcd, and later kept the API server from starting.",
    here="Admission refuses ranges of services with more than 20 bits of addresses.",
)
async def test_kubernetes_12624_a_range_of_services_that_is_too_large(client: Client) -> None:
    assert "must have a prefix of at least /12" in await refused(client, "spec.networking.services", "10.0.0.0/8")
    assert not await refused(client, "spec.networking.services", "10.0.0.0/12")


@pytest.mark.exhibit(
    threads=["clastix/kamaji#468"],
    happened="Clusters with a range of services of their own kept the default address of DNS, which was not in their "
    "range.",
    here="CoreDNS and kubelets compute the address of DNS from the range of the Shoot, by one function.",
)
def test_kamaji_468_the_address_of_dns_is_in_the_range_of_services() -> None:
    assert cluster_dns_address("10.95.0.0/16") == "10.95.0.10"
    assert cluster_dns_address("10.87.116.64/28") == "10.87.116.74"


# The API server


@pytest.mark.exhibit(
    threads=["gardener/gardener#12338"],
    happened="A resource that kube-apiserver cannot encrypt was accepted, kept kube-apiserver from starting, and could "
    "not be taken back, because the previous change was still being rolled out.",
    here="Admission refuses such resources, and lets an owner take back a stored one while its rollout is in progress.",
)
@pytest.mark.parametrize("wrong", ["ConfigMaps", "configmaps.", "foo.", "*.events.k8s.io", "events"])
async def test_gardener_12338_resources_that_cannot_be_encrypted(client: Client, wrong: str) -> None:
    assert "encryptionConfig.resources[1]" in await refused(client, ENCRYPTED, ["configmaps", wrong])

    rolling = shoot((ENCRYPTED, ["configmaps", wrong]))
    rolling["status"] = {"credentials": {"encryptionAtRest": {"provider": {"type": "aescbc"}, "resources": []}}}
    assert not await refused(client, ENCRYPTED, ["configmaps"], rolling)


@pytest.mark.exhibit(
    threads=["gardener/gardener#3140"],
    happened="Components crashed at feature gates that their version did not know.",
    here="Admission has the feature gates of each component by version, and names the component and its version.",
)
@pytest.mark.parametrize(
    "component", ["kubeAPIServer", "kubeControllerManager", "kubeScheduler", "kubeProxy", "kubelet"]
)
async def test_gardener_3140_a_feature_gate_that_a_component_does_not_know(client: Client, component: str) -> None:
    text = await refused(client, f"spec.kubernetes.{component}.featureGates", {"FooBar": True})
    assert "1.37.1 does not know this feature gate" in text


@pytest.mark.exhibit(
    threads=["gardener/gardener#12643"],
    happened="The table of feature gates still had one that was gone from a version, and an upgrade to this version "
    "kept kube-apiserver from starting.",
    here="Admission refuses the upgrade until the owner takes the gate out.",
)
async def test_gardener_12643_an_upgrade_to_a_version_without_a_feature_gate(client: Client) -> None:
    gate = f"{SERVER}.featureGates"
    old = shoot(("spec.kubernetes.version", "1.36.3"), (gate, {"ValidatingAdmissionPolicy": True}))
    text = await refused(client, "spec.kubernetes.version", "1.37.1", old)
    assert "kube-apiserver 1.37.1 does not know this feature gate" in text

    mended = changed(changed(old, gate, None), "spec.kubernetes.version", "1.37.1")
    assert not await refusal(client, mended, old)


@pytest.mark.exhibit(
    threads=["gardener/gardener#6559"],
    happened="An admission plugin that a version of Kubernetes does not have kept kube-apiserver from starting.",
    here="Admission has the plugins of each version, and refuses others.",
)
async def test_gardener_6559_an_admission_plugin_that_the_version_does_not_have(client: Client) -> None:
    for plugin in ("NoSuchPlugin", "PodSecurityPolicy"):
        text = await refused(client, f"{SERVER}.admissionPlugins", [{"name": plugin}])
        assert "Kubernetes 1.37.1 has no such admission plugin" in text


@pytest.mark.exhibit(
    threads=["gardener/gardener#6403"],
    happened="When owners were to get a field that disables admission plugins, a reviewer found that they could "
    "disable those that Gardener's own operations need.",
    here="Admission refuses to disable a plugin that Gardener's components or the separation of nodes need.",
)
async def test_gardener_6403_an_admission_plugin_that_gardener_needs(client: Client) -> None:
    for plugin in ("Priority", "NamespaceLifecycle", "NodeRestriction", "MutatingAdmissionWebhook"):
        text = await refused(client, f"{SERVER}.admissionPlugins", [{"name": plugin, "disabled": True}])
        assert f"{plugin} is required and cannot be disabled" in text
    assert not await refused(client, f"{SERVER}.admissionPlugins", [{"name": "PodSecurity", "disabled": True}])


@pytest.mark.exhibit(
    threads=["gardener/gardener#8695"],
    happened="Owners could switch off APIs of kube-apiserver without a check whether Gardener needs them or whether "
    "the version serves them.",
    here="Admission refuses to switch off an API that Gardener needs, and to name one that the version does not serve.",
)
async def test_gardener_8695_an_api_that_gardener_needs(client: Client) -> None:
    assert "Gardener needs apps/v1" in await refused(client, f"{SERVER}.runtimeConfig", {"apps/v1": False})
    assert "does not serve policy/v1beta1" in await refused(client, f"{SERVER}.runtimeConfig", {"policy/v1beta1": True})
    assert not await refused(client, f"{SERVER}.runtimeConfig", {"apps/v1": True})


@pytest.mark.exhibit(
    threads=["gardener/gardener#8420", "gardener/gardener#8466"],
    happened="The issuer of service account tokens was also in the list of accepted issuers, and kube-apiserver did "
    "not start with the same flag twice.",
    here="Admission refuses an accepted issuer that is named twice or is the issuer itself.",
)
@pytest.mark.parametrize("accepted", [["https://a.example.org"], ["https://b.example.org"] * 2], ids=["own", "twice"])
async def test_gardener_8420_an_issuer_that_is_named_twice(client: Client, accepted: list[str]) -> None:
    config = {"issuer": "https://a.example.org", "acceptedIssuers": accepted}
    assert "acceptedIssuers" in await refused(client, f"{SERVER}.serviceAccountConfig", config)
    config["acceptedIssuers"] = ["https://b.example.org"]
    assert not await refused(client, f"{SERVER}.serviceAccountConfig", config)


@pytest.mark.exhibit(
    threads=["gardener/gardener#10864"],
    happened="An issuer of users whose URL had a fragment was accepted, and kube-apiserver did not start with it.",
    here="Admission reads the file of issuers as kube-apiserver reads it, and refuses query and fragment of a URL.",
)
async def test_gardener_10864_the_url_of_an_issuer_has_a_fragment(client: Client, garden: FakeGarden) -> None:
    named = (f"{SERVER}.structuredAuthentication", {"configMapName": "issuers"})
    garden.objects.append(config_map("issuers", with_(AUTHENTICATION, "jwt/0/issuer/url", "https://test.html# ")))

    assert "jwt[0].issuer.url" in await refusal(client, shoot(named))


@pytest.mark.exhibit(
    threads=["gardener/gardener#14974"],
    happened="A file of issuers named the issuer of the cluster's own service account tokens, which the check did not "
    "know if Gardener managed it, and kube-apiserver crashed.",
    here="Admission compares the file with all issuers that the Shoot advertises in its status.",
)
async def test_gardener_14974_a_file_names_the_managed_issuer_of_the_cluster(
    client: Client, garden: FakeGarden
) -> None:
    managed = "https://issuer.garden.example.org/projects/local/shoots/u-1/issuer"
    garden.objects.append(config_map("issuers", with_(AUTHENTICATION, "jwt/0/issuer/url", managed)))
    old = shoot()
    old["status"] = {"advertisedAddresses": [{"name": "service-account-issuer", "url": managed}]}

    text = await refused(client, f"{SERVER}.structuredAuthentication", {"configMapName": "issuers"}, old)
    assert "is an issuer of the cluster's own service account tokens" in text


# Audit policies


@pytest.mark.exhibit(
    threads=["gardener/gardener#816"],
    happened="An audit policy that was no valid YAML ended the reconciliation at the API server, with an error that "
    "did not name the policy.",
    here="Admission refuses the Shoot, and names the ConfigMap and its fault.",
)
async def test_gardener_816_an_audit_policy_that_is_not_yaml(client: Client, garden: FakeGarden) -> None:
    garden.objects.append(audit_policy("a: b: c"))
    text = await refused(client, f"{SERVER}.auditConfig.auditPolicy", AUDITED)
    assert "ConfigMap garden-local/audit: data[policy]" in text
    assert "is not YAML" in text


@pytest.mark.exhibit(
    threads=["gardener/gardener#5399"],
    happened="A ConfigMap of an audit policy was checked only in gardens that also protected it against deletion.",
    here="Admission checks a change of a ConfigMap for each Shoot that names it, without any switch.",
)
async def test_gardener_5399_a_named_audit_policy_that_becomes_faulty(client: Client, garden: FakeGarden) -> None:
    good, bad = audit_policy(json.dumps(POLICY)), audit_policy("foo: bar")
    assert not await refusal(client, bad, good), "no Shoot names it yet"

    garden.objects += [good, shoot((f"{SERVER}.auditConfig.auditPolicy", AUDITED))]
    assert "Shoot garden-local/demo names it" in await refusal(client, bad, good)


@pytest.mark.exhibit(
    threads=["gardener/gardener#12126", "gardener/gardener#15690"],
    happened="The check of audit policies ignored fields that it did not know, so that a rule with a misspelt field "
    "was accepted and meant something else.",
    here="Admission decodes audit policies strictly.",
)
async def test_gardener_12126_an_audit_policy_with_an_unknown_field(client: Client, garden: FakeGarden) -> None:
    rule = {"level": "None", "nonResourceURLs": ["/"], "verb": ["get"]}
    garden.objects.append(audit_policy(json.dumps({**POLICY, "rules": [rule]})))
    assert "rules.0.verb: Forbidden" in await refused(client, f"{SERVER}.auditConfig.auditPolicy", AUDITED)


# Nodes


@pytest.mark.exhibit(
    threads=["gardener/gardener#6106"],
    happened="More CPU was reserved for the kubelet than the machine has, and no kubelet of the pool started.",
    here="Admission compares what is reserved with the machine type of each pool, also in an update.",
)
async def test_gardener_6106_more_is_reserved_than_the_machine_has(client: Client) -> None:
    for old in (None, shoot()):
        text = await refused(client, "spec.kubernetes.kubelet.kubeReserved", {"cpu": "9400m", "memory": "1Gi"}, old)
        assert "nothing would be left for pods" in text


@pytest.mark.exhibit(
    threads=["openshift/hypershift#2298"],
    happened="The value of a taint with a slash was accepted and kept the kubelets of the pool from registering.",
    here="Admission checks keys, values and effects of taints as the API server checks those of nodes.",
)
async def test_hypershift_2298_a_taint_with_a_value_that_no_node_may_have(client: Client) -> None:
    taint = {"key": "a", "value": "node-role.kubernetes.io/infra", "effect": "PreferNoSchedule"}
    assert "taints[0].value: Invalid value" in await refused(client, f"{POOL}.taints", [taint])


@pytest.mark.exhibit(
    threads=["kubernetes/kubernetes#109262"],
    happened="The kubelet accepted an invalid label as a flag, and its node never took part in the cluster.",
    here="Admission refuses such labels, and nothing with blanks or commas reaches the kubelet's command line.",
)
async def test_kubernetes_109262_a_label_with_an_invalid_value(client: Client) -> None:
    for labels in ({"foo/bar": "baz/qux"}, {"a": "b,c=d"}, {"a": "x --fail-swap-on=false"}):
        assert "workers[0].labels" in await refused(client, f"{POOL}.labels", labels)


@pytest.mark.exhibit(
    threads=["rancher/rancher#45906"],
    happened="A label of Kubernetes' own domain that kubelets must not set was accepted for a pool, and its new nodes "
    "never joined.",
    here="Admission refuses labels that the kubelet or Gardener sets itself.",
)
async def test_rancher_45906_a_label_that_the_kubelet_sets_itself(client: Client) -> None:
    text = await refused(client, f"{POOL}.labels", {"kubernetes.io/hostname": "a"})
    assert "labels[kubernetes.io/hostname]: Forbidden" in text


@pytest.mark.exhibit(
    threads=["SovereignCloudStack/standards#190"],
    happened="Names of flavours with colons could not be the values of node labels that Kubernetes gives them.",
    here="A CloudProfile with such a name of a machine type is refused.",
)
async def test_standards_190_a_machine_type_with_colons(client: Client) -> None:
    text = await refusal(client, changed(PROFILE, "spec.machineTypes.0.name", "SCS-2V:4:100"), PROFILE)
    assert "it becomes the value of a label of nodes" in text


@pytest.mark.exhibit(
    threads=["kubernetes/cloud-provider-openstack#1364"],
    happened="A flavour with blanks in its name kept the controller from initializing the nodes, until it used the "
    "flavour's id.",
    here="Names of machine types, images, regions and zones in a CloudProfile are values of labels, or refused.",
)
async def test_cloud_provider_openstack_1364_names_with_blanks(client: Client) -> None:
    for path in ("spec.machineTypes.0.name", "spec.regions.0.zones.0.name", "spec.machineImages.0.name"):
        text = await refusal(client, changed(PROFILE, path, "Small HD 4GB"), PROFILE)
        assert 'Invalid value: "Small HD 4GB"' in text


@pytest.mark.exhibit(
    threads=["gardener/gardener-extension-provider-aws#30", "gardener/gardener-extension-provider-aws#1424"],
    happened="Networks and machine deployments were named by the position of a zone, so that another order of zones "
    "gave one zone's nodes to another zone.",
    here="Admission lets zones of a pool be appended only.",
)
async def test_gardener_extension_provider_aws_30_zones_in_another_order(client: Client) -> None:
    old = shoot((f"{POOL}.zones", ["0", "1"]))
    for zones in (["1", "0"], ["1"]):
        assert "zones can only be appended to" in await refused(client, f"{POOL}.zones", zones, old)
    assert not await refused(client, f"{POOL}.zones", ["0", "1"], shoot((f"{POOL}.zones", ["0"])))


@pytest.mark.exhibit(
    threads=["gardener/gardener#7221"],
    happened="A zone could be named twice for a pool.",
    here="Admission refuses the second one with its index.",
)
async def test_gardener_7221_a_zone_that_is_named_twice(client: Client) -> None:
    assert 'zones[1]: Duplicate value: "0"' in await refused(client, f"{POOL}.zones", ["0", "0"])


@pytest.mark.exhibit(
    threads=["gardener/gardener#4937"],
    happened="A Shoot on a seed that had reached its maximum of Shoots could not be deleted, because each request was "
    "checked as if the Shoot were to be scheduled.",
    here="Admission checks the room of a seed only when a Shoot gets this seed.",
)
async def test_gardener_4937_a_seed_without_room(client: Client, garden: FakeGarden) -> None:
    garden.objects = [each for each in garden.objects if each["kind"] != "Seed"]
    garden.objects.append(changed(SEED, "status.allocatable", {"shoots": "0"}))
    old = changed(complete("spec.seedName", "seed-1", bound=True).to_wire(), "metadata.finalizers", ["gardener"])
    confirmed = changed(old, "metadata.annotations", {"confirmation.gardener.cloud/deletion": "true"})

    assert not await refusal(client, confirmed, old)
    assert (await ask(client, "/validate", "DELETE", None, confirmed))["allowed"]
    assert "room for one more shoot" in await refusal(client, old)

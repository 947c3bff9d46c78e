"""The etcd controller: what it makes of an ``Etcd``, and what it says about it."""

import asyncio
import json
import ssl
from datetime import timedelta
from types import SimpleNamespace

import pytest
from aiohttp import web

from activities.components import etcd as component
from activities.components.etcd import Backup, EtcdValues
from api import images
from api.druid.v1alpha1.etcd import Etcd
from kube.cache import Key
from kube.controller import Requeue
from tests.unit.secrets.conftest import Killed, MemoryCluster
from workers.etcd import manifests
from workers.etcd.backup_restore import BackupRestoreConfig
from workers.etcd.controller import FINALIZER, EtcdController

NAMESPACE = "shoot--local--one"
KEY = Key(NAMESPACE, "etcd-main")
SEVERAL = {"replicas": 3, "failure_tolerance": "node", "peer_certificate": "peer", "peer_ca_bundle": "peer-ca"}
TLS = {"client-ca/bundle.crt": "", "client-server/tls.crt": "", "client-server/tls.key": ""}


def etcd(**changes):
    values = {
        "role": "main",
        "namespace": NAMESPACE,
        "replicas": 1,
        "ca_bundle": "ca-etcd-bundle-1",
        "server_certificate": "etcd-server-main-1",
        "client_certificate": "etcd-client-1",
        "uid": "c0ffee",
        "backup": Backup("local", "bucket", "entry"),
        **changes,
    }
    made = component.etcd(EtcdValues(**values))
    made["metadata"] |= {"uid": "uid-1", "generation": 1, "resourceVersion": "1"}
    made["metadata"]["annotations"] |= {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": "now"}
    return made


def by_kind(objects, kind):
    return next(item for item in objects if item["kind"] == kind)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"role": "events", "backup": None},
        {"replicas": 0},
        SEVERAL,
        {**SEVERAL, "member_prefix": "a-", "existing": component.existing_cluster(component.MAIN, NAMESPACE, "", 3)},
    ],
)
def test_the_resource_fits_its_own_schema(changes):
    Etcd.model_validate(etcd(**changes))


def test_only_the_main_etcd_has_a_sidecar_and_the_backup_port():
    main = manifests.objects(etcd(), TLS)
    events = manifests.objects(etcd(role="events", backup=None), TLS)

    def containers(objects):
        return [item["name"] for item in by_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]]

    assert containers(main) == ["etcd", "backup-restore"]
    assert containers(events) == ["etcd"]
    assert [port["name"] for port in by_kind(main, "Service")["spec"]["ports"]] == ["client", "backuprestore"]
    assert [port["name"] for port in by_kind(events, "Service")["spec"]["ports"]] == ["client"]


def test_pods_run_unprivileged_with_nothing_but_their_volumes():
    pod = by_kind(manifests.objects(etcd(), TLS), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["image"] == images.GARDENER
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"]


def test_a_sidecar_whose_store_is_down_does_not_take_etcd_out_of_its_service():
    pod = by_kind(manifests.objects(etcd(), TLS), "StatefulSet")["spec"]["template"]["spec"]
    assert "readinessProbe" in pod["containers"][0]
    assert "readinessProbe" not in pod["containers"][1]


def test_clients_need_certificates_and_the_peer_port_of_a_single_member_is_closed():
    config = json.loads(by_kind(manifests.objects(etcd(), TLS), "ConfigMap")["data"]["wrapper.json"])
    assert config["etcd"]["listen-client-urls"] == "https://0.0.0.0:2379"
    assert config["etcd"]["client-transport-security"]["client-cert-auth"] is True
    assert config["etcd"]["listen-peer-urls"] == "http://127.0.0.1:2380"
    assert config["etcd"]["quota-backend-bytes"] == 8 << 30


def test_three_members_know_each_other_by_tls():
    made = manifests.objects(etcd(**SEVERAL), TLS)
    config = json.loads(by_kind(made, "ConfigMap")["data"]["wrapper.json"])
    assert config["members"]["etcd-main-2"] == f"https://etcd-main-2.etcd-main-peer.{NAMESPACE}.svc:2380"
    assert config["etcd"]["listen-peer-urls"] == "https://0.0.0.0:2380"
    assert config["etcd"]["peer-transport-security"]["client-cert-auth"] is True
    assert config["membership"]["wrappers"]["etcd-main-2"] == f"http://etcd-main-2.etcd-main-peer.{NAMESPACE}.svc:9095"
    pod = by_kind(made, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["port"] == 9095
    [constraint] = pod["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")
    assert by_kind(made, "PodDisruptionBudget")["spec"]["minAvailable"] == 2
    assert by_kind(made, "StatefulSet")["spec"]["podManagementPolicy"] == "Parallel"


def joining(**changes):
    existing = component.existing_cluster(component.MAIN, NAMESPACE, "", 3)
    return etcd(**SEVERAL, member_prefix="seed2-", existing=existing, **changes)


def test_members_that_join_another_seeds_cluster_have_names_and_addresses_of_their_own():
    there = json.loads(by_kind(manifests.objects(etcd(**SEVERAL), TLS), "ConfigMap")["data"]["wrapper.json"])
    made = manifests.objects(joining(), TLS)
    data = by_kind(made, "ConfigMap")["data"]
    here, existing = json.loads(data["wrapper.json"]), json.loads(data["existing.json"])

    assert existing["members"] == there["members"]
    assert existing["clients"] == [f"https://clients.etcd-main-peer.{NAMESPACE}.svc:2379"]
    assert here["memberNamePrefix"] == "seed2-"
    assert here["members"]["seed2-etcd-main-2"] == f"https://etcd-main-2.seed2-etcd-main-peer.{NAMESPACE}.svc:2380"
    assert not here["members"].keys() & there["members"].keys()
    assert here["etcd"]["initial-cluster-token"] == there["etcd"]["initial-cluster-token"]
    assert by_kind(made, "StatefulSet")["spec"]["serviceName"] == "seed2-etcd-main-peer"
    assert {each["metadata"]["name"] for each in made if each["kind"] == "Service"} == {
        "seed2-etcd-main-peer",
        "etcd-main-client",
    }


def test_certificates_are_valid_for_the_names_by_which_the_other_seed_connects():
    for prefix in ("", "seed2-"):
        domain = f"*.{prefix}etcd-main-peer.{NAMESPACE}.svc"
        assert domain in component.peer_certificate(component.MAIN, NAMESPACE, prefix).dns_names
        assert domain in component.server_certificate(component.MAIN, NAMESPACE, prefix).dns_names


def test_members_stay_when_there_is_no_other_cluster_to_join_any_more():
    before, after = (manifests.objects(made, TLS) for made in (joining(), etcd(**SEVERAL, member_prefix="seed2-")))
    assert "existing.json" not in by_kind(after, "ConfigMap")["data"]
    assert by_kind(before, "StatefulSet") == by_kind(after, "StatefulSet")


def test_the_sidecars_configuration_is_one_it_accepts():
    data = by_kind(manifests.objects(etcd(), TLS), "ConfigMap")["data"]
    config = BackupRestoreConfig.model_validate(json.loads(data["backup-restore.yaml"]))
    assert config.store.prefix == "entry/etcd-main"
    assert config.delta_snapshot_period.total_seconds() == 300
    assert config.delta_snapshot_memory_limit == 100 << 20

    data = by_kind(manifests.objects(etcd(delta_snapshot_period=timedelta(seconds=10)), TLS), "ConfigMap")["data"]
    config = BackupRestoreConfig.model_validate(json.loads(data["backup-restore.yaml"]))
    assert config.delta_snapshot_period.total_seconds() == 10


def test_only_an_etcd_with_a_bucket_reads_takeover_markers():
    for made, expected in ((etcd(), 15.0), (etcd(role="events", backup=None), None)):
        data = by_kind(manifests.objects(made, TLS, timedelta(seconds=15)), "ConfigMap")["data"]
        assert json.loads(data["wrapper.json"])["takeoverTolerance"] == expected


def test_another_configuration_rolls_the_pods_and_the_same_does_not():
    def template(**changes):
        return by_kind(manifests.objects(etcd(**changes), TLS), "StatefulSet")["spec"]["template"]

    assert template() == template()
    assert template() != template(window_begin="030000+0000")


def test_a_changed_certificate_rolls_members_of_a_cluster_but_no_single_member():
    """A member that is alone takes it while it serves."""

    def template(**changes):
        return by_kind(manifests.objects(etcd(**changes), TLS), "StatefulSet")["spec"]["template"]

    assert template(**SEVERAL) != template(**SEVERAL, server_certificate="etcd-server-main-2")
    assert template() == template(server_certificate="etcd-server-main-2")


def test_the_service_of_one_pod_does_not_select_its_predecessor():
    """New connections to the address of a pod that ends would get no answer for up to 20 s."""

    def selects(service, stateful_set):
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        return service["spec"]["selector"].items() <= labels.items()

    def made(pods=None, **changes):
        objects = manifests.objects(etcd(**changes), TLS, pods=pods)
        assert by_kind(objects, "Service")["metadata"]["name"] == "etcd-main-client"
        return by_kind(objects, "Service"), by_kind(objects, "StatefulSet")

    service, stateful_set = made()
    assert made() == (service, stateful_set)
    assert selects(service, stateful_set)
    for other in ({"window_begin": "030000+0000"}, {"image_digest": "0123abcd"}):
        later, rolled = made(**other)
        assert selects(later, rolled)
        assert not selects(later, stateful_set)

    first, prepared = made(pods=1, **SEVERAL)
    assert selects(first, prepared)
    assert not selects(first, stateful_set)
    several, complete = made(**SEVERAL)
    assert selects(several, complete)
    assert selects(several, stateful_set)
    assert prepared["spec"]["template"] == complete["spec"]["template"]


def test_every_tls_file_is_at_its_path_in_the_configuration():
    made = manifests.objects(etcd(), TLS)
    volumes = by_kind(made, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    items = next(each for each in volumes if each["name"] == "tls")["secret"]["items"]
    security = json.loads(by_kind(made, "ConfigMap")["data"]["wrapper.json"])["etcd"]["client-transport-security"]

    paths = {f"/var/etcd/tls/{each['path']}" for each in items}
    assert {security[name] for name in ("cert-file", "key-file", "trusted-ca-file")} <= paths
    assert set(by_kind(made, "Secret")["data"]) <= {each["key"] for each in items}


def test_no_secret_value_is_in_any_manifest_but_the_secret():
    text = json.dumps([each for each in manifests.objects(etcd(), {"a": "SENTINEL"}) if each["kind"] != "Secret"])
    assert "SENTINEL" not in text


def test_backups_fall_into_the_first_hour_of_the_window_and_differ_by_shoot():
    schedules = {
        etcd(uid=str(number), window_begin="233000+0100")["spec"]["backup"]["fullSnapshotSchedule"]
        for number in range(50)
    }
    assert len(schedules) > 20
    for schedule in schedules:
        minute, hour, *rest = schedule.split()
        assert rest == ["*", "*", "*"]
        assert 22 * 60 + 30 <= int(hour) * 60 + int(minute) < 23 * 60 + 30


@pytest.mark.parametrize("text", ["", "five", "-5m", "5"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(ValueError, match="duration"):
        manifests.seconds(text)


def test_heartbeat_may_be_shorter_than_a_second():
    """etcd counts in milliseconds, and its own default is 100."""
    wanted = etcd()
    wanted["spec"]["etcd"]["heartbeatDuration"] = "500ms"

    config = json.loads(by_kind(manifests.objects(wanted, TLS), "ConfigMap")["data"]["wrapper.json"])["etcd"]

    assert (config["heartbeat-interval"], config["election-timeout"]) == (500, 5000)


class Cluster(MemoryCluster):
    """The seed as the controller sees it: its caches are what was written."""

    bound = True
    """Whether a claim that awaits its binding gets bound."""

    async def apply(self, obj, *, manager):
        made = await super().apply(obj, manager=manager)
        self.objects[self._key(obj)]["metadata"] |= {"generation": 1, "uid": f"uid-{self.writes}"}
        return made

    async def patch(self, res, name, namespace, patch, *, subresource=""):
        patch = json.loads(json.dumps(patch))
        patch.get("metadata", {}).pop("resourceVersion", None)
        return await super().patch(res, name, namespace, patch)

    async def delete(self, res, name, namespace=None, *, uid=None, propagation=None):
        return await super().delete(res, name, namespace)

    def of(self, resource, **_):
        async def wait_for(name, namespace, predicate, timeout):
            claim = self.objects[resource.kind, namespace, name]
            if not self.bound:
                raise TimeoutError
            assert not predicate(claim)
            claim["status"] = {"phase": "Bound"}
            assert predicate(claim)

        return SimpleNamespace(
            wait_for=wait_for,
            get=lambda name, namespace: self.objects.get((resource.kind, namespace, name)),
            list=lambda namespace: [
                item for key, item in self.objects.items() if key[:2] == (resource.kind, namespace)
            ],
        )


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def controller(cluster):
    return EtcdController(cluster, cluster)


def add(cluster, **changes):
    made = etcd(**changes)
    for name, *keys in (
        ("ca-etcd-bundle-1", "bundle.crt"),
        ("etcd-server-main-1", "tls.crt", "tls.key"),
        ("etcd-client-1", "tls.crt", "tls.key"),
    ):
        cluster.objects["Secret", NAMESPACE, name] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": dict.fromkeys(keys, ""),
        }
    cluster.objects["Etcd", NAMESPACE, made["metadata"]["name"]] = made
    return made


def run_pod(cluster, *, ready: bool):
    """Do what StatefulSet controller and kubelet do."""
    stateful_set = cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]
    stateful_set["status"] = {"observedGeneration": 1, "updateRevision": "r1", "replicas": 1, "currentReplicas": 1}
    cluster.objects["Pod", NAMESPACE, "etcd-main-0"] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "etcd-main-0",
            "namespace": NAMESPACE,
            "uid": "pod-1",
            "annotations": {manifests.TLS_IN_USE: manifests.tls_checksum(etcd())},
            "labels": {
                **stateful_set["spec"]["template"]["metadata"]["labels"],
                "controller-revision-hash": "r1",
            },
        },
        "status": {
            "podIP": "127.0.0.1",
            "containerStatuses": [
                {"name": "backup-restore", "ready": False},
                {"name": "etcd", "ready": ready, "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            ],
        },
    }


def status_of(cluster):
    return cluster.objects["Etcd", NAMESPACE, "etcd-main"]["status"]


def condition(cluster, kind):
    return next(item for item in status_of(cluster)["conditions"] if item["type"] == kind)


async def test_a_rollout_applies_everything_and_answers_the_request(cluster, controller):
    made = add(cluster)
    await controller._reconcile(KEY)

    assert {key[0] for key in cluster.objects} >= {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    assert "gardener.cloud/operation" not in made["metadata"]["annotations"]
    assert FINALIZER in made["metadata"]["finalizers"]
    status = status_of(cluster)
    assert status["observedGeneration"] == 1
    assert status["lastOperation"]["state"] == "Succeeded"
    assert status["ready"] is False
    owner = cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Etcd", "uid-1")


async def test_pods_come_when_their_claims_are_bound(cluster, controller, monkeypatch):
    add(cluster)
    apply = cluster.apply

    async def apply_and_look(manifest, *, manager):
        if manifest["kind"] == "StatefulSet":
            claims = [each for key, each in cluster.objects.items() if key[0] == "PersistentVolumeClaim"]
            assert [each["status"]["phase"] for each in claims] == ["Bound"]
        return await apply(manifest, manager=manager)

    monkeypatch.setattr(cluster, "apply", apply_and_look)
    await controller._reconcile(KEY)
    assert ("StatefulSet", NAMESPACE, "etcd-main") in cluster.objects


async def test_claims_that_wait_for_their_first_pod_get_it(cluster, controller):
    add(cluster)
    cluster.bound = False
    await controller._reconcile(KEY)
    assert ("StatefulSet", NAMESPACE, "etcd-main") in cluster.objects


async def test_without_a_request_a_changed_spec_is_not_rolled_out(cluster, controller):
    made = add(cluster)
    del made["metadata"]["annotations"]["gardener.cloud/operation"]
    await controller._reconcile(KEY)
    assert "StatefulSet" not in {key[0] for key in cluster.objects}


@pytest.mark.parametrize("dies_after", range(1, 8))
async def test_another_controller_completes_the_rollout_after_a_kill(cluster, controller, dies_after):
    made = add(cluster)
    cluster.dies_after = dies_after
    with pytest.raises(Killed):
        await controller._reconcile(KEY)
    cluster.dies_after = None
    await EtcdController(cluster, cluster)._reconcile(KEY)

    assert "StatefulSet" in {key[0] for key in cluster.objects}
    assert "gardener.cloud/operation" not in made["metadata"]["annotations"]
    assert status_of(cluster)["lastOperation"]["state"] == "Succeeded"


async def test_a_ready_member_makes_it_ready_whatever_the_sidecar_does(cluster, controller):
    add(cluster)
    await controller._reconcile(KEY)
    run_pod(cluster, ready=False)
    await controller._reconcile(KEY)
    assert condition(cluster, "Ready")["message"] == "0 of 1 members serve; etcd-main-0: ImagePullBackOff"

    run_pod(cluster, ready=True)
    await controller._reconcile(KEY)
    assert status_of(cluster)["ready"] is True
    assert condition(cluster, "AllMembersUpdated")["status"] == "True"
    assert condition(cluster, "BackupReady")["status"] != "True"


async def test_a_member_that_serves_is_ready_before_the_kubelet_says_so(cluster, controller, monkeypatch):
    """The kubelet's probe and its report cost up to two seconds, and every API server waits for them."""
    app = web.Application()

    async def readyz(_):
        return web.Response()

    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(manifests, "METRICS_PORT", runner.addresses[0][1])
    add(cluster)
    await controller._reconcile(KEY)
    run_pod(cluster, ready=False)
    enqueued = asyncio.Event()
    controller._enqueue = lambda key: enqueued.set() if key == KEY else None
    await controller._reconcile(KEY)
    assert status_of(cluster)["ready"] is False

    await asyncio.wait_for(enqueued.wait(), 5)
    await controller._reconcile(KEY)
    assert status_of(cluster)["ready"] is True

    # Another run of the container has to show that it serves, too.
    containers = cluster.objects["Pod", NAMESPACE, "etcd-main-0"]["status"]["containerStatuses"]
    containers[1]["restartCount"] = 1
    await runner.cleanup()
    await controller._reconcile(KEY)
    assert status_of(cluster)["ready"] is False


async def test_pods_of_an_older_revision_are_not_all_updated(cluster, controller):
    add(cluster)
    await controller._reconcile(KEY)
    run_pod(cluster, ready=True)
    cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]["status"]["updateRevision"] = "r2"
    await controller._reconcile(KEY)
    assert condition(cluster, "AllMembersUpdated")["status"] == "False"


async def test_a_member_with_old_certificates_is_not_updated_and_its_pod_is_annotated(cluster, controller):
    """Else the API server would come with a certificate that etcd does not know yet."""
    add(cluster)
    await controller._reconcile(KEY)
    run_pod(cluster, ready=True)
    pod = cluster.objects["Pod", NAMESPACE, "etcd-main-0"]
    before = manifests.tls_checksum(etcd(server_certificate="etcd-server-main-0"))
    pod["metadata"]["annotations"] = {manifests.TLS_IN_USE: before}
    await EtcdController(cluster, cluster)._ask_member(etcd(), pod, ssl.create_default_context())
    await controller._reconcile(KEY)

    assert condition(cluster, "AllMembersUpdated")["status"] == "False"
    told = cluster.objects["Pod", NAMESPACE, "etcd-main-0"]["metadata"]["annotations"][manifests.TLS_ORDERED]
    assert told.startswith(manifests.tls_checksum(etcd()))


async def test_an_event_between_two_checks_of_the_sidecar_keeps_the_time_of_the_next_one(cluster, controller):
    """The worker that takes the event drops the delay that was pending."""
    add(cluster)
    await controller._reconcile(KEY)
    run_pod(cluster, ready=True)
    pod = cluster.objects["Pod", NAMESPACE, "etcd-main-0"]
    controller._member_ids[Key(NAMESPACE, "etcd-main-0")] = (f"{pod['metadata']['uid']}/0", "1", True)
    controller._next_check[KEY] = asyncio.get_running_loop().time() + 20.0

    again = await controller._reconcile(KEY)
    assert again is not None
    assert 10.0 < again.after <= 20.0


def roll(cluster, *, ready: bool):
    """Do what StatefulSet controller and kubelet do."""
    stateful_set = cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]
    replicas = stateful_set["spec"]["replicas"]
    stateful_set["status"] = {
        "observedGeneration": 1,
        "currentRevision": "r1",
        "updateRevision": "r1",
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas if ready else 0,
    }


async def test_members_join_a_single_member_once_it_is_prepared(cluster, controller, monkeypatch):
    """New members would prevent the change of the first one: they wait for it, and are not ready."""
    apply = cluster.apply

    async def apply_and_keep_status(manifest, *, manager):
        before = cluster.objects.get(cluster._key(manifest)) or {}
        await apply(manifest, manager=manager)
        now = cluster.objects[cluster._key(manifest)]
        if manifest["kind"] == "StatefulSet" and before.get("spec", {}).get("replicas") == now["spec"]["replicas"]:
            now["status"] = before.get("status", {})
        return now

    monkeypatch.setattr(cluster, "apply", apply_and_keep_status)
    add(cluster)
    await controller._reconcile(KEY)
    made = add(cluster, **SEVERAL)
    for name, *keys in (("peer", "tls.crt", "tls.key"), ("peer-ca", "bundle.crt")):
        cluster.objects["Secret", NAMESPACE, name] = {"metadata": {"name": name}, "data": dict.fromkeys(keys, "")}
    roll(cluster, ready=False)

    assert isinstance(await controller._reconcile(KEY), Requeue)
    stateful_set = cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]
    assert stateful_set["spec"]["replicas"] == 1
    assert "checksum/etcd-tls" in stateful_set["spec"]["template"]["metadata"]["annotations"]
    selected = cluster.objects["Service", NAMESPACE, "etcd-main-client"]["spec"]["selector"]
    assert selected.items() <= stateful_set["spec"]["template"]["metadata"]["labels"].items()
    assert manifests.REVISION in selected
    assert status_of(cluster)["lastOperation"]["state"] == "Processing"
    assert "gardener.cloud/operation" in made["metadata"]["annotations"]

    roll(cluster, ready=True)
    await controller._reconcile(KEY)
    assert cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]["spec"]["replicas"] == 3
    assert status_of(cluster)["lastOperation"]["state"] == "Succeeded"
    assert "gardener.cloud/operation" not in made["metadata"]["annotations"]


async def test_a_decrease_of_members_is_refused(cluster, controller):
    add(cluster)
    await controller._reconcile(KEY)
    cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]["spec"]["replicas"] = 3
    add(cluster)
    with pytest.raises(ValueError, match="3 members cannot become 1"):
        await controller._reconcile(KEY)
    assert cluster.objects["StatefulSet", NAMESPACE, "etcd-main"]["spec"]["replicas"] == 3


async def test_an_etcd_that_does_not_fit_reports_why(cluster, controller):
    add(cluster)["spec"]["etcd"]["quota"] = "lots"
    with pytest.raises(ValueError, match="quantity"):
        await controller._reconcile(KEY)
    (error,) = status_of(cluster)["lastErrors"]
    assert error["description"] == "'lots' is not a quantity like 500m or 8Gi"
    assert status_of(cluster)["lastOperation"]["state"] == "Error"


async def test_an_etcd_is_deleted_only_after_its_pods(cluster, controller):
    """While a pod runs, something may still be written, and the last snapshot would lack it."""
    made = add(cluster)
    await controller._reconcile(KEY)
    run_pod(cluster, ready=True)
    pod = cluster.objects["Pod", NAMESPACE, "etcd-main-0"]
    made["metadata"]["deletionTimestamp"] = pod["metadata"]["deletionTimestamp"] = "now"

    assert isinstance(await controller._reconcile(KEY), Requeue)
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert status_of(cluster)["lastOperation"]["type"] == "Delete"

    del cluster.objects["Pod", NAMESPACE, "etcd-main-0"]
    await controller._reconcile(KEY)
    assert made["metadata"]["finalizers"] == []
    assert {key[0] for key in cluster.objects if not key[2].endswith("-1")} == {"Etcd"}

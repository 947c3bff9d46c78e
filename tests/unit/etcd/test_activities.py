"""``EtcdActivities``: what a flow orders, what it waits for, and what a second run does."""

import base64
import ssl
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.clusters import Clusters, ClusterView
from activities.components import etcd as component
from activities.secrets.configs import CertificateAuthority
from activities.secrets.manager import SecretsManager
from activities.seed import etcd as module
from activities.seed.etcd import EtcdActivities
from api.contracts.operations import OperationType, ShootRef, ShootTask
from etcd.handover import Unsafe
from kube.client import KubeClient
from tests.unit.secrets.conftest import Killed, MemoryCluster
from workers.etcd import manifests

NAMESPACE = "shoot--local--one"
TRIGGER = "2026-11-21T12:00:00Z"
TASK = ShootTask(
    shoot=ShootRef(namespace="garden-local", name="one", uid="c0ffee"),
    technical_id=NAMESPACE,
    seed="seed-1",
    generation=1,
    operation=OperationType.CREATE,
    trigger=TRIGGER,
)


class Cache:
    """Answers from what the cluster holds, once: nothing changes while a unit test waits."""

    def __init__(self, cluster):
        self._cluster = cluster

    def get(self, name, namespace):
        return self._cluster.objects.get(("Etcd", namespace, name))

    async def wait_for(self, name, namespace, predicate, timeout):
        if not predicate(self.get(name, namespace)):
            raise TimeoutError
        return True


class World:
    def __init__(self):
        self.seed = MemoryCluster()
        self.shoot: dict[str, Any] = {"spec": {"kubernetes": {}, "provider": {"workers": [{}]}}}
        self.seed_spec = {"backup": {"provider": "local"}}
        caches = SimpleNamespace(of=lambda _: Cache(self.seed))
        clusters = SimpleNamespace(seed=self.seed, seed_caches=caches, cluster=self._cluster)
        self.clusters = cast(Clusters, clusters)
        self.activities = EtcdActivities(self.clusters)
        entry = f"{NAMESPACE}--c0ffee"
        self.seed.objects["BackupEntry", None, entry] = {
            "metadata": {"name": entry},
            "spec": {"bucketName": "bucket-of-seed-1"},
        }

    async def _cluster(self, technical_id):
        spec = {"shoot": self.shoot, "seed": {"spec": self.seed_spec}}
        return ClusterView({"metadata": {"name": technical_id}, "spec": spec})

    async def authorities(self):
        manager = await SecretsManager.load(cast(KubeClient, self.seed), namespace=NAMESPACE)
        for name in ("ca-etcd", "ca-etcd-peer"):
            await manager.generate(CertificateAuthority(name))

    def etcd(self, role):
        return self.seed.objects["Etcd", NAMESPACE, f"etcd-{role}"]

    def succeed(self):
        """Do what the etcd controller does once all members serve."""
        for role in ("main", "events"):
            live = self.etcd(role)
            live["metadata"]["generation"] = 1
            live["metadata"]["annotations"].pop("gardener.cloud/operation", None)
            live["status"] = {
                "observedGeneration": 1,
                "ready": True,
                "conditions": [{"type": "AllMembersUpdated", "status": "True"}],
            }


@pytest.fixture
async def world():
    made = World()
    await made.authorities()
    return made


async def test_a_later_operation_does_not_write_unchanged_etcds(world):
    later = TASK.model_copy(update={"trigger": "2026-11-21T13:00:00Z"})
    await world.activities.deploy_etcds(TASK)
    world.succeed()
    await world.activities.deploy_etcds(later)
    await world.activities.wait_etcds(later)
    assert world.etcd("main")["metadata"]["annotations"]["gardener.cloud/timestamp"] == TRIGGER

    world.etcd("main")["status"]["ready"] = False
    world.shoot["spec"]["maintenance"] = {"timeWindow": {"begin": "000000+0000"}}
    await world.activities.deploy_etcds(later)
    assert world.etcd("main")["metadata"]["annotations"]["gardener.cloud/timestamp"] == later.trigger


async def test_both_etcds_are_deployed_and_only_the_main_one_is_backed_up(world):
    result = await world.activities.deploy_etcds(TASK)

    store = world.etcd("main")["spec"]["backup"]["store"]
    assert store == {
        "provider": "local",
        "container": "bucket-of-seed-1",
        "prefix": f"{NAMESPACE}--c0ffee/etcd-main",
        "secretRef": {"name": "etcd-backup"},
    }
    assert world.etcd("events")["spec"]["backup"] == {}
    assert world.etcd("main")["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
    assert {name.rsplit("-", 1)[0] for name in result.secrets} >= {
        "etcd-server-main",
        "etcd-server-events",
        "etcd-client",
    }


async def test_another_content_of_the_image_rolls_the_pods_and_the_same_content_does_not(world):
    """Otherwise an old program would read a Secret that a newer version has written, and stop."""
    earlier, later = (TASK.model_copy(update={"trigger": f"2026-11-2{day}T12:00:00Z"}) for day in (2, 3))
    await world.activities.deploy_etcds(TASK)
    world.succeed()

    upgraded = EtcdActivities(world.clusters, image_digest="0123abcd")
    await upgraded.deploy_etcds(earlier)
    for role in ("main", "events"):
        assert world.etcd(role)["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
        live = world.etcd(role) | {"apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd"}
        live["metadata"]["uid"] = "1"
        [stateful_set] = (each for each in manifests.objects(live, {}) if each["kind"] == "StatefulSet")
        assert stateful_set["spec"]["template"]["metadata"]["annotations"]["checksum/image"] == "0123abcd"

    world.succeed()
    await upgraded.deploy_etcds(later)
    assert world.etcd("main")["metadata"]["annotations"]["gardener.cloud/timestamp"] == earlier.trigger


async def test_a_second_run_triggers_no_second_rollout(world):
    await world.activities.deploy_etcds(TASK)
    world.succeed()
    writes = world.seed.writes
    await world.activities.deploy_etcds(TASK)
    assert world.seed.writes == writes


@pytest.mark.parametrize("more_writes", range(1, 6))
async def test_a_second_run_after_a_kill_deploys_the_rest(world, more_writes):
    world.seed.dies_after = world.seed.writes + more_writes
    with pytest.raises(Killed):
        await world.activities.deploy_etcds(TASK)
    world.seed.dies_after = None
    result = await world.activities.deploy_etcds(TASK)

    named = {
        world.etcd(role)["spec"]["etcd"]["clientUrlTls"]["serverTLSSecretRef"]["name"] for role in ("main", "events")
    }
    assert named <= set(result.secrets) <= world.seed.names()


async def test_a_seed_without_backup_has_etcds_without(world):
    world.seed_spec.clear()
    await world.activities.deploy_etcds(TASK)
    assert world.etcd("main")["spec"]["backup"] == {}


async def test_a_hibernated_shoot_has_no_members_and_an_available_one_three(world):
    world.shoot["spec"]["hibernation"] = {"enabled": True}
    await world.activities.deploy_etcds(TASK)
    assert world.etcd("main")["spec"]["replicas"] == 0

    world.shoot["spec"] = {
        "kubernetes": {},
        "controlPlane": {"highAvailability": {"failureTolerance": {"type": "node"}}},
    }
    await world.activities.deploy_etcds(TASK.model_copy(update={"trigger": "later"}))
    assert world.etcd("main")["spec"]["replicas"] == 3
    assert "peerUrlTls" in world.etcd("main")["spec"]["etcd"]


def tolerate_failures(world):
    world.shoot["spec"]["controlPlane"] = {"highAvailability": {"failureTolerance": {"type": "node"}}}


async def test_a_backup_is_restored_by_one_member_and_the_others_join_later(world):
    tolerate_failures(world)
    restore = TASK.model_copy(update={"operation": OperationType.RESTORE})
    await world.activities.deploy_etcds(restore)
    assert world.etcd("main")["spec"]["replicas"] == 1
    assert "peerUrlTls" not in world.etcd("main")["spec"]["etcd"]

    for _ in range(2):
        await world.activities.scale_etcd_after_restore(restore)
        assert world.etcd("main")["spec"]["replicas"] == 3
    world.succeed()
    await world.activities.wait_etcds(restore)

    again = restore.model_copy(update={"trigger": "later"})
    await world.activities.deploy_etcds(again)
    assert world.etcd("main")["spec"]["replicas"] == 3, "none is taken away"


async def test_members_that_came_from_another_seed_keep_their_names(world):
    """And an operation neither ends nor repeats that they join the other seed's cluster."""
    tolerate_failures(world)
    await world.activities.deploy_etcds(TASK)
    existing = component.existing_cluster("main", NAMESPACE, "", 3)
    world.etcd("main")["spec"]["memberNamePrefix"] = "seed2-"
    world.etcd("main")["spec"]["etcd"] |= {"bootstrapWithExistingCluster": existing, "peerUrlTls": {}}
    await world.activities.deploy_etcds(TASK.model_copy(update={"trigger": "later"}))
    spec = world.etcd("main")["spec"]
    assert (spec["memberNamePrefix"], spec["etcd"]["bootstrapWithExistingCluster"]) == ("seed2-", existing)
    assert "memberNamePrefix" not in world.etcd("events")["spec"]
    shown = world.seed.objects["Secret", NAMESPACE, spec["etcd"]["peerUrlTls"]["serverTLSSecretRef"]["name"]]
    assert b"seed2-etcd-main-peer" in base64.b64decode(base64.b64decode(shown["data"]["tls.crt"]).split(b"-----")[2])


@pytest.mark.parametrize("answers", [True, False])
async def test_members_part_from_those_of_a_lost_seed(world, monkeypatch, answers):
    """They stay if their cluster still answers. Otherwise they have no quorum, and an etcd restores the backups."""
    tolerate_failures(world)
    restore = TASK.model_copy(update={"operation": OperationType.RESTORE, "trigger": "later"})
    await world.activities.deploy_etcds(TASK)
    await world.activities.part_from_lost_seed(restore)
    assert "memberNamePrefix" not in world.etcd("main")["spec"]
    world.etcd("main")["metadata"]["uid"] = world.etcd("events")["metadata"]["uid"] = "1"
    world.etcd("main")["spec"]["memberNamePrefix"] = "seed2-"
    existing = component.existing_cluster("main", NAMESPACE, "", 3)
    world.etcd("main")["spec"]["etcd"] |= {"bootstrapWithExistingCluster": existing, "peerUrlTls": {}}
    asked, hid = [], []

    async def remove_others(*_):
        asked.append(1)
        if answers and len(asked) > 1:
            return ["etcd-main-0"]
        raise Unsafe("a member has no vote yet")

    async def hide_members(*_):
        hid.append(1)

    monkeypatch.setattr(module, "_PARTING_SECONDS", 0.1)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.03)
    monkeypatch.setattr(module, "remove_others", remove_others)
    monkeypatch.setattr(module, "hide_members", hide_members)
    for _ in range(2):
        await world.activities.part_from_lost_seed(restore)
        await world.activities.deploy_etcds(restore)
    spec = world.etcd("main")["spec"]
    assert "bootstrapWithExistingCluster" not in spec["etcd"]
    assert (spec["replicas"], "memberNamePrefix" in spec, len(hid)) == ((3, True, 1) if answers else (1, False, 1))
    assert len(asked) > 1, "a cluster that elects does not answer at once"


async def test_members_trust_a_new_authority_before_any_shows_a_certificate_by_it(world):
    """Members that know the old authority alone refuse a member that presents a certificate of the new one."""
    tolerate_failures(world)
    await world.activities.deploy_etcds(TASK)
    world.succeed()
    wanted = world.etcd("main")["spec"]["etcd"]["peerUrlTls"]
    shown, trusted = wanted["serverTLSSecretRef"]["name"], wanted["tlsCASecretRef"]["name"]
    for role in ("main", "events"):
        peers = world.etcd(role)["spec"]["etcd"]["peerUrlTls"]
        peers["serverTLSSecretRef"]["name"], peers["tlsCASecretRef"]["name"] = "by-the-old-one", "old-one"

    later = TASK.model_copy(update={"trigger": "later"})
    with pytest.raises(ApplicationError, match=r"etcd-.* is not ready: its controller has not rolled it out"):
        await world.activities.deploy_etcds(later)
    peers = world.etcd("main")["spec"]["etcd"]["peerUrlTls"]
    assert (peers["serverTLSSecretRef"]["name"], peers["tlsCASecretRef"]["name"]) == ("by-the-old-one", trusted)

    world.succeed()
    await world.activities.deploy_etcds(later)
    assert world.etcd("main")["spec"]["etcd"]["peerUrlTls"]["serverTLSSecretRef"]["name"] == shown


async def test_a_window_that_makes_no_sense_is_final_and_says_what_to_correct(world):
    world.shoot["spec"]["maintenance"] = {"timeWindow": {"begin": "ten o'clock"}}
    with pytest.raises(ApplicationError, match=r"correct spec\.maintenance\.timeWindow\.begin") as refused:
        await world.activities.deploy_etcds(TASK)
    assert refused.value.non_retryable
    assert refused.value.type == "ERR_CONFIGURATION_PROBLEM"


async def test_ready_means_rolled_out_updated_and_in_quorum(world):
    await world.activities.deploy_etcds(TASK)
    world.succeed()
    await world.activities.wait_etcds(TASK)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda live: live["metadata"]["annotations"].update({"gardener.cloud/operation": "reconcile"}),
            "rolled it out",
        ),
        (lambda live: live["metadata"].update(generation=2), "rolled it out"),
        (lambda live: live["status"].update(ready=False), "no quorum"),
        (lambda live: live["status"]["conditions"][0].update(status="False"), "newest configuration"),
        (lambda live: live["status"].update(lastErrors=[{"code": "x", "description": "disk full"}]), "disk full"),
    ],
)
async def test_not_ready_says_why(world, spoil, reason):
    await world.activities.deploy_etcds(TASK)
    world.succeed()
    spoil(world.etcd("main"))
    with pytest.raises(ApplicationError, match=reason) as waited:
        await world.activities.wait_etcds(TASK)
    assert waited.value.type == "EtcdNotReady"
    assert not waited.value.non_retryable


async def test_deletion_is_confirmed_and_repeatable(world, monkeypatch):
    await world.activities.deploy_etcds(TASK)
    confirmed = []
    monkeypatch.setattr(module, "micro_timestamp", lambda: "now")
    delete = world.seed.delete

    async def recording(res, name, namespace=None, *, uid=None):
        confirmed.append(world.seed.objects["Etcd", namespace, name]["metadata"]["annotations"])
        return await delete(res, name, namespace, uid=uid)

    for role in ("main", "events"):
        world.etcd(role)["metadata"]["uid"] = role
    world.seed.delete = recording
    await world.activities.delete_etcds(TASK)
    await world.activities.delete_etcds(TASK)
    await world.activities.wait_etcds_deleted(TASK)

    assert [item["confirmation.gardener.cloud/deletion"] for item in confirmed] == ["true", "true"]


async def test_waiting_for_a_deletion_tells_what_is_left(world):
    await world.activities.deploy_etcds(TASK)
    with pytest.raises(ApplicationError, match="etcd-main still exists"):
        await world.activities.wait_etcds_deleted(TASK)


async def test_a_full_snapshot_is_taken_once_after_the_rewrite(monkeypatch, tmp_path):
    """By the sidecar, with etcd's certificates at both ends."""
    world = World()
    await world.authorities()
    manager = await SecretsManager.load(cast(KubeClient, world.seed), namespace=NAMESPACE)
    server = await manager.generate(component.server_certificate("main", NAMESPACE))
    await manager.generate(component.client_certificate())
    asked = []

    async def snapshot(request):
        asked.append(request.transport.get_extra_info("peercert")["subject"][0][0][1])
        return web.json_response({"snapName": "Full-0-7"})

    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(server.data[name])
    (tmp_path / "ca.crt").write_bytes(manager.get("ca-etcd").data["bundle.crt"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.crt"))
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/snapshot/full", snapshot)
    sidecar = TestServer(app, scheme="https")
    await sidecar.start_server(ssl=tls)
    monkeypatch.setattr(component, "BACKUP_PORT", sidecar.port)
    service = {"metadata": {"name": "etcd-main-client"}, "spec": {"clusterIP": "127.0.0.1"}}
    world.seed.objects["Service", NAMESPACE, "etcd-main-client"] = service
    world.seed.objects["Deployment", NAMESPACE, "kube-apiserver"] = {"metadata": {"name": "kube-apiserver"}}
    await world.activities.deploy_etcds(TASK)
    run = ActivityEnvironment().run
    try:
        assert (await run(world.activities.snapshot_after_rewrite, TASK)).note == "Full-0-7"
        assert (await run(world.activities.snapshot_after_rewrite, TASK)).note == "done before"
    finally:
        await sidecar.close()
    assert asked == ["etcd-client"]

    del world.seed.objects["Deployment", NAMESPACE, "kube-apiserver"]["metadata"]["annotations"]
    with pytest.raises(ApplicationError, match="the sidecar does not answer"):
        await run(world.activities.snapshot_after_rewrite, TASK)

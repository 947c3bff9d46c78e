"""A new key for what is stored: everything is written anew before the old one goes, once and resumably."""

from typing import Any

from aiohttp import web
from temporalio.testing import ActivityEnvironment

from activities.secrets.configs import EtcdEncryptionKey
from tests.unit.rotation.conftest import NAMESPACE, TASK, World

SECRETS, DEPLOYMENTS = "/api/v1/secrets", "/apis/apps/v1/deployments"
LABEL = "credentials.gardener.cloud/key-name"
KEY = "kube-apiserver-etcd-encryption-key"


async def prepare(world: World, *resources: str) -> str:
    """A cluster with a rotation under way; name of the new key."""
    world.pinned["spec"]["kubernetes"]["kubeAPIServer"] = {"encryptionConfig": {"resources": list(resources)}}
    await (await world.secrets()).generate(EtcdEncryptionKey(KEY))
    world.rotates("etcdEncryptionKey", "Preparing")
    new = await (await world.secrets()).generate(EtcdEncryptionKey(KEY))
    world.seed.put(DEPLOYMENTS, {"metadata": {"name": "kube-apiserver"}}, NAMESPACE)
    served = {
        "/apis": {"groups": [{"name": "apps", "preferredVersion": {"version": "v1"}}]},
        "/api/v1": {
            "resources": [
                {"name": "secrets", "kind": "Secret", "namespaced": True},
                {"name": "configmaps", "kind": "ConfigMap", "namespaced": True},
            ]
        },
        "/apis/apps/v1": {"resources": [{"name": "deployments", "kind": "Deployment", "namespaced": True}]},
    }
    world.shoot.answer = lambda request: web.json_response(served[request.path]) if request.path in served else None
    return new.name


async def run(activity: Any) -> str:
    note: str = (await ActivityEnvironment().run(activity, TASK)).note
    return note


def marks(world: World) -> set[str]:
    live = world.seed.find(DEPLOYMENTS, "kube-apiserver", NAMESPACE)
    assert live is not None
    return {name.removeprefix("credentials.gardener.cloud/") for name in live["metadata"].get("annotations") or {}}


def labels(world: World, path: str, name: str) -> dict[str, str]:
    live = world.shoot.find(path, name, "apps")
    assert live is not None
    return dict(live["metadata"].get("labels") or {})


async def test_every_object_of_each_encrypted_kind_is_written_with_the_new_key(world: World) -> None:
    key = await prepare(world, "configmaps", "deployments.apps", "gone.example.org")
    world.shoot.put(SECRETS, {"metadata": {"name": "old", "labels": {LABEL: "an-earlier-key"}}}, "apps")
    world.shoot.put(SECRETS, {"metadata": {"name": "done", "labels": {LABEL: key}}}, "apps")
    world.shoot.put("/api/v1/configmaps", {"metadata": {"name": "plain"}}, "apps")
    world.shoot.put(DEPLOYMENTS, {"metadata": {"name": "web"}}, "apps")

    assert await run(world.activities.rewrite_add_label) == "3 objects"
    for path, name in ((SECRETS, "old"), ("/api/v1/configmaps", "plain"), (DEPLOYMENTS, "web")):
        assert labels(world, path, name) == {LABEL: key}
    assert marks(world) == {"resources-labeled"}
    assert await run(world.activities.rewrite_add_label) == "done before"


async def test_the_label_goes_again_and_the_marks_with_it(world: World) -> None:
    key = await prepare(world)
    world.shoot.put(SECRETS, {"metadata": {"name": "mine", "labels": {LABEL: key, "app": "x"}}}, "apps")
    await run(world.activities.rewrite_add_label)

    assert await run(world.activities.rewrite_remove_label) == "1 objects"
    assert labels(world, SECRETS, "mine") == {"app": "x"}
    assert marks(world) == set()
    assert await run(world.activities.rewrite_remove_label) == "0 objects"

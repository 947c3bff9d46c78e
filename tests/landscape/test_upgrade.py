"""A cluster goes from the older minor of Kubernetes to the newest: its control plane first, then its nodes.

Compiles the older version once (`make test-upgrade`); other runs leave these tests out.
"""

import json
from collections.abc import Iterator

import pytest

from landscape.binaries import KUBERNETES_VERSION, OLDER_KUBERNETES_VERSION
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, refused

pytestmark = [pytest.mark.landscape, pytest.mark.upgrade, pytest.mark.timeout(600, func_only=True)]

UPGRADE = 300
_BUILD_SECONDS = 40 * 60


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot of the older version: pool ``kept`` has a version of its own, ``same`` keeps its machines in updates."""
    landscape.gardener("up", "--also-kubernetes", OLDER_KUBERNETES_VERSION, timeout=_BUILD_SECONDS)
    shoot = Shoot(landscape, "upgrade", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest(kubernetes={"version": OLDER_KUBERNETES_VERSION})
    (pool,) = manifest["spec"]["provider"]["workers"]
    kept = {**pool, "name": "kept", "kubernetes": {"version": OLDER_KUBERNETES_VERSION}}
    same = {**pool, "name": "same", "updateStrategy": "AutoInPlaceUpdate"}
    manifest["spec"]["provider"]["workers"] = [pool, kept, same]
    with shoot.created(manifest):
        yield shoot


def test_the_shoot_runs_the_older_version(shoot: Shoot) -> None:
    assert _server(shoot) == f"v{OLDER_KUBERNETES_VERSION}"
    assert {version for version, _ in _nodes(shoot).values()} == {f"v{OLDER_KUBERNETES_VERSION}"}


def test_nodes_follow_the_control_plane(shoot: Shoot) -> None:
    """And each node has the kube-proxy of its own version, though they differ."""
    before = _nodes(shoot)

    shoot.change({"kubernetes": {"version": KUBERNETES_VERSION}})
    shoot.wait_until_reconciled(UPGRADE)

    assert _server(shoot) == f"v{KUBERNETES_VERSION}"
    after = _nodes(shoot)
    assert {pool: version for version, pool in after.values()} == {
        "pool": f"v{KUBERNETES_VERSION}",
        "kept": f"v{OLDER_KUBERNETES_VERSION}",
        "same": f"v{KUBERNETES_VERSION}",
    }
    replaced = {name for name, (_, pool) in before.items() if pool == "pool"}
    assert not replaced & after.keys(), "another minor needs new machines"
    assert before.keys() - replaced <= after.keys(), "other pools keep their nodes"
    proxies = json.loads(
        shoot.kubectl("-n", "kube-system", "get", "pods", "-l", "app=kubernetes,role=proxy", "-o", "json")
    )["items"]
    images = {pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"].rsplit(":", 1)[1] for pod in proxies}
    assert images == {name: version for name, (version, _) in after.items()}


def test_the_control_plane_was_new_before_the_first_node_was(shoot: Shoot) -> None:
    tasks = {task["name"]: task for task in shoot.flow()["tasks"]}

    for node_task in ("deploy_node_agent_resources", "deploy_worker"):
        assert tasks[node_task]["started"] >= tasks["wait_apiserver"]["ended"]


def test_a_pool_with_its_own_version_is_upgraded_on_request(shoot: Shoot) -> None:
    workers = shoot.get()["spec"]["provider"]["workers"]
    for worker in workers:
        worker.get("kubernetes", {}).pop("version", None)
    shoot.change({"provider": {"workers": workers}})
    shoot.wait_until_reconciled(UPGRADE)

    assert {version for version, _ in _nodes(shoot).values()} == {f"v{KUBERNETES_VERSION}"}


def test_a_downgrade_is_refused(shoot: Shoot) -> None:
    patch = json.dumps({"spec": {"kubernetes": {"version": OLDER_KUBERNETES_VERSION}}})
    garden = shoot.landscape.directory / "kubeconfigs/garden.yaml"
    kubectl = shoot.argv()[0]
    said = refused(
        kubectl,
        f"--kubeconfig={garden}",
        "-n",
        "garden-local",
        "patch",
        "shoot",
        shoot.name,
        "--type=merge",
        "-p",
        patch,
    )

    assert f"downgrade from {KUBERNETES_VERSION} to {OLDER_KUBERNETES_VERSION} is not possible" in said


def _server(shoot: Shoot) -> str:
    version: str = json.loads(shoot.kubectl("get", "--raw", "/version"))["gitVersion"]
    return version


def _nodes(shoot: Shoot) -> dict[str, tuple[str, str]]:
    """Version of its kubelet and pool, by node."""
    nodes = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
    return {
        node["metadata"]["name"]: (
            node["status"]["nodeInfo"]["kubeletVersion"],
            node["metadata"]["labels"]["worker.gardener.cloud/pool"],
        )
        for node in nodes
    }

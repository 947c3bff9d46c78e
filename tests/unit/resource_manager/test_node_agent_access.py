"""A node agent reads the configuration of its own pool."""

import asyncio

import pytest

from kube.cache import Caches
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.conftest import NAMESPACE
from workers.resource_manager.node_agent_access import NodeAgentAccess, role_binding

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/rolebindings"
CLUSTER_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
MACHINES = "/apis/machine.sapcloud.io/v1alpha1/machines"
NODES = "/api/v1/nodes"
LABEL = "worker.gardener.cloud/gardener-node-agent-secret-name"


def machine(name, secret):
    labels = {LABEL: secret} if secret else {}
    spec = {"nodeTemplate": {"metadata": {"labels": labels}}}
    return {"kind": "Machine", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


@pytest.fixture
async def run(source, target, clients):
    """Start the controller; returns a function that does it."""
    one, other = clients
    caches, tasks = Caches(one), []

    def start():
        access = NodeAgentAccess(source=one, source_caches=caches, target=other, machine_namespace=NAMESPACE)
        tasks.append(asyncio.create_task(access.run()))

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await caches.close()


def bound(target):
    """Users and roles of all bindings."""
    return {
        each["subjects"][0]["name"]: each["roleRef"]["name"]
        for (path, namespace, _), each in target.objects.items()
        if path == BINDINGS and namespace == "kube-system"
    }


def readers(target):
    """Users of all ClusterRoleBindings, and the Nodes that they read."""
    objects = {(path, name): each for (path, _, name), each in target.objects.items()}
    return {
        each["subjects"][0]["name"]: objects[ROLES, each["roleRef"]["name"]]["rules"]
        for (path, _), each in objects.items()
        if path == CLUSTER_BINDINGS
    }


USER = "gardener.cloud:node-agent:machine:"


@pytest.mark.row("node-agent access", "nodes: get, list and watch of its own Node")
async def test_each_machines_agent_reads_its_own_node(run, source, target):
    source.put(MACHINES, machine("a-1", "pool-a"))
    source.put(MACHINES, machine("a-2", "pool-a"))
    run()
    read = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    await until(lambda: len(readers(target)) == 2)
    assert readers(target) == {f"{USER}{name}": [{**read, "resourceNames": [name]}] for name in ("a-1", "a-2")}

    source.remove(MACHINES, "a-1", NAMESPACE)
    await until(lambda: bound(target) == {f"{USER}a-2": "pool-a"})
    assert list(readers(target)) == [f"{USER}a-2"]
    assert {name for path, _, name in target.objects if path == ROLES} == {"gardener-node-agent:a-2"}


async def test_an_agent_that_was_bound_by_an_earlier_version_gets_its_node(run, source, target):
    source.put(MACHINES, machine("a-1", "pool-a"))
    target.put(BINDINGS, role_binding("a-1", "pool-a"))
    run()
    await until(lambda: list(readers(target)) == [f"{USER}a-1"])


@pytest.mark.row("node-agent access", "secrets: get, list and watch of its pool's Secret")
async def test_each_machines_agent_is_bound_to_the_role_of_its_pool(run, source, target):
    source.put(MACHINES, machine("a-1", "pool-a"))
    source.put(MACHINES, machine("none", ""))
    run()
    await until(lambda: bound(target) == {f"{USER}a-1": "pool-a"})
    source.put(MACHINES, machine("b-1", "pool-b"))
    await until(lambda: bound(target) == {f"{USER}a-1": "pool-a", f"{USER}b-1": "pool-b"})


@pytest.mark.row("node-agent access", "secrets: a Machine that gets another Secret loses the former one")
async def test_a_machine_with_another_secret_is_bound_again(run, source, target):
    """The role of a RoleBinding cannot be changed."""
    source.put(MACHINES, machine("a-1", "pool-a"))
    run()
    await until(lambda: bound(target) == {f"{USER}a-1": "pool-a"})
    source.change(MACHINES, "a-1", NAMESPACE, {"spec": {"nodeTemplate": {"metadata": {"labels": {LABEL: "pool-b"}}}}})
    await until(lambda: bound(target) == {f"{USER}a-1": "pool-b"})


@pytest.mark.row("node-agent access", "the rights go with Machine and Node")
async def test_a_binding_is_deleted_with_machine_and_node(run, source, target):
    """While a control plane moves, its Machines are in no seed for some time; their Nodes stay."""
    source.put(MACHINES, machine("a-1", "pool-a"))
    source.put(MACHINES, machine("a-2", "pool-a"))
    target.put(NODES, {"metadata": {"name": "a-2"}})
    run()
    await until(lambda: len(bound(target)) == 2)
    source.remove(MACHINES, "a-2", NAMESPACE)
    source.remove(MACHINES, "a-1", NAMESPACE)
    await until(lambda: bound(target) == {f"{USER}a-2": "pool-a"})


async def test_bindings_of_machines_that_went_unseen_are_removed(run, source, target):
    source.put(MACHINES, machine("a-1", "pool-a"))
    run()
    await until(lambda: bound(target))
    left = next(each for (path, _, _), each in target.objects.items() if path == BINDINGS)
    metadata = {key: value for key, value in left["metadata"].items() if key not in ("uid", "resourceVersion")}
    old = {**left, "metadata": {**metadata, "name": "gardener-node-agent:old"}, "subjects": [{"name": f"{USER}old"}]}
    target.put(BINDINGS, old, "kube-system")
    run()
    await until(lambda: bound(target) == {f"{USER}a-1": "pool-a"})

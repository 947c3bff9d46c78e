"""Lets each node agent read its own Node and the configuration of its own pool, and no others.

Each pool's Secret has a Role of the same name. The user name of a node agent contains the name of its Machine, and the
Machine names its pool. So each Machine gets a RoleBinding. A group for each pool would need other certificates.

Each Machine also gets a ClusterRole for its Node, which has the same name. The RoleBinding is written first and deleted
last: by a RoleBinding that is left over, a later run finds the other objects.
"""

from collections.abc import Mapping
from typing import Any

from api.constants import NODE_AGENT_USER_PREFIX, WORKER_NODE_AGENT_SECRET
from api.resources import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, MACHINE, NODE, ROLE_BINDING
from kube.cache import Caches, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.errors import AlreadyExists
from kube.objects import label_selector

NAMESPACE = "kube-system"
_RBAC = "rbac.authorization.k8s.io"
_MANAGER = "gardener-resource-manager"
_LABELS = {"gardener.cloud/role": "node-agent-access"}
_RETRY_SECONDS = 60.0


class NodeAgentAccess:
    """Keeps the RoleBindings of node agents in the target cluster as the Machines in the source cluster require."""

    def __init__(
        self, *, source: KubeClient, source_caches: Caches, target: KubeClient, machine_namespace: str
    ) -> None:
        self._source = source
        self._target = target
        self._namespace = machine_namespace
        self._machines = source_caches.of(MACHINE, machine_namespace)
        self._controller = Controller("node-agent-access", self._reconcile, first_delay=0.2, longest_delay=15.0)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._machines.synced()
        self._controller.watch(self._machines, when=_matters)
        # Machines may have been deleted while this process did not run.
        for each in await self._target.list(ROLE_BINDING, NAMESPACE, labels=label_selector(_LABELS)):
            self._controller.enqueue(Key(self._namespace, _machine_of(each)))
        await self._controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        machine = await self._source.find(MACHINE, key.name, self._namespace)
        live = await self._target.find(ROLE_BINDING, _name(key.name), NAMESPACE)
        if machine is None:
            return await self._remove(key.name, live)
        secret = pool_secret_of(machine)
        if not secret:
            return None
        wanted = role_binding(key.name, secret)
        if live is None or live["roleRef"]["name"] != secret or live.get("subjects") != wanted["subjects"]:
            if live is not None:  # a RoleBinding's role cannot be changed
                await self._delete(live)
            try:
                await self._target.create(wanted)
            except AlreadyExists:
                return Requeue(1.0)
        for each in node_reader(key.name):
            await self._target.apply(each, manager=_MANAGER)
        return None

    async def _remove(self, machine: str, live: Object | None) -> Requeue | None:
        """Delete the RoleBinding of a missing Machine, but only once its Node is gone, too.

        Machines also disappear from a seed when a control plane moves.
        """
        if live is None:
            return None
        if await self._target.find(NODE, machine) is not None:
            return Requeue(_RETRY_SECONDS)
        for kind in (CLUSTER_ROLE_BINDING, CLUSTER_ROLE):
            await self._target.delete(kind, _name(machine))
        await self._delete(live)
        return None

    async def _delete(self, live: Object) -> None:
        metadata = live["metadata"]
        await self._target.delete(ROLE_BINDING, metadata["name"], NAMESPACE, uid=metadata["uid"])


def pool_secret_of(machine: Mapping[str, Any]) -> str:
    """Name of the Secret that the node agent on a Machine applies; empty if the Machine names none."""
    template = machine["spec"].get("nodeTemplate") or {}
    return str(((template.get("metadata") or {}).get("labels") or {}).get(WORKER_NODE_AGENT_SECRET, ""))


def role_binding(machine: str, secret: str) -> Object:
    """RoleBinding that gives the node agent of ``machine`` the Role with the name of its pool's Secret."""
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": {"name": _name(machine), "namespace": NAMESPACE, "labels": dict(_LABELS)},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": secret},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": f"{NODE_AGENT_USER_PREFIX}{machine}"}],
    }


def node_reader(machine: str) -> list[Object]:
    """ClusterRole and binding that let the node agent of ``machine`` read and watch the Node of that name."""
    metadata = {"name": _name(machine), "labels": dict(_LABELS)}
    rule = {"apiGroups": [""], "resources": ["nodes"], "resourceNames": [machine], "verbs": ["get", "list", "watch"]}
    return [
        {
            "apiVersion": CLUSTER_ROLE.api_version,
            "kind": CLUSTER_ROLE.kind,
            "metadata": metadata,
            "rules": [rule],
        },
        {
            "apiVersion": CLUSTER_ROLE_BINDING.api_version,
            "kind": CLUSTER_ROLE_BINDING.kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": CLUSTER_ROLE.kind, "name": _name(machine)},
            "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": f"{NODE_AGENT_USER_PREFIX}{machine}"}],
        },
    ]


def _name(machine: str) -> str:
    return f"gardener-node-agent:{machine}"


def _machine_of(binding: Object) -> str:
    return str(binding["metadata"]["name"]).removeprefix(_name(""))


def _matters(event: WatchEvent) -> bool:
    """Whether an event of a Machine matters here. A change of its status does not."""
    if event.type != "MODIFIED" or event.old is None:
        return True
    return pool_secret_of(event.old) != pool_secret_of(event.object)

"""The node-agent authorizer: what the node agent of a Machine may do in the target cluster.

The API server sends a SubjectAccessReview for each request of a node agent, before it asks RBAC. The answer is
"allowed" or "denied", so no role can widen these rights; the webhook has no opinion on other users. The user name of a
node agent holds the name of its Machine, and the Machine names the Node and the Secret of the pool. Labels of a Node
decide nothing: the kubelet, and so root on that node, writes them.

A policy of the cluster (``activities.components.node_agent_policy``) limits what a node agent writes to its Node.

Source: spec/resource-manager.md 8. Narrower than there: a node agent lists its own Node only, because it knows the
name. Wider: it patches its Lease, because it writes by server-side apply, and lists and watches its own
CertificateSigningRequests by name, because it waits for the certificate by a watch.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import Histogram

from api.constants import NODE_AGENT_USER_PREFIX, NODE_AGENTS_GROUP, WORKER_NODE_AGENT_SECRET
from api.resources import CERTIFICATE_SIGNING_REQUEST, MACHINE, POD
from kube.cache import Caches
from kube.client import KubeClient, Object
from kube.errors import ApiError
from workers.resource_manager.config import NodeAgentAuthorizer as Config

_log = logging.getLogger(__name__)

# The resource of a request is no label: a node chooses the path of its requests, and so any number of resources.
_SECONDS = Histogram(
    "gardener_node_agent_authorizer_seconds",
    "Time to say whether a node agent may do something.",
    ["allowed"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1, 3),
)
_SYNC_SECONDS = 2.0
"""Time for the first list of Machines. The API server waits 3 s for the answer."""
_SYSTEM = "kube-system"
_LEASE_PREFIX = "gardener-node-agent-"
_LOGGING_SECRET = "gardener-valitail"
_READ = ("get", "list", "watch")


@dataclass(frozen=True)
class Request:
    """A request of a node agent for a resource."""

    user: str
    verb: str
    resource: str
    """Plural name with its group, as ``leases.coordination.k8s.io``, and with its subresource, as ``nodes/status``."""
    namespace: str
    name: str
    """Name of the object; also that of a list or watch with field selector ``metadata.name=<name>``."""
    node: str
    """Node in field selector ``spec.nodeName=<node>`` of a list or watch."""

    @property
    def machine(self) -> str:
        return self.user.removeprefix(NODE_AGENT_USER_PREFIX)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Request | None":
        """Request in the spec of a SubjectAccessReview; None if no node agent sent it, or it is for no resource."""
        user, attributes = str(spec.get("user") or ""), spec.get("resourceAttributes")
        ours = user.startswith(NODE_AGENT_USER_PREFIX) and NODE_AGENTS_GROUP in (spec.get("groups") or ())
        if not ours or not attributes:
            return None
        resource = ".".join(filter(None, (attributes.get("resource", ""), attributes.get("group", ""))))
        return cls(
            user=user,
            verb=attributes.get("verb", ""),
            resource="/".join(filter(None, (resource, attributes.get("subresource", "")))),
            namespace=attributes.get("namespace", ""),
            name=attributes.get("name", ""),
            node=_node_in(attributes.get("fieldSelector") or {}),
        )

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.resource, "/".join(filter(None, (self.namespace, self.name))))))


def _node_in(selector: Mapping[str, Any]) -> str:
    for each in selector.get("requirements") or ():
        values = list(each.get("values") or ())
        if each.get("key") == "spec.nodeName" and each.get("operator") == "In" and len(values) == 1:
            return str(values[0])
    return ""


class NodeAgentAuthorizer:
    """Answers SubjectAccessReviews by the Machines of the source cluster."""

    def __init__(self, config: Config, *, source_caches: Caches, target: KubeClient) -> None:
        self._namespace = config.machine_namespace
        self._machines = source_caches.of(MACHINE, self._namespace)
        self._selectors = config.authorize_with_selectors
        self._target = target
        self._rights: dict[tuple[str, str], Callable[[Request, Object], Awaitable[bool]]] = {}
        for verbs, resource, condition in (
            (("create",), "certificatesigningrequests.certificates.k8s.io", _always),
            (_READ, "certificatesigningrequests.certificates.k8s.io", self._own_signing_request),
            (("create", "patch"), "events", _always),
            (("create", "patch"), "events.events.k8s.io", _always),
            ((*_READ, "create", "update", "patch"), "leases.coordination.k8s.io", _own_lease),
            ((*_READ, "update", "patch"), "nodes", _own_node),
            (("get", "update", "patch"), "nodes/status", _own_node),
            (_READ, "secrets", _own_secret),
            (("list", "watch"), "pods", self._pods_of_node),
            (("get", "delete"), "pods", self._pod_on_node),
        ):
            self._rights |= {(verb, resource): condition for verb in verbs}

    async def handle(self, http: web.Request) -> web.Response:
        """Answer one review. Status 503: the target cluster or the Machines cannot be read; the node agent retries."""
        started = time.perf_counter()
        review = await http.json()
        request = Request.of(review.get("spec") or {})
        status: Object = {"allowed": False}
        if request is not None:
            try:
                status = await self._status(request)
            except (ApiError, TimeoutError) as error:
                _log.warning("review of a request of %s: %s", request.user, error)
                raise web.HTTPServiceUnavailable(text="a cluster of the resource manager does not answer") from None
            _SECONDS.labels(str(status["allowed"])).observe(time.perf_counter() - started)
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status})

    async def _status(self, request: Request) -> Object:
        if not self._machines.is_synced:
            await self._machines.synced(_SYNC_SECONDS)
        machine = self._machines.get(request.machine, self._namespace)
        if machine is None:
            return _denied(f"Machine {request.machine} of this node agent does not exist")
        condition = self._rights.get((request.verb, request.resource))
        if condition is None or not await condition(request, machine):
            _log.debug("node agent of Machine %s may not %s", request.machine, request)
            return _denied(f"the work of the node agent of Machine {request.machine} does not need this")
        return {"allowed": True}

    async def _own_signing_request(self, request: Request, _: Object) -> bool:
        if not request.name:
            return False
        found = await self._target.find(CERTIFICATE_SIGNING_REQUEST, request.name)
        return found is not None and found["spec"].get("username") == request.user

    async def _pods_of_node(self, request: Request, machine: Object) -> bool:
        """API servers that send no selectors in reviews would let a node agent read the pods of all nodes."""
        return self._selectors and request.node == node_of(machine)

    async def _pod_on_node(self, request: Request, machine: Object) -> bool:
        if not request.name:
            return False
        found = await self._target.find(POD, request.name, request.namespace)
        return found is not None and found["spec"].get("nodeName") == node_of(machine)


def node_of(machine: Mapping[str, Any]) -> str:
    """Name of a Machine's Node. A new Machine lacks label ``node``: its kubelet gets a certificate for its own name."""
    metadata = machine["metadata"]
    return str((metadata.get("labels") or {}).get("node") or metadata["name"])


def pool_secret_of(machine: Mapping[str, Any]) -> str:
    """Name of the Secret that the node agent on a Machine applies; empty if the Machine names none."""
    template = machine["spec"].get("nodeTemplate") or {}
    return str(((template.get("metadata") or {}).get("labels") or {}).get(WORKER_NODE_AGENT_SECRET, ""))


def _denied(reason: str) -> Object:
    return {"allowed": False, "denied": True, "reason": reason}


async def _always(_: Request, __: Object) -> bool:
    return True


async def _own_lease(request: Request, machine: Object) -> bool:
    return (request.namespace, request.name) == (_SYSTEM, f"{_LEASE_PREFIX}{node_of(machine)}")


async def _own_node(request: Request, machine: Object) -> bool:
    return request.name == node_of(machine)


async def _own_secret(request: Request, machine: Object) -> bool:
    own = {_LOGGING_SECRET, pool_secret_of(machine)} - {""}
    return request.namespace == _SYSTEM and request.name in own

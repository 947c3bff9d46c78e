"""Approves certificates of kubelets and node agents, and denies them certificates that are not their own.

A bootstrap token is for one Machine, and one of the token's groups names that Machine. The token's holder gets
certificates of that Machine's kubelet and node agent. In Gardener itself, each token is valid for each Node that has
not joined yet.

Source: spec/resource-manager.md 5, the rules of today and of the seed documents.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from api.access import machine_bootstrap_group
from api.constants import NODE_AGENT_USER_PREFIX
from api.resources import CERTIFICATE_SIGNING_REQUEST, MACHINE, NODE
from kube.cache import Caches, Key
from kube.client import KubeClient, Object
from kube.controller import Controller, Requeue
from workers.lib.signing_requests import (
    CLIENT_AUTH,
    CLIENT_SIGNER,
    NODE_AGENTS,
    SERVER_AUTH,
    Malformed,
    Request,
    Verdict,
    decide,
    decided,
    is_undecided,
    parse_request,
)

_KUBELET_SERVING = "kubernetes.io/kubelet-serving"
_KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
_NODE_USER = "system:node:"
_NODES = "system:nodes"
_BOOTSTRAP_USER = "system:bootstrap:"
_NODE_AGENT_ACCOUNT = "system:serviceaccount:kube-system:gardener-node-agent"

_NODE_TIMEOUT_SECONDS = 15.0
"""Seconds that a request may wait until its Node is registered with all its addresses. Then it is denied."""
_NODE_POLL_SECONDS = 0.5


def decide_kubelet_serving(
    user: str, request: Request, node: Object | None, machines: Iterable[Object] | None
) -> Verdict:
    """A kubelet gets a serving certificate for exactly the addresses of its Node.

    ``machines``: Machines with label ``node=<node>``; None: nodes need no Machine.
    """
    if not user.startswith(_NODE_USER):
        return Verdict(False, f"username {user!r} is not prefixed with {_NODE_USER!r}")
    if not request.has_alternative_names:
        return Verdict(False, "no DNS names or IP addresses in the SANs found")
    if request.common_name != user:
        return Verdict(False, "common name in CSR does not match username")
    if request.organization != _NODES:
        return Verdict(False, "organization in CSR does not match nodes group")
    if wrong := request.wrong_usages(SERVER_AUTH):
        return Verdict(False, wrong)
    if node is None:
        return Verdict(False, "could not find the Node", may_pass=True)
    if machines is not None and len(found := list(machines)) != 1:
        return Verdict(False, f"expected exactly one Machine for the Node, found {len(found)}", may_pass=True)
    addresses = (node.get("status") or {}).get("addresses") or ()
    hosts = {a["address"] for a in addresses if a["type"] in ("Hostname", "InternalDNS", "ExternalDNS")}
    ips = {a["address"] for a in addresses if a["type"] in ("InternalIP", "ExternalIP")}
    if request.dns_names != hosts:
        return Verdict(False, "DNS names in CSR do not match addresses of the Node", may_pass=True)
    if request.ip_addresses != ips:
        return Verdict(False, "IP addresses in CSR do not match addresses of the Node", may_pass=True)
    return Verdict(True, "Approving kubelet server certificate CSR (all checks passed)")


def decide_joining_kubelet(groups: Collection[str] | None, request: Request, machine: Object | None) -> Verdict:
    """A kubelet gets its first client certificate with the bootstrap token of its Machine.

    ``groups``: groups of the token; None: nodes need no Machine, and a token is valid for each node.
    """
    name = request.common_name.removeprefix(_NODE_USER)
    if name == request.common_name or not name:
        return Verdict(False, f"common name in CSR must be {_NODE_USER}<name of the node>")
    if request.organization != _NODES:
        return Verdict(False, "organization in CSR does not match nodes group")
    if request.has_alternative_names:
        return Verdict(False, "a kubelet's client certificate must have no DNS names and no IP addresses")
    if wrong := request.wrong_usages(CLIENT_AUTH):
        return Verdict(False, wrong)
    if fault := _not_for(name, groups):
        return Verdict(False, fault)
    if machine is None:
        return Verdict(False, "could not find the Machine", may_pass=True)
    return Verdict(True, "Approving kubelet client certificate CSR (bootstrap)")


def _not_for(machine: str, groups: Collection[str] | None) -> str:
    """Reason to deny the holder of a token with these groups a certificate of a Machine; empty if there is none."""
    if groups is None or (wanted := machine_bootstrap_group(machine)) in groups:
        return ""
    return f"the bootstrap token is not for this Machine: its auth-extra-groups must hold {wanted}"


def decide_node_agent(
    user: str, groups: Collection[str] | None, request: Request, machine: Object | None, node: Object | None
) -> Verdict:
    """A node agent gets a client certificate for its Machine: its first one, a renewed one, or by a service account.

    ``groups``: groups of the user; None: nodes need no Machine, and a bootstrap token is valid for each node.
    ``node``: the Node of that Machine, if there was one when the certificate was requested.
    """
    if fault := NODE_AGENTS.fault(user, request):
        return Verdict(False, fault)
    if machine is None:
        return Verdict(False, "could not find the Machine", may_pass=True)
    label = (machine["metadata"].get("labels") or {}).get("node")
    if user == request.common_name:
        return Verdict(True, "Approving gardener-node-agent client certificate CSR (renewal)")
    if user.startswith(_BOOTSTRAP_USER):
        if fault := _not_for(machine["metadata"]["name"], groups):
            return Verdict(False, fault)
        if node is None:
            return Verdict(True, "Approving gardener-node-agent client certificate CSR (bootstrap)")
        return Verdict(False, "cannot use bootstrap token since a Node is already registered for the Machine")
    # A Machine and its Node have the same name.
    if user == f"{_NODE_USER}{machine['metadata']['name']}" and not label:
        return Verdict(True, "Approving gardener-node-agent client certificate CSR (bootstrap by kubelet)")
    if user == _NODE_AGENT_ACCOUNT and label:
        return Verdict(True, "Approving gardener-node-agent client certificate CSR (migration)")
    return Verdict(False, f"username {user!r} may not request a certificate for this Machine")


class CSRApprover:
    """Decides certificate signing requests of the target cluster."""

    def __init__(
        self,
        *,
        source: KubeClient,
        target: KubeClient,
        target_caches: Caches,
        machine_namespace: str | None,
        tokens_of_nodes: bool = False,
        workers: int = 1,
    ) -> None:
        """``tokens_of_nodes``: nodes need no Machine, but each bootstrap token names the only node that it is for."""
        self._source = source
        self._target = target
        self._caches = target_caches
        self._machine_namespace = machine_namespace
        self._tokens_of_nodes = tokens_of_nodes
        self._controller = Controller(
            "csr-approver", self._reconcile, workers=workers, first_delay=0.2, longest_delay=10.0
        )

    async def run(self) -> None:
        self._controller.watch(self._caches.of(CERTIFICATE_SIGNING_REQUEST), when=is_undecided)
        await self._controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        csr = await self._target.find(CERTIFICATE_SIGNING_REQUEST, key.name)
        if csr is None or decided(csr):
            return None
        verdict = await self._verdict(csr)
        if verdict is None:
            return None
        if verdict.may_pass and _age(csr) < _NODE_TIMEOUT_SECONDS:
            return Requeue(_NODE_POLL_SECONDS)
        await decide(self._target, csr, verdict)
        return None

    async def _verdict(self, csr: Object) -> Verdict | None:
        """The decision; None for requests of other signers and other clients: other approvers decide about these."""
        signer, user = csr["spec"]["signerName"], csr["spec"].get("username", "")
        joining = signer == _KUBELET_CLIENT and user.startswith(_BOOTSTRAP_USER)
        if not joining and signer not in (_KUBELET_SERVING, CLIENT_SIGNER):
            return None
        try:
            request = parse_request(csr["spec"])
        except Malformed as error:
            ours = joining or signer == _KUBELET_SERVING or NODE_AGENTS.concerned(user, error.names)
            return Verdict(False, str(error)) if ours else None
        if joining:
            return await self._joining_kubelet(request, csr)
        if signer == _KUBELET_SERVING:
            return await self._kubelet_serving(user, request)
        if NODE_AGENTS.concerned(user, (request.common_name, request.organization)):
            return await self._node_agent(user, request, csr)
        return None

    async def _kubelet_serving(self, user: str, request: Request) -> Verdict:
        name = user.removeprefix(_NODE_USER)
        node = await self._target.find(NODE, name) if user.startswith(_NODE_USER) and name else None
        machines = None
        if self._machine_namespace is not None:
            machines = await self._source.list(MACHINE, self._machine_namespace, labels=f"node={name}") if node else []
        return decide_kubelet_serving(user, request, node, machines)

    async def _joining_kubelet(self, request: Request, csr: Object) -> Verdict:
        name = request.common_name.removeprefix(_NODE_USER)
        machine: Object | None = {"metadata": {"name": name}}
        if self._machine_namespace is not None and name:
            machine = await self._source.find(MACHINE, name, self._machine_namespace)
        verdict = decide_joining_kubelet(self._groups(csr), request, machine)
        if not verdict.approved or not self._tokens_of_nodes:
            return verdict
        # The certificate would be that of the node, with its rights to the Secrets of its pods.
        if _registered_before(csr, await self._target.find(NODE, name)):
            return Verdict(False, "cannot use bootstrap token since a Node is already registered with this name")
        return verdict

    def _groups(self, csr: Object) -> Collection[str] | None:
        """Groups of the requester; None if nodes have no Machines, and no tokens of their own."""
        of_one = self._tokens_of_nodes or self._machine_namespace is not None
        return csr["spec"].get("groups") or () if of_one else None

    async def _node_agent(self, user: str, request: Request, csr: Object) -> Verdict:
        name = request.common_name.removeprefix(NODE_AGENT_USER_PREFIX)
        if fault := NODE_AGENTS.fault(user, request):
            return Verdict(False, fault)
        if self._machine_namespace is None:
            node = await self._target.find(NODE, name)
            # If nodes have no Machines, the node's name stands for both.
            machine: Object | None = {"metadata": {"name": name, "labels": {"node": name} if node else {}}}
            return decide_node_agent(user, self._groups(csr), request, machine, _registered_before(csr, node))
        machine = await self._source.find(MACHINE, name, self._machine_namespace)
        label = ((machine or {}).get("metadata", {}).get("labels") or {}).get("node")
        node = await self._target.find(NODE, label) if label else None
        return decide_node_agent(user, self._groups(csr), request, machine, _registered_before(csr, node))


def _registered_before(csr: Object, node: Object | None) -> Object | None:
    """The Node, if it is older than the request.

    The kubelet's request may be approved first, and its Node may exist before the agent's request is decided. If that
    request were denied, no later one would be approved, and the machine would never get its configuration.
    """
    return node if node is not None and _created(node) < _created(csr) else None


def _age(csr: Object) -> float:
    return (datetime.now(UTC) - _created(csr)).total_seconds()


def _created(obj: Object) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"])

"""Approve the certificates that nodes ask for, deny what is none of their business.

Source: spec/resource-manager.md 5, the rules of today and of the seed documents.
"""

import base64
import logging
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.kube.cache import Caches, Key
from activities.kube.client import KubeClient, Object, WatchEvent
from activities.kube.controller import Controller, Requeue
from activities.kube.errors import NotFound
from api.resources import CERTIFICATE_SIGNING_REQUEST, MACHINE, NODE

_log = logging.getLogger(__name__)

_KUBELET_SERVING = "kubernetes.io/kubelet-serving"
_CLIENT = "kubernetes.io/kube-apiserver-client"
_NODE_USER = "system:node:"
_BOOTSTRAP_USER = "system:bootstrap:"
_NODE_AGENT = "gardener.cloud:node-agent:machine:"
_NODE_AGENT_ACCOUNT = "system:serviceaccount:kube-system:gardener-node-agent"

_PATIENCE = 15.0
"""Seconds that a request may wait for its Node to be registered, addresses and all, before it is denied."""
_LOOK_AGAIN = 0.5


@dataclass(frozen=True)
class Request:
    """What a certificate signing request asks for, and for whom."""

    common_name: str
    organizations: tuple[str, ...]
    dns_names: frozenset[str]
    ip_addresses: frozenset[str]


@dataclass(frozen=True)
class Verdict:
    approved: bool
    why: str
    may_pass: bool = False
    """A refusal that a later look may not repeat, because an object is still to come."""


def decide_kubelet_serving(
    user: str, request: Request, node: Object | None, machines: Iterable[Object] | None
) -> Verdict:
    """A kubelet gets a serving certificate for exactly the addresses of its Node.

    ``machines``: those with label ``node=<node>``; None: nodes need no Machine.
    """
    if not user.startswith(_NODE_USER):
        return Verdict(False, f"username {user!r} is not prefixed with {_NODE_USER!r}")
    if not request.dns_names and not request.ip_addresses:
        return Verdict(False, "no DNS names or IP addresses in the SANs found")
    if request.common_name != user:
        return Verdict(False, "common name in CSR does not match username")
    if request.organizations != ("system:nodes",):
        return Verdict(False, "organization in CSR does not match nodes group")
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


def decide_node_agent(user: str, request: Request, machine: Object | None, node: Object | None) -> Verdict:
    """A node agent gets a client certificate for its Machine: first, to renew, or from a service account.

    ``node``: the Node of that Machine, if there was one when the certificate was asked for.
    """
    if machine is None:
        return Verdict(False, "could not find the Machine", may_pass=True)
    label = (machine["metadata"].get("labels") or {}).get("node")
    if user == request.common_name:
        return Verdict(True, "Approving gardener-node-agent client certificate CSR (renewal)")
    if user.startswith(_BOOTSTRAP_USER):
        if node is None:
            return Verdict(True, "Approving gardener-node-agent client certificate CSR (bootstrap)")
        return Verdict(False, "cannot use bootstrap token since a Node is already registered for the Machine")
    if user.startswith(_NODE_USER) and not label:
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
    ) -> None:
        self._source = source
        self._target = target
        self._caches = target_caches
        self._machine_namespace = machine_namespace
        self._controller = Controller("csr-approver", self._reconcile, workers=1, first_delay=0.2, longest_delay=10.0)

    async def run(self) -> None:
        self._controller.watch(self._caches.of(CERTIFICATE_SIGNING_REQUEST), when=_undecided_event)
        await self._controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        csr = await self._target.find(CERTIFICATE_SIGNING_REQUEST, key.name)
        if csr is None or _decided(csr):
            return None
        user = csr["spec"].get("username", "")
        request = parse_request(csr["spec"]["request"])
        if csr["spec"]["signerName"] == _KUBELET_SERVING:
            verdict = await self._kubelet_serving(user, request)
        elif csr["spec"]["signerName"] == _CLIENT and request.common_name.startswith(_NODE_AGENT):
            verdict = await self._node_agent(user, request, csr)
        else:
            return None
        if verdict.may_pass and _age(csr) < _PATIENCE:
            return Requeue(_LOOK_AGAIN)
        await self._decide(csr, verdict)
        return None

    async def _kubelet_serving(self, user: str, request: Request) -> Verdict:
        name = user.removeprefix(_NODE_USER)
        node = await self._target.find(NODE, name) if user.startswith(_NODE_USER) and name else None
        machines = None
        if self._machine_namespace is not None:
            machines = await self._source.list(MACHINE, self._machine_namespace, labels=f"node={name}") if node else []
        return decide_kubelet_serving(user, request, node, machines)

    async def _node_agent(self, user: str, request: Request, csr: Object) -> Verdict:
        name = request.common_name.removeprefix(_NODE_AGENT)
        if self._machine_namespace is None:
            node = await self._target.find(NODE, name)
            # Where nodes have no Machines, the node's name stands for both.
            machine: Object | None = {"metadata": {"name": name, "labels": {"node": name} if node else {}}}
            return decide_node_agent(user, request, machine, _registered_before(csr, node))
        machine = await self._source.find(MACHINE, name, self._machine_namespace)
        label = ((machine or {}).get("metadata", {}).get("labels") or {}).get("node")
        node = await self._target.find(NODE, label) if label else None
        return decide_node_agent(user, request, machine, _registered_before(csr, node))

    async def _decide(self, csr: Object, verdict: Verdict) -> None:
        name = csr["metadata"]["name"]
        _log.info("%s CSR %s: %s", "approving" if verdict.approved else "denying", name, verdict.why)
        condition = {
            "type": "Approved" if verdict.approved else "Denied",
            "status": "True",
            "reason": "RequestApproved" if verdict.approved else "RequestDenied",
            "message": verdict.why,
        }
        conditions = [*((csr.get("status") or {}).get("conditions") or ()), condition]
        patch = {
            "metadata": {"resourceVersion": csr["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        try:
            await self._target.patch(CERTIFICATE_SIGNING_REQUEST, name, None, patch, subresource="approval")
        except NotFound:
            return


def parse_request(pem_base64: str) -> Request:
    """Subject and SANs of a PKCS #10 request as an object carries it. Raises ValueError."""
    # Heavy, and nodes join seldom.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    csr = x509.load_pem_x509_csr(base64.b64decode(pem_base64))
    with warnings.catch_warnings():
        # Names of machines make common names longer than the 64 characters of X.520.
        warnings.simplefilter("ignore")
        subject = csr.subject
    dns: frozenset[str] = frozenset()
    ips: frozenset[str] = frozenset()
    try:
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = frozenset(names.get_values_for_type(x509.DNSName))
        ips = frozenset(str(address) for address in names.get_values_for_type(x509.IPAddress))
    except x509.ExtensionNotFound:
        pass  # client certificates have none
    common = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    organizations = tuple(str(a.value) for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    return Request(common[0] if common else "", organizations, dns, ips)


def _undecided_event(event: WatchEvent) -> bool:
    return event.type != "DELETED" and not _decided(event.object)


def _decided(csr: Object) -> bool:
    status = csr.get("status") or {}
    return bool(status.get("certificate")) or any(
        condition["type"] in ("Approved", "Denied") for condition in status.get("conditions") or ()
    )


def _registered_before(csr: Object, node: Object | None) -> Object | None:
    """The Node, if it is older than the request.

    The kubelet's request is approved by another process, and its Node may be there before we get to the agent's: if
    that were denied, no later one would be granted, and the machine would never have its configuration.
    """
    return node if node is not None and _created(node) < _created(csr) else None


def _age(csr: Object) -> float:
    return (datetime.now(UTC) - _created(csr)).total_seconds()


def _created(obj: Object) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"])

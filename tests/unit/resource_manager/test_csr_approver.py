"""Approved certificates: a node for its own addresses, a node agent for its own machine, and no others."""

import asyncio
import base64
import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kube.cache import Caches
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.conftest import NAMESPACE
from workers.lib.signing_requests import Request
from workers.resource_manager.csr_approver import (
    CSRApprover,
    decide_joining_kubelet,
    decide_kubelet_serving,
    decide_node_agent,
)

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NODES = "/api/v1/nodes"
MACHINES = "/apis/machine.sapcloud.io/v1alpha1/machines"
USER = "system:node:node-1"
AGENT = "gardener.cloud:node-agent:machine:machine-1"
AGENTS = "gardener.cloud:node-agents"
SERVER = frozenset({"digital signature", "server auth"})
CLIENT = frozenset({"digital signature", "client auth"})

NODE = {
    "kind": "Node",
    "metadata": {"name": "node-1"},
    "status": {"addresses": [{"type": "Hostname", "address": "node-1"}, {"type": "InternalIP", "address": "10.0.0.1"}]},
}
MACHINE = {"kind": "Machine", "metadata": {"name": "machine-1", "namespace": NAMESPACE, "labels": {"node": "node-1"}}}
TOKEN_GROUPS = ("system:bootstrappers", "system:bootstrappers:machine:machine-1")
UNLABELLED = {"metadata": {"name": "machine-1"}}


def serving(name=USER, organization="system:nodes", usages=SERVER, dns=("node-1",), ips=("10.0.0.1",)):
    return Request(name, organization, usages, frozenset(dns), frozenset(ips))


@pytest.mark.row("certificate requests", "kubelet-serving: names and addresses of the Node, and its Machine")
def test_a_kubelet_gets_its_certificate():
    assert decide_kubelet_serving(USER, serving(), NODE, [MACHINE]).approved


@pytest.mark.row("certificate requests", "kubelet-serving: any other content is denied")
@pytest.mark.parametrize(
    ("user", "request_", "node", "machines"),
    [
        ("someone", serving(), NODE, [MACHINE]),
        (USER, serving(name="system:node:node-2"), NODE, [MACHINE]),
        (USER, serving(organization="system:masters"), NODE, [MACHINE]),
        (USER, serving(usages=SERVER | {"client auth"}), NODE, [MACHINE]),
        (USER, serving(usages=CLIENT), NODE, [MACHINE]),
        (USER, serving(dns=(), ips=()), NODE, [MACHINE]),
        (USER, serving(dns=("node-1", "kubernetes.default.svc")), NODE, [MACHINE]),
        (USER, serving(ips=("10.0.0.1", "10.0.0.2")), NODE, [MACHINE]),
        (USER, serving(ips=()), NODE, [MACHINE]),
        (USER, serving(), None, []),
        (USER, serving(), NODE, []),
        (USER, serving(), NODE, [MACHINE, MACHINE]),
    ],
)
def test_a_kubelet_gets_nothing_else(user, request_, node, machines):
    """Each of these would let one node speak for another, or for the API server."""
    assert not decide_kubelet_serving(user, request_, node, machines).approved


def test_a_request_waits_only_for_objects_that_may_still_appear():
    assert decide_kubelet_serving(USER, serving(), None, []).may_pass
    assert not decide_kubelet_serving("someone", serving(), None, []).may_pass


@pytest.mark.row("certificate requests", "kubelet-serving: without machineNamespace no Machine is needed")
def test_without_machines_no_machine_is_required():
    assert decide_kubelet_serving(USER, serving(), NODE, None).approved


@pytest.mark.row("certificate requests", "node agent: bootstrap, renewal and migration for its own Machine")
@pytest.mark.parametrize(
    ("user", "machine", "node", "approved"),
    [
        ("system:node:machine-1", UNLABELLED, None, True),
        ("system:bootstrap:abcdef", UNLABELLED, None, True),
        ("system:bootstrap:abcdef", MACHINE, NODE, False),  # a leaked token must not take over a running node
        (AGENT, MACHINE, NODE, True),
        ("gardener.cloud:node-agent:machine:machine-2", MACHINE, NODE, False),
        (USER, UNLABELLED, None, False),
        (USER, MACHINE, NODE, False),
        ("system:serviceaccount:kube-system:gardener-node-agent", MACHINE, NODE, True),
        ("system:serviceaccount:kube-system:default", MACHINE, NODE, False),
        (AGENT, None, None, False),
    ],
)
def test_a_node_agent_gets_a_certificate_for_its_own_machine(user, machine, node, approved):
    assert decide_node_agent(user, TOKEN_GROUPS, Request(AGENT, AGENTS, CLIENT), machine, node).approved is approved


def test_where_nodes_have_no_machines_a_token_is_for_each_of_them():
    token = "system:bootstrap:abcdef"
    kubelet = Request("system:node:machine-1", "system:nodes", CLIENT)
    assert decide_node_agent(token, None, Request(AGENT, AGENTS, CLIENT), UNLABELLED, None).approved
    assert decide_joining_kubelet(None, kubelet, UNLABELLED).approved
    assert decide_joining_kubelet(TOKEN_GROUPS, kubelet, None).may_pass, "the Machine may be about to be written"


@pytest.mark.row("certificate requests", "node agent: any other content is denied")
@pytest.mark.parametrize(
    "request_",
    [
        Request(AGENT, "gardener.cloud:system:admins", CLIENT),
        Request(AGENT, AGENTS, CLIENT | {"server auth"}),
        Request(AGENT, AGENTS, SERVER),
        Request(AGENT, AGENTS, CLIENT, frozenset({"node-1"})),
        Request("system:kube-controller-manager", AGENTS, CLIENT),
    ],
)
def test_a_node_agent_gets_no_other_certificate(request_):
    """Each of these would give the holder of one node more than its node agent's rights."""
    verdict = decide_node_agent(AGENT, [AGENTS], request_, MACHINE, NODE)
    assert not verdict.approved
    assert not verdict.may_pass


@pytest.fixture
async def approver(source, target, clients):
    one, other = clients
    caches = Caches(other)
    approver = CSRApprover(source=one, target=other, target_caches=caches, machine_namespace=NAMESPACE)
    task = asyncio.create_task(approver.run())
    yield approver
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await caches.close()


def csr(name="csr", cn=USER, signer="kubernetes.io/kubelet-serving", user=USER, age=0, sans=True):
    organization = AGENTS if cn.startswith("gardener.cloud:node-agent:") else "system:nodes"
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name(
            [
                x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(x509.NameOID.COMMON_NAME, cn),
            ]
        )
    )
    if sans:
        names = [x509.DNSName("node-1"), x509.IPAddress(ipaddress.ip_address("10.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(
        serialization.Encoding.PEM
    )
    created = datetime.now(UTC) - timedelta(seconds=age)
    return {
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "creationTimestamp": created.isoformat()},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": signer,
            "username": user,
            "groups": list(TOKEN_GROUPS) if user.startswith("system:bootstrap:") else [],
            "usages": sorted(SERVER if sans else CLIENT),
        },
    }


def verdict(server, name="csr"):
    conditions = (server.find(CSRS, name).get("status") or {}).get("conditions") or ()
    return [(condition["type"], condition["reason"]) for condition in conditions]


async def test_a_request_is_approved_when_node_and_machine_are_there(approver, source, target):
    target.put(NODES, NODE)
    source.put(MACHINES, MACHINE)
    target.put(CSRS, csr())

    await until(lambda: verdict(target) == [("Approved", "RequestApproved")])


@pytest.mark.row("certificate requests", "ours: a request waits 15 s for its Node and Machine")
async def test_a_request_ahead_of_its_node_waits_for_it(approver, source, target):
    """Denied, a kubelet would wait much longer before it asks again, and logs and exec with it."""
    target.put(CSRS, csr())
    target.put(CSRS, csr("later", age=60))
    await until(lambda: verdict(target, "later"))
    assert verdict(target) == []
    target.put(NODES, NODE)
    source.put(MACHINES, MACHINE)

    await until(lambda: verdict(target) == [("Approved", "RequestApproved")])


async def test_a_request_whose_node_never_came_is_denied(approver, target):
    target.put(CSRS, csr(age=60))

    await until(lambda: verdict(target) == [("Denied", "RequestDenied")])


@pytest.mark.row("certificate requests", "other common names and decided requests are ignored")
async def test_requests_of_others_and_decided_ones_are_left_alone(approver, target):
    target.put(CSRS, csr("mine", cn="alice", signer="kubernetes.io/kube-apiserver-client", user="alice", age=60))
    done = csr("done", age=60)
    done["status"] = {"conditions": [{"type": "Approved", "reason": "ByHand"}]}
    target.put(CSRS, done)
    target.put(CSRS, csr("last", age=60))
    await until(lambda: verdict(target, "last"))

    assert verdict(target, "mine") == []
    assert verdict(target, "done") == [("Approved", "ByHand")]


async def test_a_node_agent_bootstraps(approver, source, target):
    source.put(MACHINES, {"kind": "Machine", "metadata": {"name": "machine-1", "namespace": NAMESPACE}})
    target.put(
        CSRS,
        csr(cn=AGENT, signer="kubernetes.io/kube-apiserver-client", user="system:bootstrap:abcdef", sans=False),
    )

    await until(lambda: verdict(target) == [("Approved", "RequestApproved")])


@pytest.mark.parametrize(("asked", "answer"), [(20, "Approved"), (0, "Denied")])
async def test_a_bootstrap_token_counts_until_the_node_registered_not_until_the_check(
    approver, source, target, asked, answer
):
    """Another controller approves the kubelet: during our downtime its Node may come between request and answer."""
    registered = datetime.now(UTC) - timedelta(seconds=10)
    target.put(NODES, {**NODE, "metadata": {"name": "node-1", "creationTimestamp": registered.isoformat()}})
    source.put(MACHINES, MACHINE)
    bootstrap = {"signer": "kubernetes.io/kube-apiserver-client", "user": "system:bootstrap:abcdef"}
    target.put(CSRS, csr(cn=AGENT, age=asked, sans=False, **bootstrap))

    await until(lambda: [type_ for type_, _ in verdict(target)] == [answer])

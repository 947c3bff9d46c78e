"""A gardenlet's certificate is approved for a bootstrap token of its seed, and for the gardenlet itself."""

import base64
from datetime import UTC, datetime

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from api import resources
from api.access import access, bootstrap_group
from tests.unit.api.shoots import SEED as SEED_OBJECT
from tests.unit.kube.waiting import until
from workers.controller_manager.seed_certificates import refusal, run_seed_certificate_controller
from workers.lib.signing_requests import GARDENLETS, Request

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SEEDS_PATH = "/apis/core.gardener.cloud/v1beta1/seeds"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SEED = "gardener.cloud:system:seed:seed-1"
SEEDS = "gardener.cloud:system:seeds"
USAGES = ["digital signature", "client auth"]
TOKEN = "system:bootstrap:abcdef"
OF_TOKEN = ("system:bootstrappers", "system:bootstrappers:gardener-seed:seed-1")


def request(name=SEED, organization=SEEDS, usages=USAGES, dns=(), ips=()):
    return Request(name, organization, frozenset(usages), frozenset(dns), frozenset(ips))


@pytest.mark.parametrize(("user", "groups"), [(TOKEN, OF_TOKEN), (SEED, (SEEDS,)), ("operator", ())])
def test_a_gardenlets_request_is_not_refused(user, groups):
    assert refusal(user, groups, request()) == ""


@pytest.mark.parametrize(
    ("user", "asked", "why"),
    [
        ("gardener.cloud:system:seed:seed-2", request(), "own seed only"),
        (TOKEN, request(name="gardener.cloud:system:seed:"), "common name"),
        (TOKEN, request(name="gardener.cloud:system:seed:a:b"), "common name"),
        (TOKEN, request(name="admin"), "common name"),
        (TOKEN, request(organization="gardener.cloud:system:operators"), "organization"),
        (TOKEN, request(dns=("kubernetes.default.svc",)), "no DNS names"),
        (TOKEN, request(ips=("198.18.0.1",)), "no DNS names"),
        (TOKEN, request(usages=[*USAGES, "server auth"]), "usages"),
        (TOKEN, request(usages=["digital signature"]), "usages"),
        (TOKEN, request(name="gardener.cloud:system:seed:seed-2"), "auth-extra-groups"),
    ],
)
def test_a_gardenlet_gets_nothing_else(user, asked, why):
    """Each of these would let one seed speak for another one, or for the garden."""
    assert why in refusal(user, OF_TOKEN, asked)


def test_the_group_of_a_seed_with_dots_is_one_that_kubernetes_allows():
    """Kubernetes refuses dots in auth-extra-groups; two seeds must not share a group all the same."""
    assert bootstrap_group("a.b") == "system:bootstrappers:gardener-seed:a:b"
    assert refusal(TOKEN, (bootstrap_group("a.b"),), request(name="gardener.cloud:system:seed:a.b")) == ""
    assert refusal(TOKEN, (bootstrap_group("a.b"),), request(name="gardener.cloud:system:seed:a-b"))


def test_requests_of_others_are_told_apart():
    assert GARDENLETS.concerned("someone", (SEED, SEEDS))
    assert GARDENLETS.concerned("someone", ("someone", SEEDS))
    assert GARDENLETS.concerned(SEED, ("someone", "people"))
    assert GARDENLETS.concerned("someone", None)
    assert not GARDENLETS.concerned("someone", ("someone", "people"))


def csr(name, cn=SEED, organization=SEEDS, user=TOKEN, groups=OF_TOKEN, signer="kube-apiserver-client"):
    subject = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, cn),
        ]
    )
    built = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = built.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return {
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "creationTimestamp": datetime.now(UTC).isoformat()},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": f"kubernetes.io/{signer}",
            "username": user,
            "groups": list(groups),
            "usages": USAGES,
        },
    }


def verdict(garden, name):
    conditions = (garden.api.find(CSRS, name).get("status") or {}).get("conditions") or ()
    return [condition["type"] for condition in conditions]


@pytest.fixture
def reviewed(garden):
    """Bootstrappers may ask."""
    found = []

    def answer(asked):
        if asked.path != REVIEWS:
            return None
        found.append(asked.path)
        return web.json_response({"status": {"allowed": True}}, status=201)

    garden.api.answer = answer
    return found


async def test_a_bootstrap_token_makes_a_gardenlet(garden, reviewed):
    async with garden.running(run_seed_certificate_controller(garden.client, garden.caches)):
        garden.api.put(CSRS, csr("new"))
        await until(lambda: verdict(garden, "new") == ["Approved"])


SEED_2 = "gardener.cloud:system:seed:seed-2"


async def test_an_issued_certificate_of_another_identity_is_told_at_the_seeds(garden, reviewed):
    """An earlier version, or an operator by hand, approved it; nothing but an expiry or another CA ends it."""
    garden.api.put(SEEDS_PATH, {**SEED_OBJECT, "metadata": {**SEED_OBJECT["metadata"], "name": "seed-2"}})
    good, wrong = csr("good"), csr("wrong", cn=SEED_2, user=SEED)
    for each in (good, wrong):
        garden.api.put(CSRS, each | {"status": {"conditions": [{"type": "Approved"}], "certificate": "UEVN"}})
    async with garden.running(run_seed_certificate_controller(garden.client, garden.caches)):
        events = await garden.events(2)
        garden.api.put(CSRS, csr("last"))
        await until(lambda: verdict(garden, "last"))
    assert {reason for reason, _ in events} == {"ForeignCertificate"}
    assert {message.split(" got ")[0] for _, message in events} == {f"CertificateSigningRequest wrong of {SEED}"}
    told = [each["involvedObject"]["name"] for each in garden.caches.of(resources.EVENT).list()]
    assert sorted(told) == ["seed-1", "seed-2"]


async def test_who_may_not_ask_is_denied(garden):
    """RBAC says who may, as for everything else."""
    garden.api.answer = lambda asked: (
        web.json_response({"status": {"allowed": False}}, status=201) if asked.path == REVIEWS else None
    )
    async with garden.running(run_seed_certificate_controller(garden.client, garden.caches)):
        garden.api.put(CSRS, csr("mine", user="somebody", groups=("people",)))
        await until(lambda: verdict(garden, "mine") == ["Denied"])


async def test_one_seed_does_not_become_another(garden, reviewed):
    async with garden.running(run_seed_certificate_controller(garden.client, garden.caches)):
        garden.api.put(CSRS, csr("foreign", user="gardener.cloud:system:seed:seed-2", groups=(SEEDS,)))
        await until(lambda: verdict(garden, "foreign") == ["Denied"])
    assert reviewed == []


async def test_what_is_no_gardenlets_is_left_to_others(garden, reviewed):
    async with garden.running(run_seed_certificate_controller(garden.client, garden.caches)):
        garden.api.put(CSRS, csr("people", cn="alice", organization="people"))
        garden.api.put(CSRS, csr("serving", signer="kubelet-serving"))
        garden.api.put(CSRS, csr("last"))
        await until(lambda: verdict(garden, "last"))
    assert verdict(garden, "people") == []
    assert verdict(garden, "serving") == []


def test_bootstrap_tokens_open_nothing_but_the_request():
    roles = {each["metadata"]["name"]: each for each in access() if each["kind"] == "ClusterRole"}
    role = roles["gardener.cloud:system:seed-bootstrapper"]
    assert {each["resources"][0] for each in role["rules"]} == {
        "certificatesigningrequests",
        "certificatesigningrequests/seedclient",
    }

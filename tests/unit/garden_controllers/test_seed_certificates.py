"""Who becomes a gardenlet of the garden: whoever has a bootstrap token, and a gardenlet again, for its own seed."""

import base64
from datetime import UTC, datetime

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from api.access import access
from tests.unit.kube.waiting import until
from workers.seed_certificates import is_of_seed, refusal, run_seed_certificate_controller
from workers.signing_requests import Request

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SEED = "gardener.cloud:system:seed:seed-1"
SEEDS = "gardener.cloud:system:seeds"
USAGES = ["digital signature", "client auth"]
TOKEN = "system:bootstrap:abcdef"


def request(name=SEED, organizations=(SEEDS,), dns=(), ips=()):
    return Request(name, tuple(organizations), frozenset(dns), frozenset(ips))


@pytest.mark.parametrize("user", [TOKEN, SEED, "operator"])
def test_nothing_speaks_against_what_a_gardenlet_asks_for(user):
    assert refusal(user, request(), USAGES) == ""


@pytest.mark.parametrize(
    ("user", "asked", "usages", "why"),
    [
        ("gardener.cloud:system:seed:seed-2", request(), USAGES, "own seed alone"),
        (TOKEN, request(name="gardener.cloud:system:seed:"), USAGES, "common name"),
        (TOKEN, request(name="admin"), USAGES, "common name"),
        (TOKEN, request(organizations=(SEEDS, "gardener.cloud:system:operators")), USAGES, "alone"),
        (TOKEN, request(organizations=()), USAGES, "alone"),
        (TOKEN, request(dns=("kubernetes.default.svc",)), USAGES, "no DNS names"),
        (TOKEN, request(ips=("198.18.0.1",)), USAGES, "no DNS names"),
        (TOKEN, request(), [*USAGES, "server auth"], "usages"),
        (TOKEN, request(), ["digital signature"], "usages"),
    ],
)
def test_a_gardenlet_gets_nothing_else(user, asked, usages, why):
    """Each of these would let one seed speak for another one, or for the garden."""
    assert why in refusal(user, asked, usages)


def test_requests_of_others_are_told_apart():
    assert is_of_seed(request())
    assert is_of_seed(request(name="someone"))
    assert not is_of_seed(Request("someone", ("people",), frozenset(), frozenset()))


def csr(
    name, cn=SEED, organization=SEEDS, user=TOKEN, groups=("system:bootstrappers",), signer="kube-apiserver-client"
):
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

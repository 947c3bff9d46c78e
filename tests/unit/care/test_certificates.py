"""A wrongly issued certificate of a node is reported until the authorities are rotated."""

from typing import Any

import pytest

from tests.security.signing import SERVING_SIGNER, cn, manifest, o, pem
from workers.gardenlet.care import certificates

AGENT = "gardener.cloud:node-agent:machine:machine-1"
AGENTS = "gardener.cloud:node-agents"
ADMINS = "gardener.cloud:system:admins"


def issued(name: str, *subject: Any, user: str = AGENT, certificate: str = "UEVN", **rest: Any) -> dict[str, Any]:
    made = manifest(name, pem(*subject), user=user, **rest)
    made["metadata"]["creationTimestamp"] = "2026-11-25T10:00:00Z"
    return made | {"status": {"certificate": certificate}}


def constraint(requests: list[Any], status: dict[str, Any]) -> Any:
    return certificates.constraint([kept for each in requests if (kept := certificates.outline(each))], status)


FORGED = issued("forged", o(ADMINS), cn(AGENT))


@pytest.mark.parametrize(
    "request_",
    [
        FORGED,
        issued("two", o(AGENTS), cn(AGENT), cn("system:kube-controller-manager")),
        issued("other", o(AGENTS), cn("gardener.cloud:node-agent:machine:machine-2")),
        issued("person", o("people"), cn("alice")),
        issued("token", o(ADMINS), cn(AGENT), user="system:bootstrap:abcdef"),
    ],
    ids=lambda request_: request_["metadata"]["name"],
)
def test_a_wrongly_issued_certificate_of_a_node_is_reported(request_):
    found = constraint([request_], {})
    assert (found.status, found.reason) == ("False", "ForeignCertificateIssued")
    assert request_["metadata"]["name"] in found.message
    assert "rotate-ca-start" in found.message


@pytest.mark.parametrize(
    "request_",
    [
        issued("agent", o(AGENTS), cn(AGENT)),
        issued("joining", o(AGENTS), cn(AGENT), user="system:bootstrap:abcdef"),
        issued("person", o("people"), cn("alice"), user="kubernetes-admin"),
        issued("units", o("people"), o("more"), cn("alice"), user="kubernetes-admin"),
        issued("denied", o(ADMINS), cn(AGENT), certificate=""),
        issued("serving", o("system:nodes"), cn("system:node:machine-1"), signer=SERVING_SIGNER),
    ],
    ids=lambda request_: request_["metadata"]["name"],
)
def test_correct_certificates_are_not_reported(request_):
    assert constraint([request_], {}).status == "True"


def status(known: str = "2026-11-25T10:00:05Z", begun: str = "", done: str = "") -> dict[str, Any]:
    finding = constraint([FORGED], {})
    shown = {"type": finding.type, "status": "False", "reason": finding.reason, "message": finding.message}
    rotation = {"lastInitiationTime": begun, "lastCompletionTime": done}
    return {
        "constraints": [shown | {"lastUpdateTime": known}] if known else [],
        "credentials": {"rotation": {"certificateAuthorities": {key: at for key, at in rotation.items() if at}}},
    }


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (status(), True),
        (status(begun="2026-11-25T10:01:00Z"), True),
        (status(begun="2026-11-25T09:00:00Z", done="2026-11-25T09:30:00Z"), True),
        (status(begun="2026-11-25T09:00:00Z", done="2026-11-25T10:30:00Z"), True),
        (status(begun="2026-11-25T10:01:00Z", done="2026-11-25T10:30:00Z"), False),
        (status(known=""), False),
    ],
    ids=["forgotten", "rotation-under-way", "rotated-before", "begun-before", "rotated", "never-seen"],
)
def test_a_wrong_certificate_is_reported_until_a_later_rotation_is_completed(before, told):
    """Kubernetes deletes the request after an hour; the certificate is valid for 30 days."""
    found = constraint([], before)
    assert (found.status == "False") is told
    if told:
        assert "forged" in found.message


def test_a_request_older_than_the_rotation_is_not_reported():
    """Its authority is gone."""
    before = status(known="", begun="2026-11-25T10:01:00Z", done="2026-11-25T10:30:00Z")
    assert constraint([FORGED], before).status == "True"

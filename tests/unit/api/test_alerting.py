"""Who is written to about a Shoot, and by which server."""

import base64
from typing import Any

import pytest

from api.decisions import alerting
from tests.unit.api.shoots import SHOOT, changed

ASKED = changed(SHOOT, "spec.monitoring.alerting.emailReceivers", ["a@example.org", "b@example.org"])
WHOLE = {"auth_type": "smtp", "from": "gardener@example.org", "smarthost": "mail.example.org:587"}


def secret(**data: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


@pytest.mark.parametrize(
    ("shoot", "expected"),
    [
        (SHOOT, []),
        (ASKED, ["a@example.org", "b@example.org"]),
        (changed(ASKED, "spec.purpose", "testing"), []),
        (changed(SHOOT, "spec.monitoring", {"alerting": {}}), []),
    ],
)
def test_whom_its_owner_names(shoot: dict[str, Any], expected: list[str]) -> None:
    assert alerting.receivers(shoot) == expected


def test_the_server_of_the_garden() -> None:
    known = {"auth_username": "me", "auth_password": "secret", "auth_identity": "us", "ca.crt": "PEM"}
    found = alerting.smarthost([secret(auth_type="none", url="https://other"), secret(**WHOLE, **known)])
    sender, address = WHOLE["from"], WHOLE["smarthost"]
    assert found == alerting.Smarthost(address, sender, user="me", password="secret", identity="us", ca="PEM")
    assert "secret" not in repr(found)


@pytest.mark.parametrize("secrets", [[], [secret(auth_type="none")], [{}]])
def test_a_garden_without_one_sends_no_mails(secrets: list[dict[str, Any]]) -> None:
    assert alerting.smarthost(secrets) is None


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ([secret(**WHOLE), secret(**WHOLE)], "2 Secrets have label"),
        ([secret(auth_type="smtp", smarthost="mail.example.org:587")], "lacks from"),
        ([secret(auth_type="smtp")], "lacks from, smarthost"),
    ],
)
def test_what_is_not_whole_is_named(secrets: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        alerting.smarthost(secrets)

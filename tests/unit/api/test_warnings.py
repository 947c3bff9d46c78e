"""Warnings for owners of a Shoot that is accepted."""

from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.validation.warnings import warnings
from tests.unit.api.shoots import NOW, SHOOT, changed, profile, shoot

POOL = {"name": "pool", "machine": {"type": "local"}, "minimum": 1, "maximum": 1}
STEADY = changed(SHOOT, "spec.provider", {"type": "local", "workers": [POOL]})
LAST_YEAR = "2025-11-21T12:00:00Z"
RECENTLY = "2026-11-01T12:00:00Z"


def told(path: str = "", value: Any = None, **version: Any) -> list[str]:
    """Warnings for a Shoot with one pool of fixed size, with one thing changed, in this version."""
    known = profile("spec.kubernetes.versions", [{"version": "1.37.1", **version}])
    return warnings(Shoot.of(changed(STEADY, path, value)), known, NOW)


def test_a_valid_shoot_gets_no_warning() -> None:
    assert told() == []


RECEIVERS = "spec.monitoring.alerting.emailReceivers"
WRITTEN_TO = changed(STEADY, RECEIVERS, ["a@example.org"])


@pytest.mark.parametrize(
    ("shoot", "mails", "said"),
    [
        (WRITTEN_TO, True, []),
        (STEADY, False, []),
        (
            WRITTEN_TO,
            False,
            [
                "this garden sends no mails; an operator can enable them by a Secret with label "
                "gardener.cloud/role=alerting"
            ],
        ),
        (
            changed(WRITTEN_TO, "spec.purpose", "testing"),
            True,
            ["no mails are sent about a Shoot of purpose testing"],
        ),
    ],
)
def test_mail_receivers_without_effect_get_a_warning(shoot: dict[str, Any], mails: bool, said: list[str]) -> None:
    found = warnings(Shoot.of(shoot), profile(), NOW, mails=mails)
    assert [each.removeprefix(f"{RECEIVERS}: ").partition(" (")[0] for each in found] == said


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ({"classification": "supported"}, []),
        ({"expirationDate": "2027-11-21T00:00:00Z"}, []),
        (
            {"expirationDate": "2026-12-01T00:00:00Z"},
            ["1.37.1 expires at 2026-12-01T00:00:00Z, and is updated in the maintenance after that"],
        ),
        (
            {"classification": "deprecated", "expirationDate": "2027-11-21T00:00:00Z"},
            [
                "1.37.1 is deprecated, expires at 2027-11-21T00:00:00Z, and is updated in the maintenance after that",
            ],
        ),
        ({"classification": "deprecated"}, ["1.37.1 is deprecated"]),
        ({"expirationDate": "2026-11-01T00:00:00Z"}, ["1.37.1 has expired: the next maintenance updates it"]),
        (
            {
                "lifecycle": [
                    {"classification": "supported"},
                    {"classification": "deprecated", "startTime": "2026-11-01T00:00:00Z"},
                    {"classification": "expired", "startTime": "2026-12-24T00:00:00Z"},
                ]
            },
            [
                "1.37.1 is deprecated, expires at 2026-12-24T00:00:00Z, and is updated in the maintenance after that",
            ],
        ),
    ],
)
def test_an_expiring_version_gets_a_warning(version: dict[str, Any], said: list[str]) -> None:
    assert told(**version) == [f"spec.kubernetes.version: {each}" for each in said]


def test_an_expiring_machine_image_gets_a_warning_with_its_pool() -> None:
    image = {"machine": {"type": "local", "image": {"name": "local", "version": "1.1.0"}}}
    live = shoot("spec.provider", {"type": "local", "workers": [POOL, POOL | {"name": "other"} | image]})
    versions = [{"version": "1.1.0", "classification": "deprecated"}]
    known = profile("spec.machineImages", [{"name": "local", "versions": versions}])

    assert warnings(live, known, NOW) == [
        "spec.provider.workers[1].machine.image.version: 1.1.0 is deprecated",
    ]


def test_old_credentials_of_the_shoot_get_a_warning() -> None:
    rotation = {"certificateAuthorities": {"phase": "Completed", "lastInitiationTime": RECENTLY}}
    live = changed(STEADY, "spec.purpose", "testing") | {"status": {"credentials": {"rotation": rotation}}}
    live["metadata"]["creationTimestamp"] = LAST_YEAR

    assert warnings(Shoot.of(live), None, NOW) == [
        f"{what}: not rotated for 365 days; see `gardener credentials rotate --help`"
        for what in ("service account key", "etcd encryption key", "SSH key pair")
    ]

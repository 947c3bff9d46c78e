"""Limits of an operator for the size and the number of objects."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from kube.errors import ApiError
from tests.unit.admission.webhooks import SECRET, ask
from tests.unit.api.shoots import PROJECT, changed, complete
from workers.admission.app import application
from workers.admission.limits import ResourceAdmissionConfiguration, Subject
from workers.admission.webhooks import webhook_configurations
from workers.lib.access import User

LIMITS: dict[str, Any] = {
    "limits": [
        {"apiGroups": ["core.gardener.cloud"], "apiVersions": ["*"], "resources": ["shoots"], "size": "10k"},
        {"apiGroups": ["core.gardener.cloud"], "apiVersions": ["*"], "resources": ["projects"], "count": 2},
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "size": 2000, "count": 0},
    ],
    "unrestrictedSubjects": [{"kind": "User", "name": "carol", "apiGroup": "rbac.authorization.k8s.io"}],
}
LARGE = changed(complete().to_wire(), "metadata.annotations.note", "x" * 10_000)


def configuration(**differences: Any) -> ResourceAdmissionConfiguration:
    return ResourceAdmissionConfiguration.model_validate(LIMITS | differences)


@pytest.fixture
async def limited(garden) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(application(garden, configuration()))) as client:
        yield client


async def refusal(client: Any, operation: str, obj: dict[str, Any], old: Any = None, *, user: str = "alice") -> str:
    """Message of the refusal; empty if the write is allowed."""
    response = await ask(client, "/validate-resource-size", operation, obj, old, user=user)
    return "" if response["allowed"] else str(response["status"]["message"])


async def test_an_object_above_its_size_is_refused(limited):
    """Each process that watches the kind would hold it in memory."""
    small = complete().to_wire()
    assert await refusal(limited, "CREATE", small) == ""
    assert "the operator of the garden allows 10k" in await refusal(limited, "CREATE", LARGE)
    assert "its size is 1" in await refusal(limited, "UPDATE", LARGE, small)
    assert await refusal(limited, "CREATE", LARGE, user="carol") == "", "she is not restricted"
    assert await refusal(limited, "CREATE", changed(SECRET, "data.a", "x" * 1000)) == "", "another limit"
    assert "allows 2000" in await refusal(limited, "CREATE", changed(SECRET, "data.a", "x" * 2000))


async def test_the_status_and_managed_fields_do_not_count(limited):
    """The author of the object has not written them."""
    fields = [{"manager": "x" * 10_000}]
    assert await refusal(limited, "CREATE", changed(complete().to_wire(), "metadata.managedFields", fields)) == ""
    assert await refusal(limited, "CREATE", changed(complete().to_wire(), "status", {"uid": "x" * 10_000})) == ""


async def test_an_object_that_is_too_large_may_become_smaller(limited):
    """Its owner must be able to release a finalizer although the limit is newer than the object."""
    smaller = changed(LARGE, "metadata.annotations.note", "x" * 9_999)
    assert await refusal(limited, "UPDATE", smaller, LARGE) == ""
    assert "allows 10k" in await refusal(limited, "UPDATE", LARGE, smaller)


async def test_one_object_more_than_allowed_is_refused(limited, garden):
    assert await refusal(limited, "CREATE", changed(PROJECT, "metadata.name", "second")) == ""
    garden.objects.append(changed(PROJECT, "metadata.name", "second"))
    third = changed(PROJECT, "metadata.name", "third")
    assert await refusal(limited, "CREATE", third) == (
        'projects.core.gardener.cloud "third" is forbidden: '
        "the garden has 2 projects or more; its operator allows no more"
    )
    assert await refusal(limited, "UPDATE", third, third) == ""
    assert await refusal(limited, "CREATE", SECRET) == "", "ResourceQuotas limit objects of namespaces"


async def test_a_number_that_cannot_be_read_refuses_the_object(limited, garden, monkeypatch):
    async def fails(resource):
        raise ApiError(403, "Forbidden", "listing projects")

    monkeypatch.setattr(garden, "number", fails)
    assert "the number of projects, which is limited to 2, cannot be read" in await refusal(limited, "CREATE", PROJECT)


async def test_mode_log_tells_the_operator_alone(garden, caplog):
    async with TestClient(TestServer(application(garden, configuration(operationMode="log")))) as client:
        assert await refusal(client, "CREATE", LARGE) == ""
    assert "mode block would refuse shoots demo by alice: its size is 1" in caplog.text


async def test_a_garden_without_limits_refuses_nothing(client):
    assert await refusal(client, "CREATE", LARGE) == ""
    _, validating = webhook_configurations("https://198.18.0.1:9443", "Q0E=")
    assert "/validate-resource-size" not in str(validating), "no write goes through this webhook"


@pytest.mark.parametrize(
    ("subject", "user", "included"),
    [
        ({"kind": "User", "name": "a"}, User("a"), True),
        ({"kind": "User", "name": "a"}, User("b", ("a",)), False),
        ({"kind": "User", "name": "*"}, User("b"), True),
        ({"kind": "Group", "name": "a"}, User("b", ("a",)), True),
        ({"kind": "Group", "name": "*"}, User("b"), False),
        ({"kind": "User", "name": "*"}, User("system:serviceaccount:n:a"), False),
        ({"kind": "Group", "name": "g"}, User("system:serviceaccount:n:a", ("g",)), False),
        ({"kind": "ServiceAccount", "name": "a", "namespace": "n"}, User("system:serviceaccount:n:a"), True),
        ({"kind": "ServiceAccount", "name": "*", "namespace": "n"}, User("system:serviceaccount:n:a"), True),
        ({"kind": "ServiceAccount", "name": "*", "namespace": "n"}, User("system:serviceaccount:m:a"), False),
        ({"kind": "ServiceAccount", "name": "a", "namespace": "n"}, User("a"), False),
    ],
)
def test_unrestricted_subjects(subject: dict[str, str], user: User, included: bool):
    assert Subject.model_validate(subject).includes(user) is included


@pytest.mark.parametrize("fault", [{}, {"size": "large"}, {"size": -1}, {"count": -1}])
def test_a_limit_that_limits_nothing_or_is_unreadable_stops_the_process(fault: dict[str, Any]):
    limit = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], **fault}
    with pytest.raises(ValidationError):
        configuration(limits=[limit])


def test_the_webhook_has_the_kinds_of_the_limits_and_lets_the_processes_of_the_garden_pass():
    """Admission writes its own certificate before it can answer."""
    _, validating = webhook_configurations("https://198.18.0.1:9443", "Q0E=", configuration())
    [webhook] = [each for each in validating["webhooks"] if "resource-size" in each["name"]]
    assert webhook["clientConfig"]["url"] == "https://198.18.0.1:9443/validate-resource-size"
    assert [(each["resources"], each["operations"], each["scope"]) for each in webhook["rules"]] == [
        (["shoots"], ["CREATE", "UPDATE"], "*"),
        (["projects"], ["CREATE"], "Cluster"),
        (["secrets"], ["CREATE", "UPDATE"], "*"),
    ]
    assert webhook["matchConditions"] == [
        {
            "name": "not-of-the-garden",
            "expression": "!('gardener.cloud:system:operators' in request.userInfo.groups)",
        }
    ]

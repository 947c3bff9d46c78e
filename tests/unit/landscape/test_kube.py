"""Clients of a landscape's clusters."""

import pytest

from api.resources import NAMESPACE
from kube.errors import ApiError, Invalid, Unreachable
from landscape import kube
from tests.unit.kube.fake_cluster import FakeCluster

_OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}


class Busy(FakeCluster):
    """Fails some times, and then works."""

    def __init__(self, *errors: ApiError) -> None:
        super().__init__()
        self._errors = list(errors)

    async def apply(self, obj, **options):
        if self._errors:
            raise self._errors.pop(0)
        return await super().apply(obj, **options)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "_AGAIN_SECONDS", 0.0)


async def test_a_busy_api_server_is_asked_again() -> None:
    cluster = Busy(Unreachable(0, "no answer", "apply"), ApiError(503, "ServiceUnavailable", "apply"))

    await kube.apply(cluster, _OBJECT)

    assert [each["metadata"]["name"] for each in cluster.of(NAMESPACE)] == ["a"]


async def test_an_object_that_is_refused_is_not_sent_again() -> None:
    with pytest.raises(Invalid):
        await kube.apply(Busy(Invalid(422, "Invalid", "apply")), _OBJECT)


async def test_an_api_server_that_stays_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "_BUSY_SECONDS", 0.0)
    with pytest.raises(Unreachable):
        await kube.apply(Busy(*(Unreachable(0, "no answer", "apply") for _ in range(1000))), _OBJECT)

"""What an owner knows of kubeconfigs, and no cluster can: that nobody has one any more."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import click
import pytest

from api.contracts.kubeconfigs import IssuedKubeconfig, issued, noted
from tests.unit.kube.api_server import ApiServer
from workers.cli.credentials import discard_kubeconfigs

CONFIG_MAPS, EVENTS = "/api/v1/configmaps", "/api/v1/events"
DEMO = ("garden-local", "demo")
SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
ANN, BOB, EVE = (f"{number:08x}".ljust(40, "0") for number in (0xAAAAAAA1, 0xAAAAAAA2, 0xCCCCCCC3))


@pytest.fixture
async def garden() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        shoot = {"metadata": {"name": "demo", "namespace": "garden-local", "uid": "0f3c"}}
        server.put("/apis/core.gardener.cloud/v1beta1/shoots", shoot)
        past = "2026-01-01T00:00:00+00:00"
        given = {
            serial: noted(IssuedKubeconfig(user=user, issuer="ca-client-1", expires=expires))
            for serial, user, expires in ((ANN, "ann", SOON), (BOB, "bob", SOON), (EVE, "eve", past))
        }
        metadata = {"name": "demo.issued-kubeconfigs", "namespace": "garden-local"}
        server.put(CONFIG_MAPS, {"metadata": metadata, "data": given})
        yield server


async def discard(server: ApiServer, *ids: str, reason: str = "the laptop was wiped") -> list[str]:
    async with server.client() as client:
        return await discard_kubeconfigs(client, DEMO, ids, reason, "zoe")


def known(server: ApiServer) -> dict[str, IssuedKubeconfig]:
    return issued(server.find(CONFIG_MAPS, "demo.issued-kubeconfigs", "garden-local"))


async def test_who_says_that_nobody_has_it_is_noted_and_told(garden: ApiServer) -> None:
    (said,) = await discard(garden, "aaaaaaa1")

    assert said == f"kubeconfig aaaaaaa1 of ann is noted as discarded; whoever has it can use it until {SOON}"
    word = known(garden)[ANN].discarded
    assert word is not None
    assert (word.by, word.reason) == ("zoe", "the laptop was wiped")
    assert known(garden)[BOB].discarded is None
    (event,) = (each for (path, _, _), each in garden.objects.items() if path == EVENTS)
    assert event["reason"] == "KubeconfigDiscarded"
    assert "the laptop was wiped (by zoe)" in event["message"]
    assert event["involvedObject"]["uid"] == "0f3c"


async def test_the_first_word_stays(garden: ApiServer) -> None:
    await discard(garden, ANN)
    (said,) = await discard(garden, ANN, reason="another one")
    assert "was discarded by zoe on" in said
    word = known(garden)[ANN].discarded
    assert word is not None
    assert word.reason == "the laptop was wiped"


@pytest.mark.parametrize("given", ["aaaaaaa", "bbbbbbbb", "ccccccc3"], ids=["too short", "unknown", "expired"])
async def test_what_is_not_known_is_refused_and_nothing_noted(garden: ApiServer, given: str) -> None:
    with pytest.raises(click.ClickException, match="see `gardener credentials kubeconfigs garden-local/demo`"):
        await discard(garden, ANN, given)
    assert not any(each.discarded for each in known(garden).values())

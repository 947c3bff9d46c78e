"""A Shoot is reached by the gateway of its ExposureClass alone, and its owner cannot choose another one later."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.components import gateway
from activities.components.gateway import OWN, ApiServerExposure, Place, Route, Upstream
from api.resources import SERVICE
from kube.cache import Caches
from tests.unit.admission.conftest import client, garden  # noqa: F401 - fixtures
from tests.unit.admission.test_profiles import message
from tests.unit.api.shoots import complete
from tests.unit.kube.api_server import ApiServer
from workers.gateway import routes

INTERNAL_DOMAIN = "internal.garden.test"
VICTIM = "shoot--proj--victim"
NAME = f"api.victim.proj.{INTERNAL_DOMAIN}"
HANDLER = Place("istio-ingress-handler-company", "company")
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def exposure(namespace: str, handler: str, *hosts: str, days: int, name: str = gateway.EXPOSURE) -> dict[str, Any]:
    what = ApiServerExposure(
        hosts=hosts,
        api_server=Upstream(service="kube-apiserver", port=443),
        vpn=Upstream(service="vpn-seed-server", port=1194),
    )
    made = gateway.exposure(name, namespace, what, handler)
    made["metadata"]["creationTimestamp"] = (NOW - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return made


async def served(place: Place, exposures: list[dict[str, Any]]) -> list[Route]:
    """Routes of one gateway of the seed."""
    async with ApiServer().running() as api, api.client() as seed:
        for namespace in {each["metadata"]["namespace"] for each in exposures}:
            for name in ("kube-apiserver", "vpn-seed-server"):
                metadata = {"name": name, "namespace": namespace, "labels": gateway.LABELS}
                api.put("/api/v1/services", {"metadata": metadata, "spec": {"clusterIP": "100.64.1.1"}})
        caches = Caches(seed)
        services = caches.of(SERVICE, labels=gateway.SELECTOR)
        await services.synced()
        found, _ = routes(exposures, services, INTERNAL_DOMAIN, place)
        await caches.close()
    return found


def reachable(found: list[Route]) -> set[str]:
    """Server names and destinations of HTTP CONNECT that a client of the three ports can reach."""
    files = gateway.xds_files(found)
    ways = {host for each in found for host in each.hosts}
    for name in (gateway.VPN_ROUTES_FILE, gateway.PROXY_ROUTES_FILE):
        for each in files[name]["resources"][0]["virtual_hosts"][0]["routes"]:
            ways.add(each["match"]["headers"][0]["string_match"]["exact"])
    return ways


@pytest.mark.attack(actor="T6", asset="A6", finding=7)
@pytest.mark.parametrize(("place", "other"), [(OWN, HANDLER), (HANDLER, OWN)])
async def test_a_client_in_another_network_reaches_no_port_of_a_control_plane_by_the_gateway_there(
    place: Place, other: Place
) -> None:
    """Neither by a server name, nor by a header of the ports for HTTP CONNECT."""
    exposures = [
        exposure(VICTIM, place.handler, NAME, "api.example.org", days=9),
        exposure("shoot--aaa--x", other.handler, "api.x.example.org", days=1),
    ]

    assert {NAME, "api.example.org", gateway.vpn_header(VICTIM), gateway.proxy_header(VICTIM)} == reachable(
        await served(place, exposures)
    )
    assert not [each for each in reachable(await served(other, exposures)) if "victim" in each]


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
@pytest.mark.parametrize("place", [OWN, HANDLER])
async def test_a_shoot_gets_no_name_of_another_one_by_naming_another_exposure_class(place: Place) -> None:
    """A name has one owner in the whole seed: clients with a stale DNS answer would reach the thief's API server."""
    thief = exposure("shoot--aaa--x", place.handler, NAME, "api.example.org", days=1)
    victim_handler = HANDLER.handler if place == OWN else ""
    victim = exposure(VICTIM, victim_handler, "api.example.org", days=9)

    assert [each.hosts for each in await served(place, [thief, victim])] == [()]


async def test_a_second_exposure_opens_no_second_way_into_a_control_plane() -> None:
    """An extension with rights in the control plane's namespace would bring an internal API server to the internet."""
    own = exposure(VICTIM, HANDLER.handler, NAME, days=9)
    second = exposure(VICTIM, "", "api.other.example.org", days=1, name="second")

    assert await served(OWN, [own, second]) == []
    assert [each.hosts for each in await served(HANDLER, [own, second])] == [(NAME,)]


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
@pytest.mark.parametrize(("before", "after"), [("company", "internet"), ("company", None), (None, "company")])
async def test_an_owner_cannot_change_the_exposure_class_of_a_shoot(
    client: Any,  # noqa: F811
    before: str | None,
    after: str | None,
) -> None:
    """An operator decides at its creation, by tolerations and selectors, in which networks it may be."""
    wire = complete().to_wire()
    old, new = (wire | {"spec": wire["spec"] | {"exposureClassName": each}} for each in (before, after))

    assert "spec.exposureClassName: Invalid value" in await message(client, "UPDATE", new, old)

"""No Shoot takes the name of another control plane: neither by its domain, nor at the gateway of a seed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.components import gateway
from activities.components.gateway import ApiServerExposure, Upstream
from api.core.v1beta1.seed import Seed
from api.resources import SERVICE
from api.validation.garden import check_seed_domains, domains_of_seed
from api.validation.references import check_references
from kube.cache import Caches
from tests.unit.api.shoots import SEED, changed, complete, world
from tests.unit.kube.api_server import ApiServer
from workers.gardenlet.care.names import unique
from workers.gateway import routes

INTERNAL = "internal.garden.test"
VICTIM = f"victim.proj.{INTERNAL}"
NAME = f"api.{VICTIM}"
INGRESS = {"ingress": {"domain": "ingress.garden.test", "controller": {"kind": "nginx"}}}
NOW = datetime(2026, 11, 25, tzinfo=UTC)
KIND = "/api/v1/services"


def faults_of(domain: str) -> str:
    domains = frozenset(domains_of_seed(SEED | {"spec": SEED["spec"] | INGRESS}))
    return str(check_references(complete("spec.dns", {"domain": domain}), None, world(seed_domains=domains)))


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
@pytest.mark.parametrize(
    "domain",
    [
        VICTIM,
        INTERNAL,
        "garden.test",
        f"x.{VICTIM}",
        "ingress.garden.test",
        "p-proj--victim.ingress.garden.test",
        f"{VICTIM}.",
        VICTIM.upper(),
        f"*.proj.{INTERNAL}",
    ],
)
def test_a_shoot_with_the_internal_or_ingress_name_of_another_one_as_its_domain_is_refused(domain: str) -> None:
    """The gateway would get a second control plane for the name that the nodes of the other Shoot use."""
    assert "spec.dns.domain: Forbidden" in faults_of(domain)


@pytest.mark.attack(actor="T3", asset="A6", finding=7)
@pytest.mark.parametrize("taken", ["mine.example.org", "example.org", "api.mine.example.org"])
def test_a_seed_whose_domain_covers_that_of_a_shoot_is_refused(taken: str) -> None:
    """The Seed would be reason enough to refuse each later Shoot there, and its wildcard record would cover names."""
    shoots = {"garden-dev/mine": "mine.example.org"}
    before = Seed.of(SEED)
    by_internal = Seed.of(changed(SEED, "spec.dns.internal.domain", taken))
    by_ingress = Seed.of(changed(SEED, "spec.ingress", INGRESS["ingress"] | {"domain": taken}))

    assert "spec.dns.internal.domain: Forbidden" in str(check_seed_domains(by_internal, before, shoots))
    assert "spec.ingress.domain: Forbidden" in str(check_seed_domains(by_ingress, None, shoots))


def test_a_seed_and_a_shoot_that_overlap_since_long_can_still_be_changed() -> None:
    """Both were allowed before; a gardenlet registers its Seed at each start."""
    seed = Seed.of(SEED)
    old = complete("spec.dns", {"domain": VICTIM}, bound=True)
    assert not check_seed_domains(seed, seed, {"garden-dev/mine": VICTIM})
    assert not check_references(old, old, world(seed_domains=frozenset(domains_of_seed(SEED))))


def exposure(namespace: str, *hosts: str, age: timedelta, name: str = gateway.EXPOSURE) -> dict[str, Any]:
    what = ApiServerExposure(hosts=hosts, api_server=Upstream(service="kube-apiserver", port=443))
    made = gateway.exposure(name, namespace, what)
    made["metadata"]["creationTimestamp"] = (NOW - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    return made


def service(namespace: str, address: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-apiserver", "namespace": namespace, "labels": gateway.LABELS},
        "spec": {"clusterIP": address},
    }


async def owner(host: str, exposures: list[dict[str, Any]]) -> list[str]:
    """Namespaces that the gateway routes a host to."""
    async with ApiServer().running() as api, api.client() as client:
        for each in exposures:
            api.put(KIND, service(each["metadata"]["namespace"], "100.64.1.1"))
        caches = Caches(client)
        services = caches.of(SERVICE, labels=gateway.SELECTOR)
        await services.synced()
        found, _ = routes(exposures, services, INTERNAL)
        await caches.close()
    return [each.namespace for each in found if host in each.hosts]


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
@pytest.mark.parametrize("claim", [NAME, NAME.upper(), f"{NAME}."])
async def test_a_control_plane_that_claims_the_internal_name_of_another_one_does_not_get_its_connections(
    claim: str,
) -> None:
    """The thief's namespace is the first by name, and its exposure is the older one."""
    thief = exposure("shoot--aaa--x", claim, "api.x.aaa.example.org", age=timedelta(days=9))
    victim = exposure("shoot--proj--victim", NAME, age=timedelta(days=1))

    assert await owner(NAME, [thief, victim]) == ["shoot--proj--victim"]
    assert await owner(NAME, [thief]) == [], "the name stays free while its control plane is not there"
    assert await owner("api.x.aaa.example.org", [thief, victim]) == ["shoot--aaa--x"]


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
async def test_a_control_plane_that_comes_later_does_not_get_the_name_of_an_older_one() -> None:
    """Names outside the internal domain contain no namespace, so the older exposure keeps its name."""
    victim = exposure("shoot--proj--victim", "api.example.org", age=timedelta(days=9))
    thief = exposure("shoot--aaa--x", "api.example.org", age=timedelta(days=1))

    assert await owner("api.example.org", [thief, victim]) == ["shoot--proj--victim"]


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
async def test_a_control_plane_that_claims_all_names_below_a_domain_gets_none() -> None:
    """Envoy takes a name with a wildcard, which would catch each name that has no exposure yet."""
    thief = exposure("shoot--aaa--x", f"*.proj.{INTERNAL}", f"*.{INTERNAL}", "*", age=timedelta(days=9))

    assert await owner(f"*.proj.{INTERNAL}", [thief]) == []
    assert await owner("*", [thief]) == []


def test_only_the_shoot_whose_name_is_refused_reports_it() -> None:
    """Only the gateway's log names both; the message names no control plane of another project."""
    thief = exposure("shoot--aaa--x", NAME, "api.x.aaa.example.org", age=timedelta(days=9))
    victim = exposure("shoot--proj--victim", NAME, age=timedelta(days=1))

    found = unique("shoot--aaa--x", [thief, victim], INTERNAL)
    assert (found.type, found.status, found.reason) == ("HostNamesUnique", "False", "NamesTaken")
    assert NAME in found.message
    assert "shoot--proj--victim" not in found.message
    assert unique("shoot--proj--victim", [thief, victim], INTERNAL).status == "True"

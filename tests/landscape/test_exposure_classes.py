"""A Shoot with an ExposureClass is reached by its handler's address alone, in both seeds, and nothing is left of it."""

import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from activities.components import gateway
from landscape.lifecycle import processes_of, require
from tests.landscape.conftest import Landscape
from tests.landscape.https import get
from tests.landscape.shoots import NAMESPACE as GARDEN_LOCAL
from tests.landscape.shoots import Shoot, eventually, refused
from workers.provider_local.access import GATEWAY_SERVICE

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(900, func_only=True)]

HANDLER = {"name": "company", "loadBalancerService": {"annotations": {"example.org/network": "company"}}}
CLASS = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "ExposureClass",
    "metadata": {"name": "company"},
    "handler": "company",
    "scheduling": {"seedSelector": {"matchExpressions": [{"key": "unwanted", "operator": "DoesNotExist"}]}},
}
NAMESPACE = "istio-ingress-handler-company"
SEEDS = ("seed-1", "seed-2")


def namespaces(landscape: Landscape, seed: str) -> list[str]:
    return landscape.kubectl(seed, "get", "namespaces", "-o", "name").split()


@pytest.fixture
def handlers(landscape: Landscape, tmp_path: Path) -> Iterator[None]:
    """Gardenlets of both seeds with a handler; in the end the landscape's own ones, and no remains of the handler."""
    processes = processes_of(require(landscape.name))
    own = [processes.get(f"{seed}/gardenlet").spec for seed in SEEDS]
    try:
        for each in own:
            config = yaml.safe_load(Path(each.argv[-1]).read_text()) | {"exposureClassHandlers": [HANDLER]}
            file = tmp_path / f"{each.name.replace('/', '-')}.yaml"
            file.write_text(yaml.safe_dump(config))
            processes.start(replace(each, argv=(*each.argv[:-1], str(file))))
        yield
    finally:
        for seed in SEEDS:
            # The source of a move forwards for 5 minutes, and keeps the gateway for this time.
            selected = ("-l", gateway.SELECTOR, "--ignore-not-found")
            landscape.kubectl(seed, "-n", NAMESPACE, "delete", "configmaps", *selected)
        for each in own:
            processes.start(each)
        for seed in SEEDS:
            eventually(
                lambda seed=seed: f"namespace/{NAMESPACE}" not in namespaces(landscape, seed),  # type: ignore[misc]
                f"{seed} has no gateway of the former handler",
                120,
            )


def address(landscape: Landscape, seed: str, namespace: str) -> str:
    """Address of a gateway's load balancer; empty while it has none."""
    path = "jsonpath={.status.loadBalancer.ingress[0].ip}"
    found = landscape.kubectl(
        seed, "-n", namespace, "get", "service", GATEWAY_SERVICE, "--ignore-not-found", "-o", path
    )
    return found.strip()


def check_reached(shoot: Shoot, authority: str, landscape: Landscape) -> None:
    """Its names point to the handler's gateway, which serves it; the seed's own gateway ends the connection."""
    own, of_handler = (address(landscape, shoot.seed, each) for each in (gateway.NAMESPACE, NAMESPACE))
    assert of_handler not in ("", own)
    for host in shoot.host_names:
        assert shoot.address_of(host) == of_handler
        status, _ = get(shoot, f"https://{host}/version", authority)
        assert status in (200, 401), "TLS has shown that it is the API server of the Shoot"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get_at(own, host, authority)


def get_at(address: str, host: str, authority: str) -> None:
    """Connect to a name of the Shoot at this address."""
    raw = socket.create_connection((address, 443), 10)
    with raw, ssl.create_default_context(cadata=authority).wrap_socket(raw, server_hostname=host):
        pass


def test_a_shoot_is_reached_by_the_address_of_its_handler_before_and_after_a_move(
    landscape: Landscape, handlers: None, tmp_path: Path
) -> None:
    landscape.kubectl("garden", "apply", "-f", "-", stdin=json.dumps(CLASS))
    for seed in SEEDS:
        eventually(lambda seed=seed: address(landscape, seed, NAMESPACE), f"{seed} serves the handler", 120)  # type: ignore[misc]
    shoot = Shoot(landscape, "company", tmp_path)
    try:
        with shoot.created(shoot.manifest(exposureClassName="company")):
            assert shoot.get()["spec"]["seedSelector"] == CLASS["scheduling"]["seedSelector"]  # type: ignore[index]
            change = ("patch", "shoot", shoot.name, "--type=merge", "-p", '{"spec": {"exposureClassName": "other"}}')
            assert "immutable" in refused(*landscape.argv("garden", "-n", GARDEN_LOCAL, *change))
            authority = json.loads(shoot.garden("get", "configmap", f"{shoot.name}.ca-cluster", "-o", "json"))
            bundle = authority["data"]["ca.crt"]
            check_reached(shoot, bundle, landscape)
            assert shoot.nodes(), "the nodes reach the API server by the handler's gateway, too"

            shoot.gardener("shoot", "move", shoot.reference, "--to", shoot.other_seed, "--follow", timeout=240)
            shoot.has_moved()
            check_reached(shoot, bundle, landscape)
    finally:
        landscape.kubectl("garden", "delete", "exposureclass", "company", "--timeout=60s")

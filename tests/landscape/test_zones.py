"""A seed with nodes in three zones: control planes that survive the loss of a zone, and one that is pinned to a zone.

The landscape is one of its own. What a lost zone cost is printed: ``pytest -rP``.
"""

import json
from collections.abc import Iterator

import pytest

from tests.landscape.bastions import in_cloud
from tests.landscape.conftest import Landscape
from tests.landscape.probe import Probe
from tests.landscape.shoots import Shoot, eventually
from tests.landscape.tunnel import Asking, pods_of_tunnel

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

NAME, SEED = "test-zones", "seed-1"
_ZONES = ("0", "1", "2")
_BACK_SECONDS = 180.0
_PATIENCE_SECONDS = 10.0
"""Seconds that the probe waits for an answer: writes wait for a new leader of etcd."""
_TOLERANT = {"highAvailability": {"failureTolerance": {"type": "zone"}}}
_PLACE = ("-o", "jsonpath={.spec.nodeName}")
_COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


@pytest.fixture(scope="module")
def zonal() -> Iterator[Landscape]:
    zonal = Landscape(NAME)
    zonal.gardener("up", "--zonal", SEED, timeout=600)
    yield zonal
    zonal.down()


@pytest.fixture(scope="module")
def tolerant(zonal: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot that the scheduler can only place in the seed with three zones."""
    shoot = Shoot(zonal, "tolerant", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.manifest(machines=2, controlPlane=_TOLERANT)):
        yield shoot


@pytest.fixture(scope="module")
def pinned(zonal: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(zonal, "pinned", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.manifest(controlPlane={"zones": ["2"]})):
        yield shoot


def _nodes(shoot: Shoot, component: str = "") -> dict[str, str]:
    """Nodes of the ready pods of a control plane, or of one component, by pod."""
    pods = json.loads(shoot.control_plane("get", "pods", "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods
        if pod["metadata"]["name"].startswith(component)
        and any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
    }


def test_the_seed_has_a_node_in_each_zone(zonal: Landscape) -> None:
    nodes = json.loads(zonal.kubectl(SEED, "get", "nodes", "-o", "json"))["items"]

    zones = {node["metadata"]["name"]: node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes}
    assert zones == {f"{SEED}-{zone}": zone for zone in _ZONES}


def test_a_tolerant_control_plane_is_spread_over_the_zones(tolerant: Shoot) -> None:
    assert tolerant.seed == SEED
    assert len(set(_nodes(tolerant, "etcd-main-").values())) == len(_ZONES)
    for component in _COMPONENTS:
        assert len(set(_nodes(tolerant, component).values())) > 1, component


def test_a_lost_zone_costs_no_acknowledged_write_and_comes_back(zonal: Landscape, tolerant: Shoot) -> None:
    servers = _nodes(tolerant, "vpn-seed-server").values()
    assert len(set(servers)) == 2
    # Of three zones, one has an API server and a server of the tunnel.
    victim = next(each for each in _nodes(tolerant, "kube-apiserver").values() if each in servers)
    reader = Probe(tolerant, timeout=_PATIENCE_SECONDS, reconnects=True)
    with reader.running() as probe, Asking(tolerant).running() as asking:
        eventually(lambda: len(probe.answered) > 50, "the probe is answered", 30)
        eventually(lambda: asking.has_answers(20), "the kubelet answers", 30)
        before = probe.failed
        zonal.gardener("kill", victim)
        answered = len(probe.answered)
        eventually(lambda: len(probe.answered) > answered + 100, f"the probe is answered without {victim}", 120)
        print(
            f"{victim} lost: {probe.failed - before} requests failed, longest silence {probe.longest_silence:.1f} s, "
            f"longest request {probe.longest:.1f} s, repeated on a new connection: {probe.broken}"
        )
        ready = ("wait", f"node/{victim}", "--for=condition=Ready=Unknown", "--timeout=120s")
        zonal.kubectl(SEED, *ready, timeout=130)
        without = probe.failed
        answered = len(probe.answered)
        eventually(lambda: len(probe.answered) > answered + 100, "the probe is answered while the node is away", 60)
        assert probe.failed == without
        assert not probe.faults
        zonal.gardener("up", timeout=300)
        eventually(
            lambda: len(set(_nodes(tolerant, "etcd-main-").values())) == len(_ZONES), "three members", _BACK_SECONDS
        )
        answered = len(probe.answered)
        eventually(lambda: len(probe.answered) > answered + 100, "the probe is answered with all nodes", 60)
        assert not probe.lost
        eventually(lambda: len(_nodes(tolerant, "vpn-seed-server")) == 2, "two servers of the tunnel", _BACK_SECONDS)
        print(f"through the tunnel: {asking}")
        assert not asking.failed


def test_a_lost_machine_with_one_end_of_the_tunnel_costs_no_request_to_the_others(tolerant: Shoot) -> None:
    tolerant.kubectl("-n", "kube-system", "rollout", "status", "deployment/vpn-shoot", "--timeout=120s", timeout=130)
    clients = pods_of_tunnel(tolerant, server=False)
    lost, left = (tolerant.kubectl("-n", "kube-system", "get", each, *_PLACE) for each in clients)
    assert lost != left
    with Asking(tolerant, left).running() as asking:
        eventually(lambda: asking.has_answers(20), "the kubelet answers", 30)
        in_cloud(tolerant, "delete", "pod", lost, "--grace-period=0", "--force")
        tolerant.kubectl("wait", f"node/{lost}", "--for=condition=Ready=Unknown", "--timeout=120s", timeout=130)
        answered = asking.answered
        eventually(lambda: asking.has_answers(answered + 50), "the kubelet answers without the other machine", 60)
        print(f"{lost} lost: {asking}")
        assert not asking.failed


def test_a_pinned_control_plane_runs_in_its_zone_alone(pinned: Shoot) -> None:
    assert set(_nodes(pinned).values()) == {f"{SEED}-2"}
    claims = json.loads(pinned.control_plane("get", "pvc", "-o", "json"))["items"]
    assert claims
    for claim in claims:
        volume = json.loads(pinned.landscape.kubectl(SEED, "get", "pv", claim["spec"]["volumeName"], "-o", "json"))
        [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["2"]

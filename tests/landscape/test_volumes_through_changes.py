"""A volume and the addresses of a Shoot survive hibernation and a move of the control plane, and go with the Shoot."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.landscape import pods
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually
from tests.landscape.test_load_balancers import WEB, Balanced, Visitor, addresses_of, asked
from tests.landscape.test_volumes import Volumes, claim

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_SECONDS = 240.0


@pytest.fixture
def keeper(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "keeper", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest()
    manifest["spec"]["networking"]["ipFamilies"] = ["IPv4", "IPv6"]
    with shoot.created(manifest):
        yield shoot


def _hibernated(shoot: Shoot, hibernated: bool) -> None:
    shoot.change({"hibernation": {"enabled": hibernated}})
    path = f"jsonpath={{.status.hibernated}}={str(hibernated).lower()}"
    shoot.garden("wait", f"--for={path}", f"shoot/{shoot.name}", f"--timeout={_SECONDS:.0f}s", timeout=_SECONDS + 10)
    shoot.wait_until_reconciled(_SECONDS)


def test_volume_and_addresses_survive_hibernation_and_a_move_and_go_with_the_shoot(keeper: Shoot) -> None:
    volumes, balanced = Volumes(keeper), Balanced(keeper)
    volumes.apply(pods.namespace(), claim("data"))
    volumes.start("writer", "data")
    volumes.run("writer", "echo kept > /data/file")
    balanced.apply(pods.python("balanced", 1, WEB))
    addresses = addresses_of(balanced.service("public", ipFamilyPolicy="RequireDualStack"))
    assert len(addresses) == 2

    def answers() -> bool:
        return all(map(asked, addresses))

    eventually(answers, "the Service answers", 60)
    volumes.stop("writer")
    volume = volumes.get("pvc", "data")["spec"]["volumeName"]

    _hibernated(keeper, True)
    assert volume in volumes.disks()
    assert len(balanced.in_cloud()) == 1
    _hibernated(keeper, False)
    volumes.start("reader", "data")
    assert volumes.run("reader", "cat /data/file") == "kept"
    assert addresses_of(balanced.wait("public")) == addresses
    eventually(answers, "the Service answers after the hibernation", 90)

    with ExitStack() as stack:
        visitors = [stack.enter_context(Visitor(address).asking()) for address in addresses]
        keeper.gardener("shoot", "move", keeper.reference, "--to", keeper.other_seed, "--follow", timeout=_SECONDS)
        keeper.has_moved()
    print(*visitors, sep="\n")
    assert not any(visitor.failed for visitor in visitors)
    assert all(visitor.answered for visitor in visitors)
    assert volumes.run("reader", "cat /data/file") == "kept"
    assert answers()
    volumes.apply(claim("second"))
    volumes.start("writer", "second")
    assert len(volumes.disks()) == 2, "the destination makes disks"

    keeper.delete()
    infrastructure = f"infra-{keeper.technical_id}"
    listed = json.loads(keeper.landscape.kubectl("cloud", "get", "disks,services", "-A", "-o", "json"))
    assert not [each for each in listed["items"] if each["metadata"]["namespace"] == infrastructure]
    assert not any(map(asked, addresses))
    files = keeper.landscape.directory / "cloud/disks"
    assert not [each for each in (files / "attached").glob(f"{infrastructure}/*/*") if each.is_mount()]

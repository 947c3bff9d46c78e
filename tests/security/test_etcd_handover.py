"""A cluster with members in two seeds is reachable from outside of both; an address is not enough to join it."""

import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.components.etcd_between_seeds import member_prefix, own_members
from activities.components.gateway import ETCD_PORTS, LABELS, SELECTOR, xds_files
from activities.secrets.crypto import KeyAlgorithm, Usage, self_signed_ca, signed
from api.resources import SERVICE
from etcd.client import EtcdClient, EtcdError, Member, client_tls
from kube.cache import Caches
from tests.unit.admission.conftest import client, garden  # noqa: F401 - fixtures
from tests.unit.admission.webhooks import ask
from tests.unit.api.test_live_migration import LIVE, shoot
from tests.unit.conftest import etcd_is_built  # noqa: F401
from tests.unit.etcd.test_membership import NAMES, Several, pki  # noqa: F401
from tests.unit.kube.api_server import ApiServer
from workers.etcd.membership import Membership, Refused
from workers.gateway import routes

pytestmark = pytest.mark.timeout(120, func_only=True)
VICTIM = "shoot--proj--victim"


def forged(directory: Path) -> Path:
    """Files like those of a member, of authorities with the names of the right ones."""
    options: dict[str, Any] = {"algorithm": KeyAlgorithm.P256, "now": datetime.now(UTC), "validity": timedelta(days=1)}
    for side in ("client", "peer"):
        ca = self_signed_ca(f"ca-{side}", **options)
        pair = signed("etcd-client", ca=ca, usage=Usage.SERVER_AND_CLIENT, ip_addresses=["127.0.0.1"], **options)
        (directory / side).mkdir(parents=True)
        (directory / side / "tls.crt").write_bytes(pair.certificate)
        (directory / side / "tls.key").write_bytes(pair.key)
    return directory


@pytest.fixture
async def source(tmp_path: Path, pki: Path) -> AsyncIterator[Several]:  # noqa: F811
    made = Several(tmp_path, pki)
    made.start(0, 1, 2)
    await made.ready(0, 1, 2)
    yield made
    for member in made.members:
        member.kill()


@pytest.mark.binaries
@pytest.mark.usefixtures("etcd_is_built")
@pytest.mark.attack(actor="T6", asset="A2", finding=20)
async def test_a_stranger_neither_joins_nor_removes_members(tmp_path: Path, pki: Path, source: Several) -> None:  # noqa: F811
    """It has the addresses and the right CA certificates, and its own certificate is of another authority."""
    files = forged(tmp_path / "forged")
    stranger = Several(tmp_path, pki, prefix="stranger-")
    clients = [each.url("client") for each in source.members]
    stranger.existing.write_text(json.dumps({"members": {}, "clients": clients}))
    config = stranger.config(stranger.members[0])
    config["membership"]["tls"] |= {
        "certificate": str(files / "client/tls.crt"), "key": str(files / "client/tls.key")
    }  # fmt: skip
    joining = Membership(config, stranger.members[0].name)
    assert joining._join() is None, "no member of the source answers it"
    with pytest.raises(Refused):
        joining._ask(clients[0], "cluster/member/list", {})

    tls = client_tls(
        (pki / "client-ca/bundle.crt").read_bytes(), str(files / "client/tls.crt"), str(files / "client/tls.key")
    )
    async with EtcdClient(clients[0], tls) as member:
        with pytest.raises(EtcdError):
            await member.members()
        with pytest.raises(EtcdError):
            await member.remove_member(Member("1", "etcd-main-0", False, ()))
    assert sorted(await source.listed(0)) == NAMES


@pytest.mark.binaries
@pytest.mark.usefixtures("etcd_is_built")
@pytest.mark.attack(actor="T6", asset="A2", finding=20)
@pytest.mark.parametrize("shown", ["none", "another-authority", "client"])
async def test_only_a_certificate_of_the_peers_authority_speaks_to_a_peer(
    tmp_path: Path,
    pki: Path,  # noqa: F811
    source: Several,
    shown: str,
) -> None:
    """Clients of etcd, such as API servers, are no peers either."""
    files = forged(tmp_path / "forged")
    tls = ssl.create_default_context(cafile=str(pki / "peer-ca/bundle.crt"))
    own = {"another-authority": files / "peer", "client": pki / "client-client"}
    if shown in own:
        tls.load_cert_chain(own[shown] / "tls.crt", own[shown] / "tls.key")
    async with EtcdClient(source.members[0].url("peer"), tls) as member:
        with pytest.raises(EtcdError, match=r"SSL|Connector|Disconnected|OSError|ClientOS"):
            await member.status()


@pytest.mark.attack(actor="T3", asset="A6", finding=7)
@pytest.mark.parametrize("first", [True, False])
async def test_no_other_namespace_gets_the_names_of_members(*, first: bool) -> None:
    """A process with rights in another namespace of the seed exposes a Service by the names of a control plane."""
    ours, theirs = own_members(VICTIM, "", 3), own_members(VICTIM, "", 3)
    for each in (*ours, *theirs):
        each["metadata"]["creationTimestamp"] = "2026-11-28T10:00:00Z"
    for each in theirs:
        each["metadata"] |= {"namespace": "shoot--proj--evil"}
        if first:
            each["metadata"]["creationTimestamp"] = "2026-11-28T09:00:00Z"
    async with ApiServer().running() as api, api.client() as seed:
        for number, each in enumerate((*ours, *theirs)):
            if each["kind"] == "Service":
                api.put("/api/v1/services", {**each, "spec": {"clusterIP": f"100.64.1.{number}"}})
        caches = Caches(seed)
        services = caches.of(SERVICE, labels=SELECTOR)
        await services.synced()
        exposures = [each for each in (*ours, *theirs) if each["kind"] == "ConfigMap"]
        _, found = routes(exposures, services)
        await caches.close()
    assert len([each for each in found if each.hosts]) == 4
    assert all(VICTIM in each.cluster for each in found if each.hosts)


@pytest.mark.attack(actor="T6", asset="A2", finding=20)
async def test_the_gateway_has_no_way_to_an_etcd_without_members_in_two_seeds() -> None:
    """The load balancer has the ports all the time. Without an exposure the gateway does not listen there."""
    assert not [each for each in xds_files([])["listeners.json"]["resources"] if each["name"].startswith("etcd")]
    made = [each for each in own_members(VICTIM, member_prefix("seed-2"), 3) if each["kind"] == "Service"]
    assert all(port["port"] in ETCD_PORTS for each in made for port in each["spec"]["ports"])
    assert all(LABELS.items() <= each["metadata"]["labels"].items() for each in made)


@pytest.mark.attack(actor="T1", asset="A2", finding=20)
async def test_a_user_without_the_right_to_move_a_control_plane_does_not_say_how_it_moves(client, garden) -> None:  # noqa: F811
    """Else a project's member could stretch an etcd over distant seeds, so that its writes wait."""
    asked = shoot({LIVE: "true"}).to_wire(), shoot().to_wire()
    assert (await ask(client, "/validate", "UPDATE", *asked))["allowed"]
    garden.denied.add(("update", "shoots/binding"))
    for each in (asked, asked[::-1]):
        response = await ask(client, "/validate", "UPDATE", *each)
        assert "may not update shoots/binding" in response["status"]["message"]

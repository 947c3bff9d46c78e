"""A cluster with members in two seeds is reachable from outside of both; an address is not enough to join it."""

import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.secrets.crypto import KeyAlgorithm, Usage, self_signed_ca, signed
from etcd.client import EtcdClient, EtcdError, Member, client_tls
from tests.unit.conftest import etcd_is_built  # noqa: F401
from tests.unit.etcd.test_membership import NAMES, Several, pki  # noqa: F401
from workers.etcd.membership import Membership, Refused

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("etcd_is_built"), pytest.mark.timeout(120, func_only=True)]


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
    async with EtcdClient(clients[0], tls) as client:
        with pytest.raises(EtcdError):
            await client.members()
        with pytest.raises(EtcdError):
            await client.remove_member(Member("1", "etcd-main-0", False, ()))
    assert sorted(await source.listed(0)) == NAMES


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
    async with EtcdClient(source.members[0].url("peer"), tls) as client:
        with pytest.raises(EtcdError, match=r"SSL|Connector|Disconnected|OSError|ClientOS"):
            await client.status()

"""A client of the network opens connections into a Shoot by the proxy of another control plane's tunnel."""

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.components import vpn_seed_server
from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed
from tests.unit.components.test_tunnel import HOST, client, connect, served


@pytest.mark.attack(actor="T1", asset="A6", finding=8)
async def test_only_a_certificate_of_the_control_plane_opens_a_connection_into_the_shoot(tmp_path: Path) -> None:
    """Another control plane has a certificate of the same name, from an authority of its own."""
    own, other = _authority(), _authority()
    server = _certificate("vpn-seed-server", own, Usage.SERVER)
    files = {"server/tls.crt": server.certificate, "server/tls.key": server.key, "ca/bundle.crt": own.certificate}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    text = json.dumps(vpn_seed_server.proxy_config(f"{HOST}.0/28")).replace("/srv/secrets", str(tmp_path))

    async def answer(port: int, authority: KeyPair | None) -> str:
        context = ssl.create_default_context(cadata=own.certificate.decode())
        if authority is not None:
            pair = _certificate("vpn-seed-server-client", authority, Usage.CLIENT)
            (tmp_path / "client.pem").write_bytes(pair.certificate + pair.key)
            context.load_cert_chain(tmp_path / "client.pem")
        return await connect(port, ssl=context, server_hostname="vpn-seed-server")

    async with client(2), served(json.loads(text), tmp_path) as port:
        assert await answer(port, own) == "2"
        for authority in (None, other):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await answer(port, authority)


def _authority() -> KeyPair:
    return self_signed_ca("ca-vpn", algorithm=KeyAlgorithm.P256, now=datetime.now(UTC), validity=timedelta(days=1))


def _certificate(name: str, ca: KeyPair, usage: Usage) -> KeyPair:
    return signed(
        name,
        ca=ca,
        usage=usage,
        algorithm=KeyAlgorithm.P256,
        now=datetime.now(UTC),
        validity=timedelta(hours=1),
        dns_names=[name],
    )

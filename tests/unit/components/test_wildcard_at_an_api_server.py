"""An API server with our option for a seed's certificate: which certificate a client gets, also after a renewal."""

import asyncio
import os
import shutil
import ssl
import time
from pathlib import Path

import pytest

from activities.components import apiserver
from activities.secrets.crypto import KeyPair
from api.decisions.wildcard_certificates import WildcardCertificate
from tests import api_servers, certificates
from tests.unit.components.test_apiserver import flags, server
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(240, func_only=True),
]

HOST = "api-dev--a.ingress.example.org"


def write(directory: Path, pair: KeyPair) -> None:
    """Write the files as a kubelet writes those of a Secret: into a new directory, which replaces the last one."""
    volume = directory / "wildcard"
    volume.mkdir(exist_ok=True)
    before = [each for each in volume.iterdir() if each.is_dir() and not each.is_symlink()]
    target = volume / f"..{time.monotonic_ns()}"
    target.mkdir()
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (target / name).write_bytes(content)
        if not (volume / name).is_symlink():
            (volume / name).symlink_to(f"..data/{name}")
    (volume / "..data_tmp").symlink_to(target.name)
    os.replace(volume / "..data_tmp", volume / "..data")
    for each in before:
        shutil.rmtree(each)


async def shown(port: int, host: str | None) -> bytes:
    """Certificate that a client for this host gets; None: a client that names no host."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host or "")
    try:
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        writer.close()


async def test_a_client_gets_the_seeds_certificate_for_its_name_only_and_a_renewed_one_without_a_restart(
    tmp_path: Path,
) -> None:
    first, second = (certificates.pair("*.ingress.example.org") for _ in range(2))
    wildcard = WildcardCertificate(first.certificate.decode(), first.key.decode())
    wanted = flags(apiserver.objects(server(wildcard_host=HOST, wildcard=wildcard)))["tls-sni-cert-key"]
    write(tmp_path, first)
    port = api_servers.free_port()
    option = wanted.replace("/srv/kubernetes/", f"{tmp_path}/")
    started = api_servers.commands(tmp_path, port, "a,admin,1,system:masters\n", "--tls-sni-cert-key", option)
    processes = (api_servers.process(tmp_path, *command) for command in started)
    async with next(processes), next(processes), api_servers.client(port, "a") as admin:
        await api_servers.ready(admin)
        assert await shown(port, HOST) == ssl.PEM_cert_to_DER_cert(first.certificate.decode())
        # Clients inside the Shoot send no name: they connect to an address.
        for other in ("api.a.dev.example.org", "kube-apiserver", None):
            assert await shown(port, other) != ssl.PEM_cert_to_DER_cert(first.certificate.decode())

        write(tmp_path, second)

        async def renewed() -> bool:
            await asyncio.sleep(0.5)  # the clock of a poll
            return await shown(port, HOST) == ssl.PEM_cert_to_DER_cert(second.certificate.decode())

        await until(renewed, 120)

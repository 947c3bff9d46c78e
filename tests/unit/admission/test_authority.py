"""The authority between the garden's API server and admission stays, and certificates of it are renewed."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509

from activities.secrets.crypto import KeyPair
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.admission import authority as module
from workers.admission.api_server_files import files
from workers.admission.authority import SharedAuthority, UnusableAuthority, client_certificate, find_or_create
from workers.admission.process import AdmissionConfig
from workers.cli.garden import garden as command
from workers.lib.runtime import ConfigError, load_config
from workers.lib.serving import ShownCertificate

SECRETS = "/api/v1/secrets"
NAME = ("gardener-admission-authority", "garden")
HOST = "admission.example.org"
NOW = datetime.now(UTC)


def held(api: ApiServer) -> dict[str, bytes]:
    data = (api.find(SECRETS, *NAME) or {}).get("data") or {}
    return {name: base64.b64decode(content) for name, content in data.items()}


@asynccontextmanager
async def replica(api: ApiServer) -> AsyncIterator[tuple[SharedAuthority, ShownCertificate]]:
    async with api.client() as client:
        shown = ShownCertificate(clients_show=ssl.CERT_REQUIRED)
        shared = SharedAuthority(client, host=HOST, shown=shown, accepting=[shown])
        running = asyncio.create_task(shared.run())
        yield shared, shown
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def is_signed_by(pair: KeyPair | None, authority: bytes) -> bool:
    assert pair is not None
    certificate, ca = (x509.load_pem_x509_certificate(each) for each in (pair.certificate, authority))
    return certificate.issuer == ca.subject


async def test_all_replicas_show_certificates_of_one_authority_and_accept_its_clients() -> None:
    async with ApiServer().running() as api, replica(api) as (one, shown), replica(api) as (other, shown_there):
        await asyncio.wait_for(asyncio.gather(one.ready.wait(), other.ready.wait()), 10)

        assert held(api).keys() == {"ca.crt", "ca.key"}
        for each in (shown, shown_there):
            assert is_signed_by(each.shown, held(api)["ca.crt"])
            assert each.clients == held(api)["ca.crt"]


async def test_a_certificate_is_renewed_by_the_same_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server trusts the authority by a file, so it must not change by itself."""
    monkeypatch.setattr(module, "_SERVING_VALIDITY", timedelta(seconds=1))
    async with ApiServer().running() as api, replica(api) as (shared, shown):
        await asyncio.wait_for(shared.ready.wait(), 10)
        before, authority = shown.shown, held(api)

        await until(lambda: shown.shown != before)
        assert held(api) == authority


async def test_an_authority_that_cannot_be_used_is_not_replaced() -> None:
    """Another one would lock the API server out; an operator can restore it."""
    broken = {"metadata": {"name": NAME[0], "namespace": NAME[1]}, "data": {"ca.crt": "", "ca.key": ""}}
    async with ApiServer().running() as api, api.client() as client:
        api.put(SECRETS, broken)
        with pytest.raises(UnusableAuthority, match="restore it, or delete it"):
            await find_or_create(client, NOW)
        assert held(api) == {"ca.crt": b"", "ca.key": b""}


async def test_a_deleted_authority_is_followed_by_another_one() -> None:
    async with ApiServer().running() as api, replica(api) as (shared, shown):
        await asyncio.wait_for(shared.ready.wait(), 10)
        before = held(api)
        api.remove(SECRETS, *NAME)

        await until(lambda: held(api) not in ({}, before))
        await until(lambda: shown.clients == held(api)["ca.crt"])
        assert is_signed_by(shown.shown, held(api)["ca.crt"])


def test_the_api_server_shows_its_certificate_for_both_kinds_of_webhooks_and_at_the_authorizer() -> None:
    made = files("/etc/a", webhooks_url="https://a.test", authorizer_url="https://a.test:9444", authority=b"PEM")

    plugins = {each["name"]: each["configuration"]["kubeConfigFile"] for each in made["admission.json"]["plugins"]}
    assert plugins == dict.fromkeys(
        ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"), "/etc/a/webhooks.kubeconfig"
    )
    # The API server looks for a user by the webhook's host and port.
    [user] = made["webhooks.kubeconfig"]["users"]
    assert user == {
        "name": "a.test:443",
        "user": {"client-certificate": "/etc/a/client.crt", "client-key": "/etc/a/client.key"},
    }
    [cluster] = made["seed-authorizer.kubeconfig"]["clusters"]
    assert cluster["cluster"]["server"] == "https://a.test:9444/authorize-seeds"
    assert made["seed-authorizer.kubeconfig"]["users"][0]["user"] == user["user"]
    webhooks = [each["webhook"] for each in made["authorization.json"]["authorizers"] if each["type"] == "Webhook"]
    assert [each["connectionInfo"]["kubeConfigFile"] for each in webhooks] == ["/etc/a/seed-authorizer.kubeconfig"]


async def test_the_command_writes_what_the_api_server_needs_and_the_key_for_its_owner_alone(tmp_path: Path) -> None:
    kubeconfig, directory = tmp_path / "garden.yaml", tmp_path / "admission"
    async with ApiServer().running() as api:
        kubeconfig.write_text(api.kubeconfig())
        urls = ["--webhooks-url", f"https://{HOST}:9443", "--authorizer-url", f"https://{HOST}:9444"]
        arguments = [
            "admission-files",
            str(directory),
            "--path",
            "/etc/a",
            *urls,
            "--garden-kubeconfig",
            str(kubeconfig),
        ]
        done = await asyncio.to_thread(CliRunner().invoke, command, arguments)
        again = await asyncio.to_thread(CliRunner().invoke, command, arguments)
        authority = held(api)["ca.crt"]

    assert (done.exit_code, again.exit_code) == (0, 0), done.output
    assert "--admission-control-config-file=/etc/a/admission.json" in done.output
    assert (directory / "client.key").stat().st_mode & 0o777 == 0o600
    assert not [file.name for file in directory.iterdir() if file.name.endswith(".new")]
    pair = KeyPair((directory / "client.crt").read_bytes(), (directory / "client.key").read_bytes())
    assert is_signed_by(pair, authority)
    ssl.create_default_context().load_cert_chain(directory / "client.crt", directory / "client.key")
    assert json.loads((directory / "webhooks.kubeconfig").read_text())["users"][0]["name"] == f"{HOST}:9443"


def test_the_client_certificate_is_none_of_a_server() -> None:
    made = module.self_signed_ca("ca", algorithm=module.KeyAlgorithm.P256, now=NOW, validity=timedelta(days=1))
    certificate = x509.load_pem_x509_certificate(client_certificate(made, NOW).certificate)

    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.subject.rfc4514_string() == "CN=kube-apiserver"


@pytest.mark.parametrize(
    ("authorizer", "said"),
    [
        ("{address: a, url: 'https://a', certificateFile: c, privateKeyFile: k}", "exclude"),
        ("{address: a, certificateFile: c}", "are needed"),
        ("{address: a}", "are needed"),
    ],
)
def test_the_seed_authorizers_certificate_comes_one_way(tmp_path: Any, authorizer: str, said: str) -> None:
    file = tmp_path / "config"
    file.write_text(
        "gardenClientConnection: {}\nserver: {address: a}\ncertificates: {url: 'https://a'}\n"
        f"seedAuthorizer: {authorizer}\n"
    )
    with pytest.raises(ConfigError, match=said):
        load_config(AdmissionConfig, file)

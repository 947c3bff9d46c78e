"""Admission's authority is replaced while every write of the garden is answered."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from activities.secrets.crypto import KeyPair
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from workers.admission.certificates import OwnCertificates, admission_certificates
from workers.admission.process import AdmissionConfig
from workers.lib import webhook_certificates as module
from workers.lib.runtime import ConfigError, load_config
from workers.lib.serving import ShownCertificate
from workers.lib.webhook_certificates import SETTLE, Held, Step, WebhookCertificates, first, next_step, taken

SECRETS = "/api/v1/secrets"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
HOST = "admission.example.org"
CONFIG = OwnCertificates(url=f"https://{HOST}:9443")
SERVER = CONFIG.server
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


def step(held: Held, now: datetime, *, asked: bool = False, trusted: datetime = NOW - DAY, host: str = HOST) -> Any:
    return next_step(held, host, asked=asked, trusted_since=trusted, now=now)


def test_a_renewal_from_its_beginning_to_its_end() -> None:
    """At no time is anything shown that is not trusted."""
    held = first(SERVER, NOW)
    due = step(held, NOW)
    assert NOW + 23 * DAY < due < NOW + 25 * DAY
    assert step(held, due) is Step.RENEW_AUTHORITY

    both = taken(held, Step.RENEW_AUTHORITY, SERVER, due)
    assert both.bundle == both.authority.certificate + held.authority.certificate
    assert both.serving == held.serving, "shown by the old one, until the new one is trusted"
    assert step(both, due, trusted=due) == due + SETTLE
    assert step(both, due + SETTLE, trusted=due) is Step.RENEW_SERVING

    shown = taken(both, Step.RENEW_SERVING, SERVER, due + SETTLE)
    assert shown.bundle == both.bundle
    forget = step(shown, due + SETTLE, trusted=due)
    assert forget == due + SETTLE + DAY
    assert step(shown, forget, trusted=due) is Step.FORGET_OLD

    ended = taken(shown, Step.FORGET_OLD, SERVER, forget)
    assert ended.bundle == ended.authority.certificate
    assert step(ended, forget, trusted=due) > forget + 20 * DAY


def test_a_requested_authority_is_created_at_once_and_no_third_one_before_the_first_is_dropped() -> None:
    held = first(SERVER, NOW)
    assert step(held, NOW, asked=True) is Step.RENEW_AUTHORITY
    both = taken(held, Step.RENEW_AUTHORITY, SERVER, NOW)
    assert step(both, NOW, asked=True, trusted=NOW) == NOW + SETTLE


def test_a_certificate_by_an_authority_that_is_not_trusted_is_replaced_at_once() -> None:
    """Someone removed the old authority from the Secret in the middle of a renewal: every write would be refused."""
    both = taken(first(SERVER, NOW), Step.RENEW_AUTHORITY, SERVER, NOW)
    assert step(both, NOW, trusted=NOW) == NOW + SETTLE
    assert step(replace(both, old=()), NOW, trusted=NOW) is Step.RENEW_SERVING


def test_another_address_needs_no_other_authority() -> None:
    held = first(OwnCertificates(url="https://198.18.0.1:9443").server, NOW)
    assert step(held, NOW, host="198.18.0.1") > NOW + DAY
    assert step(held, NOW) is Step.RENEW_SERVING


def test_old_and_new_authorities_never_share_a_name() -> None:
    """Clients find the issuer of a certificate by this name."""
    one, other = (first(SERVER, NOW + timedelta(seconds=number)).authority for number in (0, 1))
    subjects = {x509.load_pem_x509_certificate(each.certificate).subject.rfc4514_string() for each in (one, other)}
    assert len(subjects) == 2


class Replica:
    def __init__(self, keeper: WebhookCertificates, shown: ShownCertificate) -> None:
        self.keeper = keeper
        self._shown = shown

    @property
    def shows(self) -> KeyPair | None:
        return self._shown.shown


class Garden:
    def __init__(self, api: ApiServer) -> None:
        self.api = api

    @property
    def data(self) -> dict[str, bytes]:
        secret = self.api.find(SECRETS, "gardener-admission", "garden") or {}
        return {name: base64.b64decode(content) for name, content in (secret.get("data") or {}).items()}

    @property
    def trusted(self) -> set[bytes]:
        """One, if all webhooks agree."""
        configurations = [
            self.api.find(f"{WEBHOOKS}/{kind}webhookconfigurations", "gardener-admission")
            for kind in ("mutating", "validating")
        ]
        return {
            base64.b64decode(webhook["clientConfig"]["caBundle"])
            for each in configurations
            for webhook in (each or {}).get("webhooks", ())
        }

    def ask(self) -> None:
        annotations = {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}}
        self.api.change(SECRETS, "gardener-admission", "garden", annotations)

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[Replica]:
        async with self.api.client() as client:
            shown = ShownCertificate()
            keeper = admission_certificates(client, CONFIG, shown)
            running = asyncio.create_task(keeper.run())
            yield Replica(keeper, shown)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def garden() -> AsyncIterator[Garden]:
    async with ApiServer().running() as api:
        yield Garden(api)


async def test_the_first_replica_makes_them_and_the_webhooks_trust_them(garden: Garden) -> None:
    async with garden.replica() as replica:
        await asyncio.wait_for(replica.keeper.ready.wait(), 10)

        assert garden.trusted == {garden.data["ca.crt"]}
        assert replica.shows == KeyPair(garden.data["tls.crt"], garden.data["tls.key"])


async def test_all_replicas_present_the_same_certificate(garden: Garden) -> None:
    async with garden.replica() as one, garden.replica() as other:
        await asyncio.wait_for(asyncio.gather(one.keeper.ready.wait(), other.keeper.ready.wait()), 10)
        assert one.shows == other.shows

        before = one.shows
        garden.api.change(SECRETS, "gardener-admission", "garden", {"data": {"tls.crt": None}})
        await until(lambda: one.shows != before and one.shows == other.shows)
        await until(lambda: garden.trusted == {garden.data["ca.crt"]})  # what cannot be used is replaced


async def test_a_new_authority_is_trusted_before_anything_is_shown_by_it(
    garden: Garden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE", timedelta(seconds=0.5))
    async with garden.replica() as one, garden.replica() as other:
        await asyncio.wait_for(asyncio.gather(one.keeper.ready.wait(), other.keeper.ready.wait()), 10)
        old, before = garden.data["ca.crt"], one.shows
        garden.ask()

        await until(lambda: garden.trusted == {garden.data["ca.crt"] + old} and garden.data["ca.crt"] != old)
        assert one.shows == other.shows == before
        await until(lambda: one.shows != before and one.shows == other.shows)
        assert garden.trusted == {garden.data["ca.crt"] + old}
        await asyncio.sleep(0.2)
        assert garden.data["old-ca.crt"] == old, "one request, one authority"

        monkeypatch.setattr(module, "KEEP_OLD", timedelta(0))
        garden.api.change(SECRETS, "gardener-admission", "garden", {"metadata": {"labels": {"look": "again"}}})
        await until(lambda: garden.trusted == {garden.data["ca.crt"]})
        assert "old-ca.crt" not in garden.data


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("server: {address: a, certificateFile: c, privateKeyFile: k}\ncertificates: {url: 'https://a'}", "exclude"),
        ("server: {address: a, certificateFile: c}", "are needed"),
        ("server: {address: a}", "are needed"),
    ],
)
def test_certificates_come_one_way(tmp_path: Any, content: str, said: str) -> None:
    file = tmp_path / "config"
    file.write_text(f"gardenClientConnection: {{}}\n{content}\n")
    with pytest.raises(ConfigError, match=said):
        load_config(AdmissionConfig, file)

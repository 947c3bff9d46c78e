"""Mails about a cluster: an owner asks for them, an operator has said which server takes them, and they come.

The tests run in the order in which they stand; the slow one alone, too.
"""

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import Message
from email.policy import default as default_policy
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from api.times import timestamp
from landscape.pki import Authority
from tests.landscape import monitoring
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

RECEIVER = "owner@example.org"
SENDER = "gardener@example.org"
PASSWORD = "only-for-mails"
PORT = 2525
NAME = "alertmanager-shoot"
GROUP_WAIT = 300
"""Seconds for which Alertmanager waits for more of the same service."""


class Smarthost:
    """Takes mails from clients with the password, by TLS alone."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = f"{address}:{PORT}"
        self.authority = Authority(directory, "mails")
        self.mails: list[Message] = []
        pair = self.authority.issue("smarthost", "smarthost", names=[address])
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pair.certificate, pair.key)
        self.controller = Controller(
            self, hostname=address, port=PORT, tls_context=tls, require_starttls=True, auth_required=True,
            authenticator=self._known,
            # It asks in words of its own there, which Alertmanager does not know.
            auth_exclude_mechanism=["LOGIN"],
        )  # fmt: skip

    def _known(self, *asked: Any) -> AuthResult:
        return AuthResult(success=asked[-1] == LoginPassword(SENDER.encode(), PASSWORD.encode()))

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes), "a server without decode_data keeps bytes"
        self.mails.append(message_from_bytes(envelope.content, policy=default_policy))
        return "250 taken"


@pytest.fixture(scope="module")
def smarthost(landscape: Landscape, shoot: Shoot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smarthost]:
    """Where seeds reach it; the garden knows it."""
    # This machine's end of the line to a seed.
    address = ip_address(landscape.address("seed-1")) - 1
    smarthost = Smarthost(str(address), tmp_path_factory.mktemp("pki"))
    told = {
        "auth_type": "smtp", "from": SENDER, "smarthost": smarthost.address, "ca.crt": smarthost.authority.pem,
        "auth_username": SENDER, "auth_password": PASSWORD,
    }  # fmt: skip
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mails", "namespace": "garden", "labels": {"gardener.cloud/role": "alerting"}},
        "stringData": told,
    }
    smarthost.controller.start()
    landscape.kubectl("garden", "apply", "-f", "-", stdin=json.dumps(secret))
    yield smarthost
    want(shoot, [])
    landscape.kubectl("garden", "-n", "garden", "delete", "secret", "mails")
    smarthost.controller.stop()


def test_a_shoot_with_mail_receivers_has_an_alertmanager(shoot: Shoot, smarthost: Smarthost) -> None:
    want(shoot, [RECEIVER])
    host, words = monitoring.access(shoot, "alertmanager")
    status, answer = monitoring.get(shoot, "/api/v2/status", host, words)
    assert status == 200
    assert RECEIVER in answer["config"]["original"]
    assert PASSWORD not in answer["config"]["original"]
    assert monitoring.get(shoot, "/api/v2/status", host, "Basic YWRtaW46YWRtaW4=") == (401, None)


def test_prometheus_sends_its_alerts_to_the_alertmanager(shoot: Shoot, smarthost: Smarthost) -> None:
    host, words = monitoring.access(shoot)

    def known() -> Any:
        status, answer = monitoring.get(shoot, "/api/v1/alertmanagers", host, words)
        return status == 200 and [each["url"] for each in answer["data"]["activeAlertmanagers"]]

    assert eventually(known, "it knows of it", 60) == [f"https://{NAME}:9093/api/v2/alerts"]


def test_alert_rules_query_metrics_that_exist(shoot: Shoot, smarthost: Smarthost) -> None:
    """The cluster is healthy: an alert about a job that is not scraped would be pending."""
    host, words = monitoring.access(shoot)

    def evaluated() -> Any:
        status, answer = monitoring.get(shoot, "/api/v1/rules", host, words)
        rules = [rule for group in answer["data"]["groups"] for rule in group["rules"]] if status == 200 else []
        return all(each["health"] == "ok" and each["state"] == "inactive" for each in rules) and rules

    rules = eventually(evaluated, "all of them have been asked, and nothing is wrong", 90)
    assert {"KubeApiserverDown", "KubeEtcdMainDown", "KubeKubeletNodeDown", "VPNShootNoPods"} <= {
        each["name"] for each in rules
    }
    for metric in (
        "envoy_cluster_membership_healthy",
        "etcd_server_has_leader",
        "etcd_mvcc_db_total_size_in_bytes",
        'process_max_fds{job="kubelet"}',
    ):
        assert monitoring.ask(shoot, metric, host, words)[1], metric


@pytest.mark.timeout(GROUP_WAIT + 120, func_only=True)
def test_a_mail_comes(shoot: Shoot, smarthost: Smarthost) -> None:
    """The mail is about an alert for the owner, and about no other."""
    host, words = monitoring.access(shoot, "alertmanager")
    # Without an end they would be over when the wait for more of them is.
    until = timestamp(datetime.now(UTC) + timedelta(hours=1))
    told = [
        {"labels": {"alertname": name, "service": name, "visibility": visibility}, "endsAt": until}
        for name, visibility in (("ForOwners", "owner"), ("ForOperators", "operator"))
    ]
    assert monitoring.get(shoot, "/api/v2/alerts", host, words, body=told)[0] == 200

    eventually(lambda: smarthost.mails, "a mail comes", GROUP_WAIT + 60)
    [mail] = smarthost.mails
    assert (mail["From"], mail["To"]) == (SENDER, RECEIVER)
    assert "ForOwners" in mail["Subject"]


def test_a_shoot_without_mail_receivers_loses_its_alertmanager(shoot: Shoot, smarthost: Smarthost) -> None:
    want(shoot, [])
    assert monitoring.access(shoot, "alertmanager")[0] == ""
    kinds = "deployments,services,configmaps,serviceaccounts,persistentvolumeclaims"
    assert NAME not in shoot.control_plane("get", kinds, "-o", "name")
    assert f"secret/{NAME}" not in shoot.control_plane("get", "secrets", "-o", "name").split()


def want(shoot: Shoot, receivers: list[str]) -> None:
    """Set the receivers of mails."""
    shoot.change({"monitoring": {"alerting": {"emailReceivers": receivers}}})
    shoot.wait_until_reconciled(120)

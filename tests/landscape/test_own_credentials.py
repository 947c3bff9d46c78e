"""Certificates between our own processes are renewed while they run."""

import base64
import json
import ssl
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import eventually

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(300, func_only=True)]

SEED = "seed-1"


def certificate(landscape: Landscape) -> x509.Certificate:
    """The gardenlet's, for the garden."""
    listed = landscape.kubectl(SEED, "-n", "garden", "get", "secret", "gardenlet-kubeconfig", "-o", "json")
    kubeconfig = yaml.safe_load(base64.b64decode(json.loads(listed)["data"]["kubeconfig"]))
    return x509.load_pem_x509_certificate(base64.b64decode(kubeconfig["users"][0]["user"]["client-certificate-data"]))


def seed(landscape: Landscape) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(landscape.kubectl("garden", "get", "seed", SEED, "-o", "json"))
    return found


def is_asked(seed: dict[str, Any]) -> bool:
    return "gardener.cloud/operation" in (seed["metadata"].get("annotations") or {})


def renewed(landscape: Landscape) -> datetime:
    """Last renewal of the gardenlet's lease."""
    lease = landscape.kubectl("garden", "-n", "gardener-system-seed-lease", "get", "lease", SEED, "-o", "json")
    return datetime.fromisoformat(json.loads(lease)["spec"]["renewTime"])


def test_a_gardenlet_renews_its_certificate_on_request_and_keeps_working(landscape: Landscape) -> None:
    """Signed by the garden for a request of its own; the process stays, and so do its connections to the seed."""
    before, pids = certificate(landscape), landscape.pids
    subject = f"CN=gardener.cloud:system:seed:{SEED},O=gardener.cloud:system:seeds"
    assert before.subject.rfc4514_string() == subject

    landscape.kubectl("garden", "annotate", "seed", SEED, "gardener.cloud/operation=renew-kubeconfig")
    eventually(lambda: certificate(landscape).serial_number != before.serial_number, "another certificate", 60)
    eventually(lambda: not is_asked(seed(landscape)), "an answer", 30)

    after = certificate(landscape)
    ends = datetime.fromisoformat(seed(landscape)["status"]["clientCertificateExpirationTimestamp"])
    print(f"before until {before.not_valid_after_utc}, now until {after.not_valid_after_utc}, status says {ends}")
    assert after.subject.rfc4514_string() == subject
    assert after.not_valid_after_utc == ends
    process = landscape.status["processes"][f"{SEED}/gardenlet"]
    told = f"continuing with a client certificate for the garden until {ends:%Y-%m-%dT%H:%M:%SZ}"
    eventually(lambda: told in Path(process["log"]).read_text(), "the gardenlet's word that it uses it", 20)
    beat = renewed(landscape)
    eventually(lambda: renewed(landscape) > beat, "the gardenlet's next sign of life", 40)
    assert process["pid"] == pids[f"{SEED}/gardenlet"]


class Admission:
    """Admission as the garden's API server and clients that write see it."""

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape
        self.writes = 0
        self.refused: list[str] = []

    @property
    def trusted(self) -> list[x509.Certificate]:
        """By all webhooks; empty while they differ, between the writes of two configurations."""
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        listed = self._landscape.kubectl("garden", "get", kinds, "-o", "json")
        webhooks = [
            webhook
            for each in json.loads(listed)["items"]
            if each["metadata"]["name"] == "gardener-admission"
            for webhook in each["webhooks"]
        ]
        bundles = {webhook["clientConfig"]["caBundle"] for webhook in webhooks}
        self._address = urlsplit(webhooks[0]["clientConfig"]["url"])
        return x509.load_pem_x509_certificates(base64.b64decode(bundles.pop())) if len(bundles) == 1 else []

    def shows_one_by(self, authority: x509.Certificate) -> bool:
        shown = ssl.get_server_certificate((self._address.hostname or "", self._address.port or 443), timeout=10)
        return x509.load_pem_x509_certificate(shown.encode()).issuer == authority.subject

    def while_writing(self, condition: Callable[[], bool]) -> bool:
        """A write that admission has to answer, and then the condition."""
        kubeconfig = self._landscape.directory / "kubeconfigs/garden.yaml"
        argv = [BIN / "kubectl", f"--kubeconfig={kubeconfig}", "label", "project", "local", "--overwrite"]
        done = subprocess.run(
            [*map(str, argv), f"written={self.writes}", "--dry-run=server"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        self.writes += 1
        if done.returncode:
            self.refused.append(done.stderr)
        return condition()


@pytest.mark.slow
def test_admission_gets_another_authority_while_every_write_is_answered(landscape: Landscape) -> None:
    """The new authority is trusted next to the old one, a minute before it signs the first certificate in use."""
    admission, pids = Admission(landscape), landscape.pids
    # An earlier run may have ended in the middle, and other tests write meanwhile.
    eventually(lambda: any(map(admission.shows_one_by, admission.trusted[:1])), "one by the newest authority", 100)
    landscape.kubectl(
        "garden",
        "-n",
        "garden",
        "patch",
        "secret",
        "gardener-admission",
        "--type=merge",
        '-p={"data":{"old-ca.crt":null}}',
    )
    eventually(lambda: len(admission.trusted) == 1, "trust in one authority alone", 30)
    [old] = admission.trusted
    assert admission.shows_one_by(old)

    landscape.kubectl(
        "garden", "-n", "garden", "annotate", "secret", "gardener-admission", "gardener.cloud/operation=renew"
    )
    eventually(lambda: admission.while_writing(lambda: len(admission.trusted) == 2), "trust in both", 30)
    new, still = admission.trusted
    assert still == old
    assert admission.shows_one_by(old)
    eventually(lambda: admission.while_writing(lambda: admission.shows_one_by(new)), "one by the new authority", 100)

    for _ in range(5):
        admission.while_writing(lambda: True)
    print(f"{admission.writes} writes, {len(admission.refused)} of them refused; now by {new.subject.rfc4514_string()}")
    assert admission.refused == []
    assert admission.trusted == [new, old]
    assert landscape.pids["garden/admission"] == pids["garden/admission"]

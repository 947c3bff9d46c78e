"""Certificates and kubeconfigs of the landscape's clusters."""

from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from landscape import pki


@pytest.fixture
def ca(tmp_path):
    return pki.Authority(tmp_path, "ca")


def test_an_authority_is_made_once(tmp_path, ca):
    assert pki.Authority(tmp_path, "ca").pem == ca.pem


def test_a_server_certificate_names_its_addresses(ca):
    pair = ca.issue("server", "kube-apiserver", names=["198.18.2.2", "kubernetes.default"])

    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["198.18.2.2"]
    assert names.get_values_for_type(x509.DNSName) == ["kubernetes.default"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.pem.encode()))


def test_writers_at_the_same_time_leave_a_certificate_with_its_key(tmp_path, ca):
    """`up` and the keeper both issue the certificate of an extension."""
    for attempt in range(20):
        with ThreadPoolExecutor(4) as pool:
            for made in [pool.submit(ca.issue, f"client-{attempt}", "extension") for _ in range(4)]:
                pair = made.result()
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = load_pem_private_key(pair.key.read_bytes(), password=None)
        assert key.public_key() == certificate.public_key()


def test_a_client_certificate_cannot_serve(ca):
    pair = ca.issue("client", "system:node:seed-1", ["system:nodes"])

    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.subject.rfc4514_string() == "CN=system:node:seed-1,O=system:nodes"


@pytest.mark.parametrize(
    "other",
    [
        {"organizations": ["operators", "controller-managers"]},
        {"common_name": "other"},
        {"names": ["198.18.2.2"]},
        {"names": ["198.18.2.2", "a.test"]},
    ],
)
def test_a_certificate_is_issued_again_only_for_another_subject_or_other_names(ca, other):
    """A landscape keeps its certificates when a newer version starts it; that version may need other groups."""
    of_before = {"common_name": "process", "organizations": ["operators"], "names": ["a.test"]}
    pair = ca.issue("process", **of_before)
    before = pair.certificate.read_text(), pair.key.read_text()
    assert ca.issue("process", **of_before) == pair
    assert (pair.certificate.read_text(), pair.key.read_text()) == before

    assert ca.issue("process", **of_before | other) == pair

    assert pair.certificate.read_text() != before[0]
    assert pair.key.read_text() != before[1]
    later = pair.certificate.read_text()
    ca.issue("process", **of_before | other)
    assert pair.certificate.read_text() == later


def test_keys_are_sec1_and_private(tmp_path, ca):
    """The API server refuses a PKCS #8 key as service account key; only its owner may read any key."""
    pair = ca.issue("client", "someone")
    account = pki.service_account_key(tmp_path)

    for key in (ca.files.key, pair.key, account.key):
        assert key.read_text().startswith("-----BEGIN EC PRIVATE KEY-----")
        assert key.stat().st_mode & 0o777 == 0o600
    assert account.certificate.read_text().startswith("-----BEGIN PUBLIC KEY-----")


def test_a_kubeconfig_holds_all_it_needs(tmp_path, ca):
    client = ca.issue("admin", "admin", ["system:masters"])
    path = pki.write_kubeconfig(
        tmp_path / "k" / "admin.yaml", pki.kubeconfig("https://198.18.0.1:6443", ca, client, "g")
    )

    content = yaml.safe_load(path.read_text())
    assert b64decode(content["clusters"][0]["cluster"]["certificate-authority-data"]).decode() == ca.pem
    assert content["clusters"][0]["cluster"]["server"] == "https://198.18.0.1:6443"
    assert path.stat().st_mode & 0o777 == 0o600

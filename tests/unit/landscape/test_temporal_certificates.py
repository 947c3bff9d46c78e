"""Certificates for Temporal: whose they are, and that charts and docker-compose.yaml find them."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import NameOID

from landscape import temporal_certificates
from landscape.cli import landscape

ROOT = Path(__file__).parents[3]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    arguments = [str(tmp_path / "certificates"), "--authority", str(tmp_path / "authority")]
    arguments += ["--host", "temporal-frontend", "--host", "198.18.0.1", "--seed", "seed-1"]
    result = CliRunner().invoke(landscape, ["temporal-certificates", *arguments])
    assert result.exit_code == 0, result.output
    return tmp_path / "certificates"


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def subject(certificate: x509.Certificate) -> tuple[str, str]:
    organization, name = (
        certificate.subject.get_attributes_for_oid(oid) for oid in (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME)
    )
    assert len(certificate.subject) == 2
    return str(organization[0].value), str(name[0].value)


@pytest.mark.parametrize(
    ("client", "organization", "name"),
    [
        ("controller-manager", "gardener.cloud:system:operators", "gardener.cloud:system:controller-manager"),
        ("gardenlet-seed-1", "gardener.cloud:system:seeds", "gardener.cloud:system:seed:seed-1"),
        (
            "provider-local-seed-1",
            "gardener.cloud:system:extensions",
            "gardener.cloud:system:extension:provider-local:seed-1",
        ),
        ("admin", "gardener.cloud:temporal:admins", "admin"),
        ("gateway", "gardener.cloud:temporal:gateways", "gateway"),
    ],
)
def test_the_subject_of_a_certificate_says_what_its_client_is(
    made: Path, client: str, organization: str, name: str
) -> None:
    certificate = read(made / client / "tls.crt")
    assert subject(certificate) == (organization, name)
    certificate.verify_directly_issued_by(read(made / "server/clients.crt"))
    assert (made / client / "ca.crt").read_bytes() == (made / "server/servers.crt").read_bytes()
    assert (made / client / "tls.key").stat().st_mode & 0o077 == 0


def test_all_files_in_the_configuration_of_docker_compose_are_created(made: Path) -> None:
    lines = (ROOT / "examples/compose/temporal-tls.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    files = {value.rsplit("/", 1)[1] for value in settings.values() if value.startswith("/etc/temporal/tls/")}
    assert files | {"task-tokens.keys"} == {file.name for file in (made / "server").iterdir()}
    names = read(made / "server/temporal-internode.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [settings["TEMPORAL_TLS_INTERNODE_SERVER_NAME"]]

    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    for name in ("frontend", "internal-frontend", "history", "matching", "worker"):
        assert services[f"temporal-{name}"]["env_file"] == ["examples/compose/temporal-tls.env"]
    for name in ("controller-manager", "setup"):
        tls = yaml.safe_load((ROOT / f"examples/compose/{name}.yaml").read_text())["temporal"]["tls"]
        assert {file.rsplit("/", 1)[1] for file in tls.values()} == {"ca.crt", "tls.crt", "tls.key"}


def test_existing_authorities_are_used_again(made: Path, tmp_path: Path) -> None:
    before = (made / "gardenlet-seed-1/tls.crt").read_bytes()
    temporal_certificates.write(made, tmp_path / "authority", ["temporal-frontend"], ["seed-1", "seed-2"])
    assert (made / "gardenlet-seed-1/tls.crt").read_bytes() == before
    read(made / "gardenlet-seed-2/tls.crt").verify_directly_issued_by(read(made / "server/clients.crt"))

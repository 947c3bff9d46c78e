"""How commands find Temporal and the files of their certificate."""

import json
from pathlib import Path

import click
import pytest

from workers.cli.temporal import connection_of, run_async
from workers.lib.temporal import TemporalConnectionError


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gardener/landscapes/default/landscape.json"
    file.parent.mkdir(parents=True)
    tls = {"ca": "/landscape/ca.crt", "certificate": "/landscape/admin.crt", "key": "/landscape/admin.key"}
    file.write_text(json.dumps({"temporal": {"address": "198.18.0.1:7233", "codec": "http://codec", "tls": tls}}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("GARDENER_LANDSCAPE", raising=False)


@pytest.mark.usefixtures("facts")
def test_by_default_the_landscapes_administrator_connects() -> None:
    found = connection_of(None, "default", None, None)
    assert found.address == "198.18.0.1:7233"
    assert found.tls is not None
    assert [str(file) for file in found.tls.files] == [
        "/landscape/admin.crt",
        "/landscape/admin.key",
        "/landscape/ca.crt",
    ]


@pytest.mark.usefixtures("facts")
def test_a_certificate_of_ones_own_replaces_the_landscapes() -> None:
    own = Path("/own.ca"), Path("/own.crt"), Path("/own.key")
    found = connection_of(None, "default", None, None, *own, "temporal.example.org")
    assert found.tls is not None
    assert found.tls.files == (own[1], own[2], own[0])
    assert found.tls.server_name == "temporal.example.org"


@pytest.mark.usefixtures("facts")
def test_another_temporal_gets_no_certificate_of_the_landscape() -> None:
    assert connection_of("temporal.example.org:7233", "default", None, None).tls is None


def test_one_file_without_the_others_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--temporal-tls-ca, --temporal-tls-cert and --temporal-tls-key"):
        connection_of("temporal:7233", "default", None, None, temporal_tls_cert=Path("/own.crt"))


@pytest.mark.usefixtures("facts")
def test_a_token_without_the_certificate_of_a_gateway_is_refused() -> None:
    """Temporal would refuse it with the certificate of the landscape's administrator."""
    with pytest.raises(click.UsageError, match="--temporal-tls-cert"):
        connection_of(None, "default", None, None, temporal_token_file=Path("/token"))


def test_a_token_that_is_not_there_is_named_and_ends_the_command() -> None:
    own = Path("/own.ca"), Path("/own.crt"), Path("/own.key")
    where = connection_of("127.0.0.1:1", "default", None, None, *own, temporal_token_file=Path("/no.token"))
    with pytest.raises(click.ClickException, match=r"/no\.token"):
        run_async(where.connect())


def test_a_file_that_is_not_there_is_named_and_ends_the_command() -> None:
    where = connection_of("127.0.0.1:1", "default", None, None, Path("/no.ca"), Path("/no.crt"), Path("/no.key"))
    with pytest.raises(click.ClickException, match=r"Temporal at 127\.0\.0\.1:1: /no\.crt can't be read: No such file"):
        run_async(where.connect())


async def test_a_temporal_that_is_away_is_said_without_advice_about_certificates() -> None:
    with pytest.raises(TemporalConnectionError, match="tcp connect error") as failed:
        await connection_of("127.0.0.1:1", "default", None, None).connect()
    assert "tls" not in str(failed.value)

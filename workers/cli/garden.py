"""``gardener garden admission-files``: files with which the garden's API server calls admission."""

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import click

from activities.secrets.crypto import KeyPair, validity_of
from kube.client import KubeClient
from kube.errors import ApiError
from workers.admission import api_server_files
from workers.admission.authority import UnusableAuthority, client_certificate, find_or_create
from workers.cli.connection import find_garden_kubeconfig


@click.group()
def garden() -> None:
    """Set up the garden."""


@garden.command("admission-files")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--webhooks-url", required=True, help="Admission's port 9443, like https://admission.example.org:9443.")
@click.option("--authorizer-url", required=True, help="Admission's port 9444, like https://admission.example.org:9444.")
@click.option("--path", help="Where the API server finds the files; default: DIRECTORY.")
@click.option("--garden-kubeconfig", help="Kubeconfig of an administrator of the garden; default: the landscape's.")
def admission_files(
    directory: Path, webhooks_url: str, authorizer_url: str, path: str | None, garden_kubeconfig: str | None
) -> None:
    """Write the files by which the garden's API server asks admission, and a client certificate for a year.

    The authority in Secret garden/gardener-admission-authority signs the certificate; it is made if it is not there.
    Called again, the command renews the certificate, which the API server reads again by itself.
    """
    for url in (webhooks_url, authorizer_url):
        if not url.startswith("https://"):
            raise click.ClickException(f"{url} does not begin with https://")
    now = datetime.now(UTC)
    try:
        authority = asyncio.run(_authority(garden_kubeconfig, now))
    except UnusableAuthority as error:
        raise click.ClickException(str(error)) from None
    except ApiError as error:
        raise click.ClickException(f"the authority of admission cannot be read or made: {error}") from None
    client = client_certificate(authority, now)
    seen = path or str(directory.absolute())
    directory.mkdir(parents=True, exist_ok=True)
    # The API server reads both files again, and keeps the old pair while key and certificate do not fit together.
    _write(directory / api_server_files.KEY, client.key, mode=0o600)
    _write(directory / api_server_files.CERTIFICATE, client.certificate)
    contents = api_server_files.files(
        seen, webhooks_url=webhooks_url, authorizer_url=authorizer_url, authority=authority.certificate
    )
    for name, content in contents.items():
        _write(directory / name, json.dumps(content, indent=2).encode())
    click.echo(f"The client certificate is valid until {validity_of(client.certificate)[1]:%Y-%m-%d}.", err=True)
    click.echo("Start each API server of the garden with these flags, in place of --authorization-mode:", err=True)
    for flag, value in api_server_files.flags(seen).items():
        click.echo(f"--{flag}={value}")


async def _authority(path: str | None, now: datetime) -> KeyPair:
    client = KubeClient.from_kubeconfig(find_garden_kubeconfig(path))
    try:
        return await find_or_create(client, now)
    finally:
        await client.close()


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically. Its mode is set from the start."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    scratch.replace(path)

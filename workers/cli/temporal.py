"""Connection of CLI commands to Temporal: options, client, and messages of failures."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click
from temporalio.client import Client, RPCError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverterWithEncodedAttributes

from activities.secrets.keyring import CodecError, read_keyring
from kube.kubeconfig import KubeconfigError, endpoint_of, parse_kubeconfig
from workers.cli.codec_endpoint import RemoteCodec
from workers.cli.connection import find_garden_kubeconfig, landscape_facts
from workers.lib.codec import reading_converter
from workers.lib.temporal import TemporalServer, TemporalTLS, connect_with

T = TypeVar("T")

_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True)
class Connection:
    """Address of Temporal, credentials for it, and keys or endpoint to decrypt payloads."""

    address: str
    namespace: str
    codec_key: Path | None
    codec_endpoint: str | None
    codec_ca: Path | None = None
    tls: TemporalTLS | None = None
    token_file: Path | None = None

    async def connect(self) -> Client:
        has_roots = self.codec_key is not None and bool(read_keyring(self.codec_key).roots)
        endpoint = self._remote_codec(self.codec_endpoint) if self.codec_endpoint and not has_roots else None
        if self.codec_key is not None:
            converter = reading_converter(self.codec_key, endpoint=endpoint)
        else:
            converter = replace(
                pydantic_data_converter,
                payload_codec=endpoint,
                failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
            )
        token = self.token_file.read_text().strip() if self.token_file else None
        return await connect_with(
            TemporalServer(address=self.address, namespace=self.namespace, tls=self.tls), converter, token
        )

    def _remote_codec(self, endpoint: str) -> RemoteCodec:
        """Codec that uses the endpoint. Raises click.ClickException if the garden's kubeconfig cannot be read."""
        path = find_garden_kubeconfig(None)
        try:
            user = endpoint_of(parse_kubeconfig(path.read_bytes()), path.parent)
            return RemoteCodec(endpoint, user, self.codec_ca)
        except (OSError, KubeconfigError) as error:
            raise click.ClickException(
                f"the codec endpoint asks for your credentials of the garden, kubeconfig {path} has none: {error}; "
                "name another by GARDEN_KUBECONFIG"
            ) from None


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all commands that connect to Temporal."""
    for option in (
        click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option(
            "--codec-ca",
            type=_FILE,
            help="Authority of the endpoint's certificate; default: the landscape's, else this machine's.",
        ),
        click.option(
            "--codec-endpoint",
            help="Reads encrypted histories with your kubeconfig of the garden; default: the landscape's.",
        ),
        click.option(
            "--codec-key",
            type=_FILE,
            help="Your key file: an operator's, or root keys in place of the endpoint; default: the landscape's.",
        ),
        click.option(
            "--temporal-tls-server-name", help="A name in Temporal's certificate, if the host is none of them."
        ),
        click.option(
            "--temporal-token-file",
            type=_FILE,
            help="Your token, with your name and groups; the certificate is then a gateway's.",
        ),
        click.option("--temporal-tls-key", type=_FILE, help="Key of the certificate."),
        click.option("--temporal-tls-cert", type=_FILE, help="Client certificate, with your name and role."),
        click.option(
            "--temporal-tls-ca", type=_FILE, help="Authority of Temporal's certificate; default: the landscape's."
        ),
        click.option("--temporal-namespace", default="default", show_default=True),
        click.option("--temporal-address", help="HOST:PORT; default: the landscape's."),
    ):
        command = option(command)
    return command


def connection_of(
    temporal_address: str | None,
    temporal_namespace: str,
    codec_key: Path | None,
    codec_endpoint: str | None,
    temporal_tls_ca: Path | None = None,
    temporal_tls_cert: Path | None = None,
    temporal_tls_key: Path | None = None,
    temporal_tls_server_name: str | None = None,
    codec_ca: Path | None = None,
    temporal_token_file: Path | None = None,
) -> Connection:
    """Connection from a command's options; the landscape's values are the defaults.

    Raises click.UsageError if only some of the TLS files are given, or a token without TLS files.
    """
    given = temporal_tls_ca, temporal_tls_cert, temporal_tls_key
    if temporal_token_file is not None and not any(given):
        raise click.UsageError("--temporal-token-file needs the certificate of a gateway: --temporal-tls-cert")
    if temporal_address is None:
        facts = landscape_facts()["temporal"]
        temporal_address = facts["address"]
        codec_endpoint = codec_endpoint or facts.get("codec")
        if codec_ca is None and (file := facts.get("codecCa")):
            codec_ca = Path(file)
        if codec_key is None and (known := facts.get("operatorKeyFile")):
            codec_key = Path(known)
        if not any(given) and (files := facts.get("tls")):
            given = Path(files["ca"]), Path(files["certificate"]), Path(files["key"])
    tls = None
    if any(given) or temporal_tls_server_name:
        ca, certificate, key = given
        if ca is None or certificate is None or key is None:
            raise click.UsageError(
                "TLS to Temporal needs --temporal-tls-ca, --temporal-tls-cert and --temporal-tls-key"
            )
        tls = TemporalTLS(
            ca_file=ca, certificate_file=certificate, private_key_file=key, server_name=temporal_tls_server_name
        )
    return Connection(
        temporal_address, temporal_namespace, codec_key, codec_endpoint, codec_ca, tls, temporal_token_file
    )


def run_async(work: "Coroutine[Any, Any, T] | Awaitable[T]") -> T:
    async def run() -> T:
        return await work

    try:
        return asyncio.run(run())
    except (CodecError, RPCError, RuntimeError, OSError) as error:
        raise click.ClickException(f"asking Temporal: {error}") from None

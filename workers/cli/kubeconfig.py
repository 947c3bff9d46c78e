"""``gardener kubeconfig shoot NAMESPACE/NAME``: an administrator's kubeconfig of a Shoot."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api import resources
from api.contracts.kubeconfigs import IssuedKubeconfig, issued, noted
from api.names import issued_kubeconfigs
from kube.client import KubeClient
from kube.errors import AlreadyExists, ApiError, NotFound
from workers.cli.connection import (
    SYSTEM_RESOLVER,
    Reach,
    find_garden_kubeconfig,
    namespaced_name,
    reach,
)

_MIN, _MAX = 600, 24 * 3600
"""Bounds of a certificate's validity in seconds. Source: spec/credentials.md 8."""


@click.group()
def kubeconfig() -> None:
    """Print a kubeconfig of a Shoot."""


@kubeconfig.command()
@click.argument("shoot", callback=namespaced_name)
@click.option("--expiration", type=click.IntRange(_MIN, _MAX), default=3600, help="Seconds that it is valid.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def shoot(shoot: tuple[str, str], expiration: int, garden_kubeconfig: str | None, output: str) -> None:
    """Administrator's kubeconfig of the Shoot NAMESPACE/NAME, by a certificate of limited life."""
    try:
        config, where = asyncio.run(_from_garden(*shoot, expiration, garden_kubeconfig))
    except NotFound as error:
        raise click.ClickException(f"{error}; does the Shoot exist, and has its control plane got a CA yet?") from None
    except ApiError as error:
        raise click.ClickException(str(error)) from None
    if where != SYSTEM_RESOLVER:
        click.echo(f"# {where}", err=True)
    click.echo(json.dumps(config, indent=2) if output == "json" else yaml.safe_dump(config, sort_keys=False), nl=False)


async def _from_garden(
    namespace: str, name: str, expiration: int, garden_path: str | None
) -> tuple[dict[str, object], str]:
    garden = KubeClient.from_kubeconfig(find_garden_kubeconfig(garden_path))
    try:
        return await admin_kubeconfig(garden, namespace, name, expiration=expiration)
    finally:
        await garden.close()


async def admin_kubeconfig(
    garden: KubeClient, namespace: str, name: str, *, expiration: int
) -> tuple[dict[str, object], str]:
    """The kubeconfig, and a text that says how the address of its server was resolved.

    Raises:
        NotFound: the Shoot does not exist, or has no CA yet.
        click.ClickException: the Shoot advertises no address yet.
    """
    live = await garden.get(resources.SHOOT, name, namespace)
    addresses = (live.get("status", {}).get("advertisedAddresses")) or []
    shown = [each for each in addresses if each["name"] in ("external", "internal", "unmanaged")]
    if not shown:
        raise click.ClickException(f"Shoot {namespace}/{name} advertises no address yet; see its lastOperation")
    signer = await garden.get(resources.INTERNAL_SECRET, f"{name}.ca-client", namespace)
    bundle = await garden.get(resources.CONFIG_MAP, f"{name}.ca-cluster", namespace)
    certificate, key = client_certificate(
        base64.b64decode(signer["data"]["ca.crt"]), base64.b64decode(signer["data"]["ca.key"]), expiration
    )
    await record_kubeconfig(garden, live, certificate)
    reached = [(each["name"], reach(each["url"])) for each in shown]
    return kubeconfig_of(f"{namespace}--{name}", reached, bundle["data"]["ca.crt"], certificate, key), reached[0][1].how


async def record_kubeconfig(garden: KubeClient, shoot: Mapping[str, Any], certificate: bytes) -> None:
    """Record user, issuer and expiration of a kubeconfig, and remove the records of expired kubeconfigs.

    While a recorded kubeconfig needs the old authority, a rotation of the authorities cannot be completed.
    """
    made = x509.load_pem_x509_certificate(certificate)
    metadata = shoot["metadata"]
    name, namespace = issued_kubeconfigs(metadata["name"]), metadata["namespace"]
    now = datetime.now(UTC)
    known = await garden.find(resources.CONFIG_MAP, name, namespace)
    entry = IssuedKubeconfig(
        user=_common_name(made.subject), issuer=_common_name(made.issuer), expires=made.not_valid_after_utc.isoformat()
    )
    data: dict[str, str | None] = {serial: None for serial, each in issued(known).items() if each.expired(now)}
    data[f"{made.serial_number:040x}"] = noted(entry)
    if known is None:
        owner = {"apiVersion": resources.SHOOT.api_version, "kind": "Shoot", "name": metadata["name"]}
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "ownerReferences": [{**owner, "uid": metadata["uid"], "blockOwnerDeletion": False}],
            },
        }
        with contextlib.suppress(AlreadyExists):
            await garden.create(config_map)
    await garden.patch(resources.CONFIG_MAP, name, namespace, {"data": data})


def _common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def kubeconfig_of(
    title: str, addresses: list[tuple[str, Reach]], ca: str, certificate: bytes, key: bytes
) -> dict[str, object]:
    """Kubeconfig with a cluster and a context per address; the first is current. Source: spec/credentials.md 8."""
    names = [f"{title}-{name}" for name, _ in addresses]

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": names[0],
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": reached.server,
                    "certificate-authority-data": encoded(ca.encode()),
                    **({"tls-server-name": reached.tls_server_name} if reached.tls_server_name else {}),
                },
            }
            for name, (_, reached) in zip(names, addresses, strict=True)
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": names[0]}} for name in names],
        "users": [
            {
                "name": names[0],
                "user": {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)},
            }
        ],
    }


def client_certificate(ca_pem: bytes, ca_key_pem: bytes, seconds: int) -> tuple[bytes, bytes]:
    """An administrator's client certificate and its key, PEM, signed by the Shoot's client CA."""
    ca = x509.load_pem_x509_certificate(ca_pem)
    ca_key = load_pem_private_key(ca_key_pem, None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(
            x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "gardener.cloud:system:admins"),
                    x509.NameAttribute(NameOID.COMMON_NAME, "gardener.cloud:admin:gardener-cli"),
                ]
            )
        )
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(seconds=seconds))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())  # type: ignore[arg-type]
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        ),
    )

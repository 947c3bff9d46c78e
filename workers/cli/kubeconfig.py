"""``gardener kubeconfig shoot NAMESPACE/NAME``: a kubeconfig of a Shoot, from the garden's subresource."""

import asyncio
import base64
import json

import click
import yaml

from api import resources
from api.authentication.v1alpha1.kubeconfig_request import MAX_SECONDS, MIN_SECONDS
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from workers.cli import completion
from workers.cli.connection import (
    SYSTEM_RESOLVER,
    garden_client,
    namespaced_name,
    reach,
)


@click.group()
def kubeconfig() -> None:
    """Print a kubeconfig of a Shoot."""


@kubeconfig.command()
@click.argument("shoot", callback=namespaced_name, shell_complete=completion.SHOOTS)
@click.option(
    "--expiration", type=click.IntRange(MIN_SECONDS, MAX_SECONDS), default=3600, help="Seconds that it is valid."
)
@click.option("--viewer", is_flag=True, help="One that only reads, and no Secrets; default: an administrator's.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def shoot(shoot: tuple[str, str], expiration: int, viewer: bool, garden_kubeconfig: str | None, output: str) -> None:
    """Kubeconfig of the Shoot NAMESPACE/NAME, by a certificate of limited life with your name in it."""
    try:
        config, where = asyncio.run(_from_garden(*shoot, expiration, viewer, garden_kubeconfig))
    except ApiError as error:
        raise click.ClickException(str(error)) from None
    if where != SYSTEM_RESOLVER:
        click.echo(f"# {where}", err=True)
    click.echo(json.dumps(config, indent=2) if output == "json" else yaml.safe_dump(config, sort_keys=False), nl=False)


async def _from_garden(
    namespace: str, name: str, expiration: int, viewer: bool, garden_path: str | None
) -> tuple[dict[str, object], str]:
    async with garden_client(garden_path) as garden:
        return await requested_kubeconfig(garden, namespace, name, expiration=expiration, viewer=viewer)


async def requested_kubeconfig(
    garden: KubeClient, namespace: str, name: str, *, expiration: int, viewer: bool = False
) -> tuple[dict[str, object], str]:
    """The kubeconfig, and a text that says how the address of its server was resolved.

    The garden's server signs, records and bounds it. An address that the system does not resolve is replaced by the
    IP address from the landscape's DNS.

    Raises:
        ApiError: the garden refused the request.
        click.ClickException: the garden's address does not serve the subresource.
    """
    subresource, kind = (
        ("viewerkubeconfig", "ViewerKubeconfigRequest") if viewer else ("adminkubeconfig", "AdminKubeconfigRequest")
    )
    request = {
        "apiVersion": "authentication.gardener.cloud/v1alpha1",
        "kind": kind,
        "spec": {"expirationSeconds": expiration},
    }
    doing = f"requesting {subresource} of Shoot {namespace}/{name}"
    try:
        answer = await garden.request(
            "POST", resources.SHOOT.path(namespace, name, subresource), body=request, doing=doing
        )
    except NotFound:
        # An API server without front door gives the same answer for an unknown subresource and for an unknown Shoot.
        await garden.get(resources.SHOOT, name, namespace)
        raise click.ClickException(
            f"{doing}: {garden.endpoint.server} does not serve this subresource: use a kubeconfig with the address of "
            "the garden's front door, not with that of its API server"
        ) from None
    if (granted := answer["spec"]["expirationSeconds"]) < expiration:
        click.echo(f"# valid for {granted} s, which is the garden's maximum", err=True)
    config = json.loads(base64.b64decode(answer["status"]["kubeconfig"]))
    how = []
    for each in config["clusters"]:
        reached = reach(each["cluster"]["server"])
        each["cluster"]["server"] = reached.server
        if reached.tls_server_name:
            each["cluster"]["tls-server-name"] = reached.tls_server_name
        how.append(reached.how)
    return config, how[0]

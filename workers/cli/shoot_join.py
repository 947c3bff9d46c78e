"""``gardener shoot token create`` and ``gardener shoot join``: further machines of a self-hosted Shoot."""

import asyncio
import base64
import json
import os
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import click
import yaml
from pydantic import ValidationError

from activities.components import base
from activities.secrets.configs import kubeconfig
from activities.secrets.sealing import CannotOpen
from activities.self_hosted import control_plane
from activities.self_hosted.join import KEY_BYTES, seal, take
from activities.self_hosted.secrets import FileSecrets
from api.access import BOOTSTRAPPERS, bootstrap_token, machine_bootstrap_group
from api.compression import TooLarge
from api.constants import SELF_HOSTED_NAMESPACE, WORKER_POOL
from api.contracts.self_hosted import (
    KUBECONFIG,
    MANIFEST,
    SECRETS,
    InitTask,
    JoinFile,
    JoinTask,
    Keys,
    SelfHostedManifest,
)
from api.resources import NODE, SECRET
from kube.client import KubeClient, Object
from kube.errors import ApiError
from workers.cli.shoot_init import STATE, init_machine, must_be_machine, run_on_machine, this_machine
from workers.self_hosted.process import run_join

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
_KEY = "control-plane"


@click.group()
def token() -> None:
    """Bootstrap tokens of a self-hosted Shoot, by which further machines join."""


@token.command()
@click.option("--node", required=True, help="Name of the machine that joins; the token is good for no other.")
@click.option("--worker-pool-name", "pool", help="Pool of the machine.")
@click.option(
    "--control-plane", "with_keys", is_flag=True, help="The machine gets a control plane, and all keys of it."
)
@click.option(
    "--validity",
    type=click.IntRange(5, 24 * 60),
    default=60,
    show_default=True,
    help="Minutes that the token is valid.",
)
def create(node: str, pool: str | None, with_keys: bool, validity: int) -> None:
    """Write a file with a new bootstrap token, by which one machine joins with `gardener shoot join`.

    Run it as root on a machine of the control plane. The holder of the file can join as that machine, and get the
    keys of the control plane if the file is for one: send it on a safe way, and delete it afterwards.
    """
    try:
        manifest = SelfHostedManifest.model_validate_json((STATE / MANIFEST).read_text())
        admin = (STATE / KUBECONFIG).read_text()
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}: run it as root on the control plane") from None
    pools = {each.name: each for each in manifest.spec.provider.workers}
    if with_keys and pool not in (None, manifest.pool.name):
        raise click.ClickException(f"pool {pool} has no controlPlane, it is {manifest.pool.name}")
    if with_keys and manifest.control_plane.exposure is None:
        raise click.ClickException("several machines of a control plane need an exposure in front of them")
    chosen = pools.get(pool or manifest.pool.name) if with_keys or pool else None
    if chosen is None:
        raise click.ClickException(f"--worker-pool-name must be one of {', '.join(sorted(pools))}")
    if chosen.control_plane is not None and not with_keys:
        raise click.ClickException(f"machines of pool {chosen.name} have a control plane: add --control-plane")
    made = _made(manifest, admin, node, chosen.name, chosen.maximum, with_keys, timedelta(minutes=validity))
    try:
        click.echo(asyncio.run(made).model_dump_json(indent=1))
    except (ApiError, ValidationError) as error:
        raise click.ClickException(f"no token for {node}: {_told(error)}") from None


def _told(error: ApiError | ValidationError) -> str:
    """The error without values."""
    if isinstance(error, ApiError):
        return str(error)
    return "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors(include_input=False))


async def _made(
    manifest: SelfHostedManifest,
    admin: str,
    node: str,
    pool: str,
    maximum: int,
    with_keys: bool,
    validity: timedelta,
) -> JoinFile:
    secrets = FileSecrets(STATE / SECRETS)
    token_id, secret, key = token_hex(3), token_hex(8), os.urandom(KEY_BYTES)
    name = f"join-{token_id}"
    found = JoinFile(
        shoot=manifest,
        node=node,
        pool=pool,
        address=urlsplit(yaml.safe_load(admin)["clusters"][0]["cluster"]["server"]).hostname or "",
        ca=secrets.get("ca-bundle")["bundle.crt"].decode(),
        kubelet_ca=secrets.get("ca-kubelet-bundle")["bundle.crt"].decode(),
        token=f"{token_id}.{secret}",
        keys=Keys(secret=name, key=b64encode(key).decode()) if with_keys else None,
    )
    async with KubeClient.from_kubeconfig(admin) as client:
        nodes = await client.list(NODE, labels=WORKER_POOL)
        if any(each["metadata"]["name"] == node for each in nodes):
            raise click.ClickException(f"Node {node} exists: delete it first, if its machine is gone for good")
        there = [each for each in nodes if each["metadata"]["labels"][WORKER_POOL] == pool]
        if len(there) >= maximum:
            raise click.ClickException(f"pool {pool} has {len(there)} machines, its maximum: delete a Node first")
        until, group = datetime.now(UTC) + validity, machine_bootstrap_group(node)
        groups = f"{group},{_group_of(token_id)}" if with_keys else group
        owner = await client.create(bootstrap_token(f"lets {node} join", token_id, secret, until, groups))
        if with_keys:
            role = control_plane.CONTROL_PLANE_ROLE
            members = [_address(each) for each in nodes if role in each["metadata"]["labels"]]
            for each in _keys(name, token_id, seal(STATE, manifest, key, members)):
                each["metadata"]["ownerReferences"] = [_owner(owner)]
                await client.create(each)
    return found


def _keys(name: str, token_id: str, sealed: str) -> list[Object]:
    """The encrypted keys, and the right of one token to read them. They go with the token."""
    group = base.group(_group_of(token_id))
    metadata = {"name": name, "namespace": SELF_HOSTED_NAMESPACE}
    data = {_KEY: b64encode(sealed.encode()).decode()}
    return [
        base.role(name, SELF_HOSTED_NAMESPACE, [base.rule("core", "secrets", "get", [name])]),
        base.binding(name, [group], role=name, namespace=SELF_HOSTED_NAMESPACE),
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data},
    ]


def _group_of(token_id: str) -> str:
    return f"{BOOTSTRAPPERS}:control-plane:{token_id}"


def _owner(secret: Object) -> Object:
    metadata = secret["metadata"]
    return {"apiVersion": "v1", "kind": "Secret", "name": metadata["name"], "uid": metadata["uid"]}


def _address(node: Object) -> str:
    return next(str(each["address"]) for each in node["status"]["addresses"] if each["type"] == "InternalIP")


@click.command()
@click.option("--config", type=_FILE, required=True, help="File of `gardener shoot token create`.")
@_OUTPUT
def join(config: Path, output: str) -> None:
    """Let this machine join a self-hosted Shoot.

    Run it as root on the machine. If it is interrupted, run it again: it continues where it was.
    """
    must_be_machine()
    try:
        given = JoinFile.model_validate_json(config.read_text())
    except ValidationError:
        raise click.ClickException(f"{config} is no file of gardener shoot token create") from None
    machine = this_machine()
    if machine.node != given.node:
        raise click.ClickException(f"{config} is for machine {given.node}, and this is {machine.node}")
    STATE.mkdir(parents=True, exist_ok=True, mode=0o700)
    if given.keys is None:
        if (STATE / SECRETS).exists():
            raise click.ClickException("this machine has a control plane, and so it is in a cluster already")
        task = JoinTask(join=given, address=machine.address)
        run_on_machine(lambda tell: run_join(STATE, task, tell), output, f"node {given.node} has joined")
        return
    if not FileSecrets(STATE / SECRETS).has(control_plane.CA):
        try:
            sealed = asyncio.run(_fetched(given, given.keys.secret))
            take(STATE, given.shoot, b64decode(given.keys.key), sealed)
        except (ApiError, CannotOpen, TooLarge, ValueError) as error:
            raise click.ClickException(f"no keys of the control plane: {error}") from None
    elif SelfHostedManifest.model_validate_json((STATE / MANIFEST).read_text()) != given.shoot:
        raise click.ClickException(f"this machine has the control plane of another manifest, see {STATE / MANIFEST}")
    init_machine(InitTask(directory=STATE, shoot=given.shoot, machine=machine), output)


async def _fetched(given: JoinFile, name: str) -> str:
    """The encrypted keys, read with the token."""
    document: dict[str, Any] = json.loads(
        kubeconfig(f"https://{given.address}", given.ca.encode(), {"token": given.token})
    )
    document["clusters"][0]["cluster"]["tls-server-name"] = given.shoot.host
    async with KubeClient.from_kubeconfig(document) as client:
        found = await client.get(SECRET, name, SELF_HOSTED_NAMESPACE)
    return base64.b64decode(found["data"][_KEY]).decode()

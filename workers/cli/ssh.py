"""``gardener shoot ssh``: a shell, or one command, on a node of a Shoot, through a Bastion of its own.

Each call makes a Bastion with a key pair of its own, and deletes it at the end. Private keys are in files of a
directory that only the caller reads. OpenSSH connects; its configuration, with the names of the files, is in the same
directory.
"""

import asyncio
import contextlib
import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from api import constants, resources
from api.decisions import ssh as access
from api.decisions.conditions import find_condition
from api.errors import ErrorCode
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import ApiError, Forbidden, NotFound
from workers.cli import completion
from workers.cli.connection import garden_client
from workers.cli.kubeconfig import requested_kubeconfig

USER = "gardener"
"""User on bastions and on nodes."""
_KEEPALIVE_SECONDS = 600.0
"""A Bastion expires an hour after its last keepalive."""
_READY_SECONDS = 15 * 60.0
"""As long as Gardener waits for an extension's Bastion. Source: spec/extensions.md 2."""
_LOGIN_SECONDS = 120.0
_BETWEEN_LOGINS_SECONDS = 1.0
_VIEWER_SECONDS = 600
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9.-]{1,253}")
_FINAL = frozenset(each for each in ErrorCode if not each.retryable)
_ALIAS = "bastion"
"""Name of the bastion in the configuration of OpenSSH."""


@dataclass(frozen=True)
class Node:
    """A node, and the address at which the bastion reaches it."""

    name: str
    address: str


class _WithCommand(click.Command):
    """Command whose arguments after ``--`` are a command for the node."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["remote"] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _network(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[str]:
    try:
        return [str(ipaddress.ip_network(each, strict=False)) for each in values]
    except ValueError as error:
        raise click.BadParameter(f"{error}; for example 203.0.113.7/32") from None


@click.command(cls=_WithCommand)
@click.argument("shoot", metavar="NAME", shell_complete=completion.SHOOTS)
@click.argument("node", required=False, shell_complete=completion.NODES)
@click.option("-n", "--namespace", help="Namespace of the Project; or give NAMESPACE/NAME.")
@click.option(
    "--cidr", "cidrs", multiple=True, callback=_network,
    help="Network from which the Bastion is reached; several are possible. Default: the address with which this "
    "machine reaches the garden. Behind NAT, say your public address.",
)  # fmt: skip
@click.option("--keep-bastion", is_flag=True, help="Leave the Bastion and its keys at the end.")
@click.option("--garden-kubeconfig", help="Kubeconfig of the garden; default: the landscape's.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="json: only make the Bastion, leave it with its keys, and print how to log in.",
)  # fmt: skip
@click.pass_context
def ssh(
    context: click.Context,
    shoot: str,
    node: str | None,
    namespace: str | None,
    cidrs: Sequence[str],
    keep_bastion: bool,
    garden_kubeconfig: str | None,
    output: str,
) -> None:
    """Log in to a node of the Shoot NAME by SSH, or run COMMAND there.

    NODE is a node's name or address, which is taken as it is; a Shoot with one node needs none. The command makes a
    Bastion, waits until it is ready, and deletes it at the end. Its exit status is that of ssh.

    Host keys: neither the garden nor the cloud names those of the Bastion and of the nodes. The first key of each host
    is accepted, into a file that only this call uses; ssh refuses another key of the same host until its end.
    """
    place = _place(shoot, namespace)
    remote: list[str] = context.meta["remote"]
    if output == "json" and remote:
        raise click.UsageError("-o json only makes the Bastion: it runs no command")
    if shutil.which("ssh") is None:
        raise click.ClickException("ssh is missing: install OpenSSH's client (Debian: openssh-client)")
    session = _Session(place, node, tuple(cidrs), remote, only_make=output == "json", keep=keep_bastion)
    try:
        status = asyncio.run(session.run(garden_kubeconfig))
    except ApiError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(status)


def _place(shoot: str, namespace: str | None) -> tuple[str, str]:
    before, slash, name = shoot.rpartition("/")
    if slash and namespace and before != namespace:
        raise click.UsageError(f"{shoot} is not in namespace {namespace}")
    found = before or namespace
    if not found or not name or "/" in found:
        raise click.UsageError(f"{shoot!r} is in no namespace: give -n NAMESPACE, or NAMESPACE/NAME")
    return found, name


class _Session:
    """One call of the command."""

    def __init__(
        self,
        shoot: tuple[str, str],
        node: str | None,
        cidrs: tuple[str, ...],
        remote: Sequence[str],
        *,
        only_make: bool,
        keep: bool,
    ) -> None:
        self._namespace, self._shoot = shoot
        self._node, self._cidrs, self._remote = node, cidrs, remote
        self._only_make = only_make
        self._keep = keep or only_make

    async def run(self, path: str | None) -> int:
        """Exit status of ssh; after SIGTERM or SIGHUP, that of a program which the signal has ended."""
        with _cancelled_by_signals() as received:
            try:
                async with garden_client(path) as garden:
                    return await self._run(garden)
            except asyncio.CancelledError:
                if not received:
                    raise
                return 128 + received[0]

    async def _run(self, garden: KubeClient) -> int:
        await self._check_shoot(garden)
        keys = await self._node_keys(garden)
        nodes = await self._nodes(garden)
        cidrs = self._cidrs or [f"{each}/{each.max_prefixlen}" for each in own_addresses(garden)]
        async with self._bastion(garden, cidrs) as (bastion, own_key):
            with self._directory() as directory:
                config = _write_files(directory, bastion, own_key, keys, nodes)
                await _log_in(config, cidrs)
                if self._only_make:
                    click.echo(json.dumps(_report(bastion, directory, nodes), indent=2))
                    return 0
                return await self._ssh(garden, bastion, config, nodes[0])

    async def _check_shoot(self, garden: KubeClient) -> None:
        """Raise ClickException for a Shoot whose nodes cannot be reached by SSH."""
        where = f"Shoot {self._namespace}/{self._shoot}"
        try:
            shoot = await garden.get(resources.SHOOT, self._shoot, self._namespace)
        except NotFound:
            raise click.ClickException(f"{where} does not exist") from None
        spec, status = shoot["spec"], shoot.get("status") or {}
        if not spec["provider"].get("workers"):
            raise click.ClickException(f"{where} has no worker pools, so it has no nodes")
        if not access.has_access(shoot):
            raise click.ClickException(
                f"{where} has SSH access switched off: spec.provider.workersSettings.sshAccess.enabled is false"
            )
        if status.get("hibernated") or (spec.get("hibernation") or {}).get("enabled"):
            raise click.ClickException(f"{where} is hibernated, so it has no nodes: wake it up first")
        if "deletionTimestamp" in shoot["metadata"]:
            raise click.ClickException(f"{where} is being deleted, so it gets no Bastion")

    async def _node_keys(self, garden: KubeClient) -> list[str]:
        """Private keys that nodes accept: the present one, and the one before it while nodes change to the present."""
        found = []
        for name in (f"{self._shoot}.ssh-keypair", f"{self._shoot}.ssh-keypair.old"):
            where = f"Secret {self._namespace}/{name}"
            try:
                secret = await garden.find(resources.SECRET, name, self._namespace)
            except Forbidden:
                raise click.ClickException(
                    f"you may not read {where}, which holds the key of the nodes: a Project's admins may, its viewers "
                    "may not"
                ) from None
            if secret is not None:
                found.append(b64decode(secret["data"]["id_rsa"]).decode())
        if not found:
            raise click.ClickException(
                f"Secret {self._namespace}/{self._shoot}.ssh-keypair does not exist: is the Shoot created already?"
            )
        return found

    async def _nodes(self, garden: KubeClient) -> list[Node]:
        """The node that is meant, or all of them if the Bastion is only made and no node is named."""
        with contextlib.suppress(ValueError):
            if self._node is not None:
                address = str(ipaddress.ip_address(self._node))
                return [Node(address, address)]
        config, _ = await requested_kubeconfig(
            garden, self._namespace, self._shoot, expiration=_VIEWER_SECONDS, viewer=True
        )
        async with KubeClient.from_kubeconfig(config) as cluster:
            found = [node for each in await cluster.list(resources.NODE) if (node := _usable(each)) is not None]
        names = ", ".join(each.name for each in found) or "none"
        where = f"Shoot {self._namespace}/{self._shoot}"
        if self._node is not None:
            meant = [each for each in found if each.name == self._node]
            if not meant:
                raise click.ClickException(f"{where} has no node {self._node}; its nodes: {names}")
            return meant
        if not found:
            raise click.ClickException(f"{where} has no nodes with an address")
        if len(found) > 1 and not self._only_make:
            raise click.ClickException(f"{where} has {len(found)} nodes: name one of {names}")
        return found

    @contextlib.asynccontextmanager
    async def _bastion(self, garden: KubeClient, cidrs: Sequence[str]) -> AsyncIterator[tuple[Object, str]]:
        """A Bastion that is ready, and its private key. It is deleted at the end, unless it is to stay."""
        private, public = new_key_pair()
        name, namespace = f"cli-{secrets.token_hex(4)}", self._namespace
        manifest = {
            "apiVersion": resources.OPERATIONS_BASTION.api_version,
            "kind": resources.OPERATIONS_BASTION.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "shootRef": {"name": self._shoot},
                "sshPublicKey": public,
                "ingress": [{"ipBlock": {"cidr": each}} for each in cidrs],
            },
        }
        stays = False
        try:
            await garden.create(manifest)
            _say(f"Bastion {namespace}/{name} lets in {', '.join(cidrs)}")
            ready = await _until_ready(garden, name, namespace)
            yield ready, private
            stays = self._keep
        finally:
            # The API server may have created it, also if its answer did not arrive.
            if not stays:
                await _delete(garden, name, namespace)
        if stays:
            _say(
                f"Bastion {namespace}/{name} stays until {ready['status'].get('expirationTimestamp')}; annotate it "
                f"with {constants.OPERATION}={constants.OPERATION_KEEPALIVE} for another hour, or delete it"
            )

    @contextlib.contextmanager
    def _directory(self) -> Iterator[Path]:
        """A directory that only the caller reads; it is removed at the end, unless the Bastion stays."""
        directory = Path(tempfile.mkdtemp(prefix="gardener-ssh-"))
        stays = False
        try:
            yield directory
            stays = self._keep
        finally:
            if not stays:
                shutil.rmtree(directory)
        if stays:
            _say(f"keys and configuration of ssh stay in {directory}: remove it with the Bastion")

    async def _ssh(self, garden: KubeClient, bastion: Object, config: Path, node: Node) -> int:
        keeping = asyncio.create_task(_keep_alive(garden, bastion))
        process = await asyncio.create_subprocess_exec("ssh", "-F", str(config), "--", node.name, *self._remote)
        try:
            status = await process.wait()
        finally:
            keeping.cancel()
            if process.returncode is None:
                process.terminate()
                await process.wait()
        return status if status >= 0 else 128 - status


def _usable(node: Object) -> Node | None:
    """A node with an address. The cluster's owner writes both, and they become lines of a file that ssh obeys."""
    name = str(node["metadata"]["name"])
    for each in (node.get("status") or {}).get("addresses") or []:
        with contextlib.suppress(ValueError):
            if each.get("type") == "InternalIP" and _HOST_NAME.fullmatch(name) and name != _ALIAS:
                return Node(name, str(ipaddress.ip_address(each["address"])))
    return None


def own_addresses(garden: KubeClient) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Addresses with which this machine reaches the garden. Raises ClickException if the garden is on this machine."""
    url = urlsplit(garden.endpoint.server)
    found = []
    for family, kind, protocol, _, address in socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM):
        # A datagram socket sends nothing when it connects: the kernel only chooses the route.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found.append(ipaddress.ip_address(probe.getsockname()[0]))
    usable = [each for each in dict.fromkeys(found) if not each.is_loopback and not each.is_link_local]
    if not usable:
        raise click.ClickException(
            f"the address from which you reach the cloud is not known: {garden.endpoint.server} is on this machine; "
            "say it by --cidr"
        )
    return usable


def new_key_pair() -> tuple[str, str]:
    """Private key in OpenSSH's format, and public key as a line of ``authorized_keys``."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


async def _delete(garden: KubeClient, name: str, namespace: str) -> None:
    """Request the deletion. A failure is only told: the Bastion expires, and the first failure is to be seen."""
    try:
        await garden.delete(resources.OPERATIONS_BASTION, name, namespace)
    except ApiError as error:
        _say(f"Bastion {namespace}/{name} was not deleted, it expires within an hour: {error}")


async def _until_ready(garden: KubeClient, name: str, namespace: str) -> Object:
    """The Bastion when it is ready. Raises ClickException if it is deleted before, or is not ready in time."""
    said = ""
    seen = False

    def ready(found: Object | None) -> Object | None:
        nonlocal said, seen
        if found is None:
            if seen:
                raise click.ClickException(f"Bastion {namespace}/{name} was deleted: an Event of it may say why")
            return None
        seen = True
        condition = find_condition(found, constants.CONDITION_BASTION_READY)
        if (text := condition.get("message", "")) and text != said:
            _say(f"{condition['type']} {condition['status']}: {text}")
            said = text
        if any(each in _FINAL for each in condition.get("codes") or []):
            raise click.ClickException(f"Bastion {namespace}/{name} cannot be made: {text}")
        return found if condition.get("status") == "True" else None

    async with Cache(garden, resources.OPERATIONS_BASTION, namespace, fields=f"metadata.name={name}") as cache:
        try:
            return await cache.wait_for(name, namespace, ready, _READY_SECONDS)
        except TimeoutError:
            raise click.ClickException(
                f"Bastion {namespace}/{name} is not ready after {_READY_SECONDS / 60:.0f} minutes: "
                f"{said or 'its seed has reported nothing'}"
            ) from None


async def _keep_alive(garden: KubeClient, bastion: Object) -> None:
    """Prolong the Bastion's life until cancelled."""
    metadata = bastion["metadata"]
    change = {"metadata": {"annotations": {constants.OPERATION: constants.OPERATION_KEEPALIVE}}}
    while True:
        await asyncio.sleep(_KEEPALIVE_SECONDS)
        # A garden that does not answer now will at one of the next times, before the Bastion expires.
        with contextlib.suppress(ApiError):
            await garden.patch(resources.OPERATIONS_BASTION, metadata["name"], metadata["namespace"], change)


def _write_files(
    directory: Path, bastion: Object, own_key: str, node_keys: Sequence[str], nodes: Sequence[Node]
) -> Path:
    """Write private keys and the configuration of ssh; returns the configuration."""
    config = directory / "config"
    # Not ProxyJump, which does not quote the path of the configuration.
    proxy = f"ssh -F {shlex.quote(str(config)).replace('%', '%%')} -W [%h]:%p {_ALIAS}"
    own = _write(directory / "bastion.key", own_key)
    others = [_write(directory / f"node-{number}.key", key) for number, key in enumerate(node_keys)]
    lines = [f"Host {_ALIAS}", f"  HostName {_address_of(bastion)}", f"  IdentityFile {_quoted(own)}"]
    for node in nodes:
        lines += [f"Host {node.name}", f"  HostName {node.address}", f"  ProxyCommand {proxy}"]
        lines += [f"  IdentityFile {_quoted(each)}" for each in others]
    lines += [
        "Host *",
        f"  User {USER}",
        "  IdentitiesOnly yes",
        "  IdentityAgent none",
        f"  UserKnownHostsFile {_quoted(directory / 'known_hosts')}",
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking accept-new",
        "  ConnectTimeout 30",
        "  ServerAliveInterval 30",
        "  LogLevel ERROR",
    ]
    return _write(config, "\n".join(lines) + "\n")


def _address_of(bastion: Object) -> str:
    """Address of the host. An extension writes it, and it becomes a line of a file that ssh obeys."""
    ingress = (bastion.get("status") or {}).get("ingress") or {}
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(ingress.get("ip") or ""))
    if _HOST_NAME.fullmatch(hostname := ingress.get("hostname") or ""):
        return str(hostname)
    metadata = bastion["metadata"]
    raise click.ClickException(
        f"Bastion {metadata['namespace']}/{metadata['name']} is ready, but has no usable address"
    )


def _write(path: Path, content: str) -> Path:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    return path


def _quoted(path: Path) -> str:
    """A path in the configuration of ssh, which replaces ``%`` sequences."""
    return '"' + str(path).replace("%", "%%") + '"'


async def _log_in(config: Path, cidrs: Sequence[str]) -> None:
    """Wait until the bastion accepts our key: a host may answer before its user exists."""
    deadline = asyncio.get_running_loop().time() + _LOGIN_SECONDS
    while True:
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", str(config), "-o", "BatchMode=yes", _ALIAS, "true"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, error = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode == 0:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise click.ClickException(
                f"the Bastion does not let us in: {error.decode(errors='replace').strip()}; it is open to "
                f"{', '.join(cidrs)}: if that is not your address as the cloud sees it, say yours by --cidr"
            )
        await asyncio.sleep(_BETWEEN_LOGINS_SECONDS)


def _report(bastion: Object, directory: Path, nodes: Sequence[Node]) -> Mapping[str, Any]:
    metadata, status = bastion["metadata"], bastion["status"]
    config = str(directory / "config")
    return {
        "bastion": {
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            **status["ingress"],
            "expires": status.get("expirationTimestamp"),
        },
        "directory": str(directory),
        "nodes": [
            {"name": each.name, "address": each.address, "command": ["ssh", "-F", config, each.name]} for each in nodes
        ],
    }


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does: it deletes the Bastion and its keys first.

    Yields the signals that were received.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may handle signals
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    for each in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(each, end, each)
    try:
        yield received
    finally:
        for each in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(each)


def _say(text: str) -> None:
    click.echo(text, err=True)

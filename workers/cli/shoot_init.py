"""``gardener shoot init``: make this machine the control plane of a self-hosted Shoot."""

import asyncio
import base64
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import yaml
from temporalio.client import WorkflowFailureError

from activities.self_hosted import control_plane
from activities.self_hosted.init import SelfHostedActivities, ends_soon
from api.contracts.self_hosted import (
    BACKUP_CREDENTIALS,
    CREDENTIALS,
    DNS_CREDENTIALS,
    KUBECONFIG,
    MANIFEST,
    PROFILE,
    RECOVERY_KEY,
    RENEWING,
    SECRETS,
    UID,
    InitTask,
    InvalidManifest,
    Machine,
    SelfHostedManifest,
)
from kube.errors import ApiError
from workers.cli.narrator import Narrator
from workers.node_agent.init import write_private
from workers.node_agent.system import System
from workers.self_hosted.process import TEMPORAL, AlreadyRuns, Tell, run_init, run_renewal

STATE = Path("/var/lib/gardener-self-hosted")
_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--config", type=_FILE, required=True, help="Manifest of the Shoot, with controlPlane in its only pool.")
@click.option("--credentials", type=_FILE, help="Kubeconfig for the cloud in which the exposure is made.")
@click.option("--cloud-profile", type=_FILE, help="Manifest of the CloudProfile of this cloud.")
@click.option("--backup-credentials", type=_FILE, help="Manifest of the Secret that controlPlane.backup names.")
@click.option("--recovery-key", type=_FILE, help="Key of `gardener keys create`, which a restore needs again.")
@click.option("--dns-credentials", type=_FILE, help="Manifest of the Secret that dns.providers names.")
@_OUTPUT
def init(
    config: Path,
    credentials: Path | None,
    cloud_profile: Path | None,
    backup_credentials: Path | None,
    recovery_key: Path | None,
    dns_credentials: Path | None,
    output: str,
) -> None:
    """Make this machine the control plane of a self-hosted Shoot.

    Run it as root on the machine. If it is interrupted, run it again: it continues where it was.
    """
    must_be_machine()
    try:
        shoot = SelfHostedManifest.read(yaml.safe_load(config.read_text()))
    except (InvalidManifest, yaml.YAMLError) as error:
        raise click.ClickException(f"{config}: {error}") from None
    STATE.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keep(shoot)
    exposure = shoot.control_plane.exposure
    if exposure and exposure.extension:
        if credentials is None or cloud_profile is None:
            raise click.UsageError("an exposure needs --credentials and --cloud-profile")
        write_private(STATE / CREDENTIALS, credentials.read_bytes())
        write_private(STATE / PROFILE, cloud_profile.read_bytes())
    if backup := shoot.control_plane.backup:
        if backup_credentials is None or recovery_key is None:
            raise click.UsageError("a backup needs --backup-credentials and --recovery-key")
        wanted = backup.credentials_ref
        data = _secret(backup_credentials, wanted.namespace, wanted.name)
        if backup.region:
            data["region"] = backup.region
        write_private(STATE / BACKUP_CREDENTIALS, json.dumps(data).encode())
        write_private(STATE / RECOVERY_KEY, recovery_key.read_bytes())
    for provider in shoot.spec.dns.providers:
        if dns_credentials is None:
            raise click.UsageError("a DNS record needs --dns-credentials")
        data = _secret(dns_credentials, shoot.metadata.namespace, provider.credentials_ref.name)
        write_private(STATE / DNS_CREDENTIALS, json.dumps(data).encode())
    if not (STATE / UID).exists():
        write_private(STATE / UID, str(uuid.uuid4()).encode())
    task = InitTask(directory=STATE, shoot=shoot, machine=this_machine())
    init_machine(task, output)


def init_machine(task: InitTask, output: str) -> None:
    """Make the control plane of this machine."""
    said = f"the control plane runs; the administrator's kubeconfig is {STATE / KUBECONFIG}"
    run_on_machine(lambda tell: run_init(task, tell), output, said)


@click.command()
@_OUTPUT
def renew(output: str) -> None:
    """Renew certificates of this machine's control plane that end soon.

    A timer of the machine runs it each day. If it is interrupted, run it again: it continues where it was.
    """
    task = _task_of_machine()
    begun = STATE / RENEWING
    if not begun.exists() and not ends_soon(task):
        Narrator(as_json=output == "json").say("no certificate ends soon", phase="Succeeded")
        return
    begun.touch(mode=0o600)
    run_on_machine(lambda tell: run_renewal(task, tell), output, "the certificates are renewed")
    begun.unlink(missing_ok=True)


@click.command()
@_OUTPUT
def repair(output: str) -> None:
    """Put back network, DNS and other system components of the cluster that were changed or deleted.

    A timer of each machine of the control plane runs it every five minutes.
    """
    task = _task_of_machine()
    try:
        # An init of this machine may run now: it applies the same objects.
        done = asyncio.run(SelfHostedActivities(System(), task).repair_self_hosted_system())
    except ApiError as error:
        raise click.ClickException(str(error)) from None
    said = "the system components are as they should be" if done else "a machine of another version has deployed them"
    Narrator(as_json=output == "json").say(said, phase="Succeeded")


def _task_of_machine() -> InitTask:
    """Raises ClickException if this machine has no control plane."""
    must_be_machine()
    try:
        shoot = SelfHostedManifest.model_validate_json((STATE / MANIFEST).read_text())
        _ = next((STATE / SECRETS / control_plane.CA).iterdir())
    except (OSError, StopIteration):
        raise click.ClickException(f"{STATE} has no manifest and no keys: this machine has no control plane") from None
    return InitTask(directory=STATE, shoot=shoot, machine=this_machine())


def run_on_machine(work: Callable[[Tell], Coroutine[Any, Any, None]], output: str, said: str) -> None:
    """Run a flow of this machine, tell its progress, and ``said`` at its end."""
    narrator = Narrator(as_json=output == "json")

    def tell(step: str, error: str) -> None:
        narrator.say(f"{step}: {error}" if error else step, phase="Retrying" if error else "Running")

    try:
        asyncio.run(work(tell))
    except (AlreadyRuns, WorkflowFailureError) as error:
        cause = error.cause if isinstance(error, WorkflowFailureError) else None
        raise click.ClickException(str(getattr(cause, "cause", None) or cause or error)) from None
    narrator.say(said, phase="Succeeded")


def must_be_machine() -> None:
    """Raises ClickException unless root calls on a machine whose image has what a flow needs."""
    if os.geteuid() != 0:
        raise click.ClickException("the command writes files of the whole machine: run it as root")
    if shutil.which(TEMPORAL) is None:
        raise click.ClickException(f"{TEMPORAL} does not exist on this machine: use a machine image that has it")


def _keep(shoot: SelfHostedManifest) -> None:
    """Remember the manifest. Raises ClickException if this machine has another one: a running cluster keeps its own."""
    file = STATE / MANIFEST
    if not file.exists():
        write_private(file, shoot.model_dump_json().encode())
    elif SelfHostedManifest.model_validate_json(file.read_text()) != shoot:
        raise click.ClickException(f"this machine has the control plane of another manifest, see {file}: use that one")


def _secret(file: Path, namespace: str, name: str) -> dict[str, str]:
    """Data of the Secret in a file. Raises ClickException unless it has these names; the text quotes no data."""
    try:
        found = yaml.safe_load(file.read_text())
        named = (found["kind"], found["metadata"]["namespace"], found["metadata"]["name"])
        data = {key: base64.b64decode(value, validate=True).decode() for key, value in found["data"].items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError):
        raise click.ClickException(f"{file} is no manifest of a Secret with data") from None
    if named != ("Secret", namespace, name):
        raise click.ClickException(f"{file} is not Secret {namespace}/{name}, which the manifest names")
    return data


def this_machine() -> Machine:
    """Name and address of this machine. The address is that by which it reaches others; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.connect(("192.0.2.1", 9))
        return Machine(node=socket.gethostname(), address=str(opened.getsockname()[0]))

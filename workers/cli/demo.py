"""``gardener demo``: bring up a landscape and a cluster, and show them."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import yaml

from api import resources
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import NotFound
from workers.cli.connection import landscape_facts
from workers.cli.kubeconfig import requested_kubeconfig

EXAMPLE = Path(__file__).parents[2] / "examples/shoot.yaml"
_CREATION_SECONDS = 15 * 60


@click.command()
@click.option("--name", default="default", show_default=True, help="Landscape to use; brought up if it is not.")
@click.option("--kubeconfig", "kubeconfig_path", default="shoot.kubeconfig", show_default=True, type=click.Path())
def demo(name: str, kubeconfig_path: str) -> None:
    """Bring up the landscape and a first cluster, and show them.

    Run again, it finds what is there and only shows it.
    """
    started = time.monotonic()
    os.environ["GARDENER_LANDSCAPE"] = name  # for code that reads the landscape's facts, for example its DNS server
    command = [sys.argv[0], "landscape", "up", "--name", name]
    if subprocess.run(command, check=False).returncode:
        raise click.ClickException("the landscape did not come up; see above")
    click.echo(f"landscape up after {time.monotonic() - started:.1f} s\n")
    facts = landscape_facts(name)
    manifest = yaml.safe_load(EXAMPLE.read_text())
    config = asyncio.run(_order(Path(facts["clusters"]["garden"]["kubeconfig"]), manifest))
    _show(facts, manifest["metadata"], config, Path(kubeconfig_path))
    click.echo(f"\nall of it in {time.monotonic() - started:.1f} s")


async def _order(garden_kubeconfig: Path, manifest: dict[str, Any]) -> dict[str, object]:
    """Apply the Shoot and follow its creation; returns an administrator's kubeconfig."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    garden = KubeClient.from_kubeconfig(garden_kubeconfig)
    caches = Caches(garden)
    try:
        await garden.apply(manifest, manager="gardener-demo")
        await _follow(caches, namespace, name)
        config, _ = await requested_kubeconfig(garden, namespace, name, expiration=24 * 3600)
    finally:
        await caches.close()
        await garden.close()
    return config


def _show(facts: dict[str, Any], shoot: dict[str, str], config: dict[str, object], kubeconfig_path: Path) -> None:
    kubeconfig_path.touch(mode=0o600)
    kubeconfig_path.chmod(0o600)  # touch does not change the mode of an existing file
    kubeconfig_path.write_text(yaml.safe_dump(config, sort_keys=False))
    kubectl = [str(Path(sys.argv[0]).parent / "kubectl"), f"--kubeconfig={kubeconfig_path}"]
    for what in (["get", "nodes", "-o", "wide"], ["get", "pods", "--all-namespaces"]):
        click.echo(f"$ kubectl --kubeconfig={kubeconfig_path} {' '.join(what)}")
        subprocess.run([*kubectl, *what], check=True)
        click.echo()
    garden = facts["clusters"]["garden"]["kubeconfig"]
    click.echo(f"$ kubectl --kubeconfig={garden} get controllerinstallations")
    subprocess.run([kubectl[0], f"--kubeconfig={garden}", "get", "controllerinstallations"], check=True)
    click.echo()
    click.echo(f"Temporal UI: {facts['temporal']['ui']}")
    click.echo(f"the flow:    gardener flow show {shoot['namespace']}/{shoot['name']}")
    click.echo(f"the garden:  kubectl --kubeconfig={garden} get shoots -A")


async def _follow(caches: Caches, namespace: str, name: str) -> None:
    """Print each phase as the Shoot reports it, until its newest generation has succeeded."""
    started = time.monotonic()
    shown = ""

    def state(shoot: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal shown
        status = (shoot or {}).get("status", {})
        operation = status.get("lastOperation")
        if shoot is None or not operation:
            return None
        line = (
            f"{operation['type']} {operation['state']} {operation.get('progress', 0):3d}%  {operation['description']}"
        )
        if line != shown:
            click.echo(f"{time.monotonic() - started:6.1f} s  {line}")
            shown = line
        observed = status.get("observedGeneration") == shoot["metadata"]["generation"]
        if operation["state"] == "Failed" and observed:
            errors = "\n".join(f"  {each['description']}" for each in status.get("lastErrors", []))
            raise click.ClickException(f"Shoot {namespace}/{name} failed:\n{errors}")
        return shoot if observed and operation["state"] == "Succeeded" else None

    try:
        await caches.of(resources.SHOOT, namespace).wait_for(name, namespace, state, _CREATION_SECONDS)
    except TimeoutError:
        raise click.ClickException(
            f"Shoot {namespace}/{name} does not exist after {_CREATION_SECONDS // 60} min; "
            f"see `gardener flow show {namespace}/{name}`"
        ) from None
    except NotFound as error:
        raise click.ClickException(str(error)) from None

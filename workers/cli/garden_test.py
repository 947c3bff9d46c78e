"""``gardener test``: tests of a garden that the user names, selected by labels."""

import asyncio
import contextlib
import json
import re
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
import yaml

from api import resources
from kube.client import KubeClient
from kube.errors import ApiError, NotFound
from workers.cli.connection import garden_client, own_client
from workers.cli.garden_tests import changes, default, leftovers
from workers.cli.garden_tests.context import RUN_LABEL, Context
from workers.cli.garden_tests.model import GardenTest, Label, TestFailed, garden_test, selected
from workers.cli.garden_tests.runner import Outcome, Result, Runner, junit
from workers.cli.kubeconfig import requested_kubeconfig

TESTS: tuple[GardenTest, ...] = (*default.TESTS, *changes.TESTS)

IMAGE = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1"
_KUBECONFIG_SECONDS = 4 * 3600
_CREATION_SECONDS = 3600.0
_INTERRUPTED, _TERMINATED = 130, 143


def _labels(_: click.Context, __: click.Parameter, value: str) -> list[Label]:
    try:
        return [Label(each.strip()) for each in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of labels; there are {', '.join(Label)}") from None


def _run_id(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[0-9a-f]{8}", value):
        raise click.BadParameter(f"{value!r} is no id of a run; the run prints its id first, for example 3f9a01c2")
    return value


@dataclass(frozen=True)
class _Order:
    """Options of the command."""

    project: str
    garden: str | None
    seed: str | None
    shoot: str | None
    manifest: dict[str, Any] | None
    tests: Sequence[GardenTest]
    image: str
    dumps: Path
    keep: bool
    run: str
    quiet: bool
    """Standard output is for the results alone."""

    def say(self, text: str) -> None:
        click.echo(text, err=self.quiet)

    def begin(self, test: GardenTest) -> None:
        """Show which test runs, on a terminal alone; its result replaces the line."""
        if (sys.stderr if self.quiet else sys.stdout).isatty():
            click.echo(f"{'':8}    running  {test.name}\r", err=self.quiet, nl=False)


@click.command("test")
@click.option("--garden", "--garden-kubeconfig", "garden", help="Kubeconfig of the garden; default: the landscape's.")
@click.option("--project", help="Name of the Project that the tests use.")
@click.option("--labels", default="default", show_default=True, callback=_labels, help=f"Some of {', '.join(Label)}.")
@click.option("--shoot", help="Name of a Shoot that is there; it stays.")
@click.option("-f", "--filename", "file", type=click.File("rb"), help="Shoot to create, and to delete at the end.")
@click.option("--seed", help="Kubeconfig of the Shoot's seed, for dumps and for the loss of a machine.")
@click.option("--image", default=IMAGE, show_default=True, help="Image of test pods, with sh, and getent or nslookup.")
@click.option(
    "--dump",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the dumps; default: the present one.",
)
@click.option("--junit", "xml", type=click.File("w", lazy=False), help="File for the results as XML.")
@click.option("--keep", is_flag=True, help="Leave all that the run has created; remove it later by --cleanup.")
@click.option(
    "--cleanup", metavar="RUN", callback=_run_id, help="Run no tests: remove what the run with this id has left."
)
@click.option("--list", "only_list", is_flag=True, help="Run no tests: list those that the labels select.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def test(
    garden: str | None,
    project: str | None,
    labels: list[Label],
    shoot: str | None,
    file: Any,
    seed: str | None,
    image: str,
    dump: Path | None,
    xml: TextIO | None,
    keep: bool,
    cleanup: str | None,
    only_list: bool,
    output: str,
) -> None:
    """Test a garden by its public API, with a Shoot of a Project.

    Level default < beta < release: each includes the levels before it. Tests with serial or disruptive run only if you
    ask for these labels, too. Ends with status 1 if a test fails, and then names a directory with the state of all
    clusters, without credentials. Ctrl-C ends the run and removes what it has created.
    """
    tests = selected(TESTS, labels)
    if only_list:
        click.echo(json.dumps([each.name for each in tests]) if output == "json" else "\n".join(map(str, tests)))
        return
    if not project:
        raise click.UsageError("name the Project whose namespace the tests use: --project")
    run = cleanup or secrets.token_hex(4)
    as_json = output == "json"
    if cleanup is None and (shoot is None) == (file is None):
        raise click.UsageError("name a Shoot that is there by --shoot, or one to create by --filename")
    order = _Order(
        project=project,
        garden=garden,
        seed=seed,
        shoot=shoot,
        manifest=_manifest(file) if file is not None else None,
        tests=tests,
        image=image,
        dumps=(dump or Path()) / f"gardener-test-{run}",
        keep=keep,
        run=run,
        quiet=as_json,
    )
    results: list[Result] = []
    status = 0
    try:
        if cleanup is not None:
            asyncio.run(_clean_up(order))
            return
        asyncio.run(_run(order, results))
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except asyncio.CancelledError:
        status = _TERMINATED
    except (ApiError, TestFailed) as error:
        raise click.ClickException(str(error)) from None
    if status:
        order.say(f"interrupted; if something is left: gardener test --project {project} --cleanup {run}")
    failed = any(each.outcome is Outcome.FAILED for each in results)
    if xml is not None:
        xml.write(junit(results, f"gardener test {run}"))
    if as_json:
        tests_shown = [each.model_dump(mode="json") for each in results]
        click.echo(json.dumps({"run": run, "interrupted": bool(status), "tests": tests_shown}, indent=2))
    else:
        counts = {outcome: sum(each.outcome is outcome for each in results) for outcome in Outcome}
        click.echo(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    raise SystemExit(status or int(failed))


def _manifest(file: Any) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise click.ClickException(f"{file.name} is no YAML: {error}") from None
    if not isinstance(found, dict) or found.get("kind") != "Shoot" or not (found.get("metadata") or {}).get("name"):
        raise click.ClickException(f"{file.name} holds no Shoot with a name, or more than one object")
    return found


async def _project_namespace(garden: KubeClient, project: str) -> str:
    try:
        namespace = (await garden.get(resources.PROJECT, project))["spec"].get("namespace")
    except NotFound:
        raise click.ClickException(f"Project {project} does not exist, or you are not a member of it") from None
    if not namespace:
        raise click.ClickException(f"Project {project} has no namespace yet")
    return str(namespace)


async def _shoot_client(garden: KubeClient, namespace: str, name: str) -> KubeClient:
    """Client of a Shoot's API server. Raises ApiError, or TestFailed if its name is not in the DNS, for example."""
    try:
        config, _ = await requested_kubeconfig(garden, namespace, name, expiration=_KUBECONFIG_SECONDS)
    except click.ClickException as error:
        raise TestFailed(error.message) from None
    return KubeClient.from_kubeconfig(config)


async def _clean_up(order: _Order) -> None:
    async with garden_client(order.garden) as garden:
        namespace = await _project_namespace(garden, order.project)
        removed, faults = await leftovers.remove(
            garden, namespace, order.run, lambda name: _shoot_client(garden, namespace, name)
        )
    if order.quiet:
        click.echo(json.dumps({"run": order.run, "removed": removed, "faults": faults}, indent=2))
    else:
        click.echo("\n".join(f"removed {each}" for each in removed) or f"nothing is left of run {order.run}")
    if faults:
        raise click.ClickException("; ".join(faults))


async def _run(order: _Order, results: list[Result]) -> None:
    """Run the tests, and remove what they have created, also after an interruption. Fills ``results``."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with contextlib.AsyncExitStack() as stack:
        garden = await stack.enter_async_context(garden_client(order.garden))
        seed = None
        if order.seed:
            seed = await stack.enter_async_context(own_client(order.seed))
        namespace = await _project_namespace(garden, order.project)
        name = order.shoot or (order.manifest or {})["metadata"]["name"]

        async def open_shoot(shoot: str) -> KubeClient:
            return await _shoot_client(garden, namespace, shoot)

        context = Context(
            garden=garden,
            namespace=namespace,
            shoot=name,
            run=order.run,
            image=order.image,
            open_cluster=lambda: open_shoot(name),
            seed=seed,
        )
        stack.push_async_callback(context.close)
        order.say(f"run {order.run}: {len(order.tests)} tests with Shoot {context.reference}")
        runner = Runner(context, order.dumps, lambda each: order.say(_line(each)), order.begin)
        runner.results = results
        removal = _removal(order, open_shoot)
        if order.manifest is None:
            await leftovers.claim(garden, namespace, name, order.run)
        try:
            if order.manifest is not None and await runner.run_one(_creation(order.manifest)) is not Outcome.PASSED:
                for test in order.tests:
                    runner.note(test, Outcome.SKIPPED, "the Shoot was not created")
                return
            await runner.run(order.tests)
        finally:
            if not order.keep:
                await runner.run_one(removal)


def _creation(manifest: dict[str, Any]) -> GardenTest:
    @garden_test("the Shoot is created", Label.DEFAULT, timeout=_CREATION_SECONDS)
    async def create(context: Context) -> None:
        metadata = manifest["metadata"]
        labels = {**(metadata.get("labels") or {}), RUN_LABEL: context.run}
        placed = {**manifest, "metadata": {**metadata, "namespace": context.namespace, "labels": labels}}
        await context.garden.create(placed)
        await context.reconciled()

    return create


def _removal(order: _Order, open_shoot: leftovers.OpenShoot) -> GardenTest:
    @garden_test("all that the run has created is deleted", Label.DEFAULT, timeout=2 * leftovers.DELETION_SECONDS)
    async def remove(context: Context) -> None:
        _, faults = await leftovers.remove(context.garden, context.namespace, order.run, open_shoot)
        if faults:
            raise TestFailed("; ".join(faults))

    return remove


def _line(result: Result) -> str:
    line = f"{result.seconds:8.1f} s  {result.outcome:8s} {result.name}"
    if result.text:
        line += f"\n{'':22}{result.text}"
    if result.dump:
        line += f"\n{'':22}state of the clusters: {result.dump}"
    return line

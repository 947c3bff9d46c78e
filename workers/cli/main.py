"""Entry point of the ``gardener`` command. Subcommands are imported only when they are called."""

import importlib
import os
import sys
import traceback

import click

_COMMANDS = {
    "credentials": ("workers.cli.credentials", "credentials", "Rotate the credentials of a Shoot."),
    "demo": ("workers.cli.demo", "demo", "Bring up the landscape and a first cluster, and show them."),
    "explain-admission": (
        "workers.cli.explain_admission",
        "explain_admission",
        "Say what the garden would make of objects in a file.",
    ),
    "flow": ("workers.cli.flow", "flow", "List, show, explain and repair the flows of Shoots."),
    "garden": ("workers.cli.garden", "garden", "Write what the garden's API server needs to ask admission."),
    "keys": ("workers.cli.keys", "keys", "Make and derive the keys of payloads and ShootStates."),
    "kubeconfig": ("workers.cli.kubeconfig", "kubeconfig", "Print a kubeconfig of a Shoot."),
    "landscape": ("landscape.cli", "landscape", "Run a real cloud on this machine."),
    "project": ("workers.cli.project", "project", "List, add and remove the members of a Project."),
    "seed": ("workers.cli.seed", "seed", "Operate Seeds: their operations, and moves of control planes."),
    "shoot": (
        "workers.cli.shoot",
        "shoot",
        "List, create and move Shoots, and log in to their nodes.",
    ),
    "test": ("workers.cli.garden_test", "test", "Test a garden by its public API, with a Shoot of a Project."),
    "worker": ("workers.cli.worker", "worker", "Run one of our processes."),
}


class _LazyGroup(click.Group):
    """Group that knows its commands by name, and imports only the module of the command that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.command(cls=_LazyGroup)
@click.version_option(package_name="gardener-on-temporal")
def gardener() -> None:
    """Kubernetes clusters as a service, where every operation is a durable workflow."""


def main() -> None:
    """Run the command, and exit without finalizing the interpreter.

    Threads of Temporal's core outlive their client. A thread that returns while the interpreter is being finalized
    aborts the process (exit status 134), about once in ten runs.
    """
    status = 0
    try:
        gardener()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

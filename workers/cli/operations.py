"""Find the operation of a Shoot that a command is about, and the Shoot's lifecycle."""

from typing import Any

import click
from temporalio.client import Client, WorkflowExecution, WorkflowHandle

CHOICE = click.option("--id", "chosen", help="ID of the operation in `flow list`; default: the newest.")


async def operations_of(client: Client, shoot: str) -> list[WorkflowExecution]:
    """Operations of a Shoot, the newest first."""
    found = [each async for each in client.list_workflows(f'GardenerShoot = "{shoot}" AND GardenerOperation != ""')]
    return sorted(found, key=lambda each: each.start_time, reverse=True)


async def running_operations(client: Client) -> list[WorkflowExecution]:
    """Operations of all Shoots that run, the newest first."""
    found = [each async for each in client.list_workflows('GardenerOperation != "" AND ExecutionStatus = "Running"')]
    return sorted(found, key=lambda each: each.start_time, reverse=True)


async def chosen_operation(client: Client, shoot: str, chosen: str | None) -> tuple[str, str]:
    """Workflow id and run id of an operation. ``chosen``: either of the two; None: the newest operation."""
    found = await operations_of(client, shoot)
    if chosen is not None:
        for each in found:
            if chosen in (each.id, each.run_id):
                return each.id, each.run_id
        description = await client.get_workflow_handle(chosen).describe()  # a workflow that is no operation
        return description.id, description.run_id
    if not found:
        raise click.ClickException(
            f"no operation of Shoot {shoot} has been started; `kubectl describe shoot` says what it waits for"
        )
    return found[0].id, found[0].run_id


async def running_lifecycle(client: Client, shoot: str) -> WorkflowHandle[Any, Any] | None:
    """The lifecycle of the Shoot; None if there is none."""
    query = f'GardenerShoot = "{shoot}" AND WorkflowType = "ShootLifecycle" AND ExecutionStatus = "Running"'
    async for each in client.list_workflows(query):
        return client.get_workflow_handle(each.id)
    return None

"""The live Shoot of a reference, never a later Shoot of the same name."""

from temporalio.exceptions import ApplicationError

from api import constants, resources
from api.contracts.operations import ShootRef
from api.names import technical_id
from kube.client import KubeClient, Object


async def find_shoot(garden: KubeClient, shoot: ShootRef) -> Object | None:
    """Read a Shoot; None if it is gone."""
    return the_same(await garden.find(resources.SHOOT, shoot.name, shoot.namespace), shoot)


def the_same(live: Object | None, shoot: ShootRef) -> Object | None:
    """The object that has the Shoot's name, if it also has the Shoot's uid; else None."""
    return live if live is not None and live["metadata"]["uid"] == shoot.uid else None


def staying(live: Object | None) -> Object | None:
    """The Shoot, or None if it is gone or being deleted."""
    return live if live is not None and "deletionTimestamp" not in live["metadata"] else None


async def control_plane_of(garden: KubeClient, shoot: ShootRef) -> str:
    """Technical ID of a Shoot, computed from the names of its Project and of the Shoot.

    ``status.technicalID`` is for people and gardenlets. A decision based on this field would act in any namespace that
    the writer of the status has chosen.

    Raises:
        ApplicationError: ``NoProject`` if no Project has the Shoot's namespace.
    """
    return technical_id(await _project(garden, shoot.namespace), shoot.name)


async def _project(garden: KubeClient, namespace: str) -> str:
    live = await garden.get(resources.NAMESPACE, namespace)
    if name := (live["metadata"].get("labels") or {}).get(constants.PROJECT_NAME):
        named = await garden.find(resources.PROJECT, name)
        if named is not None and named["spec"].get("namespace") == namespace:
            return str(name)
    for project in await garden.list(resources.PROJECT):
        if project["spec"].get("namespace") == namespace:
            return str(project["metadata"]["name"])
    raise ApplicationError(f"namespace {namespace} belongs to no Project: create one", type="NoProject")

"""A Shoot as it is now: the one that a reference means, and none of the same name that came after it."""

from activities.kube.client import KubeClient, Object
from api import resources
from api.operations import ShootRef


async def find_shoot(garden: KubeClient, shoot: ShootRef) -> Object | None:
    """None if it is gone."""
    return the_same(await garden.find(resources.SHOOT, shoot.name, shoot.namespace), shoot)


def the_same(live: Object | None, shoot: ShootRef) -> Object | None:
    """What is found under its name, if that is the Shoot."""
    return live if live is not None and live["metadata"]["uid"] == shoot.uid else None


def staying(live: Object | None) -> Object | None:
    """It, unless it is gone or going."""
    return live if live is not None and "deletionTimestamp" not in live["metadata"] else None

"""Search attributes: the one list that the landscape, the charts and the tests register.

An unknown one stalls a workflow, so nothing outside this list is ever set.
"""

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from api.operations import ShootRef

PROJECT = SearchAttributeKey.for_keyword("GardenerProject")
SHOOT = SearchAttributeKey.for_keyword("GardenerShoot")
SEED = SearchAttributeKey.for_keyword("GardenerSeed")
OPERATION = SearchAttributeKey.for_keyword("GardenerOperation")

ALL: tuple[SearchAttributeKey[str], ...] = (PROJECT, SHOOT, SEED, OPERATION)

_PROJECT_NAMESPACE = "garden-"


def project_of(namespace: str) -> str:
    """Project of a project namespace by its name: ``garden-dev`` is that of project ``dev``."""
    return namespace.removeprefix(_PROJECT_NAMESPACE)


def of_shoot(shoot: ShootRef) -> TypedSearchAttributes:
    """For the lifecycle of a Shoot: to be found by project and by ``namespace/name``."""
    return TypedSearchAttributes([*_shoot(shoot)])


def of_operation(shoot: ShootRef, seed: str, operation: str) -> TypedSearchAttributes:
    """For one operation of a Shoot."""
    return TypedSearchAttributes(
        [*_shoot(shoot), SearchAttributePair(SEED, seed), SearchAttributePair(OPERATION, operation)]
    )


def _shoot(shoot: ShootRef) -> list[SearchAttributePair[str]]:
    return [
        SearchAttributePair(PROJECT, project_of(shoot.namespace)),
        SearchAttributePair(SHOOT, str(shoot)),
    ]

"""Search attributes: the only list, which the landscape, the charts and the tests register.

A search attribute that is not registered stalls a workflow, so workflows set only those of this list.
"""

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from api.contracts.operations import ShootRef

PROJECT = SearchAttributeKey.for_keyword("GardenerProject")
SHOOT = SearchAttributeKey.for_keyword("GardenerShoot")
SEED = SearchAttributeKey.for_keyword("GardenerSeed")
OPERATION = SearchAttributeKey.for_keyword("GardenerOperation")

ALL: tuple[SearchAttributeKey[str], ...] = (PROJECT, SHOOT, SEED, OPERATION)

_PROJECT_NAMESPACE = "garden-"


def project_of(namespace: str) -> str:
    """Name of the project of a namespace: the namespace of project ``dev`` is ``garden-dev``."""
    return namespace.removeprefix(_PROJECT_NAMESPACE)


def of_shoot(shoot: ShootRef) -> TypedSearchAttributes:
    """Search attributes of the lifecycle of a Shoot: project, and ``namespace/name``."""
    return TypedSearchAttributes([*_shoot(shoot)])


def of_operation(shoot: ShootRef, seed: str, operation: str) -> TypedSearchAttributes:
    """Search attributes of one operation of a Shoot."""
    return TypedSearchAttributes(
        [*_shoot(shoot), SearchAttributePair(SEED, seed), SearchAttributePair(OPERATION, operation)]
    )


def of_seed(seed: str) -> TypedSearchAttributes:
    """Search attributes of an operation of a Seed."""
    return TypedSearchAttributes([SearchAttributePair(SEED, seed)])


def _shoot(shoot: ShootRef) -> list[SearchAttributePair[str]]:
    return [
        SearchAttributePair(PROJECT, project_of(shoot.namespace)),
        SearchAttributePair(SHOOT, str(shoot)),
    ]

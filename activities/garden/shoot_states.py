"""Encrypts the ShootState of a moving control plane again, for the destination.

Each seed encrypts ShootStates by its own key and has no key of another seed. The controller-manager derives the keys of
all seeds from the garden's root key.
"""

from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import permanent
from activities.secrets.sealing import CannotOpen, Sealing, sealed_by
from api import compression, resources
from api.contracts.operations import ResealShootState, TaskResult
from api.decisions import shoot_state
from api.errors import ErrorCode
from kube.client import KubeClient
from kube.errors import Conflict

_CONFLICTS = 5
"""Maximum number of attempts to write while a gardenlet writes, too."""


class ShootStateSealingActivities:
    """One instance per controller-manager."""

    def __init__(self, garden: KubeClient, sealing: Callable[[str], Sealing]) -> None:
        """``sealing``: returns the Sealing of a seed, by the seed's name."""
        self._garden = garden
        self._sealing = sealing

    @activity.defn
    async def reseal_shoot_state(self, request: ResealShootState) -> TaskResult:
        """Encrypt each content for the seed that will read it; a second run finds this done.

        The seed that an encrypted content names must be one of ``request.sources``. The gardenlet that wrote the
        content chose that name, so the name counts only if the garden's own records confirm it.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if a content is not encrypted, was changed, or was
                encrypted by another seed.
        """
        shoot = request.shoot
        for _ in range(_CONFLICTS):
            live = await self._garden.find(resources.SHOOT_STATE, shoot.name, shoot.namespace)
            if live is None or any(each["uid"] != shoot.uid for each in live["metadata"].get("ownerReferences") or ()):
                return TaskResult(note="there is no ShootState")
            spec = live.get("spec") or {}
            try:
                resealed = self._resealed(spec, request)
            except (CannotOpen, compression.TooLarge, compression.Damaged) as error:
                raise permanent(
                    ErrorCode.CONFIGURATION_PROBLEM,
                    f"ShootState {shoot} cannot be sealed for seed {request.seed}: {error}. The control plane was in "
                    f"{', '.join(request.sources)}: put back a ShootState that one of these seeds wrote, from a backup "
                    "of the garden, and retry",
                ) from None
            if all(resealed[part] == (spec.get(part) or []) for part in resealed):
                return TaskResult(note=f"it is sealed for {request.seed}")
            version = {"resourceVersion": live["metadata"]["resourceVersion"]}
            try:
                await self._garden.patch(
                    resources.SHOOT_STATE, shoot.name, shoot.namespace, {"metadata": version, "spec": resealed}
                )
            except Conflict:
                continue
            return TaskResult(note=f"sealed again for {request.seed}")
        raise ApplicationError(f"ShootState {shoot} is changed all the time", type="Conflict")

    def _resealed(self, spec: Mapping[str, Any], request: ResealShootState) -> dict[str, Any]:
        target = self._sealing(request.seed)

        def resealed(value: Any, item: str) -> Any:
            if target.is_current(value):
                return value
            seed, opener = sealed_by(value), target
            if seed and seed != request.seed:
                if seed not in request.sources:
                    raise CannotOpen(f"it was sealed by seed {seed[:64]!r}")
                opener = self._sealing(seed)
            return target.seal(opener.open(value, request.shoot, item), request.shoot, item)

        return shoot_state.converted(spec, resealed)

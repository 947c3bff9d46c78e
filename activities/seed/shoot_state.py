"""The ShootState of a Shoot in the garden: the data that another seed needs to restore its control plane.

The source writes it in a migration, and the Shoot's seed also writes it from time to time; only a restore reads it. A
key of the seed encrypts its content. The controller-manager in the garden encrypts it again for the destination.
Source: spec/flows.md 7.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters
from activities.errors import permanent
from activities.secrets.sealing import CannotOpen, Sealing
from activities.seed.extension_kinds import IN_NAMESPACE
from api import compression, constants, resources
from api.contracts.operations import MIGRATIONS, OperationType, ShootRef, ShootTask, TaskResult
from api.decisions import shoot_state
from api.decisions.shoot_state import NotRestorable
from api.errors import ErrorCode
from api.times import micro_timestamp
from kube.errors import NotFound
from kube.objects import owner_reference

MANAGER = "gardenlet"
MIGRATING_FROM = "shoot.gardener.cloud/migrating-from"
"""Annotation with the seed whose migration wrote the ShootState: a second run adds to it and does not replace it."""

KINDS = tuple(each for each in IN_NAMESPACE if each != resources.BASTION)
"""Kinds whose state a ShootState keeps. A Bastion is deleted before its Shoot moves."""


@dataclass(frozen=True)
class ShootStateView:
    """Decrypted content of a ShootState, sorted for its reader."""

    secrets: tuple[Mapping[str, Any], ...] = ()
    """Items of type ``secret``."""
    machine_state: Mapping[str, Any] | None = None
    extensions: tuple[Mapping[str, Any], ...] = ()
    resources: tuple[Mapping[str, Any], ...] = ()

    def extension(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """State of one extension object; None if it has none."""
        return next((each for each in self.extensions if (each["kind"], each.get("name")) == (kind, name)), None)

    def referenced(self, state: Mapping[str, Any], kind: str, name: str) -> list[dict[str, Any]]:
        """Objects that the state of an extension object refers to in its ``resources``.

        Raises ``NotRestorable`` for objects other than the Secrets and ConfigMaps of that extension object.
        """
        found = []
        for reference in (each["resourceRef"] for each in state.get("resources") or ()):
            if shoot_state.is_copied(reference):
                continue
            shoot_state.check_reference(reference, kind, name)
            wanted = (reference["kind"], reference["name"])
            for each in self.resources:
                if (each["kind"], each["name"]) == wanted:
                    found.append(shoot_state.kept_content(each["data"], reference))
        return found


def _bad_content(task: ShootTask, error: Exception) -> ApplicationError:
    return permanent(
        ErrorCode.CONFIGURATION_PROBLEM,
        f"ShootState {task.shoot} cannot be read: its content {error}; find out what wrote it, and restore it from a "
        "backup of the garden",
    )


def not_restorable(task: ShootTask, error: NotRestorable) -> ApplicationError:
    """Failure of a restore whose ShootState holds an object that a seed must not write."""
    return permanent(
        ErrorCode.CONFIGURATION_PROBLEM,
        f"ShootState {task.shoot} is not restored: {error}; find out what wrote it, and remove it from the ShootState",
    )


async def read_shoot_state(clusters: Clusters, task: ShootTask) -> ShootStateView | None:
    """Read and decrypt the ShootState of a Shoot; None if there is none.

    Raises:
        ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if no key of this seed decrypts it, or it is too large.
    """
    live = await clusters.garden.find(resources.SHOOT_STATE, task.shoot.name, task.shoot.namespace)
    if live is None or any(each["uid"] != task.shoot.uid for each in live["metadata"].get("ownerReferences") or ()):
        return None
    try:
        spec = _opened(clusters.sealing, live.get("spec") or {}, task.shoot)
    except CannotOpen as error:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"ShootState {task.shoot} cannot be read in seed {task.seed}: {error}; the garden's task "
            "reseal_shoot_state seals it for this seed: retry from there",
        ) from None
    except (compression.TooLarge, compression.Damaged) as error:
        raise _bad_content(task, error) from None
    gardener = spec["gardener"]
    machines = [each["data"] for each in gardener if each["type"] == shoot_state.MACHINE_STATE]
    return ShootStateView(
        secrets=tuple(each for each in gardener if each["type"] == shoot_state.SECRET),
        machine_state=machines[0] if machines else None,
        extensions=tuple(spec["extensions"]),
        resources=tuple(spec["resources"]),
    )


class ShootStateActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def persist_shootstate(self, task: ShootTask) -> TaskResult:
        """Write the data that the destination needs; a second run of the same migration only adds to them.

        Outside of migrations, nothing is written if nothing has changed: the timestamp is the time of the last change.

        Raises:
            ApplicationError: ``ShootStateTooBig`` (final) with the largest parts, if it is too large for the garden.
        """
        shoot = await self._clusters.garden.find(resources.SHOOT, task.shoot.name, task.shoot.namespace)
        if shoot is None or shoot["metadata"]["uid"] != task.shoot.uid:
            raise ApplicationError(f"Shoot {task.shoot} does not exist any more", type="ShootGone", non_retryable=True)
        home = (shoot.get("status") or {}).get("seedName")
        if task.operation is OperationType.RECONCILE and home not in (None, task.seed):
            return TaskResult(
                note=f"seed {home} has the control plane now"
            )  # this seed could not know that while it was cut off
        try:
            spec = await self._collect(task)
        except NotRestorable as error:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"state of Shoot {task.shoot} is not persisted: {error}; another seed would not restore it, so the "
                "extension must keep it in another way",
            ) from None
        counts = ", ".join(f"{len(spec[part])} {part}" for part in ("gardener", "extensions", "resources"))
        annotations = {constants.TIMESTAMP: micro_timestamp()}
        live = await self._clusters.garden.find(resources.SHOOT_STATE, task.shoot.name, task.shoot.namespace)
        if task.operation not in MIGRATIONS:
            if live and self._holds(live, spec, task):
                return TaskResult(note=counts)
        else:
            annotations[MIGRATING_FROM] = task.seed
            if live and (live["metadata"].get("annotations") or {}).get(MIGRATING_FROM) == task.seed:
                spec = shoot_state.merged(self._open(live, task), spec)
        wanted = {
            "apiVersion": resources.SHOOT_STATE.api_version,
            "kind": resources.SHOOT_STATE.kind,
            "metadata": {
                "name": task.shoot.name,
                "namespace": task.shoot.namespace,
                "annotations": annotations,
                "ownerReferences": [owner_reference(resources.SHOOT, task.shoot.name, task.shoot.uid)],
            },
            "spec": shoot_state.converted(
                spec, lambda value, item: self._clusters.sealing.seal(value, task.shoot, item)
            ),
        }
        try:
            shoot_state.refuse_too_big(wanted)
        except shoot_state.TooBig as error:
            raise ApplicationError(
                f"ShootState {task.shoot} is too big: {error}; make them smaller, or drop their extension",
                type="ShootStateTooBig",
                non_retryable=True,
            ) from None
        await self._clusters.garden.apply(wanted, manager=MANAGER)
        return TaskResult(note=counts)

    @activity.defn
    async def delete_shootstate(self, task: ShootTask) -> TaskResult:
        """Delete the ShootState with its Shoot. A second run finds none."""
        name, namespace = task.shoot.name, task.shoot.namespace
        confirmed = {"metadata": {"annotations": {constants.CONFIRMATION_DELETION: "true"}}}
        with contextlib.suppress(NotFound):
            await self._clusters.garden.patch(resources.SHOOT_STATE, name, namespace, confirmed)
            await self._clusters.garden.delete(resources.SHOOT_STATE, name, namespace)
        return TaskResult()

    def _holds(self, live: Mapping[str, Any], spec: Mapping[str, Any], task: ShootTask) -> bool:
        """Whether the live ShootState is of this Shoot and of no migration, and has the same content already."""
        metadata = live["metadata"]
        ours = [each["uid"] for each in metadata.get("ownerReferences") or ()] == [task.shoot.uid]
        if not ours or MIGRATING_FROM in (metadata.get("annotations") or {}):
            return False
        try:
            return _opened(self._clusters.sealing, live.get("spec") or {}, task.shoot, current=True) == spec
        except (CannotOpen, compression.TooLarge, compression.Damaged):
            return False

    def _open(self, live: Mapping[str, Any], task: ShootTask) -> dict[str, Any]:
        try:
            return _opened(self._clusters.sealing, live.get("spec") or {}, task.shoot)
        except CannotOpen as error:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"ShootState {task.shoot} of this migration cannot be extended: {error}",
            ) from None
        except (compression.TooLarge, compression.Damaged) as error:
            raise _bad_content(task, error) from None

    async def _collect(self, task: ShootTask) -> dict[str, Any]:
        seed, namespace = self._clusters.seed, task.technical_id
        secrets, deployments, sets, machines = await asyncio.gather(
            seed.list(resources.SECRET, namespace, labels="persist=true"),
            seed.list(resources.MACHINE_DEPLOYMENT, namespace),
            seed.list(resources.MACHINE_SET, namespace),
            seed.list(resources.MACHINE, namespace),
        )
        found = [
            {**each, "kind": kind.kind}
            for kind, objects in zip(
                KINDS, await asyncio.gather(*(seed.list(kind, namespace) for kind in KINDS)), strict=True
            )
            for each in objects
        ]
        extensions = shoot_state.extension_states(found)
        machine_state = shoot_state.machine_state(deployments, sets, machines)
        references: dict[tuple[str, str], Mapping[str, Any]] = {}
        for extension in extensions:
            for each in extension.get("resources") or ():
                reference = each["resourceRef"]
                if not shoot_state.is_copied(reference):
                    shoot_state.check_reference(reference, extension["kind"], extension["name"])
                    references[reference["kind"], reference["name"]] = reference
        return {
            "gardener": [*shoot_state.persisted_secrets(secrets), *([machine_state] if machine_state else [])],
            "extensions": extensions,
            "resources": [item for _, each in sorted(references.items()) if (item := await self._resource(task, each))],
        }

    async def _resource(self, task: ShootTask, reference: Mapping[str, Any]) -> dict[str, Any] | None:
        kind, name = reference["kind"], reference["name"]
        resource = resources.SECRET if kind == "Secret" else resources.CONFIG_MAP
        found = await self._clusters.seed.find(resource, name, task.technical_id)
        if found is None:
            return None
        return {"apiVersion": "v1", "kind": kind, "name": name, "data": shoot_state.kept_content(found, reference)}


def _opened(sealing: Sealing, spec: Mapping[str, Any], shoot: ShootRef, *, current: bool = False) -> dict[str, Any]:
    """Decrypt all contents of a ShootState.

    Raises CannotOpen; with ``current`` also if an earlier key encrypted a content. Raises TooLarge and Damaged of
    ``api.compression``; the limit applies to all contents together.
    """
    size = 0

    def opened(value: Any, item: str) -> Any:
        nonlocal size
        if current and not sealing.is_current(value):
            raise CannotOpen("it is sealed by an earlier key")
        content = sealing.open(value, shoot, item)
        size += shoot_state.size_of(content)
        if size > compression.LIMIT:
            raise compression.TooLarge(compression.LIMIT)
        return content

    return shoot_state.converted(spec, opened)

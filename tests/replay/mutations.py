"""Mutated copies of workflows: changes that need ``workflow.patched`` and lack it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.replay.corpus import ALL_WORKFLOWS
from workflows import earlier
from workflows.flow import Call, Everything, Flow, activity_name
from workflows.provider_local import infrastructure, worker
from workflows.shoot import hibernation, lifecycle, maintenance, rotate

# Flows: their graph is changed while it is declared.

_ADD = Flow.add


def _name(activity: Any, name: str) -> str:
    return name or activity_name(activity.activity if isinstance(activity, Call) else activity)


@contextmanager
def without(task: str) -> Iterator[None]:
    """Flows lack a task; the tasks after it start with its predecessors."""

    def add(self: Flow[Any], activity: Any, *, name: str = "", after: Sequence[str] | Everything = (),
            completes: str = "", **others: Any) -> str:  # fmt: skip
        if (called := _name(activity, name)) == task:
            return called
        if not isinstance(after, Everything):
            after = [each for each in after if each != task]
        return _ADD(self, activity, name=name, after=after, completes="" if completes == task else completes, **others)

    with patch.object(Flow, "add", add):
        yield


@contextmanager
def exchanged(first: str, second: str, build: Callable[[], Flow[Any]]) -> Iterator[None]:
    """Two tasks of a flow have changed places. ``second`` is declared directly after ``first``."""
    activities: dict[str, Any] = {}

    def note(self: Flow[Any], activity: Any, *, name: str = "", **others: Any) -> str:
        activities[_name(activity, name)] = activity
        return _ADD(self, activity, name=name, **others)

    with patch.object(Flow, "add", note):
        build()
    other = {first: second, second: first}

    def add(self: Flow[Any], activity: Any, *, name: str = "", after: Sequence[str] | Everything = (),
            completes: str = "", **others: Any) -> str:  # fmt: skip
        if not isinstance(after, Everything):
            after = [other.get(each, each) for each in after]
        if called := other.get(_name(activity, name)):
            activity, name = activities[called], called
        return _ADD(self, activity, name=name, after=after, completes=other.get(completes, completes), **others)

    with patch.object(Flow, "add", add):
        yield


def neighbours(graph: Flow[Any]) -> tuple[str, str]:
    """Two tasks that run one after the other and are declared one after the other."""
    names = graph.names
    for first, second in pairwise(names):
        if first in graph.after(second) and not graph.skipped(first) and not graph.skipped(second):
            return first, second
    raise LookupError(f"{graph.operation} has no two such tasks")


# Other workflows: their source is changed.

Rewrite = Callable[[str], str]


def _swap(first: str, second: str) -> Rewrite:
    def swap(source: str) -> str:
        assert first in source, first
        assert second in source, second
        return source.replace(first, "\0").replace(second, first).replace("\0", second)

    return swap


def _insert(line: str, before: str) -> Rewrite:
    def insert(source: str) -> str:
        assert before in source, before
        return source.replace(before, f"{line}\n        {before}", 1)

    return insert


_SLEEP = _insert("await workflow.sleep(1)", "result = await workflow.execute_activity_method(")
_ROTATE = _swap("GardenRotationActivities.report_survey", "GardenRotationActivities.request_rotation_step")
_MACHINES = _swap("ProviderLocalActivities.delete_machines", "ProviderLocalActivities.wait_machines_deleted")

SOURCES: dict[str, tuple[ModuleType, Rewrite]] = {
    "ShootLifecycle": (
        lifecycle,
        _swap("FlowActivities.await_earlier_operations", "ShootActivities.look_at_shoot"),
    ),
    "SwitchHibernation": (hibernation, _SLEEP),
    "MaintainShoot": (maintenance, _SLEEP),
    "RotateCertificateAuthorities": (rotate, _ROTATE),
    "RotateServiceAccountKey": (rotate, _ROTATE),
    "RotateETCDEncryptionKey": (rotate, _ROTATE),
    "RotateSSHKeypair": (rotate, _ROTATE),
    "RotateObservabilityPasswords": (rotate, _ROTATE),
    "ReconcileSeed": (
        earlier,
        _swap("SeedActivities.report_seed_processing", "SeedActivities.deploy_seed_crds"),
    ),
    "DeleteInfrastructure": (
        infrastructure,
        _swap("ProviderLocalActivities.delete_cloud_namespace", "ProviderLocalActivities.wait_cloud_namespace_deleted"),
    ),
    "ReconcileWorker": (
        worker,
        _swap("ProviderLocalActivities.deploy_machines", "ProviderLocalActivities.wait_machines"),
    ),
    "RestoreWorker": (
        worker,
        _swap("ProviderLocalActivities.restore_machines", "ProviderLocalActivities.deploy_machines"),
    ),
    "DeleteWorker": (worker, _MACHINES),
}
"""Workflows without a graph: the module of each, and a change of two steps, or a timer before the only one."""


@contextmanager
def rewritten(name: str) -> Iterator[list[type]]:
    """All workflows, with a mutated copy of one."""
    original, rewrite = SOURCES[name]
    source = Path(original.__file__ or "").read_text()
    module = ModuleType(f"mutated_{name}")
    with patch.dict(sys.modules, {module.__name__: module}):
        exec(compile(rewrite(source), module.__name__, "exec"), module.__dict__)
        yield [getattr(module, name) if each.__name__ == name else each for each in ALL_WORKFLOWS]

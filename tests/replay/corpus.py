"""Corpus of recorded histories of all workflows: ``make histories RELEASE=NAME``.

Each release has a folder in ``corpus/`` with one compressed file for each workflow type. The command plays all scenes
of ``scenes.py`` against a real Temporal server, and adds the histories that take other steps than the newest recorded
history of the same name. It changes no recorded history: old ones prove that flows which began on an earlier release
still replay.
"""

import argparse
import asyncio
import base64
import binascii
import json
import logging
import lzma
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from workers.lib.callers import Callers
from workflows import garden, provider_local

CORPUS = Path(__file__).parent / "corpus"
_SUFFIX = ".json.xz"
ALL_WORKFLOWS = [*garden.WORKFLOWS, *provider_local.WORKFLOWS]

_NOISE = frozenset(
    {"taskId", "requestId", "identity", "stackTrace", "workerVersion", "meteringMetadata", "historySizeBytes"}
)
"""Fields that no replay reads. They differ in each recording and name processes and files of the recording machine."""

Story = Mapping[str, Any]
"""One history as JSON, with its workflow id."""


# Files


@dataclass(frozen=True)
class Recorded:
    """One history of the corpus."""

    release: str
    workflow: str
    name: str
    story: Story

    @property
    def history(self) -> WorkflowHistory:
        return WorkflowHistory.from_json(self.story["workflowId"], json.dumps(_packed(self.story["history"])))

    @property
    def end(self) -> str:
        """Last event of the history, for example ``WORKFLOW_EXECUTION_FAILED``."""
        return _kind(self.story["history"]["events"][-1])


def releases(corpus: Path = CORPUS) -> list[str]:
    """Names of the recorded releases, oldest first."""
    index = corpus / "releases.txt"
    return index.read_text().split() if index.exists() else []


def files(corpus: Path = CORPUS) -> list[Path]:
    """All files, those of the oldest release first."""
    return [path for release in releases(corpus) for path in sorted((corpus / release).glob(f"*{_SUFFIX}"))]


def read(path: Path) -> list[Recorded]:
    """Histories of one file."""
    stories: dict[str, Story] = json.loads(lzma.decompress(path.read_bytes()))
    workflow = path.name.removesuffix(_SUFFIX)
    return [Recorded(path.parent.name, workflow, name, story) for name, story in stories.items()]


def has_begun(history: WorkflowHistory) -> bool:
    """Whether a workflow has ended its first task. A replay of another history would wait for that task forever."""
    return any(event.HasField("workflow_task_completed_event_attributes") for event in history.events)


def story(history: WorkflowHistory) -> Story:
    """A history without fields that only the recording machine needs."""
    return {"workflowId": history.workflow_id, "history": _plain(json.loads(history.to_json()))}


@dataclass
class Added:
    """Result of ``add``: names of histories, each as ``<workflow>/<name>``."""

    added: list[str]
    unchanged: list[str]
    refused: list[str]
    """Histories that take other steps than those that the same release has recorded already."""


def add(release: str, stories: Iterable[tuple[str, str, Story]], corpus: Path = CORPUS) -> Added:
    """Write histories, given as workflow type, name and story, that differ from the newest recorded ones.

    A recorded history stays as it is. If a release has recorded other steps under the same name, the new history is
    refused: it needs the name of another release.
    """
    known: dict[tuple[str, str], Recorded] = {}
    for path in files(corpus):
        known |= {(each.workflow, each.name): each for each in read(path)}
    result = Added([], [], [])
    new: dict[str, dict[str, Story]] = {}
    for workflow, name, told in stories:
        before, shown = known.get((workflow, name)), f"{workflow}/{name}"
        if before is not None and steps(before.story) == steps(told):
            result.unchanged.append(shown)
        elif before is not None and before.release == release:
            result.refused.append(shown)
        else:
            result.added.append(shown)
            new.setdefault(workflow, {})[name] = told
    for workflow, told_by_name in new.items():
        path = corpus / release / f"{workflow}{_SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {each.name: each.story for each in read(path)} if path.exists() else {}
        text = json.dumps(dict(sorted({**kept, **told_by_name}.items())), separators=(",", ":"))
        path.write_bytes(lzma.compress(text.encode(), preset=6))
    if new and release not in releases(corpus):
        (corpus / "releases.txt").write_text("".join(f"{each}\n" for each in [*releases(corpus), release]))
    return result


def steps(told: Story) -> frozenset[str]:
    """Steps that a workflow took, without order and number: both depend on the speed of the recording machine.

    A change of a flow shows here: it has other tasks, or the marker of its ``workflow.patched``.
    """
    return frozenset(filter(None, map(_step, told["history"]["events"])))


def _step(event: Mapping[str, Any]) -> str:
    kind = _kind(event)
    match kind:
        case "ACTIVITY_TASK_SCHEDULED":
            attributes = event["activityTaskScheduledEventAttributes"]
            name = attributes["activityId"]
            return f"{attributes['activityType']['name']} {'' if name.isdigit() else name}"
        case "START_CHILD_WORKFLOW_EXECUTION_INITIATED":
            attributes = event["startChildWorkflowExecutionInitiatedEventAttributes"]
            return f"child {attributes['workflowType']['name']}"
        case "MARKER_RECORDED":
            details = event["markerRecordedEventAttributes"].get("details", {})
            return f"marker {json.dumps(details, sort_keys=True)}"
        case "TIMER_STARTED" | "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED":
            return kind
        case _:
            return kind if kind.startswith("WORKFLOW_EXECUTION_") and kind.endswith(_ENDS) else ""


_ENDS = ("COMPLETED", "FAILED", "CANCELED", "CONTINUED_AS_NEW", "TERMINATED")


def _kind(event: Mapping[str, Any]) -> str:
    return str(event["eventType"]).removeprefix("EVENT_TYPE_")


def _plain(value: Any) -> Any:
    """Without noise, and with the data of payloads as text: it compresses ten times better than base64."""
    if isinstance(value, dict):
        plain = {key: _plain(each) for key, each in value.items() if key not in _NOISE}
        if isinstance(data := plain.get("data"), str) and "metadata" in plain:
            try:
                plain["text"] = base64.b64decode(data, validate=True).decode()
                del plain["data"]
            except (binascii.Error, UnicodeDecodeError):
                return plain
        return plain
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _packed(value: Any) -> Any:
    """The opposite of ``_plain``."""
    if isinstance(value, dict):
        packed = {key: _packed(each) for key, each in value.items()}
        if "text" in packed and "metadata" in packed:
            packed["data"] = base64.b64encode(packed.pop("text").encode()).decode()
        return packed
    return [_packed(each) for each in value] if isinstance(value, list) else value


# Replaying


class Nondeterminism(AssertionError):
    """A recorded history does not replay."""


async def replay(recorded: Collection[Recorded], workflows: Sequence[type] = ALL_WORKFLOWS) -> None:
    """Replay histories with the code of now, outside of Temporal's sandbox.

    The sandbox imports the workflows again for each history, which takes most of the time. ``test_histories.py``
    replays its histories in the sandbox.

    Raises:
        Nondeterminism: a history does not replay. The message names it.
    """
    replayer = Replayer(
        workflows=workflows,
        data_converter=pydantic_data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
        interceptors=[Callers(required=True)],
    )

    async def histories() -> AsyncIterator[WorkflowHistory]:
        for each in recorded:
            yield each.history

    names = iter(recorded)
    async with replayer.workflow_replay_iterator(histories()) as results:
        async for result in results:
            each = next(names)
            if result.replay_failure is not None:
                raise Nondeterminism(
                    f"history {each.name!r} of {each.workflow}, recorded for release {each.release}, does not replay: "
                    f"{result.replay_failure}"
                ) from result.replay_failure


# The command


async def record(release: str, only: str) -> int:
    """Play the scenes, add their histories, replay the whole corpus; returns the exit code."""
    from tests.replay.scenes import FAULTS, play

    # Activities of the scenes fail on purpose, and workflows end while their tasks run.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    quiet = TelemetryConfig(logging=LoggingConfig(TelemetryFilter(core_level="ERROR", other_level="ERROR")))
    Runtime.set_default(Runtime(telemetry=quiet))
    found: list[tuple[str, str, Story]] = []
    began = time.monotonic()
    async for workflow, name, history in play(only):
        if not has_begun(history):
            continue
        found.append((workflow, name, story(history)))
        if len(found) % 50 == 0:
            print(f"{time.monotonic() - began:6.0f} s  {len(found)} histories recorded", flush=True)
    print(f"recorded {len(found)} histories in {time.monotonic() - began:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as empty:
        # A history that does not replay on the code that has just made it is a fault of that code.
        add("new", found, Path(empty))
        for path in files(Path(empty)):
            await replay(read(path))
    result = add(release, found)
    for name in result.added:
        print(f"added {name}")
    print(f"{len(result.added)} added to release {release}, {len(result.unchanged)} unchanged")
    for name in result.refused:
        print(f"not recorded: {name} takes other steps than in release {release}; give another RELEASE")
    for fault in FAULTS:
        print(f"not recorded: {fault}; record it again with --only")
    await replay_all()
    return 1 if result.refused or FAULTS else 0


async def replay_all() -> None:
    """Replay the whole corpus and print how long that takes."""
    began, counted = time.monotonic(), Counter[str]()
    for path in files():
        recorded = read(path)
        await replay(recorded)
        counted[path.name.removesuffix(_SUFFIX)] += len(recorded)
    for workflow, number in sorted(counted.items()):
        print(f"{workflow:32} {number:4} histories")
    print(f"replayed {counted.total()} histories in {time.monotonic() - began:.1f} s")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.replay.corpus", description=__doc__)
    arguments.add_argument("release", nargs="?", help="name of the folder for new histories; without it: only replay")
    arguments.add_argument("--only", default="", metavar="TEXT", help="play only scenes whose name contains TEXT")
    given = arguments.parse_args()
    if given.release:
        return asyncio.run(record(given.release, given.only))
    asyncio.run(replay_all())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

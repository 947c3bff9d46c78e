"""The corpus of ``make histories``: all workflows with all outcomes still replay, and a changed flow is noticed."""

import json
import lzma
from collections import Counter, defaultdict
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory

from tests.replay import corpus
from tests.replay.corpus import ALL_WORKFLOWS, CORPUS, Nondeterminism, Recorded, Story
from tests.replay.mutations import SOURCES, exchanged, neighbours, rewritten, without
from tests.replay.scenes import FLOW_SUBJECTS, Subject

FILES = corpus.files()
_LARGEST_BYTES = 3_000_000


@cache
def recorded(path: Path) -> list[Recorded]:
    return corpus.read(path)


def newest(type_: str, name: str) -> Recorded:
    found = [each for path in FILES if path.name.startswith(f"{type_}.") for each in recorded(path)]
    return [each for each in found if each.name == name][-1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name.removesuffix('.json.xz')}")
async def test_all_histories_of_a_release_still_replay(path: Path) -> None:
    await corpus.replay(recorded(path))


def test_the_corpus_has_all_workflows_with_all_ends() -> None:
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    for path in FILES:
        for each in recorded(path):
            ends[each.workflow][each.end.removeprefix("WORKFLOW_EXECUTION_")] += 1
    assert sum(each.total() for each in ends.values()) >= 200
    for name in sorted(each.__name__ for each in ALL_WORKFLOWS):
        expected = {"COMPLETED", "TERMINATED"}
        if name == "ShootLifecycle":
            expected |= {"CONTINUED_AS_NEW"}
        else:
            expected |= {"FAILED", "CANCELED"}
        assert expected <= set(ends[name]), name
    assert any("CONTINUED_AS_NEW" in each for name, each in ends.items() if name.startswith("Rotate"))


def test_the_corpus_is_small_and_names_no_machine() -> None:
    assert sum(path.stat().st_size for path in FILES) < _LARGEST_BYTES
    for path in FILES:
        text = lzma.decompress(path.read_bytes()).decode()
        for private in ("/root/", "/home/", "/tmp/", "site-packages", "stackTrace", '"identity"', "PRIVATE KEY"):
            assert private not in text, f"{path.name} holds {private}"


def test_a_run_that_has_not_begun_is_not_recorded() -> None:
    """Its replay would wait forever for a task."""
    told = newest("ShootLifecycle", "a-shoot-that-is-gone-ends-its-lifecycle-0")
    events = told.history.events
    first = next(
        number for number, each in enumerate(events) if each.HasField("workflow_task_completed_event_attributes")
    )
    assert not corpus.has_begun(WorkflowHistory("id", events[:first]))
    assert corpus.has_begun(WorkflowHistory("id", events[: first + 1]))


# Planted changes


def changed(subject: Subject, how: str) -> AbstractContextManager[None]:
    assert subject.graph is not None
    assert subject.rebuild is not None
    first, second = neighbours(subject.graph)
    if how == "removed":
        return without(second)
    return exchanged(first, second, subject.rebuild)


@pytest.mark.parametrize("how", ["removed", "exchanged"])
@pytest.mark.parametrize("subject", FLOW_SUBJECTS, ids=lambda subject: subject.name)
async def test_a_changed_graph_is_noticed(subject: Subject, how: str) -> None:
    """Without ``workflow.patched``, flows that run during an upgrade would stall."""
    history = newest(subject.workflow.__name__, f"{subject.name}-succeeds")
    with changed(subject, how), pytest.raises(Nondeterminism) as noticed:
        await corpus.replay([history])
    assert isinstance(noticed.value.__cause__, workflow.NondeterminismError)
    assert f"history '{subject.name}-succeeds' of {subject.workflow.__name__}" in str(noticed.value)


@pytest.mark.parametrize("name", SOURCES)
async def test_a_changed_step_is_noticed(name: str) -> None:
    histories = [each for path in FILES if path.name.startswith(f"{name}.") for each in recorded(path)]
    with rewritten(name) as workflows, pytest.raises(Nondeterminism) as noticed:
        await corpus.replay(histories, workflows)
    assert isinstance(noticed.value.__cause__, workflow.NondeterminismError)


def test_each_workflow_has_a_planted_change() -> None:
    """A new workflow without one would be replayed by a test that has never failed."""
    assert {each.__name__ for each in ALL_WORKFLOWS} == {*SOURCES, *(each.workflow.__name__ for each in FLOW_SUBJECTS)}


# The command


def told(*activities: str, started: str = "1") -> Story:
    events = [
        {
            "eventType": "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED",
            "eventTime": started,
            "activityTaskScheduledEventAttributes": {"activityId": each, "activityType": {"name": each}},
        }
        for each in activities
    ]
    return {"workflowId": "w", "history": {"events": events}}


def names(folder: Path) -> dict[str, list[str]]:
    return {
        f"{path.parent.name}/{path.name}": [each.name for each in corpus.read(path)] for path in corpus.files(folder)
    }


def test_only_histories_with_other_steps_are_added(tmp_path: Path) -> None:
    corpus.add("1", [("Flow", "succeeds", told("a", "b")), ("Flow", "fails", told("a"))], tmp_path)
    result = corpus.add(
        "2", [("Flow", "succeeds", told("b", "a", started="2")), ("Flow", "fails", told("b"))], tmp_path
    )
    assert (result.added, result.unchanged, result.refused) == (["Flow/fails"], ["Flow/succeeds"], [])
    assert names(tmp_path) == {"1/Flow.json.xz": ["fails", "succeeds"], "2/Flow.json.xz": ["fails"]}


def test_a_new_history_is_compared_with_the_newest_recorded_one(tmp_path: Path) -> None:
    for release, activity in (("10", "a"), ("9", "b")):
        assert corpus.add(release, [("Flow", "succeeds", told(activity))], tmp_path).added
    assert corpus.releases(tmp_path) == ["10", "9"], "in the order of their recording"
    assert corpus.add("11", [("Flow", "succeeds", told("b"))], tmp_path).unchanged == ["Flow/succeeds"]
    assert corpus.add("11", [("Flow", "succeeds", told("a"))], tmp_path).added == ["Flow/succeeds"]


def test_a_recorded_history_is_never_replaced(tmp_path: Path) -> None:
    """It proves that flows of that release replay."""
    corpus.add("1", [("Flow", "succeeds", told("a"))], tmp_path)
    before = (tmp_path / "1" / "Flow.json.xz").read_bytes()
    result = corpus.add("1", [("Flow", "succeeds", told("b"))], tmp_path)
    assert (result.added, result.refused) == ([], ["Flow/succeeds"])
    assert (tmp_path / "1" / "Flow.json.xz").read_bytes() == before

    corpus.add("1", [("Flow", "fails", told("b"))], tmp_path)
    assert [each.story for each in corpus.read(tmp_path / "1" / "Flow.json.xz")] == [told("b"), told("a")]


def test_payloads_are_stored_as_text_and_read_as_they_were() -> None:
    history = newest("DeleteBackups", "delete-backups-succeeds")
    assert '"text":"{' in json.dumps(history.story, separators=(",", ":"))
    assert corpus.story(history.history) == history.story


def test_each_folder_of_the_corpus_is_a_release() -> None:
    """A folder that is not listed would never be replayed."""
    assert {each.name for each in CORPUS.iterdir() if each.is_dir()} == set(corpus.releases())

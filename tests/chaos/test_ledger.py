"""The ledger finds what is doubled, left out and left over in audit logs, and nothing in logs of equal effects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.contracts.operations import OperationType
from tests.chaos.ledger import Auditor, Ledger, Place, compare
from tests.chaos.points import Entry, Moment, Point, points_of, resumed, struck_by_others
from tests.chaos.stage import flow_of

WORKER = "gardenlet"
Object = dict[str, Any]


def request(verb: str, name: str, uid: str, code: int = 200, user: str = WORKER, **content: Any) -> Object:
    """Entry of an audit log."""
    metadata = {"name": name, "namespace": "garden", "uid": uid, **content.pop("metadata", {})}
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "requestURI": "/api/v1/namespaces/garden/configmaps",
        "objectRef": {"resource": "configmaps", "namespace": "garden", "name": name, **content.pop("ref", {})},
        "responseStatus": {"code": code},
        "responseObject": {"metadata": metadata, **content},
    }


CREATED = request("patch", "a", "u1", 201, data={"x": "1"})
CHANGED = request("patch", "a", "u1", data={"x": "2"})
DELETED = request("delete", "a", "u1")


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Ledger]:
    def read(*entries: Object) -> Ledger:
        log = tmp_path / "audit.log"
        log.write_text("".join(json.dumps(each) + "\n" for each in entries))
        return Auditor({"seed": log}, frozenset([WORKER])).ledger({})

    return read


def test_an_object_that_is_created_again_is_doubled(ledger: Callable[..., Ledger]) -> None:
    again = request("create", "a", "u2", 201)
    [found] = compare(ledger(CREATED), ledger(CREATED, again))
    assert str(found) == "doubled: configmaps garden/a in the seed: created 2 times, undisturbed 1"


def test_objects_with_generated_names_are_counted_together(ledger: Callable[..., Ledger]) -> None:
    made = [request("create", f"a-{uid}", uid, 201, metadata={"generateName": "a-"}) for uid in ("u1", "u2")]
    [found] = compare(ledger(made[0]), ledger(*made))
    assert "garden/a-* in the seed: created 2 times" in str(found)


def test_a_change_that_is_made_again_with_other_content_is_doubled(ledger: Callable[..., Ledger]) -> None:
    other = request("patch", "a", "u1", data={"x": "3"})
    [found] = compare(ledger(CREATED, CHANGED), ledger(CREATED, CHANGED, other))
    assert "changed 2 times, undisturbed 1" in str(found)


def test_the_deletion_of_a_successor_is_doubled(ledger: Callable[..., Ledger]) -> None:
    other = request("delete", "a", "u2")
    [found] = compare(ledger(CREATED, DELETED), ledger(CREATED, DELETED, other))
    assert "deleted 2 times, undisturbed 1" in str(found)


@pytest.mark.parametrize("missing", [CREATED, DELETED], ids=["creation", "deletion"])
def test_an_effect_that_is_missing_is_left_out(ledger: Callable[..., Ledger], missing: Object) -> None:
    disturbed = [each for each in (CREATED, DELETED) if each is not missing]
    [found] = compare(ledger(CREATED, DELETED), ledger(*disturbed))
    assert found.kind == "left out"


def test_a_repeated_request_without_an_effect_is_no_finding(ledger: Callable[..., Ledger]) -> None:
    """The same content, the same deletion, a refusal, a status, an annotation for a controller, another user."""
    repeated = (
        request("patch", "a", "u1", data={"x": "2"}, metadata={"resourceVersion": "9"}),
        request(
            "patch", "a", "u1", data={"x": "2"}, metadata={"annotations": {"gardener.cloud/operation": "reconcile"}}
        ),
        request("create", "a", "u3", 409),
        request("patch", "a", "u1", ref={"subresource": "status"}, status={"x": "4"}),
        request("patch", "a", "u1", user="player", data={"x": "2"}),
        DELETED,
    )
    assert compare(ledger(CREATED, CHANGED, DELETED), ledger(CREATED, CHANGED, *repeated, DELETED)) == []


def test_objects_at_the_end_are_compared() -> None:
    one, other = Place("seed", "configmaps", "a"), Place("seed", "configmaps", "b")
    undisturbed = Ledger(objects={one: {"data": {"x": "1"}}, other: {}})
    assert [str(each) for each in compare(undisturbed, Ledger(objects={one: {"data": {"x": "2"}}}))] == [
        "left out: configmaps b in the seed does not exist",
        "differs: configmaps a in the seed: .data.x is 2, undisturbed 1",
    ]
    assert [each.kind for each in compare(Ledger(objects={one: {}}), Ledger(objects={one: {}, other: {}}))] == [
        "left over"
    ]


def test_each_task_of_the_graphs_has_points() -> None:
    """An activity of one write has none between its writes, and one that ends with its workflow none at its end."""
    for operation in (OperationType.CREATE, OperationType.DELETE):
        names = flow_of(operation).names
        points = points_of(names, {names[0]: 2}, set(names) - {names[-1]})
        assert {each.activity for each in points} == set(names)
        assert {each.moment for each in points if each.activity == names[0]} == set(Moment)
        assert {each.moment for each in points if each.activity == names[1]} == set(Moment) - {Moment.AMID}
        assert {each.moment for each in points if each.activity == names[-1]} == {Moment.BEFORE}


def test_progress_after_a_kill_is_the_next_attempt_or_the_next_decision() -> None:
    before, between = Point("a", Moment.BEFORE), Point("a", Moment.BETWEEN)
    entries = [
        Entry("killed", str(before), "seed", 10.0),
        Entry("started", "b", "garden", 11.0),
        Entry("started", "a", "seed", 14.0),
        Entry("killed", str(between), "garden", 20.0),
        Entry("started", "c", "seed", 21.0),
        Entry("decided", "a", "garden", 23.0),
    ]
    assert resumed(entries) == {before: 4.0, between: 3.0}


def test_a_task_that_ran_when_another_one_was_killed_may_miss_its_points() -> None:
    entries = [
        Entry("started", "ended", "seed", 10.0),
        Entry("started", "written", "seed", 10.0),
        Entry("done", "ended", "seed", 11.0),
        Entry("started", "killed", "seed", 11.0),
        Entry("killed", str(Point("killed", Moment.BEFORE)), "seed", 12.0),
        Entry("started", "later", "seed", 13.0),
    ]
    assert struck_by_others(entries) == {"written"}

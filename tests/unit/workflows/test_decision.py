"""Which operation a Shoot needs: every row of the tables, and what holds whatever is seen."""

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.contracts.flows import FailedTask, FlowOutcome, ShootView
from api.contracts.operations import OperationType
from tests.unit.workflows.decision_tables import NOW, TABLES, C, D, M, R, Row, S, decided, last, seen
from workflows.shoot.decision import (
    RETRY_DURATION,
    FlowKind,
    LifecycleState,
    Release,
    Rest,
    Run,
    begin_attempt,
    cancels_at_once,
    decide,
    flow_kind,
    operation_type,
    preempts,
    state_after_failure,
)

ROWS = [pytest.param(row, id=f"{title}: {row.number}") for title, (rows, _) in TABLES.items() for row in rows]


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_tables(row: Row) -> None:
    assert row.answer == row.decided


def test_no_two_rows_have_the_same_number() -> None:
    for rows, _ in TABLES.values():
        assert len({row.number for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("expected", "flow", "fields"),
    [
        (D, FlowKind.FORCE_DELETE, {"deleting": True, "force_delete": True}),
        (D, FlowKind.DELETE, {"deleting": True, "last_operation": last(M, "Error")}),
        (M, FlowKind.MIGRATE, {"status_seed": "b"}),
        (S, FlowKind.RESTORE, {"last_operation": last(M, "Succeeded")}),
        (C, FlowKind.RECONCILE, {"last_operation": last(C, "Failed")}),
        (S, FlowKind.RESTORE, {"last_operation": last(M, "Error")}),
        (S, FlowKind.RESTORE, {"last_operation": last(S, "Error")}),
        (R, FlowKind.RECONCILE, {"last_operation": last(S, "Succeeded")}),
        (R, FlowKind.RECONCILE, {"last_operation": last(R, "Failed"), "force_delete": True}),
    ],
)
def test_type_and_flow_of_an_operation(expected: OperationType, flow: FlowKind, fields: dict[str, object]) -> None:
    view = seen(**fields)
    assert operation_type(view) is expected
    assert flow_kind(view, expected) is flow


def test_a_shoot_without_seed_waits_for_the_scheduler() -> None:
    assert decided(seen(spec_seed=None, status_seed=None, last_operation=None)) == Rest(
        "the scheduler has assigned no seed yet; an Event of the Shoot names the reason"
    )


def test_an_operation_that_nobody_runs_any_more_is_run_again() -> None:
    """Its lifecycle was terminated; what it did is found by the tasks."""
    assert decided(seen(last_operation=last(R, "Processing"))) == Run(R)


def test_a_rotation_starts_whatever_came_of_the_last_operation() -> None:
    for state in ("Succeeded", "Error", "Failed"):
        step = decided(seen(last_operation=last(R, state), operations=("rotate-ca-start",)))
        assert step == Run(R, consume=("rotate-ca-start",))


def test_an_attempt_with_new_credentials_keeps_nothing_of_the_one_before() -> None:
    failed = FlowOutcome(failed=(FailedTask(name="x", message="", at=NOW, attempt=1),))
    memory = LifecycleState(
        generation=3, operation=R, flow=FlowKind.RECONCILE, version="v1", attempts=1, outcome=failed
    )
    view = seen(last_operation=last(R, "Failed"), operations=("rotate-ca-start",))
    step = decided(view, memory)
    assert isinstance(step, Run)
    assert begin_attempt(memory, view, step).outcome == FlowOutcome()


def test_a_resumed_attempt_needs_the_same_generation_type_and_version() -> None:
    failed = FlowOutcome(failed=(FailedTask(name="x", message="", at=NOW, attempt=1),))
    memory = LifecycleState(
        generation=3, operation=R, flow=FlowKind.RECONCILE, version="v1", attempts=1, outcome=failed
    )
    retry = seen(last_operation=last(R, "Failed"), operations=("retry",))
    cases: list[tuple[dict[str, object], bool]] = [
        ({}, True),
        ({"generation": 4}, False),
        ({"our_version": "v2"}, False),
        ({"deleting": True}, False),
    ]
    for other, resumes in cases:
        view = retry.model_copy(update=other)
        step = decided(view, memory)
        assert isinstance(step, Run)

        assert bool(begin_attempt(memory, view, step).outcome.failed) is resumes


@pytest.mark.parametrize("attempts", [1, 2, 5, 50])
@pytest.mark.parametrize("type_", [C, R])
def test_an_error_is_tried_again_later_and_later_but_at_most_ten_minutes(type_: OperationType, attempts: int) -> None:
    memory = LifecycleState(generation=3, operation=type_, version="v1", attempts=attempts, ended=NOW)
    view = seen(last_operation=last(type_, "Error"))
    step = decided(view, memory)
    assert isinstance(step, Rest)
    assert step.until == min(timedelta(seconds=10) * 2 ** min(attempts - 1, 9), timedelta(minutes=10))
    assert isinstance(decided(view, memory, NOW + step.until), Run)


def test_a_shoot_that_waited_for_its_first_seed_is_created_as_soon_as_it_can_be() -> None:
    waiting = {"last_operation": last(C, "Pending"), "observed_generation": 0, "gardener_version": ""}
    assert decided(seen(**waiting)) == Run(C)
    assert decided(seen(**waiting, confined=True, in_window_only=True)) == Run(C)


@given(seed=st.integers())
def test_idle_shoots_sync_once_a_period_spread_by_jitter(seed: int) -> None:
    step = decide(seen(), LifecycleState(), NOW, Random(seed))
    assert isinstance(step, Rest)
    assert step.until is not None
    assert timedelta(hours=1) <= step.until <= timedelta(hours=1.1)


def test_shoots_of_one_window_are_spread_over_it() -> None:
    confined = {"confined": True, "in_window_only": True, "window": ("220000+0000", "230000+0000")}
    rests = [decided(seen(**confined, uid=f"shoot-{number}")) for number in range(60)]
    minutes = {int((rest.until or timedelta()) / timedelta(minutes=1)) for rest in rests if isinstance(rest, Rest)}
    assert len(minutes) > 25, "45 minutes for 60 Shoots"


@pytest.mark.parametrize(
    ("codes", "ago", "state"),
    [
        (("ERR_INFRA_UNAUTHENTICATED",), timedelta(), "Failed"),
        (("ERR_INFRA_RATE_LIMITS_EXCEEDED",), timedelta(), "Failed"),
        (("ERR_CLEANUP_CLUSTER_RESOURCES",), timedelta(), "Error"),
        ((), timedelta(), "Error"),
        ((), RETRY_DURATION, "Failed"),
    ],
)
def test_only_a_final_code_or_twelve_hours_make_an_error_failed(
    codes: tuple[str, ...], ago: timedelta, state: str
) -> None:
    failed = (FailedTask(name="x", message="", codes=codes, at=NOW, attempt=1),)
    assert state_after_failure(failed, NOW - ago, NOW) == state


def test_only_something_newer_overtakes() -> None:
    reconcile, delete = FlowKind.RECONCILE, FlowKind.DELETE
    assert preempts(seen(generation=4), 3, reconcile)
    assert preempts(seen(deleting=True), 3, reconcile)
    assert preempts(seen(deleting=True, force_delete=True), 3, delete)
    assert preempts(seen(generation=4, confined=True, hibernation_switched=True), 3, reconcile)
    assert not preempts(seen(generation=4, confined=True), 3, reconcile)
    assert not preempts(seen(deleting=True), 3, delete)
    assert preempts(seen(generation=4), 3, FlowKind.MIGRATE)
    assert not preempts(seen(generation=4, prepared_at="b"), 3, FlowKind.MIGRATE), "turned round too late"
    assert preempts(seen(generation=4, prepared_at="b", source_lost=True), 3, FlowKind.MIGRATE)
    assert not preempts(seen(deleting=True, generation=4), 3, FlowKind.FORCE_DELETE)
    assert not preempts(seen(), 3, reconcile)
    assert not preempts(None, 3, reconcile)


@pytest.mark.parametrize("state", ["Failed", "Error", "Processing"])
def test_giving_up_the_cloud_is_a_new_deletion_whatever_became_of_the_ordinary_one(state: str) -> None:
    """Row 3 of 1.1. Nobody who asks for it wants to wait for the pause after an error."""
    view = seen(deleting=True, force_delete=True, last_operation=last(D, state))
    before = begin_attempt(LifecycleState(), seen(deleting=True), Run(D, FlowKind.DELETE)).model_copy(
        update={"ended": NOW}
    )
    step = decided(view, before)
    assert isinstance(step, Run)
    assert (step.operation, step.flow) == (D, FlowKind.FORCE_DELETE)
    memory = begin_attempt(before, view, step)
    assert memory.outcome == FlowOutcome()
    assert (memory.flow, memory.attempts) == (FlowKind.FORCE_DELETE, 1)


def test_a_force_deletion_that_failed_rests_until_it_is_retried() -> None:
    view = seen(deleting=True, force_delete=True, last_operation=last(D, "Failed"))
    memory = begin_attempt(LifecycleState(), view, Run(D, FlowKind.FORCE_DELETE))
    assert isinstance(decided(view, memory), Rest)
    again = decided(view.model_copy(update={"operations": ("retry",)}), memory)
    assert isinstance(again, Run)
    assert again.flow is FlowKind.FORCE_DELETE


def test_the_annotation_alone_deletes_nothing() -> None:
    assert isinstance(decided(seen(force_delete=True)), Rest)


@given(
    view=st.builds(
        seen,
        deleting=st.booleans(),
        generation=st.integers(3, 4),
        finalizer=st.booleans(),
        uid_recorded=st.booleans(),
        force_delete=st.booleans(),
        confined=st.booleans(),
        in_window_only=st.booleans(),
        window=st.sampled_from([None, ("220000+0000", "230000+0000"), ("113000+0000", "140000+0000")]),
        emergency_stop=st.booleans(),
        spec_seed=st.sampled_from([None, "a", "b"]),
        status_seed=st.sampled_from([None, "a", "b"]),
        operations=st.sampled_from([(), ("retry",), ("reconcile",), ("maintain",), ("x", "retry")]),
        seed_fault=st.sampled_from(["", "not ready"]),
        ignored=st.booleans(),
        last_operation=st.none()
        | st.builds(
            last,
            st.sampled_from(OperationType),
            st.sampled_from(["Processing", "Succeeded", "Error", "Failed", "Pending", "Aborted"]),
        ),
    )
)
def test_whatever_is_seen_a_deletion_is_never_answered_by_anything_else(view: ShootView) -> None:
    step = decided(view)
    if isinstance(step, Run):
        assert view.finalizer or not view.deleting
        assert (step.operation is D) == view.deleting
        assert not view.ignored
        assert not view.emergency_stop
        assert not view.seed_fault
        assert len(step.consume) <= 1
    if isinstance(step, Release):
        assert view.deleting
        assert view.finalizer


def test_a_move_that_is_turned_round_cancels_at_once() -> None:
    """Any task that it still begins may be the one after which it can only go on."""
    assert cancels_at_once(seen(generation=4), FlowKind.MIGRATE)
    assert not cancels_at_once(seen(generation=4, spec_seed="b"), FlowKind.MIGRATE)
    assert cancels_at_once(seen(spec_seed="b", source_lost=True), FlowKind.MIGRATE)
    assert not cancels_at_once(seen(generation=4), FlowKind.RECONCILE)

"""Which operation a Shoot needs: the rows of spec/flows.md 1.1 and 1.3, and nothing but what is seen decides."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flows import FailedTask, FlowOutcome, LastOperation, ShootView
from api.operations import OperationType
from workflows.shoot.decision import (
    RETRY_DURATION,
    SYNC_PERIOD,
    Decision,
    Memory,
    Release,
    Rest,
    Run,
    decide,
    operation_type,
    overtakes,
    remember,
    state_after_failure,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
C, R, D, M, S = (
    OperationType.CREATE,
    OperationType.RECONCILE,
    OperationType.DELETE,
    OperationType.MIGRATE,
    OperationType.RESTORE,
)


def seen(**fields: object) -> ShootView:
    """A Shoot that is done and unchanged, but for these fields."""
    done: dict[str, object] = {
        "generation": 3,
        "observed_generation": 3,
        "uid_recorded": True,
        "spec_seed": "a",
        "status_seed": "a",
        "last_operation": last(R, "Succeeded"),
        "gardener_version": "v1",
        "our_version": "v1",
    }
    return ShootView.model_validate(done | fields)


def last(type_: OperationType, state: str, ago: timedelta = timedelta()) -> LastOperation:
    return LastOperation(type=type_, state=state, updated=NOW - ago)


def decided(view: ShootView, memory: Memory | None = None) -> Decision:
    return decide(view, memory or Memory(), NOW, Random(0))


# 1.1, one test per row


def test_row_1_deleted_without_our_finalizer_does_nothing() -> None:
    assert isinstance(decided(seen(deleting=True, finalizer=False)), Rest)


@pytest.mark.parametrize("fields", [{"uid_recorded": False}, {"last_operation": last(D, "Succeeded")}])
def test_row_2_a_shoot_of_which_nothing_exists_is_released(fields: dict[str, object]) -> None:
    assert decided(seen(deleting=True, **fields)) == Release()


def test_rows_3_and_4_a_deletion_is_a_deletion_whatever_ran_before() -> None:
    for type_ in OperationType:
        view = seen(deleting=True, generation=4, last_operation=last(type_, "Error"))
        assert decided(view) == Run(D)


@pytest.mark.parametrize(
    ("row", "expected", "fields"),
    [
        (5, M, {"status_seed": "b"}),
        (6, S, {"last_operation": last(M, "Succeeded")}),
        (6, S, {"last_operation": last(M, "Aborted")}),
        (7, C, {"last_operation": None}),
        (7, C, {"last_operation": last(C, "Failed")}),
        (7, C, {"last_operation": last(C, "Processing")}),
        (8, M, {"last_operation": last(M, "Error")}),
        (9, S, {"last_operation": last(S, "Error")}),
        (10, R, {"last_operation": last(C, "Succeeded")}),
        (10, R, {"last_operation": last(S, "Succeeded")}),
        (10, R, {"last_operation": last(R, "Failed")}),
    ],
)
def test_rows_5_to_10_give_the_type(row: int, expected: OperationType, fields: dict[str, object]) -> None:
    assert operation_type(seen(**fields)) is expected, f"row {row}"


# 1.2 and 1.3


def test_a_shoot_without_seed_waits_for_the_scheduler() -> None:
    step = decided(seen(spec_seed=None, status_seed=None, last_operation=None))
    assert isinstance(step, Rest)
    assert step.until is None


def test_a_new_generation_runs_at_once() -> None:
    assert decided(seen(generation=4)) == Run(R)


def test_a_new_version_of_ours_runs_at_once() -> None:
    assert decided(seen(our_version="v2")) == Run(R)


def test_an_operation_that_nobody_runs_any_more_is_run_again() -> None:
    """Its lifecycle was terminated; what it did is found by the tasks."""
    assert decided(seen(last_operation=last(R, "Processing"))) == Run(R)


def test_failed_and_up_to_date_does_nothing_and_never_by_itself() -> None:
    step = decided(seen(last_operation=last(R, "Failed", timedelta(days=30))))
    assert isinstance(step, Rest)
    assert step.until is None


@pytest.mark.parametrize(
    "fields", [{"generation": 4}, {"our_version": "v2"}, {"operations": ("retry",)}, {"deleting": True}]
)
def test_failed_ends_by_generation_version_retry_or_deletion(fields: dict[str, object]) -> None:
    assert isinstance(decided(seen(last_operation=last(R, "Failed"), **fields)), Run)


def test_a_failed_deletion_waits_for_retry_too() -> None:
    assert isinstance(decided(seen(deleting=True, last_operation=last(D, "Failed"))), Rest)


def test_reconcile_has_no_effect_while_failed_and_is_taken_away() -> None:
    step = decided(seen(last_operation=last(R, "Failed"), operations=("reconcile",)))
    assert isinstance(step, Rest)
    assert step.consume == ("reconcile",)


def test_operations_of_others_are_left_to_them() -> None:
    step = decided(seen(operations=("rotate-ca-start", "reconcile")))
    assert isinstance(step, Run)
    assert step.consume == ("reconcile",)


def test_a_resumed_attempt_needs_the_same_generation_type_and_version() -> None:
    failed = FlowOutcome(failed=(FailedTask(name="x", message="", at=NOW, attempt=1),))
    memory = Memory(generation=3, operation=R, version="v1", attempts=1, outcome=failed)
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
        assert step.resume is resumes
        assert bool(remember(memory, view, step.operation).outcome.failed) is resumes


def test_an_unready_seed_puts_off_and_looks_again_after_15_seconds() -> None:
    step = decided(seen(generation=4, seed_fault="Seed a is not ready"))
    assert step == Rest("Seed a is not ready", until=timedelta(seconds=15), state="Error")


def test_a_missing_seed_is_pending_before_the_first_operation() -> None:
    step = decided(seen(last_operation=None, seed_exists=False))
    assert isinstance(step, Rest)
    assert (step.state, step.reason) == ("Pending", "Seed a does not exist")


@pytest.mark.parametrize("attempts", [1, 2, 5, 50])
def test_an_error_is_tried_again_later_and_later_but_at_most_ten_minutes(attempts: int) -> None:
    memory = Memory(generation=3, operation=R, version="v1", attempts=attempts, ended=NOW)
    step = decided(seen(last_operation=last(R, "Error")), memory)
    assert isinstance(step, Rest)
    assert step.until == min(timedelta(seconds=10) * 2 ** min(attempts - 1, 9), timedelta(minutes=10))
    assert isinstance(decide(seen(last_operation=last(R, "Error")), memory, NOW + step.until, Random(0)), Run)


@given(seed=st.integers())
def test_idle_shoots_sync_once_a_period_spread_by_jitter(seed: int) -> None:
    step = decide(seen(), Memory(), NOW, Random(seed))
    assert isinstance(step, Rest)
    assert step.until is not None
    assert SYNC_PERIOD <= step.until <= SYNC_PERIOD * 1.1


def test_a_sync_that_is_due_runs() -> None:
    assert decided(seen(last_operation=last(R, "Succeeded", timedelta(hours=2)))) == Run(R)


def test_an_ignored_shoot_is_left_alone() -> None:
    assert isinstance(decided(seen(generation=4, ignored=True)), Rest)


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
    assert overtakes(seen(generation=4), 3, R)
    assert overtakes(seen(deleting=True), 3, R)
    assert not overtakes(seen(deleting=True), 3, D)
    assert not overtakes(seen(), 3, R)
    assert not overtakes(None, 3, R)
    assert overtakes(seen(deleting=True, force_delete=True), 3, D)
    assert not overtakes(seen(deleting=True, force_delete=True), 3, D, forced=True)


@pytest.mark.parametrize("state", ["Failed", "Error", "Processing"])
def test_giving_up_the_cloud_is_a_new_deletion_whatever_became_of_the_ordinary_one(state: str) -> None:
    """Row 3 of 1.1. Nobody who asks for it wants to wait for the pause after an error."""
    view = seen(deleting=True, force_delete=True, last_operation=last(D, state))
    before = remember(Memory(), seen(deleting=True), D).model_copy(update={"ended": NOW})
    step = decided(view, before)
    assert isinstance(step, Run)
    assert (step.operation, step.forced, step.resume) == (D, True, False)
    memory = remember(before, view, D)
    assert (memory.forced, memory.attempts) == (True, 1)


def test_a_force_deletion_that_failed_rests_until_it_is_retried() -> None:
    view = seen(deleting=True, force_delete=True, last_operation=last(D, "Failed"))
    memory = remember(Memory(), view, D)
    assert isinstance(decided(view, memory), Rest)
    again = decided(view.model_copy(update={"operations": ("retry",)}), memory)
    assert isinstance(again, Run)
    assert again.forced


def test_the_annotation_alone_deletes_nothing() -> None:
    assert isinstance(decided(seen(force_delete=True)), Rest)


@given(
    view=st.builds(
        seen,
        deleting=st.booleans(),
        generation=st.integers(3, 4),
        finalizer=st.booleans(),
        uid_recorded=st.booleans(),
        spec_seed=st.sampled_from([None, "a", "b"]),
        status_seed=st.sampled_from([None, "a", "b"]),
        operations=st.sampled_from([(), ("retry",), ("reconcile",), ("maintain",)]),
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
        assert not view.seed_fault
    if isinstance(step, Release):
        assert view.deleting
        assert view.finalizer

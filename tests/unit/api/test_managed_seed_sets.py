"""The next step of a ManagedSeedSet, from the objects of its replicas."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api import constants
from api.decisions.managed_seed_sets import (
    Action,
    Plan,
    Replica,
    Rules,
    Stage,
    conditions,
    is_seed_ready,
    members,
    ordinal_of,
    plan,
    selector_text,
)
from api.decisions.managed_seed_templates import Revision, outdated_revisions, revision_hash, shoot_of
from api.meta import LabelSelector
from api.seedmanagement.v1alpha1.managed_seed_set import ManagedSeedSet
from tests.unit.api.shoots import SHOOT
from tests.unit.garden_controllers.seed_sets import LABELS, managed_seed_set

Object = dict[str, Any]
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OLD, NEW = "old", "new"
DELETING: dict[str, Any] = {"deletionTimestamp": "2026-11-21T11:00:00Z"}


def set_of(*, deleting: bool = False, partition: int = 0, status: Object | None = None, **spec: Any) -> ManagedSeedSet:
    obj = managed_seed_set(**{"replicas": 2, **spec})
    obj["metadata"] |= {"uid": "u-set", "generation": 1, **(DELETING if deleting else {})}
    obj["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    return ManagedSeedSet.of({**obj, **({"status": status} if status else {})})


def shoot(
    *, state: str = "Succeeded", type: str = "Reconcile", revision: str = NEW, healthy: bool = True, **metadata: Any
) -> Object:
    labels = {
        **LABELS,
        constants.REVISION_HASH: revision,
        constants.SHOOT_STATUS: "healthy" if healthy else "unhealthy",
    }
    operation = {"type": type, "state": state, "lastUpdateTime": "2026-11-21T11:59:00Z"}
    return {
        "kind": "Shoot",
        "metadata": {"labels": labels, "generation": 1, **metadata},
        "status": {"observedGeneration": 1, "lastOperation": operation},
    }


def managed_seed(*, registered: bool = True, revision: str = NEW, **metadata: Any) -> Object:
    status = "True" if registered else "False"
    return {
        "kind": "ManagedSeed",
        "metadata": {"labels": {**LABELS, constants.REVISION_HASH: revision}, "generation": 1, **metadata},
        "status": {"observedGeneration": 1, "conditions": [{"type": "SeedRegistered", "status": status}]},
    }


def seed(**conditions: str) -> Object:
    found = {"GardenletReady": "True", "ExtensionsReady": "True", **conditions}
    return {"metadata": {}, "status": {"conditions": [{"type": key, "status": each} for key, each in found.items()]}}


def replica(ordinal: int, *, users: int = 0, **parts: Any) -> Replica:
    """A ready replica, except for the parts that are given."""
    made = {"shoot": shoot(), "managed_seed": managed_seed(), "seed": seed(), **parts}
    return Replica(ordinal, f"pool-{ordinal}", made["shoot"], made["managed_seed"], made["seed"], users)


def step(*replicas: Replica, current: str = NEW, owner: ManagedSeedSet | None = None, now: datetime = NOW) -> str:
    """The step as text, with its revision where one matters."""
    made = plan(owner or set_of(), replicas, current, NEW, now)
    return "" if made.step is None else f"{made.step} {made.step.revision}".strip()


BARE: dict[str, Any] = {"managed_seed": None, "seed": None}


@pytest.mark.parametrize(
    ("parts", "stage"),
    [
        ({"shoot": shoot(state="Processing"), **BARE}, Stage.SHOOT_RECONCILING),
        ({"shoot": shoot(state="Error"), **BARE}, Stage.SHOOT_RECONCILING),
        ({"shoot": {**shoot(), "status": {}}, **BARE}, Stage.SHOOT_RECONCILING),
        ({"shoot": {**shoot(), "metadata": {"generation": 2}}, **BARE}, Stage.SHOOT_RECONCILING),
        ({"shoot": shoot(state="Failed"), **BARE}, Stage.SHOOT_RECONCILE_FAILED),
        ({"shoot": shoot(**DELETING), **BARE}, Stage.SHOOT_DELETING),
        ({"shoot": shoot(state="Failed", **DELETING), **BARE}, Stage.SHOOT_DELETING),
        ({"shoot": shoot(state="Failed", type="Delete", **DELETING), **BARE}, Stage.SHOOT_DELETE_FAILED),
        ({"shoot": None}, Stage.SHOOT_DELETING),
        (BARE, Stage.SHOOT_RECONCILED),
        ({"managed_seed": managed_seed(registered=False)}, Stage.MANAGED_SEED_PREPARING),
        ({"managed_seed": managed_seed(generation=2)}, Stage.MANAGED_SEED_PREPARING),
        ({"managed_seed": managed_seed(**DELETING)}, Stage.MANAGED_SEED_DELETING),
        ({"seed": None}, Stage.SEED_NOT_READY),
        ({"seed": seed(GardenletReady="Unknown")}, Stage.SEED_NOT_READY),
        ({"shoot": shoot(healthy=False)}, Stage.SHOOT_NOT_HEALTHY),
        ({}, Stage.READY),
    ],
)
def test_a_replica_is_at_the_stage_that_its_objects_show(parts: Object, stage: Stage) -> None:
    assert replica(0, **parts).stage is stage


@pytest.mark.parametrize(
    ("given", "ready"),
    [
        ({}, True),
        ({"BackupBucketsReady": "True", "SeedSystemComponentsHealthy": "Progressing"}, True),
        ({"BackupBucketsReady": "Unknown"}, False),
        ({"ExtensionsReady": "False"}, False),
        ({"SeedSystemComponentsHealthy": "False"}, False),
        ({"GardenletReady": "False"}, False),
    ],
)
def test_a_seed_is_ready_as_its_column_shows_it(given: dict[str, str], ready: bool) -> None:
    assert is_seed_ready(seed(**given)) is ready


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [
        ([], "create Shoot pool-0 new"),
        ([replica(0, shoot=shoot(state="Processing"), **BARE)], ""),
        ([replica(0, **BARE)], "create ManagedSeed pool-0 new"),
        ([replica(0, managed_seed=managed_seed(registered=False))], ""),
        ([replica(0)], "create Shoot pool-1 new"),
        ([replica(3)], "create Shoot pool-4 new"),
        ([replica(0), replica(1)], ""),
        # A replica is retried, and is the only one that changes.
        ([replica(0, shoot=shoot(state="Failed"), **BARE)], "retry Shoot pool-0"),
        ([replica(0, shoot=shoot(state="Failed", annotations={constants.OPERATION: "retry"}), **BARE)], ""),
        ([replica(0, shoot=shoot(healthy=False)), replica(1, **BARE)], ""),
        # The ManagedSeed of a Shoot that is gone, or is going, goes with it; not while its Seed is in use.
        ([replica(0, shoot=None), replica(1)], "delete ManagedSeed pool-0"),
        ([replica(0, shoot=shoot(**DELETING)), replica(1)], "delete ManagedSeed pool-0"),
        ([replica(0, shoot=None, users=1), replica(1)], ""),
    ],
)
def test_replicas_are_created_one_at_a_time(replicas: list[Replica], wanted: str) -> None:
    assert step(*replicas) == wanted


def _protected(ordinal: int, **more: Any) -> Replica:
    return replica(ordinal, managed_seed=managed_seed(annotations={constants.PROTECT_FROM_DELETION: "true"}), **more)


def _with_priority(ordinal: int, value: str) -> Replica:
    return replica(ordinal, managed_seed=managed_seed(annotations={constants.SEED_PRIORITY: value}))


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [
        ([replica(0), replica(1), replica(2)], "delete ManagedSeed pool-0"),
        ([replica(0, users=1), replica(1), replica(2)], "delete ManagedSeed pool-1"),
        ([_protected(0), replica(1), replica(2)], "delete ManagedSeed pool-1"),
        ([replica(0), replica(1), replica(2, seed=seed(GardenletReady="Unknown"))], "delete ManagedSeed pool-2"),
        ([replica(0), replica(1, shoot=shoot(healthy=False)), replica(2)], "delete ManagedSeed pool-1"),
        ([replica(0), replica(1), _with_priority(2, "2")], "delete ManagedSeed pool-2"),
        ([_with_priority(0, "4"), replica(1), replica(2)], "delete ManagedSeed pool-1"),
        ([_with_priority(0, "high"), replica(1), replica(2)], "delete ManagedSeed pool-0"),
        # A removal that has begun goes on with its Shoot, whatever the priorities of the others are.
        ([_with_priority(0, "-1"), replica(1, **BARE), replica(2)], "delete Shoot pool-1"),
        ([replica(0), replica(1, managed_seed=managed_seed(**DELETING)), replica(2)], ""),
        # A replica that cannot be created is removed, too.
        ([replica(0), replica(1), replica(2, shoot=shoot(state="Failed"), **BARE)], "delete Shoot pool-2"),
        ([replica(0, users=1), _protected(1), replica(2, users=3)], ""),
    ],
)
def test_scale_in_removes_the_replica_that_costs_least(replicas: list[Replica], wanted: str) -> None:
    assert step(*replicas) == wanted


def test_a_set_that_cannot_shrink_says_why_each_replica_stays() -> None:
    replicas = [replica(0, users=2), _protected(1)]
    owner = set_of(replicas=1)
    made = plan(owner, replicas, NEW, NEW, NOW)
    ready, _ = conditions(owner, replicas, made, "", Rules())

    assert (ready["status"], ready["reason"]) == ("False", "ScaleInBlocked")
    assert "pool-0: its Seed has 2 Shoots: move or delete them" in ready["message"]
    assert "pool-1: annotation seedmanagement.gardener.cloud/protect-from-deletion" in ready["message"]


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [
        ([replica(0), replica(1)], "delete ManagedSeed pool-0"),
        ([replica(0, users=1), replica(1, **BARE)], "delete Shoot pool-1"),
        ([replica(0, users=1)], ""),
        ([], ""),
    ],
)
def test_a_set_that_is_deleted_removes_its_replicas_and_keeps_those_in_use(
    replicas: list[Replica], wanted: str
) -> None:
    assert step(*replicas, owner=set_of(deleting=True)) == wanted


def _old(ordinal: int, **parts: Any) -> Replica:
    return replica(ordinal, **{"shoot": shoot(revision=OLD), "managed_seed": managed_seed(revision=OLD), **parts})


@pytest.mark.parametrize(
    ("partition", "replicas", "wanted"),
    [
        (0, [_old(0), _old(1)], "update Shoot pool-1 new"),
        (0, [_old(0), _old(1, shoot=shoot())], "update ManagedSeed pool-1 new"),
        (0, [_old(0), _old(1, shoot=shoot(state="Processing"))], ""),
        (0, [_old(0), replica(1, managed_seed=managed_seed(registered=False))], ""),
        (0, [_old(0), replica(1)], "update Shoot pool-0 new"),
        (1, [_old(0), replica(1)], ""),
        (2, [_old(0), _old(1)], ""),
        # New templates may be what repairs a replica.
        (0, [_old(0), _old(1, shoot=shoot(state="Failed", revision=OLD))], "update Shoot pool-1 new"),
        (0, [_old(0), _old(1, shoot=shoot(state="Error", revision=OLD), **BARE)], "update Shoot pool-1 new"),
        (2, [_old(0), _old(1, shoot=shoot(state="Failed", revision=OLD))], "retry Shoot pool-1"),
        # A replica without ManagedSeed gets it from the templates of its Shoot.
        (1, [_old(0, **BARE), replica(1)], "create ManagedSeed pool-0 old"),
    ],
)
def test_an_update_rolls_from_the_highest_ordinal_down_to_the_partition(
    partition: int, replicas: list[Replica], wanted: str
) -> None:
    assert step(*replicas, current=OLD, owner=set_of(partition=partition)) == wanted


@pytest.mark.parametrize(("partition", "wanted"), [(0, NEW), (1, NEW), (2, OLD)])
def test_a_new_replica_below_the_partition_gets_the_templates_before(partition: int, wanted: str) -> None:
    assert step(replica(0), current=OLD, owner=set_of(partition=partition)) == f"create Shoot pool-1 {wanted}"


def test_an_ordinal_is_used_once_although_its_replica_is_gone() -> None:
    assert step(replica(0), owner=set_of(status={"nextReplicaNumber": 7})) == "create Shoot pool-7 new"


def test_the_ordinal_counts_as_used_once_the_shoot_is_created() -> None:
    made = plan(set_of(), [], NEW, NEW, NOW)

    pending = {"name": "pool-0", "reason": "ShootReconciling", "since": "2026-11-21T12:00:00Z"}
    assert made.intent == {"pendingReplica": pending}
    assert made.status["nextReplicaNumber"] == 1


def test_a_set_that_was_killed_before_the_creation_of_a_shoot_creates_it_with_the_same_ordinal() -> None:
    first = plan(set_of(), [], NEW, NEW, NOW)
    owner = set_of(status=first.intent)

    second = plan(owner, [], NEW, NEW, NOW + timedelta(hours=1))

    assert str(second.step) == "create Shoot pool-0"
    assert second.intent == first.intent


def test_a_set_that_was_killed_after_the_creation_of_a_shoot_counts_its_ordinal() -> None:
    waiting = [replica(0, shoot=shoot(state="Processing"), **BARE)]

    assert plan(set_of(), waiting, NEW, NEW, NOW).status["nextReplicaNumber"] == 1


def test_a_failed_shoot_is_retried_three_times_and_then_the_condition_says_what_to_do() -> None:
    """A retry counts only if the Shoot has failed after it."""
    owner, now, steps = set_of(replicas=1), NOW, []
    for _ in range(12):
        failed_at = now - timedelta(seconds=1)
        broken = shoot(state="Failed")
        broken["status"]["lastOperation"]["lastUpdateTime"] = failed_at.isoformat()
        replicas = [replica(0, shoot=broken, **BARE)]
        made = plan(owner, replicas, NEW, NEW, now)
        steps.append(made.step.action if made.step else None)
        owner = set_of(replicas=1, status={"replicas": 1, "pendingReplica": made.intent["pendingReplica"]})
        # The same failure, before the retry has begun, is no second one.
        assert plan(owner, replicas, NEW, NEW, now).step is None
        now += timedelta(minutes=1)

    assert steps[:4] == [Action.RETRY_SHOOT] * 3 + [None]
    assert set(steps[4:]) == {None}
    ready, _ = conditions(owner, replicas, made, "", Rules())
    assert "also after 3 retries: correct the Shoot or the template" in ready["message"]


def test_a_pending_replica_keeps_its_time_while_its_reason_is_the_same() -> None:
    waiting = [replica(0, shoot=shoot(state="Processing"), **BARE)]
    first = plan(set_of(replicas=1), waiting, NEW, NEW, NOW).intent["pendingReplica"]
    owner = set_of(replicas=1, status={"replicas": 1, "pendingReplica": first})
    later = NOW + timedelta(hours=1)

    assert plan(owner, waiting, NEW, NEW, later).intent["pendingReplica"] == first
    assert plan(owner, [replica(0, **BARE)], NEW, NEW, later).intent["pendingReplica"]["since"] > first["since"]
    assert plan(owner, [replica(0)], NEW, NEW, later).intent["pendingReplica"] is None


@pytest.mark.parametrize(
    ("replicas", "counted"),
    [
        ([_old(0), _old(1)], (2, 2, 2, 0, "pool-old")),
        ([_old(0), replica(1)], (2, 2, 1, 1, "pool-old")),
        ([_old(0), replica(1, seed=None)], (2, 1, 1, 1, "pool-old")),
        ([replica(0), replica(1, seed=None)], (2, 1, 0, 2, "pool-old")),
        ([replica(0), replica(1)], (2, 2, 2, 2, "pool-new")),
    ],
)
def test_the_status_counts_replicas_and_the_update_ends_when_all_are_ready(
    replicas: list[Replica], counted: tuple[int, int, int, int, str]
) -> None:
    status = plan(set_of(), replicas, OLD, NEW, NOW).status
    names = ("replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "currentRevision")

    assert tuple(status[each] for each in names) == counted
    assert (status["updateRevision"], status["selector"]) == ("pool-new", "pool=local")


def _member(name: str, kind: str = "Shoot", owner: str = "", **labels: str) -> Object:
    owners = [{"uid": owner, "controller": True}] if owner else []
    return {"kind": kind, "metadata": {"name": name, "labels": labels or LABELS, "ownerReferences": owners}}


@pytest.mark.parametrize(
    ("obj", "group"),
    [
        (_member("pool-0", owner="u-set"), "owned"),
        (_member("pool-0", owner="u-other"), ""),
        (_member("pool-0"), "adopt"),
        (_member("pool-0", pool="other"), ""),
        (_member("pool-x"), ""),
        (_member("pool-01"), ""),
        (_member("other-0"), ""),
        (_member("pool-0", owner="u-set", pool="other"), "release"),
    ],
)
def test_a_set_adopts_and_releases_objects_by_labels_and_names(obj: Object, group: str) -> None:
    sorted_ = members(set_of(), [obj])

    assert {name for name in ("owned", "adopt", "release") if getattr(sorted_, name)} == ({group} if group else set())


def test_both_objects_of_a_replica_are_released_together() -> None:
    pair = [_member("pool-0", owner="u-set", pool="other"), _member("pool-0", "ManagedSeed", owner="u-set")]

    assert [each["kind"] for each in members(set_of(), pair).release] == ["Shoot", "ManagedSeed"]


def test_a_managed_seed_is_adopted_with_its_shoot_alone() -> None:
    """Without its Shoot it would be a replica whose Shoot is gone, and the set would delete it."""
    alone = _member("pool-0", "ManagedSeed")

    assert members(set_of(), [alone]).adopt == ()
    assert members(set_of(), [alone, _member("pool-0", pool="other")]).adopt == ()
    assert members(set_of(), [alone, _member("pool-0", owner="u-other")]).adopt == ()
    assert members(set_of(), [alone, _member("pool-0")]).adopt == (alone, _member("pool-0"))
    assert members(set_of(), [alone, _member("pool-0", owner="u-set")]).adopt == (alone,)


def test_a_set_that_is_deleted_adopts_nothing() -> None:
    assert members(set_of(deleting=True), [_member("pool-0")]).adopt == ()


def test_the_ordinal_is_the_end_of_the_name() -> None:
    assert [ordinal_of("a-1", each) for each in ("a-1-0", "a-1-12", "a-1", "a-1-01", "b-0")] == [
        0,
        12,
        None,
        None,
        None,
    ]


def test_an_update_takes_no_version_back_that_maintenance_has_raised() -> None:
    owner = managed_seed_set()
    owner["spec"]["shootTemplate"]["spec"] = deepcopy(SHOOT["spec"])
    template = owner["spec"]["shootTemplate"]["spec"]
    template["provider"]["workers"][0]["machine"]["image"] = {"name": "local", "version": "1.0.0"}
    live = deepcopy(template)
    live["kubernetes"]["version"] = "1.37.2"
    live["provider"]["workers"][0]["machine"]["image"]["version"] = "1.1.0"
    revision = Revision(NEW, 1, {"spec": owner["spec"]})

    updated = shoot_of(owner, "pool-0", revision, {"spec": live})["spec"]
    assert updated["kubernetes"]["version"] == "1.37.2"
    assert updated["provider"]["workers"][0]["machine"]["image"]["version"] == "1.1.0"
    template["kubernetes"]["version"] = "1.38.0"
    assert shoot_of(owner, "pool-0", revision, {"spec": live})["spec"]["kubernetes"]["version"] == "1.38.0"


def test_the_history_keeps_the_newest_revisions_and_all_in_use() -> None:
    revisions = [Revision(f"r{number}", number, {}) for number in range(6)]

    assert [each.hash for each in outdated_revisions(revisions, {"r0", "r5"}, 2)] == ["r2", "r1"]


def test_a_collision_gives_the_same_templates_another_hash() -> None:
    assert revision_hash({"a": 1}, 0) == revision_hash({"a": 1}, 0) != revision_hash({"a": 1}, 1)


def test_a_step_that_was_refused_is_the_message_of_the_condition() -> None:
    made = plan(set_of(), [], NEW, NEW, NOW)
    assert isinstance(made, Plan)
    ready, rolled = conditions(set_of(), [], made, "quota exceeded", Rules())

    assert (ready["reason"], ready["message"]) == ("StepFailed", "cannot create Shoot pool-0: quota exceeded")
    assert rolled["status"] == "True"


def test_the_selector_is_shown_as_text() -> None:
    selector = LabelSelector.model_validate(
        {
            "matchLabels": {"b": "1", "a": "2"},
            "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}],
        }
    )

    assert selector_text(selector) == "a=2,b=1,c in (x,y)"

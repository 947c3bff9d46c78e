"""The caller's side of the extension contract, against a cache that a test fills by hand."""

import copy
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.seed import extension_objects as extension
from activities.seed.extension_objects import ExtensionObject
from api import resources
from api.contracts.operations import Wait

OPERATION = "gardener.cloud/operation"
TRIGGER = "2026-11-21T10:00:00.123456Z"
PENDING = {"gardener.cloud/timestamp": TRIGGER, "gardener.cloud/operation": "reconcile"}
READY: dict[str, Any] = {
    "apiVersion": "extensions.gardener.cloud/v1alpha1",
    "kind": "Infrastructure",
    "metadata": {
        "name": "demo",
        "namespace": "shoot--local--demo",
        "uid": "u1",
        "generation": 2,
        "annotations": {"gardener.cloud/timestamp": TRIGGER},
    },
    "spec": {"type": "local", "region": "local"},
    "status": {
        "observedGeneration": 2,
        "lastOperation": {"type": "Create", "state": "Succeeded", "lastUpdateTime": "2026-11-21T10:00:00Z"},
    },
}
QUICK = Wait.model_validate({"timeout": "PT0.3S", "severeAfter": "PT0.1S"})


class OneObjectCache:
    """Answers a wait from what it holds, at once or never."""

    def __init__(self, live: dict[str, Any] | None) -> None:
        self._live = live

    def of(self, _: object) -> "OneObjectCache":
        return self

    def get(self, *_: object) -> dict[str, Any] | None:
        return self._live

    async def wait_for(self, _name: str, _namespace: str, predicate: Any, timeout: float) -> Any:
        if answer := predicate(self._live):
            return answer
        raise TimeoutError


class Seed:
    """Remembers what it was asked to write."""

    def __init__(self, live: dict[str, Any] | None = None) -> None:
        self.live = live
        self.calls: list[tuple[str, Any]] = []

    async def find(self, *_: object) -> dict[str, Any] | None:
        return self.live

    async def apply_blindly(self, obj: dict[str, Any], manager: str) -> dict[str, Any]:
        self.calls.append(("apply", obj))
        return obj

    async def patch(self, *arguments: Any, subresource: str = "") -> None:
        self.calls.append((f"patch {subresource}".strip(), arguments[-1]))

    async def delete(self, *_: object, uid: str) -> bool:
        self.calls.append(("delete", uid))
        return True


def changed(**paths: Any) -> dict[str, Any]:
    """READY with some leaves replaced; ``metadata__generation=3``."""
    live = copy.deepcopy(READY)
    for path, value in paths.items():
        *parents, leaf = path.split("__")
        place = live
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return live


async def wait(live: dict[str, Any] | None, trigger: str | None = TRIGGER) -> dict[str, Any]:
    return await extension.wait_extension_ready(
        OneObjectCache(live),  # type: ignore[arg-type]
        resources.INFRASTRUCTURE,
        "demo",
        "shoot--local--demo",
        QUICK,
        trigger=trigger,
    )


async def test_an_object_that_succeeded_after_our_trigger_is_ready() -> None:
    assert (await wait(READY))["metadata"]["uid"] == "u1"


@pytest.mark.parametrize(
    ("live", "because"),
    [
        (None, "it does not exist"),
        (changed(metadata__generation=3), "has not seen the newest version"),
        (changed(metadata__annotations={"gardener.cloud/timestamp": "2026-11-21T09:00:00Z"}), "not visible yet"),
        (
            changed(
                metadata__annotations={"gardener.cloud/timestamp": TRIGGER, "gardener.cloud/operation": "reconcile"}
            ),
            "has not picked it up",
        ),
        (changed(status__lastOperation={"state": "Processing"}), "last operation is Processing"),
        (
            changed(
                metadata__generation=3,
                status__lastOperation={
                    "state": "Processing",
                    "lastUpdateTime": TRIGGER,
                    "description": "reconcile of Worker demo is running",
                },
            ),
            "its controller is at work: reconcile of Worker demo is running",
        ),
        (
            changed(status__lastOperation={"state": "Succeeded", "lastUpdateTime": "2026-11-21T09:59:59Z"}),
            "older than this one",
        ),
    ],
)
async def test_an_object_that_is_not_ready_in_time_is_named(live: dict[str, Any] | None, because: str) -> None:
    with pytest.raises(ApplicationError) as failure:
        await wait(live)

    assert because in str(failure.value)
    assert not failure.value.non_retryable


async def test_an_error_that_only_a_user_can_fix_ends_the_wait_at_once() -> None:
    """To retry wrong credentials for hours is useless."""
    live = changed(
        status__lastError={"description": "wrong key", "codes": ["ERR_INFRA_UNAUTHENTICATED"]},
        status__lastOperation={"state": "Error", "lastUpdateTime": "2026-11-21T10:00:01Z"},
    )
    with pytest.raises(ApplicationError) as failure:
        await wait(live)

    assert failure.value.type == "ERR_INFRA_UNAUTHENTICATED"
    assert failure.value.non_retryable
    assert "Infrastructure shoot--local--demo/demo failed: wrong key" in str(failure.value)


async def test_an_error_of_an_earlier_operation_does_not_end_the_wait() -> None:
    """The user corrected the credentials; the object still shows the old error until its controller reconciles it."""
    live = changed(
        metadata__annotations=PENDING,
        status__lastError={"description": "wrong key", "codes": ["ERR_INFRA_UNAUTHENTICATED"]},
        status__lastOperation={"state": "Error"},
    )
    with pytest.raises(ApplicationError) as failure:
        await wait(live)

    assert not failure.value.non_retryable


async def test_an_error_from_before_the_trigger_does_not_end_the_wait_either() -> None:
    """The controller has taken the annotation off, and has not said anything since."""
    live = changed(
        status__lastError={"description": "wrong credentials", "codes": ["ERR_INFRA_UNAUTHENTICATED"]},
        status__lastOperation={"type": "Create", "state": "Error", "lastUpdateTime": "2026-11-21T09:59:00Z"},
    )
    with pytest.raises(ApplicationError) as failure:
        await wait(live)
    assert not failure.value.non_retryable


async def test_a_second_run_of_the_same_operation_writes_nothing() -> None:
    """The activity was killed after its write: the retry finds the timestamp it wrote."""
    seed = Seed(READY)
    wanted = ExtensionObject(resources.INFRASTRUCTURE, "demo", "shoot--local--demo", {"type": "local"})
    await extension.apply_extension(seed, wanted, TRIGGER)  # type: ignore[arg-type]

    assert seed.calls == []


async def test_an_unchanged_infrastructure_is_left_alone_by_a_later_operation() -> None:
    seed = Seed(READY)
    wanted = ExtensionObject(resources.INFRASTRUCTURE, "demo", "shoot--local--demo", {"type": "local"})
    await extension.apply_extension(seed, wanted, "2026-11-21T11:00:00Z", only_on_change=True)  # type: ignore[arg-type]
    assert seed.calls == []

    other = ExtensionObject(resources.INFRASTRUCTURE, "demo", "shoot--local--demo", {"type": "other"})
    await extension.apply_extension(seed, other, "2026-11-21T11:00:00Z", only_on_change=True)  # type: ignore[arg-type]
    assert [verb for verb, _ in seed.calls] == ["apply"]


@pytest.mark.parametrize(
    ("spec", "inputs", "status", "asked"),
    [
        ({"type": "local"}, "a", {}, False),
        ({"type": "local"}, "b", {}, True),
        ({"type": "other"}, "a", {}, True),
        ({"type": "local"}, "", {}, True),
        ({"type": "local"}, "a", {"lastError": {"description": "broken"}}, True),
        ({"type": "local"}, "a", {"lastOperation": {"state": "Processing"}}, True),
    ],
)
async def test_an_object_is_triggered_again_only_after_a_change_of_a_dependency(
    spec: dict[str, Any], inputs: str, status: dict[str, Any], asked: bool
) -> None:
    """A reconciliation without a change writes nothing."""
    first, later = Seed(), "2026-11-21T11:00:00Z"
    place = resources.WORKER, "demo", "shoot--local--demo"
    await extension.apply_extension(first, ExtensionObject(*place, {"type": "local"}, inputs="a"), TRIGGER)  # type: ignore[arg-type]
    written = first.calls[0][1]
    annotations = {key: value for key, value in written["metadata"]["annotations"].items() if key != OPERATION}
    live = changed(metadata__annotations=annotations)
    live["status"] |= status

    second = Seed(live)
    await extension.apply_extension(second, ExtensionObject(*place, spec, inputs=inputs), later)  # type: ignore[arg-type]

    assert bool(second.calls) is asked


async def test_spec_and_trigger_are_written_in_one_request() -> None:
    """Two requests could be torn apart by a kill, and the controller would miss the change."""
    seed = Seed()
    wanted = ExtensionObject(resources.INFRASTRUCTURE, "demo", "shoot--local--demo", {"type": "local"})
    await extension.apply_extension(seed, wanted, TRIGGER)  # type: ignore[arg-type]

    ((_, written),) = seed.calls
    assert written["spec"] == {"type": "local"}
    assert written["metadata"]["annotations"] == {
        "gardener.cloud/operation": "reconcile",
        "gardener.cloud/timestamp": TRIGGER,
    }


async def delete(seed: Seed, trigger: str = TRIGGER) -> None:
    infrastructure = resources.INFRASTRUCTURE
    await extension.delete_extension(seed, infrastructure, "demo", "shoot--local--demo", trigger)  # type: ignore[arg-type]


async def test_deletion_is_confirmed_first_and_holds_on_to_the_uid() -> None:
    seed = Seed(READY)
    await delete(seed)

    (_, confirmation), deletion = seed.calls
    assert confirmation["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"] == "true"
    assert deletion == ("delete", "u1")


@pytest.mark.parametrize("live", [None, changed(metadata__deletionTimestamp="2026-11-21T10:00:00Z")])
async def test_a_deleted_object_is_not_deleted_again(live: dict[str, Any] | None) -> None:
    seed = Seed(live)
    await delete(seed)

    assert seed.calls == []


async def test_the_next_attempt_wakes_the_controller_of_an_object_that_is_going() -> None:
    """Its credentials were corrected; nothing else would make the controller reconcile it again."""
    seed = Seed(changed(metadata__deletionTimestamp="2026-11-21T10:00:00Z"))
    await delete(seed, "2026-11-21T11:00:00.000000Z")

    [(call, patch)] = seed.calls
    assert call == "patch"
    assert patch["metadata"]["annotations"]["gardener.cloud/timestamp"] == "2026-11-21T11:00:00.000000Z"


ERROR = {"description": "wrong key", "codes": ["ERR_INFRA_UNAUTHENTICATED"]}
LATER = "2026-11-21T10:00:00.900000Z"
"""In the second of the object's last report."""


@pytest.mark.parametrize("operation", ["apply", "restore", "migrate", "delete"])
async def test_an_error_is_removed_before_the_controller_is_triggered_again(operation: str) -> None:
    """Asked in the second in which it was reported, it would end the wait, and the operation, at once."""
    failed = changed(status__lastError=ERROR, status__lastOperation__state="Error")
    if operation == "delete":
        failed["metadata"]["deletionTimestamp"] = "2026-11-21T09:00:00Z"
    seed: Any = Seed(failed)
    place = resources.INFRASTRUCTURE, "demo", "shoot--local--demo"
    wanted = ExtensionObject(*place, {"type": "local"})
    match operation:
        case "apply":
            await extension.apply_extension(seed, wanted, LATER)
        case "restore":
            await extension.restore_extension(seed, wanted, LATER, None)
        case "migrate":
            await extension.migrate_extension(seed, *place, LATER)
        case "delete":
            await delete(seed, LATER)

    assert seed.calls[0] == ("patch status", {"status": {"lastError": None}})
    assert seed.calls[-1][1]["metadata"]["annotations"]["gardener.cloud/timestamp"] == LATER


async def test_an_error_ends_no_wait_for_a_deletion_that_was_requested_later() -> None:
    """The cache may still hold what was reported before."""
    live = changed(
        metadata__deletionTimestamp="2026-11-21T09:00:00Z",
        status__lastError=ERROR,
        status__lastOperation={"type": "Delete", "state": "Error", "lastUpdateTime": "2026-11-21T10:00:00Z"},
    )
    assert not (await failed_deletion(live, LATER)).non_retryable


@pytest.mark.parametrize(("said_at", "final"), [("2026-11-21T09:59:00Z", False), ("2026-11-21T10:00:01Z", True)])
async def test_only_an_error_of_this_attempt_ends_the_wait_for_a_deletion(said_at: str, final: bool) -> None:
    live = changed(
        metadata__deletionTimestamp="2026-11-21T09:00:00Z",
        status__lastError=ERROR,
        status__lastOperation={"type": "Delete", "state": "Error", "lastUpdateTime": said_at},
    )
    assert (await failed_deletion(live, TRIGGER)).non_retryable is final


async def failed_deletion(live: dict[str, Any], trigger: str) -> ApplicationError:
    """How the wait for it ends."""
    cache: Any = OneObjectCache(live)
    no_server: Any = None
    place = resources.INFRASTRUCTURE, "demo", "shoot--local--demo"
    with pytest.raises(ApplicationError) as failure:
        await extension.wait_extension_deleted(no_server, cache, *place, QUICK, trigger)
    return failure.value

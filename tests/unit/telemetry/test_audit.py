"""The audit log of operations: one line each, with all that happened and no secret."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from api.contracts.flows import FailedTask, FinishOperation, FlowProgress, TaskProgress, TaskState
from api.contracts.operations import OperationType
from tests.unit.telemetry.test_tracing import FLOW, SHOOT, TASK
from workers.controller_manager.audit import AuditLog, record

NOW = datetime(2026, 11, 21, 10, 5, tzinfo=UTC)
FAILED = FailedTask(name="deploy_etcds", message="no access", codes=("ERR_INFRA_UNAUTHORIZED",), at=NOW, attempt=2)
REQUEST = FinishOperation(
    task=TASK, attempt=2, state="Failed", description="deploy_etcds failed", failed=(FAILED,), workflow_id=FLOW
)
PROGRESS = FlowProgress(
    tasks=(
        TaskProgress(name="sync_cluster", title="Sync cluster", state=TaskState.KEPT),
        TaskProgress(name="deploy_etcds", title="Deploy etcds", state=TaskState.FAILED, started=NOW, ended=NOW),
    )
)
LIVE = {
    "metadata": {
        "annotations": {
            "gardener.cloud/created-by": "alice",
            "gardener.cloud/changed-by": "bob",
            "deletion.gardener.cloud/confirmed-by": "carol",
        }
    }
}


def test_a_record_says_who_what_when_and_what_came_of_it() -> None:
    assert record(REQUEST, LIVE, PROGRESS, NOW) == {
        "id": FLOW,
        "time": "2026-11-21T10:05:00.000+00:00",
        "user": "bob",
        "operation": "Reconcile",
        "shoot": {"namespace": "garden-local", "name": "demo", "uid": "c0ffee"},
        "seed": "seed-1",
        "generation": 3,
        "attempt": 2,
        "started": "2026-11-21T10:00:00.000000Z",
        "result": "Failed",
        "description": "deploy_etcds failed",
        "errors": [{"task": "deploy_etcds", "message": "no access", "codes": ["ERR_INFRA_UNAUTHORIZED"]}],
        "tasks": [
            {"name": "sync_cluster", "state": "Kept", "started": None, "ended": None},
            {"name": "deploy_etcds", "state": "Failed", "started": NOW.isoformat(), "ended": NOW.isoformat()},
        ],
    }


def test_a_deletion_is_told_of_who_confirmed_it() -> None:
    deletion = REQUEST.model_copy(update={"task": TASK.model_copy(update={"operation": OperationType.DELETE})})

    assert record(deletion, LIVE, None, NOW)["user"] == "carol"


async def test_lines_are_appended(tmp_path: Path) -> None:
    """Several processes may write to one file, and a Shoot may be gone when its record is written."""

    class Garden:
        async def find(self, *_: Any) -> None:
            return None

    class Flow:
        async def query(self, *_: Any, **__: Any) -> FlowProgress:
            return PROGRESS

    file = tmp_path / "audit.jsonl"
    audit = AuditLog(file, Garden())  # type: ignore[arg-type]
    temporal: Any = SimpleNamespace(get_workflow_handle=lambda _: Flow())
    await audit.ended(REQUEST, temporal)
    await audit.ended(REQUEST, temporal)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [FLOW, FLOW]
    assert lines[0]["shoot"]["name"] == SHOOT.name
    assert file.stat().st_mode & 0o007 == 0

"""A gardenlet persists states of complete Shoots that stay, never of Shoots that move."""

from typing import Any

import pytest

from workers.gardenlet.shoot_states import stays


def shoot(last: dict[str, str] | None, *, spec: str = "seed-1", status: str = "seed-1", **metadata: Any) -> Any:
    return {
        "metadata": metadata,
        "spec": {"seedName": spec},
        "status": {"seedName": status, "technicalID": "shoot--a--b", "lastOperation": last},
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (shoot({"type": "Create", "state": "Succeeded"}), True),
        (shoot({"type": "Reconcile", "state": "Error"}), True),
        (shoot({"type": "Restore", "state": "Succeeded"}), True),
        (shoot({"type": "Create", "state": "Processing"}), False),
        (shoot({"type": "Restore", "state": "Error"}), False),
        (shoot({"type": "Migrate", "state": "Processing"}), False),
        (shoot({"type": "Migrate", "state": "Succeeded"}, status="seed-2", spec="seed-2"), False),
        (shoot({"type": "Reconcile", "state": "Succeeded"}, spec="seed-2"), False),
        (shoot({"type": "Delete", "state": "Processing"}, deletionTimestamp="now"), False),
        (shoot(None), False),
    ],
)
def test_only_states_of_complete_shoots_are_persisted(found: Any, expected: bool) -> None:
    """A state that a half-dismantled seed wrote over the last good one would lose machines."""
    assert stays(found, "seed-1") is expected

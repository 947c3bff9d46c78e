"""Pools that wait for an in-place update."""

from typing import Any

import pytest

from api.decisions.in_place_updates import AUTO, MANUAL, begun, ended, outdated, pending_of, settled, status_of
from api.names import in_place_hash_of


def pool(name: str, strategy: str = "AutoInPlaceUpdate", version: str = "1.0.0") -> dict[str, Any]:
    return {"name": name, "updateStrategy": strategy, "machine": {"image": {"name": "local", "version": version}}}


def shoot(*pools: dict[str, Any], version: str = "1.36.3", **status: Any) -> dict[str, Any]:
    return {"spec": {"kubernetes": {"version": version}, "provider": {"workers": list(pools)}}, "status": status}


def worker(of: dict[str, Any], *without: str) -> dict[str, Any]:
    """A Worker all of whose machines have the settings of a Shoot."""
    pools = of["spec"]["provider"]["workers"]
    hashes = {each["name"]: in_place_hash_of(of, each) for each in pools if each["name"] not in without}
    return {"status": {"inPlaceUpdates": {"workerPoolToHashMap": hashes}}}


A, M, R = pool("a"), pool("m", "ManualInPlaceUpdate"), pool("r", "AutoRollingUpdate")
OLD = shoot(A, M, R)


@pytest.mark.parametrize(
    ("new", "auto", "manual"),
    [
        (OLD, set(), set()),
        (shoot(A, M, R, version="1.36.9"), set(), set()),
        (shoot(A, M, R, version="1.37.1"), {"a"}, {"m"}),
        (shoot(pool("a", version="1.0.1"), M, R), {"a"}, set()),
        (shoot(A, pool("m", "ManualInPlaceUpdate", "1.0.1"), pool("r", "AutoRollingUpdate", "1.0.1")), set(), {"m"}),
        (shoot(A, M, R, pool("new")), set(), set()),
        (shoot(A, M, credentials={"rotation": {"serviceAccountKey": {"lastInitiationTime": "t"}}}), {"a"}, {"m"}),
    ],
)
def test_a_pool_is_outdated_if_its_settings_need_a_drain(new: dict[str, Any], auto: set[str], manual: set[str]) -> None:
    assert outdated(new, worker(OLD)) == {AUTO: auto, MANUAL: manual}


@pytest.mark.parametrize("known", [None, {}, worker(OLD, "a", "m")])
def test_machines_of_a_new_pool_are_not_outdated(known: dict[str, Any] | None) -> None:
    assert outdated(shoot(A, M, version="1.37.1"), known) == {AUTO: set(), MANUAL: set()}


def test_an_update_stays_pending_until_the_worker_is_ready() -> None:
    """A user who changes the pool back while its machines are updated has machines of both settings."""
    before = pending_of(shoot(inPlaceUpdates={"pendingWorkerUpdates": {AUTO: ["a", "gone"]}}))
    assert begun(OLD, worker(OLD), before) == {AUTO: {"a"}, MANUAL: set()}
    assert ended(OLD, worker(OLD)) == {AUTO: set(), MANUAL: set()}


def test_a_manual_update_is_pending_also_when_the_worker_is_ready() -> None:
    new = shoot(A, M, version="1.37.1")
    assert begun(new, worker(OLD), pending_of(OLD)) == {AUTO: {"a"}, MANUAL: {"m"}}
    assert ended(new, worker(OLD)) == {AUTO: set(), MANUAL: {"m"}}
    assert status_of(ended(new, worker(OLD))) == {"pendingWorkerUpdates": {AUTO: None, MANUAL: ["m"]}}
    assert status_of(ended(new, worker(new))) is None


def test_a_manual_update_ends_when_its_last_node_is_updated() -> None:
    """The owner updates nodes while nothing reconciles the Shoot. Automatic updates end with a reconciliation."""
    pending = {"pendingWorkerUpdates": {AUTO: ["a"], MANUAL: ["m"]}}
    new = shoot(A, M, version="1.37.1", inPlaceUpdates=pending)
    assert settled(new, worker(OLD)) == {AUTO: {"a"}, MANUAL: {"m"}}
    assert settled(new, worker(new)) == {AUTO: {"a"}, MANUAL: set()}
    assert settled(shoot(A, M, version="1.37.1"), worker(OLD)) == {AUTO: set(), MANUAL: set()}

"""Names, plans and garbage of snapshots; the form of deltas; times of schedules."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcd import delta, snapshots
from etcd.delta import Change, DamagedDelta, DeltaWriter
from etcd.snapshots import Snapshot

HOUR, DAY = 3600, 86400


def full(last: int, created: int = 0, **rest) -> Snapshot:
    return Snapshot("Full", 0, last, created or last, **rest)


def incr(first: int, last: int) -> Snapshot:
    return Snapshot("Incr", first, last, last)


def test_names_are_those_of_etcd_backup_restore():
    assert full(123, 1700000000).name == "Full-00000000-00000123-1700000000.gz"
    assert incr(124, 1234567890).name == "Incr-00000124-1234567890-1234567890.gz"
    assert full(5, 6, compressed=False, final=True).name == "Full-00000000-00000005-6.final"
    assert snapshots.directory("entry/etcd-main") == "entry/etcd-main/v2/"


@pytest.mark.parametrize("snapshot", [full(123, 17), incr(1, 2), full(5, 6, compressed=False, final=True)])
def test_names_of_snapshots_are_parsed(snapshot):
    assert snapshots.parse(f"entry/etcd-main/v2/{snapshot.name}") == snapshot


@pytest.mark.parametrize(
    "name",
    ["", "Full-1-2-3", ".uploads", "Full-00000000-00000123-1.gz.part", "Other-00000000-00000001-1"],
)
def test_other_objects_are_no_snapshots(name):
    assert snapshots.parse(name) is None


def test_the_best_plan_reaches_the_highest_revision_with_the_fewest_deltas():
    found = [full(10), incr(11, 20), full(20), incr(21, 30)]
    best, other = snapshots.plans(found)
    assert (best.full, best.deltas, best.revision) == (full(20), (incr(21, 30),), 30)
    assert (other.full, other.deltas, other.revision) == (full(10), (incr(11, 20), incr(21, 30)), 30)


def test_deltas_behind_a_gap_are_not_used():
    (plan,) = snapshots.plans([full(10), incr(11, 20), incr(25, 30)])
    assert plan.revision == 20


def test_a_delta_that_overlaps_a_full_snapshot_follows_it():
    (plan,) = snapshots.plans([full(10), incr(5, 15)])
    assert plan.revision == 15


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.booleans()), max_size=12))
def test_no_plan_ever_skips_a_revision(drawn):
    found = [
        full(start, number + 1) if is_full else incr(start + 1, start + 1 + length)
        for number, (start, length, is_full) in enumerate(drawn)
    ]
    plans = list(snapshots.plans(found))
    assert bool(plans) == any(is_full for _, _, is_full in drawn)
    for plan in plans:
        reached = plan.full.last
        for item in plan.deltas:
            assert item.first <= reached + 1
            assert item.last > reached
            reached = item.last
        assert reached == plan.revision


def test_garbage_collection_thins_out_exponentially():
    now = 1_800_000_000
    every_ten_minutes = [full(number, now - age) for number, age in enumerate(range(40 * DAY, -1, -600))]
    gone = set(snapshots.unneeded(every_ten_minutes, now))
    ages = [now - item.created for item in every_ten_minutes if item not in gone]

    assert min(ages) == 0
    assert max(ages) < 28 * DAY
    assert len([age for age in ages if age < HOUR]) <= 7
    assert 22 <= len([age for age in ages if HOUR <= age < DAY]) <= 24
    assert 5 <= len([age for age in ages if DAY <= age < 7 * DAY]) <= 7
    assert 2 <= len([age for age in ages if age >= 7 * DAY]) <= 4


def test_garbage_collection_keeps_the_last_two_ways_to_restore():
    """However old they are, and with every delta that either of them needs."""
    found = [full(10, 1), incr(11, 20), full(20, 2), incr(21, 30), full(30, 3), incr(31, 40)]
    gone = snapshots.unneeded(found, 1_800_000_000)
    assert gone == [full(10, 1), incr(11, 20)]


CHANGES = [Change(2, "YQ==", "MQ=="), Change(3, "YQ==", None), Change(3, "Yg==", ""), Change(7, "Yw==", "eA==")]


def written() -> bytes:
    writer = DeltaWriter()
    for change in CHANGES:
        writer.add(change)
    assert (writer.first, writer.last, writer.count) == (2, 7, 4)
    return writer.finish()


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_delta_reads_back_in_chunks_of_any_size(size):
    content = written()
    assert list(delta.read(content[at : at + size] for at in range(0, len(content), size))) == CHANGES


def test_a_delta_that_was_cut_anywhere_is_damaged():
    content = written()
    for length in range(len(content)):
        with pytest.raises(DamagedDelta):
            list(delta.read([content[:length]]))


def test_a_delta_whose_lines_were_altered_is_damaged():
    lines = gzip.decompress(written()).splitlines(keepends=True)
    for altered in ([lines[1], lines[0], *lines[2:]], lines[1:], lines[:-1], [*lines[:3], *lines[4:]]):
        with pytest.raises(DamagedDelta):
            list(delta.read([gzip.compress(b"".join(altered))]))


@given(st.binary(max_size=200))
def test_no_garbage_is_taken_for_a_delta(content):
    with pytest.raises(DamagedDelta):
        list(delta.read([content]))


FINAL = full(20, 300, final=True)


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ([full(10).name], None),
        ([full(10).name, FINAL.name], 20),
        ([full(10).name, "Fence-00000010"], 10),
        # A superseded source came back and took one: too late.
        ([full(10).name, "Fence-00000010", FINAL.name], 10),
        (["Fence-00000010", "Fence-00000012"], 10),
    ],
)
def test_a_history_ends_with_its_final_snapshot_or_at_a_fence(names, end):
    assert snapshots.end_of(names) == end


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Full-00000000-00000010-1.gz"], False),
        (["Fence-00000010"], True),
        (["Fence-00000010", "entry/v2/Silent-00000010"], False),
        (["Fence-00000007", "Fence-00000010", "Silent-00000010"], True),
        (["Full-00000000-00000010-1.gz.final", "Fence-00000010"], False),
    ],
)
def test_a_superseded_source_counts_as_serving_until_a_wait_is_recorded(names, expected):
    assert snapshots.may_serve(names) is expected


def test_snapshots_after_the_end_do_not_count():
    names = [full(10).name, incr(11, 15).name, snapshots.fence_name(15), incr(16, 20).name, FINAL.name]
    assert snapshots.counted(names) == [full(10), incr(11, 15)]
    assert snapshots.counted([full(10).name, "other"]) == [full(10)]

"""A second landscape: it comes up next to the first one, keeps away from it, and goes without a trace.

These tests compare what the machine has before and after it, so no other test changes a landscape meanwhile. They run
in the order in which they stand.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.landscape.conftest import Landscape, run
from tests.landscape.networks import connects

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

NAME = "test-own"


@pytest.fixture(scope="module")
def before(landscape: Landscape) -> dict[str, set[str]]:
    """The machine before this landscape; the landscape of the other tests exists already."""
    return _traces()


@pytest.fixture(scope="module")
def own(before: dict[str, set[str]]) -> Iterator[Landscape]:
    own = Landscape(NAME)
    own.up()
    yield own
    own.down()


def test_a_landscape_comes_up_next_to_another_one(own, landscape):
    """Tests never touch a user's demo."""
    mine, other = own.status, landscape.status

    assert mine["ready"], mine
    assert other["ready"], other
    assert not set(own.pids.values()) & set(landscape.pids.values())
    servers = [{cluster["server"] for cluster in status["clusters"].values()} for status in (mine, other)]
    assert not servers[0] & servers[1]


def test_a_seed_reaches_nothing_of_another_landscape(own, landscape):
    assert connects(own, "seed-1", own.status["dns"]["server"], 7233)
    assert not connects(own, "seed-1", landscape.status["dns"]["server"], 7233)


def test_down_leaves_nothing_behind(own, before, landscape):
    """Processes, mounts, namespaces, links, routes, control groups, rules and files: all as before."""
    own.up()
    namespaces = {f"gardener-{NAME}-{cluster}" for cluster in ("garden", "cloud", "seed-1", "seed-2")}
    assert namespaces <= _traces()["network namespaces"], "this test would see nothing otherwise"

    own.down()

    after = _traces()
    left = {what: sorted(found - before[what]) for what, found in after.items()}
    assert {what: found for what, found in left.items() if found} == {}
    assert after["rules of iptables"] == before["rules of iptables"]
    assert after["forwarding"] == before["forwarding"]
    assert landscape.status["ready"], "the other landscape"


def test_a_landscape_comes_up_again_after_down(own):
    own.down()

    own.up()

    assert own.status["ready"]


def _traces() -> dict[str, set[str]]:
    """All that a landscape leaves on a machine while it is up, but for what belongs to other landscapes."""
    found = {
        "processes": set(_processes()),
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "network namespaces": set(_entries("/run/netns")),
        "links": set(_entries("/sys/class/net")),
        "addresses": set(run("ip", "-oneline", "-4", "address").splitlines()),
        "routes": set(run("ip", "route").splitlines()),
        "control groups": {f"{path}" for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()},
        "rules of iptables": set(_rules_of_iptables()),
        "forwarding": {Path("/proc/sys/net/ipv4/ip_forward").read_text()},
        "landscapes": set(_entries(str(Path.home() / ".local/state/gardener/landscapes"))),
        "sockets": {f"/run/gardener/{entry}" for entry in _entries("/run/gardener")},
        "results of CNI": set(_results_of_cni()),
        "links to logs": {os.readlink(f"/var/log/containers/{entry}") for entry in _entries("/var/log/containers")},
    }
    return {what: {line for line in lines if not _belongs_to_another(line)} for what, lines in found.items()}


def _rules_of_iptables() -> Iterator[str]:
    """Without counters: packets of others are counted, too."""
    for table in ("filter", "nat", "mangle", "raw"):
        yield from (f"{table} {rule}" for rule in run("iptables", "--table", table, "--list-rules").splitlines())


def _results_of_cni() -> Iterator[str]:
    """A loopback's result names its sandbox only; another one names the landscape, too."""
    entries = _entries("/var/lib/cni/results")
    foreign = {
        sandbox for entry in entries if _belongs_to_another(entry) for sandbox in re.findall("[0-9a-f]{64}", entry)
    }
    return (entry for entry in entries if not any(sandbox in entry for sandbox in foreign))


def _processes() -> Iterator[str]:
    """Processes of landscapes, by what they run or where they run; one that init has yet to bury runs nothing."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (entry / "cgroup").read_text()
        except OSError:
            continue
        if command and (re.search(r"/landscapes/|/run/gardener/", command) or "gardener-" in group):
            yield f"{entry.name} {command} {re.findall('gardener-[a-z0-9-]+', group)[:1]}"


_ANOTHER = re.compile(rf"(/landscapes/|/run/gardener/|gardener-)(?!{NAME}[-/])(?!{NAME}$)[a-z0-9]")


def _belongs_to_another(line: str) -> bool:
    return bool(_ANOTHER.search(line)) and NAME not in line


def _entries(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []

"""Which specs a run of conformance tests chooses."""

import re

import pytest

from tests.conformance.specs import UsageError, conformance_specs, exactly, focused, shard

NODES = "[sig-node] Pods should run (root,0644,tmpfs) with labels A.B [Conformance]"
DISCOVERY = "[sig-api-machinery] Discovery should find each group [Conformance]"
LISTING = f"""The following spec names can be used with 'ginkgo run --focus/skip':
    ../common/node/pods.go:12: {NODES}
    ../apimachinery/discovery.go:34: {DISCOVERY}
    ../apimachinery/discovery.go:56: {DISCOVERY}
    ../apps/daemon_set.go:7: [sig-apps] Daemon set should run [Conformance] [Serial]
    ../apps/cronjob.go:8: [sig-apps] CronJob should wait [Slow]

"""


def test_serial_specs_and_those_without_the_label_are_left_out() -> None:
    assert conformance_specs(LISTING) == [DISCOVERY, NODES]


def test_all_shards_together_have_each_spec_once() -> None:
    names = [f"[sig] {number}" for number in range(10)]
    shards = [shard(names, f"{number}/3") for number in (1, 2, 3)]

    assert sorted(name for each in shards for name in each) == sorted(names)
    assert {len(each) for each in shards} == {3, 4}


@pytest.mark.parametrize("which", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_a_shard_that_does_not_exist_is_refused(which: str) -> None:
    with pytest.raises(UsageError, match="K/N"):
        shard([NODES], which)


def test_a_focus_chooses_by_regular_expression() -> None:
    assert focused([DISCOVERY, NODES], r"sig-(node|apps)\]") == [NODES]
    with pytest.raises(UsageError, match=r"\(broken"):
        focused([NODES], "(broken")


def test_the_expression_for_ginkgo_matches_the_chosen_specs_only() -> None:
    """Names contain parentheses, brackets and dots; one spec's name can begin or end with another's."""
    expression = exactly([NODES, DISCOVERY])

    assert re.search(expression, f"Kubernetes e2e suite {NODES}")
    assert re.search(expression, f"Kubernetes e2e suite {DISCOVERY}")
    assert not re.search(expression, f"Kubernetes e2e suite {NODES} [Slow]")
    assert not re.search(expression, f"Kubernetes e2e suite [sig-cli] {NODES}")
    assert not re.search(expression, f"Kubernetes e2e suite {NODES.replace('A.B', 'AxB')}")

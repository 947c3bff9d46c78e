"""When nodes take over new configurations: one after the other."""

import asyncio

import pytest

from api.durations import parse_duration
from kube.cache import Caches
from tests.unit.kube.waiting import until
from workers.resource_manager.node_agent_delays import NodeAgentDelays, delays

NODES = "/api/v1/nodes"
DELAY = "node-agent.gardener.cloud/reconciliation-delay"


@pytest.mark.row("node-agent delays", "delay of node i of n, by name: min + i*(max-min)/n")
@pytest.mark.parametrize(
    ("nodes", "shortest", "longest", "wanted"),
    [
        ([], 0, 300, {}),
        (["a"], 0, 300, {"a": "0s"}),
        (["b", "a"], 0, 300, {"a": "0s", "b": "150s"}),
        (["c", "a", "b"], 10, 310, {"a": "10s", "b": "110s", "c": "210s"}),
        (["a", "b"], 0, 0, {"a": "0s", "b": "0s"}),
        (["a", "b", "c", "d"], 0, 2, {"a": "0s", "b": "0.5s", "c": "1s", "d": "1.5s"}),
    ],
)
def test_delays_are_spread_over_the_time_there_is(nodes, shortest, longest, wanted):
    found = delays(nodes, shortest, longest)

    assert found == wanted
    for delay in found.values():
        assert parse_duration(delay).total_seconds() == float(delay[:-1]), "the node agent reads it the same way"


@pytest.mark.row("node-agent delays", "written to the annotation of each Node when the set of nodes changes")
async def test_delays_are_written_again_when_a_node_joins_or_leaves(target, clients):
    _, client = clients
    caches = Caches(client)

    def told():
        return {
            name: (node["metadata"].get("annotations") or {}).get(DELAY)
            for (path, _, name), node in target.objects.items()
            if path == NODES
        }

    target.put(NODES, {"metadata": {"name": "a"}})
    target.put(NODES, {"metadata": {"name": "b", "annotations": {DELAY: "7s", "other": "stays"}}})
    running = asyncio.create_task(NodeAgentDelays(client, caches, 0, 60).run())
    try:
        await until(lambda: told() == {"a": "0s", "b": "30s"})
        target.put(NODES, {"metadata": {"name": "c"}})
        await until(lambda: told() == {"a": "0s", "b": "20s", "c": "40s"})
        target.remove(NODES, "a")
        await until(lambda: told() == {"b": "0s", "c": "30s"})
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caches.close()
    assert target.find(NODES, "b")["metadata"]["annotations"]["other"] == "stays"

"""Steps of a Shoot's change from IPv4 to both IP families, which its constraints record."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, patch_cluster
from activities.components import coredns
from activities.heartbeat import heartbeating
from api import resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions import dual_stack
from api.decisions.conditions import Finding, set_conditions
from api.times import timestamp
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.edit import edit
from kube.objects import label_selector

DNS_SECONDS = 60.0
"""How long a reconciliation waits for pods of CoreDNS that it replaces."""


class DualStackActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def begin_dual_stack_migration(self, task: ShootTask) -> TaskResult:
        """Write constraint DualStackNodesMigrationReady if the Shoot has run with IPv4 and wants both families now.

        A second run finds the constraint, and writes it to the Cluster object if the first run has not.
        """

        def begun(live: Object) -> Sequence[Finding] | None:
            return [dual_stack.nodes_finding(())] if dual_stack.begins(live) else None

        return await self._write(task, begun)

    @activity.defn
    async def check_node_pod_cidrs(self, task: ShootTask) -> TaskResult:
        """Check how far the Shoot's change to both families is, and write it to its constraints.

        If this reconciliation replaces the pods of CoreDNS, it waits for them, for a minute at most. Nothing is read
        from the Shoot's cluster if no change is in progress. A second run finds the constraints of the first one and
        the same state of the cluster, or a later one.
        """
        view = await self._clusters.cluster(task.technical_id)
        if not any(dual_stack.status_of(view.shoot, each) for each in dual_stack.CONSTRAINTS):
            return TaskResult(note="no change of IP families")
        shoot = await self._clusters.shoot(task.technical_id)
        pods = await _dns_pods(shoot, until_replaced=dual_stack.status_of(view.shoot, dual_stack.DNS_READY) != "")
        network, nodes, service = await asyncio.gather(
            self._clusters.seed.find(resources.NETWORK, task.shoot.name, task.technical_id),
            shoot.list(resources.NODE),
            shoot.find(resources.SERVICE, coredns.SERVICE, coredns.NAMESPACE),
        )
        reported = ((network or {}).get("status") or {}).get("ipFamilies") or ()
        addresses = (service or {"spec": {}})["spec"].get("clusterIPs") or ()
        # By the constraints of the Cluster object: by these, this reconciliation has configured the components.
        found = dual_stack.findings_after(view.shoot, reported, nodes, pods, addresses)
        return await self._write(task, lambda _: found)

    async def _write(self, task: ShootTask, findings: Callable[[Object], Sequence[Finding] | None]) -> TaskResult:
        """Replace the constraints of the migration in the Shoot and in its Cluster object; None changes nothing."""
        written: list[Finding] = []
        constraints: list[dict[str, Any]] = []

        def changed(live: Object) -> dict[str, Any] | None:
            known = (live.get("status") or {}).get("constraints") or []
            wanted = findings(live)
            written[:] = wanted or ()
            constraints[:] = known
            if wanted is None:
                return None
            types = {each.type for each in wanted}
            kept = [each for each in known if each["type"] not in dual_stack.CONSTRAINTS or each["type"] in types]
            new = [
                {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
                for each in wanted
            ]
            constraints[:] = set_conditions(kept, new, timestamp())
            return {"status": {"constraints": list(constraints)}} if constraints != known else None

        shoot = task.shoot
        await edit(
            self._clusters.garden,
            resources.SHOOT,
            shoot.name,
            shoot.namespace,
            changed,
            uid=shoot.uid,
            subresource="status",
        )
        patch = {"spec": {"shoot": {"status": {"constraints": list(constraints)}}}}
        await patch_cluster(self._clusters.seed, task.technical_id, patch)
        return TaskResult(note="; ".join(f"{each.type} is {each.status}" for each in written))


async def _dns_pods(shoot: KubeClient, *, until_replaced: bool) -> Sequence[Object]:
    """Pods of CoreDNS; with ``until_replaced``, once all of them have an address of each family, or a minute later."""
    async with Cache(shoot, resources.POD, coredns.NAMESPACE, labels=label_selector(coredns.SELECT)) as pods:

        def replaced(_: object) -> bool:
            return not until_replaced or dual_stack.dns_finding(pods.list()).status == "True"

        with contextlib.suppress(TimeoutError):
            await heartbeating(pods.wait_until(replaced, DNS_SECONDS, coredns.NAMESPACE))
        return pods.list()

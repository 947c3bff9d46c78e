"""Checks each shoot of the seed, and writes the results into its status."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import Counter

from activities.clusters import Clusters
from activities.components import cluster_autoscaler, gateway, vpa
from activities.components.operating_system_config import CHECKSUM_APPLIED, CHECKSUM_OF_SECRET
from activities.seed.backups import backup_entries_of
from activities.seed.extensions import says_taken_over
from activities.seed.facts import may_grow
from activities.seed.namespace import is_foreign
from api import constants, resources
from api.decisions import dual_stack, in_place_updates
from api.decisions.conditions import (
    CHECK_ERROR,
    CONDITIONS,
    Finding,
    Operation,
    combine,
    merge,
    not_checked,
    status_label,
    wanted,
)
from api.names import backup_entry_names, node_agent_secret_name
from api.resources import Resource
from kube.cache import Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.errors import AnswerTooLarge, ApiError, Conflict, Forbidden, NotFound
from workers.gardenlet.care import certificates, checks, constraints, garbage, names, webhooks
from workers.gardenlet.config import ShootCareConfig
from workers.gardenlet.extensions_ready import Heartbeats
from workers.gardenlet.garden_caches import BY_TECHNICAL_ID, own_seed, shoots_here

log = logging.getLogger(__name__)

_CHECK_SECONDS = 10.0
_NOT_SOONER_SECONDS = 2.0
"""Shortest time between two checks of a shoot, even if its control plane changes more often."""
_CRDS_SECONDS = 10 * 60.0
"""Time for which a finding about CRDs is kept. The API server cannot leave out their schemas, and these are large."""
_STUCK_SECONDS = garbage.STUCK.total_seconds()
"""Time between two searches for pods that do not end: such a search lists all pods."""
_ENDED_PODS = "status.phase!=Pending,status.phase!=Running"
_EXTENSIONS = (
    resources.CONTROL_PLANE,
    resources.WORKER,
    resources.NETWORK,
    resources.INFRASTRUCTURE,
    resources.EXTENSION,
    resources.CONTAINER_RUNTIME,
)
_BY_SOURCE_ENTRY = "source BackupEntry"
"""Index of Shoots by the name that the BackupEntry of their source's bucket has, if they come from another seed."""
_OURS = (*CONDITIONS, constants.CONDITION_SOURCE_SEED_CLEANED_UP)
_WATCHED = (resources.DEPLOYMENT, resources.ETCD, resources.MANAGED_RESOURCE, *_EXTENSIONS)


CHECKS = Counter("gardener_shoot_care_checks_total", "Checks of Shoots by care.")


class Remedy(NamedTuple):
    """Patch that makes the webhooks of a configuration harmless."""

    resource: Resource
    name: str
    patch: list[dict[str, Any]]


class CareController:
    """Checks each Shoot every ``sync_period``, and when its operation or the health of its control plane changes."""

    def __init__(self, clusters: Clusters, config: ShootCareConfig) -> None:
        self._clusters = clusters
        self._config = config
        self._thresholds = {each.type: each.duration for each in config.condition_thresholds}
        self._shoots = shoots_here(clusters)
        self._shoots.index(_BY_SOURCE_ENTRY, _source_entries)
        self._seeds = own_seed(clusters)
        self._entries = backup_entries_of(clusters)
        self._exposures = clusters.seed_caches.of(resources.CONFIG_MAP, labels=gateway.SELECTOR)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._operations: dict[Key, object] = {}
        self._checked: dict[Key, float] = {}
        self._crds: dict[Key, tuple[float, Finding]] = {}
        """Finding about the CRDs of a shoot, with the time when they were listed."""
        self._searched: dict[Key, float] = {}
        """Time of the last search for pods that do not end."""
        self._heartbeats = Heartbeats(clusters)
        self._controller = Controller("care", self._check, workers=5)
        self._controller.watch(self._shoots, when=self._new_operation)
        self._controller.watch(
            self._entries, keys=self._shoots_of_source, when=lambda event: says_taken_over(event.object)
        )
        for kind in _WATCHED:
            self._controller.watch(clusters.seed_caches.of(kind), keys=self._shoots_in_namespace, when=changes_health)

    async def run(self) -> None:
        """Run until cancelled."""
        heartbeats = (self._heartbeats.leases, self._heartbeats.registrations, self._heartbeats.installations)
        caches = (self._seeds, self._entries, self._exposures, self._namespaces, *heartbeats)
        await asyncio.gather(*(each.synced() for each in caches))
        await self._controller.run()

    def _new_operation(self, event: WatchEvent) -> bool:
        """Whether the Shoot's operation has a new state, which is a reason for a check.

        A change of conditions is no reason: this controller writes them itself.
        """
        key, status = key_of(event.object), event.object.get("status", {})
        if event.type == "DELETED":
            for known in (self._operations, self._checked, self._crds, self._searched):
                known.pop(key, None)
            self._searched.pop(Key(None, status.get("technicalID") or ""), None)
            return False
        operation = status.get("lastOperation") or {}
        seen = (operation.get("type"), operation.get("state"), status.get("seedName"))
        if self._operations.get(key) == seen:
            return False
        self._operations[key] = seen
        return True

    def _shoots_in_namespace(self, event: WatchEvent) -> list[Key]:
        namespace = event.object["metadata"].get("namespace")
        return [key_of(each) for each in self._shoots.by_index(BY_TECHNICAL_ID, namespace)]

    def _shoots_of_source(self, event: WatchEvent) -> list[Key]:
        return [key_of(each) for each in self._shoots.by_index(_BY_SOURCE_ENTRY, str(key_of(event.object)))]

    async def _check(self, key: Key) -> Requeue | None:
        namespace, name = key
        shoot = self._shoots.get(name, namespace)
        if shoot is None:
            return None
        technical_id = shoot["status"].get("technicalID")
        if not technical_id or _gone(shoot):
            return None
        if is_foreign(self._namespaces, shoot):
            return Requeue(self._config.sync_period.total_seconds())
        pause = self._checked.get(key, float("-inf")) + _NOT_SOONER_SECONDS - time.monotonic()
        if pause > 0:
            return Requeue(pause)
        self._checked[key] = time.monotonic()
        CHECKS.inc()
        client = await self._client(technical_id)
        findings, constraints_, remedies = await self._look(shoot, technical_id, client)
        findings.extend(await self._source_seed(shoot))
        # The Shoot may have changed during the checks, so the results are written into the newest status that we know.
        await self._write(self._shoots.get(name, namespace) or shoot, findings, constraints_)
        await self._settle_updates(self._shoots.get(name, namespace) or shoot, technical_id)
        await self._clean_seed(technical_id)
        if client is not None and not _hibernated(shoot):
            await self._repair(shoot, client, remedies)
        return Requeue(self._config.sync_period.total_seconds())

    # Writing

    async def _settle_updates(self, shoot: Object, technical_id: str) -> None:
        """Remove pools from the status whose last node was updated by their owner, while nothing reconciles the Shoot.

        Nothing is written if the Shoot has changed: the flow adds pools. The next check repeats it.
        """
        metadata, last = shoot["metadata"], shoot["status"].get("lastOperation") or {}
        before = in_place_updates.pending_of(shoot)
        if not before[in_place_updates.MANUAL] or last.get("state") == "Processing":
            return
        worker = self._clusters.seed_caches.of(resources.WORKER).get(metadata["name"], technical_id)
        after = in_place_updates.settled(shoot, worker)
        if worker is None or after == before:
            return
        written = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        patch = {"metadata": written, "status": {"inPlaceUpdates": in_place_updates.status_of(after)}}
        place = metadata["name"], metadata["namespace"]
        with contextlib.suppress(Conflict):
            await self._clusters.garden.patch(resources.SHOOT, *place, patch, subresource="status")

    async def _write(self, shoot: Object, findings: Sequence[Finding], constraints_: Sequence[Finding]) -> None:
        status, now = shoot.get("status") or {}, datetime.now(UTC)
        namespace, name = shoot["metadata"]["namespace"], shoot["metadata"]["name"]
        operation = Operation.of(status)
        types = {each.type for each in findings}
        known = [each for each in status.get("conditions") or [] if each["type"] in types or each["type"] not in _OURS]
        merged = {
            "conditions": merge(known, findings, operation, self._thresholds, now),
            "constraints": constraints.shown(
                merge(status.get("constraints") or [], constraints_, operation, self._thresholds, now)
            ),
        }
        change = {field: value for field, value in merged.items() if value != (status.get(field) or [])}
        try:
            if change:
                patch: dict[str, Any] = {"metadata": {"uid": shoot["metadata"]["uid"]}, "status": change}
                if "constraints" in change and dual_stack.is_wanted(shoot):
                    # A reconciliation writes into the same list: a check must not write back what it has read earlier.
                    patch["metadata"]["resourceVersion"] = shoot["metadata"]["resourceVersion"]
                await self._clusters.garden.patch(resources.SHOOT, name, namespace, patch, subresource="status")
            label = status_label({**status, **merged})
            if (shoot["metadata"].get("labels") or {}).get(constants.SHOOT_STATUS) != label:
                labels = {"metadata": {"uid": shoot["metadata"]["uid"], "labels": {constants.SHOOT_STATUS: label}}}
                await self._clusters.garden.patch(resources.SHOOT, name, namespace, labels)
        except (NotFound, Forbidden):
            log.debug("Shoot %s/%s is gone, or another seed's", namespace, name)
        except Conflict:
            log.debug("Shoot %s/%s has changed: the next check writes its conditions", namespace, name)

    # Checking

    async def _client(self, technical_id: str) -> KubeClient | None:
        try:
            return await self._clusters.shoot(technical_id)
        except ApiError:
            return None

    async def _look(
        self, shoot: Object, technical_id: str, client: KubeClient | None
    ) -> tuple[list[Finding], list[Finding], list[Remedy]]:
        """Conditions and constraints of a shoot, and patches of its webhook configurations."""
        workers = bool(shoot["spec"]["provider"].get("workers"))
        types = wanted(workers=workers)
        if _hibernated(shoot):
            return not_checked(types), not_checked(constraints.KEPT), []
        seen = self._control_plane(shoot, technical_id)
        now, rolling = datetime.now(UTC), self._config.managed_resource_progressing_threshold
        shoot_side = self._nodes(shoot, seen, client) if workers else _nothing()
        server, of_nodes, tunnel = await asyncio.gather(self._server(client), shoot_side, self._tunnel(client, workers))
        own = [
            server,
            checks.control_plane(seen, rolling, now),
            checks.observability(seen, shoot["spec"].get("purpose", ""), rolling, now),
            *([of_nodes] if of_nodes is not None else []),
            checks.system_components(seen, tunnel, rolling, now),
        ]
        objects = [each for kind in _EXTENSIONS for each in self._clusters.seed_caches.of(kind).list(technical_id)]
        limit = self._config.stale_extension_health_checks_threshold
        reported = checks.extension_findings(objects, types, self._heartbeats.silences(), limit)
        constraints_, remedies = await self._constraints(shoot, technical_id, client)
        return [combine(each, reported) for each in own], constraints_, remedies

    def _control_plane(self, shoot: Object, technical_id: str) -> checks.ControlPlane:
        caches, spec = self._clusters.seed_caches, shoot["spec"]
        workers = bool(spec["provider"].get("workers"))
        sized = workers and (spec["kubernetes"].get("verticalPodAutoscaler") or {}).get("enabled")
        wanted = [*(vpa.NAMES if sized else ()), *([cluster_autoscaler.NAME] if may_grow(shoot) else ())]
        return checks.ControlPlane(
            namespace=technical_id,
            workers=workers,
            deployments=caches.of(resources.DEPLOYMENT).list(technical_id),
            etcds=caches.of(resources.ETCD).list(technical_id),
            managed_resources=caches.of(resources.MANAGED_RESOURCE).list(technical_id),
            stateful_sets=caches.of(resources.STATEFUL_SET).list(technical_id),
            wanted=wanted,
        )

    async def _server(self, client: KubeClient | None) -> Finding:
        type_ = constants.CONDITION_API_SERVER_AVAILABLE
        if client is None:
            return Finding(type_, "False", "APIServerDown", "the gardenlet has no credentials for the API server yet")
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await client.request("GET", "/healthz")
        except TimeoutError:
            text = f"no answer to /healthz within {_CHECK_SECONDS:.0f} s"
            return Finding(type_, "False", "HealthzRequestFailed", text)
        except ApiError as error:
            reason = "HealthzRequestFailed" if error.status else "APIServerDown"
            return Finding(type_, "False", reason, str(error))
        return Finding(type_, "True", "HealthzRequestSucceeded", "API server /healthz endpoint responded with 200.")

    async def _nodes(self, shoot: Object, seen: checks.ControlPlane, client: KubeClient | None) -> Finding:
        type_ = constants.CONDITION_EVERY_NODE_READY
        unknown = Finding(type_, "Unknown", CHECK_ERROR, "the nodes cannot be listed")
        if client is None:
            return unknown
        osc = "gardener.cloud/role=operating-system-config"
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                nodes, leases, agents, secrets = await asyncio.gather(
                    client.list(resources.NODE, keep=_outline_of_node),
                    client.list(resources.LEASE, "kube-node-lease", keep=checks.outline_of_lease),
                    client.list(resources.LEASE, "kube-system", keep=checks.outline_of_agent_lease),
                    client.list(resources.SECRET, "kube-system", labels=osc, metadata_only=True),
                )
        except AnswerTooLarge as error:
            return checks.too_large(type_, error)
        except (ApiError, TimeoutError):
            return unknown
        caches = self._clusters.seed_caches
        return checks.nodes(
            checks.Nodes(
                pools=shoot["spec"]["provider"]["workers"],
                version=shoot["spec"]["kubernetes"]["version"],
                nodes=nodes,
                leases=leases,
                agent_leases=agents,
                checksums=_checksums(shoot, secrets),
                machine_deployments=caches.of(resources.MACHINE_DEPLOYMENT).list(seen.namespace),
                machines=caches.of(resources.MACHINE).list(seen.namespace),
                checksum_annotation=CHECKSUM_APPLIED,
            ),
            datetime.now(UTC),
        )

    async def _tunnel(self, client: KubeClient | None, workers: bool) -> Finding | None:
        """Finding on the tunnel from the API server to the nodes; None if the tunnel works."""
        type_ = constants.CONDITION_SYSTEM_COMPONENTS_HEALTHY
        if not workers:
            return None
        if client is None:
            return Finding(type_, "Unknown", CHECK_ERROR, "the cluster's API server cannot be queried")
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                nodes = await client.list(resources.POD, "kube-system", labels="app=vpn-shoot", keep=_node_of_running)
                if not nodes:
                    return Finding(type_, "False", "NoTunnelDeployed", "no pod of vpn-shoot is running")
                node = nodes[0]["spec"]["nodeName"]
                await client.request("GET", f"/api/v1/nodes/{node}:10250/proxy/healthz")
        except AnswerTooLarge as error:
            return checks.too_large(type_, error)
        except TimeoutError:
            text = f"no answer through the tunnel within {_CHECK_SECONDS:.0f} s"
            return Finding(type_, "False", "TunnelConnectionBroken", text)
        except ApiError as error:
            if not error.status:
                return Finding(type_, "Unknown", CHECK_ERROR, str(error))
            return Finding(type_, "False", "TunnelConnectionBroken", str(error))
        return None

    async def _source_seed(self, shoot: Object) -> list[Finding]:
        """A finding, while the lost seed that a control plane was taken over from has not cleaned up; else none."""
        entry = self._entries.get(_source_entry(shoot).name, shoot["metadata"]["namespace"])
        if entry is None or not says_taken_over(entry):
            return []
        name = entry["spec"]["bucketName"]
        bucket = await self._clusters.garden.find(resources.CORE_BACKUP_BUCKET, name)
        seed = bucket["spec"].get("seedName") if bucket is not None else None
        return [checks.source_seed(seed or f"with the bucket {name}")]

    def _internal_domain(self) -> str:
        seed = self._seeds.get(self._clusters.seed_name) or {}
        return str(((seed.get("spec") or {}).get("dns") or {}).get("internal", {}).get("domain", ""))

    # Constraints

    async def _constraints(
        self, shoot: Object, technical_id: str, client: KubeClient | None
    ) -> tuple[list[Finding], list[Remedy]]:
        """Constraints of a shoot, and patches of its webhook configurations; none if they cannot be listed."""
        caches, now = self._clusters.seed_caches, datetime.now(UTC)
        secrets = await self._clusters.seed.list(
            resources.SECRET, technical_id, labels="managed-by=secrets-manager", metadata_only=True
        )
        found = [
            constraints.certificate_authorities(secrets, now),
            constraints.in_place_updates(shoot["status"]),
            constraints.ignored_managed_resources(caches.of(resources.MANAGED_RESOURCE).list(technical_id)),
            constraints.preserved_machines(caches.of(resources.MACHINE).list(technical_id)),
            *(await certificates.look(client, shoot["status"]) if client is not None else ()),
            names.unique(technical_id, self._exposures.list(), self._internal_domain()),
        ]
        try:
            if client is None:
                raise TimeoutError
            async with asyncio.timeout(_CHECK_SECONDS):
                # One after the other: both may be large.
                configurations = await _webhook_configurations(client)
                crds = await self._crds_of(key_of(shoot), client)
        except AnswerTooLarge as error:
            return [*found, *(checks.too_large(each, error) for each in constraints.KEPT)], []
        except (ApiError, TimeoutError):
            text = "the cluster's API server cannot be queried"
            return [*found, *(Finding(each, "Unknown", CHECK_ERROR, text) for each in constraints.KEPT)], []
        return [*found, *webhooks.constraints(configurations), crds], _remedies(configurations)

    async def _crds_of(self, shoot: Key, client: KubeClient) -> Finding:
        """Finding about the CRDs of a shoot, at most ``_CRDS_SECONDS`` old."""
        listed, finding = self._crds.get(shoot, (float("-inf"), None))
        now = time.monotonic()
        if finding is None or now - listed >= _CRDS_SECONDS:
            definitions = await client.list(resources.CUSTOM_RESOURCE_DEFINITION, keep=constraints.outline_of_crd)
            finding = constraints.crds(definitions)
            self._crds[shoot] = now, finding
        return finding

    # Repairing

    async def _repair(self, shoot: Object, client: KubeClient, remedies: Sequence[Remedy]) -> None:
        """Delete pods that no other component deletes, and make webhooks harmless if the operator has enabled that.

        A failure is only logged: the next check tries again.
        """
        deleting = "deletionTimestamp" in shoot["metadata"]
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._collect_garbage(key_of(shoot), client, None if deleting else "kube-system")
                if self._config.webhook_remediator_enabled and not deleting:
                    await _remedy(client, remedies)
        except (ApiError, TimeoutError) as error:
            log.info("repairing the cluster of %s: %s", shoot["status"]["technicalID"], error)

    async def _clean_seed(self, technical_id: str) -> None:
        """Every 5 minutes, delete pods of the control plane that no component deletes. Errors are only logged."""
        place = Key(None, technical_id)
        if time.monotonic() - self._searched.get(place, float("-inf")) < _STUCK_SECONDS:
            return
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._collect_garbage(place, self._clusters.seed, technical_id)
        except (ApiError, TimeoutError) as error:
            log.info("deleting stale pods of control plane %s: %s", technical_id, error)

    async def _collect_garbage(self, place: Key, client: KubeClient, namespace: str | None) -> None:
        now, started = datetime.now(UTC), time.monotonic()
        outline = partial(garbage.outline, now=now)
        pods = await client.list(resources.POD, namespace, fields=_ENDED_PODS, keep=outline)
        search = started - self._searched.get(place, float("-inf")) >= _STUCK_SECONDS
        if search:
            pods += await client.list(resources.POD, namespace, metadata_only=True, keep=outline)
        found = {each["metadata"]["uid"]: each for each in pods}
        for pod, force in garbage.removals(found.values(), now):
            metadata = pod["metadata"]
            log.info("deleting pod %s/%s: no other component deletes it", metadata["namespace"], metadata["name"])
            await client.delete(
                resources.POD,
                metadata["name"],
                metadata["namespace"],
                uid=metadata["uid"],
                grace_seconds=0 if force else None,
            )
        if search:
            self._searched[place] = started


def changes_health(event: WatchEvent) -> bool:
    """Whether the object is new or gone, or its health differs from that before the event."""
    return event.type == "DELETED" or event.old is None or _health_of(event.old) != _health_of(event.object)


def _health_of(obj: Object) -> object:
    """The parts of an object's status that checks read, without times, messages and ``observedGeneration``.

    Each annotation of a Deployment makes a new generation, which its controller observes a moment later.
    """
    status = obj.get("status") or {}
    operation = status.get("lastOperation") or {}
    return (
        "deletionTimestamp" in obj["metadata"],
        sorted((each["type"], each["status"], each.get("reason", "")) for each in status.get("conditions") or []),
        (operation.get("type"), operation.get("state"), bool(status.get("lastError"))),
    )


def _source_entries(shoot: Object) -> Iterable[str]:
    return (str(_source_entry(shoot)),)


def _source_entry(shoot: Object) -> Key:
    """Key of the garden's BackupEntry for the bucket of the seed that a Shoot comes from; it need not exist."""
    name, _ = backup_entry_names(shoot.get("status", {}).get("technicalID", ""), shoot["metadata"]["uid"])
    return Key(shoot["metadata"]["namespace"], name)


def _remedies(configurations: Iterable[Object]) -> list[Remedy]:
    return [
        Remedy(resources.resource_of(each["apiVersion"], each["kind"]), each["metadata"]["name"], patch)
        for each in configurations
        if (patch := webhooks.remedy(each))
    ]


async def _remedy(client: KubeClient, remedies: Iterable[Remedy]) -> None:
    for each in remedies:
        log.warning("making webhooks of %s %s harmless", each.resource.kind, each.name)
        await client.patch(each.resource, each.name, None, each.patch)


async def _webhook_configurations(client: KubeClient) -> list[Object]:
    mutating, validating = await asyncio.gather(
        client.list(resources.MUTATING_WEBHOOK_CONFIGURATION),
        client.list(resources.VALIDATING_WEBHOOK_CONFIGURATION),
    )
    return [webhooks.outline(each) for each in (*mutating, *validating)]


_outline_of_node = partial(checks.outline_of_node, checksum_annotation=CHECKSUM_APPLIED)


def _node_of_running(pod: Object) -> Object | None:
    """The node of a pod that runs; None for other pods."""
    if (pod.get("status") or {}).get("phase") != "Running":
        return None
    return {"spec": {"nodeName": pod["spec"]["nodeName"]}}


async def _nothing() -> None:
    return None


def _checksums(shoot: Object, secrets: Sequence[Object]) -> dict[str, str]:
    """Checksum of the configuration that the nodes of a pool are to have, by name of the pool."""
    named = {each["metadata"]["name"]: each for each in secrets}
    found = {}
    for pool in shoot["spec"]["provider"]["workers"]:
        secret = named.get(node_agent_secret_name(shoot, pool))
        if secret is not None:
            found[pool["name"]] = (secret["metadata"].get("annotations") or {}).get(CHECKSUM_OF_SECRET, "")
    return found


def _hibernated(shoot: Mapping[str, Any]) -> bool:
    """Whether a Shoot is hibernated, going into hibernation or waking up: then components are missing on purpose."""
    asked = bool((shoot["spec"].get("hibernation") or {}).get("enabled"))
    return asked or bool((shoot.get("status") or {}).get("hibernated"))


def _gone(shoot: Mapping[str, Any]) -> bool:
    """Whether nothing of a Shoot's cluster exists any more."""
    last = (shoot.get("status") or {}).get("lastOperation") or {}
    return last.get("type") == "Delete" and last.get("state") == "Succeeded"

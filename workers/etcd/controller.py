"""The etcd controller of a seed: reconciles ``Etcd`` objects and writes their status.

It rolls out a spec if an annotation requests that (``gardener.cloud/operation``) or the last rollout is unfinished. It
updates the status whenever the pods change. All state is in the cluster, so it may be stopped between any two steps.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import aiohttp

from activities.components.etcd import BACKUP_PORT, CLIENT_PORT
from api import constants
from api.decisions.conditions import find_condition, set_conditions
from api.names import in_url
from api.resources import (
    CONFIG_MAP,
    ETCD,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
    STATEFUL_SET,
)
from api.times import timestamp
from etcd.access import server_certificate_of, shown_certificate, tls_of
from etcd.client import EtcdClient, EtcdError
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer
from kube.objects import label_selector
from workers.etcd import manifests

log = logging.getLogger(__name__)

FINALIZER = "druid.gardener.cloud/etcd-druid"
MANAGER = "etcd-druid"
_OPERATIONS = (constants.OPERATION, "druid.gardener.cloud/operation")
_SUSPENDED = "druid.gardener.cloud/suspend-etcd-spec-reconcile"

_CHECK_SECONDS = 30.0
_RETRY_SECONDS = 2.0
_PROBE_INTERVAL = 0.05
_PROBE_SECONDS = 30.0
"""Longest time for which the controller probes a starting member. A member that takes longer is restoring, and then the
delay of the kubelet's probe, one second, does not matter."""
_BINDING_SECONDS = 2.0
"""Time to wait for claims to be bound. A claim that is not bound by then waits for its first pod, as its storage class
may require."""
_KUBELET_SECONDS = 10.0
"""How long our own successful probe of a member counts although the kubelet does not report the member as ready."""
_ANSWER = aiohttp.ClientTimeout(total=5, sock_connect=2)


class EtcdController:
    """Controller of ``Etcd`` objects, one per seed. It runs inside the gardenlet."""

    def __init__(
        self, client: KubeClient, caches: Caches, takeover_tolerance: timedelta = manifests.TAKEOVER_TOLERANCE
    ) -> None:
        self._client = client
        self._takeover_tolerance = takeover_tolerance
        selector = f"{manifests.MANAGED_BY}={manifests.CONTROLLER}"
        self._etcds = caches.of(ETCD)
        self._stateful_sets = caches.of(STATEFUL_SET, labels=selector)
        self._pods = caches.of(POD, labels=selector)
        self._claims = caches.of(PERSISTENT_VOLUME_CLAIM, labels=selector)
        self._member_ids: dict[Key, tuple[str, str, bool]] = {}
        """By pod: the run of the pod that answered, the id of its member, and whether that member leads."""
        self._enqueue: Callable[[Key], None] = lambda _: None
        self._probes: dict[Key, asyncio.Task[None]] = {}
        self._served: dict[Key, tuple[str, float]] = {}
        """By pod: the run of the pod that was seen to serve, and when (seconds of the event loop)."""
        self._applied: dict[Key, int] = {}
        """Generation of the StatefulSet that this controller wrote last; the cache may be behind."""
        self._next_check: dict[Key, float] = {}
        """When the members and sidecars are asked again (seconds of the event loop); events come more often."""

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("etcd", self._reconcile, first_delay=0.2, longest_delay=30.0)
        self._enqueue = controller.enqueue
        controller.watch(self._etcds)
        controller.watch(self._stateful_sets, keys=_owner)
        controller.watch(self._pods, keys=_owner)
        await asyncio.gather(self._etcds.synced(), self._stateful_sets.synced(), self._pods.synced())
        try:
            await controller.run()
        finally:
            for task in self._probes.values():
                task.cancel()

    async def _reconcile(self, key: Key) -> Requeue | None:
        etcd = self._etcds.get(key.name, key.namespace)
        if etcd is None:
            self._next_check.pop(key, None)
            self._applied.pop(key, None)
            for pod in [*self._member_ids, *self._served]:
                if self._pods.get(pod.name, pod.namespace) is None:
                    self._member_ids.pop(pod, None)
                    self._served.pop(pod, None)
            return None
        if etcd["metadata"].get("deletionTimestamp"):
            return await self._delete(etcd)
        if _to_roll_out(etcd):
            etcd = await self._roll_out(etcd)
        again = await self._report(etcd)
        return Requeue(_RETRY_SECONDS) if _operation(etcd).get("state") == "Processing" else again

    # Rolling out

    async def _roll_out(self, etcd: Object) -> Object:
        """Apply all objects of an Etcd. The annotation that requests this is removed last, so a crash repeats it all.

        A single member is first rolled out with the configuration for several, and only then further members are
        added. Otherwise the StatefulSet would not change the first member before the others are ready, and these wait
        for the first.
        """
        metadata = etcd["metadata"]
        etcd = await ensure_finalizer(self._client, ETCD, etcd, FINALIZER)
        kind = "Reconcile" if _operation(etcd).get("state") == "Succeeded" else _operation(etcd).get("type", "Create")
        try:
            live = await self._client.find(STATEFUL_SET, metadata["name"], metadata["namespace"])
            there, wanted = live["spec"]["replicas"] if live else 0, etcd["spec"]["replicas"]
            if there > wanted > 0:
                raise ValueError(f"{there} members cannot become {wanted}: set replicas to {there}, or to 0 to pause")
            was_alone = there == 1 < wanted
            tls = await self._tls_files(etcd)
            pods = there if was_alone else wanted
            *rest, stateful_set = manifests.objects(etcd, tls, self._takeover_tolerance, pods=pods)
            await asyncio.gather(*(self._client.apply(manifest, manager=MANAGER) for manifest in rest))
            await self._bound(manifest for manifest in rest if manifest["kind"] == PERSISTENT_VOLUME_CLAIM.kind)
            if was_alone:
                if not _is_rolled_out(await self._client.apply(stateful_set, manager=MANAGER)):
                    return await self._write_operation(etcd, kind, "Processing", "")
                stateful_set["spec"]["replicas"] = wanted
            applied = await self._client.apply(stateful_set, manager=MANAGER)
        except (ApiError, ValueError, KeyError) as error:
            await self._write_operation(etcd, kind, "Error", str(error))
            raise
        self._applied[key_of(etcd)] = applied["metadata"].get("generation", 0)
        etcd = await self._write_operation(etcd, kind, "Succeeded", "")
        # The status is written before the annotation is removed: the requester must not read the old state of members.
        etcd = await self._write_status(etcd, self._members(etcd), applied, find_condition(etcd, "BackupReady"))
        asked = {name: None for name in _OPERATIONS if name in (etcd["metadata"].get("annotations") or {})}
        return await self._patch(etcd, {"metadata": {"annotations": asked}}) if asked else etcd

    async def _bound(self, claims: Iterable[Object]) -> None:
        """Wait until the claims are bound, before there are pods for them.

        A pod is scheduled as soon as its claim names a volume. A kubelet that does not see the claim's phase ``Bound``
        by then reads the claim again only 10 to 20 s later.
        """
        keys = [key_of(claim) for claim in claims]
        waits = (self._claims.wait_for(key.name, key.namespace, _is_bound, _BINDING_SECONDS) for key in keys)
        with contextlib.suppress(TimeoutError):
            await asyncio.gather(*waits)

    async def _tls_files(self, etcd: Object) -> dict[str, str]:
        sources, namespace = manifests.tls_sources(etcd), etcd["metadata"]["namespace"]
        names = sorted({name for name, _ in sources.values()})
        found = await asyncio.gather(*(self._client.get(SECRET, name, namespace) for name in names))
        data = {name: secret["data"] for name, secret in zip(names, found, strict=True)}
        return {path: data[name][key] for path, (name, key) in sources.items()}

    async def _write_operation(self, etcd: Object, kind: str, state: str, error: str) -> Object:
        name, now = etcd["metadata"]["name"], timestamp()
        if state == _operation(etcd).get("state") == "Processing":
            return etcd
        said = "the single member is prepared for further members" if state == "Processing" else f"{name} is rolled out"
        status: dict[str, Any] = {
            "observedGeneration": etcd["metadata"]["generation"],
            "lastOperation": {
                "type": kind,
                "state": state,
                "description": error or said,
                "runID": (etcd["metadata"].get("annotations") or {}).get(constants.TIMESTAMP, ""),
                "lastUpdateTime": now,
            },
            "lastErrors": None,
        }
        if state != "Succeeded":
            del status["observedGeneration"]
        if error:
            status["lastErrors"] = [{"code": "ERR_ROLL_OUT", "description": error, "observedAt": now}]
        return await self._client.patch(
            ETCD, name, etcd["metadata"]["namespace"], {"status": status}, subresource="status"
        )

    async def _patch(self, etcd: Object, patch: dict[str, Any]) -> Object:
        """Patch exactly this version of an Etcd, so that a request made meanwhile is not lost. Raises Conflict."""
        return await patch_as_read(self._client, ETCD, etcd, patch)

    # Status

    async def _report(self, etcd: Object) -> Requeue | None:
        """Write the members' state into the status: first as the kubelet reports it, then with the members' answers."""
        pods = self._members(etcd)
        stateful_set = self._stateful_sets.get(etcd["metadata"]["name"], etcd["metadata"]["namespace"])
        backup = find_condition(etcd, "BackupReady")
        etcd = await self._write_status(etcd, pods, stateful_set, backup)
        serving = [pod for pod in pods.values() if pod is not None and self._serves(pod)]
        for pod in pods.values():
            if pod is not None and not self._serves(pod):
                self._probe(etcd, pod)
        if not serving:
            return None
        key, clock = key_of(etcd), asyncio.get_running_loop().time
        left = self._next_check.get(key, 0.0) - clock()
        due = left <= 0
        check_backup = manifests.has_backup(etcd) and due
        # If there are several members, another one may lead by now.
        check_leader = not manifests.is_alone(etcd) and due
        asked = [pod for pod in serving if check_leader or self._known(pod) is None or not _uses_tls(etcd, pod)]
        if not asked and not check_backup:
            return None if due else Requeue(left)
        try:
            tls = await tls_of(self._client, etcd)
        except (NotFound, KeyError, ValueError, ssl.SSLError) as error:
            log.warning("%s: client certificate can't be used: %s", key, type(error).__name__)
            return Requeue(_CHECK_SECONDS)
        answers = await asyncio.gather(*(self._ask_member(etcd, pod, tls) for pod in asked))
        answered = all(each is not None for each in answers)
        pods |= {each["metadata"]["name"]: each for each in answers if each is not None}
        if check_backup:
            backup = await self._ask_backup(etcd, serving, tls)
        await self._write_status(etcd, pods, stateful_set, backup)
        if not (check_backup or check_leader):
            if not answered:
                return Requeue(_RETRY_SECONDS)
            return None if due else Requeue(left)
        good = answered and (not check_backup or (backup is not None and backup["status"] == "True"))
        after = _CHECK_SECONDS if good else _RETRY_SECONDS
        self._next_check[key] = clock() + after
        return Requeue(after)

    async def _write_status(
        self,
        etcd: Object,
        pods: Mapping[str, Object | None],
        stateful_set: Object | None,
        backup: Mapping[str, Any] | None,
    ) -> Object:
        status = self._status(etcd, pods, stateful_set, backup)
        live = etcd.get("status") or {}
        changed = {name: value for name, value in status.items() if live.get(name) != value}
        if not changed:
            return etcd
        metadata = etcd["metadata"]
        return await self._client.patch(
            ETCD, metadata["name"], metadata["namespace"], {"status": changed}, subresource="status"
        )

    def _status(
        self,
        etcd: Object,
        pods: Mapping[str, Object | None],
        stateful_set: Object | None,
        backup: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        replicas = etcd["spec"]["replicas"]
        members = self._member_statuses(etcd, pods) if replicas else []
        ready = sum(1 for member in members if member["status"] == "Ready")
        quorum = replicas // 2 + 1
        observed = (stateful_set or {}).get("status") or {}
        updated = stateful_set is not None and self._is_updated(etcd, stateful_set, pods)
        faults = "; ".join(f"{item['name']}: {item['reason']}" for item in members if item["status"] != "Ready")
        serving = f"{ready} of {replicas} members serve" + (f"; {faults}" if faults else "")
        conditions: list[Mapping[str, Any]] = [
            _condition("Ready", ready >= quorum if replicas else None, "Quorum", serving),
            _condition(
                "AllMembersReady",
                ready == replicas if replicas else None,
                "Members",
                f"{ready} of {replicas} are ready",
            ),
            _condition("AllMembersUpdated", updated, "Rollout", "" if updated else "members are being changed"),
        ]
        if manifests.has_backup(etcd):
            conditions.append(backup or _condition("BackupReady", None, "NotAsked", "the sidecar is not queried yet"))
        labels = manifests.own_labels(etcd)
        types = {each["type"] for each in conditions}
        known = [each for each in (etcd.get("status") or {}).get("conditions") or () if each["type"] in types]
        return {
            "etcd": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": etcd["metadata"]["name"]},
            "replicas": observed.get("replicas", 0),
            "currentReplicas": observed.get("currentReplicas", 0),
            "readyReplicas": ready,
            "ready": bool(replicas) and ready >= quorum,
            "members": members,
            "peerUrlTLSEnabled": bool(etcd["spec"]["etcd"].get("peerUrlTls")),
            "labelSelector": {"matchLabels": labels},
            "selector": label_selector(dict(sorted(labels.items()))),
            "conditions": set_conditions(known, conditions, timestamp()),
        }

    def _is_updated(self, etcd: Object, stateful_set: Object, pods: Mapping[str, Object | None]) -> bool:
        status, generation = stateful_set.get("status") or {}, stateful_set["metadata"].get("generation", 0)
        if status.get("observedGeneration") != generation or generation < self._applied.get(key_of(etcd), 0):
            return False
        if not stateful_set["spec"]["replicas"]:
            return not status.get("replicas")
        revision = status.get("updateRevision")
        return all(
            pod is not None
            and pod["metadata"]["labels"].get("controller-revision-hash") == revision
            and _uses_tls(etcd, pod)
            for pod in pods.values()
        )

    def _members(self, etcd: Object) -> dict[str, Object | None]:
        namespace = etcd["metadata"]["namespace"]
        return {name: self._pods.get(name, namespace) for name in manifests.pod_names(etcd)}

    def _member_statuses(self, etcd: Object, pods: Mapping[str, Object | None]) -> list[dict[str, Any]]:
        before = {member["name"]: member for member in (etcd.get("status") or {}).get("members") or ()}
        members = []
        for name, pod in pods.items():
            if pod is None:
                state, reason = "Unknown", "there is no pod"
            elif self._serves(pod):
                state, reason = "Ready", "it serves"
            else:
                state, reason = "NotReady", _why_not(pod)
            member: dict[str, Any] = {"name": name, "status": state, "reason": reason}
            if pod is not None and (known := self._known(pod)):
                member |= {"id": known[0], "role": "Leader" if known[1] else "Member"}
            old = before.get(name) or {}
            same = old.get("status") == state and old.get("lastTransitionTime")
            member["lastTransitionTime"] = old["lastTransitionTime"] if same else timestamp()
            members.append(member)
        return members

    def _serves(self, pod: Object) -> bool:
        """Whether a member serves: the kubelet reports it, or our own probe found it up to ``_KUBELET_SECONDS`` ago."""
        instance, when = self._served.get(key_of(pod), ("", 0.0))
        recently = instance == _instance(pod) and asyncio.get_running_loop().time() - when < _KUBELET_SECONDS
        return _is_ready(pod) or (recently and not pod["metadata"].get("deletionTimestamp"))

    def _probe(self, etcd: Object, pod: Object) -> None:
        """Start to probe a starting member: the kubelet probes it once a second, and reports a second later."""
        key = key_of(pod)
        if key in self._probes or not _host(pod) or pod["metadata"].get("deletionTimestamp"):
            return
        url = f"http://{_host(pod)}:{manifests.readiness_port(etcd)}/readyz"
        task = self._probes[key] = asyncio.create_task(self._until_served(key_of(etcd), pod, url))
        task.add_done_callback(lambda _: self._probes.pop(key, None))

    async def _until_served(self, etcd: Key, pod: Object, url: str) -> None:
        key, instance = key_of(pod), _instance(pod)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(_PROBE_SECONDS),
                aiohttp.ClientSession(timeout=_ANSWER, trust_env=False) as session,
            ):
                while (live := self._pods.get(key.name, key.namespace)) and _instance(live) == instance:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as response:
                            if response.status == 200:
                                self._served[key] = (instance, asyncio.get_running_loop().time())
                                self._enqueue(etcd)
                                return
                    await asyncio.sleep(_PROBE_INTERVAL)

    async def _ask_member(self, etcd: Object, pod: Object, tls: ssl.SSLContext) -> Object | None:
        """The pod, if its member answers, and uses the TLS files that its Etcd names; else None."""
        port = etcd["spec"]["etcd"].get("clientPort", CLIENT_PORT)
        name = manifests.local_name(etcd)
        try:
            async with EtcdClient(f"https://{_host(pod)}:{port}", tls, server_name=name) as client:
                status = await client.status()
            if not _uses_tls(etcd, pod):
                # The member accepted our certificate. Its own certificate changes together with the CAs that it trusts.
                shown = await shown_certificate(_host(pod), port, tls, name)
                if shown != await server_certificate_of(self._client, etcd):
                    await self._remind(etcd, pod)
                    return None
                pod = await self._annotate(pod, {manifests.TLS_IN_USE: manifests.tls_checksum(etcd)})
        except (EtcdError, OSError) as error:
            log.info("%s: %s", key_of(etcd), error)
            if not _uses_tls(etcd, pod):
                await self._remind(etcd, pod)
            return None
        self._member_ids[key_of(pod)] = (_instance(pod), status.id, status.is_leader)
        return pod

    async def _remind(self, etcd: Object, pod: Object) -> None:
        """Annotate the pod, so that the kubelet reads the pod's Secret now: by itself it does so once a minute."""
        await self._annotate(pod, {manifests.TLS_ORDERED: f"{manifests.tls_checksum(etcd)} at {timestamp()}"})

    async def _annotate(self, pod: Object, annotations: dict[str, str]) -> Object:
        metadata = pod["metadata"]
        patch = {"metadata": {"annotations": annotations}}
        return await self._client.patch(POD, metadata["name"], metadata["namespace"], patch)

    def _known(self, pod: Object) -> tuple[str, bool] | None:
        instance, member, leads = self._member_ids.get(key_of(pod), ("", "", False))
        return (member, leads) if instance == _instance(pod) else None

    async def _ask_backup(self, etcd: Object, pods: Iterable[Object], tls: ssl.SSLContext) -> Object:
        """Condition BackupReady from the sidecars' answers. A sidecar that does not answer counts as a fault."""
        port = etcd["spec"]["backup"].get("port", BACKUP_PORT)
        faults = []
        async with aiohttp.ClientSession(timeout=_ANSWER, trust_env=False) as session:
            for pod in pods:
                url = f"https://{_host(pod)}:{port}/healthz"
                try:
                    async with session.get(url, ssl=tls, server_hostname=manifests.local_name(etcd)) as response:
                        answer = await response.json()
                    fault = "" if answer["health"] else str(answer["reason"])
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                    fault = f"the sidecar of {pod['metadata']['name']} does not answer: {type(error).__name__}"
                faults.append(fault)
        fault = next(filter(None, faults), "")
        return _condition("BackupReady", not fault, "BackupFailing" if fault else "BackupSucceeded", fault)

    # Deleting

    async def _delete(self, etcd: Object) -> Requeue | None:
        """Delete all objects of an Etcd, and release it once no member runs: data must not have a second writer."""
        metadata = etcd["metadata"]
        if not has_finalizer(etcd, FINALIZER):
            return None
        name, namespace = metadata["name"], metadata["namespace"]
        await self._client.delete(STATEFUL_SET, name, namespace, propagation="Background")
        # Not from the cache: a pod that the cache does not show yet would go on writing.
        selector = label_selector(manifests.own_labels(etcd))
        pods, claims = await asyncio.gather(
            self._client.list(POD, namespace, labels=selector),
            self._client.list(PERSISTENT_VOLUME_CLAIM, namespace, labels=selector),
        )
        doomed = [
            *((POD, pod["metadata"]["name"]) for pod in pods if not pod["metadata"].get("deletionTimestamp")),
            *((PERSISTENT_VOLUME_CLAIM, claim["metadata"]["name"]) for claim in claims),
            (POD_DISRUPTION_BUDGET, name),
            (SERVICE, manifests.client_service_name(etcd)),
            (SERVICE, manifests.peer_service_name(etcd)),
            (CONFIG_MAP, manifests.config_map_name(etcd)),
            (SECRET, manifests.tls_secret_name(etcd)),
        ]
        await asyncio.gather(*(self._client.delete(resource, item, namespace) for resource, item in doomed))
        if pods:
            if _operation(etcd).get("type") != "Delete":
                await self._write_deletion(etcd, [pod["metadata"]["name"] for pod in pods])
            return Requeue(_RETRY_SECONDS)  # the pods' events requeue the Etcd earlier
        await remove_finalizer(self._client, ETCD, etcd, FINALIZER)
        return None

    async def _write_deletion(self, etcd: Object, running: list[str]) -> None:
        operation = {
            "type": "Delete",
            "state": "Processing",
            "description": f"waiting for {', '.join(running)} to end",
            "runID": (etcd["metadata"].get("annotations") or {}).get(constants.TIMESTAMP, ""),
            "lastUpdateTime": timestamp(),
        }
        with contextlib.suppress(NotFound):
            await self._client.patch(
                ETCD,
                etcd["metadata"]["name"],
                etcd["metadata"]["namespace"],
                {"status": {"lastOperation": operation}},
                subresource="status",
            )


def _owner(event: WatchEvent) -> list[Key]:
    """Key of the Etcd that a StatefulSet or pod belongs to, by our label."""
    name = event.object["metadata"].get("labels", {}).get(manifests.INSTANCE)
    return [Key(event.object["metadata"]["namespace"], name)] if name else []


def _to_roll_out(etcd: Object) -> bool:
    annotations = etcd["metadata"].get("annotations") or {}
    if _SUSPENDED in annotations:
        return False
    return any(annotations.get(name) == "reconcile" for name in _OPERATIONS) or (
        _operation(etcd).get("state", "Succeeded") != "Succeeded"
    )


def _is_rolled_out(stateful_set: Object) -> bool:
    """Whether all pods of a StatefulSet have its current revision and are ready."""
    status, replicas = stateful_set.get("status") or {}, stateful_set["spec"]["replicas"]
    return (
        status.get("observedGeneration") == stateful_set["metadata"].get("generation")
        and status.get("currentRevision") == status.get("updateRevision")
        and status.get("replicas") == status.get("readyReplicas") == status.get("updatedReplicas") == replicas
    )


def _operation(etcd: Object) -> dict[str, Any]:
    return dict((etcd.get("status") or {}).get("lastOperation") or {})


def _is_bound(claim: Object | None) -> bool:
    return claim is not None and (claim.get("status") or {}).get("phase") == "Bound"


def _is_ready(pod: Object) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    # Readiness of the container, not of the pod: the sidecar's state says nothing about etcd.
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(container["name"] == "etcd" and container.get("ready") for container in containers)


def _why_not(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "its pod is ending"
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        state = container.get("state") or {}
        if container["name"] == "etcd" and (stopped := state.get("waiting") or state.get("terminated")):
            return str(stopped.get("reason") or "it is not running")
    scheduled = find_condition(pod, "PodScheduled")
    if scheduled and scheduled["status"] != "True":
        return f"its pod is not scheduled: {scheduled.get('message', '')}"[:300]
    return "it does not serve yet"


def _instance(pod: Object) -> str:
    """Identifies one run of etcd in one pod: after a restart etcd may have another role."""
    restarts = sum(
        container.get("restartCount", 0)
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if container["name"] == "etcd"
    )
    return f"{pod['metadata']['uid']}/{restarts}"


def _host(pod: Object) -> str:
    return in_url(str(pod["status"].get("podIP", "")))


def _uses_tls(etcd: Object, pod: Object) -> bool:
    """Whether a member uses the TLS files that its Etcd names.

    A single member must have been seen to use them. Other members get a new pod with new TLS files.
    """
    in_use = (pod["metadata"].get("annotations") or {}).get(manifests.TLS_IN_USE)
    return not manifests.is_alone(etcd) or in_use == manifests.tls_checksum(etcd)


def _condition(kind: str, good: bool | None, reason: str, message: str) -> dict[str, Any]:
    status = "Unknown" if good is None else "True" if good else "False"
    return {"type": kind, "status": status, "reason": reason, "message": message}

"""The node agent's loop: applies the config in the pool's Secret, and writes into the Node what was applied."""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import math
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import yaml

from api import constants
from api.durations import parse_duration
from api.machine import in_place
from api.resources import LEASE, NODE, SECRET
from api.times import micro_timestamp
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import ApiError
from kube.objects import owner_reference
from workers.node_agent.apply import KUBELET_UNIT, OWN_UNIT, Applier
from workers.node_agent.config import NodeAgentConfig
from workers.node_agent.identity import KUBELET_CLIENT, KUBELET_SERVING, Denied, issuer_of
from workers.node_agent.init import Credentials
from workers.node_agent.system import CommandFailed, System

log = logging.getLogger(__name__)

MANAGER = "gardener-node-agent"
CHECKSUM_OF_SECRET = "checksum/data-script"
CHECKSUM_APPLIED = "checksum/cloud-config-data"

_SECRET_KEY = "osc.yaml"
_KUBELET_BOOTSTRAP = "/var/lib/kubelet/kubeconfig-bootstrap"
_CERTIFICATES = {
    "kubelet-client": KUBELET_CLIENT,
    "kubelet-serving": KUBELET_SERVING,
    "node-agent": "/var/lib/gardener-node-agent/credentials/client.crt",
}
_QUOTED = 300
"""Maximum number of characters of the kubelet's log in an annotation."""
_UPDATE_STARTS = frozenset({in_place.IS_READY, in_place.HAS_FAILED})
"""Reasons of the Node's condition about an in-place update with which the update may start."""
_OS_UPDATE_AGAIN, _OS_UPDATE_SECONDS = 30.0, 5 * 60.0
"""Pause between two runs of the command that updates the operating system, and the time after which the command counts
as failed. Source: spec/extensions.md 7, step 9."""
_PASSING = re.compile("network problems", re.IGNORECASE)
"""Words in the error of the command if another run may succeed. Source: spec/extensions.md 7, step 9."""
_AUTHORITIES = "certificateAuthorities"
"""Kind of a rotation after which a machine needs other certificates."""
_RETRY_SECONDS = 5.0
_LEASE_SECONDS = 10.0


Renewal = Callable[[], Awaitable[None]]


class NodeAgent:
    """Keeps one machine in the state that the configuration of its pool describes."""

    def __init__(
        self,
        client: KubeClient,
        config: NodeAgentConfig,
        node_name: str,
        system: System,
        *,
        renew: Renewal | None = None,
        start_seconds: float = 60.0,
        stable_seconds: float = 10.0,
    ) -> None:
        """Make an agent.

        ``renew``: gets other certificates for kubelet and node agent. ``start_seconds``: time for a kubelet to get
        healthy with a new configuration. ``stable_seconds``: time that it must stay healthy.
        """
        self._client = client
        self._config = config
        self._node_name = node_name
        self._system = system
        self._applier = Applier(system, config.state_directory, node_name)
        self._renew = renew
        self._secret = Cache(client, SECRET, "kube-system", fields=f"metadata.name={config.secret_name}")
        self._node = Cache(client, NODE, fields=f"metadata.name={node_name}")
        self._changed = asyncio.Event()
        self._start_seconds, self._stable_seconds = start_seconds, stable_seconds
        self._delayed: tuple[str, float] | None = None
        self._failed_update = ("", "", 0.0)
        """Checksum of the config whose command for the operating system has failed, why, and when to run it again."""

    async def run(self) -> None:
        """Reconcile on each change of Secret or Node, and every ``sync_period``."""
        for cache in (self._secret, self._node):
            cache.subscribe(lambda _: self._changed.set())
            cache.start()
        try:
            await asyncio.gather(self._secret.synced(), self._node.synced())
            while True:
                self._changed.clear()
                again = await self._attempt()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(again):
                        await self._changed.wait()
        finally:
            await asyncio.gather(self._secret.close(), self._node.close())

    async def keep_lease(self) -> None:
        """Renew the lease that shows that this agent lives.

        Without a Node there is a lease only once the kubelet has had its time to register the Node: the lease then has
        the kubelet's last error in an annotation. The policy of node agents protects the lease from others.
        """
        await self._node.synced()
        now = asyncio.get_running_loop().time
        patient_until = now() + self._start_seconds
        while True:
            node = self._node.get(self._node_name)
            if node is not None or now() >= patient_until:
                error_of_kubelet = "" if node is not None else _last_error(await self._system.last_lines(KUBELET_UNIT))
                try:
                    await self._client.apply_blindly(self._lease(node, error_of_kubelet), manager=MANAGER)
                except ApiError as error:
                    log.warning("renewing the lease: %s", error)
            await asyncio.sleep(_LEASE_SECONDS)

    async def _attempt(self) -> float:
        """Reconcile once. Returns the seconds until the next reconciliation, if no event comes before."""
        try:
            return await self._reconcile()
        except (ApiError, CommandFailed, Denied, OSError) as error:
            log.warning("applying the operating system config: %s; again in %.0f s", error, _RETRY_SECONDS)
            return _RETRY_SECONDS

    async def _reconcile(self) -> float:
        period = self._config.sync_period.total_seconds() * random.uniform(0.9, 1.1)
        secret, node = self._secret.get(self._config.secret_name), self._node.get(self._node_name)
        if secret is None:
            log.warning("Secret kube-system/%s does not exist", self._config.secret_name)
            return _RETRY_SECONDS
        if node is not None:
            await self._restart_units(node)
        text = base64.b64decode(secret["data"][_SECRET_KEY])
        checksum = hashlib.sha256(text).hexdigest()
        applied = _annotations(node).get(CHECKSUM_APPLIED) if node is not None else None
        if applied is not None and applied != checksum and (wait := self._still_delayed(node, checksum)) > 0:
            return wait
        document: dict[str, Any] = yaml.safe_load(text)
        self._applier.note_rotations(_rotations(self._applier.last_applied() or document))
        if self._applier.refused[0] == checksum:
            # If an earlier run was interrupted while it took the configuration back, this run goes on with it.
            if await self._applier.take_back(*self._applier.refused):
                return await self._restart_self(period)
            return await self._tell_refusal(node, period)
        if node is not None and self._waits_for_drain(node, document):
            log.info("operating system config %s waits for node condition InPlaceUpdate, ReadyForUpdate", checksum[:12])
            return period
        if node is not None and (failure := await self._update_system(document, checksum, period)):
            return await self._tell_update(node, checksum, failure, period)
        if self._applier.last_applied() != document or (node is not None and applied != checksum):
            # If the kubelet does not run anyway, the configuration before is no better.
            if await self._applier.apply(document, on_trial=await self._system.kubelet_answers()):
                return await self._restart_self(period)
            log.info("operating system config %s applied", checksum[:12])
        if node is None:
            return _RETRY_SECONDS
        if self._applier.on_trial is not None and not await self._kubelet_starts():
            return await self._take_back(checksum, period)
        self._applier.confirm()
        self._forget_bootstrap()
        await self._renew_credentials(_rotations(document))
        if applied != checksum or constants.REFUSED_CONFIGURATION in _annotations(node):
            await self._tell_node(checksum)
        await self._tell_issuers(node)
        if "inPlaceUpdates" in document["spec"]:
            return await self._tell_update(node, checksum, "", period)
        return period

    def _waits_for_drain(self, node: Object, document: Mapping[str, Any]) -> bool:
        """Whether a config is an in-place update for which the machine-controller-manager has not prepared the Node.

        The Node's condition says when it is drained. A failed update is tried again without another drain.
        Source: spec/extensions.md 7, step 9.
        """
        before = _in_place_updates(self._applier.last_applied())
        if not before or before.get("hash") == _in_place_updates(document).get("hash"):
            return False
        return in_place.reason_of(node) not in _UPDATE_STARTS

    async def _update_system(self, document: Mapping[str, Any], checksum: str, period: float) -> str:
        """Update the operating system if its version has changed. Returns why that has failed, empty if it has not.

        A failed command is repeated for another config, after a restart of this process, or, if the network was the
        cause, after ``period`` seconds.
        """
        before, wanted = _in_place_updates(self._applier.last_applied()), _in_place_updates(document)
        version = before.get("operatingSystemVersion")
        if version is None or version == wanted.get("operatingSystemVersion", version):
            return ""
        now = asyncio.get_running_loop().time
        failed, why, again = self._failed_update
        if failed == checksum and now() < again:
            return why
        try:
            await self._run_system_update(wanted)
        except CommandFailed as error:
            log.error("updating the operating system for config %s: %s", checksum[:12], error)
            again = now() + period if _PASSING.search(str(error)) else math.inf
            self._failed_update = (checksum, str(error)[:_QUOTED], again)
            return self._failed_update[1]
        return ""

    async def _run_system_update(self, wanted: Mapping[str, Any]) -> None:
        """Run the command with which the extension of the operating system updates it.

        The command is repeated after a run that was interrupted, for example because it has restarted the machine: by
        the extension's contract it does nothing if the version is there. Raises CommandFailed.
        """
        version, update = wanted["operatingSystemVersion"], wanted.get("osUpdate")
        if not update:
            raise CommandFailed(f"the extension of the operating system names no command that updates it to {version}")
        log.info("updating the operating system to version %s", version)
        now = asyncio.get_running_loop().time
        deadline = now() + _OS_UPDATE_SECONDS
        while True:
            try:
                return await self._system.run(update["command"], *(update.get("args") or ()))
            except CommandFailed as error:
                if not _PASSING.search(str(error)) or now() + _OS_UPDATE_AGAIN >= deadline:
                    raise
                log.warning("updating the operating system: %s; again in %.0f s", error, _OS_UPDATE_AGAIN)
            await asyncio.sleep(_OS_UPDATE_AGAIN)  # a network sends no event

    async def _tell_update(self, seen: Object, checksum: str, failure: str, period: float) -> float:
        """Write the result of an in-place update into the Node, if the machine-controller-manager waits for it.

        The result is about the config that the API server has at this time. The Node is read first, and written only
        if it has not changed since: so no result is about a config that is older than what the
        machine-controller-manager last wrote into the Node. Raises Conflict if the Node has changed.
        """
        result = in_place.FAILED if failure else in_place.SUCCESSFUL

        def is_awaited(node: Object) -> bool:
            told = (in_place.result_of(node), _annotations(node).get(in_place.FAILED_REASON, ""))
            return in_place.reason_of(node) in _UPDATE_STARTS and told != (result, failure)

        if not is_awaited(seen) or not is_awaited(node := await self._client.get(NODE, self._node_name)):
            return period
        live = await self._client.get(SECRET, self._config.secret_name, "kube-system")
        if hashlib.sha256(base64.b64decode(live["data"][_SECRET_KEY])).hexdigest() != checksum:
            return _RETRY_SECONDS
        patch = {
            "metadata": {
                "resourceVersion": node["metadata"]["resourceVersion"],
                "labels": {in_place.RESULT: result},
                "annotations": {in_place.FAILED_REASON: failure or None},
            }
        }
        await self._client.patch(NODE, self._node_name, None, patch)
        log.info("in-place update: %s", failure or result)
        return period

    async def _renew_credentials(self, wanted: Mapping[str, str]) -> None:
        """Let the machine use the credentials of a rotation, which its in-place update brings: the Node is drained.

        A rotation of the CAs needs other certificates. A kubelet that starts reads the CAs, and requests other tokens
        for its pods, which a rotation of the service account key needs.

        Raises ApiError, Denied, TimeoutError or CommandFailed; the next run repeats it as a whole.
        """
        known = self._applier.noted_rotations()
        if known == wanted or not wanted or self._renew is None:
            return
        log.info("renewing credentials for the rotations %s", json.dumps(wanted, sort_keys=True))
        if known.get(_AUTHORITIES) != wanted.get(_AUTHORITIES):
            await self._renew()
        await self._system.systemctl("restart", KUBELET_UNIT)
        if not await self._kubelet_starts():
            raise CommandFailed(f"{KUBELET_UNIT} does not start with its new credentials")
        self._applier.note_rotations(wanted, again=True)

    async def _restart_self(self, period: float) -> float:
        log.info("restarting: the files of the node agent have changed")
        await self._system.systemctl("restart", "--no-block", OWN_UNIT)
        return period

    async def _kubelet_starts(self) -> bool:
        """Whether the kubelet gets healthy and stays so: some configurations end it seconds after its start."""
        now = asyncio.get_running_loop().time
        deadline, since = now() + self._start_seconds, None
        while True:
            if await self._system.kubelet_answers():
                since = since or now()
                if now() - since >= self._stable_seconds:
                    return True
            else:
                since = None
                if now() >= deadline:
                    return False
            await asyncio.sleep(self._stable_seconds / 10)  # a kubelet sends no event

    async def _take_back(self, checksum: str, period: float) -> float:
        """Go back to the configuration before: a node whose kubelet runs with it is better than one without kubelet."""
        reason = _last_error(await self._system.last_lines(KUBELET_UNIT))
        log.error("the kubelet does not start with operating system config %s: %s", checksum[:12], reason)
        if await self._applier.take_back(checksum, reason):
            return await self._restart_self(period)
        return await self._tell_refusal(self._node.get(self._node_name), period)

    async def _tell_refusal(self, node: Object | None, period: float) -> float:
        """Write into the Node which configuration was taken back, and why: the gardenlet reports it in a condition."""
        told = ": ".join(self._applier.refused)
        if node is not None and _annotations(node).get(constants.REFUSED_CONFIGURATION) != told:
            patch = {"metadata": {"annotations": {constants.REFUSED_CONFIGURATION: told}}}
            await self._client.patch(NODE, self._node_name, None, patch)
        if node is not None and _in_place_updates(self._applier.last_applied()):
            checksum, why = self._applier.refused
            return await self._tell_update(node, checksum, f"the kubelet does not start: {why}"[:_QUOTED], period)
        return period

    def _still_delayed(self, node: Object | None, checksum: str) -> float:
        """Seconds until an update may be applied: the nodes update one after the other. New nodes do not wait."""
        if self._delayed is None or self._delayed[0] != checksum:
            delay = _seconds(_annotations(node).get(constants.NODE_AGENT_DELAY, "0s"))
            self._delayed = (checksum, asyncio.get_running_loop().time() + delay)
        return self._delayed[1] - asyncio.get_running_loop().time()

    def _forget_bootstrap(self) -> None:
        """Delete the bootstrap token: the Node exists, so kubelet and agent have certificates and need no token."""
        if not self._system.path("/var/lib/kubelet/kubeconfig-real").exists():
            return
        self._system.remove(_KUBELET_BOOTSTRAP)
        Credentials(self._config.state_directory).bootstrap_token.unlink(missing_ok=True)

    async def _tell_node(self, checksum: str) -> None:
        patch = {
            "metadata": {
                "annotations": {CHECKSUM_APPLIED: checksum, constants.REFUSED_CONFIGURATION: None},
                "labels": {constants.WORKER_KUBERNETES_VERSION: self._config.kubernetes_version},
            }
        }
        await self._client.patch(NODE, self._node_name, None, patch)

    async def _tell_issuers(self, node: Object) -> None:
        """Write the issuers of this machine's certificates into the Node: a rotation waits until no issuer is old."""
        found = {name: issuer for name, path in _CERTIFICATES.items() if (issuer := issuer_of(self._system.path(path)))}
        told = json.dumps(found, sort_keys=True)
        if _annotations(node).get(constants.CERTIFICATE_ISSUERS) != told:
            patch = {"metadata": {"annotations": {constants.CERTIFICATE_ISSUERS: told}}}
            await self._client.patch(NODE, self._node_name, None, patch)

    async def _restart_units(self, node: Object) -> None:
        """Restart, once, the units that an operator has named in an annotation."""
        wanted = _annotations(node).get(constants.RESTART_SYSTEMD_SERVICES)
        if not wanted:
            return
        await self._client.patch(
            NODE, self._node_name, None, {"metadata": {"annotations": {constants.RESTART_SYSTEMD_SERVICES: None}}}
        )
        for unit in filter(None, (name.strip() for name in wanted.split(","))):
            log.info("restarting %s: requested by annotation", unit)
            await self._system.systemctl("restart", "--no-block", unit)

    def _lease(self, node: Object | None, error_of_kubelet: str) -> dict[str, Any]:
        owners = [owner_reference(NODE, self._node_name, node["metadata"]["uid"], controller=False)] if node else []
        return {
            "apiVersion": LEASE.api_version,
            "kind": "Lease",
            "metadata": {
                "name": f"gardener-node-agent-{self._node_name}",
                "namespace": "kube-system",
                **({"ownerReferences": owners} if owners else {}),
                **({"annotations": {constants.KUBELET_ERROR: error_of_kubelet}} if error_of_kubelet else {}),
            },
            "spec": {
                "holderIdentity": f"gardener-node-agent-{self._node_name}",
                "leaseDurationSeconds": 40,
                "renewTime": micro_timestamp(),
            },
        }


def _seconds(duration: str) -> float:
    """Seconds of a duration in an annotation; 0 if the text is no duration."""
    try:
        return parse_duration(duration).total_seconds()
    except ValueError:
        return 0.0


def _last_error(lines: Sequence[str]) -> str:
    """The last error among lines of the kubelet's log, or else the last line; without time and place."""
    errors = [line for line in lines if re.match(r"[EF]\d{4} |Error: |panic: ", line)]
    last = (errors or [line for line in lines if line.strip()] or ["its journal is empty"])[-1]
    words = re.sub(r"^[EF]\d{4} [\d:.]+\s+\d+ [\w.-]+:\d+\] ", "", last).strip()
    return words[:_QUOTED]


def _rotations(document: Mapping[str, Any]) -> dict[str, str]:
    """Starts of the rotations that a config brings, by kind; empty for a pool whose machines are replaced."""
    found = _in_place_updates(document).get("credentialsRotation") or {}
    return {kind: str(each["lastInitiationTime"]) for kind, each in found.items()}


def _in_place_updates(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return (document.get("spec") or {}).get("inPlaceUpdates") or {}


def _annotations(item: Mapping[str, Any] | None) -> Mapping[str, str]:
    return (item or {}).get("metadata", {}).get("annotations") or {}

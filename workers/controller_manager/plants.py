"""Watches Plants: clusters that other systems manage, by the kubeconfigs that members of projects give.

Neither the address in a kubeconfig nor the answers of the cluster are trusted. The controller connects to public
addresses, and to the networks that the operator allows. It follows no redirect, and limits the bytes and the time of
each probe. A project gets a limited number of turns at once, so that slow clusters of one project delay no other.
"""

import asyncio
import base64
import binascii
import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import Field

from api import constants, resources
from api.decisions import plants
from api.decisions.conditions import Finding, Operation, merge
from api.model import ApiModel
from api.validation.plants import parse_plant_kubeconfig
from kube.cache import Caches, Key
from kube.client import Guard, KubeClient, Limits, Object
from kube.controller import Controller, Requeue
from kube.errors import AnswerTooLarge, ApiError, KubeconfigError, NotFound
from kube.kubeconfig import Endpoint, endpoint_of
from workers.lib.addresses import Network, OwnThreads, public_only

log = logging.getLogger(__name__)

_KUBECONFIG = "kubeconfig"
_LIMITS = Limits(answer=2 << 20, whole=2 << 20, reduced=32 << 20, page=50)
_WORKERS = 10
_TURNS = 2
"""Maximum number of Plants of one namespace that are probed at once."""
_TURN_SECONDS = 1.0
_RESOLVER_THREADS = 16
_OPERATION = Operation("Reconcile", "Succeeded")
"""A Plant has no operations: a failed check counts as one of a cluster at rest."""


class PlantConfig(ApiModel):
    sync_period: timedelta = Field(default=timedelta(seconds=30), gt=timedelta())
    """Time between two probes of a Plant."""
    probe_timeout: timedelta = Field(default=timedelta(seconds=10), gt=timedelta())
    """Time for all answers of one probe."""
    api_server_threshold: timedelta = timedelta(minutes=1)
    """Time for which APIServerAvailable is Progressing before it becomes False."""
    nodes_threshold: timedelta = timedelta(minutes=5)
    """Time for which EveryNodeReady is Progressing before it becomes False."""
    allowed_networks: tuple[Network, ...] = ()
    """Networks of clusters that are not public, like ``10.20.0.0/16``. Each member of a project can then make the
    controller-manager connect to any address and port in them. Addresses of the machine itself and link-local ones
    are never allowed."""
    blocked_networks: tuple[Network, ...] = ()
    """Public networks that no Plant may be in, such as those of the operator's own services."""


async def run_plant_controller(
    client: KubeClient, caches: Caches, config: PlantConfig, guard: Guard | None = None
) -> None:
    """Run until cancelled. ``guard``: in place of the configured networks, for tests with clusters on this machine."""
    guard = guard or Guard(public_only(config.blocked_networks, config.allowed_networks), OwnThreads(_RESOLVER_THREADS))
    cache = caches.of(resources.PLANT)
    await cache.synced()
    controller = Controller("plants", _PlantReconciler(client, caches, config, guard).reconcile, workers=_WORKERS)
    # A status of our own making is no reason for the next probe.
    controller.watch(cache, when=lambda event: event.old is None or _asked(event.old) != _asked(event.object))
    await controller.run()


def _asked(plant: Mapping[str, Any]) -> object:
    return plant["spec"], plant["metadata"].get("deletionTimestamp")


class _PlantReconciler:
    def __init__(self, client: KubeClient, caches: Caches, config: PlantConfig, guard: Guard) -> None:
        self._client = client
        self._plants = caches.of(resources.PLANT)
        self._config = config
        self._guard = guard
        self._busy: Counter[str | None] = Counter()
        self._thresholds = {
            constants.CONDITION_API_SERVER_AVAILABLE: config.api_server_threshold,
            constants.CONDITION_EVERY_NODE_READY: config.nodes_threshold,
        }

    async def reconcile(self, key: Key) -> Requeue | None:
        plant = self._plants.get(key.name, key.namespace)
        if plant is None or "deletionTimestamp" in plant["metadata"]:
            return None
        if self._busy[key.namespace] >= _TURNS:
            return Requeue(_TURN_SECONDS)
        self._busy[key.namespace] += 1
        try:
            seen = await self._probe(plant)
        finally:
            self._busy[key.namespace] -= 1
            if not self._busy[key.namespace]:
                del self._busy[key.namespace]
        await self._write(plant, *seen)
        return Requeue(self._config.sync_period.total_seconds())

    async def _write(self, plant: Object, findings: list[Finding], info: Object | None) -> None:
        known = plant.get("status") or {}
        now = datetime.now(UTC)
        status = {
            "conditions": merge(known.get("conditions") or [], findings, _OPERATION, self._thresholds, now),
            "observedGeneration": plant["metadata"].get("generation", 0),
            **({"clusterInfo": info} if info is not None else {}),
        }
        change = {field: value for field, value in status.items() if value != known.get(field)}
        if not change:
            return
        metadata = plant["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "status": change}
        try:
            await self._client.patch(
                resources.PLANT, metadata["name"], metadata["namespace"], patch, subresource="status"
            )
        except NotFound:
            return

    async def _probe(self, plant: Object) -> tuple[list[Finding], Object | None]:
        """Findings, and facts of the cluster; None if there are none."""
        try:
            endpoint = await self._endpoint(plant)
        except KubeconfigError as error:
            return _without_server(plants.unavailable("KubeconfigUnusable", str(error)))
        deadline = asyncio.get_running_loop().time() + self._config.probe_timeout.total_seconds()
        async with KubeClient(endpoint, limits=_LIMITS, guard=self._guard) as cluster:
            if fault := await _server_fault(cluster, deadline):
                return _without_server(fault)
            finding, facts = await _nodes(cluster, deadline)
            return [plants.available(), finding], facts

    async def _endpoint(self, plant: Object) -> Endpoint:
        """Server and credentials of the cluster. Raises KubeconfigError, which does not quote the Secret."""
        name, namespace = plant["spec"]["secretRef"]["name"], plant["metadata"]["namespace"]
        secret = await self._client.find(resources.SECRET, name, namespace)
        if secret is None:
            raise KubeconfigError(f"there is no Secret {name}: create it with key {_KUBECONFIG}")
        try:
            text = base64.b64decode((secret.get("data") or {}).get(_KUBECONFIG, ""), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        if not text:
            raise KubeconfigError(f"Secret {name} has no key {_KUBECONFIG}")
        # Admission checks it, too, but not a Secret that is older than the project's webhook.
        parsed, faults = parse_plant_kubeconfig(text)
        if parsed is None:
            raise KubeconfigError(f"Secret {name}: {_KUBECONFIG}: {faults}")
        return endpoint_of(parsed)


async def _server_fault(cluster: KubeClient, deadline: float) -> Finding | None:
    """Finding if the API server does not answer, by the time of the event loop ``deadline``."""
    try:
        async with asyncio.timeout_at(deadline):
            await cluster.request("GET", "/healthz")
    except TimeoutError:
        return plants.unavailable("HealthzRequestFailed", _NO_ANSWER)
    except ApiError as error:
        return plants.unavailable(*_reason(error))
    except _NO_JSON:
        return plants.unavailable("HealthzRequestFailed", _NO_KUBERNETES)
    return None


async def _nodes(cluster: KubeClient, deadline: float) -> tuple[Finding, Object]:
    """EveryNodeReady, and facts of the cluster."""
    nodes, version = plants.Nodes(), plants.UNKNOWN

    def count(node: Object) -> None:
        nodes.add(node)

    try:
        async with asyncio.timeout_at(deadline):
            version = plants.version_of(await cluster.request("GET", "/version"))
            await cluster.list(resources.NODE, keep=count)
        finding = nodes.finding()
    except TimeoutError:
        finding = plants.unchecked_nodes(f"the nodes cannot be listed: {_NO_ANSWER}")
    except ApiError as error:
        finding = plants.unchecked_nodes(f"the nodes cannot be listed: {_reason(error)[1]}")
    except _MALFORMED:
        finding = plants.unchecked_nodes(f"the nodes cannot be listed: {_NO_KUBERNETES}")
    return finding, {
        "provider": {"type": nodes.provider, "region": nodes.region},
        "kubernetes": {"version": version},
    }


_NO_JSON = (ValueError, RecursionError)
_MALFORMED = (*_NO_JSON, TypeError, AttributeError, KeyError)
"""Errors of reading an answer that is none of Kubernetes' API; a fault of a pydantic model is a ValueError."""
_NO_ANSWER = "no complete answer within the time of a probe"
_NO_KUBERNETES = "the answer is none of Kubernetes' API"


def _without_server(finding: Finding) -> tuple[list[Finding], None]:
    return [finding, plants.unchecked_nodes("the API server of the cluster does not answer")], None


def _reason(error: ApiError) -> tuple[str, str]:
    """Reason and message of a failed request. The message does not quote the answer, which may hold anything."""
    if isinstance(error, AnswerTooLarge):
        return "AnswerTooLarge", "the answer is larger than the controller-manager reads"
    if error.status:
        hint = "; the credentials of the kubeconfig need this right" if error.status in (401, 403) else ""
        return "HealthzRequestFailed", f"the API server answered with status {error.status}{hint}"
    return "APIServerDown", str(error)

"""Controllers of provider-local in shoots: volumes and load balancers.

They run in provider-local's process, for each ControlPlane of type ``local`` in the seed, with a connection to the
shoot's API server and one to the cloud, each with the credentials of this shoot alone.
"""

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.provider_local.cloud import endpoint_in
from activities.provider_local.provider import PROVIDER_TYPE
from activities.provider_local.storage import ACCESS_SECRET
from api.constants import GENERIC_TOKEN_KUBECONFIG_NAME
from api.local import infrastructure_namespace
from api.names import in_url
from api.resources import CLUSTER, CONTROL_PLANE, SECRET, SERVICE
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Limits, WatchEvent
from kube.controller import Controller
from kube.errors import ApiError, KubeconfigError
from kube.kubeconfig import Endpoint, endpoint_of, parse_kubeconfig
from workers.extension.ownership import Ownership
from workers.provider_local.shoot_services import ShootServices
from workers.provider_local.volumes import Volumes

_log = logging.getLogger(__name__)

API_SERVER = "kube-apiserver"
CREDENTIALS = "cloudprovider"
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0
"""Seconds until the controllers of a shoot start again after a failure."""
_WORKERS = 10

Serve = Callable[[KubeClient, KubeClient, str], Awaitable[None]]


async def serve(shoot: KubeClient, cloud: KubeClient, namespace: str) -> None:
    """Run all controllers of a shoot until cancelled. ``namespace``: that of its machines in the cloud."""
    await asyncio.gather(
        Volumes(shoot, cloud, namespace).run(),
        ShootServices(shoot, cloud, namespace).run(),
    )


@dataclass(frozen=True)
class Endpoints:
    """Connections of the controllers of one shoot."""

    shoot: Endpoint
    cloud: Endpoint


class ShootControllers:
    """Starts the controllers of each shoot whose control plane serves in this seed, and stops them after that."""

    def __init__(self, seed: KubeClient, caches: Caches, serve: Serve = serve) -> None:
        self._seed = seed
        self._caches = caches
        self._serve = serve
        self._control_planes = caches.of(CONTROL_PLANE)
        self._clusters = caches.of(CLUSTER)
        self._ownership = Ownership(caches)
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._controller = Controller("controllers of shoots", self._reconcile, workers=_WORKERS)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._control_planes.synced()
        await self._clusters.synced()
        self._controller.watch(self._control_planes)
        self._controller.watch(self._clusters, keys=self._of_cluster)
        self._ownership.watch(self._restart_all)
        try:
            await self._controller.run()
        finally:
            self._ownership.close()
            await asyncio.gather(*(self._stop(key) for key in list(self._running)))

    def _of_cluster(self, event: WatchEvent) -> list[Key]:
        return [key_of(each) for each in self._control_planes.list(event.object["metadata"]["name"])]

    def _restart_all(self) -> None:
        """Start controllers that have stopped because the seed may have lost its control planes."""
        for each in self._control_planes.list():
            if key_of(each) not in self._running:
                self._controller.enqueue(key_of(each))

    async def _reconcile(self, key: Key) -> None:
        namespace = key.namespace or ""
        wanted = is_wanted(self._control_planes.get(key.name, namespace), self._clusters.get(namespace))
        if not wanted or self._ownership.loss(namespace):
            await self._stop(key)
        elif key not in self._running or self._running[key].done():
            self._running[key] = asyncio.create_task(self._run(key, namespace), name=f"controllers of {namespace}")

    async def _stop(self, key: Key) -> None:
        if (task := self._running.pop(key, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, key: Key, namespace: str) -> None:
        """Run the controllers of a shoot again and again, until this seed may not have its control plane any more."""
        serving = asyncio.create_task(self._keep_serving(namespace))
        losing = asyncio.create_task(self._ownership.until_lost(namespace))
        try:
            await asyncio.wait({serving, losing}, return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                _log.warning("controllers of %s stop: %s", namespace, losing.result())
        finally:
            for each in (serving, losing):
                each.cancel()
            await asyncio.gather(serving, losing, return_exceptions=True)
            if self._running.get(key) is asyncio.current_task():
                del self._running[key]

    async def _keep_serving(self, namespace: str) -> None:
        delay = _FIRST_DELAY
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await self._serve_once(namespace)
            except ApplicationError as error:
                _log.warning("controllers of %s: %s", namespace, error.message)
            except (ApiError, KubeconfigError) as error:
                _log.warning("controllers of %s: %s", namespace, error)
            except Exception:
                _log.exception("controllers of %s failed", namespace)
            long = asyncio.get_running_loop().time() - started > _LONGEST_DELAY
            delay = _FIRST_DELAY if long else min(2 * delay, _LONGEST_DELAY)
            await asyncio.sleep(delay)

    async def _serve_once(self, namespace: str) -> None:
        async with self._changes(namespace) as changed:
            while (endpoints := await self._endpoints(namespace)) is None:
                await changed.wait()
                changed.clear()
            async with KubeClient(endpoints.shoot, limits=Limits()) as shoot, KubeClient(endpoints.cloud) as cloud:
                serving = asyncio.ensure_future(self._serve(shoot, cloud, infrastructure_namespace(namespace)))
                following = asyncio.ensure_future(self._follow(namespace, changed, shoot, cloud))
                try:
                    await asyncio.wait({serving, following}, return_when=asyncio.FIRST_COMPLETED)
                    for each in (serving, following):
                        if each.done():
                            each.result()
                finally:
                    for each in (serving, following):
                        each.cancel()
                    await asyncio.gather(serving, following, return_exceptions=True)

    async def _follow(self, namespace: str, changed: asyncio.Event, shoot: KubeClient, cloud: KubeClient) -> None:
        """Use renewed tokens and rotated credentials."""
        while True:
            await changed.wait()
            changed.clear()
            if (endpoints := await self._endpoints(namespace)) is not None:
                shoot.reconfigure(endpoints.shoot)
                cloud.reconfigure(endpoints.cloud)

    @contextlib.asynccontextmanager
    async def _changes(self, namespace: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever an object changes on which ``_endpoints`` depends."""
        changed = asyncio.Event()

        def look(event: WatchEvent) -> None:
            if event.object["metadata"]["name"] in (namespace, ACCESS_SECRET, CREDENTIALS):
                changed.set()

        secrets = [
            self._caches.of(SECRET, namespace, fields=f"metadata.name={name}") for name in (ACCESS_SECRET, CREDENTIALS)
        ]
        ends = [each.subscribe(look) for each in (*secrets, self._clusters)]
        try:
            yield changed
        finally:
            for end in ends:
                end()

    async def _endpoints(self, namespace: str) -> Endpoints | None:
        """Endpoints with the present credentials; None if a part does not exist yet. Raises ApplicationError."""
        cluster = self._clusters.get(namespace)
        generic_name = ((cluster or {}).get("metadata", {}).get("annotations") or {}).get(GENERIC_TOKEN_KUBECONFIG_NAME)
        access, generic, service, credentials = await asyncio.gather(
            self._seed.find(SECRET, ACCESS_SECRET, namespace),
            self._seed.find(SECRET, generic_name or "generic-token-kubeconfig", namespace),
            self._seed.find(SERVICE, API_SERVER, namespace),
            self._seed.find(SECRET, CREDENTIALS, namespace),
        )
        token = _decoded(access, "token").decode("ascii")
        if generic is None or service is None or credentials is None or not token:
            return None
        found = endpoint_of(parse_kubeconfig(_decoded(generic, "kubeconfig")))
        address = service["spec"]["clusterIP"]
        shoot = replace(
            found,
            server=f"https://{in_url(address)}:{service['spec']['ports'][0]['port']}",
            tls_server_name=f"{API_SERVER}.{namespace}.svc",
            token=token,
            token_file=None,
        )
        return Endpoints(shoot, endpoint_in(credentials.get("data") or {}, f"{namespace}/{CREDENTIALS}"))


def is_wanted(control_plane: Mapping[str, Any] | None, cluster: Mapping[str, Any] | None) -> bool:
    """Whether the controllers of a shoot should run: its ControlPlane was reconciled here, and its API server serves.

    A hibernated shoot has no API server; its deletion starts the API server again.
    """
    if control_plane is None or cluster is None or (control_plane.get("spec") or {}).get("type") != PROVIDER_TYPE:
        return False
    last = (control_plane.get("status") or {}).get("lastOperation") or {}
    if not last or last.get("type") in ("Migrate", "Delete"):
        return False
    shoot = (cluster.get("spec") or {}).get("shoot") or {}
    hibernated = ((shoot.get("spec") or {}).get("hibernation") or {}).get("enabled")
    return not hibernated or bool(shoot["metadata"].get("deletionTimestamp"))


def _decoded(secret: Mapping[str, Any] | None, key: str) -> bytes:
    return base64.b64decode(((secret or {}).get("data") or {}).get(key) or "")

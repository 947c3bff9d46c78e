"""The clusters that activities work on: the garden, the seed of this worker, and the shoots of that seed."""

import asyncio
import base64
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from activities.secrets.sealing import Sealing
from api import constants
from api.names import in_url
from api.resources import CLUSTER, SECRET, SERVICE
from kube.cache import Cache, Caches
from kube.client import KubeClient, Limits, Object, WatchEvent
from kube.errors import NotFound
from kube.kubeconfig import Endpoint, endpoint_of, parse_kubeconfig

SHOOT_KUBECONFIG = "gardener-internal"
"""Name of the Secret in the control-plane namespace that holds the gardenlet's own kubeconfig for the shoot."""
API_SERVER = "kube-apiserver"
"""Name of the Service of the shoot's API server in its control-plane namespace."""


_UPDATE_DELAY, _LONGEST_UPDATE_DELAY = 300, 1800


@dataclass(frozen=True)
class ClusterView:
    """Content of a Cluster object: the desired state that a flow's first task writes and all later tasks read."""

    cluster: Object

    @property
    def shoot(self) -> Object:
        return self._part("shoot")

    @property
    def cloud_profile(self) -> Object:
        return self._part("cloudProfile")

    @property
    def seed(self) -> Object:
        return self._part("seed")

    @property
    def technical_id(self) -> str:
        return str(self.cluster["metadata"]["name"])

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the Shoot, not of the Cluster object."""
        return dict(self.shoot.get("metadata", {}).get("annotations") or {})

    @property
    def longest_update_delay(self) -> int:
        """Seconds within which all nodes begin to apply a new configuration. Source: spec/api-core.md 12."""
        wanted = self.annotations.get(constants.SHOOT_NODE_JITTER, "")
        return min(int(wanted), _LONGEST_UPDATE_DELAY) if wanted.isdigit() else _UPDATE_DELAY

    @property
    def hibernated(self) -> bool:
        """Whether the Shoot's spec enables hibernation."""
        return bool((self.shoot.get("spec", {}).get("hibernation") or {}).get("enabled"))

    @property
    def pools(self) -> list[Object]:
        """The Shoot's worker pools."""
        return list(self.shoot.get("spec", {}).get("provider", {}).get("workers") or ())

    @property
    def workerless(self) -> bool:
        return not self.pools

    @property
    def kubernetes_version(self) -> str:
        return str(self.shoot["spec"]["kubernetes"]["version"])

    def _part(self, name: str) -> Object:
        part: Object | None = self.cluster["spec"].get(name)
        if part is None:
            raise NotFound(404, "Incomplete", f"reading {name} from Cluster {self.cluster['metadata']['name']}")
        return part


_READ: ContextVar[dict[str, ClusterView] | None] = ContextVar("clusters_read", default=None)
"""Clusters that the running activity has read, by technical id; None outside of activities."""


@contextmanager
def clusters_read_once() -> Iterator[None]:
    """Read each Cluster only once within this context, so that an activity works from one version of it."""
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


async def patch_cluster(seed: KubeClient, technical_id: str, patch: Object) -> None:
    """Patch a Cluster object. The running activity reads it from the seed again afterwards."""
    await seed.patch(CLUSTER, technical_id, None, patch)
    if (read := _READ.get()) is not None:
        read.pop(technical_id, None)


@dataclass
class Clusters:
    """Clients and caches with which a class of activities is constructed. One instance per worker process."""

    garden: KubeClient
    seed: KubeClient
    seed_name: str
    sealing: Sealing = field(default_factory=Sealing)
    """Encrypts the ShootStates that this seed writes to the garden, and decrypts those that it reads."""
    garden_caches: Caches = field(init=False)
    seed_caches: Caches = field(init=False)
    _shoots: dict[str, "_ShootAccess"] = field(init=False, default_factory=dict, repr=False)
    _closing: set[asyncio.Task[None]] = field(init=False, default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self.garden_caches = Caches(self.garden)
        self.seed_caches = Caches(self.seed)

    async def shoot(self, technical_id: str) -> KubeClient:
        """Client for a shoot; it connects to the cluster IP of the API server's Service in the seed.

        The client takes over new credentials when they are rotated in its Secret. The shoot's owner decides how large
        answers are, so the client limits them: see ``kube.client.Limits``.

        Do not keep the client longer than an activity. Raises NotFound while there are no credentials for the shoot.
        """
        access = self._shoots.get(technical_id)
        if access is None:
            access = self._shoots[technical_id] = _ShootAccess(self.seed, technical_id, self._drop)
        try:
            return await access.client()
        except NotFound:
            self._drop(access)
            raise

    def _drop(self, access: "_ShootAccess") -> None:
        """Close the client of a shoot whose Secret is gone: the shoot is being deleted, or its name will be reused."""
        if self._shoots.get(access.technical_id) is access:
            del self._shoots[access.technical_id]
            closing = asyncio.create_task(access.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def forget_shoot(self, technical_id: str) -> None:
        """Close the connections to a shoot that is hibernated or deleted."""
        access = self._shoots.pop(technical_id, None)
        if access is not None:
            await access.close()

    async def cluster(self, technical_id: str) -> ClusterView:
        """Read the desired state of a shoot from its Cluster object.

        Read from the API server of the seed and not from a cache: a task may have written the object a moment ago.
        Within ``clusters_read_once`` each Cluster is read once. Raises NotFound.
        """
        read = _READ.get()
        if read is not None and (known := read.get(technical_id)) is not None:
            return known
        view = ClusterView(await self.seed.get(CLUSTER, technical_id))
        if read is not None:
            read[technical_id] = view
        return view

    async def close(self) -> None:
        await asyncio.gather(self.garden_caches.close(), self.seed_caches.close())
        await asyncio.gather(*(access.close() for access in self._shoots.values()))
        self._shoots.clear()
        await asyncio.gather(*self._closing)
        await self.garden.close()
        await self.seed.close()


class _ShootAccess:
    """Client of one shoot, and the watch on the Secret with its kubeconfig."""

    def __init__(self, seed: KubeClient, technical_id: str, on_lost: Callable[["_ShootAccess"], None]) -> None:
        self.technical_id = technical_id
        self._seed = seed
        self._on_lost = on_lost
        self._secret = Cache(seed, SECRET, technical_id, fields=f"metadata.name={SHOOT_KUBECONFIG}")
        self._secret.subscribe(self._on_event)
        self._secret.start()
        self._client: KubeClient | None = None
        self._made_of = ""
        self._making = asyncio.Lock()

    def _on_event(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._on_lost(self)

    async def client(self) -> KubeClient:
        async with self._making:
            secret = self._secret.get(SHOOT_KUBECONFIG) if self._secret.is_synced else None
            if secret is None:
                # The Secret may have been written a moment ago: the cache lags behind the API server.
                secret = await self._seed.get(SECRET, SHOOT_KUBECONFIG, self.technical_id)
            version = secret["metadata"]["resourceVersion"]
            if self._client is None:
                self._client = KubeClient(await self._endpoint(secret), limits=Limits())
            elif version != self._made_of:
                self._client.reconfigure(await self._endpoint(secret))
            self._made_of = version
            return self._client

    async def _endpoint(self, secret: Object) -> Endpoint:
        doing = f"reading access to shoot {self.technical_id} from Secret {SHOOT_KUBECONFIG}"
        encoded = (secret.get("data") or {}).get("kubeconfig")
        if not encoded:
            raise NotFound(404, "NoKubeconfig", doing)
        endpoint = endpoint_of(parse_kubeconfig(base64.b64decode(encoded)))
        if not (endpoint.token or endpoint.certificate):
            raise NotFound(404, "NoCredentialsYet", doing)
        service = await self._seed.get(SERVICE, API_SERVER, self.technical_id)
        address = service["spec"].get("clusterIP")
        if not address or address == "None":
            return endpoint
        return dataclasses.replace(
            endpoint,
            server=f"https://{in_url(address)}:{service['spec']['ports'][0]['port']}",
            tls_server_name=f"{API_SERVER}.{self.technical_id}.svc",
        )

    async def close(self) -> None:
        await self._secret.close()
        if self._client is not None:
            await self._client.close()

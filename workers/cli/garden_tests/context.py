"""Context of a test: clients of the garden and of the Shoot's cluster, waits, and objects that go at the end."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from api import resources
from api.constants import OPERATION
from api.decisions.conditions import hibernation_possible, wanted
from api.resources import Resource
from kube.cache import Cache
from kube.client import KubeClient, Object
from kube.errors import ApiError
from workers.cli.garden_tests.model import TestFailed, TestSkipped

T = TypeVar("T")

RUN_LABEL = "test.gardener.cloud/run"
"""Label of each object that a run creates: the id of the run."""
USED_BY = "test.gardener.cloud/used-by"
"""Annotation of a Shoot that a run tests: the id of the run."""
HIBERNATED_BY = "test.gardener.cloud/hibernated-by"
"""Annotation of a Shoot that a test has hibernated, until it is awake again: the id of the run."""
MANAGER = "gardener-test"
_SETTLE_SECONDS = 300.0

OpenCluster = Callable[[], Awaitable[KubeClient]]


@dataclass
class Context:
    """One Shoot that is tested by one run."""

    garden: KubeClient
    namespace: str
    """Namespace of the Project."""
    shoot: str
    """Name of the Shoot."""
    run: str
    """Id of the run."""
    image: str
    """Image of test pods; it has ``sh``, ``sleep``, and ``getent`` or ``nslookup``."""
    open_cluster: OpenCluster
    """Gives an administrator's client of the Shoot, by a new kubeconfig."""
    seed: KubeClient | None = None
    _cluster: KubeClient | None = field(default=None, init=False)

    @property
    def reference(self) -> str:
        return f"{self.namespace}/{self.shoot}"

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None

    async def cluster(self, *, renew: bool = False) -> KubeClient:
        """Client of the Shoot's API server. ``renew``: by a new kubeconfig, for example after a rotation."""
        if renew:
            await self.close()
        if self._cluster is None:
            self._cluster = await self.open_cluster()
        return self._cluster

    def needs_seed(self) -> KubeClient:
        """Client of the seed. Raises TestSkipped if its kubeconfig was not given."""
        if self.seed is None:
            raise TestSkipped("needs the kubeconfig of the Shoot's seed: --seed")
        return self.seed

    async def needs_workers(self) -> list[dict[str, Any]]:
        """Worker pools of the Shoot. Raises TestSkipped if pods cannot run in it."""
        spec = (await self.live())["spec"]
        if (spec.get("hibernation") or {}).get("enabled"):
            raise TestSkipped("the Shoot is hibernated")
        if workers := spec["provider"].get("workers"):
            return list(workers)
        raise TestSkipped("the Shoot has no workers")

    # In the garden

    async def live(self) -> Object:
        return await self.garden.get(resources.SHOOT, self.shoot, self.namespace)

    async def change(self, spec: Mapping[str, Any], annotations: Mapping[str, str | None] | None = None) -> None:
        """Merge fields into the spec and the annotations of the Shoot, and wait until that is reconciled."""
        patch = {"spec": spec, "metadata": {"annotations": annotations or {}}}
        changed = await self.garden.patch(resources.SHOOT, self.shoot, self.namespace, patch)
        await self.reconciled(changed["metadata"]["generation"])

    async def operate(self, operation: str) -> None:
        """Ask for an operation by annotation, and wait until the garden has taken it up."""
        annotations = {"metadata": {"annotations": {OPERATION: operation}}}
        await self.garden.patch(resources.SHOOT, self.shoot, self.namespace, annotations)
        await self.until(
            lambda shoot: OPERATION not in (shoot["metadata"].get("annotations") or {}),
            f"the operation {operation} is accepted",
        )

    async def reconciled(self, generation: int = 0) -> Object:
        """Wait until the last operation has succeeded, for this generation or a newer one. Raises TestFailed."""

        def done(shoot: Object) -> bool:
            status = shoot.get("status") or {}
            last = status.get("lastOperation") or {}
            seen = status.get("observedGeneration", 0) >= generation
            if seen and last.get("state") == "Failed":
                raise TestFailed(f"{last.get('type')} of Shoot {self.reference} has failed: {last.get('description')}")
            return bool(seen and last.get("state") == "Succeeded")

        return await self.until(done, "the Shoot is reconciled", seconds=None)

    async def until(
        self, holds: Callable[[Object], bool], what: str, seconds: float | None = _SETTLE_SECONDS
    ) -> Object:
        """Wait until something holds for the Shoot. ``seconds``: None: until the timeout of the test."""
        return await self.wait_for(
            self.garden, resources.SHOOT, self.shoot, self.namespace, holds, what=what, seconds=seconds
        )

    async def healthy(self) -> None:
        """Wait until all conditions of the Shoot hold. Raises TestFailed, which names those that do not."""

        def missing(shoot: Object) -> list[str]:
            found = {each["type"]: each for each in (shoot.get("status") or {}).get("conditions") or ()}
            return [
                f"{name} {found.get(name, {}).get('status', 'unset')}: {found.get(name, {}).get('message', '')}"
                for name in wanted(workers=bool(shoot["spec"]["provider"].get("workers")))
                if found.get(name, {}).get("status") != "True"
            ]

        try:
            await self.until(lambda shoot: not missing(shoot), "all conditions hold")
        except TestFailed:
            raise TestFailed(
                f"conditions of Shoot {self.reference} after {_SETTLE_SECONDS:g} s: "
                + "; ".join(missing(await self.live()))
            ) from None

    async def may_hibernate(self) -> None:
        """Wait until admission accepts a hibernation."""
        await self.until(lambda shoot: hibernation_possible(shoot) == "True", "constraint HibernationPossible is True")

    # In the cluster

    async def wait_for(
        self,
        client: KubeClient,
        resource: Resource,
        name: str,
        namespace: str | None,
        holds: Callable[[Object], bool],
        *,
        what: str,
        seconds: float | None = _SETTLE_SECONDS,
    ) -> Object:
        """Wait until something holds for an object. Raises TestFailed."""
        try:
            async with Cache(client, resource, namespace, fields=f"metadata.name={name}") as cache:
                return await cache.wait_for(
                    name, namespace, lambda live: live if live is not None and holds(live) else None, seconds
                )
        except TimeoutError:
            where = f"{resource.kind} {namespace + '/' if namespace else ''}{name}"
            raise TestFailed(f"{where}: not within {seconds:g} s: {what}") from None

    async def wait_until(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str | None,
        holds: Callable[[Sequence[Object]], bool],
        *,
        what: str,
        seconds: float = _SETTLE_SECONDS,
    ) -> None:
        """Wait until something holds for all objects of a kind. Raises TestFailed."""
        try:
            async with Cache(client, resource, namespace) as cache:
                await cache.wait_until(lambda store: holds(store.list()) or None, seconds)
        except TimeoutError:
            raise TestFailed(f"{resource.kind} in the cluster: not within {seconds:g} s: {what}") from None

    @contextlib.asynccontextmanager
    async def own_namespace(self, purpose: str) -> AsyncIterator[str]:
        """A namespace in the cluster for one test. It goes with all that is in it; its removal is not awaited."""
        cluster = await self.cluster()
        name = f"gardener-test-{self.run}-{purpose}"
        metadata = {"name": name, "labels": {RUN_LABEL: self.run}}
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, manager=MANAGER)
        try:
            yield name
        finally:
            with contextlib.suppress(ApiError):  # the end of the run deletes what is left
                await (await self.cluster()).delete(resources.NAMESPACE, name)

    async def deploy(self, namespace: str, name: str = "web") -> str:
        """Run a Deployment of one pod that sleeps; returns the name of its pod once that is ready."""
        cluster = await self.cluster()
        labels = {"app": name, RUN_LABEL: self.run}
        container = {
            "name": "main",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "echo ready; exec sleep 86400"],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        pod = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        }
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        await cluster.apply(deployment, manager=MANAGER)
        await self.wait_for(
            cluster,
            resources.DEPLOYMENT,
            name,
            namespace,
            lambda live: (live.get("status") or {}).get("readyReplicas") == 1,
            what=f"a pod of image {self.image} is ready",
        )
        pods = await cluster.list(resources.POD, namespace, labels=f"app={name}")
        [ready] = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        return str(ready["metadata"]["name"])


def is_ready(obj: Object) -> bool:
    """Whether a node or a pod is ready."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def expect(holds: object, text: str) -> None:
    """Raise TestFailed with a text, unless something holds."""
    if not holds:
        raise TestFailed(text)

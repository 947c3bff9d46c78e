"""A resource manager's controller at a real API server, which is source and target."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from activities.managed_resources import secrets_checksum
from api.resources import MANAGED_RESOURCE, SECRET
from kube.cache import Caches
from kube.client import KubeClient, Object
from tests.unit.kube.waiting import until
from workers.resource_manager.config import Controllers
from workers.resource_manager.managed_resources import ManagedResourceController

ORIGIN = "resources.gardener.cloud/origin"


class Manager:
    """Runs the controller for one namespace, writes ManagedResources there, and waits for their conditions."""

    def __init__(self, admin: KubeClient, namespace: str) -> None:
        self.admin, self.namespace = admin, namespace
        self.user = admin
        """Client that the controller uses."""
        self._runs = 0
        self._running: list[tuple[asyncio.Task[None], Caches]] = []

    async def start(self, **controllers: Any) -> None:
        caches = Caches(self.user)
        controller = ManagedResourceController(
            Controllers.model_validate({"managedResource": {"syncPeriod": "1h"}, **controllers}),
            source=self.user,
            source_caches=caches,
            target=self.user,
            target_caches=caches,
            namespaces=[self.namespace],
        )
        self._running.append((asyncio.create_task(controller.run()), caches))

    async def stop(self) -> None:
        while self._running:
            task, caches = self._running.pop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.close()

    async def write(
        self, *objects: Object, name: str = "one", raw: str = "", annotations: Object | None = None, **spec: Any
    ) -> None:
        """Write a ManagedResource and its Secret. ``raw``: one more key of the Secret, as text."""
        data = {f"{number:04}.json": json.dumps(each) for number, each in enumerate(objects)}
        data |= {"raw.yaml": raw} if raw else {}
        place = {"name": name, "namespace": self.namespace}
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": place, "data": encoded}
        await self.admin.apply(secret, manager="test")
        written: Object = {
            "apiVersion": MANAGED_RESOURCE.api_version,
            "kind": "ManagedResource",
            "metadata": {**place, "annotations": annotations or {}},
            "spec": {"secretRefs": [{"name": name}], **spec},
        }
        await self.admin.apply(written, manager="test")

    async def get(self, name: str = "one") -> Object:
        return await self.admin.get(MANAGED_RESOURCE, name, self.namespace)

    async def condition(self, kind: str, name: str = "one") -> Object:
        found = ((await self.get(name)).get("status") or {}).get("conditions") or ()
        return next((each for each in found if each["type"] == f"Resources{kind}"), {})

    async def sees(self, kind: str, status: str, reason: str = "", name: str = "one") -> str:
        """Wait for a condition of this reason; returns its message."""
        seen: Object = {}

        async def there() -> bool:
            seen.clear()
            seen.update(await self.condition(kind, name))
            return seen.get("status") == status and reason in ("", seen.get("reason"))

        try:
            await until(there, 30)
        except TimeoutError:
            raise AssertionError(f"{kind} is {seen}, not {status} {reason}") from None
        return str(seen["message"])

    async def reconciled(self, name: str = "one") -> None:
        """Change the Secret by a comment, and wait for the end of the run that follows."""
        self._runs += 1
        comment = base64.b64encode(f"# run {self._runs}".encode()).decode()
        await self.admin.patch(SECRET, name, self.namespace, {"data": {"run.yaml": comment}})
        await self.runs(name)

    async def runs(self, name: str = "one") -> None:
        """Wait until the controller has applied the ManagedResource and its Secret as they are now."""
        checksum = secrets_checksum([await self.admin.get(SECRET, name, self.namespace)])

        async def done() -> bool:
            found = await self.get(name)
            status = found.get("status") or {}
            return (
                status.get("secretsDataChecksum") == checksum
                and status.get("observedGeneration") == found["metadata"]["generation"]
                and (await self.condition("Applied", name)).get("status") == "True"
            )

        try:
            await until(done, 30)
        except TimeoutError:
            raise AssertionError(f"ManagedResource {name} has {(await self.get(name)).get('status')}") from None

    async def until(self, check: Callable[[Object], bool], resource: Any, name: str) -> Object:
        """Wait for an object of the namespace that satisfies the check; returns the object."""
        seen: Object = {}

        async def there() -> bool:
            seen.clear()
            seen.update(await self.admin.find(resource, name, self.namespace) or {})
            return bool(seen) and check(seen)

        try:
            await until(there, 30)
        except TimeoutError:
            raise AssertionError(f"{resource.kind} {name} is {json.dumps(seen)[:2000]}") from None
        return seen

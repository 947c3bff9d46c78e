"""Leader election by a Lease: one of several replicas runs the controllers; all replicas run Temporal tasks.

Two instances of a controller may run for a moment, but not for long: both would overwrite each other's status, and two
schedulers would not count each other's decisions. Temporal distributes tasks over all replicas itself.
"""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

from api.durations import parse_duration
from api.model import ApiModel
from api.resources import LEASE
from api.times import micro_timestamp
from kube.client import KubeClient
from kube.errors import AlreadyExists, ApiError, Conflict

log = logging.getLogger(__name__)

Duration = Annotated[
    timedelta, BeforeValidator(lambda value: parse_duration(value) if isinstance(value, str) else value)
]


class LeaderElectionConfig(ApiModel):
    """Fields of Kubernetes' ``LeaderElectionConfiguration``; durations are written as in Go, like ``15s``."""

    leader_elect: bool = False
    """Off: there is one replica, and it always leads."""
    resource_namespace: str = "garden"
    resource_name: str = ""
    """Name of the Lease; empty: the name of the process."""
    lease_duration: Duration = timedelta(seconds=15)
    """Time after which a Lease that was not renewed expires: another replica may then become leader."""
    renew_deadline: Duration = timedelta(seconds=10)
    """Time after which a leader that could not renew its Lease stops leading. It must be shorter than
    ``lease_duration``, so that the leader stops before another replica becomes leader."""
    retry_period: Duration = timedelta(seconds=2)


class LostLeadership(Exception):
    """Another replica leads now, or will soon: what only the leader may do has ended."""


async def run_as_leader(
    client: KubeClient, config: LeaderElectionConfig, name: str, *parts: Coroutine[Any, Any, None]
) -> None:
    """Wait until this process is the leader, then run the parts concurrently.

    Raises:
        LostLeadership: the Lease could not be renewed. The parts have ended. The process may exit, so that its
            supervisor restarts it, or become a candidate again.
    """
    lease = _Lease(client, config, config.resource_name or name)
    tasks: list[asyncio.Task[None]] = []
    try:
        if config.leader_elect:
            await lease.acquire()
            tasks.append(asyncio.create_task(lease.keep()))
        tasks += [asyncio.create_task(part) for part in parts]
        await asyncio.gather(*tasks)
    finally:
        for part in parts:
            if not tasks:
                part.close()  # never started
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lease.release()


async def run_while_leader(
    client: KubeClient, config: LeaderElectionConfig, name: str, work: Callable[[], Awaitable[None]]
) -> None:
    """Run ``work`` each time this process becomes the leader, and cancel it when the process no longer leads.

    For a process that also does what needs no leader, and should go on with it. ``work`` must end when it is cancelled,
    within the time between ``renew_deadline`` and ``lease_duration``. An error of ``work`` ends this function.
    """

    async def lead() -> None:
        await work()

    while True:
        try:
            await run_as_leader(client, config, name, lead())
        except LostLeadership as error:
            log.warning("%s: stopped leading, waiting for it again", error)
        else:
            return


class _Lease:
    def __init__(self, client: KubeClient, config: LeaderElectionConfig, name: str) -> None:
        self._client = client
        self._config = config
        self._name = name
        self._identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._held: dict[str, Any] | None = None
        self._seen: tuple[str, float] = ("", 0.0)
        """Version of another leader's Lease, and when this process first saw it, by its own clock: clocks differ."""

    async def acquire(self) -> None:
        log.info("waiting for the lease %s/%s", self._config.resource_namespace, self._name)
        while True:
            try:
                self._held = await self._try()
            except ApiError as error:
                log.warning("lease %s: %s", self._name, error)
            if self._held is not None:
                log.info("leading: %s holds %s/%s", self._identity, self._config.resource_namespace, self._name)
                return
            await asyncio.sleep(self._config.retry_period.total_seconds())

    async def keep(self) -> None:
        """Renew until cancelled."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._config.retry_period.total_seconds())
            limit = self._config.renew_deadline.total_seconds() - (time.monotonic() - renewed)
            try:
                async with asyncio.timeout(max(limit, 0)):
                    held = await self._try()
            except (ApiError, TimeoutError) as error:
                log.warning("renewing lease %s: %s", self._name, error or "out of time")
                if limit <= 0:
                    self._held = None
                    raise LostLeadership(f"lease {self._name} could not be renewed in time") from None
                continue
            if held is None:
                self._held = None
                raise LostLeadership(f"another process holds lease {self._name}")
            self._held, renewed = held, time.monotonic()

    async def release(self) -> None:
        """Release the Lease at once, so that the next leader need not wait until it expires."""
        if self._held is None:
            return
        held = self._held | {"spec": self._held["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}}
        try:
            async with asyncio.timeout(2):
                await self._client.replace(held)
        except (ApiError, TimeoutError) as error:
            log.info("lease %s is left to expire: %s", self._name, error or "out of time")

    async def _try(self) -> dict[str, Any] | None:
        """Acquire or renew the Lease; returns it if this process holds it, else None."""
        found = await self._client.find(LEASE, self._name, self._config.resource_namespace)
        now = micro_timestamp()
        spec = (found or {}).get("spec") or {}
        ours = spec.get("holderIdentity") == self._identity
        if found is not None and not ours and spec.get("holderIdentity") and not self._expired(found):
            return None
        wanted = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._config.lease_duration.total_seconds()),
            "acquireTime": spec.get("acquireTime") if ours else now,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", -1) + (0 if ours else 1),
        }
        try:
            if found is None:
                metadata = {"name": self._name, "namespace": self._config.resource_namespace}
                return await self._client.create(
                    {"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": metadata, "spec": wanted}
                )
            return await self._client.replace(found | {"spec": wanted})
        except (AlreadyExists, Conflict):
            return await self._after_conflict() if ours else None

    async def _after_conflict(self) -> dict[str, Any] | None:
        found = await self._client.find(LEASE, self._name, self._config.resource_namespace)
        return found if found and found["spec"].get("holderIdentity") == self._identity else None

    def _expired(self, lease: dict[str, Any]) -> bool:
        version = str(lease["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        limit = lease["spec"].get("leaseDurationSeconds") or self._config.lease_duration.total_seconds()
        return time.monotonic() - self._seen[1] > float(limit)

"""Renews the tokens of WorkloadIdentities in Secrets of control planes, before they expire.

Source: spec/api-core.md 13. An activity writes these Secrets with their first tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from activities.clusters import Clusters
from activities.seed.namespace import shoot_uid
from activities.seed.workload_identity import Unusable, ensure_token, uid_of_context
from api import resources
from api.constants import OPERATION, OPERATION_RENEW_WORKLOAD_IDENTITY_TOKENS
from api.decisions.workload_identity import PURPOSE, RENEW_TIMESTAMP, TOKEN_REQUESTOR
from kube.cache import Key
from kube.client import WatchEvent
from kube.controller import Controller, Requeue
from kube.errors import NotFound
from kube.events import emit
from workers.gardenlet.garden_caches import own_seed

log = logging.getLogger(__name__)


class TokenRequestor:
    """Keeps the tokens valid. One per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._secrets = clusters.seed_caches.of(resources.SECRET, labels=f"{PURPOSE}={TOKEN_REQUESTOR}")
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._controller = Controller("tokens of workload identities", self._reconcile, workers=2, longest_delay=60.0)
        self._controller.watch(self._secrets, when=_exists)
        self._seeds = own_seed(clusters)
        self._operations = Controller("renewal of tokens of workload identities", self._renew_all, workers=1)
        self._operations.watch(self._seeds, when=lambda event: event.type != "DELETED" and _is_asked(event.object))

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(self._namespaces.synced(), self._secrets.synced())
        await asyncio.gather(self._controller.run(), self._operations.run())

    async def _renew_all(self, key: Key) -> None:
        """Let all tokens of the seed be renewed now, because an annotation of the Seed requests that."""
        seed = self._seeds.get(key.name)
        if seed is None or not _is_asked(seed):
            return
        secrets = self._secrets.list()
        for each in secrets:
            metadata = each["metadata"]
            patch = {"metadata": {"annotations": {RENEW_TIMESTAMP: None}}}
            with contextlib.suppress(NotFound):
                await self._clusters.seed.patch(resources.SECRET, metadata["name"], metadata["namespace"], patch)
        done = {"metadata": {"annotations": {OPERATION: None}}}
        await self._clusters.garden.patch(resources.SEED, key.name, None, done)
        message = f"renewing the tokens of WorkloadIdentities in {len(secrets)} Secrets"
        await emit(self._clusters.garden, seed, "gardenlet", "WorkloadIdentityTokensRenewed", message)

    async def _reconcile(self, key: Key) -> Requeue | None:
        secret = self._secrets.get(key.name, key.namespace)
        if secret is None or secret["metadata"].get("deletionTimestamp"):
            return None
        namespace = self._namespaces.get(secret["metadata"]["namespace"])
        try:
            # The garden grants tokens for each Shoot of this seed. A Secret beside another control plane gets none.
            if namespace is None or shoot_uid(namespace) != uid_of_context(secret):
                raise Unusable("the namespace is not the control plane of the Shoot that the Secret names")
            due = await ensure_token(self._clusters, secret)
        except Unusable as error:
            log.warning("Secret %s gets no token of a WorkloadIdentity: %s", key, error)
            return None
        return Requeue(max(1.0, (due - datetime.now(UTC)).total_seconds()))


def _is_asked(seed: Mapping[str, Any]) -> bool:
    annotations = seed["metadata"].get("annotations") or {}
    return annotations.get(OPERATION) == OPERATION_RENEW_WORKLOAD_IDENTITY_TOKENS


def _exists(event: WatchEvent) -> bool:
    return event.type != "DELETED"

"""Renews the tokens of WorkloadIdentities in Secrets of control planes, before they expire.

Source: spec/api-core.md 13. An activity writes these Secrets with their first tokens.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from activities.clusters import Clusters
from activities.seed.namespace import shoot_uid
from activities.seed.workload_identity import Unusable, ensure_token, uid_of_context
from api import resources
from api.decisions.workload_identity import PURPOSE, TOKEN_REQUESTOR
from kube.cache import Key
from kube.client import WatchEvent
from kube.controller import Controller, Requeue

log = logging.getLogger(__name__)


class TokenRequestor:
    """Keeps the tokens valid. One per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._secrets = clusters.seed_caches.of(resources.SECRET, labels=f"{PURPOSE}={TOKEN_REQUESTOR}")
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)
        self._controller = Controller("tokens of workload identities", self._reconcile, workers=2, longest_delay=60.0)
        self._controller.watch(self._secrets, when=_exists)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._namespaces.synced()
        await self._controller.run()

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


def _exists(event: WatchEvent) -> bool:
    return event.type != "DELETED"

"""Makes static tokens invalid whose ServiceAccounts mount none into pods. Source: spec/resource-manager.md 5.

This controller labels the Secrets. The API server calls ``webhooks/static_tokens.py`` for labelled Secrets, which
replaces the token, also when kube-controller-manager generates it again.
"""

import asyncio
import base64
from collections.abc import Iterable, Sequence

from activities.components.resource_manager_webhooks import TOKEN_INVALIDATOR_CONSIDER
from api.resources import SECRET, SERVICE_ACCOUNT
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller

SKIP = "token-invalidator.resources.gardener.cloud/skip"
"""Label of a ServiceAccount whose static tokens stay valid: ``true``."""
INVALID = base64.b64encode(bytes(3)).decode()
"""Value of an invalid token in a Secret, as in Gardener."""
_ACCOUNT = "kubernetes.io/service-account.name"
_OF_TOKENS = "type=kubernetes.io/service-account-token"


class TokenInvalidator:
    """Labels the Secrets with static tokens in the target cluster."""

    def __init__(
        self, target: KubeClient, target_caches: Caches, namespaces: Sequence[str | None], *, workers: int = 5
    ) -> None:
        self._target = target
        self._secrets = [target_caches.of(SECRET, each, fields=_OF_TOKENS) for each in namespaces]
        self._accounts = [target_caches.of(SERVICE_ACCOUNT, each) for each in namespaces]
        self._controller = Controller(
            "token-invalidator", self._reconcile, workers=workers, first_delay=0.2, longest_delay=60.0
        )

    async def run(self) -> None:
        """Run until cancelled."""
        for secrets in self._secrets:
            self._controller.watch(secrets)
        for accounts in self._accounts:
            self._controller.watch(accounts, self._secrets_of, when=_matters)
        await asyncio.gather(*(each.synced() for each in (*self._secrets, *self._accounts)))
        await self._controller.run()

    def _secrets_of(self, event: WatchEvent) -> Iterable[Key]:
        account = event.object["metadata"]
        found = (each for cache in self._secrets for each in cache.list(account["namespace"]))
        return [key_of(each) for each in found if _account_of(each) == account["name"]]

    async def _reconcile(self, key: Key) -> None:
        secret = await self._target.find(SECRET, key.name, key.namespace)
        if secret is None or "deletionTimestamp" in secret["metadata"]:
            return
        account = await self._target.find(SERVICE_ACCOUNT, _account_of(secret), key.namespace)
        if account is None:  # kube-controller-manager deletes the Secret
            return
        labelled = (secret["metadata"].get("labels") or {}).get(TOKEN_INVALIDATOR_CONSIDER) == "true"
        token = (secret.get("data") or {}).get("token", INVALID)
        if _is_useless(account):
            if not labelled or token != INVALID:
                await self._patch(key, {"metadata": {"labels": {TOKEN_INVALIDATOR_CONSIDER: "true"}}})
        elif labelled:
            # kube-controller-manager generates a token for a Secret that has none.
            labels = {TOKEN_INVALIDATOR_CONSIDER: None}
            await self._patch(key, {"metadata": {"labels": labels}, "data": {"token": None}})

    async def _patch(self, key: Key, patch: Object) -> None:
        await self._target.patch(SECRET, key.name, key.namespace, patch)


def _account_of(secret: Object) -> str:
    return str((secret["metadata"].get("annotations") or {}).get(_ACCOUNT, ""))


def _is_useless(account: Object) -> bool:
    """Whether static tokens of an account are to be invalid: its pods mount none of its Secrets."""
    labels = account["metadata"].get("labels") or {}
    return account.get("automountServiceAccountToken") is False and labels.get(SKIP) != "true"


def _matters(event: WatchEvent) -> bool:
    return event.old is None or _is_useless(event.old) != _is_useless(event.object)

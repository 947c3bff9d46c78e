"""Requests tokens for service accounts of the target cluster, and keeps them valid in Secrets of the source cluster.

So components that run beside an API server can use it without a static credential.
Source: spec/resource-manager.md 5.
"""

import base64
import json
import logging
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from api.durations import parse_duration
from api.resources import SECRET, SERVICE_ACCOUNT
from api.times import timestamp
from kube.cache import Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from kube.kubeconfig import KubeconfigError, parse_kubeconfig
from workers.lib import resource_names as names
from workers.lib.resource_names import annotation

_log = logging.getLogger(__name__)

_MANAGER = "gardener-resource-manager"
_DEFAULT_LIFETIME = timedelta(hours=12)
_LONGEST_USE = timedelta(hours=24)
_KEYS = ("token", "bundle.crt", "kubeconfig")


def renew_after(lifetime: timedelta, chance: float) -> timedelta:
    """Time after which to renew a token: 80 % of its lifetime, or of 24 h if that is shorter, and up to 5 % more.

    ``chance``, from 0 to 1, decides how much more.
    """
    return min(lifetime, _LONGEST_USE) * 0.8 * (1 + 0.05 * chance)


class TokenRequestor:
    """Keeps tokens in Secrets with label ``resources.gardener.cloud/purpose: token-requestor``."""

    def __init__(
        self,
        *,
        source: KubeClient,
        source_caches: Caches,
        target: KubeClient,
        namespaces: Iterable[str | None],
        secret_class: str,
        labels: str = "",
        workers: int = 5,
        resync: float = 86400.0,
    ) -> None:
        """``secret_class``: class of the Secrets to serve; empty: Secrets of all classes, and those without a class.

        ``labels``: selector of the Secrets to watch; empty: the watch is one that others use for all Secrets.
        ``resync``: seconds after which a token is checked again, for example whether its target Secret still exists.
        """
        self._source = source
        self._caches = source_caches
        self._target = target
        self._namespaces = tuple(namespaces)
        self._class = secret_class
        self._labels = labels
        self._resync = resync
        self._controller = Controller(
            "token-requestor", self._reconcile, workers=workers, first_delay=0.2, longest_delay=15.0
        )
        self._written: dict[Key, str] = {}
        """Resource versions of Secrets as this process wrote them, to recognize its own changes."""

    async def run(self) -> None:
        for namespace in self._namespaces:
            self._controller.watch(self._caches.of(SECRET, namespace, self._labels), when=self._concerns_us)
        await self._controller.run()

    def _concerns_us(self, event: WatchEvent) -> bool:
        return event.type != "DELETED" and self._responsible(event.object)

    def _responsible(self, secret: Object) -> bool:
        labels = secret["metadata"].get("labels") or {}
        purpose, secret_class = labels.get(names.PURPOSE), labels.get(names.CLASS)
        return purpose == names.PURPOSE_TOKEN_REQUESTOR and self._class in ("", secret_class)

    async def _reconcile(self, key: Key) -> Requeue | None:
        secret = await self._source.find(SECRET, key.name, key.namespace)
        if secret is None or secret["metadata"].get("deletionTimestamp") or not self._responsible(secret):
            self._written.pop(key, None)
            return None
        name, namespace = annotation(secret, names.SA_NAME), annotation(secret, names.SA_NAMESPACE)
        if not name or not namespace:
            _log.warning("Secret %s names no service account to request a token for", key)
            return None
        remaining = await self._remaining(key, secret)
        if remaining is not None:
            return Requeue(min(remaining.total_seconds(), self._resync))

        await self._ensure_account(name, namespace, annotation(secret, names.SA_LABELS))
        token, lifetime = await self._request(name, namespace, secret)
        pause = renew_after(lifetime, random.random())
        await self._store(secret, token, datetime.now(UTC) + pause)
        return Requeue(min(pause.total_seconds(), self._resync))

    async def _remaining(self, key: Key, secret: Object) -> timedelta | None:
        """Time until the token in the Secret must be renewed; None: renew it now."""
        timestamp = annotation(secret, names.SA_RENEW_TIMESTAMP)
        if not timestamp:
            return None
        try:
            remaining = datetime.fromisoformat(timestamp) - datetime.now(UTC)
        except ValueError:
            return None
        if remaining <= timedelta(0):
            return None
        holder: Object | None = secret
        if target := _target_secret(secret):
            holder = await self._target.find(SECRET, target.name, target.namespace)
        token = _token_in(holder) if holder is not None else None
        if holder is None or token is None or not self._has_current_ca(secret, holder):
            return None
        if self._written.get(key) != secret["metadata"]["resourceVersion"]:
            if not await self._accepted(token):
                return None
            self._written[key] = secret["metadata"]["resourceVersion"]
        return remaining

    async def _accepted(self, token: str) -> bool:
        """Whether the target cluster still accepts the token: the signing key of tokens may have changed."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {"name": ""}}
        try:
            answer = await self._target.create({**review, "spec": {"token": token}})
        except ApiError as error:
            _log.info("a token could not be reviewed, so it is kept: %s", error)
            return True
        return bool((answer.get("status") or {}).get("authenticated"))

    async def _ensure_account(self, name: str, namespace: str, labels_json: str | None) -> None:
        labels: dict[str, str] | None = None
        if labels_json:
            try:
                labels = json.loads(labels_json)
            except ValueError:
                raise TryAgain(f"annotation {names.SA_LABELS} of the token Secret is not JSON") from None
        account: Object = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
            "automountServiceAccountToken": False,
        }
        live = await self._target.find(SERVICE_ACCOUNT, name, namespace)
        if live is None:
            # A gardenlet may create an object only by a request that names it, as server-side apply does.
            await self._target.apply_blindly(account, manager=_MANAGER)
            return
        wanted: Object = {}
        if live.get("automountServiceAccountToken") is not False:
            wanted["automountServiceAccountToken"] = False
        current = live["metadata"].get("labels") or {}
        if labels is not None and current != labels:
            wanted["metadata"] = {"labels": {**dict.fromkeys(current), **labels}}
        if wanted:
            await self._target.patch(SERVICE_ACCOUNT, name, namespace, wanted)

    async def _request(self, name: str, namespace: str, secret: Object) -> tuple[str, timedelta]:
        duration = annotation(secret, names.SA_TOKEN_DURATION)
        try:
            lifetime = parse_duration(duration) if duration else _DEFAULT_LIFETIME
        except ValueError:
            raise TryAgain(f"annotation {names.SA_TOKEN_DURATION} of Secret {key_of(secret)} is no duration") from None
        answer = await self._target.request(
            "POST",
            SERVICE_ACCOUNT.path(namespace, name, "token"),
            body={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": int(lifetime.total_seconds())},
            },
            doing=f"requesting a token for service account {namespace}/{name}",
        )
        status = answer["status"]
        return status["token"], datetime.fromisoformat(status["expirationTimestamp"]) - datetime.now(UTC)

    async def _store(self, secret: Object, token: str, renew_at: datetime) -> None:
        key = key_of(secret)
        data = self._with_token(secret, token)
        if target := _target_secret(secret):
            if "kubeconfig" not in data:
                # After the first time the kubeconfig is in the target Secret alone.
                there = await self._target.find(SECRET, target.name, target.namespace)
                if there is not None and "kubeconfig" in (there.get("data") or {}):
                    data = self._with_token(there, token, annotated=secret)
            await self._target.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": target.name, "namespace": target.namespace},
                    "type": "Opaque",
                    "data": data,
                },
                manager=_MANAGER,
            )
            data = dict.fromkeys(name for name in _KEYS if name in (secret.get("data") or {}))
        try:
            annotations = {names.SA_RENEW_TIMESTAMP: timestamp(renew_at)}
            patch = {"metadata": {"annotations": annotations}, "data": data}
            written = await patch_as_read(self._source, SECRET, secret, patch)
        except NotFound as error:
            raise TryAgain(str(error), after=0.05) from None
        self._written[key] = written["metadata"]["resourceVersion"]

    def _with_token(self, secret: Object, token: str, annotated: Object | None = None) -> Mapping[str, str | None]:
        """Fields to write into the Secret's data. ``annotated``: the Secret with the annotations, if another one."""
        ca = self._target.endpoint.ca if annotation(annotated or secret, names.SA_INJECT_CA) == "true" else ""
        encoded = (secret.get("data") or {}).get("kubeconfig")
        if encoded is None:
            return {"token": _encode(token)} | ({"bundle.crt": _encode(ca)} if ca else {})
        config = _kubeconfig(secret)
        context = _current(config, "contexts", config.get("current-context"), "context")
        _current(config, "users", context.get("user"), "user")["token"] = token
        if ca:
            _current(config, "clusters", context.get("cluster"), "cluster")["certificate-authority-data"] = _encode(ca)
        return {"kubeconfig": _encode(yaml.safe_dump(config, sort_keys=False))}

    def _has_current_ca(self, secret: Object, holder: Object) -> bool:
        if annotation(secret, names.SA_INJECT_CA) != "true" or not self._target.endpoint.ca:
            return True
        ca = _encode(self._target.endpoint.ca)
        data = holder.get("data") or {}
        if "kubeconfig" not in data:
            return bool(data.get("bundle.crt") == ca)
        config = _kubeconfig(holder)
        context = _current(config, "contexts", config.get("current-context"), "context")
        cluster = _current(config, "clusters", context.get("cluster"), "cluster")
        return cluster.get("certificate-authority-data") == ca


def _target_secret(secret: Object) -> Key | None:
    name, namespace = annotation(secret, names.TARGET_SECRET_NAME), annotation(secret, names.TARGET_SECRET_NAMESPACE)
    return Key(namespace, name) if name and namespace else None


def _token_in(secret: Object) -> str | None:
    data = secret.get("data") or {}
    if "kubeconfig" in data:
        config = _kubeconfig(secret)
        context = _current(config, "contexts", config.get("current-context"), "context")
        token = _current(config, "users", context.get("user"), "user").get("token")
        return str(token) if token else None
    return base64.b64decode(data["token"]).decode() if data.get("token") else None


def _kubeconfig(secret: Object) -> dict[str, Any]:
    try:
        return parse_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"]))
    except (KubeconfigError, ValueError):
        raise TryAgain(f"key kubeconfig of Secret {key_of(secret)} is no kubeconfig") from None


def _current(config: Mapping[str, Any], group: str, name: object, inner: str) -> dict[str, Any]:
    for entry in config.get(group) or ():
        if entry.get("name") == name:
            if not isinstance(entry.get(inner), dict):
                entry[inner] = {}
            found: dict[str, Any] = entry[inner]
            return found
    raise TryAgain(f"a kubeconfig to write a token into has no {inner} {name!r}")


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

"""The first token of an account in a shoot, which the account gets before the resource manager can request it.

The resource manager itself needs such a token, with which it requests all others. The controllers and the scheduler get
one, too: machines take longest to start, so the components that machines need start at the same time as the resource
manager.

This module makes a certificate of the shoot's client CA, which is valid for 10 minutes and stored nowhere. With this
certificate the gardenlet sets up the account in the shoot, requests a token for it, and writes the token to the Secret
where the resource manager will renew it. (Gardener stores such a certificate and starts the resource manager twice,
with the certificate and without it.)
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.components import apiserver, base
from activities.components.base import Manifest
from activities.secrets import crypto
from activities.secrets.configs import KeyAlgorithm, Usage
from activities.secrets.manager import SecretsManager, Which
from activities.seed.rollout import MANAGER
from api import resources
from api.times import timestamp
from kube.client import KubeClient
from kube.errors import Unauthorized

_CERTIFICATE_VALIDITY = timedelta(minutes=10)
_TOKEN_VALIDITY = timedelta(hours=12)
_RENEW_AT = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"


class FirstToken:
    """First token of one account in one shoot; an instance serves one activity.

    ``rights`` are objects in the shoot: the account itself, and the objects that give the account its rights.
    """

    def __init__(
        self, seed: KubeClient, namespace: str, secrets: SecretsManager, account: str, rights: Sequence[Manifest]
    ) -> None:
        self._seed = seed
        self._namespace = namespace
        self._secrets = secrets
        self._account = account
        self._rights = rights

    async def works(self, access: Mapping[str, Any]) -> bool:
        """Whether the API server accepts the token in Secret ``access``, and the account may still do everything."""
        encoded = (access.get("data") or {}).get("token")
        if not encoded:
            return False
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}},
        }
        async with await self._client({"token": base64.b64decode(encoded).decode()}) as shoot:
            try:
                path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
                answer = await shoot.request("POST", path, body=review)
            except Unauthorized:
                return False
        return bool(answer["status"]["allowed"])

    async def obtain(self) -> None:
        """Set up the account, request a token and store it. May run twice."""
        pair = crypto.signed(
            f"gardener.cloud:system:{self._account}",
            organizations=["system:masters"],
            ca=self._secrets.get("ca-client", Which.CURRENT).key_pair(),
            usage=Usage.CLIENT,
            algorithm=KeyAlgorithm.P256,
            now=datetime.now(UTC),
            validity=_CERTIFICATE_VALIDITY,
        )
        user = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
        async with await self._client(user) as shoot:
            for item in self._rights:
                await shoot.apply(item, manager=MANAGER)
            answer = await shoot.request(
                "POST",
                f"/api/v1/namespaces/kube-system/serviceaccounts/{self._account}/token",
                body={
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {"expirationSeconds": int(_TOKEN_VALIDITY.total_seconds())},
                },
            )
        renew_at = datetime.now(UTC) + _TOKEN_VALIDITY * 0.8
        patch = {
            "metadata": {"annotations": {_RENEW_AT: timestamp(renew_at)}},
            "data": {"token": _text(answer["status"]["token"].encode())},
        }
        await self._seed.patch(resources.SECRET, base.shoot_access_name(self._account), self._namespace, patch)

    async def _client(self, user: dict[str, str]) -> KubeClient:
        service = await self._seed.get(resources.SERVICE, apiserver.NAME, self._namespace)
        cluster = {
            "server": f"https://{service['spec']['clusterIP']}:{apiserver.PORT}",
            "tls-server-name": f"{apiserver.NAME}.{self._namespace}.svc",
            "certificate-authority-data": _text(self._secrets.get("ca").data["bundle.crt"]),
        }
        return KubeClient.from_kubeconfig(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "shoot", "cluster": cluster}],
                "users": [{"name": "shoot", "user": user}],
                "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": "shoot"}}],
                "current-context": "shoot",
            }
        )


def is_fresh(access: Mapping[str, Any], now: datetime) -> bool:
    """Whether Secret ``access`` holds a token that need not be renewed yet."""
    renew_at = (access["metadata"].get("annotations") or {}).get(_RENEW_AT)
    held = bool((access.get("data") or {}).get("token"))
    return held and renew_at is not None and now < datetime.fromisoformat(renew_at)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""How a shoot's resource manager gets the token by which it requests all others, its own included.

With a certificate of the shoot's client CA that is made here, lives 10 minutes and is stored nowhere: we set up the
resource manager's account in the shoot, request a token for it, and put that where it will renew it. (Gardener stores
such a certificate and starts the resource manager twice, with it and without.)
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.components import apiserver, base, resource_manager, shoot_system
from activities.kube.client import KubeClient
from activities.kube.errors import Unauthorized
from activities.secrets import crypto
from activities.secrets.configs import KeyAlgorithm, Usage
from activities.secrets.manager import SecretsManager, Which
from activities.seed.rollout import MANAGER
from api import resources

_CERTIFICATE_VALIDITY = timedelta(minutes=10)
_TOKEN_VALIDITY = timedelta(hours=12)
_RENEW_AT = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"
ACCESS = base.shoot_access_name(resource_manager.NAME)
"""Secret of the token in the control-plane namespace."""


class FirstToken:
    """Of one shoot; made for one activity."""

    def __init__(self, seed: KubeClient, namespace: str, secrets: SecretsManager) -> None:
        self._seed = seed
        self._namespace = namespace
        self._secrets = secrets

    async def works(self, access: Mapping[str, Any]) -> bool:
        """Whether the token in Secret ``access`` is accepted, and its account may still do everything."""
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
        """Set up the account, and its owners' rights; request a token and store it. Repeatable."""
        pair = crypto.signed(
            "gardener.cloud:system:gardener-resource-manager",
            organizations=["system:masters"],
            ca=self._secrets.get("ca-client", Which.CURRENT).key_pair(),
            usage=Usage.CLIENT,
            algorithm=KeyAlgorithm.P256,
            now=datetime.now(UTC),
            validity=_CERTIFICATE_VALIDITY,
        )
        user = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
        async with await self._client(user) as shoot:
            # Owners, too: the cluster is theirs from now on, not only when all system components are up.
            for item in (shoot_system.owners(), *resource_manager.shoot_objects()):
                await shoot.apply(item, manager=MANAGER)
            answer = await shoot.request(
                "POST",
                f"/api/v1/namespaces/kube-system/serviceaccounts/{resource_manager.NAME}/token",
                body={
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {"expirationSeconds": int(_TOKEN_VALIDITY.total_seconds())},
                },
            )
        renew_at = datetime.now(UTC) + _TOKEN_VALIDITY * 0.8
        patch = {
            "metadata": {"annotations": {_RENEW_AT: renew_at.strftime("%Y-%m-%dT%H:%M:%SZ")}},
            "data": {"token": _text(answer["status"]["token"].encode())},
        }
        await self._seed.patch(resources.SECRET, ACCESS, self._namespace, patch)

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


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

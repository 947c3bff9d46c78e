"""BackupBucket and BackupEntry: buckets of the landscape's object store (``workers/object_store.py``).

The Secret of a bucket holds ``endpoint`` and the administrator's ``token``, and ``allowPlainHTTP`` if the endpoint
has no TLS. The Secret of an entry holds the bucket's own token. An etcd gets a token for the directory of its entry
only.
"""

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from activities.errors import permanent, transient
from activities.etcd.endpoint import ALLOW_PLAIN, fault_of
from activities.etcd.store import directory_token
from activities.extension import Extension, delete_quietly, namespace_lives, required_secret_data, secret_data
from activities.provider_local.provider import MANAGER, LocalActuator
from api import constants
from api.errors import ErrorCode
from api.resources import BACKUP_BUCKET, BACKUP_ENTRY, SECRET
from kube.errors import Forbidden, NotFound

ENDPOINT_KEY = "endpoint"
TOKEN_KEY = "token"
BUCKET_KEY = "bucketName"
_NAMESPACE_ANNOTATION = "backupbucket.extensions.gardener.cloud/generated-secret-namespace"
_DEFAULT_NAMESPACE = "garden"
_SOURCE_PREFIX = "source-"
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)


class BackupBucketActuator(LocalActuator):
    """Creates a bucket, and a Secret with a token for this bucket only."""

    resource = BACKUP_BUCKET

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        data = await required_secret_data(self._seed, extension)
        store = _ObjectStore.read(data, extension)
        answer = await store.request("PUT", f"/{extension.name}", f"making bucket {extension.name}")
        reference = _generated_secret(extension)
        await self._seed.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": dict(reference),
                "type": "Opaque",
                "data": {
                    **{key: data[key] for key in (ENDPOINT_KEY, ALLOW_PLAIN) if key in data},
                    TOKEN_KEY: base64.b64encode(str(answer["token"]).encode()).decode(),
                },
            },
            manager=MANAGER,
        )
        return {"generatedSecretRef": reference}

    async def delete(self, extension: Extension) -> None:
        data = await secret_data(self._seed, extension)
        if data is not None:
            store = _ObjectStore.read(data, extension)
            await store.request("DELETE", f"/{extension.name}", f"deleting bucket {extension.name}")
        await self.force_delete(extension)

    async def force_delete(self, extension: Extension) -> None:
        reference = _generated_secret(extension)
        await delete_quietly(self._seed, SECRET, reference["name"], reference["namespace"])


class BackupEntryActuator(LocalActuator):
    """Creates credentials for one control plane's directory in a bucket; the deletion removes its backups."""

    resource = BACKUP_ENTRY

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        data = await required_secret_data(self._seed, extension)
        store = _ObjectStore.read(data, extension)
        namespace, secret = _place(extension)
        if not await namespace_lives(self._seed, namespace):
            return {}  # the entry exists longer than its Shoot, by the grace period
        bucket = extension.spec["bucketName"]
        own = {BUCKET_KEY: bucket, TOKEN_KEY: store.token_of(bucket, _directory(extension))}
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in own.items()}
        try:
            await self._seed.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": secret, "namespace": namespace},
                    "type": "Opaque",
                    "data": {**data, **encoded},
                },
                manager=MANAGER,
            )
        except (NotFound, Forbidden):
            if await namespace_lives(self._seed, namespace):
                raise
        return {}

    async def delete(self, extension: Extension) -> None:
        data = await secret_data(self._seed, extension)
        if data is not None:
            store = _ObjectStore.read(data, extension)
            path = f"/{extension.spec['bucketName']}?prefix={quote(_directory(extension))}/"
            await store.request("DELETE", path, f"deleting backups of {extension.name}")
        await self.force_delete(extension)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        await self.force_delete(extension)
        return {}

    async def force_delete(self, extension: Extension) -> None:
        namespace, secret = _place(extension)
        await delete_quietly(self._seed, SECRET, secret, namespace)


class _ObjectStore:
    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._token = token

    @classmethod
    def read(cls, secret: Mapping[str, str], extension: Extension) -> "_ObjectStore":
        reference = extension.spec["secretRef"]
        place = f"Secret {reference['namespace']}/{reference['name']} of {extension}"
        try:
            endpoint, token = (base64.b64decode(secret[key]).decode() for key in (ENDPOINT_KEY, TOKEN_KEY))
            allow_plain = base64.b64decode(secret.get(ALLOW_PLAIN, "")).decode()
        except (KeyError, ValueError):
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM, f"{place} must have keys {ENDPOINT_KEY} and {TOKEN_KEY}"
            ) from None
        if fault := fault_of(endpoint, allow_plain):
            raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"{place}: {fault}")
        return cls(endpoint, token.strip())

    def token_of(self, bucket: str, directory: str) -> str:
        return directory_token(self._token, bucket, directory)

    async def request(self, method: str, path: str, doing: str) -> Any:
        """Send a request; returns the answer's JSON, if any. Deleting a missing object or bucket succeeds."""
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers) as session,
                session.request(method, self._endpoint + path) as answer,
            ):
                if answer.status < 300:
                    return await answer.json() if answer.content_type == "application/json" else None
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                f"{doing}: the object store does not answer ({type(error).__name__})",
            ) from None
        if status == 404 and method == "DELETE":
            return None
        code = {401: ErrorCode.INFRA_UNAUTHENTICATED, 403: ErrorCode.INFRA_UNAUTHORIZED}.get(status)
        if code is not None:
            raise permanent(code, f"{doing}: the object store does not accept the token (HTTP {status})")
        raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: the object store answered HTTP {status}")


def _generated_secret(extension: Extension) -> dict[str, str]:
    annotations = extension.object["metadata"].get("annotations") or {}
    namespace = annotations.get(_NAMESPACE_ANNOTATION, _DEFAULT_NAMESPACE)
    return {"name": f"generated-bucket-{extension.name}", "namespace": namespace}


def _directory(extension: Extension) -> str:
    """Directory of an entry's snapshots in the bucket. During a move, it is the same in the source's bucket."""
    return extension.name.removeprefix(_SOURCE_PREFIX)


def _place(extension: Extension) -> tuple[str, str]:
    """Namespace and name of the Secret that an entry's etcd reads."""
    source = extension.name.startswith(_SOURCE_PREFIX)
    namespace = _directory(extension).rpartition("--")[0]
    return namespace, constants.SOURCE_BACKUP_SECRET if source else "etcd-backup"

"""BackupBucket and BackupEntry: buckets and users of an S3 store.

The Secret of a bucket holds an administrator's key, which may create buckets and users. The Secret of an entry holds
the key of the bucket's own user, whose rights are those in this bucket and over the users below its path. An etcd gets
the key of a user that has rights to the directory of its entry only.

A seed to which a control plane moves gets the key of the source's etcd for the source's bucket, and no key that makes
users. So the Secret of its entry for that bucket holds the key that the etcd and the copy of the backups use.

An annotation of each Secret names the key with which its own key was made. If that key changes, a new key is made. The
earlier one stays valid for an hour, because an etcd reads the new one some time later.
"""

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from activities.errors import transient
from activities.extension import Extension, delete_quietly, namespace_lives, required_secret_data, secret_data
from activities.provider_local.accounts import IAM_ENDPOINT, Account, User, path_of, rights_below, rights_in
from activities.provider_local.provider import MANAGER, LocalActuator
from api import constants
from api.errors import ErrorCode
from api.resources import BACKUP_BUCKET, BACKUP_ENTRY, SECRET
from etcd import s3
from etcd.store import StoreError, open_store
from kube.client import KubeClient
from kube.errors import Forbidden, NotFound

MADE_BY = "local.provider.extensions.gardener.cloud/made-by-key"
"""Annotation of a Secret: id of the key by which its own key was made."""
_NAMESPACE_ANNOTATION = "backupbucket.extensions.gardener.cloud/generated-secret-namespace"
_DEFAULT_NAMESPACE = "garden"
_SOURCE_PREFIX = "source-"


class BackupBucketActuator(LocalActuator):
    """Creates a bucket, and a Secret with the key of a user that has rights in this bucket only."""

    resource = BACKUP_BUCKET

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        given = _decoded(await required_secret_data(self._seed, extension))
        account = _account(given, extension)
        await asyncio.to_thread(account.make_bucket, extension.name)
        reference = _generated_secret(extension)
        await _hand_out(self._seed, account, _user_of_bucket(extension.name), reference, given)
        return {"generatedSecretRef": reference}

    async def delete(self, extension: Extension) -> None:
        data = await secret_data(self._seed, extension)
        if data is not None:
            account = _account(_decoded(data), extension)
            await asyncio.to_thread(account.delete_bucket, extension.name)
            await asyncio.to_thread(account.delete_user, _user_of_bucket(extension.name).name)
        await self.force_delete(extension)

    async def force_delete(self, extension: Extension) -> None:
        reference = _generated_secret(extension)
        await delete_quietly(self._seed, SECRET, reference["name"], reference["namespace"])


class BackupEntryActuator(LocalActuator):
    """Creates credentials for one control plane's directory in a bucket; the deletion removes its backups."""

    resource = BACKUP_ENTRY

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        given, bucket = _decoded(await required_secret_data(self._seed, extension)), extension.spec["bucketName"]
        account = None if _is_of_entry(given, bucket) else _account(given, extension)
        namespace, secret = _place(extension)
        if not await namespace_lives(self._seed, namespace):
            return {}  # the entry exists longer than its Shoot, by the grace period
        reference = {"name": secret, "namespace": namespace}
        try:
            if account is None:
                await _write(self._seed, reference, given)
            else:
                data = {key: value for key, value in given.items() if key != IAM_ENDPOINT} | {s3.BUCKET: bucket}
                await _hand_out(self._seed, account, user_of_etcd(bucket, extension.name), reference, data)
        except (NotFound, Forbidden):
            if await namespace_lives(self._seed, namespace):
                raise
        return {}

    async def delete(self, extension: Extension) -> None:
        data = await secret_data(self._seed, extension)
        if data is not None:
            given, bucket, directory = _decoded(data), extension.spec["bucketName"], _directory(extension.name)
            account = None if _is_of_entry(given, bucket) else _account(given, extension)
            try:
                await open_store(self.type, given, bucket).delete_all(f"{directory}/")
            except StoreError as error:
                doing = f"deleting backups of {extension.name}"
                raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: {error}") from None
            # After a move, this finds the user of the etcd that was there before, too. The key of an entry deletes no
            # user: the seed that has the bucket revokes it.
            if account is not None:
                for name in (directory, _SOURCE_PREFIX + directory):
                    await asyncio.to_thread(account.delete_user, user_of_etcd(bucket, name).name)
        await self.force_delete(extension)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        await self.force_delete(extension)
        return {}

    async def force_delete(self, extension: Extension) -> None:
        namespace, secret = _place(extension)
        await delete_quietly(self._seed, SECRET, secret, namespace)


async def _hand_out(
    seed: KubeClient, account: Account, user: User, reference: Mapping[str, str], data: Mapping[str, str]
) -> None:
    """Write a Secret with ``data`` and a key of a user; a key that the same account has made stays the same."""
    live = await seed.find(SECRET, reference["name"], reference["namespace"]) or {}
    held = _decoded(live.get("data") or {})
    made_by = (live.get("metadata", {}).get("annotations") or {}).get(MADE_BY)
    known = held.get(s3.ACCESS_KEY, "")
    renew = made_by != account.key_id or not held.get(s3.SECRET_KEY)
    key = await asyncio.to_thread(account.key_of, user, known, renew=renew) or (known, held.get(s3.SECRET_KEY, ""))
    values = {**data, s3.ACCESS_KEY: key[0], s3.SECRET_KEY: key[1]}
    await _write(seed, reference, values, made_by=account.key_id)


async def _write(
    seed: KubeClient, reference: Mapping[str, str], values: Mapping[str, str], *, made_by: str = ""
) -> None:
    await seed.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**reference, **({"annotations": {MADE_BY: made_by}} if made_by else {})},
            "type": "Opaque",
            "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
        },
        manager=MANAGER,
    )


def _is_of_entry(given: Mapping[str, str], bucket: str) -> bool:
    """Whether a key is that of one entry in this bucket: it makes no users, so there is no address for that."""
    return IAM_ENDPOINT not in given and given.get(s3.BUCKET) == bucket


def _account(given: Mapping[str, str], extension: Extension) -> Account:
    reference = extension.spec["secretRef"]
    return Account(given, f"Secret {reference['namespace']}/{reference['name']} of {extension}")


def _decoded(data: Mapping[str, str]) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def _user_of_bucket(bucket: str) -> User:
    return User(f"bucket-{bucket}", "/buckets/", rights_in(bucket))


def user_of_etcd(bucket: str, entry: str) -> User:
    """The user's name is a digest: the names of bucket and entry together are longer than a user's may be."""
    digest = hashlib.sha256(f"{bucket}/{entry}".encode()).hexdigest()[:40]
    return User(f"etcd-{digest}", path_of(bucket), rights_below(bucket, _directory(entry)))


def _generated_secret(extension: Extension) -> dict[str, str]:
    annotations = extension.object["metadata"].get("annotations") or {}
    namespace = annotations.get(_NAMESPACE_ANNOTATION, _DEFAULT_NAMESPACE)
    return {"name": f"generated-bucket-{extension.name}", "namespace": namespace}


def _directory(entry: str) -> str:
    """Directory of an entry's snapshots in the bucket. During a move, it is the same in the source's bucket."""
    return entry.removeprefix(_SOURCE_PREFIX)


def _place(extension: Extension) -> tuple[str, str]:
    """Namespace and name of the Secret that an entry's etcd reads."""
    source = extension.name.startswith(_SOURCE_PREFIX)
    namespace = _directory(extension.name).rpartition("--")[0]
    return namespace, constants.SOURCE_BACKUP_SECRET if source else constants.BACKUP_KEY

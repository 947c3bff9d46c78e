"""Backup of a self-hosted control plane: the bucket of its etcd, and a copy of the keys that etcd's data need.

Authorities and keys are files of the machine, and a machine may be lost with its files. So the bucket also holds a copy
of them. It is encrypted with the recovery key, which the owner keeps outside of the cluster. Without that key, neither
the store nor a reader of the bucket can use the backups.
"""

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from activities.components import static_etcd
from activities.errors import permanent, transient
from activities.provider_local.accounts import IAM_ENDPOINT, Account
from activities.provider_local.backup import user_of_etcd
from activities.secrets.keyring import CodecError, read_keyring
from activities.secrets.sealing import CannotOpen, Sealing
from activities.self_hosted import control_plane
from activities.self_hosted.secrets import FileSecrets
from api.compression import TooLarge
from api.contracts.operations import ShootRef
from api.contracts.self_hosted import BACKUP_CREDENTIALS, RECOVERY_KEY, SECRETS, UID, InitTask
from api.errors import ErrorCode
from etcd import s3, snapshots
from etcd.store import Store, StoreError, open_store

_OBJECT = "control-plane"
"""Name of the copy, in the directory of the Shoot."""
_PROVIDER = "local"
_ANSWER_SECONDS = 5.0
_NO_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)


def place(task: InitTask) -> dict[str, str]:
    """Where the snapshots of etcd are: provider, bucket and prefix. Only the manifest decides that."""
    directory = task.shoot.technical_id
    return {"provider": _PROVIDER, "bucket": directory, "prefix": f"{directory}/{static_etcd.NAME}"}


class ControlPlaneBackup:
    """The bucket of one control plane, as the machine of ``task`` uses it."""

    def __init__(self, task: InitTask) -> None:
        self._task = task
        self._secrets = FileSecrets(task.directory / SECRETS)
        self._bucket = place(task)["bucket"]
        self._uid = task.directory / UID

    async def open(self) -> None:
        """Make the bucket, and a key for the directory of this Shoot. A second run finds both.

        A machine that restores makes a new key. The earlier one ends within an hour.
        """
        given: dict[str, str] = json.loads((self._task.directory / BACKUP_CREDENTIALS).read_text())
        account = Account(given, f"the Secret of {BACKUP_CREDENTIALS}")
        await asyncio.to_thread(account.make_bucket, self._bucket)
        if self._secrets.has(static_etcd.BACKUP):
            return
        user = user_of_etcd(self._bucket, self._task.shoot.technical_id)
        made = await asyncio.to_thread(account.key_of, user, "", renew=True)
        assert made is not None  # it is renewed
        data = {key: value for key, value in given.items() if key != IAM_ENDPOINT}
        data |= {s3.ACCESS_KEY: made[0], s3.SECRET_KEY: made[1], s3.BUCKET: self._bucket}
        self._secrets.keep(static_etcd.BACKUP, {key: value.encode() for key, value in data.items()})

    async def restore(self) -> None:
        """Take authorities and keys from the copy in the bucket, if there is one. A second run takes what is missing.

        Raises ApplicationError: a final one if this machine has other authorities, the copy cannot be read, or the
        control plane still runs elsewhere.
        """
        copy = await self._copy()
        if copy is None:
            if self._secrets.has(control_plane.CA):
                return
            if await self._list(snapshots.directory(place(self._task)["prefix"])):
                raise _refused(
                    f"bucket {self._bucket} has backups of etcd, but no copy of the keys that they need: delete"
                    " them, or give the Shoot another name"
                )
            return
        found = {name: _decoded(data) for name, data in copy["secrets"].items()}
        if not self._secrets.has(control_plane.CA):
            if address := copy.get("address"):
                await self._must_be_gone(address, found[control_plane.CA]["ca.crt"])
            # The first authority comes last: the machine has all of them when it has this one.
            for name in sorted(found, key=lambda name: name == control_plane.CA):
                self._secrets.keep(name, found[name])
            self._uid.write_text(copy["uid"])
        if any(self._secrets.get(name) != data for name, data in found.items()):
            raise _refused(f"bucket {self._bucket} has the backups of another control plane than that of this machine")

    async def store(self, address: str = "") -> None:
        """Write the copy. A second run writes it only if it differs.

        ``address``: that of the exposure, or the name that has a DNS record, if known.
        """
        copy = await self._copy() or {}
        made = {
            "secrets": {
                name: {key: base64.b64encode(content).decode() for key, content in self._secrets.get(name).items()}
                for name in (each.name for each in control_plane.authorities())
            },
            "uid": self._uid.read_text(),
            "address": address or copy.get("address", ""),
        }
        if made != copy:
            sealed = json.dumps(self._sealing().seal(made, self._shoot(), _OBJECT)).encode()
            with _told():
                await self._store().put(self._name, _once(sealed))

    @property
    def _name(self) -> str:
        return f"{self._task.shoot.technical_id}/{_OBJECT}"

    async def _copy(self) -> dict[str, Any] | None:
        """The copy in the bucket; None if there is none."""
        directory = f"{self._task.shoot.technical_id}/"
        if self._name not in await self._list(directory):
            return None
        with _told():
            content = b"".join([chunk async for chunk in self._store().get(self._name)])
        try:
            opened: dict[str, Any] = self._sealing().open(json.loads(content), self._shoot(), _OBJECT)
        except (CannotOpen, TooLarge, ValueError) as error:
            raise _refused(f"{self._bucket}/{self._name} cannot be read with this recovery key: {error}") from None
        return opened

    async def _list(self, directory: str) -> list[str]:
        with _told():
            return [each.name for each in await self._store().list(directory)]

    def _store(self) -> Store:
        data = self._secrets.get(static_etcd.BACKUP)
        return open_store(_PROVIDER, {key: value.decode() for key, value in data.items()}, self._bucket)

    def _sealing(self) -> Sealing:
        try:
            keyring = read_keyring(self._task.directory / RECOVERY_KEY)
        except CodecError as error:
            raise _refused(f"the recovery key cannot be used: {error}") from None
        name = self._task.shoot.technical_id
        return Sealing(name, keyring.keys(f"self-hosted/{name}"))

    def _shoot(self) -> ShootRef:
        """The Shoot for which the copy is encrypted: a machine that has lost its files does not know the uid."""
        metadata = self._task.shoot.metadata
        return ShootRef(namespace=metadata.namespace, name=metadata.name, uid="")

    async def _must_be_gone(self, address: str, ca: bytes) -> None:
        """Raises ApplicationError if an API server of this control plane answers where it is exposed."""
        tls = ssl.create_default_context(cadata=ca.decode())
        try:
            found = await asyncio.get_running_loop().getaddrinfo(address, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NO_NAME:
                return
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                f"whether the control plane of {self._shoot()} still runs cannot be seen: {address} is not resolved,"
                f" {error.strerror}",
            ) from None
        addresses = [str(each[4][0]) for each in found]
        # Each by itself: one of a machine that is gone answers nothing, or another server has it now.
        answers = await asyncio.gather(*(self._answers(each, tls) for each in addresses))
        if any(answers):
            raise _refused(
                f"the control plane of {self._shoot()} still runs, its API server answers at {address}: two of them"
                " would write different data into one bucket"
            )

    async def _answers(self, address: str, tls: ssl.SSLContext) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(address, 443, ssl=tls, server_hostname=self._task.shoot.host)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(content) for key, content in data.items()}


def _refused(why: str) -> Exception:
    return permanent(ErrorCode.CONFIGURATION_PROBLEM, why)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"backup: {error}") from None

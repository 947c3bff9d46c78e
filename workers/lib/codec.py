"""Encryption of histories: every payload, failure message and stack trace, by AES-256-GCM.

Each payload is encrypted for one destination, with a key of that destination (``activities.secrets.keyring``). The
destination of an activity's payloads (arguments, result, heartbeat details, failure) is the activity's task queue. The
destination of a workflow's payloads is the task queue of the process that runs the workflow. Temporal's SDK tells the
codec where a payload belongs, by its serialization context. The key id, the destination and the activity's type are in
a payload's metadata and are authenticated with it. A payload that is not encrypted, or whose destination is not that of
its place, is refused: a worker of one seed cannot forge a payload for the queue of another seed, and Temporal cannot
forge one at all.
"""

import copy
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from prometheus_client import Counter
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from activities.secrets.keyring import (
    OPERATORS,
    CodecError,
    Keyring,
    queue_purpose,
    read_keyring,
    shoot_state_purpose,
)
from activities.secrets.keyring import (
    write_key_file as write_key_file,
)
from activities.secrets.sealing import Sealing
from api.contracts.operations import GARDEN_QUEUE, seed_queue
from workflows.provider_local.options import queue as provider_local_queue

log = logging.getLogger(__name__)

ENCODING = b"binary/encrypted"
_KEY_ID, _DESTINATION, _ACTIVITY = "encryption-key-id", "encryption-destination", "encryption-activity"
_OF_SERVER = Payload(metadata={"encoding": b"json/plain"}, data=b'"ACTIVITY_ID_NOT_STARTED"')
"""Payload that Temporal's server writes itself, as details of an activity that was cancelled between two attempts."""
_NONCE_BYTES = 12
_DESTINATIONS = 4096
"""Maximum number of destinations whose derived keys, and other values computed from their names, stay in memory."""
_QUOTED = 80
"""Maximum number of characters of a foreign name in a log line."""
_MESSAGE_LIMIT = 1000
_STACK_LIMIT = 600
"""Maximum number of characters of a stack trace; the end of the trace is kept, because the error was raised there."""

REFUSED = Counter(
    "gardener_codec_refused_total",
    "Payloads that were refused, by reason and by the task queue of the process that refused them.",
    ["reason", "queue"],
)
SHARED_KEY_ACCEPTED = Counter(
    "gardener_codec_shared_key_accepted_total",
    "Payloads that were accepted although they are encrypted by the key that all processes had before.",
)


@dataclass(frozen=True)
class _Place:
    """Place of payloads: the destination that they are encrypted for, and the destinations accepted on decryption."""

    encode: str
    decode: tuple[str, ...]
    activity: str = ""

    def __str__(self) -> str:
        return f"activity {self.activity[:_QUOTED]!r} on queue {self.encode}" if self.activity else "a workflow"


class KeyFiles:
    """The key files of one process. They are read again when they have changed, without a restart.

    A kubelet replaces the files of a Secret by another target of a link, and the landscape writes in place: both change
    the result of ``stat``. If a changed file cannot be used, the process keeps the keys that it has.
    """

    def __init__(self, key_file: Path, shared_key_file: Path | None = None, purpose: str = "") -> None:
        """``purpose``: a changed file without a key for this purpose is rejected; empty: no file is rejected for that.

        Raises CodecError if a file cannot be used. The purpose is checked when a file changes, not here.
        """
        self.path = key_file
        self._shared_path = shared_key_file
        self._purpose = purpose
        self._seen = self._identity()
        self.keyring, self.shared = read_keyring(key_file), read_shared_keys(shared_key_file)
        self.version = 0
        """Number of times that changed keys were read."""

    def look(self) -> int:
        """The version of the keys. If a file has changed, the keys are read again first."""
        # ``stat`` comes before the read: a file that changes in between is read once more.
        if (seen := self._identity()) != self._seen:
            self._seen = seen
            self._read_again()
        return self.version

    def _read_again(self) -> None:
        try:
            keyring, shared = read_keyring(self.path), read_shared_keys(self._shared_path)
            if self._purpose and not keyring.keys(self._purpose):
                raise CodecError(f"codec key file {self.path} has no key for {self._purpose}")
        except CodecError as error:
            log.error("a key file has changed and cannot be used, the keys read before stay in use: %s", error)
            return
        self.keyring, self.shared = keyring, shared
        self.version += 1
        log.info("codec key file %s has changed, and was read again", self.path)

    def _identity(self) -> list[tuple[int, ...]]:
        return [_identity(path) for path in (self.path, self._shared_path) if path is not None]


def _identity(path: Path) -> tuple[int, ...]:
    """Values of ``stat`` that change when a file's content changes; empty if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


class _Ciphers:
    """Ciphers of each destination by key id."""

    def __init__(self, keys: Keyring, shared: Mapping[str, bytes], files: KeyFiles | None = None) -> None:
        """``files``: files from which changed keys are read."""
        self._files = files
        self._version = 0
        self._told = False
        self._take(keys, shared)

    def follow(self) -> None:
        """Use the keys that the files hold now."""
        if self._files is not None and (version := self._files.look()) != self._version:
            self._version = version
            self._take(self._files.keyring, self._files.shared)

    def _take(self, keys: Keyring, shared: Mapping[str, bytes]) -> None:
        self.of: Callable[[str], dict[str, AESGCM]] = lru_cache(_DESTINATIONS)(
            lambda destination: {key_id: AESGCM(key) for key_id, key in keys.keys(queue_purpose(destination)).items()}
        )
        self.shared = {key_id: AESGCM(key) for key_id, key in shared.items()}

    def encrypt(self, payload: Payload, destination: str, activity: str) -> Payload:
        self.follow()
        ciphers = self.of(destination) if destination else {}
        if not ciphers:
            raise CodecError(f"the key file has no key for {_named(destination)}")
        key_id, cipher = next(iter(ciphers.items()))
        nonce = os.urandom(_NONCE_BYTES)
        sealed = cipher.encrypt(nonce, payload.SerializeToString(), _bound(key_id, destination, activity))
        metadata = {"encoding": ENCODING, _KEY_ID: key_id.encode(), _DESTINATION: destination.encode()}
        if activity:
            metadata[_ACTIVITY] = activity.encode()
        return Payload(metadata=metadata, data=nonce + sealed)

    def encrypt_by_shared_key(self, payload: Payload) -> Payload:
        """Encrypt with the shared key, as processes of an earlier version encrypt and read payloads."""
        self.follow()
        if not self.shared:
            raise CodecError("the shared key, which a process of an earlier version needs, is not in use any more")
        key_id, cipher = next(iter(self.shared.items()))
        nonce = os.urandom(_NONCE_BYTES)
        sealed = cipher.encrypt(nonce, payload.SerializeToString(), key_id.encode())
        return Payload(metadata={"encoding": ENCODING, _KEY_ID: key_id.encode()}, data=nonce + sealed)

    def decrypt(self, payload: Payload) -> Payload:
        """Decrypt a payload with the keys of the destination that its metadata names. Raises ``_Refused``."""
        self.follow()
        key_id, destination, activity = (_text(payload, each) for each in (_KEY_ID, _DESTINATION, _ACTIVITY))
        if payload.metadata.get("encoding", b"") != ENCODING:
            raise _Refused("plain", "it is not encrypted")
        if _DESTINATION in payload.metadata:
            cipher, bound = self.of(destination).get(key_id), _bound(key_id, destination, activity)
        else:
            cipher, bound = self.shared.get(key_id), key_id.encode()
        if cipher is None:
            raise _Refused("key", f"no key {key_id[:_QUOTED]!r} for {_named(destination)}: the key file lacks it")
        nonce, sealed = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            opened = Payload.FromString(cipher.decrypt(nonce, sealed, bound))
        except (InvalidTag, ValueError):
            raise _Refused("changed", f"it was not encrypted by key {key_id[:_QUOTED]!r}, or was changed") from None
        if _DESTINATION not in payload.metadata:
            self._tell_of_shared_key()
        return opened

    def _tell_of_shared_key(self) -> None:
        SHARED_KEY_ACCEPTED.inc()
        if not self._told:
            self._told = True
            log.warning(
                "a payload under the shared key was accepted, as sharedKeyFile asks: see docs/operations/keys.md for "
                "when to remove it"
            )


class _Refused(Exception):
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class EncryptionCodec(PayloadCodec, WithSerializationContext):
    """Encrypts and decrypts the payloads of one process.

    Args:
        keys: keys of the process. It neither writes nor reads payloads of destinations without a key here.
        queue: task queue of the process. Payloads of its workflows are encrypted for it.
        shared: keys that all processes had before each destination got its own. Payloads encrypted with them are read;
            they are written only as answers to processes of an earlier version.
        files: files from which changed keys are read.
    """

    def __init__(
        self,
        keys: Keyring,
        queue: str = GARDEN_QUEUE,
        shared: Mapping[str, bytes] | None = None,
        files: KeyFiles | None = None,
    ) -> None:
        # Operators send signals, updates and queries to workflows on the garden side.
        senders = (queue, OPERATORS) if queue == GARDEN_QUEUE else (queue,)
        self._workflows = _Place(encode=queue, decode=senders)
        self._place = self._workflows
        self._ciphers = _Ciphers(keys, shared or {}, files)
        self._answers_by_shared_key = False
        """Set in the codec of one attempt of an activity if a process of an earlier version sent the arguments. That
        process can read no answer but one encrypted with the shared key."""

    @property
    def key_id(self) -> str:
        """Id of the key that encrypts payloads of workflows."""
        self._ciphers.follow()
        return next(iter(self._ciphers.of(self._workflows.encode)), "")

    def with_context(self, context: SerializationContext) -> Self:
        """The codec for one place. A codec without a context is that of the process's workflows."""
        of_workflow = isinstance(context, WorkflowSerializationContext)
        bound = copy.copy(self)
        bound._answers_by_shared_key = False
        bound._place = self._workflows if of_workflow else _place_of_activity(context)
        return bound

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self._answers_by_shared_key:
            return [self._ciphers.encrypt_by_shared_key(payload) for payload in payloads]
        return [self._ciphers.encrypt(payload, self._place.encode, self._place.activity) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt(payload) for payload in payloads]

    def _decrypt(self, payload: Payload) -> Payload:
        if payload.data == _OF_SERVER.data and self._place.activity and payload == _OF_SERVER:
            return payload
        try:
            if _DESTINATION in payload.metadata:
                destination, activity = _text(payload, _DESTINATION), _text(payload, _ACTIVITY)
                if destination not in self._place.decode or activity != self._place.activity:
                    named = f"activity {activity[:_QUOTED]!r} on " if activity else ""
                    raise _Refused("destination", f"it is encrypted for {named}{_named(destination)}")
            opened = self._ciphers.decrypt(payload)
            if self._place.activity and _DESTINATION not in payload.metadata:
                self._answers_by_shared_key = True
            return opened
        except _Refused as refused:
            REFUSED.labels(refused.reason, self._workflows.encode).inc()
            log.warning("refused a payload for %s: %s", self._place, refused)
            raise CodecError(f"a payload for {self._place} was refused: {refused}") from None


def _place_of_activity(context: SerializationContext) -> _Place:
    """The place of an activity's payloads. Without queue or type, and for Nexus: a place that accepts no payload."""
    if not isinstance(context, ActivitySerializationContext):
        return _Place(encode="", decode=())
    return _place(context.activity_task_queue or "", context.activity_type or "")


@lru_cache(_DESTINATIONS)
def _place(queue: str, activity: str) -> _Place:
    if not queue or not activity:
        return _Place(encode="", decode=())
    return _Place(encode=queue, decode=(queue,), activity=activity)


class ReadingCodec(PayloadCodec):
    """Decrypts each payload with a key of the destination in its metadata: for people who read histories."""

    def __init__(self, keys: Keyring, shared: Mapping[str, bytes] | None = None, files: KeyFiles | None = None) -> None:
        """``files``: files from which changed keys are read."""
        self._ciphers = _Ciphers(keys, shared or {}, files)

    @classmethod
    def of_files(cls, files: KeyFiles) -> Self:
        """A codec that always uses the current keys of these files."""
        return cls(files.keyring, files.shared, files)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise CodecError("this codec only reads")

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads. A payload that is not encrypted holds no secret of ours, and is returned as it is.

        Raises CodecError if a payload cannot be decrypted.
        """
        try:
            return [
                self._ciphers.decrypt(each) if each.metadata.get("encoding", b"") == ENCODING else each
                for each in payloads
            ]
        except _Refused as refused:
            raise CodecError(f"a payload cannot be read: {refused}") from None


class OperatorCodec(PayloadCodec):
    """Codec of operators' commands: encrypts with the key of operators, and decrypts with another codec."""

    def __init__(self, keys: Keyring, reading: PayloadCodec) -> None:
        self._ciphers = _Ciphers(keys, {})
        self._reading = reading

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._ciphers.encrypt(payload, OPERATORS, "") for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._reading.decode(payloads)


@lru_cache(_DESTINATIONS)
def _bound(key_id: str, destination: str, activity: str) -> bytes:
    return json.dumps([key_id, destination, activity]).encode()


def _text(payload: Payload, field: str) -> str:
    return payload.metadata.get(field, b"").decode(errors="replace")


def _named(destination: str) -> str:
    if destination == OPERATORS:
        return "workflows, by an operator"
    return f"queue {destination[:_QUOTED]!r}" if destination else "no destination"


class TrimmedFailures(DefaultFailureConverterWithEncodedAttributes):
    """Encodes messages and stack traces, each cut to a length that Temporal keeps for an activity that is retried.

    Temporal's server replaces a larger failure (4 KiB, causes included) by "Failure exceeds size limit.". Then
    operators could not see why the activity is retried.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        [told] = payload_converter.from_payloads([failure.encoded_attributes])
        told["message"] = _first(told["message"], _MESSAGE_LIMIT)
        told["stack_trace"] = told["stack_trace"][-_STACK_LIMIT:]
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([told])[0])


def _first(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def data_converter(
    key_file: Path | None, queue: str = GARDEN_QUEUE, shared_key_file: Path | None = None
) -> DataConverter:
    """Data converter of clients and workers: pydantic models, encrypted. The key files may change while it is used.

    Failures are encrypted, too, because their messages name objects. Without a key file (tests, histories that were
    recorded decoded) nothing is encrypted.

    Args:
        key_file: file with root keys on the garden side, with derived keys elsewhere.
        queue: task queue of the process.
        shared_key_file: key file that all processes had before. While it is set, payloads under its keys are read.

    Raises:
        CodecError: a file cannot be used, or has no key for ``queue``.
    """
    if key_file is None:
        return pydantic_data_converter
    files = KeyFiles(key_file, shared_key_file, queue_purpose(queue))
    codec = EncryptionCodec(files.keyring, queue, files.shared, files)
    if files.keyring.roots and queue != GARDEN_QUEUE:
        log.warning(
            "codec key file %s holds root keys, which are for the garden side alone: give queue %s its own file by "
            "`gardener keys derive`",
            key_file,
            queue,
        )
    if not codec.key_id:
        raise CodecError(f"codec key file {key_file} has no key for queue {queue}: make one by `gardener keys derive`")
    return _encrypting(codec)


def reading_converter(
    key_file: Path, shared_key_file: Path | None = None, endpoint: PayloadCodec | None = None
) -> DataConverter:
    """Data converter of an operator's command: it reads all payloads, and writes payloads that operators may send.

    Args:
        key_file: file with root keys, or with an operator's derived key.
        shared_key_file: as for ``data_converter``.
        endpoint: codec that decrypts for an operator without root keys.
    """
    keys = read_keyring(key_file)
    if endpoint is None or keys.roots:
        reading: PayloadCodec = ReadingCodec(keys, read_shared_keys(shared_key_file))
    else:
        reading = endpoint
    return _encrypting(OperatorCodec(keys, reading))


def read_shared_keys(path: Path | None) -> dict[str, bytes]:
    """Keys of the file that all processes had before; empty if ``path`` is None. Raises CodecError."""
    return read_keyring(path).roots if path else {}


def derived_keys(root: Path, *, gardenlet: str = "", provider_local: str = "", operators: bool = False) -> str:
    """Content of the key file of a seed's gardenlet, of a seed's provider-local, or of operators.

    Raises CodecError if ``root`` holds no root keys.
    """
    purposes = [
        *([queue_purpose(seed_queue(gardenlet)), shoot_state_purpose(gardenlet)] if gardenlet else []),
        *([queue_purpose(provider_local_queue(provider_local))] if provider_local else []),
        *([queue_purpose(OPERATORS)] if operators else []),
    ]
    return read_keyring(root).derive(purposes)


def sealings(key_file: Path, shared_key_file: Path | None = None) -> Callable[[str], Sealing]:
    """Function from a seed's name to the encryption of the seed's ShootStates. The key files may change meanwhile.

    Raises CodecError if a file cannot be used. The function raises it for a seed without a key in the file.
    """
    files = KeyFiles(key_file, shared_key_file)

    def of_seed(seed: str) -> Sealing:
        version = files.look()

        def keys() -> Mapping[str, bytes]:
            found = files.keyring.keys(shoot_state_purpose(seed))
            if not found:
                raise CodecError(
                    f"codec key file {key_file} has no key for ShootStates of seed {seed}: see `gardener keys derive`"
                )
            return found

        def changed() -> tuple[Mapping[str, bytes], Mapping[str, bytes]] | None:
            nonlocal version
            if (now := files.look()) == version:
                return None
            version = now
            try:
                return keys(), files.shared
            except CodecError as error:
                log.error("a key file has changed, the keys read before stay in use: %s", error)
                return None

        return Sealing(seed, keys(), files.shared, changed)

    return of_seed


def _encrypting(codec: PayloadCodec) -> DataConverter:
    return replace(pydantic_data_converter, payload_codec=codec, failure_converter_class=TrimmedFailures)

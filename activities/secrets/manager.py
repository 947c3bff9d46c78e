"""The secrets manager: generates, rotates, bundles and cleans up the secrets of one namespace.

The manager keeps no state but the Secrets in the namespace. It computes a Secret's name from its description,
its signing CA and the time of its last rotation, so activities that run at the same time, or a
second time, find the existing Secret instead of creating another one. Semantics: spec/credentials.md 2.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from activities.secrets import crypto
from activities.secrets.configs import (
    Certificate,
    KeyAlgorithm,
    Making,
    SecretConfig,
    SignedBy,
    bundle_of,
)
from activities.secrets.crypto import KeyPair
from activities.secrets.rotation import COMPLETING, Rotation
from api.resources import SECRET
from kube.client import KubeClient
from kube.errors import AlreadyExists

logger = logging.getLogger(__name__)

NAME = "name"
MANAGED_BY = "managed-by"
IDENTITY = "manager-identity"
CHECKSUM_OF_CONFIG = "checksum-of-config"
CHECKSUM_OF_SIGNING_CA = "checksum-of-signing-ca"
BUNDLE_FOR = "bundle-for"
PERSIST = "persist"
ROTATED_AT = "last-rotation-initiation-time"
ISSUED_AT = "issued-at-time"
VALID_UNTIL = "valid-until-time"
RENEW_AT_PERCENT = "renew-after-validity-percentage"
USE_DATA_FOR = "secrets-manager-use-data-for-name"

SECRETS_MANAGER = "secrets-manager"
_LABEL_LIMIT = 63
_PARALLEL_DELETES = 10


class Which(StrEnum):
    """Generation of a secret to get."""

    DEFAULT = "default"
    """The bundle if the kind has one, else the current secret."""
    CURRENT = "current"
    OLD = "old"
    BUNDLE = "bundle"


class UnknownSecret(LookupError):
    """No activity has generated this secret in the namespace yet: the order of tasks in a flow is wrong."""


class ForeignSecret(Exception):
    """The Secret with a computed name belongs to another secrets manager, or several Secrets offer its data."""


@dataclass(frozen=True)
class Handle:
    """A Secret of the namespace: its name, for mounts, and its data."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)

    def key_pair(self) -> KeyPair:
        """Certificate and key of a CA. Raises KeyError if the Secret holds no CA."""
        return KeyPair(self.data["ca.crt"], self.data["ca.key"])


@dataclass(frozen=True)
class _Stored:
    """A Secret as read from the cluster; its data are decoded only when they are used."""

    raw: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("labels") or {}

    @cached_property
    def data(self) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in (self.raw.get("data") or {}).items()}

    @property
    def handle(self) -> Handle:
        return Handle(self.name, self.data)

    def number(self, label: str) -> int:
        value = self.labels.get(label, "")
        return int(value) if value.isdigit() else 0

    @property
    def age_key(self) -> tuple[int, int, str, str]:
        """Sort key of generations. The creation time comes late, because a restore changes it."""
        created = str(self.raw["metadata"].get("creationTimestamp") or "")
        return self.number(ROTATED_AT), self.number(ISSUED_AT), created, self.name


class SecretsManager:
    """Secrets manager of one run of an activity: load, then generate or get, then report ``generated``.

    Create the manager with ``load``, and do not keep it: it does not see Secrets that other activities create later.
    """

    key_algorithm: KeyAlgorithm = KeyAlgorithm.P256
    """Algorithm of keys whose description names none; a process sets it once, from its configuration."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        secrets: Iterable[Mapping[str, Any]],
        *,
        rotation: Rotation,
        manager_identity: str,
        now: datetime,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._rotation = rotation
        self._identity = manager_identity
        self._now = now
        self._by_name: dict[str, _Stored] = {}
        for raw in secrets:
            stored = _Stored(raw)
            self._by_name[stored.name] = stored
        self._offered: list[_Stored] | None = None
        """Secrets whose data new Secrets take over; read before the first Secret is created."""
        self._last_rotations = self._find_last_rotations()
        self._current: dict[str, _Stored] = {}
        self._handed_out: set[str] = set()

    @classmethod
    async def load(
        cls,
        client: KubeClient,
        *,
        namespace: str,
        rotation: Rotation | None = None,
        manager_identity: str = "gardenlet",
        now: datetime | None = None,
    ) -> "SecretsManager":
        """Read the Secrets of all secrets managers in the namespace, once."""
        return cls(
            client,
            namespace,
            await client.list(SECRET, namespace, labels=f"{MANAGED_BY}={SECRETS_MANAGER}"),
            rotation=rotation or Rotation(),
            manager_identity=manager_identity,
            now=now or datetime.now(UTC),
        )

    @classmethod
    async def of_shoot(cls, seed: KubeClient, namespace: str, shoot: Mapping[str, Any]) -> "SecretsManager":
        """The secrets manager of a control plane, with the rotations in the status of its Shoot."""
        return await cls.load(seed, namespace=namespace, rotation=Rotation.of_shoot(shoot))

    @property
    def generated(self) -> tuple[str, ...]:
        """Names of all Secrets handed out, with their old generations and bundles; for ``TaskResult.secrets``."""
        return tuple(sorted(self._handed_out))

    async def generate(self, config: SecretConfig, labels: Mapping[str, str] | None = None) -> Handle:
        """The current Secret for this description; created unless it exists.

        A second run computes the same name and finds the Secret of the first run. If two runs create the Secret at
        the same time, both use the one that the API server accepted. ``labels`` are added to the manager's own.

        Raises:
            UnknownSecret: the signing CA was not generated.
            ForeignSecret: another secrets manager owns a Secret of this name.
        """
        ca = self._signing_ca(config)
        wanted = self._labels(config, ca)
        name = _secret_name(config, wanted)
        stored = self._by_name.get(name)
        if stored is None:
            stored = await self._create(name, config, ca, wanted, labels or {})
        stored = await self._correct_labels(stored, {**wanted, **(labels or {})})
        self._current[config.name] = stored
        self._handed_out.add(stored.name)
        if config.keep_old:
            await self._bundle(config.name)
        return stored.handle

    def get(self, name: str, which: Which = Which.DEFAULT) -> Handle:
        """A secret that this or an earlier activity generated, by its stable name.

        Raises UnknownSecret if the secret does not exist.
        """
        current = self._current_of(name)
        if which is Which.CURRENT:
            return self._hand_out(current)
        old = self._old_of(name, current)
        if which is Which.OLD:
            if old is None:
                raise UnknownSecret(f"no old {name} is kept in namespace {self._namespace}")
            return self._hand_out(old)
        bundle = self._bundle_data(current, old)
        if bundle is None:
            if which is Which.BUNDLE:
                raise UnknownSecret(f"{name} is of a kind that has no bundle")
            return self._hand_out(current)
        stored = self._by_name.get(_bundle_name(name, bundle))
        if stored is None:
            raise self._unknown(f"the bundle of {name}")
        return self._hand_out(stored)

    def has_old(self, name: str) -> bool:
        """Whether an older generation is still kept, which means that a rotation is in progress."""
        return self._old_of(name, self._current_of(name)) is not None

    async def cleanup(self, keep: Iterable[str]) -> tuple[str, ...]:
        """Delete this manager's Secrets that are not in ``keep``; returns their names.

        Call this only after a fully successful flow, with the Secrets that all activities of the flow handed out.
        """
        kept = set(keep)
        unused = [stored for stored in self._by_name.values() if self._is_own(stored) and stored.name not in kept]
        limit = asyncio.Semaphore(_PARALLEL_DELETES)

        async def delete(stored: _Stored) -> None:
            async with limit:
                await self._client.delete(SECRET, stored.name, self._namespace, uid=stored.raw["metadata"].get("uid"))

        await asyncio.gather(*map(delete, unused))
        return tuple(sorted(stored.name for stored in unused))

    # -- names and labels

    def _labels(self, config: SecretConfig, ca: _Stored | None) -> dict[str, str]:
        rotated_at = self._rotation.of(config.name).initiated or self._last_rotations.get(config.name)
        labels = {
            NAME: config.name,
            MANAGED_BY: SECRETS_MANAGER,
            IDENTITY: self._identity,
            CHECKSUM_OF_CONFIG: config.checksum()[:_LABEL_LIMIT],
            ROTATED_AT: str(rotated_at) if rotated_at else "",
        }
        if ca is not None:
            labels[CHECKSUM_OF_SIGNING_CA] = hashlib.sha256(ca.data["ca.crt"]).hexdigest()[:_LABEL_LIMIT]
        if config.persist:
            labels[PERSIST] = "true"
        if isinstance(config, Certificate) and config.renew_at_percent:
            labels[RENEW_AT_PERCENT] = str(config.renew_at_percent)
        return labels

    def _find_last_rotations(self) -> dict[str, int]:
        """Unix time of each name's last rotation according to its newest Secret, or of its due renewal."""
        newest: dict[str, _Stored] = {}
        for stored in filter(self._is_own, self._by_name.values()):
            name = stored.labels.get(NAME, "")
            if name not in newest or newest[name].age_key < stored.age_key:
                newest[name] = stored
        return {name: self._renewed_at(stored) or stored.number(ROTATED_AT) for name, stored in newest.items()}

    def _renewed_at(self, stored: _Stored) -> int | None:
        """Unix time at which renewal became due; None if renewal is not due.

        The result is not the present time: activities that run at different times must compute the same name.
        """
        valid_until, issued = stored.number(VALID_UNTIL), stored.number(ISSUED_AT)
        if not valid_until or {"ca.crt", "ca.key"} <= set(stored.raw.get("data") or {}):
            return None  # CAs are only rotated at their owner's request
        due = crypto.renewal_due(issued, valid_until, stored.number(RENEW_AT_PERCENT))
        if self._now.timestamp() < due:
            return None
        return max(due, stored.number(ROTATED_AT) + 1)

    def _is_own(self, stored: _Stored) -> bool:
        labels = stored.labels
        return labels.get(MANAGED_BY) == SECRETS_MANAGER and labels.get(IDENTITY) == self._identity

    # -- making

    def _signing_ca(self, config: SecretConfig) -> _Stored | None:
        if not isinstance(config, Certificate):
            return None
        current = self._current_of(config.signer)
        if config.generation_of_ca is SignedBy.OLD_WHILE_KEPT:
            return self._old_of(config.signer, current) or current
        return current

    async def _create(
        self,
        name: str,
        config: SecretConfig,
        ca: _Stored | None,
        wanted: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> _Stored:
        if self._offered is None:
            self._offered = [
                _Stored(raw) for raw in await self._client.list(SECRET, self._namespace, labels=USE_DATA_FOR)
            ]
        sources = [each for each in self._offered if each.labels.get(USE_DATA_FOR) == name]
        if len(sources) > 1:
            raise ForeignSecret(
                f"{len(sources)} Secrets in namespace {self._namespace} offer data for {name}, must be one: "
                f"remove the label {USE_DATA_FOR} from all others"
            )
        if sources:
            data: Mapping[str, bytes] = sources[0].data
        else:
            algorithm = getattr(config, "algorithm", None) or self.key_algorithm
            making = Making(name, self._now, algorithm, ca.handle.key_pair() if ca else None)
            # RSA keys take up to seconds, so a thread generates them. P-256 is faster than a switch of threads.
            data = (
                config.make(making) if algorithm is KeyAlgorithm.P256 else await asyncio.to_thread(config.make, making)
            )
        return await self._store(name, data, {**wanted, **_times(data, self._now), **labels})

    async def _store(self, name: str, data: Mapping[str, bytes], labels: Mapping[str, str]) -> _Stored:
        # Without this, two generations from the same second could not be ordered.
        after = 1 + max((each.number(ISSUED_AT) for each in self._generations(labels[NAME])), default=0)
        issued = str(max(int(labels[ISSUED_AT]), after))
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self._namespace, "labels": {**labels, ISSUED_AT: issued}},
            "type": "Opaque",
            "immutable": True,
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        try:
            raw = await self._client.create(secret)
        except AlreadyExists:
            raw = await self._client.get(SECRET, name, self._namespace)
        stored = _Stored(raw)
        self._by_name[name] = stored
        return stored

    async def _correct_labels(self, stored: _Stored, wanted: Mapping[str, str]) -> _Stored:
        owner = stored.labels.get(IDENTITY, self._identity)
        if owner != self._identity:
            raise ForeignSecret(
                f"secret {self._namespace}/{stored.name} belongs to secrets manager {owner}, not {self._identity}"
            )
        exact = {
            **{key: value for key, value in stored.labels.items() if key in (ISSUED_AT, VALID_UNTIL)},
            **wanted,
        }
        if dict(stored.labels) == exact and stored.raw.get("immutable"):
            return stored
        absent = {key: None for key in stored.labels if key not in exact}
        patch = {"metadata": {"labels": {**exact, **absent}}, "immutable": True}
        corrected = _Stored(await self._client.patch(SECRET, stored.name, self._namespace, patch))
        self._by_name[stored.name] = corrected
        return corrected

    # -- generations

    def _current_of(self, name: str) -> _Stored:
        if name in self._current:
            return self._current[name]
        generations = self._generations(name)
        initiated = self._rotation.of(name).initiated
        if initiated:
            # After the start of a rotation, existing Secrets are old: do not use them as the current generation.
            generations = [stored for stored in generations if stored.number(ROTATED_AT) == initiated]
        if not generations:
            raise self._unknown(name)
        return generations[0]

    def _old_of(self, name: str, current: _Stored) -> _Stored | None:
        if self._rotation.of(name).phase == COMPLETING:
            return None
        return next((stored for stored in self._generations(name) if stored.name != current.name), None)

    def _generations(self, name: str) -> list[_Stored]:
        """This manager's Secrets with this stable name, newest first."""
        own = [stored for stored in self._by_name.values() if stored.labels.get(NAME) == name and self._is_own(stored)]
        return sorted(own, key=lambda stored: stored.age_key, reverse=True)

    def _bundle_data(self, current: _Stored, old: _Stored | None) -> dict[str, bytes] | None:
        return bundle_of([current.data, *([old.data] if old else [])], self._now)

    async def _bundle(self, name: str) -> None:
        current = self._current_of(name)
        old = self._old_of(name, current)
        if old is not None:
            self._handed_out.add(old.name)
        data = self._bundle_data(current, old)
        if data is None:
            return
        bundle = _bundle_name(name, data)
        labels = {
            NAME: f"{name}-bundle",
            MANAGED_BY: SECRETS_MANAGER,
            IDENTITY: self._identity,
            CHECKSUM_OF_CONFIG: _checksum_of_data(data)[:_LABEL_LIMIT],
            BUNDLE_FOR: name,
            ROTATED_AT: "",
        }
        stored = self._by_name.get(bundle)
        if stored is None:
            stored = await self._store(bundle, data, {**labels, ISSUED_AT: _unix(self._now)})
        await self._correct_labels(stored, labels)
        self._handed_out.add(bundle)

    def _hand_out(self, stored: _Stored) -> Handle:
        self._handed_out.add(stored.name)
        return stored.handle

    def _unknown(self, what: str) -> UnknownSecret:
        return UnknownSecret(f"{what} was not generated in namespace {self._namespace} yet")


def _secret_name(config: SecretConfig, labels: Mapping[str, str]) -> str:
    name = config.name
    rotated = labels[ROTATED_AT]
    if rotated or not config.plain_name_until_rotated or getattr(config, "hashed_name", False):
        infix = labels[CHECKSUM_OF_CONFIG] + labels.get(CHECKSUM_OF_SIGNING_CA, "")
        name += f"-{hashlib.sha256(infix.encode()).hexdigest()[:8]}"
    if rotated:
        name += f"-{hashlib.sha256(rotated.encode()).hexdigest()[:5]}"
    return name


def _bundle_name(name: str, data: Mapping[str, bytes]) -> str:
    return f"{name}-bundle-{_checksum_of_data(data)[:8]}"


def _checksum_of_data(data: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for key in sorted(data):
        digest.update(key.encode() + b"\0" + data[key] + b"\0")
    return digest.hexdigest()


def _times(data: Mapping[str, bytes], now: datetime) -> dict[str, str]:
    certificate = data.get("tls.crt") or data.get("ca.crt")
    if certificate is None:
        return {ISSUED_AT: _unix(now)}
    begin, end = crypto.validity_of(certificate)
    return {ISSUED_AT: _unix(begin + crypto.CLOCK_SKEW), VALID_UNTIL: _unix(end)}


def _unix(time: datetime) -> str:
    return str(int(time.timestamp()))

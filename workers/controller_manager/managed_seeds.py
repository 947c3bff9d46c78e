"""The garden's part of ManagedSeeds: what a gardenlet may not do itself, because it would affect other seeds.

For each ManagedSeed this controller makes the identity of its gardenlet (a bootstrap token for that seed alone, the
derived keys of its task queue, and a client certificate for Temporal), and keeps all in one Secret of namespace
``garden``. Only the gardenlet that deploys the new one may read it. The controller labels the credentials that the
template names, gives a registered Seed the changes of the template, shows the conditions of the Seed in its Shoot, and
deletes the Seed of a ManagedSeed that is deleted.

A second run finds the Secret, and writes only what is missing or about to expire. The token has an id that is computed
from the name, so a second run replaces it. Source: spec/api-core.md 8 and 12.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import Field

from activities.secrets.crypto import KeyAlgorithm, KeyPair, Usage, signed, validity_of
from activities.secrets.keyring import CodecError
from api import resources
from api.access import bootstrap_group, bootstrap_secret
from api.constants import (
    FINALIZER,
    GARDEN_NAMESPACE,
    OPERATION,
    OPERATION_RECONCILE,
    OPERATION_RENEW_KUBECONFIG,
    SEED_NAME_PREFIX,
    TEMPORAL_GARDENLET_PREFIX,
    TEMPORAL_GARDENLETS,
)
from api.decisions import managed_seeds
from api.decisions.conditions import set_conditions
from api.model import ApiModel
from api.times import timestamp
from kube.cache import Caches, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import Forbidden, NotFound
from kube.events import emit
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer
from kube.objects import owner_reference
from workers.lib.codec import derived_keys
from workers.lib.leader import Duration
from workers.lib.temporal import TemporalConnection

log = logging.getLogger(__name__)

_MANAGER = "gardener-controller-manager"
_TOKEN_VALIDITY = timedelta(hours=24)
_RENEWED_AT = 0.7
"""Part of a certificate's or token's validity after which the next one is made."""
_LONGEST_PAUSE = timedelta(hours=1)
_DELETED_SECONDS = 5.0


class ManagedSeedConfig(ApiModel):
    """Authority of the client certificates for Temporal of managed seeds."""

    temporal_authority_certificate_file: Path | None = None
    """PEM file of an authority that Temporal's server trusts for clients. None: an operator puts ``tls.crt``,
    ``tls.key`` and ``ca.crt`` into the Secret ``<name>.managed-seed`` of namespace garden."""
    temporal_authority_key_file: Path | None = None
    certificate_validity: Duration = Field(default=timedelta(days=30), ge=timedelta(hours=1))
    """Validity of these certificates. Temporal cannot revoke one, so it is short."""


async def run_managed_seed_controller(
    client: KubeClient, caches: Caches, config: ManagedSeedConfig, temporal: TemporalConnection
) -> None:
    """Run until cancelled."""
    seeds, registered, shoots = (caches.of(each) for each in (resources.SEED, resources.MANAGED_SEED, resources.SHOOT))
    await seeds.synced()
    await registered.synced()

    def of_shoot(event: WatchEvent) -> Iterable[Key]:
        metadata = event.object["metadata"]
        if event.type != "DELETED" or metadata["namespace"] != GARDEN_NAMESPACE:
            return ()
        named = [each for each in registered.list() if managed_seeds.shoot_name(each) == metadata["name"]]
        return [Key(GARDEN_NAMESPACE, each["metadata"]["name"]) for each in named]

    controller = Controller("managed-seeds", _Reconciler(client, caches, config, temporal).reconcile, workers=2)
    controller.watch(registered)
    controller.watch(shoots, keys=of_shoot)
    controller.watch(seeds, keys=_of_seed, when=lambda event: registered.get(*_place(event)) is not None)
    await controller.run()


def _of_seed(event: WatchEvent) -> Iterable[Key]:
    name, namespace = _place(event)
    return (Key(namespace, name),)


def _place(event: WatchEvent) -> tuple[str, str]:
    """Name and namespace of the ManagedSeed of a Seed."""
    return event.object["metadata"]["name"], GARDEN_NAMESPACE


@dataclass(frozen=True)
class _Identity:
    data: Mapping[str, str]
    """Content of the Secret, in base64."""
    pause: timedelta
    """Time until something in it is to be renewed."""
    new: bool


class _Reconciler:
    def __init__(
        self, client: KubeClient, caches: Caches, config: ManagedSeedConfig, temporal: TemporalConnection
    ) -> None:
        self._client = client
        self._seeds, self._registered = caches.of(resources.SEED), caches.of(resources.MANAGED_SEED)
        self._config = config
        self._temporal = temporal

    async def reconcile(self, key: Key) -> Requeue | None:
        owner = self._registered.get(key.name, key.namespace)
        if owner is None or key.namespace != GARDEN_NAMESPACE:
            await self._delete_token(key.name)
            return None
        seed = self._seeds.get(key.name)
        if "deletionTimestamp" in owner["metadata"]:
            return await self._delete(owner, seed)
        owner = await ensure_finalizer(self._client, resources.MANAGED_SEED, owner, FINALIZER)
        await self._let_read_credentials(owner)
        if seed is not None:
            await self._follow_template(owner, seed)
            await self._show_conditions(owner, seed)
        await self._pass_on_renewal(owner, seed)
        await self._tell_missing_shoot(owner)
        return await self._keep_identity(owner, seed)

    async def _let_read_credentials(self, owner: Object) -> None:
        """Label the Secrets that the template names for the seed. Only operators write ManagedSeeds."""
        label = f"{SEED_NAME_PREFIX}{owner['metadata']['name']}"
        for namespace, name in sorted(_credentials(managed_seeds.seed_template(owner)["spec"])):
            secret = await self._client.find(resources.SECRET, name, namespace)
            if secret is not None and (secret["metadata"].get("labels") or {}).get(label) != "true":
                await self._client.patch(resources.SECRET, name, namespace, {"metadata": {"labels": {label: "true"}}})

    async def _follow_template(self, owner: Object, seed: Object) -> None:
        """Write changes of the template into the Seed, which its gardenlet writes only at its registration."""
        if "deletionTimestamp" in seed["metadata"]:
            return
        template = managed_seeds.seed_template(owner)
        wanted = {"spec": template["spec"]}
        if labels := template["metadata"].get("labels"):
            wanted["metadata"] = {"labels": labels}
        if patch := managed_seeds.changes(wanted, seed):
            await patch_as_read(self._client, resources.SEED, seed, patch)

    async def _show_conditions(self, owner: Object, seed: Object) -> None:
        """Copy the conditions of the Seed into the status of its Shoot."""
        shoot = await self._client.find(resources.SHOOT, managed_seeds.shoot_name(owner), GARDEN_NAMESPACE)
        if shoot is None:
            return
        found = (seed.get("status") or {}).get("conditions") or ()
        shown = [dict(each) for each in found if each["type"] in managed_seeds.SEED_CONDITIONS]
        known = (shoot.get("status") or {}).get("conditions") or []
        conditions = set_conditions(known, shown, timestamp(datetime.now(UTC)))
        if conditions != known:
            status = {"status": {"conditions": conditions}}
            await patch_as_read(self._client, resources.SHOOT, shoot, status, subresource="status")

    async def _tell_missing_shoot(self, owner: Object) -> None:
        """Say that the Shoot is gone, by force: no gardenlet is responsible for the ManagedSeed, so none says it."""
        name = managed_seeds.shoot_name(owner)
        if await self._client.find(resources.SHOOT, name, GARDEN_NAMESPACE) is not None:
            return
        text = (
            f"Shoot {GARDEN_NAMESPACE}/{name} does not exist any more: delete the ManagedSeed, and Shoots of its Seed"
        )
        missing = {"type": managed_seeds.SHOOT_RECONCILED, "status": "False", "reason": "ShootMissing", "message": text}
        known = (owner.get("status") or {}).get("conditions") or []
        conditions = set_conditions(known, [missing], timestamp(datetime.now(UTC)))
        if conditions != known:
            change = {"status": {"conditions": conditions}}
            await patch_as_read(self._client, resources.MANAGED_SEED, owner, change, subresource="status")

    async def _hide_conditions(self, owner: Object) -> None:
        shoot = await self._client.find(resources.SHOOT, managed_seeds.shoot_name(owner), GARDEN_NAMESPACE)
        known = ((shoot or {}).get("status") or {}).get("conditions") or []
        left = [each for each in known if each["type"] not in managed_seeds.SEED_CONDITIONS]
        if shoot is not None and left != known:
            status = {"status": {"conditions": left}}
            await patch_as_read(self._client, resources.SHOOT, shoot, status, subresource="status")

    async def _pass_on_renewal(self, owner: Object, seed: Object | None) -> None:
        """Request of the Seed's gardenlet what an annotation of the ManagedSeed requests."""
        if (owner["metadata"].get("annotations") or {}).get(OPERATION) != OPERATION_RENEW_KUBECONFIG:
            return
        if seed is not None:
            asked = {"metadata": {"annotations": {OPERATION: OPERATION_RENEW_KUBECONFIG}}}
            await self._client.patch(resources.SEED, seed["metadata"]["name"], None, asked)
        done = {"metadata": {"annotations": {OPERATION: None}}}
        await patch_as_read(self._client, resources.MANAGED_SEED, owner, done)

    async def _keep_identity(self, owner: Object, seed: Object | None) -> Requeue:
        name = owner["metadata"]["name"]
        secret = await self._client.find(resources.SECRET, managed_seeds.identity_name(name), GARDEN_NAMESPACE)
        now = datetime.now(UTC)
        try:
            identity = await self._identity(name, (secret or {}).get("data") or {}, seed, now)
        except (OSError, CodecError, ValueError) as error:
            # The text of our own errors names files. Another error may quote a key, so its text is not used.
            why = str(error) if isinstance(error, CodecError) else type(error).__name__
            message = f"the identity of the gardenlet cannot be made: {why}: see managedSeeds of the controller-manager"
            await emit(self._client, _typed(owner), _MANAGER, "IdentityFailed", message, "Warning")
            raise TryAgain(message) from None
        if identity.new:
            await self._write(owner, identity.data)
            asked = {"metadata": {"annotations": {OPERATION: OPERATION_RECONCILE}}}
            await self._client.patch(resources.MANAGED_SEED, name, GARDEN_NAMESPACE, asked)
        return Requeue(max(1.0, min(identity.pause, _LONGEST_PAUSE).total_seconds()))

    async def _identity(self, name: str, known: Mapping[str, str], seed: Object | None, now: datetime) -> _Identity:
        """The identity as it is to be. Raises OSError, CodecError or ValueError if files cannot be used."""
        data = {managed_seeds.CODEC_KEY: _encoded(derived_keys(self._temporal.codec_key_file, gardenlet=name).encode())}
        pauses = [_LONGEST_PAUSE]
        authority = self._authority()
        if authority is not None and self._temporal.tls is not None:
            pair, due = self._certificate(name, known, authority, now)
            data[managed_seeds.TLS_CERTIFICATE], data[managed_seeds.TLS_KEY] = map(_encoded, pair)
            data[managed_seeds.TLS_AUTHORITIES] = _encoded(self._temporal.tls.ca_file.read_bytes())
            pauses.append(due - now)
        if managed_seeds.needs_token(seed, now):
            data[managed_seeds.BOOTSTRAP_TOKEN], due = await self._token(name, known, now)
            pauses.append(due - now)
        else:
            until = datetime.fromisoformat((seed or {})["status"]["clientCertificateExpirationTimestamp"])
            pauses.append(until - now + timedelta(seconds=1))
            await self._delete_token(name)
        spare = managed_seeds.BOOTSTRAP_TOKEN in known and managed_seeds.BOOTSTRAP_TOKEN not in data
        new = spare or any(known.get(field) != value for field, value in data.items())
        return _Identity(data, min(pauses), new)

    def _authority(self) -> KeyPair | None:
        certificate, key = self._config.temporal_authority_certificate_file, self._config.temporal_authority_key_file
        return KeyPair(certificate.read_bytes(), key.read_bytes()) if certificate and key else None

    def _certificate(
        self, name: str, known: Mapping[str, str], authority: KeyPair, now: datetime
    ) -> tuple[tuple[bytes, bytes], datetime]:
        """Certificate and key for Temporal, and when to make the next ones."""
        pair = tuple(
            base64.b64decode(known.get(each, "")) for each in (managed_seeds.TLS_CERTIFICATE, managed_seeds.TLS_KEY)
        )
        if all(pair) and now < (due := _due(*validity_of(pair[0]))):
            return (pair[0], pair[1]), due
        made = signed(
            f"{TEMPORAL_GARDENLET_PREFIX}{name}",
            ca=authority,
            usage=Usage.CLIENT,
            algorithm=KeyAlgorithm.P256,
            now=now,
            validity=self._config.certificate_validity,
            organizations=[TEMPORAL_GARDENLETS],
        )
        log.info("made a client certificate for Temporal of managed seed %s", name)
        return (made.certificate, made.key), _due(*validity_of(made.certificate))

    async def _token(self, name: str, known: Mapping[str, str], now: datetime) -> tuple[str, datetime]:
        """The bootstrap token of the seed, and when to make the next one."""
        id_ = managed_seeds.token_id(name)
        live = await self._client.find(resources.SECRET, f"bootstrap-token-{id_}", "kube-system")
        if live is not None and (held := known.get(managed_seeds.BOOTSTRAP_TOKEN)):
            fields = {key: base64.b64decode(value).decode() for key, value in (live.get("data") or {}).items()}
            until = datetime.fromisoformat(fields["expiration"])
            if _due(until - _TOKEN_VALIDITY, until) > now and held == _encoded(
                f"{fields['token-id']}.{fields['token-secret']}".encode()
            ):
                return held, _due(until - _TOKEN_VALIDITY, until)
        secret, until = secrets.token_hex(8), now + _TOKEN_VALIDITY
        await self._client.apply(bootstrap_secret(name, id_, secret, until), manager=_MANAGER)
        return _encoded(f"{id_}.{secret}".encode()), _due(now, until)

    async def _write(self, owner: Object, data: Mapping[str, str]) -> None:
        metadata = owner["metadata"]
        await self._client.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": managed_seeds.identity_name(metadata["name"]),
                    "namespace": GARDEN_NAMESPACE,
                    "ownerReferences": [
                        owner_reference(resources.MANAGED_SEED, metadata["name"], metadata["uid"], controller=True)
                    ],
                },
                "type": "Opaque",
                "data": dict(data),
            },
            manager=_MANAGER,
        )

    async def _delete_token(self, name: str) -> None:
        place = f"bootstrap-token-{managed_seeds.token_id(name)}", "kube-system"
        live = await self._client.find(resources.SECRET, *place)
        groups = base64.b64decode(((live or {}).get("data") or {}).get("auth-extra-groups", "")).decode()
        if live is not None and groups == bootstrap_group(name):
            await self._client.delete(resources.SECRET, *place, uid=live["metadata"]["uid"])

    async def _delete(self, owner: Object, seed: Object | None) -> Requeue | None:
        """Delete the Seed first: its gardenlet must clean it up. The gardenlet of the Shoot's seed removes it then."""
        if not has_finalizer(owner, FINALIZER):
            return None
        await self._delete_token(owner["metadata"]["name"])
        if seed is not None:
            await self._delete_seed(owner, seed)
            return Requeue(_DELETED_SECONDS)
        await self._hide_conditions(owner)
        name = managed_seeds.shoot_name(owner)
        if await self._client.find(resources.SHOOT, name, GARDEN_NAMESPACE) is None:
            # No gardenlet is responsible, and nothing is left to remove.
            await remove_finalizer(self._client, resources.MANAGED_SEED, owner, FINALIZER)
        return None

    async def _delete_seed(self, owner: Object, seed: Object) -> None:
        if "deletionTimestamp" in seed["metadata"]:
            return
        try:
            await self._client.delete(resources.SEED, seed["metadata"]["name"], uid=seed["metadata"]["uid"])
        except NotFound:
            return
        except Forbidden as error:  # Shoots have come since admission allowed the deletion
            message = f"the Seed cannot be deleted: {error}"
            await emit(self._client, _typed(owner), _MANAGER, "SeedNotDeleted", message, "Warning")
            raise TryAgain(message) from None


def _due(begin: datetime, end: datetime) -> datetime:
    return begin + (end - begin) * _RENEWED_AT


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _typed(owner: Object) -> Object:
    return {**owner, "apiVersion": resources.MANAGED_SEED.api_version, "kind": resources.MANAGED_SEED.kind}


def _credentials(spec: Mapping[str, object]) -> set[tuple[str, str]]:
    """Namespaces and names of the Secrets that the spec of a Seed names."""
    dns, backup = spec.get("dns") or {}, spec.get("backup") or {}
    assert isinstance(dns, Mapping)
    assert isinstance(backup, Mapping)
    parts = [backup, dns.get("provider") or {}, dns.get("internal") or {}, *(dns.get("defaults") or ())]
    found = [each.get("credentialsRef") or {} for each in parts]
    return {
        (each["namespace"], each["name"])
        for each in found
        if each.get("namespace") and each.get("name") and each.get("kind", "Secret") == "Secret"
    }

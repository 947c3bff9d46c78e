"""Restriction of gardenlets' writes in the garden: a table of the fields that gardenlets own.

The seed authorizer decides which objects a gardenlet may write to. This table decides which fields of these objects it
may write. The rules below the table compare values with other objects: a Seed may only name Secrets that an operator
has labelled for it, and a BackupEntry may only name the bucket of its own seed. The garden's API server calls a
separate webhook for each write of a member of group ``gardener.cloud:system:seeds``, and for no other user's write.

Source: Gardener's admission plugin SeedRestriction (docs/concepts/apiserver-admission-plugins.md); the fields are ours.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api import constants, resources
from api.core.v1beta1.seed import Seed
from api.decisions import issuer
from api.names import backup_entry_names, shoot_of_backup_entry
from api.resources import Object, Resource
from api.validation.field import Path
from workers.admission.indexes import homes
from workers.admission.projects import control_plane
from workers.admission.review import Garden, Refusal, Review
from workers.lib.access import User

MIGRATING_FROM = "shoot.gardener.cloud/migrating-from"
"""Annotation of a ShootState with the name of the seed that wrote it for a migration."""
PROMETHEUS_URL, ALERTMANAGER_URL, LOGS_URL = "prometheus-url", "alertmanager-url", "logs-url"
"""Annotations of Secret ``<shoot>.monitoring``."""


@dataclass(frozen=True)
class Owned:
    """Fields of a kind that gardenlets own, as dotted paths; keys that contain dots are in brackets.

    A path covers all fields below it. A verb without paths is refused.
    """

    created: tuple[str, ...] = ()
    """Fields that a gardenlet may set when it creates the object."""
    changed: tuple[str, ...] = ()
    """Fields that a gardenlet may change later."""


def _labels(*names: str) -> tuple[str, ...]:
    return tuple(f"metadata.labels[{name}]" for name in names)


def _annotations(*names: str) -> tuple[str, ...]:
    return tuple(f"metadata.annotations[{name}]" for name in names)


_OWNERS = "metadata.ownerReferences"
_ENTRY = (
    "metadata.finalizers",
    _OWNERS,
    *_annotations(constants.SHOOT_PURPOSE, constants.BACKUP_ENTRY_TAKEN_OVER),
    "spec.bucketName",
    "spec.seedName",
)
_BUCKET = (
    "metadata.finalizers",
    *_annotations(constants.OPERATION, constants.TIMESTAMP),
    "spec.credentialsRef",
    "spec.providerConfig",
)
_REPORT = tuple(f"status.{each}" for each in ("lastOperation", "lastError", "observedGeneration"))
_STATE = (_OWNERS, "spec", *_annotations(constants.TIMESTAMP, constants.CONFIRMATION_DELETION, MIGRATING_FROM))
_PUBLISHED = (_OWNERS, *_labels(constants.ROLE, constants.SHOOT_NAME, constants.SHOOT_UID), "data")
_SECRET = (
    *_PUBLISHED,
    *_labels(*issuer.PUBLIC_KEYS, constants.PROJECT_NAME, constants.SHOOT_NAMESPACE),
    *_annotations(PROMETHEUS_URL, ALERTMANAGER_URL, LOGS_URL),
)
_BUNDLE = (*_PUBLISHED, *_labels(constants.DISCOVERY_PUBLIC, constants.UPDATE_RESTRICTION))
_LEASE = (_OWNERS, "spec")

OWNED: dict[tuple[Resource, str], Owned] = {
    (resources.SHOOT, ""): Owned(changed=_labels(constants.SHOOT_STATUS)),
    (resources.SHOOT, "status"): Owned(
        changed=tuple(
            f"status.{each}"
            for each in (
                "advertisedAddresses",
                "clusterIdentity",
                "conditions",
                "constraints",
                "inPlaceUpdates",
                "networking",
            )
        )
    ),
    # Labels and annotations come from the gardenlet's configuration, and from admission.
    (resources.SEED, ""): Owned(
        created=("metadata.labels", "metadata.annotations", "spec"),
        changed=_annotations(constants.OPERATION, constants.SEED_REMAINS),
    ),
    (resources.SEED, "status"): Owned(changed=("status",)),
    # The credentials follow those of the Seed, which an operator may change.
    (resources.CORE_BACKUP_BUCKET, ""): Owned(created=(*_BUCKET, "spec.provider", "spec.seedName"), changed=_BUCKET),
    (resources.CORE_BACKUP_BUCKET, "status"): Owned(
        changed=(*_REPORT, "status.providerStatus", "status.generatedSecretRef")
    ),
    (resources.CORE_BACKUP_ENTRY, ""): Owned(
        created=_ENTRY, changed=(*_ENTRY, *_annotations(constants.BACKUP_EXPIRED, constants.OPERATION))
    ),
    (resources.CORE_BACKUP_ENTRY, "status"): Owned(changed=(*_REPORT, "status.seedName", "status.migrationStartTime")),
    (resources.SHOOT_STATE, ""): Owned(created=_STATE, changed=_STATE),
    (resources.SECRET, ""): Owned(created=(*_SECRET, "type"), changed=_SECRET),
    (resources.INTERNAL_SECRET, ""): Owned(created=(*_PUBLISHED, "type"), changed=_PUBLISHED),
    (resources.CONFIG_MAP, ""): Owned(created=_BUNDLE, changed=_BUNDLE),
    (resources.OPERATIONS_BASTION, ""): Owned(changed=("metadata.finalizers",)),
    (resources.OPERATIONS_BASTION, "status"): Owned(
        changed=("status.conditions", "status.ingress", "status.observedGeneration")
    ),
    (resources.CONTROLLER_INSTALLATION, ""): Owned(changed=("metadata.finalizers",)),
    (resources.CONTROLLER_INSTALLATION, "status"): Owned(changed=("status.conditions",)),
    # The identity of an extension in the garden. The token requestor writes these fields.
    (resources.SERVICE_ACCOUNT, ""): Owned(
        created=("metadata.labels", "automountServiceAccountToken"),
        changed=("metadata.labels", "automountServiceAccountToken"),
    ),
    # The gardenlet takes off the request that it has carried out; an operator writes the spec.
    (resources.GARDENLET, ""): Owned(changed=_annotations(constants.OPERATION)),
    (resources.GARDENLET, "status"): Owned(changed=("status.conditions", "status.observedGeneration")),
    (resources.MANAGED_SEED, ""): Owned(changed=("metadata.finalizers", *_annotations(constants.OPERATION))),
    (resources.MANAGED_SEED, "status"): Owned(changed=("status.conditions", "status.observedGeneration")),
    # The API server sets all fields of a new Namespace except its name.
    (resources.NAMESPACE, ""): Owned(created=(*_labels("kubernetes.io/metadata.name"), "spec", "status")),
    (resources.LEASE, ""): Owned(created=_LEASE, changed=_LEASE),
    (resources.EVENT, ""): Owned(
        created=(
            "involvedObject",
            "type",
            "reason",
            "message",
            "action",
            "count",
            *("eventTime", "firstTimestamp", "lastTimestamp"),
            *("source", "reportingComponent", "reportingInstance"),
        ),
        # The same Event again.
        changed=("count", "lastTimestamp"),
    ),
}
"""Owned fields by kind and subresource. The seed authorizer refuses writes of gardenlets to other kinds."""

_SERVERS_OWN = frozenset(
    {"creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid"}
)
"""Fields of the metadata that the API server sets or checks itself."""
_STEP = re.compile(r"\[([^\]]+)\]|([^.\[]+)")


def rules() -> list[dict[str, Any]]:
    """Rules of the webhook, for all kinds and subresources in the table."""
    plurals: dict[tuple[str, str], list[str]] = {}
    for resource, subresource in OWNED:
        plural = "/".join(filter(None, (resource.plural, subresource)))
        plurals.setdefault((resource.group, resource.version), []).append(plural)
    return [
        {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"], "resources": names}
        for (group, version), names in plurals.items()
    ]


def is_gardenlet(user: User) -> bool:
    """Whether a user is a member of the group of gardenlets."""
    return constants.SEEDS_GROUP in user.groups


def foreign_fields(old: Mapping[str, Any], new: Mapping[str, Any], owned: Iterable[str]) -> list[str]:
    """Fields in which two objects differ and that are not among the owned ones. ``old`` is empty for a new object."""
    paths = [tuple(key or name for key, name in _STEP.findall(path)) for path in owned]
    return list(_foreign(_bare(old), _bare(new), paths, (), ""))


def _bare(obj: Mapping[str, Any]) -> Object:
    body = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    metadata = body.pop("metadata", None) or {}
    return {**body, "metadata": {key: value for key, value in metadata.items() if key not in _SERVERS_OWN}}


def _foreign(old: Any, new: Any, paths: list[tuple[str, ...]], at: tuple[str, ...], text: str) -> Iterable[str]:
    if old == new or any(at[: len(path)] == path for path in paths):
        return
    mappings = all(each is None or isinstance(each, Mapping) for each in (old, new))
    inner = sorted({*(old or ()), *(new or ())}) if mappings else []
    if not inner:
        # An empty mapping in place of a missing one is a change, unless owned fields below it were added or removed.
        if not (mappings and any(path[: len(at)] == at for path in paths)):
            yield text
        return
    for key in inner:
        below = f"{text}[{key}]" if "." in key or "/" in key else f"{text}.{key}".lstrip(".")
        yield from _foreign((old or {}).get(key), (new or {}).get(key), paths, (*at, key), below)


async def check_write(review: Review, garden: Garden) -> None:
    """Check a gardenlet's write. Raises Refusal if it changes fields that gardenlets do not own."""
    user, resource = review.user.name, _resource(review)
    if not user.startswith(constants.SEED_USER_PREFIX):
        raise Refusal.forbidden(
            review,
            f"user {user} is a member of group {constants.SEEDS_GROUP}, but its name is not "
            f"{constants.SEED_USER_PREFIX}<name of the seed>",
        )
    owned = OWNED.get((resource, review.subresource), Owned())
    paths = owned.changed if review.old else owned.created
    if not paths and not review.old:
        raise Refusal.forbidden(review, f"gardenlets do not create {resource.plural}")
    if foreign := foreign_fields(review.old or {}, review.object or {}, paths):
        what = "/".join(filter(None, (resource.plural, review.subresource)))
        raise Refusal.forbidden(
            review,
            f"user {user} may not set {', '.join(foreign)}: gardenlets own {', '.join(paths) or 'no field'} of {what}",
        )
    if not review.subresource and (rule := _RULES.get(resource)):
        await rule(review, user.removeprefix(constants.SEED_USER_PREFIX), garden)


def _resource(review: Review) -> Resource:
    known = (each for each, _ in OWNED if (each.group, each.plural) == (review.group, review.plural))
    return next(known, Resource(review.group, "", review.kind, review.plural))


# Rules for values


Rule = Callable[[Review, str, Garden], Awaitable[None]]
"""Function that checks values: it takes the review, the name of the gardenlet's seed and the garden. Raises Refusal."""


def seed_label(seed: str) -> str:
    """Label of a Secret. Its value ``true`` lets the seed read the Secret, and its gardenlet name it in the Seed."""
    return f"{constants.SEED_NAME_PREFIX}{seed}"


def is_labelled(secret: Mapping[str, Any] | None, seed: str) -> bool:
    """Whether an operator has labelled a Secret for a seed."""
    metadata: Mapping[str, Any] = (secret or {}).get("metadata") or {}
    return dict(metadata.get("labels") or {}).get(seed_label(seed)) == "true"


def seed_credentials(seed: Seed) -> list[tuple[Path, Any]]:
    """References to credentials in the spec of a Seed, with their paths."""
    spec, dns = Path("spec"), seed.spec.dns
    named = [(spec / "dns" / "internal" / "credentialsRef", dns.internal.credentials_ref)]
    for index, domain in enumerate(dns.defaults or []):
        named.append((spec / "dns" / "defaults" @ index / "credentialsRef", domain.credentials_ref))
    if dns.provider:
        named.append((spec / "dns" / "provider" / "credentialsRef", dns.provider.credentials_ref))
    if seed.spec.backup:
        named.append((spec / "backup" / "credentialsRef", seed.spec.backup.credentials_ref))
    return named


async def _seed(review: Review, seed: str, garden: Garden) -> None:
    if review.old:
        return  # gardenlets do not own the spec of an existing Seed
    if review.name != seed:
        raise Refusal.forbidden(review, f"the gardenlet of seed {seed} registers no other Seed")
    for path, reference in seed_credentials(Seed.of(review.object or {})):
        if reference.kind not in (None, "Secret"):
            raise Refusal.forbidden(review, f"{path}: a gardenlet may only name Secrets, {reference.kind} is none")
        where = f"{reference.namespace}/{reference.name}"
        secret = await garden.find(resources.SECRET, reference.name or "", reference.namespace)
        if not is_labelled(secret, seed):
            label = f"{seed_label(seed)}=true"
            raise Refusal.forbidden(
                review, f"{path}: Secret {where} lacks label {label}, by which an operator lets the seed read it"
            )


async def _bucket(review: Review, seed: str, garden: Garden) -> None:
    owner = await garden.find(resources.SEED, seed)
    if owner is None or owner["metadata"]["uid"] != review.name:
        raise Refusal.forbidden(review, f"metadata.name: must be the uid of Seed {seed}")
    backup, spec = owner["spec"].get("backup") or {}, (review.object or {})["spec"]
    if spec.get("seedName") != seed:
        raise Refusal.forbidden(review, f"spec.seedName: must be {seed}")
    if spec.get("providerConfig") != backup.get("providerConfig"):
        raise Refusal.forbidden(review, f"spec.providerConfig: must be spec.backup.providerConfig of Seed {seed}")
    if _place(spec.get("credentialsRef")) != _place(backup.get("credentialsRef")):
        raise Refusal.forbidden(
            review, f"spec.credentialsRef: must name what spec.backup.credentialsRef of Seed {seed} names"
        )
    if spec["provider"].get("type") != backup.get("provider"):
        raise Refusal.forbidden(review, f"spec.provider.type: must be spec.backup.provider of Seed {seed}")


def _place(reference: Mapping[str, Any] | None) -> tuple[str, Any, Any]:
    found = reference or {}
    return found.get("kind") or "Secret", found.get("namespace"), found.get("name")


async def _entry(review: Review, seed: str, garden: Garden) -> None:
    """A Shoot has a BackupEntry in its seed's bucket; during a move it has a second one in the source's bucket."""
    new, old = (review.object or {})["spec"], (review.old or {}).get("spec") or {}
    shoot = await _shoot_of_entry(review, garden)
    if review.old and old.get("seedName") != seed and (shoot is None or seed not in homes(shoot)):
        # The seed that a control plane has left says that it has revoked the key of its bucket.
        if foreign := foreign_fields(review.old, review.object or {}, ("metadata.finalizers",)):
            text = f"{', '.join(foreign)}: belongs to seed {old.get('seedName')}; seed {seed} may remove its finalizer"
            raise Refusal.forbidden(review, text)
        return
    if shoot is None:
        if review.old and new == old and not _owners_changed(review):
            return  # the Shoot is gone; the gardenlet still writes finalizers and annotations of kept backups
        raise Refusal.forbidden(review, "metadata.name: belongs to no Shoot of this namespace")
    await _check_owners(review, garden, resources.SHOOT, shoot["metadata"]["name"])
    await _check_bucket(review, new, old, seed, garden)
    allowed = {seed, old.get("seedName")}
    if old.get("seedName") == seed:
        # The source hands the backups over, to the seed that has begun the takeover, or to the Shoot's ``seedName``.
        begun = await garden.find(resources.CORE_BACKUP_ENTRY, f"{_SOURCE}{review.name}", review.namespace)
        allowed |= {shoot["spec"].get("seedName"), ((begun or {}).get("spec") or {}).get("seedName")}
    if new.get("seedName") not in allowed:
        raise Refusal.forbidden(review, f"spec.seedName: must be {seed}, or the seed that the Shoot goes to")


async def _check_bucket(review: Review, new: Object, old: Object, seed: str, garden: Garden) -> None:
    bucket = new.get("bucketName")
    if bucket == old.get("bucketName"):
        return
    if not review.name.startswith(_SOURCE):
        owner = await garden.find(resources.SEED, seed)
        if owner is None or bucket != owner["metadata"]["uid"]:
            raise Refusal.forbidden(review, f"spec.bucketName: must be the bucket of seed {seed}, which is its uid")
        return
    home = await garden.find(resources.CORE_BACKUP_ENTRY, review.name.removeprefix(_SOURCE), review.namespace)
    if old or home is None or bucket != home["spec"]["bucketName"]:
        raise Refusal.forbidden(
            review, "spec.bucketName: must be the bucket that the BackupEntry of the Shoot names, and stay so"
        )


_GENERATED = "generated-bucket-"
"""Prefix of the name of the Secret that an extension has made for a BackupBucket."""
_BUCKET_NAME = "bucketName"
_KEY = ("accessKeyID", "secretAccessKey", _BUCKET_NAME)
"""Fields of the credentials of a bucket in which the key of one Shoot's backups differs."""
_SOURCE = backup_entry_names("", "")[0].removesuffix("--")
"""Prefix of the name of the BackupEntry in the source's bucket."""


async def _shoot_of_entry(review: Review, garden: Garden) -> Object | None:
    name, uid = shoot_of_backup_entry(review.name)
    shoot = await garden.find(resources.SHOOT, name, review.namespace) if name else None
    if shoot is None or shoot["metadata"]["uid"] != uid:
        return None
    namespace = await control_plane(shoot, garden)
    return shoot if namespace and review.name in backup_entry_names(namespace, uid) else None


def _owners_changed(review: Review) -> bool:
    before, after = (
        ((each or {}).get("metadata") or {}).get("ownerReferences") for each in (review.old, review.object)
    )
    return bool(before != after)


async def _check_owners(review: Review, garden: Garden, kind: Resource, name: str) -> None:
    """The object may only have this one owner, and must not block the owner's deletion."""
    if not _owners_changed(review):
        return
    owner = await garden.find(kind, name, review.namespace if kind.namespaced else None)
    for each in (review.object or {})["metadata"].get("ownerReferences") or ():
        if (
            owner is None
            or (each["kind"], each["name"], each["uid"]) != (kind.kind, name, owner["metadata"]["uid"])
            or each.get("blockOwnerDeletion")
        ):
            raise Refusal.forbidden(
                review, f"metadata.ownerReferences: may only name {kind.kind} {name}, without blockOwnerDeletion"
            )


async def _owned_by_shoot(review: Review, seed: str, garden: Garden) -> None:
    await _check_owners(review, garden, resources.SHOOT, review.name.partition(".")[0])


async def _published(review: Review, seed: str, garden: Garden) -> None:
    """Check a published Secret or ConfigMap: owner, label ``role`` and type.

    Other values could give the object a further effect: components select objects by label, and a controller fills in
    Secrets of some types.
    """
    if review.namespace == constants.GARDEN_NAMESPACE and review.name.startswith(_GENERATED):
        await _check_owners(review, garden, resources.CORE_BACKUP_BUCKET, review.name.removeprefix(_GENERATED))
    else:
        await _owned_by_shoot(review, seed, garden)
    suffix = review.name.partition(".")[2]
    obj = review.object or {}
    role = (obj["metadata"].get("labels") or {}).get(constants.ROLE)
    if role not in (None, suffix, suffix.removesuffix(".old")):
        raise Refusal.forbidden(review, f"metadata.labels[{constants.ROLE}]: must be {suffix}")
    if obj.get("type", "Opaque") != "Opaque":
        raise Refusal.forbidden(review, "type: must be Opaque")


async def _key(review: Review, seed: str, garden: Garden) -> None:
    """The key of a Shoot's backups: another seed uses it, and connects to the address beside it.

    So it must be for the writer's own bucket, and may differ from the credentials of that bucket in the key alone.
    """
    await _published(review, seed, garden)
    shoot, _, suffix = review.name.partition(".")
    if suffix != constants.BACKUP_KEY:
        return
    data = (review.object or {}).get("data") or {}
    owner, live = (
        await garden.find(resources.SEED, seed),
        await garden.find(resources.SHOOT, shoot, review.namespace),
    )
    bucket_name = owner["metadata"]["uid"] if owner else ""
    names = ("", "")
    if live is not None:
        names = backup_entry_names(await control_plane(live, garden) or "", live["metadata"]["uid"])
    entry = await garden.find(resources.CORE_BACKUP_ENTRY, names[1], review.namespace)
    if entry is None or (entry["spec"].get("seedName"), entry["spec"]["bucketName"]) != (seed, bucket_name):
        raise Refusal.forbidden(review, f"the backups of Shoot {shoot} are not in the bucket of seed {seed}")
    if data.get(_BUCKET_NAME) != b64encode(bucket_name.encode()).decode():
        raise Refusal.forbidden(review, f"data.{_BUCKET_NAME}: must be {bucket_name}")
    reference = (owner or {})["spec"]["backup"]["credentialsRef"]
    secret = await garden.find(resources.SECRET, reference["name"], reference["namespace"])
    given = (secret or {}).get("data") or {}
    foreign = sorted(key for key, value in data.items() if key not in _KEY and given.get(key) != value)
    if foreign:
        where = f"{reference['namespace']}/{reference['name']}"
        raise Refusal.forbidden(review, f"data: {', '.join(foreign)} must be as in Secret {where} of seed {seed}")


async def _owned_by_seed(review: Review, seed: str, garden: Garden) -> None:
    await _check_owners(review, garden, resources.SEED, seed)


def _names_seed(obj: Mapping[str, Any], seed: str) -> bool:
    return bool(obj["spec"].get("seedName") == seed)


_SUBJECTS: dict[Resource, Callable[[Mapping[str, Any], str], bool]] = {
    resources.SEED: lambda obj, seed: bool(obj["metadata"]["name"] == seed),
    resources.SHOOT: lambda obj, seed: seed in homes(obj),
    resources.CORE_BACKUP_BUCKET: _names_seed,
    resources.CORE_BACKUP_ENTRY: _names_seed,
    resources.OPERATIONS_BASTION: _names_seed,
}
"""Kinds that gardenlets write Events about, each with a function: whether an object belongs to a seed."""


async def _event(review: Review, seed: str, garden: Garden) -> None:
    """An Event must be about an object of the gardenlet's seed: users see Events below objects, and trust them."""
    about = (review.object or {}).get("involvedObject") or {}
    kind, version = about.get("kind"), about.get("apiVersion")
    resource = next((each for each in _SUBJECTS if (each.kind, each.api_version) == (kind, version)), None)
    if resource is None:
        raise Refusal.forbidden(review, f"involvedObject: gardenlets write no Events about {kind} {version}")
    name, namespace = about.get("name") or "", (about.get("namespace") or None) if resource.namespaced else None
    what = f"{kind} {'/'.join(filter(None, (namespace, name)))}"
    found = await garden.find(resource, name, namespace) if name and bool(namespace) == resource.namespaced else None
    if found is None or not _SUBJECTS[resource](found, seed):
        raise Refusal.forbidden(review, f"involvedObject: {what} is not of seed {seed}")
    if about.get("uid") != found["metadata"]["uid"]:
        raise Refusal.forbidden(review, f"involvedObject.uid: must be that of {what}")
    place = namespace or "default"
    if review.namespace != place:
        raise Refusal.forbidden(review, f"metadata.namespace: must be {place}, as the Event is about {what}")


_RULES: dict[Resource, Rule] = {
    resources.SEED: _seed,
    resources.CORE_BACKUP_BUCKET: _bucket,
    resources.CORE_BACKUP_ENTRY: _entry,
    resources.SHOOT_STATE: _owned_by_shoot,
    resources.SECRET: _published,
    resources.INTERNAL_SECRET: _key,
    resources.CONFIG_MAP: _published,
    resources.LEASE: _owned_by_seed,
    resources.EVENT: _event,
}

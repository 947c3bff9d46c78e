"""Keys of the backups of single Shoots, in the garden, for the seed that takes over the control plane.

An extension gives each etcd a key for the Shoot's own backups. The gardenlet copies this key into an InternalSecret
beside the Shoot, so that it is there also when the seed is lost. Members of the Project cannot read InternalSecrets,
and of the gardenlets only those of the Shoot's two seeds can. So a destination never gets the key of a whole bucket.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from activities.clusters import Clusters
from activities.seed.extension_objects import MANAGER
from activities.seed.secrets import garden_object
from api import constants, resources
from api.contracts.operations import ShootRef
from etcd import s3


def is_key_for(bucket_name: str, data: Mapping[str, str]) -> bool:
    """Whether the data of a Secret, base64, are credentials of one Shoot's backups in this bucket."""
    try:
        return base64.b64decode(data.get(s3.BUCKET, ""), validate=True).decode() == bucket_name
    except (binascii.Error, UnicodeDecodeError):
        return False


def owning_shoot(entry: Mapping[str, Any]) -> ShootRef | None:
    """The Shoot that owns a BackupEntry of the garden; None if it has not one such owner."""
    metadata = entry["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each["kind"] == resources.SHOOT.kind]
    if len(owners) != 1:
        return None
    return ShootRef(namespace=metadata["namespace"], name=owners[0]["name"], uid=owners[0]["uid"])


async def publish_key(clusters: Clusters, entry: Mapping[str, Any]) -> bool:
    """Copy the key of a BackupEntry of this seed into the garden; False if its extension has not made one yet.

    A second run writes the same. An extension that has replaced the key also replaces the copy here.
    """
    shoot, namespace = owning_shoot(entry), entry["metadata"]["name"].rpartition("--")[0]
    secret = await clusters.seed.find(resources.SECRET, constants.BACKUP_KEY, namespace)
    data = (secret or {}).get("data") or {}
    if shoot is None or not is_key_for(entry["spec"]["bucketName"], data):
        return False
    kind = resources.INTERNAL_SECRET
    copy = garden_object(shoot, kind.api_version, kind.kind, constants.BACKUP_KEY) | {"type": "Opaque", "data": data}
    await clusters.garden.apply(copy, manager=MANAGER)
    return True

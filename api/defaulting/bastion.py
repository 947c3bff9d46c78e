"""What a Bastion takes from its Shoot, and who made it. Source: spec/api-core.md 9, 11."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api import resources
from api.bastions.v1alpha1.bastion import Bastion
from api.constants import CREATED_BY
from api.meta import OwnerReference


def default_bastion(bastion: Bastion, old: Bastion | None, shoot: Mapping[str, Any] | None, user: str) -> None:
    """``shoot``: None if there is none, which is refused later.

    A change that leaves out what was filled in means no other: seed and provider stay those that it was made for,
    though its Shoot may be about to move, since who holds it there has to let go of it.
    """
    spec = bastion.spec
    if old is not None:
        spec.seed_name = spec.seed_name or old.spec.seed_name
        spec.provider_type = spec.provider_type or old.spec.provider_type
        return
    bastion.metadata.annotate(CREATED_BY, user)
    if shoot is None:
        return
    spec.seed_name = shoot["spec"].get("seedName")
    spec.provider_type = shoot["spec"]["provider"]["type"]
    others = [each for each in bastion.metadata.owner_references if each.uid != shoot["metadata"]["uid"]]
    bastion.metadata.owner_references = [*others, _owner(shoot)]


def _owner(shoot: Mapping[str, Any]) -> OwnerReference:
    metadata = shoot["metadata"]
    return OwnerReference(
        api_version=resources.SHOOT.api_version,
        kind=resources.SHOOT.kind,
        name=metadata["name"],
        uid=metadata["uid"],
        controller=True,
        block_owner_deletion=True,
    )

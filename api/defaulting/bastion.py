"""Defaults of a Bastion: seed and provider of its Shoot, and its creator. Source: spec/api-core.md 9, 11."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api import resources
from api.bastions.v1alpha1.bastion import Bastion
from api.constants import CREATED_BY
from api.meta import OwnerReference


def default_bastion(bastion: Bastion, old: Bastion | None, shoot: Mapping[str, Any] | None, user: str) -> None:
    """Set the defaults. ``shoot``: None if it does not exist, which validation refuses later.

    A change that leaves out seed and provider keeps those of the creation, even if the Shoot is about to move: the
    gardenlet of that seed must still delete the host.
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

"""Revisions of the templates of a ManagedSeedSet, and the objects that are made of them. Source: GEP-13."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api import constants
from api.decisions.versions import Version, is_version
from api.resources import MANAGED_SEED, SHOOT, Object, ObjectView, Resource

REPLICA_NAME = "replica-name"
"""Placeholder in the texts of both templates: the controller replaces it with the name of the replica."""


@dataclass(frozen=True)
class Revision:
    """Both templates as they were at one time."""

    hash: str
    number: int
    data: ObjectView
    uid: str = ""
    """Uid of the ControllerRevision that holds the templates."""


def revision_data(set_: ObjectView) -> Object:
    """The part of a set that a revision holds."""
    return {"spec": {key: set_["spec"][key] for key in ("template", "shootTemplate")}}


def revision_hash(data: ObjectView, collisions: int) -> str:
    """Hash of the templates. It is a label's value and the end of a name. ``collisions`` make it another one."""
    text = json.dumps([data, collisions], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def outdated_revisions(revisions: Sequence[Revision], in_use: Iterable[str], limit: int) -> list[Revision]:
    """Revisions to delete: those that no replica and no status names, except the newest ``limit``."""
    used = set(in_use)
    spare = sorted((each for each in revisions if each.hash not in used), key=lambda each: -each.number)
    return spare[limit:]


def shoot_of(set_: ObjectView, name: str, revision: Revision, live: ObjectView | None = None) -> Object:
    """Manifest of the Shoot of a replica.

    ``live``: the Shoot that is updated. Versions that maintenance has raised meanwhile stay as they are: Kubernetes
    cannot go back to an older version.
    """
    template = _filled(revision.data["spec"]["shootTemplate"], name)
    spec = template["spec"] if live is None else _with_newer_versions(template["spec"], live["spec"])
    return _manifest(SHOOT, set_, name, revision, template) | {"spec": spec}


def managed_seed_of(set_: ObjectView, name: str, revision: Revision) -> Object:
    """Manifest of the ManagedSeed of a replica."""
    template = _filled(revision.data["spec"]["template"], name)
    manifest = _manifest(MANAGED_SEED, set_, name, revision, template)
    return manifest | {"spec": {**(template.get("spec") or {}), "shoot": {"name": name}}}


def _manifest(resource: Resource, set_: ObjectView, name: str, revision: Revision, template: ObjectView) -> Object:
    metadata = template.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": set_["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), constants.REVISION_HASH: revision.hash},
            **({"annotations": annotations} if annotations else {}),
        },
    }


def _filled(value: Any, name: str) -> Any:
    """A template with the placeholder replaced in all texts."""
    if isinstance(value, Mapping):
        return {key: _filled(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, name) for each in value]
    return value.replace(REPLICA_NAME, name) if isinstance(value, str) else value


def _with_newer_versions(spec: ObjectView, live: ObjectView) -> Object:
    """The template's spec with the versions of the live Shoot where these are newer."""
    result = {**spec, "kubernetes": _newer(spec.get("kubernetes") or {}, live.get("kubernetes") or {})}
    provider = spec.get("provider") or {}
    pools = {each["name"]: each for each in (live.get("provider") or {}).get("workers") or ()}
    if provider.get("workers"):
        workers = [_pool(each, pools.get(each["name"], {})) for each in provider["workers"]]
        result["provider"] = {**provider, "workers": workers}
    return result


def _pool(pool: ObjectView, live: ObjectView) -> Object:
    result = dict(pool)
    machine, live_machine = pool.get("machine") or {}, live.get("machine") or {}
    image, live_image = machine.get("image") or {}, live_machine.get("image") or {}
    if image and image.get("name") == live_image.get("name"):
        result["machine"] = {**machine, "image": _newer(image, live_image)}
    if pool.get("kubernetes"):
        result["kubernetes"] = _newer(pool["kubernetes"], live.get("kubernetes") or {})
    return result


def _newer(wanted: ObjectView, live: ObjectView) -> Object:
    """``wanted`` with the ``version`` of ``live`` if that is newer."""
    one, other = wanted.get("version"), live.get("version")
    if one and other and is_version(one) and is_version(other) and Version(other) > Version(one):
        return {**wanted, "version": other}
    return dict(wanted)

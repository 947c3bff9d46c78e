"""``shoots/binding``: sets the seed of a Shoot, and no other field.

The requester replaces the subresource with the Shoot that it read, in which only ``spec.seedName`` differs, as in
Gardener's document on the migration of control planes. Admission decides whether that seed is possible.
"""

from __future__ import annotations

import logging
from typing import Any

from api import resources
from api.constants import CHANGED_BY, CORE
from api.resources import Object
from kube.client import MERGE_PATCH, KubeClient
from kube.errors import ApiError
from workers.lib.access import User
from workers.subresources.refusals import bad_request, conflict, forbidden, invalid, not_found, of_write
from workers.subresources.requesters import check_name

log = logging.getLogger(__name__)

BINDING = resources.Resource(CORE, "v1beta1", "Shoot", "shoots/binding")


async def bind(
    garden: KubeClient, namespace: str, name: str, wanted: dict[str, Any], user: User, *, dry_run: bool
) -> Object:
    """The Shoot with its new seed. A repeated request changes nothing. Raises Refusal."""
    for field, value in {"apiVersion": resources.SHOOT.api_version, "kind": "Shoot"}.items():
        if wanted.get(field) != value:
            raise bad_request(f"the object provided is unrecognized: {field} must be {value!r}")
    check_name(user.name)
    live = await garden.find(resources.SHOOT, name, namespace)
    if live is None:
        raise not_found(resources.SHOOT, name)
    metadata = wanted.get("metadata")
    _check_identity(live["metadata"], metadata if isinstance(metadata, dict) else {})
    spec = wanted.get("spec")
    seed = spec.get("seedName") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(seed, str) or not seed:
        raise invalid("Shoot", CORE, name, "spec.seedName", "Required value: name a seed; it cannot be unset")
    if {**spec, "seedName": ""} != {**live["spec"], "seedName": ""}:
        raise forbidden(resources.SHOOT, name, "only spec.seedName can be changed using the binding subresource")
    # Admission keeps this annotation of the server's, and drops that of other authors.
    metadata = {"resourceVersion": live["metadata"]["resourceVersion"], "annotations": {CHANGED_BY: user.name}}
    patch = {"metadata": metadata, "spec": {"seedName": seed}}
    try:
        bound = await garden.request(
            "PATCH",
            resources.SHOOT.path(namespace, name),
            body=patch,
            query={"dryRun": "All"} if dry_run else None,
            content_type=MERGE_PATCH,
            doing=f"binding Shoot {namespace}/{name} to seed {seed}",
        )
    except ApiError as error:
        raise of_write(error) from None
    if not dry_run:
        log.info("user %s has bound Shoot %s/%s to seed %s", user.name, namespace, name, seed)
    return dict(bound)


def _check_identity(live: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The body must be the Shoot of the URL, as it is now."""
    for field in ("name", "namespace"):
        if wanted.get(field) not in (None, "", live[field]):
            raise bad_request(f"metadata.{field} of the object ({wanted[field]}) does not match the one on the URL")
    if wanted.get("uid") not in (None, "", live["uid"]):
        raise conflict(resources.SHOOT, live["name"], "Precondition failed: the Shoot has another uid")
    if wanted.get("resourceVersion") not in (None, "", live["resourceVersion"]):
        raise conflict(
            resources.SHOOT,
            live["name"],
            "the object has been modified; please apply your changes to the latest version and try again",
        )

"""Rights of the author of a write. The garden's API server decides, by a SubjectAccessReview in the author's name."""

from __future__ import annotations

import asyncio
import re

from api import resources
from api.constants import MANAGE_MEMBERS, MODIFY_TOLERATIONS_WHITELIST
from api.core.v1beta1.project import Project
from api.core.v1beta1.shoot import Shoot
from api.decisions.credentials import Binding, Credentials, binding_of
from api.decisions.project_access import must_manage_members
from api.defaulting.project import subject_of
from api.meta import Toleration
from api.resources import Resource, resource_of
from api.validation.references import Reference, references
from workers.admission.review import Garden, Refusal, Review

_INDEX = re.compile(r"\[\d+\]")


async def require(
    review: Review,
    garden: Garden,
    field: str,
    verb: str,
    resource: Resource,
    namespace: str | None,
    name: str,
    *,
    hint: str = "",
) -> None:
    """Refuse the write unless its author may do this.

    ``field``: the field whose change needs the right. ``verb`` may be a custom verb, and ``resource.plural`` may name a
    subresource. ``hint``: what else the author can do.
    """
    if not await garden.allowed(review.user, verb, resource, namespace, name):
        raise _lacks(review, field, verb, resource, namespace, name, hint)


async def require_for_project(review: Review, garden: Garden, project: Project, old: Project | None) -> None:
    """Refuse the write of a Project unless its author has the custom verbs that it needs.

    The author of a Project in a namespace that exists needs the right to update the namespace: members of the Project
    get the objects in it, such as the Secrets of an earlier Project.
    """
    if must_manage_members(project, old, subject_of(review.user.name)):
        await require(review, garden, "spec.members", MANAGE_MEMBERS, resources.PROJECT, None, review.name)
    if _whitelist(project) != (_whitelist(old) if old else []):
        field, verb = "spec.tolerations.whitelist", MODIFY_TOLERATIONS_WHITELIST
        await require(review, garden, field, verb, resources.PROJECT, None, review.name)
    namespace = project.spec.namespace
    if (
        namespace
        and (old is None or old.spec.namespace is None)
        and await garden.find(resources.NAMESPACE, namespace) is not None
    ):
        hint = "leave the field out, or choose a name that is not taken"
        await require(review, garden, "spec.namespace", "update", resources.NAMESPACE, None, namespace, hint=hint)


def _whitelist(project: Project) -> list[Toleration]:
    return (project.spec.tolerations.whitelist if project.spec.tolerations else None) or []


async def require_for_shoot(review: Review, garden: Garden, shoot: Shoot, old: Shoot | None) -> None:
    """Refuse the write of a Shoot unless its author may read each object that it refers to and did not refer to before.

    Extensions and the control plane read these objects. A user who may change Shoots, but may not read Secrets, would
    use a Secret by a reference.
    """
    known = {_without_index(each) for each in references(old)} if old else set()
    new = [each for each in references(shoot) if _without_index(each) not in known]
    allowed = await asyncio.gather(
        *(garden.allowed(review.user, "get", each.resource, each.namespace, each.name) for each in new)
    )
    for each, may in zip(new, allowed, strict=True):
        if not may:
            raise _lacks(review, str(each.path), "get", each.resource, each.namespace, each.name)
    if old is not None:
        await _require_credentials(review, garden, shoot, old)


def _without_index(reference: Reference) -> tuple[str, Resource, str]:
    """A reference that is the same wherever it stands in a list: other entries of the list may come and go."""
    return _INDEX.sub("", str(reference.path)), reference.resource, reference.name


async def _require_credentials(review: Review, garden: Garden, shoot: Shoot, old: Shoot) -> None:
    """A change of the binding to other credentials needs the right to read the old credentials, and the new ones.

    A user who creates a Shoot needs no such right: operators share credentials by a binding without showing them.
    """
    before, after = binding_of(old.to_wire()), binding_of(shoot.to_wire())
    if before is None or after is None or before == after:
        return
    bound = [await _credentials(kind, name, review, garden) for kind, name in (before, after)]
    if bound[0] == bound[1]:
        return
    for (kind, name), credentials in zip((before, after), bound, strict=True):
        if credentials is None:
            continue
        resource = resource_of(credentials.api_version, credentials.kind)
        if not await garden.allowed(review.user, "get", resource, credentials.namespace, credentials.name):
            # The place of the credentials is not named: it may be the namespace of another Project.
            raise Refusal.forbidden(
                review,
                f"spec.{after[0].shoot_field}: user {review.user.name} may not get the credentials of "
                f"{kind.resource.kind} {name}, and so may not change which credentials the Shoot uses",
            )


async def _credentials(kind: Binding, name: str, review: Review, garden: Garden) -> Credentials | None:
    binding = await garden.find(kind.resource, name, review.namespace)
    return kind.credentials(binding) if binding is not None else None


def _lacks(
    review: Review, field: str, verb: str, resource: Resource, namespace: str | None, name: str, hint: str = ""
) -> Refusal:
    plural = resource.plural.partition("/")[0]
    own = (resource.group, plural, namespace or "", name) == (
        review.group,
        review.plural,
        review.namespace,
        review.name,
    )
    what = resource.plural if own else f"{resource.kind} {namespace}/{name}" if namespace else f"{resource.kind} {name}"
    text = f"{field}: user {review.user.name} may not {verb} {what}"
    return Refusal.forbidden(review, f"{text}; {hint}" if hint else text)

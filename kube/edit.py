"""Read-modify-write: a patch names the resource version that was read, and a conflict leads to another attempt."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from api.resources import Resource
from kube.client import KubeClient, Object
from kube.errors import Conflict, NotFound

ATTEMPTS = 5
"""Maximum number of attempts of one read-modify-write, as client-go's ``retry.DefaultRetry``."""

Change = Callable[[Object], Mapping[str, Any] | None]
"""Returns a merge patch for an object as it is now; None if there is nothing to change."""

_T = TypeVar("_T")


async def retry_on_conflict(doing: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Call ``attempt``, and again while it raises Conflict. Each call must read the objects again that it writes.

    ``doing``: the action for the message of the error, such as ``editing Shoot a/b``.
    Raises Conflict after 5 conflicts.
    """
    for _ in range(ATTEMPTS):
        try:
            return await attempt()
        except Conflict:
            continue
    raise Conflict(409, "Conflict", doing, f"{ATTEMPTS} update conflicts in a row; will retry")


async def edit(
    client: KubeClient,
    resource: Resource,
    name: str,
    namespace: str | None,
    change: Change,
    *,
    uid: str = "",
    subresource: str = "",
) -> Object | None:
    """Patch an object with what ``change`` returns for its present state.

    Returns the object as it is afterwards, also if there was nothing to change; None if it is gone, or if another
    object (``uid``) has its name now. Raises Conflict after 5 conflicts.
    """

    async def attempt() -> Object | None:
        live = await client.find(resource, name, namespace)
        if live is None or (uid and live["metadata"]["uid"] != uid):
            return None
        patch = change(live)
        try:
            return await patch_as_read(client, resource, live, patch, subresource=subresource) if patch else live
        except NotFound:
            return None

    where = "/".join(part for part in (namespace, name) if part)
    return await retry_on_conflict(f"editing {resource.kind} {where}", attempt)


async def patch_as_read(
    client: KubeClient, resource: Resource, obj: Mapping[str, Any], patch: Mapping[str, Any], *, subresource: str = ""
) -> Object:
    """Send a merge patch for the version of an object that the caller read. Raises Conflict if the object is newer."""
    known = obj["metadata"]
    metadata = {**(patch.get("metadata") or {}), "resourceVersion": known["resourceVersion"]}
    return await client.patch(
        resource, known["name"], known.get("namespace"), {**patch, "metadata": metadata}, subresource=subresource
    )

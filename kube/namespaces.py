"""Finalize a deleted namespace as soon as it is empty.

Kubernetes' namespace controller starts 5 s after the deletion, so that all API servers know of the deletion, and
checks every 5 s or more while objects are left. A caller that waits for the namespace does the same work at once:
delete all objects, wait until they are gone, finalize the namespace. If a step fails, the namespace controller does
the rest.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from api.resources import NAMESPACE, POD, Resource
from kube.cache import Cache
from kube.client import METADATA, KubeClient, Object
from kube.errors import ApiError, NotFound

_log = logging.getLogger(__name__)

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_FINALIZER = "kubernetes"
_OF_STATEFUL_SET = "statefulset.kubernetes.io/pod-name"
_END_TIMEOUT_SECONDS = 15 * 60.0
"""Seconds. No caller waits longer for a namespace (spec/flows.md 3)."""


@contextlib.asynccontextmanager
async def ending(client: KubeClient, name: str, *, force_pods: bool = False) -> AsyncIterator[None]:
    """Empty and finalize a namespace whose deletion was requested, while the caller waits until it is gone.

    ``force_pods``: do not wait until kubelets confirm that containers have stopped. Pods of StatefulSets are an
    exception, because their successors rely on the confirmation.
    """
    helping = asyncio.create_task(_end(client, name, force_pods=force_pods), name=f"end of namespace {name}")
    try:
        yield
    finally:
        helping.cancel()
        await asyncio.gather(helping, return_exceptions=True)


async def _end(client: KubeClient, name: str, *, force_pods: bool) -> None:
    try:
        namespace = await client.find(NAMESPACE, name)
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return
        kinds = await _deletable_kinds(client)
        left = kinds
        while left:
            left = await _delete_all(client, left, name, force_pods=force_pods)
            left = await _occupied(client, left, name)
            await asyncio.gather(*(_emptied(client, kind, name) for kind in left))
            # Objects that were admitted before the API server began to refuse new ones may appear only now.
            left = await _occupied(client, kinds, name)
        await _finalize(client, namespace)
    except (ApiError, TimeoutError, LookupError) as error:
        _log.info("namespace %s is left to the namespace controller: %s", name, error)


async def _deletable_kinds(client: KubeClient) -> list[Resource]:
    """Every kind of object that may be in a namespace. Raises LookupError if discovery is not complete."""
    pages = await asyncio.gather(
        *(client.request("GET", path, accept=_DISCOVERY, doing="discovering kinds") for path in ("/api", "/apis"))
    )
    kinds: list[Resource] = []
    for group in (each for page in pages for each in _discovered(page)):
        seen: set[str] = set()
        for version in group["versions"]:  # the preferred version comes first
            if version.get("freshness", "Current") != "Current":
                raise LookupError(f"an API server for {group['metadata'].get('name')} does not answer")
            for each in version.get("resources") or ():
                if each["resource"] not in seen and each["scope"] == "Namespaced" and _can_be_emptied(each["verbs"]):
                    kind = each["responseKind"]["kind"]
                    kinds.append(
                        Resource(group["metadata"].get("name", ""), version["version"], kind, each["resource"])
                    )
                seen.add(each["resource"])
    return kinds


def _discovered(page: Any) -> Sequence[Any]:
    if not isinstance(page, dict) or page.get("kind") != "APIGroupDiscoveryList":
        raise LookupError("its API server does not know aggregated discovery")
    return page["items"] or ()


def _can_be_emptied(verbs: Iterable[str]) -> bool:
    return {"list", "delete"} <= set(verbs)


async def _occupied(client: KubeClient, kinds: Sequence[Resource], namespace: str) -> list[Resource]:
    """The kinds of which there is at least one object."""
    found = await asyncio.gather(*(_some(client, kind, namespace) for kind in kinds))
    return [kind for kind, some in zip(kinds, found, strict=True) if some]


async def _some(client: KubeClient, kind: Resource, namespace: str) -> bool:
    try:
        page = await client.request("GET", kind.path(namespace), query={"limit": "1"}, accept=METADATA)
    except NotFound:
        return False  # the kind itself is gone
    return bool(page["items"])


async def _delete_all(
    client: KubeClient, kinds: Sequence[Resource], namespace: str, *, force_pods: bool
) -> list[Resource]:
    """Request the deletion of all objects; returns the kinds of which there was at least one object."""

    async def delete(kind: Resource) -> bool:
        if kind != POD or not force_pods:
            return await _delete_collection(client, kind, namespace)
        forced = await _delete_collection(client, kind, namespace, labels=f"!{_OF_STATEFUL_SET}", grace_seconds=0)
        return await _delete_collection(client, kind, namespace, labels=_OF_STATEFUL_SET) or forced

    found = await asyncio.gather(*(delete(kind) for kind in kinds))
    return [kind for kind, some in zip(kinds, found, strict=True) if some]


async def _delete_collection(
    client: KubeClient, kind: Resource, namespace: str, *, labels: str = "", grace_seconds: int | None = None
) -> bool:
    """Request the deletion of all objects of a kind; returns whether there were any."""
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    query = {"labelSelector": labels} if labels else None
    try:
        answer = await client.request("DELETE", kind.path(namespace), query=query, body=options, accept=METADATA)
        return bool(answer.get("items", True))  # for some kinds the answer is the list, for others a status
    except NotFound:
        return False  # the kind itself is gone
    except ApiError as error:
        if error.status != 405:
            raise
    # Some kinds can only be deleted one by one.
    found = await client.list(kind, namespace, labels=labels)
    for each in found:
        await client.delete(kind, each["metadata"]["name"], namespace, propagation="Background")
    return bool(found)


async def _emptied(client: KubeClient, kind: Resource, namespace: str) -> None:
    """Wait until kubelets, and controllers with finalizers, have released the last objects of a kind."""
    async with Cache(client, kind, namespace) as cache:
        await cache.wait_until(lambda found: not found.list(), _END_TIMEOUT_SECONDS)


async def _finalize(client: KubeClient, namespace: Object) -> None:
    name, uid = namespace["metadata"]["name"], namespace["metadata"]["uid"]
    live = await client.find(NAMESPACE, name)
    if live is None or live["metadata"]["uid"] != uid:
        return
    finalizers = [each for each in live["spec"].get("finalizers") or () if each != _FINALIZER]
    await client.request(
        "PUT",
        NAMESPACE.path(None, name, "finalize"),
        # With its resourceVersion: if the namespace has changed, the namespace controller handles the newer state.
        body={**live, "spec": {**live["spec"], "finalizers": finalizers}},
        doing=f"finalizing namespace {name}",
    )

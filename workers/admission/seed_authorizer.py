"""The seed authorizer: gardenlets may read objects that their Seed needs, and write objects that belong to it.

The garden's API server calls it for each request of a gardenlet, by a webhook of its AuthorizationConfiguration. The
answer is "allowed" or "no opinion". After "no opinion" RBAC decides, and gardenlets have no role there. A Shoot is at
home in the seed that hosts its control plane, and in the seed that the control plane moves to. So a seed cannot write
to a Shoot that has moved away from it.

Gardenlets write by server-side apply, so names are known before an object exists. Requests for an object that does not
exist yet are refused, too: otherwise a gardenlet could repeat the request, and read the object as soon as it is
created. Source: spec/api-core.md 11.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import Histogram

from api import resources
from api.constants import (
    ADMISSION_AUTHORITY,
    ADMISSION_WEBHOOK_AUTHORITY,
    GARDEN_NAMESPACE,
    ISSUER_KEYS,
    SEED_LEASE_NAMESPACE,
    SEED_NAMESPACE_PREFIX,
    SEED_USER_PREFIX,
    SEEDS_GROUP,
    SHOOT_ISSUER_NAMESPACE,
)
from api.decisions import alerting, issuer
from api.decisions.controller_deployments import references
from api.decisions.credentials import BINDINGS, Binding, binding_of
from api.names import backup_entry_names, issued_kubeconfigs, shoot_of_backup_entry
from api.resources import Object, Resource
from workers.admission.indexes import (
    BINDINGS_BY_CREDENTIALS,
    BUCKETS_BY_SECRET,
    ENTRIES_BY_BUCKET,
    INSTALLATIONS_BY_SEED,
    SHOOTS_BY_PROFILE,
    SHOOTS_BY_REFERENCE,
    SHOOTS_BY_UID,
    Index,
    homes,
    place,
)
from workers.admission.projects import Lookup, control_plane
from workers.admission.seed_writes import is_labelled, seed_label

log = logging.getLogger(__name__)


PATH = "/authorize-seeds"

SECONDS = Histogram(
    "gardener_seed_authorizer_seconds",
    "Time to say whether a gardenlet may do something.",
    ["resource", "allowed"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1, 3),
)

PUBLISHED = {
    resources.SECRET: ("monitoring", "ssh-keypair", "ssh-keypair.old"),
    resources.INTERNAL_SECRET: ("ca-client",),
    resources.CONFIG_MAP: ("ca-cluster", "ca-kubelet"),
}
"""Suffixes of objects of a Shoot in the Project's namespace, which are called ``<shoot>.<suffix>``, by kind."""
RECORDED = issued_kubeconfigs("").removeprefix(".")
"""Suffix of the ConfigMap that users write when they issue kubeconfigs, and gardenlets read."""

_APPLY = ("get", "create", "patch")
_WRITE = (*_APPLY, "update", "delete")
_LISTED_SECRETS = {alerting.SELECTOR, issuer.SELECTOR}
_KEYS_OF_GARDEN = {(GARDEN_NAMESPACE, name) for name in (ADMISSION_AUTHORITY, ADMISSION_WEBHOOK_AUTHORITY, ISSUER_KEYS)}
"""Secrets that no gardenlet may read, whatever object refers to them."""
_CLUSTER_IDENTITY = ("kube-system", "cluster-identity")
_EXTENSION = "extension-"
"""Prefix of the names of the ServiceAccounts of extensions in the namespace of their seed."""
_READS = 10
"""Maximum number of objects that one decision reads from the API server."""
_LAG_SECONDS = 1.0
"""How long a refusal waits for the caches. The API server waits 3 s for the answer."""
_WAITING = 2
"""Maximum number of refusals of one seed that wait at the same time, so that they do not use up all calls of the
port."""


@dataclass(frozen=True)
class Request:
    """A request of a gardenlet."""

    user: str
    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    """Name of the object; empty: the request is about several objects, or about one without a name yet."""
    labels: frozenset[str] = frozenset()
    """Labels in the selector of a list, as ``key=value``."""

    @property
    def seed(self) -> str:
        return self.user.removeprefix(SEED_USER_PREFIX)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Request | None:
        """Request in the spec of a SubjectAccessReview; None if no gardenlet sent it, or it is about no resource."""
        user, attributes = spec.get("user") or "", spec.get("resourceAttributes")
        if not attributes or not user.startswith(SEED_USER_PREFIX) or SEEDS_GROUP not in (spec.get("groups") or ()):
            return None
        group, plural = attributes.get("group", ""), attributes.get("resource", "")
        unknown = Resource(group, attributes.get("version", ""), "", plural)
        requirements = (attributes.get("labelSelector") or {}).get("requirements") or ()
        return cls(
            user=user,
            verb=attributes.get("verb", ""),
            resource=_KINDS.get((group, plural), unknown),
            subresource=attributes.get("subresource", ""),
            namespace=attributes.get("namespace", ""),
            name=attributes.get("name", ""),
            labels=frozenset(
                f"{each['key']}={each['values'][0]}"
                for each in requirements
                if each.get("operator") == "In" and len(each.get("values") or ()) == 1
            ),
        )

    def __str__(self) -> str:
        what = "/".join(filter(None, (str(self.resource), self.subresource)))
        where = "/".join(filter(None, (self.namespace, self.name)))
        return " ".join(filter(None, (self.verb, what, where)))


Condition = Callable[[Request, Lookup], Awaitable[bool]]


@dataclass(frozen=True)
class Right:
    """Verbs that gardenlets may use on the objects of a kind for which ``when`` is true."""

    verbs: tuple[str, ...]
    when: Condition | None = None
    """Condition of the right; None: the right holds for all objects."""
    subresources: tuple[str, ...] = ("",)

    def covers(self, request: Request) -> bool:
        return request.verb in self.verbs and request.subresource in self.subresources


def rights(request: Request) -> list[Right]:
    """Rights that allow a request if their conditions are true."""
    if request.resource == resources.SECRET and (request.namespace, request.name) in _KEYS_OF_GARDEN:
        return []
    return [each for each in RIGHTS.get(request.resource, ()) if each.covers(request)]


async def allows(request: Request, garden: Lookup) -> bool:
    """Whether a gardenlet may do this, according to the objects that ``garden`` holds."""
    for right in rights(request):
        if right.when is None or await right.when(request, garden):
            return True
    return False


class Known(Protocol):
    """The caches of admission."""

    def holds(self, resource: Resource, /) -> bool:
        """Whether there is a cache of a kind."""

    async def known(self, resource: Resource, name: str, namespace: str | None = None, /) -> Object | None:
        """The object as a cache holds it."""

    async def by_index(self, index: Index, value: str, /) -> list[Object]:
        """Objects in a cache with a value in an index, the newest at the end."""

    def next_change(self) -> asyncio.Event:
        """Event that is set as soon as an object in a cache changes."""


class Finder(Protocol):
    """The garden's API server."""

    async def find(self, resource: Resource, name: str, namespace: str | None = None, /) -> Object | None: ...


class Decision:
    """Reads the garden for one request: from the caches, and in ``allows_now`` from the API server.

    It lists nothing at the API server. It reads each object at most once, and at most ``_READS`` objects: a gardenlet
    that repeats a refused request must not keep the garden busy. Objects beyond that count as missing, which allows
    nothing.
    """

    def __init__(self, caches: Known, live: Finder) -> None:
        self._caches = caches
        self._live = live
        self._read: dict[tuple[Resource, str | None, str], Object | None] = {}
        self._again = False

    async def find(self, resource: Resource, name: str, namespace: str | None = None, /) -> Object | None:
        if not self._again and self._caches.holds(resource):
            return await self._caches.known(resource, name, namespace)
        key = (resource, namespace, name)
        if key not in self._read:
            if len(self._read) >= _READS:
                return None
            self._read[key] = await self._live.find(resource, name, namespace)
        return self._read[key]

    async def by_index(self, index: Index, value: str, /) -> list[Object]:
        """Objects that the caches find. ``allows_now`` reads them again, the newest first, because a Shoot may have got
        another seed meanwhile."""
        found = await self._caches.by_index(index, value)
        if not self._again:
            return found
        fresh = []
        for each in reversed(found):
            metadata = each["metadata"]
            live = await self.find(index.resource, metadata["name"], metadata.get("namespace"))
            if live is not None and value in index.values(live):
                fresh.append(live)
        return fresh

    async def allows(self, request: Request) -> bool:
        return await allows(request, self)

    async def allows_now(self, request: Request) -> bool:
        """Like ``allows``, according to the objects as they are at the API server."""
        self._again = True
        try:
            return await allows(request, self)
        finally:
            self._again = False

    async def allows_soon(self, request: Request) -> bool:
        """Like ``allows``, as soon as the caches have learned of a new object; False after a moment."""
        try:
            async with asyncio.timeout(_LAG_SECONDS):
                while True:
                    change = self._caches.next_change()
                    if await allows(request, self):
                        return True
                    await change.wait()
        except TimeoutError:
            return False


def configuration(kubeconfig: str) -> Object:
    """The AuthorizationConfiguration of a garden; ``kubeconfig``: file with the address of the seed authorizer.

    The API server caches no answers, because the objects of a seed change with its Shoots. While the seed authorizer is
    down, requests of gardenlets are refused, and gardenlets retry.
    """
    webhook = {
        "timeout": "3s",
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": "NoOpinion",
        "authorizedTTL": "1s",
        "cacheAuthorizedRequests": False,
        "unauthorizedTTL": "1s",
        "cacheUnauthorizedRequests": False,
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
        "matchConditions": [{"expression": f"'{SEEDS_GROUP}' in request.groups"}],
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [
            {"type": "Node", "name": "node"},
            {"type": "Webhook", "name": "seed-authorizer", "webhook": webhook},
            {"type": "RBAC", "name": "rbac"},
        ],
    }


def application(caches: Known, live: Finder) -> web.Application:
    """The server's routes.

    A gardenlet may learn of an object earlier than the caches. So before a refusal, the objects that the caches know
    are read from the API server, and then the refusal waits for the caches.
    """
    waiting: Counter[str] = Counter()

    async def decide(request: Request) -> tuple[bool, str]:
        """Whether a request is allowed, and the reason of a refusal."""
        refused = f"nothing of seed {request.seed} needs that: {request}"
        if not rights(request):
            return False, refused
        decision = Decision(caches, live)
        if await decision.allows(request) or await decision.allows_now(request):
            return True, ""
        if request.name and waiting[request.seed] < _WAITING:
            waiting[request.seed] += 1
            try:
                if await decision.allows_soon(request):
                    return True, ""
            finally:
                waiting[request.seed] -= 1
        return False, await _missing_label(request, decision) or refused

    async def answer(http: web.Request) -> web.Response:
        started = time.perf_counter()
        review = await http.json()
        request = Request.of(review.get("spec") or {})
        status: Object = {"allowed": False}
        if request is not None:
            allowed, reason = await decide(request)
            status = {"allowed": True} if allowed else {"allowed": False, "reason": reason}
            if not allowed:
                log.info("seed %s may not %s: %s", request.seed, request, reason)
            SECONDS.labels(str(request.resource), str(allowed)).observe(time.perf_counter() - started)
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status})

    app = web.Application()
    app.router.add_post(PATH, answer)
    return app


# Conditions, from the simplest to the one that reads most objects


async def _own_seed(request: Request, garden: Lookup) -> bool:
    return request.name == request.seed


async def _own_lease(request: Request, garden: Lookup) -> bool:
    return (request.namespace, request.name) == (SEED_LEASE_NAMESPACE, request.seed)


async def _lease_namespace(request: Request, garden: Lookup) -> bool:
    return request.name == SEED_LEASE_NAMESPACE


async def _own_signing_request(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("username") == request.user


async def _own_installation(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and _seed_of(found) == request.seed


async def _deployment_here(request: Request, garden: Lookup) -> bool:
    """Whether a ControllerInstallation of this seed names the ControllerDeployment."""
    return request.name in await _deployments_here(request, garden)


async def _named_by_deployment(request: Request, garden: Lookup) -> bool:
    """Whether a ControllerDeployment names the object, and a ControllerInstallation of this seed names that one."""
    if request.namespace != GARDEN_NAMESPACE or not request.name:
        return False
    for name in await _deployments_here(request, garden):
        deployment = await garden.find(resources.CONTROLLER_DEPLOYMENT, name)
        if deployment is not None and (request.resource, request.name) in references(deployment):
            return True
    return False


async def _account_of_extension(request: Request, garden: Lookup) -> bool:
    """Whether this is the ServiceAccount of an extension of this seed."""
    if request.namespace != f"{SEED_NAMESPACE_PREFIX}{request.seed}" or not request.name.startswith(_EXTENSION):
        return False
    found = await garden.find(resources.CONTROLLER_INSTALLATION, request.name.removeprefix(_EXTENSION))
    return found is not None and _seed_of(found) == request.seed


async def _own_bucket(request: Request, garden: Lookup) -> bool:
    seed = await garden.find(resources.SEED, request.seed)
    return seed is not None and seed["metadata"]["uid"] == request.name


async def _own_bastion(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("seedName") == request.seed


async def _own_backup_entry(request: Request, garden: Lookup) -> bool:
    """Whether a BackupEntry belongs to this seed; also one whose Shoot is gone, because backups may be kept longer."""
    if await _entry_of_home(request.name, request.namespace, request, garden):
        return True
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("seedName") == request.seed


async def _shoot_here(request: Request, garden: Lookup) -> bool:
    """Whether the Shoot of this name is at home in this seed."""
    return await _is_home(request.name, request, garden)


async def _published(request: Request, garden: Lookup) -> bool:
    shoot, _, suffix = request.name.partition(".")
    return suffix in PUBLISHED[request.resource] and await _is_home(shoot, request, garden)


async def _recorded(request: Request, garden: Lookup) -> bool:
    shoot, _, suffix = request.name.partition(".")
    return suffix == RECORDED and await _is_home(shoot, request, garden)


async def _published_keys(request: Request, garden: Lookup) -> bool:
    """Whether the name ends with the uid of a Shoot that is at home in this seed."""
    if request.namespace != SHOOT_ISSUER_NAMESPACE:
        return False
    uid = request.name.rpartition("--")[2]
    return any(request.seed in homes(each) for each in await garden.by_index(SHOOTS_BY_UID, uid))


async def _cluster_identity(request: Request, garden: Lookup) -> bool:
    return (request.namespace, request.name) == _CLUSTER_IDENTITY


async def _listed_secrets(request: Request, garden: Lookup) -> bool:
    return request.namespace == GARDEN_NAMESPACE and not _LISTED_SECRETS.isdisjoint(request.labels)


async def _needed_by_shoot(request: Request, garden: Lookup) -> bool:
    """Whether a Shoot that is at home in this seed refers to the object."""
    where = place(request.namespace, request.name, request.resource)
    return any(request.seed in homes(each) for each in await garden.by_index(SHOOTS_BY_REFERENCE, where))


async def _profile_of_shoot(request: Request, garden: Lookup) -> bool:
    """Whether a Shoot that is at home in this seed uses the NamespacedCloudProfile."""
    where = place(request.namespace, request.name, request.resource)
    return any(request.seed in homes(each) for each in await garden.by_index(SHOOTS_BY_PROFILE, where))


async def _credentials(request: Request, garden: Lookup) -> bool:
    """Whether a binding of a Shoot that is at home in this seed refers to the credentials, in any namespace."""
    where = place(request.namespace, request.name, request.resource)
    for kind in BINDINGS.values():
        for binding in await garden.by_index(BINDINGS_BY_CREDENTIALS[kind.resource], where):
            if await _binds_home(kind, binding, request, garden):
                return True
    return False


async def _binds_home(kind: Binding, binding: Object, request: Request, garden: Lookup) -> bool:
    namespace, name = binding["metadata"]["namespace"], binding["metadata"]["name"]
    shoots = await garden.by_index(SHOOTS_BY_REFERENCE, place(namespace, name, kind.resource))
    return any(request.seed in homes(each) and binding_of(each) == (kind, name) for each in shoots)


async def _secret_of_seed(request: Request, garden: Lookup) -> bool:
    return await _named_by_seed(request, garden) and await _is_labelled(request, request.seed, garden)


async def _named_by_seed(request: Request, garden: Lookup) -> bool:
    spec = (await garden.find(resources.SEED, request.seed) or {}).get("spec") or {}
    dns = spec.get("dns") or {}
    parts = [spec.get("backup"), dns.get("provider"), dns.get("internal"), *(dns.get("defaults") or ())]
    return any(_is(request, (part or {}).get("credentialsRef") or {}) for part in parts)


async def _secret_of_bucket(request: Request, garden: Lookup) -> bool:
    """Whether the Secret gives access to a bucket with backups of a Shoot that is at home in this seed."""
    for bucket in await garden.by_index(BUCKETS_BY_SECRET, place(request.namespace, request.name)):
        if not await _is_labelled(request, bucket["spec"].get("seedName") or "", garden):
            continue
        for entry in await garden.by_index(ENTRIES_BY_BUCKET, bucket["metadata"]["name"]):
            metadata = entry["metadata"]
            if await _entry_of_home(metadata["name"], metadata["namespace"], request, garden):
                return True
    return False


# Helpers of the conditions


def _seed_of(installation: Object) -> str:
    return (installation["spec"].get("seedRef") or {}).get("name") or ""


async def _deployments_here(request: Request, garden: Lookup) -> list[str]:
    """Names of the ControllerDeployments that are installed in this seed."""
    found = await garden.by_index(INSTALLATIONS_BY_SEED, request.seed)
    return sorted({each["spec"]["deploymentRef"]["name"] for each in found if each["spec"].get("deploymentRef")})


async def _asked_about(request: Request, garden: Lookup) -> Object | None:
    return await garden.find(request.resource, request.name, request.namespace or None) if request.name else None


async def _is_labelled(request: Request, seed: str, garden: Lookup) -> bool:
    """Whether an operator has labelled the Secret for a seed, because objects of a seed may name any Secret."""
    return is_labelled(await garden.find(resources.SECRET, request.name, request.namespace), seed)


async def _missing_label(request: Request, garden: Lookup) -> str:
    """Message about the label that a Secret named by the Seed lacks; empty if there is another reason."""
    asked = (request.resource, request.verb) == (resources.SECRET, "get") and request.name
    if not asked or not await _named_by_seed(request, garden):
        return ""
    return (
        f"Secret {request.namespace}/{request.name} lacks label {seed_label(request.seed)}=true, by which an operator "
        "lets the seed read it"
    )


async def _entry_of_home(entry: str, namespace: str, request: Request, garden: Lookup) -> bool:
    """Whether this is the name of a BackupEntry of a Shoot that is at home in the gardenlet's seed."""
    name, _ = shoot_of_backup_entry(entry)
    shoot = await garden.find(resources.SHOOT, name, namespace) if name else None
    if shoot is None or request.seed not in homes(shoot):
        return False
    technical_id = await control_plane(shoot, garden)
    return technical_id is not None and entry in backup_entry_names(technical_id, shoot["metadata"]["uid"])


async def _is_home(shoot: str, request: Request, garden: Lookup) -> bool:
    found = await garden.find(resources.SHOOT, shoot, request.namespace) if shoot else None
    return found is not None and request.seed in homes(found)


def _is(request: Request, reference: Mapping[str, Any], namespace: str = "") -> bool:
    place = (reference.get("namespace") or namespace, reference.get("name"))
    return reference.get("kind", "Secret") == "Secret" and place == (request.namespace, request.name)


_OBJECT_AND_STATUS = ("", "status")
_READABLE = Right(("get", "list", "watch"), subresources=_OBJECT_AND_STATUS)
"""Right to read all objects of a kind, also those of other seeds."""

RIGHTS: dict[Resource, tuple[Right, ...]] = {
    resources.SHOOT: (_READABLE, Right(("patch",), _shoot_here, _OBJECT_AND_STATUS)),
    resources.SEED: (_READABLE, Right(("create", "patch"), _own_seed, _OBJECT_AND_STATUS)),
    resources.CLOUD_PROFILE: (_READABLE,),
    resources.NAMESPACED_CLOUD_PROFILE: (Right(("get",), _profile_of_shoot),),
    resources.EXPOSURE_CLASS: (Right(("get",)),),
    resources.CONTROLLER_REGISTRATION: (_READABLE,),
    resources.CONTROLLER_INSTALLATION: (_READABLE, Right(("patch",), _own_installation, _OBJECT_AND_STATUS)),
    resources.CONTROLLER_DEPLOYMENT: (Right(("get",), _deployment_here),),
    resources.CORE_BACKUP_BUCKET: (_READABLE, Right(("create", "patch"), _own_bucket)),
    resources.CORE_BACKUP_ENTRY: (_READABLE, Right(("create", "patch", "delete"), _own_backup_entry)),
    resources.SHOOT_STATE: (Right(_WRITE, _shoot_here),),
    resources.INTERNAL_SECRET: (Right(_WRITE, _published),),
    resources.SECRET_BINDING: (Right(("get",), _needed_by_shoot),),
    resources.CREDENTIALS_BINDING: (Right(("get",), _needed_by_shoot),),
    # No condition for Seeds and BackupBuckets: admission refuses theirs.
    resources.WORKLOAD_IDENTITY: tuple(
        Right(verbs, condition, (subresource,))
        for condition in (_needed_by_shoot, _credentials)
        for verbs, subresource in ((("get",), ""), (("create",), "token"))
    ),
    resources.OPERATIONS_BASTION: (_READABLE, Right(("patch",), _own_bastion, _OBJECT_AND_STATUS)),
    resources.SECRET: (
        Right(_WRITE, _published),
        Right(_WRITE, _published_keys),
        Right(("get",), _secret_of_seed),
        Right(("get",), _needed_by_shoot),
        Right(("get",), _credentials),
        Right(("get",), _secret_of_bucket),
        Right(("get",), _named_by_deployment),
        Right(("list",), _listed_secrets),
    ),
    resources.CONFIG_MAP: (
        Right(_WRITE, _published),
        Right(("get",), _recorded),
        Right(("get",), _cluster_identity),
        Right(("get",), _needed_by_shoot),
        Right(("get",), _named_by_deployment),
    ),
    resources.SERVICE_ACCOUNT: (
        Right((*_APPLY, "delete"), _account_of_extension),
        Right(("create",), _account_of_extension, ("token",)),
    ),
    resources.NAMESPACE: (Right(_APPLY, _lease_namespace),),
    resources.EVENT: (Right(("create", "patch")),),
    resources.LEASE: (Right((*_APPLY, "update"), _own_lease),),
    resources.CERTIFICATE_SIGNING_REQUEST: (
        Right(("create",), subresources=("", "seedclient")),
        Right(("get",), _own_signing_request),
    ),
}
"""Rights of gardenlets by kind. All other requests are refused."""

_KINDS = {(each.group, each.plural): each for each in RIGHTS}

"""The seed authorizer: gardenlets may read objects that their Seed needs, and write objects that belong to it.

The garden's API server calls it for each request of a gardenlet, by a webhook of its AuthorizationConfiguration. The
answer is "allowed" or "no opinion". After "no opinion" RBAC decides, and gardenlets have no role there. A Shoot is at
home in the seed that hosts its control plane, and in the seed that the control plane moves to. So a seed cannot write
to a Shoot that has moved away from it.

An extension of a seed has an identity of its own, a ServiceAccount in namespace ``seed-<seed>``, with far fewer rights.

Gardenlets write by server-side apply, so names are known before an object exists. Requests for an object that does not
exist yet are refused, too: otherwise a gardenlet could repeat the request, and read the object as soon as it is
created. Source: spec/api-core.md 11.
"""

from __future__ import annotations

import asyncio
import logging
import re
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
    BACKUP_KEY,
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
from api.decisions.managed_seeds import managed_seed_of_identity, shoot_name
from api.names import backup_entry_names, issued_kubeconfigs, seed_namespace, shoot_of_backup_entry
from api.resources import Object, Resource
from workers.admission.indexes import (
    BINDINGS_BY_CREDENTIALS,
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
    resources.INTERNAL_SECRET: ("ca-client", BACKUP_KEY),
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
_EXTENSION_USER = re.compile(
    rf"system:serviceaccount:(?P<namespace>{SEED_NAMESPACE_PREFIX}(?P<seed>[^:]+)):{_EXTENSION}(?P<installation>[^:]+)"
)
_READS = 10
"""Maximum number of objects that one decision reads from the API server."""
_LAG_SECONDS = 1.0
"""How long a refusal waits for the caches. The API server waits 3 s for the answer."""
_WAITING = 2
"""Maximum number of refusals of one user that wait at the same time, so that they do not use up all calls of the
port."""


@dataclass(frozen=True)
class Request:
    """A request of a gardenlet, or of an extension of a seed."""

    user: str
    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    """Name of the object; empty: the request is about several objects, or about one without a name yet."""
    labels: frozenset[str] = frozenset()
    """Labels in the selector of a list, as ``key=value``."""
    fields: frozenset[str] = frozenset()
    """Fields in the selector of a list or a watch, as ``path=value``."""

    @property
    def seed(self) -> str:
        extension = _EXTENSION_USER.fullmatch(self.user)
        return extension["seed"] if extension else self.user.removeprefix(SEED_USER_PREFIX)

    @property
    def installation(self) -> str:
        """Name of the ControllerInstallation whose extension sent the request; empty: a gardenlet sent it."""
        extension = _EXTENSION_USER.fullmatch(self.user)
        return extension["installation"] if extension else ""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Request | None:
        """Request in the spec of a SubjectAccessReview.

        None if neither a gardenlet nor an extension sent it, or it is about no resource.
        """
        user, attributes, groups = spec.get("user") or "", spec.get("resourceAttributes"), spec.get("groups") or ()
        extension = _EXTENSION_USER.fullmatch(user)
        ours = user.startswith(SEED_USER_PREFIX) and SEEDS_GROUP in groups
        if not attributes or not (ours or (extension and f"system:serviceaccounts:{extension['namespace']}" in groups)):
            return None
        group, plural = attributes.get("group", ""), attributes.get("resource", "")
        unknown = Resource(group, attributes.get("version", ""), "", plural)
        return cls(
            user=user,
            verb=attributes.get("verb", ""),
            resource=_KINDS.get((group, plural), unknown),
            subresource=attributes.get("subresource", ""),
            namespace=attributes.get("namespace", ""),
            name=attributes.get("name", ""),
            labels=_required(attributes.get("labelSelector")),
            fields=_required(attributes.get("fieldSelector")),
        )

    def __str__(self) -> str:
        what = "/".join(filter(None, (str(self.resource), self.subresource)))
        where = "/".join(filter(None, (self.namespace, self.name)))
        return " ".join(filter(None, (self.verb, what, where)))


def _required(selector: Mapping[str, Any] | None) -> frozenset[str]:
    """Values that a selector requires, as ``key=value``."""
    return frozenset(
        f"{each['key']}={each['values'][0]}"
        for each in (selector or {}).get("requirements") or ()
        if each.get("operator") == "In" and len(each.get("values") or ()) == 1
    )


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
    table = EXTENSION_RIGHTS if request.installation else RIGHTS
    return [each for each in table.get(request.resource, ()) if each.covers(request)]


async def allows(request: Request, garden: Lookup) -> bool:
    """Whether a gardenlet or an extension may do this, according to the objects that ``garden`` holds."""
    if request.installation and not await _is_installed(request, garden):
        return False
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
        "matchConditions": [
            {
                "expression": f"'{SEEDS_GROUP}' in request.groups"
                f" || request.user.startsWith('system:serviceaccount:{SEED_NAMESPACE_PREFIX}')"
            }
        ],
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
        if request.name and waiting[request.user] < _WAITING:
            waiting[request.user] += 1
            try:
                if await decision.allows_soon(request):
                    return True, ""
            finally:
                waiting[request.user] -= 1
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


async def _own_copies(request: Request, garden: Lookup) -> bool:
    """Whether the object is in the namespace that the garden has for this seed, with copies of Secrets.

    The name is not enough: the namespace may be older than the Seed, and belong to something else.
    """
    if request.namespace != seed_namespace(request.seed):
        return False
    seed = await garden.find(resources.SEED, request.seed)
    namespace = await garden.find(resources.NAMESPACE, request.namespace)
    owners = ((namespace or {}).get("metadata") or {}).get("ownerReferences") or ()
    return seed is not None and any(each["uid"] == seed["metadata"]["uid"] for each in owners)


async def _lease_namespace(request: Request, garden: Lookup) -> bool:
    return request.name == SEED_LEASE_NAMESPACE


async def _own_signing_request(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("username") == request.user


async def _own_installation(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and _seed_of(found) == request.seed


async def _installations_here(request: Request, garden: Lookup) -> bool:
    """Whether a list or a watch has the installations of this seed alone."""
    return f"spec.seedRef.name={request.seed}" in request.fields


async def _own_registration(request: Request, garden: Lookup) -> bool:
    """Whether this is the ControllerInstallation of the extension that asks."""
    return request.name == request.installation


async def _own_namespace(request: Request, garden: Lookup) -> bool:
    return request.namespace == seed_namespace(request.seed)


async def _lease_of_extension(request: Request, garden: Lookup) -> bool:
    """Whether the name of the Lease begins with that of the extension's ServiceAccount."""
    return await _own_namespace(request, garden) and request.name.startswith(f"{_EXTENSION}{request.installation}")


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
    if request.namespace != seed_namespace(request.seed) or not request.name.startswith(_EXTENSION):
        return False
    found = await garden.find(resources.CONTROLLER_INSTALLATION, request.name.removeprefix(_EXTENSION))
    return found is not None and _seed_of(found) == request.seed


async def _own_bucket(request: Request, garden: Lookup) -> bool:
    seed = await garden.find(resources.SEED, request.seed)
    return seed is not None and seed["metadata"]["uid"] == request.name


async def _generated_secret(request: Request, garden: Lookup) -> bool:
    """Whether this is the Secret that an extension has made for the seed's own bucket."""
    name = request.name.removeprefix("generated-bucket-")
    if request.namespace != GARDEN_NAMESPACE or name == request.name:
        return False
    seed = await garden.find(resources.SEED, request.seed)
    return seed is not None and seed["metadata"]["uid"] == name


async def _own_bastion(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("seedName") == request.seed


async def _own_backup_entry(request: Request, garden: Lookup) -> bool:
    """Whether a BackupEntry belongs to this seed; also one whose Shoot is gone, because backups may be kept longer."""
    if await _entry_of_home(request.name, request.namespace, request, garden):
        return True
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("seedName") == request.seed


async def _left_entry(request: Request, garden: Lookup) -> bool:
    """Whether a BackupEntry gives another seed access to this seed's bucket, while a control plane moves."""
    found = await _asked_about(request, garden)
    if found is None or not request.name.startswith("source-"):
        return False
    seed = await garden.find(resources.SEED, request.seed)
    return seed is not None and found["spec"].get("bucketName") == seed["metadata"]["uid"]


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


async def _managed_seed_here(request: Request, garden: Lookup) -> bool:
    """Whether the Shoot of a ManagedSeed is at home in this seed."""
    return await _is_seed_of_home(request.name, request, garden)


async def _identity_of_managed_seed(request: Request, garden: Lookup) -> bool:
    """Whether the Secret is the identity of a gardenlet that this seed's gardenlet deploys."""
    if request.namespace != GARDEN_NAMESPACE:
        return False
    return await _is_seed_of_home(managed_seed_of_identity(request.name), request, garden)


async def _own_gardenlet(request: Request, garden: Lookup) -> bool:
    """Whether this is the Gardenlet of this seed, or a list or a watch of it alone."""
    named = request.name == request.seed or f"metadata.name={request.seed}" in request.fields
    return request.namespace == GARDEN_NAMESPACE and named


async def _named_by_gardenlet(request: Request, garden: Lookup) -> bool:
    """Whether the Secret is one of those with which this seed's gardenlet pulls its own chart."""
    if request.namespace != GARDEN_NAMESPACE or not request.name:
        return False
    found = await garden.find(resources.GARDENLET, request.seed, GARDEN_NAMESPACE)
    repository = found["spec"]["deployment"]["helm"]["ociRepository"] if found is not None else {}
    references = (repository.get(each) or {} for each in ("pullSecretRef", "caBundleSecretRef"))
    return request.name in [each.get("name") for each in references]


async def _secret_of_seed(request: Request, garden: Lookup) -> bool:
    return await _named_by_seed(request, garden) and await _is_labelled(request, request.seed, garden)


async def _named_by_seed(request: Request, garden: Lookup) -> bool:
    spec = (await garden.find(resources.SEED, request.seed) or {}).get("spec") or {}
    dns = spec.get("dns") or {}
    parts = [spec.get("backup"), dns.get("provider"), dns.get("internal"), *(dns.get("defaults") or ())]
    return any(_is(request, (part or {}).get("credentialsRef") or {}) for part in parts)


# Helpers of the conditions


def _seed_of(installation: Object) -> str:
    return (installation["spec"].get("seedRef") or {}).get("name") or ""


async def _is_installed(request: Request, garden: Lookup) -> bool:
    """Whether the extension that asks is installed in the seed of its ServiceAccount."""
    found = await garden.find(resources.CONTROLLER_INSTALLATION, request.installation)
    return found is not None and _seed_of(found) == request.seed


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


async def _is_seed_of_home(managed_seed: str, request: Request, garden: Lookup) -> bool:
    found = await garden.find(resources.MANAGED_SEED, managed_seed, GARDEN_NAMESPACE) if managed_seed else None
    if found is None or request.namespace != GARDEN_NAMESPACE:
        return False
    return await _is_home(shoot_name(found), request, garden)


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
    resources.CONTROLLER_INSTALLATION: (
        Right(("get", "patch"), _own_installation, _OBJECT_AND_STATUS),
        Right(("list", "watch"), _installations_here),
    ),
    resources.CONTROLLER_DEPLOYMENT: (Right(("get",), _deployment_here),),
    resources.CORE_BACKUP_BUCKET: (_READABLE, Right(("create", "patch"), _own_bucket, _OBJECT_AND_STATUS)),
    resources.CORE_BACKUP_ENTRY: (
        _READABLE,
        Right(("create", "patch", "delete"), _own_backup_entry),
        Right(("patch",), _own_backup_entry, ("status",)),
        Right(("patch",), _left_entry),
    ),
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
    resources.GARDENLET: (
        Right(("get", "list", "watch"), _own_gardenlet),
        Right(("patch",), _own_gardenlet, _OBJECT_AND_STATUS),
    ),
    resources.MANAGED_SEED: (_READABLE, Right(("patch",), _managed_seed_here, _OBJECT_AND_STATUS)),
    resources.SECRET: (
        Right(_WRITE, _published),
        Right(_WRITE, _published_keys),
        Right(_WRITE, _generated_secret),
        Right(("get",), _secret_of_seed),
        Right(("get",), _needed_by_shoot),
        Right(("get",), _credentials),
        Right(("get",), _named_by_deployment),
        Right(("get",), _identity_of_managed_seed),
        Right(("get",), _named_by_gardenlet),
        Right(("list",), _listed_secrets),
        Right(("get", "list", "watch"), _own_copies),
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

EXTENSION_RIGHTS: dict[Resource, tuple[Right, ...]] = {
    resources.SHOOT: (Right(("get",), _shoot_here),),
    resources.CONTROLLER_INSTALLATION: (Right(("get",), _own_registration),),
    # A request that creates an object by its method POST names no object.
    resources.LEASE: (
        Right(("create",), _own_namespace),
        Right(("get", "patch", "update"), _lease_of_extension),
    ),
}
"""Rights of the extensions of a seed by kind, beside those of all authenticated users: these may read Seeds,
CloudProfiles and ControllerRegistrations. An extension works on the objects of its seed. In the garden it reads no
Secret, and writes only its Leases."""

_KINDS = {(each.group, each.plural): each for each in RIGHTS}

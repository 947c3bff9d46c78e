"""What gardenlets may do in the garden: read what their Seed needs, write what belongs to it.

The garden's API server asks for each request of a gardenlet, by a webhook of its AuthorizationConfiguration. We say
yes, or have no opinion: then RBAC decides, where gardenlets have no role of their own. A Shoot is at home in the seed
that has its control plane, and in the one that it goes to; so a seed that lost a Shoot can't write to it any more.

Writes are by server-side apply, so names are known before there is an object. What is not there yet is refused, too:
who asks again and again would get at it in the moment in which it is made. Source: spec/api-core.md 11.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import Histogram

from api import alerting, issuer, resources
from api.constants import (
    ADMISSION_AUTHORITY,
    ADMISSION_WEBHOOK_AUTHORITY,
    GARDEN_NAMESPACE,
    SEED_LEASE_NAMESPACE,
    SEED_USER_PREFIX,
    SEEDS_GROUP,
    SHOOT_ISSUER_NAMESPACE,
)
from api.core.v1beta1.shoot import Shoot
from api.credentials import binding_of
from api.names import backup_entry_names, issued_kubeconfigs
from api.resources import Resource
from api.server.projects import Lookup, control_plane
from api.server.seed_writes import homes, is_labelled, seed_label
from api.validation.references import references

log = logging.getLogger(__name__)

Object = dict[str, Any]

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
"""What of a Shoot is in its project's namespace under ``<shoot>.<suffix>``."""
RECORDED = issued_kubeconfigs("").removeprefix(".")
"""Suffix of the ConfigMap that users write when they issue kubeconfigs, and gardenlets read."""

_APPLY = ("get", "create", "patch")
_WRITE = (*_APPLY, "update", "delete")
_LISTED_SECRETS = {alerting.SELECTOR, issuer.SELECTOR}
_KEYS_OF_ADMISSION = {(GARDEN_NAMESPACE, name) for name in (ADMISSION_AUTHORITY, ADMISSION_WEBHOOK_AUTHORITY)}
"""Secrets that no gardenlet gets, whatever refers to them."""
_CLUSTER_IDENTITY = ("kube-system", "cluster-identity")


@dataclass(frozen=True)
class Request:
    """What a gardenlet wants to do."""

    user: str
    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    """Empty: no single object, or one without a name yet."""
    labels: frozenset[str] = frozenset()
    """Of a list: that it asks for, as ``key=value``."""

    @property
    def seed(self) -> str:
        return self.user.removeprefix(SEED_USER_PREFIX)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Request | None:
        """From the spec of a SubjectAccessReview; None if it is not a gardenlet's, or about no objects."""
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
    """Verbs that gardenlets may use on a kind, wherever ``when`` says so."""

    verbs: tuple[str, ...]
    when: Condition | None = None
    """None: always."""
    subresources: tuple[str, ...] = ("",)

    async def covers(self, request: Request, garden: Lookup) -> bool:
        if request.verb not in self.verbs or request.subresource not in self.subresources:
            return False
        return self.when is None or await self.when(request, garden)


async def allows(request: Request, garden: Lookup) -> bool:
    """Whether a gardenlet may do this, as far as these objects tell."""
    if request.resource == resources.SECRET and (request.namespace, request.name) in _KEYS_OF_ADMISSION:
        return False
    for right in RIGHTS.get(request.resource, ()):
        if await right.covers(request, garden):
            return True
    return False


def configuration(kubeconfig: str) -> Object:
    """The AuthorizationConfiguration of a garden; ``kubeconfig``: a file that leads to us.

    Nothing is remembered: what belongs to a seed changes with its Shoots. While nobody answers, gardenlets wait.
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


def application(cached: Lookup, live: Lookup) -> web.Application:
    """The server's routes. What a cache does not allow may be newer than that, and is looked up before we refuse."""

    async def answer(http: web.Request) -> web.Response:
        started = time.perf_counter()
        review = await http.json()
        request = Request.of(review.get("spec") or {})
        status: Object = {"allowed": False}
        if request is not None:
            status["allowed"] = await allows(request, cached) or await allows(request, live)
            if not status["allowed"]:
                missing = await _missing_label(request, live)
                status["reason"] = missing or f"nothing of seed {request.seed} needs that: {request}"
                log.info("seed %s may not %s%s", request.seed, request, f": {missing}" if missing else "")
            taken = time.perf_counter() - started
            SECONDS.labels(str(request.resource), str(status["allowed"])).observe(taken)
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status})

    app = web.Application()
    app.router.add_post(PATH, answer)
    return app


# Conditions, from the nearest to the farthest


async def _own_seed(request: Request, garden: Lookup) -> bool:
    return request.name == request.seed


async def _own_lease(request: Request, garden: Lookup) -> bool:
    return (request.namespace, request.name) == (SEED_LEASE_NAMESPACE, request.seed)


async def _lease_namespace(request: Request, garden: Lookup) -> bool:
    return request.name == SEED_LEASE_NAMESPACE


async def _own_signing_request(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("username") == request.user


async def _own_bucket(request: Request, garden: Lookup) -> bool:
    seed = await garden.find(resources.SEED, request.seed)
    return seed is not None and seed["metadata"]["uid"] == request.name


async def _own_bastion(request: Request, garden: Lookup) -> bool:
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("seedName") == request.seed


async def _own_backup_entry(request: Request, garden: Lookup) -> bool:
    """Also one whose Shoot is gone: it may be kept for longer."""
    for shoot in await _shoots(request, garden, request.namespace):
        if request.name in await _entry_names(shoot, garden):
            return True
    found = await _asked_about(request, garden)
    return found is not None and found["spec"].get("seedName") == request.seed


async def _shoot_here(request: Request, garden: Lookup) -> bool:
    """Whether a Shoot of this name is at home here."""
    return await _is_home(request.name, request, garden)


async def _published(request: Request, garden: Lookup) -> bool:
    shoot, _, suffix = request.name.partition(".")
    return suffix in PUBLISHED[request.resource] and await _is_home(shoot, request, garden)


async def _recorded(request: Request, garden: Lookup) -> bool:
    shoot, _, suffix = request.name.partition(".")
    return suffix == RECORDED and await _is_home(shoot, request, garden)


async def _published_keys(request: Request, garden: Lookup) -> bool:
    return request.namespace == SHOOT_ISSUER_NAMESPACE and _names_one_of(await _shoots(request, garden), request)


async def _cluster_identity(request: Request, garden: Lookup) -> bool:
    return (request.namespace, request.name) == _CLUSTER_IDENTITY


async def _listed_secrets(request: Request, garden: Lookup) -> bool:
    return request.namespace == GARDEN_NAMESPACE and not _LISTED_SECRETS.isdisjoint(request.labels)


async def _needed_by_shoot(request: Request, garden: Lookup) -> bool:
    """Whether a Shoot that is at home here refers to it."""
    return any(
        (each.resource, each.name) == (request.resource, request.name)
        for shoot in await _shoots(request, garden, request.namespace)
        for each in references(Shoot.of(shoot))
    )


async def _credentials(request: Request, garden: Lookup) -> bool:
    """Whether a binding of a Shoot that is at home here refers to it, in whichever namespace."""
    for shoot in await _shoots(request, garden):
        if (bound := binding_of(shoot)) is None:
            continue
        kind, name = bound
        binding = await garden.find(kind.resource, name, shoot["metadata"]["namespace"])
        if binding is not None and kind.credentials(binding) == ("v1", "Secret", request.namespace, request.name):
            return True
    return False


async def _secret_of_seed(request: Request, garden: Lookup) -> bool:
    return await _named_by_seed(request, garden) and await _is_labelled(request, request.seed, garden)


async def _named_by_seed(request: Request, garden: Lookup) -> bool:
    spec = (await garden.find(resources.SEED, request.seed) or {}).get("spec") or {}
    dns = spec.get("dns") or {}
    parts = [spec.get("backup"), dns.get("provider"), dns.get("internal"), *(dns.get("defaults") or ())]
    return any(_is(request, (part or {}).get("credentialsRef") or {}) for part in parts)


async def _secret_of_bucket(request: Request, garden: Lookup) -> bool:
    """Whether it leads to the bucket that a Shoot which comes here brings its backups from."""
    buckets = {
        bucket["metadata"]["name"]: bucket["spec"].get("seedName") or ""
        for bucket in await garden.list(resources.CORE_BACKUP_BUCKET)
        if _is(request, bucket["spec"].get("credentialsRef") or {})
        or _is(request, (bucket.get("status") or {}).get("generatedSecretRef") or {})
    }
    for shoot in await _shoots(request, garden) if buckets else ():
        for name in await _entry_names(shoot, garden):
            entry = await garden.find(resources.CORE_BACKUP_ENTRY, name, shoot["metadata"]["namespace"])
            owner = buckets.get(entry["spec"]["bucketName"]) if entry is not None else None
            if owner and await _is_labelled(request, owner, garden):
                return True
    return False


# What they have in common


async def _asked_about(request: Request, garden: Lookup) -> Object | None:
    return await garden.find(request.resource, request.name, request.namespace or None) if request.name else None


async def _is_labelled(request: Request, seed: str, garden: Lookup) -> bool:
    """Whether an operator has labelled the Secret for a seed: a seed's own objects may name any Secret."""
    return is_labelled(await garden.find(resources.SECRET, request.name, request.namespace), seed)


async def _missing_label(request: Request, garden: Lookup) -> str:
    """Why a Secret that the Seed names is refused; empty if something else is the reason."""
    asked = (request.resource, request.verb) == (resources.SECRET, "get") and request.name
    if not asked or not await _named_by_seed(request, garden):
        return ""
    return (
        f"Secret {request.namespace}/{request.name} lacks label {seed_label(request.seed)}=true, by which an operator "
        "lets the seed read it"
    )


async def _entry_names(shoot: Object, garden: Lookup) -> tuple[str, ...]:
    """Names of a Shoot's BackupEntries."""
    namespace = await control_plane(shoot, garden)
    return backup_entry_names(namespace, shoot["metadata"]["uid"]) if namespace else ()


async def _shoots(request: Request, garden: Lookup, namespace: str | None = None) -> list[Object]:
    """Those that are at home here."""
    return [each for each in await garden.list(resources.SHOOT, namespace) if request.seed in homes(each)]


async def _is_home(shoot: str, request: Request, garden: Lookup) -> bool:
    found = await garden.find(resources.SHOOT, shoot, request.namespace) if shoot else None
    return found is not None and request.seed in homes(found)


def _names_one_of(shoots: Iterable[Object], request: Request) -> bool:
    """Whether a name ends with the uid of one of them."""
    uid = request.name.rpartition("--")[2]
    return any(each["metadata"]["uid"] == uid for each in shoots)


def _is(request: Request, reference: Mapping[str, Any], namespace: str = "") -> bool:
    place = (reference.get("namespace") or namespace, reference.get("name"))
    return reference.get("kind", "Secret") == "Secret" and place == (request.namespace, request.name)


_OBJECT_AND_STATUS = ("", "status")
_READABLE = Right(("get", "list", "watch"), subresources=_OBJECT_AND_STATUS)
"""Whosever it is."""

RIGHTS: dict[Resource, tuple[Right, ...]] = {
    resources.SHOOT: (_READABLE, Right(("patch",), _shoot_here, _OBJECT_AND_STATUS)),
    resources.SEED: (_READABLE, Right(("create", "patch"), _own_seed, _OBJECT_AND_STATUS)),
    resources.CLOUD_PROFILE: (_READABLE,),
    resources.CONTROLLER_REGISTRATION: (_READABLE,),
    resources.CONTROLLER_INSTALLATION: (_READABLE,),
    resources.CORE_BACKUP_BUCKET: (_READABLE, Right(("create", "patch"), _own_bucket)),
    resources.CORE_BACKUP_ENTRY: (_READABLE, Right(("create", "patch", "delete"), _own_backup_entry)),
    resources.SHOOT_STATE: (Right(_WRITE, _shoot_here),),
    resources.INTERNAL_SECRET: (Right(_WRITE, _published),),
    resources.SECRET_BINDING: (Right(("get",), _needed_by_shoot),),
    resources.CREDENTIALS_BINDING: (Right(("get",), _needed_by_shoot),),
    resources.WORKLOAD_IDENTITY: (Right(("get",), _needed_by_shoot),),
    resources.OPERATIONS_BASTION: (_READABLE, Right(("patch",), _own_bastion, _OBJECT_AND_STATUS)),
    resources.SECRET: (
        Right(_WRITE, _published),
        Right(_WRITE, _published_keys),
        Right(("get",), _secret_of_seed),
        Right(("get",), _needed_by_shoot),
        Right(("get",), _credentials),
        Right(("get",), _secret_of_bucket),
        Right(("list",), _listed_secrets),
    ),
    resources.CONFIG_MAP: (
        Right(_WRITE, _published),
        Right(("get",), _recorded),
        Right(("get",), _cluster_identity),
        Right(("get",), _needed_by_shoot),
    ),
    resources.NAMESPACE: (Right(_APPLY, _lease_namespace),),
    resources.EVENT: (Right(("create",)),),
    resources.LEASE: (Right((*_APPLY, "update"), _own_lease),),
    resources.CERTIFICATE_SIGNING_REQUEST: (
        Right(("create",), subresources=("", "seedclient")),
        Right(("get",), _own_signing_request),
    ),
}
"""What is not here is refused."""

_KINDS = {(each.group, each.plural): each for each in RIGHTS}

"""The author of a request: as the front door names it, as its token does, or as it asks to act.

The same rules as in a kube-apiserver: headers ``X-Remote-…`` by a client with a certificate of the request-header CA,
else a bearer token, then impersonation. Source: Kubernetes' documentation of authentication.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from urllib.parse import unquote

from aiohttp import web

from api.resources import SERVICE_ACCOUNT, SHOOT, TOKEN_REVIEW, Resource
from kube.client import KubeClient
from workers.lib.access import User, may
from workers.subresources.refusals import Refusal, bad_request, forbidden

AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"
_NAME_BYTES = 512
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9][-a-z0-9]*):([a-z0-9][-.a-z0-9]*)")
_USERS = Resource("", "v1", "User", "users", namespaced=False)
_GROUPS = Resource("", "v1", "Group", "groups", namespaced=False)
_UIDS = Resource("authentication.k8s.io", "v1", "UID", "uids", namespaced=False)


@dataclass(frozen=True)
class Requesters:
    """Finds out which user asks."""

    garden: KubeClient
    front_doors: Collection[str]
    """Common names in certificates of the front door. Headers of other clients are not believed."""

    async def of(self, request: web.Request) -> User:
        """The user that a request is by. Raises 401 or 403."""
        self._check_front_door(request)
        user = self._named_by_front_door(request) or await self._of_token(request)
        if user is None:
            raise Refusal(401, "Unauthorized", headers={"WWW-Authenticate": "Bearer"})
        return await self._impersonated(request, _with_group_of_all(user))

    def _check_front_door(self, request: web.Request) -> None:
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
        if len(names) != 1 or names[0] not in self.front_doors:
            raise Refusal(403, "only the front door of the garden is answered: see requestHeader.allowedNames")

    @staticmethod
    def _named_by_front_door(request: web.Request) -> User | None:
        names = _values(request, "X-Remote-User")
        uids = _values(request, "X-Remote-Uid")
        if len(names) > 1 or len(uids) > 1:
            raise Refusal(401, "Unauthorized: the front door named several users")
        if not names or not names[0]:
            return None
        return User(
            names[0],
            tuple(filter(None, _values(request, "X-Remote-Group"))),
            uids[0] if uids else "",
            _extra(request, "x-remote-extra-"),
        )

    async def _of_token(self, request: web.Request) -> User | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        review = {
            "apiVersion": TOKEN_REVIEW.api_version,
            "kind": TOKEN_REVIEW.kind,
            "metadata": {},
            "spec": {"token": token.strip()},
        }
        status = (await self.garden.create(review)).get("status") or {}
        if not status.get("authenticated"):
            return None
        user = User.of(status.get("user") or {})
        return user if user.name else None

    async def _impersonated(self, request: web.Request, user: User) -> User:
        """The user that ``user`` asks to act as, if the request asks for it. Raises 400 or 403."""
        names, groups = _values(request, "Impersonate-User"), _values(request, "Impersonate-Group")
        uids, extra = _values(request, "Impersonate-Uid"), _extra(request, "impersonate-extra-")
        if not (names or groups or uids or extra):
            return user
        if len(names) != 1 or len(uids) > 1 or not all([*names, *groups, *uids]):
            raise bad_request(
                "impersonation needs one Impersonate-User, at most one Impersonate-Uid, and no empty value"
            )
        account = _SERVICE_ACCOUNT.fullmatch(names[0])
        if account:
            await self._check_impersonation(user, SERVICE_ACCOUNT, account[2], account[1])
        else:
            await self._check_impersonation(user, _USERS, names[0])
        for group in groups:
            await self._check_impersonation(user, _GROUPS, group)
        for uid in uids:
            await self._check_impersonation(user, _UIDS, uid)
        for key, values in extra.items():
            resource = Resource("authentication.k8s.io", "v1", "UserExtra", f"userextras/{key}", namespaced=False)
            for value in values:
                await self._check_impersonation(user, resource, value)
        if account and not groups:
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{account[1]}"]
        return _with_group_of_all(User(names[0], tuple(groups), uids[0] if uids else "", extra or None))

    async def _check_impersonation(self, user: User, resource: Resource, name: str, namespace: str = "") -> None:
        if not await may(self.garden, user, "impersonate", resource, namespace, name):
            raise forbidden(
                resource,
                name,
                f'User "{user.name}" cannot impersonate resource "{resource.plural}" in API group "{resource.group}"'
                + (f' in the namespace "{namespace}"' if namespace else " at the cluster scope"),
            )


def check_name(name: str) -> None:
    """Refuse a name that logs, records and certificates could not show as the garden does."""
    if not name.isprintable() or len(name.encode(errors="replace")) > _NAME_BYTES:
        raise forbidden(
            SHOOT,
            "",
            f"a user's name in a certificate or a record has at most {_NAME_BYTES} bytes and only printable characters",
        )


def _with_group_of_all(user: User) -> User:
    """The user with the group that Kubernetes gives to each authenticated user."""
    if {AUTHENTICATED, UNAUTHENTICATED} & set(user.groups):
        return user
    return replace(user, groups=(*user.groups, UNAUTHENTICATED if user.name == ANONYMOUS else AUTHENTICATED))


def _values(request: web.Request, name: str) -> list[str]:
    return [_text(value) for value in request.headers.getall(name, [])]


def _extra(request: web.Request, prefix: str) -> dict[str, list[str]]:
    """Extra fields of a user; the keys are percent-encoded, because a header's name has few characters."""
    found: dict[str, list[str]] = {}
    for name, value in request.headers.items():
        if name.lower().startswith(prefix) and len(name) > len(prefix):
            found.setdefault(unquote(name.lower().removeprefix(prefix)), []).append(_text(value))
    return found


def _text(value: str) -> str:
    """A header's value. Raises 400 if it is not UTF-8: servers would read two different names out of it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad_request("a header that names a user is not UTF-8") from None
    return value

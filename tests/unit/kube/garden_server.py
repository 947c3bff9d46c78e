"""The garden of a gardenlet under test: an API server that minds what the real one lets gardenlets do.

It looks at verbs, kinds and fields: a gardenlet that writes a field which it does not own fails its own test, and not
only a landscape. What needs other objects of the garden (whose a name is, which values are allowed) is left out.
"""

import copy
import json
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from api.resources import Resource
from tests.unit.kube.api_server import ApiServer, Object, Place, _parse
from workers.admission.seed_authorizer import RIGHTS
from workers.admission.seed_writes import OWNED, Owned, foreign_fields

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class GardenServer(ApiServer):
    """Fails at its end if it was asked for something that gardenlets may not do."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    @asynccontextmanager
    async def running(self) -> Any:
        async with super().running():
            yield self
        assert not self.refused, f"the garden does not let gardenlets do that: {self.refused}"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        place = _parse(request.path)
        if place is None:
            return await super()._handle(request)
        collection, namespace, name, sub = place
        verb = _verb(request, name)
        before = copy.deepcopy(self.objects.get((collection, namespace, name or "")))
        if not any(verb in right.verbs and (sub or "") in right.subresources for right in _rights(collection)):
            self.refused.append(f"{verb} {request.path}")
        answer = await super()._handle(request)
        if verb in ("create", "update", "patch") and answer.status < 300:
            assert isinstance(answer, web.Response)
            name = name or json.loads(answer.text or "")["metadata"]["name"]
            self._check_fields(verb, (collection, namespace, name), sub or "", before)
        return answer

    def _check_fields(self, verb: str, at: Place, sub: str, before: Object | None) -> None:
        after = self.objects.get(at)
        if after is None:
            return  # its last finalizer has gone
        resource = _resource(at[0])
        if resource is None or (resource, sub) not in OWNED:
            return
        owned = OWNED.get((resource, sub), Owned())
        fields = owned.changed if before else owned.created
        if foreign := foreign_fields(before or {}, after, fields):
            self.refused.append(f"{verb} {'/'.join(filter(None, at))} {sub}: {', '.join(foreign)}")


def _verb(request: web.Request, name: str | None) -> str:
    if request.method == "GET":
        return "get" if name else "watch" if request.query.get("watch") else "list"
    return _VERBS[request.method]


def _resource(collection: str) -> Resource | None:
    return next((each for each in RIGHTS if f"/{_path(each)}" == collection), None)


def _path(resource: Resource) -> str:
    prefix = ("apis", resource.group) if resource.group else ("api",)
    return "/".join((*prefix, resource.version, resource.plural))


def _rights(collection: str) -> Any:
    resource = _resource(collection)
    return RIGHTS[resource] if resource else ()

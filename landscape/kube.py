"""Small client for the API servers of the landscape's clusters: read, apply, delete."""

import asyncio
import json
import ssl
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from landscape.errors import LandscapeError

Object = dict[str, Any]
_MANAGER = "landscape"


class Api:
    """Client for one cluster, by a kubeconfig with inline certificates. Use as ``async with Api(path) as api``."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        self.server: str = cluster["server"]
        self._tls = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
        with tempfile.TemporaryDirectory() as directory:  # the ssl module reads client keys from files only
            pair = Path(directory, "pair.pem")
            pair.touch(mode=0o600)
            pair.write_bytes(b64decode(user["client-certificate-data"]) + b64decode(user["client-key-data"]))
            self._tls.load_cert_chain(pair)
        self._session: aiohttp.ClientSession | None = None
        self._plurals: dict[str, dict[str, tuple[str, bool]]] = {}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=30, sock_connect=5)
        connector = aiohttp.TCPConnector(ssl=self._tls)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ready(self) -> bool:
        """Whether the API server is ready and serves its whole API."""
        try:
            status, _ = await self._call("GET", "/readyz")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
        return status == 200

    async def get(self, path: str) -> Object | None:
        """The object at the path, ``None`` if there is none."""
        status, body = await self._call("GET", path)
        if status == 404:
            return None
        return self._checked(status, body, f"reading {path}")

    async def apply(self, *objects: Object) -> None:
        """Apply all objects by server-side apply, in parallel."""
        await asyncio.gather(*(self._apply(obj) for obj in objects))

    async def create(self, path: str, obj: Object) -> Object | None:
        """Create an object in the collection at ``path``; returns ``None`` if it exists already."""
        status, body = await self._call("POST", path, json.dumps(obj), {"Content-Type": "application/json"})
        if status == 409:
            return None
        return self._checked(status, body, f"creating in {path}")

    async def delete(self, path: str) -> None:
        status, body = await self._call("DELETE", path)
        if status != 404:
            self._checked(status, body, f"deleting {path}")

    async def watch(self, path: str, resource_version: str) -> "aiohttp.ClientResponse":
        """An open watch on the collection at ``path``: one JSON event per line of its content."""
        assert self._session is not None
        query = f"watch=true&allowWatchBookmarks=true&resourceVersion={resource_version}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        return await self._session.get(f"{self.server}{path}?{query}", timeout=timeout)

    async def _apply(self, obj: Object) -> None:
        path = await self._path(obj)
        headers = {"Content-Type": "application/apply-patch+yaml"}
        query = f"fieldManager={_MANAGER}&force=true"
        status, body = await self._call("PATCH", f"{path}?{query}", json.dumps(obj), headers)
        self._checked(status, body, f"applying {obj['kind']} {obj['metadata']['name']}")

    async def _path(self, obj: Object) -> str:
        version, kind, metadata = obj["apiVersion"], obj["kind"], obj["metadata"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if kind not in self._plurals.get(version, {}):
            listing = await self.get(base)
            self._plurals[version] = {
                resource["kind"]: (resource["name"], resource["namespaced"])
                for resource in (listing or {}).get("resources", [])
                if "/" not in resource["name"]
            }
        if kind not in self._plurals[version]:
            raise LandscapeError(f"{self.server} serves no {kind} in {version}")
        plural, namespaced = self._plurals[version][kind]
        scope = f"/namespaces/{metadata['namespace']}" if namespaced else ""
        return f"{base}{scope}/{plural}/{metadata['name']}"

    async def _call(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        assert self._session is not None
        async with self._session.request(method, f"{self.server}{path}", data=body, headers=headers) as response:
            return response.status, await response.read()

    def _checked(self, status: int, body: bytes, doing: str) -> Object:
        answer: Object = json.loads(body) if body.startswith(b"{") else {}
        if status >= 400:
            # The API server's message quotes values that it refuses, also those of Secrets. The causes name the fields.
            causes = (answer.get("details") or {}).get("causes") or []
            fields = ", ".join(str(cause.get("field")) for cause in causes)
            where = f" (fields: {fields})" if fields else ""
            raise LandscapeError(f"{doing}: {self.server} answered {status} {answer.get('reason')}{where}")
        return answer

"""A registry for tests with one chart: ``charts/notes``. It serves its one manifest under each tag and digest.

``python -m tests.registries ADDRESS PORT CERTIFICATE KEY`` runs it as a process, for example in another network.
"""

import hashlib
import json
import ssl
import sys
from typing import Any

from aiohttp import web

from tests.unit.charts import archive

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """A registry with one chart. ``authorization``: the header that requests need; empty: none."""

    def __init__(self, authorization: str = "") -> None:
        self._authorization = authorization
        self.blobs: dict[str, bytes] = {}
        self.publish(archive({"templates/a.yaml": CONFIG_MAP}))

    def publish(self, layer: bytes) -> None:
        """Replace the chart."""
        config = json.dumps({"name": "notes", "version": "1.0.0"})
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._add(config.encode(), "application/vnd.cncf.helm.config.v1+json"),
            "layers": [self._add(layer, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")],
        }
        self.manifest = json.dumps(manifest).encode()
        self.digest = _digest(self.manifest)

    @property
    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    def _add(self, content: bytes, media_type: str) -> dict[str, Any]:
        self.blobs[_digest(content)] = content
        return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}

    async def _answer(self, request: web.Request) -> web.Response:
        if self._authorization and request.headers.get("Authorization") != self._authorization:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="test"'})
        kind, _, name = request.path.removeprefix("/v2/charts/notes/").partition("/")
        if kind == "manifests":
            # A registry that lies: it serves its one manifest under each digest.
            headers = {"Content-Type": _MANIFEST, "Docker-Content-Digest": name if ":" in name else self.digest}
            return web.Response(body=self.manifest, headers=headers)
        if kind == "blobs" and name in self.blobs:
            headers = {"Content-Type": "application/octet-stream", "Docker-Content-Digest": name}
            return web.Response(body=self.blobs[name], headers=headers)
        return web.Response(status=200 if request.path == "/v2/" else 404)


def context(certificate: str, key: str) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(certificate, key)
    return made


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


if __name__ == "__main__":
    address, port, *files = sys.argv[1:]
    web.run_app(Registry().app, host=address, port=int(port), ssl_context=context(*files), print=None)

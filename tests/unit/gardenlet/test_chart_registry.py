"""A gardenlet pulls charts from a registry: by tag or digest, with credentials, and with a CA of the registry's own."""

import base64
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from landscape import pki
from tests.unit.charts import CHART, archive
from workers.gardenlet.charts import Chart, ChartError, Rendered, rendered

pytestmark = pytest.mark.timeout(60)

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LOGIN = base64.b64encode(b"robot:SENTINEL-PASSWORD").decode()


class Registry:
    """A registry with one chart, ``charts/notes:1.0.0``, which has this tag and each other one."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.host = self.authority = ""
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

    def _add(self, content: bytes, media_type: str) -> dict[str, Any]:
        self.blobs[_digest(content)] = content
        return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Basic {_LOGIN}":
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

    async def pull(self, reference: str, **changed: Any) -> Rendered:
        credentials = json.dumps({"auths": {self.host: {"auth": _LOGIN}}})
        known = {"credentials": credentials, "authorities": self.authority, **changed}
        return await rendered(Chart("notes", "extension-notes", {}, reference=f"{self.host}/{reference}", **known))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    made = Registry()
    authority = pki.Authority(tmp_path, "registry-ca")
    server = authority.issue("registry", "registry", names=["127.0.0.1", "localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.certificate, server.key)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    running = TestServer(app, scheme="https", host="127.0.0.1")
    await running.start_server(ssl=context)
    made.host, made.authority = f"127.0.0.1:{running.port}", authority.files.certificate.read_text()
    yield made
    await running.close()


@pytest.mark.parametrize("how", ["{tag}", "{digest}", "{tag}{digest}"])
async def test_a_chart_is_pulled_by_tag_and_by_digest(registry: Registry, how: str) -> None:
    reference = how.format(tag=":1.0.0", digest=f"@{registry.digest}")

    [made] = (await registry.pull(f"charts/notes{reference}")).objects

    assert made["kind"] == "ConfigMap"
    assert CHART


@pytest.mark.parametrize("tag", ["", ":1.0.0"])
async def test_a_chart_with_another_digest_is_not_installed(registry: Registry, tag: str) -> None:
    """Even if the registry says that it is the one."""
    with pytest.raises(ChartError, match=r"pulling .*/charts/notes|has digest") as refused:
        await registry.pull(f"charts/notes{tag}@sha256:{'0' * 64}")

    assert refused.value.reason == "OCIChartCannotBePulled"


async def test_credentials_and_authority_are_needed_and_are_in_no_message(registry: Registry) -> None:
    wrong = json.dumps({"auths": {registry.host: {"auth": base64.b64encode(b"robot:SENTINEL").decode()}}})
    for changed in ({"credentials": wrong}, {"credentials": ""}, {"authorities": ""}):
        with pytest.raises(ChartError) as refused:
            await registry.pull("charts/notes:1.0.0", **changed)
        assert refused.value.reason == "OCIChartCannotBePulled"
        assert "SENTINEL" not in str(refused.value)

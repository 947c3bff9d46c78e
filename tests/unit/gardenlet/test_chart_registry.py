"""A gardenlet pulls charts from a registry: by tag or digest, with credentials, and with a CA of the registry's own."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from landscape import pki
from tests.registries import Registry, context
from tests.unit.charts import CHART
from workers.gardenlet.charts import Chart, ChartError, Rendered, rendered

pytestmark = pytest.mark.timeout(60)

LOGIN = base64.b64encode(b"robot:SENTINEL-PASSWORD").decode()


class Running(Registry):
    """The registry, and how a gardenlet reaches it."""

    def __init__(self) -> None:
        super().__init__(f"Basic {LOGIN}")
        self.host = self.authority = ""

    async def pull(self, reference: str, **changed: Any) -> Rendered:
        credentials = json.dumps({"auths": {self.host: {"auth": LOGIN}}})
        known = {"credentials": credentials, "authorities": self.authority, **changed}
        return await rendered(Chart("notes", "extension-notes", {}, reference=f"{self.host}/{reference}", **known))


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running()
    authority = pki.Authority(tmp_path, "registry-ca")
    pair = authority.issue("registry", "registry", names=["127.0.0.1", "localhost"])
    server = TestServer(made.app, scheme="https", host="127.0.0.1")
    await server.start_server(ssl=context(str(pair.certificate), str(pair.key)))
    made.host, made.authority = f"127.0.0.1:{server.port}", authority.files.certificate.read_text()
    yield made
    await server.close()


@pytest.mark.parametrize("how", ["{tag}", "{digest}", "{tag}{digest}"])
async def test_a_chart_is_pulled_by_tag_and_by_digest(registry: Running, how: str) -> None:
    reference = how.format(tag=":1.0.0", digest=f"@{registry.digest}")

    [made] = (await registry.pull(f"charts/notes{reference}")).objects

    assert made["kind"] == "ConfigMap"
    assert CHART


@pytest.mark.parametrize("tag", ["", ":1.0.0"])
async def test_a_chart_with_another_digest_is_not_installed(registry: Running, tag: str) -> None:
    """Even if the registry says that it is the one."""
    with pytest.raises(ChartError, match=r"pulling .*/charts/notes|has digest") as refused:
        await registry.pull(f"charts/notes{tag}@sha256:{'0' * 64}")

    assert refused.value.reason == "OCIChartCannotBePulled"


async def test_credentials_and_authority_are_needed_and_are_in_no_message(registry: Running) -> None:
    wrong = json.dumps({"auths": {registry.host: {"auth": base64.b64encode(b"robot:SENTINEL").decode()}}})
    for changed in ({"credentials": wrong}, {"credentials": ""}, {"authorities": ""}):
        with pytest.raises(ChartError) as refused:
            await registry.pull("charts/notes:1.0.0", **changed)
        assert refused.value.reason == "OCIChartCannotBePulled"
        assert "SENTINEL" not in str(refused.value)

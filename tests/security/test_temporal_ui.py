"""The Temporal UI shows payloads to users who may read histories, and cipher text to all others.

The server, its UI, the codec endpoint and the browser are real. The dev server's UI has no login, so a relay before it
answers for its settings as the settings of a UI with login and ``TEMPORAL_CODEC_PASS_ACCESS_TOKEN`` read.
"""

import asyncio
import json
import os
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.secrets.keyring import read_keyring, write_key_file
from api.server.review import User
from landscape.pki import Authority
from workers.codec import ReadingCodec, data_converter
from workers.codec_server import application

_SECONDS = 60
_PICTURE = Path(__file__).parents[2] / "docs/images/temporal-ui-payloads.png"
TOKEN = "token-of-a-reader"
PAYLOAD = "shoot--local--demo"


@activity.defn
async def deploy_etcds(technical_id: str) -> str:
    return f"etcd of {technical_id} is deployed"


@workflow.defn
class ReconcileShoot:
    @workflow.run
    async def run(self, technical_id: str) -> str:
        return await workflow.execute_activity(deploy_etcds, technical_id, start_to_close_timeout=timedelta(seconds=10))


class Readers:
    """Lets the holder of one token read histories."""

    async def user(self, request: web.Request) -> User | None:
        return User("reader") if request.headers.get("Authorization") == f"Bearer {TOKEN}" else None

    async def may_read(self, user: User) -> bool:
        return True


@dataclass(frozen=True)
class Pages:
    """One workflow in two UIs, and the codec endpoint of both."""

    workflow: str
    ui: str
    ui_with_login: str
    codec: str


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[Pages]:
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(
            await WorkflowEnvironment.start_local(
                dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
                ui=True,
                dev_server_log_level="error",
            )
        )
        target = environment.client.service_client.config.target_host
        host, port = target.split(":")
        ui = f"http://{host}:{int(port) + 1000}"
        write_key_file(tmp_path / "key")
        workflow_id = await _history(target, tmp_path / "key")
        relay = await stack.enter_async_context(_ui_with_login(ui))
        codec = await stack.enter_async_context(_codec(tmp_path, (ui, relay)))
        yield Pages(workflow_id, ui, relay, codec)


async def _history(target: str, key: Path) -> str:
    """Run one encrypted workflow; returns its id."""
    client = await Client.connect(target, data_converter=data_converter(key))
    name = f"shoot/{uuid.uuid4()}"
    async with Worker(
        client,
        task_queue="garden",
        workflows=[ReconcileShoot],
        activities=[deploy_etcds],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await client.execute_workflow(ReconcileShoot.run, PAYLOAD, id=name, task_queue="garden")
    return name


@asynccontextmanager
async def _served(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _ui_with_login(ui: str) -> AsyncIterator[str]:
    async with ClientSession() as session:

        async def relay(request: web.Request) -> web.Response:
            body = await request.read()
            async with session.request(request.method, f"{ui}{request.rel_url}", data=body) as answer:
                content = await answer.read()
                if request.path == "/api/v1/settings":
                    settings = json.loads(content)
                    settings["Auth"]["Enabled"] = settings["Codec"]["PassAccessToken"] = True
                    content = json.dumps(settings).encode()
                return web.Response(status=answer.status, body=content, content_type=answer.content_type)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", relay)
        async with _served(app) as url:
            yield url


@asynccontextmanager
async def _codec(directory: Path, origins: tuple[str, ...]) -> AsyncIterator[str]:
    server = Authority(directory, "ca").issue("codec-server", "codec-server", names=["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(server.certificate, server.key)
    codec = ReadingCodec(read_keyring(directory / "key"))
    async with _served(application(codec, Readers(), origins), tls) as url:
        yield url


class Browser:
    """Headless Chromium with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for each in (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1600,1200",
            "--ignore-certificate-errors",  # the authority of the codec endpoint is of this test alone
            f"--user-data-dir={profile}",
        ):
            options.add_argument(each)
        self._driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))

    def open(self, pages: Pages, *, token: str = "") -> None:
        """The page of the workflow, as a user sees it who has logged in and got this token, if any."""
        ui = pages.ui_with_login if token else pages.ui
        self._driver.get(ui)
        kept = {"endpoint": pages.codec, "overrideRemoteCodecConfiguration": True, "passAccessToken": True}
        if token:
            kept["AuthUser"] = {"accessToken": token, "name": "reader"}
        for name, value in kept.items():
            self._driver.execute_script("localStorage.setItem(arguments[0], arguments[1])", name, json.dumps(value))
        self._driver.get(f"{ui}/namespaces/default/workflows/{pages.workflow.replace('/', '%2F')}")

    def wait_for(self, text: str) -> None:
        WebDriverWait(self._driver, _SECONDS).until(lambda _: text in self.text)

    @property
    def text(self) -> str:
        return str(self._driver.execute_script("return document.body.innerText"))

    def picture(self, file: Path) -> None:
        self._driver.save_screenshot(str(file))

    def close(self) -> None:
        self._driver.quit()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


async def test_browser_shows_payloads_to_a_reader(pages: Pages, browser: Browser) -> None:
    await asyncio.to_thread(browser.open, pages, token=TOKEN)
    await asyncio.to_thread(browser.wait_for, f"etcd of {PAYLOAD} is deployed")

    if os.environ.get("GARDENER_WRITE_DOCS"):
        await asyncio.to_thread(browser.picture, _PICTURE)


@pytest.mark.attack(actor="T5", asset="A5", finding=11)
@pytest.mark.parametrize("token", ["", "made-up"], ids=["no token", "made-up token"])
async def test_browser_without_a_token_of_a_reader_shows_cipher_text(
    pages: Pages, browser: Browser, token: str
) -> None:
    """The UI reads the history from Temporal, and the codec endpoint refuses to decode it."""
    await asyncio.to_thread(browser.open, pages, token=token)
    await asyncio.to_thread(browser.wait_for, "Codec Server")  # the UI's message that decoding failed

    assert PAYLOAD not in await asyncio.to_thread(lambda: browser.text)

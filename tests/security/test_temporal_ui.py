"""The Temporal UI shows payloads to people who may read histories, cipher text to others, and nothing without a login.

Temporal's server, its UI, the codec endpoint, the browser and the login are real. The codec endpoint asks the issuer of
tokens here, and the garden elsewhere.
"""

import asyncio
import os
import ssl
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.secrets.keyring import read_keyring, write_key_file
from api.contracts.operations import GARDEN_QUEUE
from landscape import binaries
from landscape.pki import Authority
from landscape.progress import Progress
from tests.landscape.shoots import eventually
from tests.oidc import Issuer, Person, issuer
from tests.temporal_server import Cluster, cluster, free_ports
from tests.unit.kube.waiting import until
from workers.codec_server import application
from workers.lib.access import User
from workers.lib.codec import ReadingCodec, data_converter
from workers.lib.temporal import connect_with

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(300, func_only=True)]

_SECONDS = 60
_PICTURE = Path(__file__).parents[2] / "docs/images/temporal-ui-payloads.png"
PAYLOAD = "shoot--local--demo"
PEOPLE = {
    "reader": Person(("everybody",)),
    "developer": Person(("everybody",)),  # may look in Temporal, and read no Shoots
    "guest": Person(("guests",)),
}


@activity.defn
async def deploy_etcds(technical_id: str) -> str:
    return f"etcd of {technical_id} is deployed"


@workflow.defn
class ReconcileShoot:
    @workflow.run
    async def run(self, technical_id: str) -> str:
        return await workflow.execute_activity(deploy_etcds, technical_id, start_to_close_timeout=timedelta(seconds=10))


class Readers:
    """Lets one person read histories, by the token that the issuer gave at the login."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer

    async def user(self, request: web.Request) -> User | None:
        name = self._issuer.given.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        return User(name) if name else None

    async def may_read(self, user: User) -> bool:
        return user.name == "reader"


@dataclass(frozen=True)
class Page:
    """A workflow in the UI."""

    workflow: str
    ui: str
    temporal: Cluster


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with issuer(tmp_path_factory.mktemp("issuer")) as running:
        running.people.update(PEOPLE)
        yield running


@pytest.fixture(scope="module")
def temporal(tokens: Issuer) -> Iterator[Cluster]:
    with cluster(f"--oidc-config={tokens.config_file}") as running:
        yield running


@pytest.fixture
async def page(temporal: Cluster, tokens: Issuer, tmp_path: Path) -> AsyncIterator[Page]:
    program = (await binaries.ensure((binaries.temporal_ui(),), Progress(quiet=True)))["temporal-ui"]
    [port] = free_ports(1)
    write_key_file(tmp_path / "key")
    workflow_id = await _history(temporal, tmp_path / "key")
    async with _codec(tmp_path, tokens, f"https://127.0.0.1:{port}") as codec:
        with _ui(program, tmp_path, temporal, tokens, codec, port) as ui:
            yield Page(workflow_id, ui, temporal)


async def _history(temporal: Cluster, key: Path) -> str:
    """Run one encrypted workflow; returns its id."""
    server = temporal.server(temporal.authority.for_process("controller-manager"))
    client = await connect_with(server, data_converter(key))
    name = f"shoot/{uuid.uuid4()}"
    async with Worker(
        client,
        task_queue=GARDEN_QUEUE,
        workflows=[ReconcileShoot],
        activities=[deploy_etcds],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await client.execute_workflow(ReconcileShoot.run, PAYLOAD, id=name, task_queue=GARDEN_QUEUE)
    return name


@asynccontextmanager
async def _codec(directory: Path, tokens: Issuer, origin: str) -> AsyncIterator[str]:
    server = Authority(directory, "ca").issue("codec-server", "codec-server", names=["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(server.certificate, server.key)
    codec = ReadingCodec(read_keyring(directory / "key"))
    runner = web.AppRunner(application(codec, Readers(tokens), (origin,)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def _ui(program: str, directory: Path, temporal: Cluster, tokens: Issuer, codec: str, port: int) -> Iterator[str]:
    """Temporal's UI with a gateway's certificate, and the issuer to log in at."""
    url, host = f"https://127.0.0.1:{port}", "127.0.0.1"
    tokens.client.callback = f"{url}/auth/sso/callback"
    serving = Authority(directory, "ca").issue("ui", "ui", names=[host])
    gateway = temporal.authority.for_gateway("ui")
    provider = {
        "label": "sso",
        "type": "oidc",
        "providerUrl": tokens.url,
        "clientId": tokens.client.id,
        "clientSecret": tokens.client.secret,
        "callbackUrl": tokens.client.callback,
        "scopes": ["openid", "profile"],
    }
    configuration = {
        "temporalGrpcAddress": temporal.address,
        "host": host,
        "port": port,
        "enableUi": True,
        "defaultNamespace": "default",
        "disableNewsFetch": True,
        "cors": {"allowOrigins": [url]},
        "tls": {
            "caFile": str(temporal.authority.of_servers),
            "certFile": str(gateway.certificate),
            "keyFile": str(gateway.key),
            "enableHostVerification": True,
            "serverName": host,
        },
        "auth": {"enabled": True, "redirectToProvider": True, "providers": [provider]},
        "codec": {"endpoint": codec, "passAccessToken": True},
        "uiServerTLS": {"certFile": str(serving.certificate), "keyFile": str(serving.key)},
    }
    (directory / "production.yaml").write_text(yaml.safe_dump(configuration))
    log, trusted = directory / "ui.log", ssl.create_default_context(cafile=str(directory / "ca.crt"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, f"--root={directory}", "--config=.", "--env=production", "start"],
            stdout=output,
            stderr=output,
            env={**os.environ, "SSL_CERT_FILE": str(tokens.ca_file)},
        )
    try:
        eventually(lambda: _answers(url, trusted, process, log), "the UI answers", _SECONDS)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str, tls: ssl.SSLContext, process: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")[-4000:]
    try:
        with urllib.request.urlopen(f"{url}/healthz", context=tls, timeout=5) as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False


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

    def open(self, page: Page) -> None:
        """The page of the workflow; without a login the UI sends the browser to the issuer."""
        self._driver.get(f"{page.ui}/namespaces/default/workflows/{page.workflow.replace('/', '%2F')}")

    def log_in(self, page: Page, name: str) -> None:
        self.open(page)
        wait = WebDriverWait(self._driver, _SECONDS)
        wait.until(lambda driver: driver.find_elements(By.NAME, "password"))
        self._driver.find_element(By.NAME, "name").send_keys(name)
        self._driver.find_element(By.NAME, "password").send_keys(PEOPLE[name].password)
        self._driver.find_element(By.TAG_NAME, "button").click()
        wait.until(lambda driver: driver.current_url.startswith(page.ui))

    @property
    def title(self) -> str:
        return self._driver.title

    def wait_for(self, text: str) -> None:
        try:
            WebDriverWait(self._driver, _SECONDS).until(lambda _: text in self.text)
        except TimeoutException:
            pytest.fail(f"{self._driver.current_url} does not show {text!r}, but: {self.text}")

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


async def test_browser_shows_payloads_to_a_reader_who_has_logged_in(page: Page, browser: Browser) -> None:
    await asyncio.to_thread(browser.log_in, page, "reader")
    await asyncio.to_thread(browser.wait_for, f"etcd of {PAYLOAD} is deployed")

    if os.environ.get("GARDENER_WRITE_DOCS"):
        await asyncio.to_thread(browser.picture, _PICTURE)


@pytest.mark.attack(actor="T5", asset="A5", finding=11)
async def test_browser_of_a_person_who_may_read_no_shoots_shows_cipher_text(page: Page, browser: Browser) -> None:
    """The UI reads the history from Temporal, and the codec endpoint refuses to decode it."""
    await asyncio.to_thread(browser.log_in, page, "developer")
    await asyncio.to_thread(browser.wait_for, "Codec Server")  # the UI's message that decoding failed

    assert PAYLOAD not in await asyncio.to_thread(lambda: browser.text)


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_browser_of_a_person_without_a_role_shows_no_workflow(page: Page, browser: Browser) -> None:
    """The UI passes the token on, and Temporal refuses it."""
    await asyncio.to_thread(browser.log_in, page, "guest")
    await until(lambda: any("no group in claim" in line for line in page.temporal.refusals()), _SECONDS)

    text = await asyncio.to_thread(lambda: browser.text)
    assert PAYLOAD not in text
    assert "ReconcileShoot" not in text


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_browser_without_a_login_is_sent_to_the_issuer(page: Page, browser: Browser) -> None:
    """The UI itself shows nothing: its certificate is that of a gateway."""
    await asyncio.to_thread(browser.open, page)
    await asyncio.to_thread(eventually, lambda: browser.title == "Log in", "the page to log in", _SECONDS)

    request = urllib.request.Request(f"{page.ui}/api/v1/namespaces/default/workflows")
    with pytest.raises(urllib.error.HTTPError) as error:
        await asyncio.to_thread(urllib.request.urlopen, request, context=ssl._create_unverified_context())
    assert error.value.code in (401, 403)

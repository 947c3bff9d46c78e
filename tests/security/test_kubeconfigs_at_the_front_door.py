"""Users ask for kubeconfigs at the garden's address: a real Envoy, the subresource server and a real API server."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from landscape import pki
from landscape.pki import KeyPair
from tests.api_servers import free_port
from tests.front_door import Answer, Door, certificate, common_name, organization, request
from tests.garden_api_server import ALICE, NAMESPACE, OPERATOR, VICTOR, Garden, api_server, garden_of
from tests.gardens import ApiServer

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

PATH = f"/apis/core.gardener.cloud/v1beta1/namespaces/{NAMESPACE}/shoots/demo"
ADMIN = "CN=gardener.cloud:admin:alice,O=gardener.cloud:project:admins"
FORGED = ("X-Remote-User: operator", "X-Remote-Group: system:masters", "X_Remote_User: operator")


@pytest.fixture(scope="module")
def server(kubernetes_is_built: None) -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


class AtTheDoor:
    """The garden behind its front door."""

    def __init__(self, garden: Garden, door: Door) -> None:
        self.garden = garden
        self.door = door

    def user(self, name: str, *groups: str) -> KeyPair:
        subject = [*map(organization, groups), common_name(name)]
        return certificate(self.door.ca, self.door.directory / f"user-{name}", subject)

    async def ask(self, subresource: str, *headers: str, user: KeyPair | None = None) -> Answer:
        body = '{"spec":{"expirationSeconds":600}}'
        sent = request(f"{PATH}/{subresource}", *headers, f"Content-Length: {len(body)}", method="POST") + body
        return await self.door.ask(sent, user)


@pytest.fixture
async def garden(server: ApiServer, tmp_path: Path) -> AsyncIterator[AtTheDoor]:
    async with garden_of(server, tmp_path) as made:
        port = int(made.url.rpartition(":")[2])
        door = Door(tmp_path, free_port(), free_port(), server.port, port, made.servers, made.front_proxy)
        with door.running():
            await door.ready()
            yield AtTheDoor(made, door)


def subject(answer: Answer) -> str:
    assert answer.status == 201, answer.body
    config = yaml.safe_load(base64.b64decode(json.loads(answer.body)["status"]["kubeconfig"]))
    pem = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    return x509.load_pem_x509_certificate(pem).subject.rfc4514_string()


async def test_a_user_with_a_certificate_or_a_token_gets_a_kubeconfig(garden: AtTheDoor) -> None:
    """The first server that the front door knows is down: the second one answers."""
    of_certificate = await garden.ask("adminkubeconfig", user=garden.user(ALICE, "staff"))
    of_token = await garden.ask("adminkubeconfig", f"Authorization: Bearer {ALICE}")
    as_viewer = await garden.ask("viewerkubeconfig", f"Impersonate-User: {VICTOR}", user=garden.user(ALICE))

    assert (
        subject(of_certificate) == subject(of_token) == "CN=gardener.cloud:admin:alice,O=gardener.cloud:project:admins"
    )
    assert subject(as_viewer) == "CN=gardener.cloud:viewer:victor,O=gardener.cloud:project:viewers"


REQUESTS_OF_CLIENTS = {
    # kubectl create --raw PATH -f FILE
    "kubectl": (
        "adminkubeconfig",
        [
            "Accept: application/json, */*",
            "Content-Type: application/json",
            "User-Agent: kubectl/v1.37.1 (linux/amd64)",
        ],
        b'{"spec":{"expirationSeconds":600}}',
    ),
    # controller-runtime: client.SubResource("adminkubeconfig").Create, by which gardenctl and gardenlogin ask. Go
    # writes fields that were not set, and ends the object with a newline.
    "controller-runtime": (
        "adminkubeconfig",
        ["Accept: application/json, */*", "Content-Type: application/json", "User-Agent: gardenlogin/v0.7.0"],
        b'{"kind":"AdminKubeconfigRequest","apiVersion":"authentication.gardener.cloud/v1alpha1","metadata":{"creation'
        b'Timestamp":null},"spec":{"expirationSeconds":600},"status":{"kubeconfig":null,"expirationTimestamp":null}}\n',
    ),
    # Gardener's clientset: Shoots(namespace).CreateViewerKubeconfigRequest. The metadata may name the Shoot.
    "clientset": (
        "viewerkubeconfig",
        ["Accept: application/json", "Content-Type: application/json", "User-Agent: Go-http-client/1.1"],
        b'{"kind":"ViewerKubeconfigRequest","apiVersion":"authentication.gardener.cloud/v1alpha1","metadata":{"name":"demo"'
        b',"namespace":"garden-local","creationTimestamp":null},"spec":{"expirationSeconds":600},"status":{"kubeconfig":'
        b'null,"expirationTimestamp":null}}\n',
    ),
    # A client that prefers protobuf for answers, and takes JSON from servers of custom resources.
    "protobuf with fallback": (
        "adminkubeconfig",
        [
            "Accept: application/vnd.kubernetes.protobuf,application/json",
            "Content-Type: application/json",
            "User-Agent: client-go",
        ],
        b'{"spec":{"expirationSeconds":600}}\n',
    ),
}


@pytest.mark.parametrize("client", REQUESTS_OF_CLIENTS)
async def test_a_request_as_a_client_of_gardener_writes_it_is_served(garden: AtTheDoor, client: str) -> None:
    """Head and body in the bytes that these clients send; the answer is what their decoders read."""
    subresource, headers, body = REQUESTS_OF_CLIENTS[client]
    head = request(
        f"{PATH}/{subresource}", *headers, "Accept-Encoding: gzip", f"Content-Length: {len(body)}", method="POST"
    )

    answer = await garden.door.ask(head.encode() + body, garden.user(ALICE))

    assert answer.status == 201, answer.body
    assert answer.headers["content-type"].startswith("application/json")
    content = json.loads(answer.body)
    assert content["apiVersion"] == "authentication.gardener.cloud/v1alpha1"
    role = subresource.removesuffix("kubeconfig")
    assert content["kind"] == f"{role.capitalize()}KubeconfigRequest"
    assert content["spec"] == {"expirationSeconds": 600}
    assert content["status"].keys() == {"kubeconfig", "expirationTimestamp"}
    assert subject(answer) == f"CN=gardener.cloud:{role}:alice,O=gardener.cloud:project:{role}s"


async def test_kubectl_gets_a_kubeconfig_by_raw_with_the_certificate_of_a_user(garden: AtTheDoor) -> None:
    config = pki.kubeconfig(f"https://127.0.0.1:{garden.door.port}", garden.door.ca, garden.user(ALICE), "garden")
    file = pki.write_kubeconfig(garden.door.directory / "alice.kubeconfig", config)
    kubectl = str(Path(sys.executable).parent / "kubectl")

    done = await asyncio.to_thread(
        subprocess.run,
        [kubectl, f"--kubeconfig={file}", "create", "-f", "-", "--raw", f"{PATH}/adminkubeconfig"],
        input='{"spec":{"expirationSeconds":600}}',
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "AdminKubeconfigRequest"


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_forged_headers_get_nowhere_at_the_front_door(garden: AtTheDoor) -> None:
    """Clients name themselves an operator, with no certificate, with another user's, and with a token."""
    without = await garden.ask("adminkubeconfig", *FORGED)
    of_victor = await garden.ask("adminkubeconfig", *FORGED, user=garden.user(VICTOR))
    with_token = await garden.ask("adminkubeconfig", *FORGED, f"Authorization: Bearer {ALICE}")

    assert without.status == 401
    assert 'User "victor" cannot create resource "shoots/adminkubeconfig"' in of_victor.message
    assert subject(with_token) == ADMIN
    assert len(await garden.garden.records()) == 1


@pytest.mark.attack(actor="T1", asset="A3", finding=12)
async def test_impersonation_at_the_front_door_needs_the_right(garden: AtTheDoor) -> None:
    answer = await garden.ask("adminkubeconfig", f"Impersonate-User: {OPERATOR}", user=garden.user(ALICE))

    assert 'User "alice" cannot impersonate resource "users"' in answer.message

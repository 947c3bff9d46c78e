"""Kubeconfigs that ``kubectl create --raw`` gets from the garden, at the API server of a real cluster: while the
cluster's authorities are rotated, and after they have expired.
"""

import base64
import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography import x509

from api.contracts.kubeconfigs import SHOWN_DIGITS
from kube.client import KubeClient
from tests.landscape.clients import Access, Session
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, NAMESPACE, Shoot, eventually, refused
from workers.lib.access import User
from workers.subresources.kubeconfigs import ADMIN, Kubeconfigs

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(CREATION + 120, func_only=True)]

_HALF_SECONDS = 180
_LIFE_SECONDS = 5
_UNAUTHORIZED = 401


@dataclass(frozen=True)
class Kubeconfig:
    """A kubeconfig as the garden answers it."""

    shoot: Shoot
    content: dict[str, Any]

    @property
    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(base64.b64decode(self._user["client-certificate-data"]))

    @property
    def shown(self) -> str:
        """Begin of the certificate's serial number, by which the garden names the kubeconfig."""
        return f"{self.certificate.serial_number:032x}"[:SHOWN_DIGITS]

    @property
    def _user(self) -> dict[str, str]:
        (user,) = self.content["users"]
        return dict(user["user"])

    def with_authorities_of(self, other: "Kubeconfig") -> "Kubeconfig":
        """Kubeconfig of this user that trusts the authorities of another kubeconfig."""
        return Kubeconfig(self.shoot, {**self.content, "clusters": other.content["clusters"]})

    def status(self) -> int:
        """Status of the API server's answer. Raises ssl.SSLCertVerificationError if the server is not trusted."""
        path = self.shoot.directory / f"kubeconfig-{self.shown}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(self.content))
        session = Session(Access(self.shoot, path))
        try:
            return session.ask("GET", "/api/v1/namespaces/default")[0]
        finally:
            session.close()


@pytest.fixture(scope="module")
def cluster(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A cluster without machines: its API server is all that these tests need."""
    shoot = Shoot(landscape, "issued", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest()
    manifest["spec"]["provider"].pop("workers")
    for part in ("networking", "credentialsBindingName"):
        manifest["spec"].pop(part)
    with shoot.created(manifest):
        yield shoot


def issued(shoot: Shoot) -> Kubeconfig:
    path = f"/apis/core.gardener.cloud/v1beta1/namespaces/{NAMESPACE}/shoots/{shoot.name}/adminkubeconfig"
    answer = json.loads(shoot.landscape.kubectl("garden", "create", "--raw", path, "-f", "-", stdin='{"spec": {}}'))
    return Kubeconfig(shoot, json.loads(base64.b64decode(answer["status"]["kubeconfig"])))


async def test_an_expired_kubeconfig_is_refused(cluster: Shoot) -> None:
    """The server's own code issues it, with a maximum validity that no configuration may have."""
    async with KubeClient.from_kubeconfig(cluster.landscape.directory / "kubeconfigs/garden.yaml") as garden:
        short = Kubeconfigs(garden, {ADMIN.subresource: _LIFE_SECONDS})
        answer = await short.issue(ADMIN, NAMESPACE, cluster.name, ADMIN.model(), User("alice"), dry_run=False)
    assert answer.status is not None
    kubeconfig = Kubeconfig(cluster, json.loads(base64.b64decode(answer.status.kubeconfig or "")))

    assert issued(cluster).status() == 200
    eventually(lambda: kubeconfig.status() == _UNAUTHORIZED, "the end of the kubeconfig", _LIFE_SECONDS + 30)


def asked_until(shoot: Shoot, phase: str) -> list[Kubeconfig]:
    """Ask for kubeconfigs until the rotation has reached a phase; the API server accepts each at once."""
    asked: list[Kubeconfig] = []

    def reached() -> bool:
        rotation = shoot.get()["status"]["credentials"]["rotation"]["certificateAuthorities"]
        asked.append(issued(shoot))
        assert asked[-1].status() == 200, f"{rotation['phase']}, number {len(asked)}"
        return bool(rotation["phase"] == phase)

    eventually(reached, phase, _HALF_SECONDS)
    return asked


def recorded(shoot: Shoot) -> dict[str, str]:
    """Issuers of all kubeconfigs that the garden has recorded, by the digits that are shown of each."""
    found = json.loads(shoot.gardener("credentials", "kubeconfigs", shoot.reference, "-o", "json"))
    return {serial[:SHOWN_DIGITS]: each["issuer"] for serial, each in found.items()}


def named_by_completion(shoot: Shoot) -> set[str]:
    """Some of the kubeconfigs for which the completion of the rotation is refused."""
    environment = f"GARDENER_LANDSCAPE={shoot.landscape.name}"
    refusal = refused("env", environment, BIN / "gardener", "credentials", "complete", shoot.reference, "ca")
    return set(re.findall(r"kubeconfig ([0-9a-f]{8}) of \S+ is valid until", refusal))


@dataclass(frozen=True)
class Rotating:
    """A cluster whose rotation waits for its completion, and the kubeconfigs that it has got."""

    old: Kubeconfig
    """Issued before the rotation."""
    preparing: list[Kubeconfig]
    """Asked for until phase Prepared; the last one in that phase."""


@pytest.fixture(scope="module")
def rotating(cluster: Shoot) -> Rotating:
    old = issued(cluster)
    assert old.status() == 200
    cluster.gardener("credentials", "rotate", cluster.reference, "ca")
    cluster.wait_for_rotation("certificateAuthorities", "Preparing", 60)
    return Rotating(old, asked_until(cluster, "Prepared"))


@pytest.mark.timeout(CREATION + _HALF_SECONDS, func_only=True)
def test_a_kubeconfig_is_accepted_while_its_authority_is_rotated_and_holds_the_completion(
    cluster: Shoot, rotating: Rotating
) -> None:
    """Those that the old authority signed, also after the start of the rotation, are recorded and named."""
    old, preparing = rotating.old, rotating.preparing
    assert preparing[-1].certificate.issuer != old.certificate.issuer
    assert {each.status() for each in (old, *preparing)} == {200}

    records = recorded(cluster)
    assert {each.shown for each in (old, *preparing)} <= records.keys()
    assert {records[each] for each in named_by_completion(cluster)} == {records[old.shown]}


@pytest.mark.slow
@pytest.mark.timeout(CREATION + 2 * _HALF_SECONDS, func_only=True)
def test_a_kubeconfig_that_is_asked_for_during_the_completion_outlives_it(cluster: Shoot, rotating: Rotating) -> None:
    records = recorded(cluster)
    outdated = [each for each, issuer in records.items() if issuer == records[rotating.old.shown]]
    cluster.gardener("credentials", "discard", cluster.reference, *outdated, "--reason", "no client has them")
    cluster.gardener("credentials", "complete", cluster.reference, "ca")
    cluster.wait_for_rotation("certificateAuthorities", "Completing", 60)

    completing = asked_until(cluster, "Completed")

    prepared = rotating.preparing[-1]
    assert {each.certificate.issuer for each in completing} == {prepared.certificate.issuer}
    assert {each.status() for each in (prepared, *completing)} == {200}
    with pytest.raises(ssl.SSLCertVerificationError):
        rotating.old.status()
    assert rotating.old.with_authorities_of(prepared).status() == _UNAUTHORIZED

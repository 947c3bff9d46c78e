"""On a landscape: the names of a Shoot stay its own, and admission answers the garden's API server alone."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from activities.components import gateway
from activities.components.gateway import ApiServerExposure, Upstream
from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.https import get
from tests.landscape.shoots import NAMESPACE, Shoot, eventually, refused
from workers.admission import seed_authorizer
from workers.admission.webhooks import MUTATE_PATH, VALIDATE_PATH

pytestmark = pytest.mark.landscape

THIEF = "aaa-thief"
"""Sorts before the namespace of each control plane."""
PORTS = {MUTATE_PATH: 9443, VALIDATE_PATH: 9443, seed_authorizer.PATH: 9444}


def names_of(shoot: Shoot) -> tuple[str, str]:
    """Host names of its API server: the internal one, and that of its domain."""
    seed = json.loads(shoot.landscape.kubectl("garden", "get", "seed", shoot.seed, "-o", "json"))
    internal = seed["spec"]["dns"]["internal"]["domain"]
    return f"api.{shoot.name}.local.{internal}", f"api.{shoot.get()['spec']['dns']['domain']}"


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
def test_a_second_shoot_whose_domain_is_the_internal_name_of_another_one_is_refused(
    landscape: Landscape, shoot: Shoot
) -> None:
    thief = Shoot(landscape, "thief", shoot.directory)
    domain = names_of(shoot)[0].removeprefix("api.")
    manifest = json.dumps(thief.manifest(dns={"domain": domain}))

    argv = landscape.argv("garden", "-n", NAMESPACE, "create", "--dry-run=server", "-f", "-")

    assert f"{domain} is the same as, above or below" in refused(*argv, stdin=manifest)


@contextmanager
def claiming(landscape: Landscape, seed: str, *hosts: str) -> Iterator[None]:
    """An exposure in the seed that claims host names at its gateway, without a server."""
    what = ApiServerExposure(hosts=hosts, api_server=Upstream(service="kube-apiserver", port=443))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-apiserver", "namespace": THIEF, "labels": gateway.LABELS},
        "spec": {"ports": [{"port": 443}]},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THIEF}}
    items = [namespace, service, gateway.exposure(gateway.EXPOSURE, THIEF, what)]
    landscape.kubectl(seed, "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    try:
        yield
    finally:
        landscape.kubectl(seed, "delete", "namespace", THIEF)


@pytest.mark.attack(actor="T1", asset="A6", finding=7)
def test_the_gateway_routes_a_name_to_its_control_plane_though_another_one_claims_it(
    landscape: Landscape, shoot: Shoot
) -> None:
    hosts = names_of(shoot)
    authority = json.loads(shoot.garden("get", "configmap", f"{shoot.name}.ca-cluster", "-o", "json"))["data"]["ca.crt"]

    def log() -> str:
        return landscape.kubectl(shoot.seed, "-n", gateway.NAMESPACE, "logs", f"deploy/{gateway.NAME}", "-c", "gateway")

    with claiming(landscape, shoot.seed, *hosts, "thief.example.org"):
        for host in hosts:
            said = f"not serving {host} to ConfigMap {THIEF}/"
            eventually(lambda: said in log(), f"the gateway says: {said}", 30)
        for host in hosts:
            status, _ = get(shoot, f"https://{host}/version", authority)
            assert status in (200, 401), "TLS has shown that it is the API server of the Shoot"


def ask(landscape: Landscape, path: str, body: dict[str, Any], *, as_api_server: bool) -> int:
    """Status of an answer of admission. Raises OSError or HTTPException if there is none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if as_api_server:
        files = landscape.directory / "garden/admission"
        context.load_cert_chain(files / "client.crt", files / "client.key")
    host = landscape.facts["dns"]["server"]
    connection = http.client.HTTPSConnection(host, PORTS[path], timeout=10, context=context)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def review_of(path: str) -> dict[str, Any]:
    if path == seed_authorizer.PATH:
        spec = {"user": "gardener.cloud:system:seed:seed-1", "groups": ["gardener.cloud:system:seeds"]}
        attributes = {"verb": "get", "resource": "secrets", "namespace": "garden", "name": "backup-local"}
        return {"apiVersion": "authorization.k8s.io/v1", "spec": spec | {"resourceAttributes": attributes}}
    namespace = {"metadata": {"name": "x", "labels": {}}}
    request = {
        "uid": "1",
        "operation": "DELETE",
        "kind": {"group": "", "version": "v1", "kind": "Namespace"},
        "resource": {"group": "", "version": "v1", "resource": "namespaces"},
        "name": "x",
        "userInfo": {"username": "me"},
        "oldObject": namespace,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.mark.attack(actor="T6", asset="A1", finding=16)
@pytest.mark.parametrize("path", PORTS)
def test_admission_answers_no_caller_without_the_certificate_of_the_api_server(landscape: Landscape, path: str) -> None:
    if path != seed_authorizer.PATH:  # the port of conversions, for which the API server shows no certificate
        assert ask(landscape, path, review_of(path), as_api_server=False) == 403
        return
    with pytest.raises((OSError, http.client.HTTPException)) as refusal:
        ask(landscape, path, review_of(path), as_api_server=False)
    assert not isinstance(refusal.value, (ConnectionRefusedError, TimeoutError)), "a process listens there"


@pytest.mark.parametrize("path", [VALIDATE_PATH, seed_authorizer.PATH])
def test_the_certificate_that_the_api_server_has_is_one_that_admission_answers(landscape: Landscape, path: str) -> None:
    assert ask(landscape, path, review_of(path), as_api_server=True) == 200


def test_writes_of_the_garden_are_reviewed(landscape: Landscape, shoot: Shoot) -> None:
    """By the API server with its certificate: a webhook that is not reached would fail this."""
    run(BIN / "kubectl", f"--kubeconfig={landscape.directory}/kubeconfigs/garden.yaml", "-n", NAMESPACE,
        "annotate", "shoot", shoot.name, "example.org/reviewed=yes", "--dry-run=server")  # fmt: skip

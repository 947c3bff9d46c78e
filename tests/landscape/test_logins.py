"""Users log in to a cluster with tokens of two identity providers: one in a ConfigMap of the project, and one in the
cluster itself. The providers change their keys, and the owner changes the ConfigMap.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from landscape import extensions
from tests import oidc
from tests.landscape import https
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, NAMESPACE, Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(240, func_only=True)]

EXAMPLE = Path(__file__).parents[2] / "examples/shoot_oidc_service"
SEED, TYPE, AUDIENCE = "seed-1", "shoot-oidc-service", "cluster"
RELOAD_SECONDS = 200
"""A kubelet passes a changed ConfigMap on within two minutes; the API server reads it within another one."""


@dataclass
class Cluster:
    shoot: Shoot
    project: oidc.Issuer
    """In the ConfigMap of the project."""
    own: oidc.Issuer
    """In an OpenIDConnect of the cluster."""
    later: oidc.Issuer
    """Nowhere yet."""

    def configure(self, *issuers: oidc.Issuer) -> None:
        jwt = [
            {
                "issuer": {"url": each.url, "audiences": [AUDIENCE], "certificateAuthority": each.ca_file.read_text()},
                "claimMappings": {"username": {"claim": "sub", "prefix": "project:"}},
            }
            for each in issuers
        ]
        content = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": jwt}
        metadata = {"name": "issuers", "namespace": NAMESPACE}
        data = {"config.yaml": yaml.safe_dump(content)}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        self.shoot.garden("apply", "-f", "-", stdin=json.dumps(config_map))

    def user(self, issuer: oidc.Issuer, name: str) -> str | None:
        """Name of the user that the API server sees in a new token; None if it refuses the token."""
        config = yaml.safe_load(self.shoot.kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        headers = {"Authorization": f"Bearer {issuer.token(name, aud=AUDIENCE)}", "Content-Type": "application/json"}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        # The kubeconfig has the address in place of a name that only the landscape's DNS server knows.
        host = cluster.get("tls-server-name") or urlsplit(cluster["server"]).hostname
        url = f"https://{host}/apis/authentication.k8s.io/v1/selfsubjectreviews"
        status, body = https.get(self.shoot, url, authority, headers, json.dumps(review).encode())
        assert status in (201, 401), body
        return str(json.loads(body)["status"]["userInfo"]["username"]) if status == 201 else None

    def api_servers(self) -> dict[str, int]:
        """Restarts of the API server's pods, by name."""
        found = json.loads(self.shoot.control_plane("get", "pods", "-l", "app=kubernetes,role=apiserver", "-o", "json"))
        return {
            each["metadata"]["name"]: sum(status["restartCount"] for status in each["status"]["containerStatuses"])
            for each in found["items"]
        }


@pytest.fixture(scope="module")
def extension(landscape: Landscape) -> Iterator[None]:
    """The extension as pods of its chart, which the gardenlets install."""
    registration = yaml.safe_load((EXAMPLE / "controllerregistration.yaml").read_text())
    registration["spec"]["deployment"] = {"deploymentRefs": [{"name": TYPE}], "policy": "Always"}
    deployment = {
        "apiVersion": "core.gardener.cloud/v1",
        "kind": "ControllerDeployment",
        "metadata": {"name": TYPE},
        "helm": {
            "rawChart": base64.b64encode(extensions.packaged(extensions.CHARTS / TYPE)).decode(),
            "values": {"replicas": 1},
        },
    }
    for each in (deployment, registration):
        landscape.kubectl("garden", "apply", "--server-side", "-f", "-", stdin=json.dumps(each))
    eventually(lambda: _is_healthy(landscape), f"a healthy ControllerInstallation of {TYPE} for {SEED}", 180)
    yield
    landscape.kubectl("garden", "delete", "controllerregistration", TYPE, "--timeout=90s")
    landscape.kubectl("garden", "delete", "controllerdeployment", TYPE, "--timeout=30s")


def _is_healthy(landscape: Landscape) -> bool:
    fields = f"--field-selector=spec.registrationRef.name={TYPE},spec.seedRef.name={SEED}"
    found = json.loads(landscape.kubectl("garden", "get", "controllerinstallations", fields, "-o", "json"))["items"]
    conditions = {
        (condition["type"], condition["status"])
        for each in found
        for condition in (each.get("status") or {}).get("conditions", [])
    }
    return conditions >= {("Installed", "True"), ("Healthy", "True"), ("Progressing", "False")}


@pytest.fixture(scope="module")
def cluster(landscape: Landscape, extension: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without machines; its three issuers are beside the seed, outside of its networks."""
    host = str(ip_address(landscape.address(SEED)) - 1)
    with ExitStack() as stack:
        issuers = [stack.enter_context(oidc.issuer(tmp_path_factory.mktemp("issuer"), host)) for _ in range(3)]
        shoot = Shoot(landscape, "logins", tmp_path_factory.mktemp("kubeconfigs"))
        made = Cluster(shoot, *issuers)
        made.configure(made.project)
        server = {"structuredAuthentication": {"configMapName": "issuers"}}
        manifest = shoot.manifest(seedName=SEED, extensions=[{"type": TYPE}])
        manifest["spec"]["kubernetes"]["kubeAPIServer"] = server
        manifest["spec"]["provider"].pop("workers")
        for part in ("networking", "credentialsBindingName"):
            manifest["spec"].pop(part)
        with shoot.created(manifest):
            yield made
    landscape.kubectl("garden", "-n", NAMESPACE, "delete", "configmap", "issuers", "--ignore-not-found")


@pytest.mark.timeout(CREATION + 240, func_only=True)
def test_users_log_in_by_both_ways(cluster: Cluster) -> None:
    assert cluster.user(cluster.project, "ann") == "project:ann"
    assert cluster.user(cluster.later, "ann") is None
    connect = {
        "apiVersion": "authentication.gardener.cloud/v1alpha1",
        "kind": "OpenIDConnect",
        "metadata": {"name": "company"},
        "spec": {
            "issuerURL": cluster.own.url,
            "clientID": AUDIENCE,
            "caBundle": base64.b64encode(cluster.own.ca_file.read_bytes()).decode(),
        },
    }
    cluster.shoot.kubectl("apply", "-f", "-", stdin=json.dumps(connect))
    eventually(lambda: cluster.user(cluster.own, "bob") == "company/bob", "the login by OpenIDConnect", 120)


def test_new_keys_of_the_providers_need_no_change_of_the_cluster(cluster: Cluster) -> None:
    before = cluster.api_servers()
    cluster.project.rotate()
    cluster.own.rotate()

    assert cluster.user(cluster.project, "cyd") == "project:cyd"
    eventually(lambda: cluster.user(cluster.own, "cyd") == "company/cyd", "the login with a new key", 60)
    assert cluster.api_servers() == before


@pytest.mark.timeout(RELOAD_SECONDS + 120, func_only=True)
def test_another_issuer_in_the_configmap_works_without_a_restart(cluster: Cluster) -> None:
    before = cluster.api_servers()
    cluster.configure(cluster.later)

    eventually(lambda: cluster.user(cluster.later, "dan") == "project:dan", "the new issuer", RELOAD_SECONDS)
    assert cluster.user(cluster.project, "eve") is None
    assert cluster.api_servers() == before


def test_a_faulty_configmap_is_refused_while_the_shoot_names_it(cluster: Cluster) -> None:
    patch = json.dumps({"data": {"config.yaml": "apiVersion: v1"}})
    said = refused(
        *cluster.shoot.landscape.argv(
            "garden", "-n", NAMESPACE, "patch", "configmap", "issuers", "--type=merge", "-p", patch
        )
    )
    assert "Shoot garden-local/logins names it in spec.kubernetes.kubeAPIServer.structuredAuthentication" in said

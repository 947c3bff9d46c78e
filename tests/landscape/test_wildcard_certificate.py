"""A Shoot has a name of its seed with a certificate of the operator, beside its other names, and loses it again."""

import json
import ssl
from urllib.parse import urlsplit

import pytest
import yaml

from activities.secrets.crypto import KeyPair
from api.names import project_and_shoot
from tests import certificates
from tests.landscape import https
from tests.landscape.conftest import Landscape
from tests.landscape.probe import Probe
from tests.landscape.shoots import Shoot, decoded, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_SECRET = "control-planes"


def test_clients_trust_a_shoot_by_the_certificate_of_its_seed_and_no_request_fails(
    landscape: Landscape, shoot: Shoot
) -> None:
    domain = landscape.kubectl("garden", "get", "seed", shoot.seed, "-o", "jsonpath={.spec.ingress.domain}").strip()
    project, name = project_and_shoot(shoot.technical_id)
    host, authority = f"api-{project}--{name}.{domain}", certificates.authority()
    trusted = authority.certificate.decode()
    before = [each["name"] for each in shoot.get()["status"]["advertisedAddresses"]]
    assert "wildcard-tls-seed-bound" not in before
    with pytest.raises((ssl.SSLError, ConnectionError)):
        https.get(shoot, f"https://{host}/version", trusted)

    probe = Probe(shoot, "wildcard", timeout=10, reconnects=True)
    try:
        put(landscape, certificates.pair(f"*.{domain}", ca=authority))
        eventually(
            lambda: copies(landscape) == [f"seed-{shoot.seed}"], "its seed has the certificate, no other one", 30
        )
        with probe.running():
            shoot.reconcile(240)
            eventually(lambda: served(shoot, host, trusted), "the gateway serves the name", 30)
            for own in shoot.host_names:
                assert served(shoot, own, published(shoot)), "the other names keep the cluster's own certificate"
            config = yaml.safe_load(shoot.gardener("kubeconfig", "shoot", shoot.reference))
            clusters = {name_of(each["cluster"]): each["cluster"] for each in config["clusters"]}
            assert clusters.keys() >= {host, *shoot.host_names}
            without = {name for name, each in clusters.items() if "certificate-authority-data" not in each}
            assert without == {host}, "a public authority has signed its certificate"

            pods = servers(shoot)
            # From now on another authority signs: nothing but the new certificate is trusted by it.
            other = certificates.authority()
            newer = certificates.pair(f"*.{domain}", ca=other, days=9)
            put(landscape, newer)
            eventually(lambda: copied(landscape, shoot.seed) == newer.certificate, "the copy follows", 30)
            shoot.reconcile(240)
            eventually(lambda: served(shoot, host, other.certificate.decode()), "the new one is served", 150)
            assert servers(shoot) == pods, "the API server reads the new certificate, and is not restarted"
    finally:
        landscape.kubectl("garden", "-n", "garden", "delete", "secret", _SECRET, "--ignore-not-found")
        eventually(lambda: copies(landscape) == [], "no seed has it any more", 30)
        shoot.reconcile(240)
    print(f"{len(probe.answered)} writes and reads, {probe.failed} failed, the slowest took {probe.longest:.2f} s")
    assert probe.failed == 0, probe.faults
    assert len(probe.answered) > 50
    assert [each["name"] for each in shoot.get()["status"]["advertisedAddresses"]] == before
    eventually(lambda: not served(shoot, host, other.certificate.decode()), "the name leads nowhere", 30)
    assert not shoot.control_plane("get", "secret", "kube-apiserver-wildcard", "--ignore-not-found", "-o", "name")


def name_of(cluster: dict[str, str]) -> str | None:
    """The host name of a server in a kubeconfig. Its address is in the URL if the system does not resolve the name."""
    return cluster.get("tls-server-name") or urlsplit(cluster["server"]).hostname


def put(landscape: Landscape, pair: KeyPair) -> None:
    landscape.kubectl("garden", "apply", "-f", "-", stdin=json.dumps(certificates.secret(pair, _SECRET)))


def copies(landscape: Landscape) -> list[str]:
    """Namespaces with a copy of the certificate."""
    found = landscape.kubectl(
        "garden", "get", "secrets", "-A", "-l", "gardener.cloud/role=controlplane-cert", "-o", "json"
    )
    return sorted(
        each["metadata"]["namespace"]
        for each in json.loads(found)["items"]
        if each["metadata"]["namespace"] != "garden"
    )


def copied(landscape: Landscape, seed: str) -> bytes:
    """The certificate that the gardenlet of a seed can read."""
    found = landscape.kubectl("garden", "-n", f"seed-{seed}", "get", "secret", _SECRET, "-o", "json")
    return decoded(json.loads(found))["tls.crt"]


def published(shoot: Shoot) -> str:
    authority: str = json.loads(shoot.garden("get", "configmap", f"{shoot.name}.ca-cluster", "-o", "json"))["data"][
        "ca.crt"
    ]
    return authority


def served(shoot: Shoot, host: str, authority: str) -> bool:
    """Whether a client that trusts this authority alone gets an answer of an API server."""
    try:
        status, _ = https.get(shoot, f"https://{host}/version", authority)
    except OSError:
        return False
    return status in (200, 401, 403)


def servers(shoot: Shoot) -> set[str]:
    found = json.loads(shoot.control_plane("get", "pods", "-l", "app=kubernetes,role=apiserver", "-o", "json"))["items"]
    return {each["metadata"]["uid"] for each in found if "deletionTimestamp" not in each["metadata"]}

"""Rights of real credentials of a gardenlet and of a node agent, at real API servers and signers."""

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.shoots import Shoot, eventually
from tests.security.signing import cn, manifest, o, pem

pytestmark = pytest.mark.landscape

SEEDS = "gardener.cloud:system:seeds"
SEED_USER = "gardener.cloud:system:seed:"
AGENTS = "gardener.cloud:node-agents"
AGENT_USER = "gardener.cloud:node-agent:machine:"
ADMINS = "gardener.cloud:system:admins"
SIGNED_SECONDS = 60


@dataclass(frozen=True)
class Intruder:
    """A client with stolen credentials."""

    kubeconfig: Path
    name: str

    def ask(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        argv = [str(BIN / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def request(self, look: Callable[..., str], request: bytes) -> dict[str, Any]:
        """Ask for a certificate, and return the CertificateSigningRequest once an approver has decided."""
        name = f"attack-{uuid4().hex[:8]}"
        done = self.ask("create", "-f", "-", stdin=json.dumps(manifest(name, request)))
        assert done.returncode == 0, done.stderr

        def found() -> dict[str, Any]:
            csr: dict[str, Any] = json.loads(look("get", "csr", name, "-o", "json"))
            return csr

        def is_decided() -> bool:
            kinds = conditions(found())
            return "Denied" in kinds or ("Approved" in kinds and "certificate" in found()["status"])

        eventually(is_decided, f"a decision about {name}", SIGNED_SECONDS)
        return found()


def conditions(csr: dict[str, Any]) -> list[str]:
    return [each["type"] for each in (csr.get("status") or {}).get("conditions") or ()]


def was_denied(csr: dict[str, Any]) -> bool:
    return conditions(csr) == ["Denied"] and "certificate" not in csr["status"]


def names_of(csr: dict[str, Any]) -> list[str]:
    """Common names in the issued certificate."""
    certificate = x509.load_pem_x509_certificate(base64.b64decode(csr["status"]["certificate"]))
    return [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


@pytest.fixture
def gardenlet(landscape: Landscape, tmp_path: Path) -> Intruder:
    """The gardenlet of seed-1, by the Secret that anyone with the seed can read."""
    listed = landscape.kubectl("seed-1", "-n", "garden", "get", "secret", "gardenlet-kubeconfig", "-o", "json")
    kubeconfig = tmp_path / "gardenlet.kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_bytes(base64.b64decode(json.loads(listed)["data"]["kubeconfig"]))
    return Intruder(kubeconfig, "seed-1")


@pytest.fixture(scope="module")
def node_agent(landscape: Landscape, shoot: Shoot, tmp_path_factory: pytest.TempPathFactory) -> Intruder:
    """The node agent of the Shoot's first machine, by the files that root reads there."""
    machine = sorted(name for names in shoot.nodes().values() for name in names)[0]
    directory = "/var/lib/gardener-node-agent/credentials"

    def read(file: str) -> str:
        place = ("-n", f"infra-{shoot.technical_id}", "exec", machine)
        content = landscape.kubectl("cloud", *place, "--", "cat", f"{directory}/{file}")
        return base64.b64encode(content.encode()).decode()

    user = {"client-certificate-data": read("client.crt"), "client-key-data": read("client.key")}
    config = yaml.safe_load(shoot.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": user} for each in config["users"]]
    kubeconfig = tmp_path_factory.mktemp("node-agent") / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(json.dumps(config))
    return Intruder(kubeconfig, machine)


@pytest.fixture
def other_machine(shoot: Shoot, node_agent: Intruder) -> str:
    [name] = {name for names in shoot.nodes().values() for name in names} - {node_agent.name}
    return name


@pytest.mark.attack(actor="T3", asset="A1", finding=1)
@pytest.mark.parametrize("seeds", [("seed-1", "seed-2"), ("seed-2", "seed-1")], ids=["own-first", "own-last"])
def test_a_gardenlet_asks_for_a_certificate_with_the_name_of_another_seed_and_gets_none(
    landscape: Landscape, gardenlet: Intruder, seeds: tuple[str, str]
) -> None:
    """The certificate would open the credentials and ShootStates of the other seed."""
    request = pem(o(SEEDS), *(cn(f"{SEED_USER}{each}") for each in seeds))
    assert was_denied(gardenlet.request(lambda *argv: landscape.kubectl("garden", *argv), request))


def test_a_gardenlet_gets_a_certificate_for_its_own_seed(landscape: Landscape, gardenlet: Intruder) -> None:
    """The strict parser reads what gardenlets ask for, and the garden signs it."""
    own = f"{SEED_USER}seed-1"
    done = gardenlet.request(lambda *argv: landscape.kubectl("garden", *argv), pem(o(SEEDS), cn(own)))
    assert names_of(done) == [own]


@pytest.mark.attack(actor="T3", asset="A1", finding=13)
def test_a_bootstrap_token_gets_the_certificate_of_its_own_new_seed_and_of_no_other(
    landscape: Landscape, tmp_path: Path
) -> None:
    """Neither of another seed, nor of its own while that has a gardenlet with a certificate."""

    def look(*argv: str) -> str:
        return landscape.kubectl("garden", *argv)

    def token_of(seed: str, *options: str) -> Intruder:
        kubeconfig = tmp_path / f"{seed}-{len(options)}.kubeconfig"
        kubeconfig.touch(mode=0o600)
        garden = f"--garden-kubeconfig={landscape.directory}/kubeconfigs/garden.yaml"
        command: tuple[str | Path, ...] = (BIN / "gardener", "seed", "bootstrap-kubeconfig", seed, garden, *options)
        kubeconfig.write_text(run(*command))
        return Intruder(kubeconfig, seed)

    def ask(token: Intruder, seed: str) -> dict[str, Any]:
        return token.request(look, pem(o(SEEDS), cn(f"{SEED_USER}{seed}")))

    new, living = token_of("seed-new"), token_of("seed-1")
    assert was_denied(ask(new, "seed-2"))
    assert was_denied(ask(new, "seed-1"))
    assert was_denied(ask(living, "seed-1"))
    assert names_of(ask(new, "seed-new")) == [f"{SEED_USER}seed-new"]
    assert names_of(ask(token_of("seed-1", "--replace"), "seed-1")) == [f"{SEED_USER}seed-1"]
    assert was_denied(ask(living, "seed-1")), "the annotation names the newer token"
    look("annotate", "seed", "seed-1", "seed.gardener.cloud/bootstrap-token-id-")


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
def test_a_node_asks_for_an_administrators_organization_and_gets_no_certificate(
    shoot: Shoot, node_agent: Intruder
) -> None:
    """This was the whole Shoot for root on one machine, for 30 days."""
    own = f"{AGENT_USER}{node_agent.name}"
    assert was_denied(node_agent.request(shoot.kubectl, pem(o(ADMINS), cn(own))))
    assert was_denied(node_agent.request(shoot.kubectl, pem(o(AGENTS), o(ADMINS), cn(own))))


@pytest.mark.attack(actor="T2", asset="A3", finding=3)
def test_a_node_asks_for_the_certificate_of_another_node_and_gets_none(
    shoot: Shoot, node_agent: Intruder, other_machine: str
) -> None:
    """Neither in one common name nor in the second of two."""
    own, other = f"{AGENT_USER}{node_agent.name}", f"{AGENT_USER}{other_machine}"
    assert was_denied(node_agent.request(shoot.kubectl, pem(o(AGENTS), cn(other))))
    assert was_denied(node_agent.request(shoot.kubectl, pem(o(AGENTS), cn(own), cn(other))))


def test_a_node_agent_renews_its_certificate(shoot: Shoot, node_agent: Intruder) -> None:
    """The strict parser reads what node agents ask for, and the Shoot signs it."""
    own = f"{AGENT_USER}{node_agent.name}"
    assert names_of(node_agent.request(shoot.kubectl, pem(o(AGENTS), cn(own)))) == [own]


@pytest.fixture
def without_approver(shoot: Shoot) -> Iterator[None]:
    """The Shoot's resource manager is away, as if an approver of an earlier version, or a person, had answered."""

    def scale(replicas: int) -> None:
        shoot.control_plane("scale", "deployment", "gardener-resource-manager", f"--replicas={replicas}")
        shoot.control_plane("rollout", "status", "deployment", "gardener-resource-manager", "--timeout=60s")

    scale(0)
    try:
        eventually(lambda: not shoot.control_plane("get", "pods", "-l", "app=gardener-resource-manager", "-o", "name"),
                   "no approver is left", 60)  # fmt: skip
        yield
    finally:
        scale(1)


@pytest.mark.slow
def test_a_wrongly_issued_certificate_is_reported_in_the_status_of_the_shoot(
    shoot: Shoot, node_agent: Intruder, without_approver: None
) -> None:
    """Its owner has to rotate the certificate authorities: nothing else ends the certificate."""
    name, own = f"attack-{uuid4().hex[:8]}", f"{AGENT_USER}{node_agent.name}"
    # Without the resource manager a node agent may not ask itself.
    shoot.kubectl("create", "-f", "-", stdin=json.dumps(manifest(name, pem(o(ADMINS), cn(own)))))
    shoot.kubectl("certificate", "approve", name)

    def told() -> list[str]:
        constraints = shoot.get()["status"].get("constraints") or ()
        return [each["message"] for each in constraints if each["type"] == "NodeAgentCertificatesAcceptable"]

    try:
        [message] = eventually(told, "the Shoot's status tells of it", 120)
        assert name in message
        assert "rotate-ca-start" in message
    finally:
        shoot.kubectl("delete", "csr", name)

    def forgotten() -> bool:
        nothing = '{"status":{"constraints":[]}}'
        shoot.garden("patch", "shoot", shoot.name, "--subresource=status", "--type=merge", "-p", nothing)
        return not told()

    eventually(forgotten, "the shared Shoot is as before", 30)


def lease(name: str, namespace: str = "kube-system") -> str:
    metadata = {"name": name, "namespace": namespace}
    spec = {"holderIdentity": "attacker", "leaseDurationSeconds": 3600}
    return json.dumps({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize(
    "change",
    [
        "annotate node OTHER worker.gardener.cloud/restart-systemd-services=reboot.target",
        "annotate node OTHER checksum/cloud-config-data=forged --overwrite",
        "label node OTHER worker.gardener.cloud/kubernetes-version=1.0.0 --overwrite",
        "label node OTHER node.machine.sapcloud.io/update-result=successful",
        "label node OWN node.machine.sapcloud.io/selected-for-update=true",
        "taint node OTHER attacked=true:NoExecute",
        "label node OWN attacked=true",
        "label node OWN worker.gardener.cloud/pool=another --overwrite",
        "annotate node OWN attacked=true",
        "annotate node OWN node.machine.sapcloud.io/last-applied-anno-labels-taints-",
        "taint node OWN attacked=true:NoSchedule",
        'patch node OWN -p {"metadata":{"finalizers":["attack.er/stay"]}}',
        'patch node OWN --subresource=status -p {"status":{"addresses":[]}}',
        "delete node OTHER",
    ],
)
def test_a_node_agent_changes_what_is_not_its_own_of_nodes_and_is_refused(
    node_agent: Intruder, other_machine: str, change: str
) -> None:
    """Another Node's reboot, or a label that draws pods with Secrets to the own Node."""
    named = change.replace("OTHER", other_machine).replace("OWN", node_agent.name)
    done = node_agent.ask(*named.split(" "), "--dry-run=server")
    assert done.returncode == 1, done.stdout
    assert "forbidden" in done.stderr.lower()


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
@pytest.mark.parametrize("way", ["replace", "create", "apply --server-side --force-conflicts"])
@pytest.mark.parametrize("name", ["kube-controller-manager", "kube-scheduler", "gardener-node-agent-OTHER"])
def test_a_node_agent_takes_a_lease_that_is_not_its_own_and_is_refused(
    node_agent: Intruder, other_machine: str, name: str, way: str
) -> None:
    """A held Lease of the controller manager would stop all controllers of the Shoot."""
    stdin = lease(name.replace("OTHER", other_machine))
    done = node_agent.ask(*way.split(), "-f", "-", "--dry-run=server", stdin=stdin)
    assert done.returncode == 1, done.stdout
    assert "a node agent writes to its own Lease" in done.stderr or "forbidden" in done.stderr.lower()


@pytest.fixture
def other_pool(shoot: Shoot) -> Iterator[str]:
    """The Secret of another pool."""
    name = "gardener-node-agent-another-0123456789abcdef"
    place = ("-n", "kube-system")
    shoot.kubectl(*place, "create", "secret", "generic", name, "--from-literal=osc.yaml=registry")
    yield name
    shoot.kubectl(*place, "delete", f"secret/{name}")


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
def test_a_node_agent_reads_the_configuration_of_another_pool_and_is_refused(
    shoot: Shoot, node_agent: Intruder, other_pool: str
) -> None:
    """Its own pool's configuration it reads."""
    node = json.loads(shoot.kubectl("get", "node", node_agent.name, "-o", "json"))
    own = node["metadata"]["labels"]["worker.gardener.cloud/gardener-node-agent-secret-name"]
    assert node_agent.ask("-n", "kube-system", "get", "secret", own, "-o", "name").returncode == 0
    done = node_agent.ask("-n", "kube-system", "get", "secret", other_pool, "-o", "name")
    assert done.returncode == 1, done.stdout
    assert "forbidden" in done.stderr.lower()


@pytest.mark.attack(actor="T2", asset="A3", finding=10)
def test_a_node_agent_reads_the_node_of_another_machine_and_is_refused(
    node_agent: Intruder, other_machine: str
) -> None:
    """Its addresses, its pods' images and its annotations are of use to an attacker alone."""
    assert node_agent.ask("get", "node", node_agent.name).returncode == 0
    for question in (["get", "node", other_machine], ["get", "nodes"]):
        done = node_agent.ask(*question)
        assert done.returncode == 1, done.stdout
        assert "forbidden" in done.stderr.lower()


def test_a_node_agent_still_does_its_own_work(shoot: Shoot, node_agent: Intruder) -> None:
    """Authorizer and policy let through all that the agent writes: its Lease, and three entries of its Node."""
    place = ("-n", "kube-system", "get", "lease", f"gardener-node-agent-{node_agent.name}", "-o", "json")

    def renewed() -> datetime:
        return datetime.fromisoformat(json.loads(shoot.kubectl(*place))["spec"]["renewTime"])

    before = renewed()
    eventually(lambda: renewed() > before, "the agent's next sign of life", 30)
    node = json.loads(shoot.kubectl("get", "node", node_agent.name, "-o", "json"))
    annotations, version = node["metadata"]["annotations"], node["status"]["nodeInfo"]["kubeletVersion"]
    assert annotations["checksum/cloud-config-data"]
    assert annotations["credentials.gardener.cloud/certificate-issuers"]
    assert node["metadata"]["labels"]["worker.gardener.cloud/kubernetes-version"] == version.removeprefix("v")
    shoot.kubectl("annotate", "node", node_agent.name, "worker.gardener.cloud/restart-systemd-services=systemd-sysctl")
    asked = "worker.gardener.cloud/restart-systemd-services"

    def is_asked() -> bool:
        return (
            asked in json.loads(shoot.kubectl("get", "node", node_agent.name, "-o", "json"))["metadata"]["annotations"]
        )

    eventually(lambda: not is_asked(), "the agent has taken the order", 30)

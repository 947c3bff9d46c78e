"""``gardener shoot init`` on a machine of the cloud: a control plane, reached by an exposure, despite SIGKILLs.

The machine forgets its files, and the cluster lives on from its backup. At the end, machines of another Shoot are found
by a DNS record.
"""

import base64
import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import pytest
import yaml

from activities.provider_local.computers import user_data_secret
from api import images
from api.constants import WORKER_POOL
from api.decisions.conditions import find_condition
from api.local import MACHINE_LABEL, OBJECT_STORE_LABEL, MachineProviderSpec, infrastructure_namespace
from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.probe import Probe
from tests.landscape.repeating import repeating
from tests.landscape.shoots import Shoot, eventually
from workers.provider_local.driver import machine_pod

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

NAME, MACHINE, _WORKERS = "alone", "alone-1", "workers"
_NAMED = "named"
CLOUD_NAMESPACE = infrastructure_namespace(f"shoot--local--{NAME}")
STATE = "/var/lib/gardener-self-hosted"
_DATA = "/var/lib/etcd-main/new.etcd"
_STATIC_PODS = ("etcd-main", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "self-hosted-controller")
_INIT_SECONDS = 240.0
_PERIOD = 0.1
_SILENCE_SECONDS = 20.0
"""A machine that ends at once: the load balancer notices it after two failed checks, and etcd elects another leader."""


def manifest(version: str) -> dict[str, Any]:
    backup = {
        "provider": "local",
        "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": "backup-local"},
    }
    exposure = {"extension": {"type": "local"}}
    pool = {"name": "control-plane", "maximum": 3, "controlPlane": {"backup": backup, "exposure": exposure}}
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "metadata": {"name": NAME, "namespace": "garden-local"},
        "spec": {
            "kubernetes": {"version": version},
            "dns": {"domain": f"{NAME}.example.org"},
            "provider": {"type": "local", "workers": [pool, {"name": _WORKERS}]},
        },
    }


@dataclass
class Machine:
    """A machine that no Shoot of the garden has made."""

    landscape: Landscape
    name: str = MACHINE
    recovery_key: str = ""

    def boot(self) -> dict[str, Any]:
        """Returns the CloudProfile."""
        profile: dict[str, Any] = json.loads(
            self.landscape.kubectl("garden", "get", "cloudprofile", "local", "-o", "json")
        )
        directory = profile["spec"]["providerConfig"]["imagesDirectory"]
        spec = MachineProviderSpec(
            namespace=CLOUD_NAMESPACE,
            image=images.MACHINE,
            images_directory=directory,
            cpu_millis=100,
            memory_bytes=512 * 1024 * 1024,
        )
        labels = {"pod-security.kubernetes.io/enforce": "privileged", OBJECT_STORE_LABEL: "true"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLOUD_NAMESPACE, "labels": labels}}
        user_data = user_data_secret(self.name, CLOUD_NAMESPACE, b"#!/bin/bash\ntrue\n", {MACHINE_LABEL: self.name})
        made = {"apiVersion": "v1", "kind": "List", "items": [namespace, user_data, machine_pod(self.name, spec, NAME)]}
        self._cloud("apply", "-f", "-", stdin=json.dumps(made))
        self._cloud("wait", "--for=condition=Ready", f"pod/{self.name}", "--timeout=60s")
        return profile

    def start(self) -> None:
        """Boot, and get what an init needs of its owner."""
        profile = self.boot()
        [version] = [each["version"] for each in profile["spec"]["kubernetes"]["versions"]]
        secret = json.loads(
            self.landscape.kubectl("garden", "-n", "garden-local", "get", "secret", "local", "-o", "json")
        )
        self.write("shoot.yaml", json.dumps(manifest(version)))
        self.write("profile.yaml", json.dumps(profile))
        self.sh("umask 077; base64 -d > /root/cloud.yaml", stdin=secret["data"]["kubeconfig"])
        self.write(
            "backup.yaml",
            self.landscape.kubectl("garden", "-n", "garden", "get", "secret", "backup-local", "-o", "yaml"),
        )
        if self.recovery_key:
            self.write("recovery.key", self.recovery_key)
        else:
            self.sh("gardener keys create /root/recovery.key")
            self.recovery_key = self.sh("cat /root/recovery.key")

    def forget(self) -> None:
        """Let the machine start again: it has none of its files, and its owner copies those of the first start."""
        self.end()
        self.start()

    def end(self) -> None:
        """End for good, and at once."""
        self._cloud("delete", "pod", self.name, "--grace-period=0", "--force", "--timeout=60s")

    def remove(self) -> None:
        self.landscape.kubectl("cloud", "delete", "namespace", CLOUD_NAMESPACE, "--timeout=120s", timeout=130)

    def write(self, name: str, text: str) -> None:
        self.sh(f"cat > /root/{name}", stdin=text)

    def sh(self, script: str, stdin: str = "") -> str:
        return run(*self._exec("sh", "-c", script), stdin=stdin)

    @property
    def address(self) -> str:
        return self._cloud("get", "pod", self.name, "-o", "jsonpath={.status.podIP}")

    def values(self, host: str) -> set[str]:
        """Addresses that the landscape's DNS server has for a name."""
        query = dns.message.make_query(host, "A")
        answer = dns.query.udp(query, self.landscape.facts["dns"]["server"], timeout=5).answer
        return {each.to_text() for each in answer[0]} if answer else set()

    def start_named(self) -> None:
        """Boot, and get what an init of a Shoot with a DNS record needs of its owner."""
        [version] = [each["version"] for each in self.boot()["spec"]["kubernetes"]["versions"]]
        secret = self.landscape.kubectl("garden", "-n", "garden", "get", "secret", "internal-domain", "-o", "json")
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "zone", "namespace": "garden-local"}}
        self.write("dns.json", json.dumps({**made, "data": json.loads(secret)["data"]}))
        provider = {"type": "local", "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": "zone"}}
        shoot = manifest(version)
        shoot["metadata"]["name"] = _NAMED
        shoot["spec"]["dns"] = {"domain": _domain(self.landscape), "providers": [provider]}
        shoot["spec"]["provider"]["workers"][0]["controlPlane"] = {"exposure": {"dns": {}}}
        self.write("shoot.yaml", json.dumps(shoot))

    def init(self, recovery_key: str = "recovery.key") -> "subprocess.Popen[str]":
        files = (
            *("--config=/root/shoot.yaml", "--credentials=/root/cloud.yaml", "--cloud-profile=/root/profile.yaml"),
            *("--backup-credentials=/root/backup.yaml", f"--recovery-key=/root/{recovery_key}"),
        )
        return self._gardener("init", *files)

    def init_named(self) -> "subprocess.Popen[str]":
        return self._gardener("init", "--config=/root/shoot.yaml", "--dns-credentials=/root/dns.json")

    def token(self, node: str, *options: str) -> str:
        """File by which a node joins."""
        return self.sh(f"gardener shoot token create --node {node} {' '.join(options)}")

    def join(self) -> "subprocess.Popen[str]":
        return self._gardener("join", "--config=/root/join.yaml")

    def _gardener(self, *arguments: str) -> "subprocess.Popen[str]":
        command = self._exec("gardener", "shoot", *arguments)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def kill(self) -> None:
        """End the running init or join by SIGKILL."""
        self.sh("kill -9 $(pgrep -f '[g]ardener shoot')")
        # Its Temporal ends with it: the next one needs the same file.
        eventually(lambda: not self.sh("pgrep -f '[t]emporal server' || true").strip(), "Temporal has ended", 10)

    def _exec(self, *command: str) -> list[str]:
        return self.landscape.argv("cloud", "-n", CLOUD_NAMESPACE, "exec", "-i", self.name, "--", *command)

    def _cloud(self, *arguments: str, stdin: str | None = None) -> str:
        return self.landscape.kubectl("cloud", "-n", CLOUD_NAMESPACE, *arguments, stdin=stdin)


@pytest.fixture(scope="module")
def machine(landscape: Landscape) -> Iterator[Machine]:
    made = Machine(landscape)
    made.start()
    yield made
    made.remove()


def _killed_at(machine: Machine, command: "subprocess.Popen[str]", path: str) -> None:
    """Kill a running init or join when it has made a file."""
    try:
        eventually(partial(_exists, machine, path), f"{path} is made", 120)
    except AssertionError:
        machine.kill()
        pytest.fail(f"{path} is not made: {command.communicate(timeout=20)[0]}")
    machine.kill()
    assert command.wait(20) != 0


def _exists(machine: Machine, path: str) -> bool:
    return machine.sh(f"test -e {path} && echo yes || true").strip() == "yes"


@pytest.fixture(scope="module")
def kubeconfig(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The administrator's kubeconfig, after an init that was killed three times: between steps, and in the middle."""
    for reached in (
        f"{STATE}/secrets/ca",
        "/etc/kubernetes/manifests/etcd-main.yaml",
        "/var/lib/etcd-main/new.etcd/member",
    ):
        command = machine.init()
        _killed_at(machine, command, reached)
    uid, key = machine.sh(f"cat {STATE}/uid"), machine.sh(f"sha256sum {STATE}/secrets/ca/ca.key")
    started = time.monotonic()
    said, _ = machine.init().communicate(timeout=_INIT_SECONDS)
    assert "the control plane runs" in said, said
    assert "Running: wait node" in said
    print(f"the last init took {time.monotonic() - started:.0f} s")
    assert machine.sh(f"cat {STATE}/uid") == uid
    assert machine.sh(f"sha256sum {STATE}/secrets/ca/ca.key") == key
    path = tmp_path_factory.mktemp("self-hosted") / "kubeconfig.yaml"
    path.touch(mode=0o600)
    path.write_text(machine.sh(f"cat {STATE}/kubeconfig.yaml"))
    return path


def _pods(kubeconfig: Path) -> set[str]:
    return set(_kubectl(kubeconfig, "-n", "kube-system", "get", "pods", "-o", "name").split())


def _kubectl(kubeconfig: Path, *arguments: str, stdin: str | None = None, timeout: float = 200) -> str:
    return run(str(BIN / "kubectl"), f"--kubeconfig={kubeconfig}", *arguments, stdin=stdin, timeout=timeout)


def test_the_api_server_is_reached_at_the_exposed_address(machine: Machine, kubeconfig: Path) -> None:
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    exposed = json.loads(_kubectl(kubeconfig, "-n", "kube-system", "get", "exp", NAME, "-o", "json"))

    assert cluster["server"] == f"https://{exposed['status']['ingress'][0]['ip']}"
    _kubectl(kubeconfig, "wait", "--for=condition=Ready", f"node/{MACHINE}", "--timeout=60s")
    _kubectl(kubeconfig, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
    wanted = {f"pod/{each}-{MACHINE}" for each in _STATIC_PODS}
    # A kubelet that was ready before the API server tells of its static pods when it looks at them the next time.
    eventually(lambda: wanted <= _pods(kubeconfig), "the API server knows the static pods", 120)


def test_the_state_is_readable_by_root_alone_and_temporal_has_no_secret(machine: Machine, kubeconfig: Path) -> None:
    modes = machine.sh(f"stat -c '%a %n' {STATE} {STATE}/kubeconfig.yaml {STATE}/temporal.db {STATE}/cloud.yaml")
    assert [line.split()[0] for line in modes.splitlines()] == ["700", "600", "600", "600"]
    assert machine.sh(f"grep -c 'PRIVATE KEY' {STATE}/temporal.db {STATE}/temporal.db-wal || true").split() == [
        f"{STATE}/temporal.db:0",
        f"{STATE}/temporal.db-wal:0",
    ]


@contextmanager
def _asking(kubeconfig: Path) -> Iterator[list[str]]:
    """A client that asks the API server ten times a second, and why requests failed."""
    faults: list[str] = []
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        answer = subprocess.run(
            [str(BIN / "kubectl"), f"--kubeconfig={kubeconfig}", "get", "--raw", "/readyz"],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            faults.append(answer.stderr)

    with repeating(ask, _PERIOD):
        yield faults
    print(f"{asked} requests, {len(faults)} failed")


def _uids(kubeconfig: Path) -> dict[str, str]:
    found = _kubectl(kubeconfig, "-n", "kube-system", "get", "pods", "-o", "json")
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in json.loads(found)["items"]}


def test_a_second_init_changes_nothing_and_clients_notice_nothing(machine: Machine, kubeconfig: Path) -> None:
    before = _uids(kubeconfig)
    with _asking(kubeconfig) as faults:
        said, _ = machine.init().communicate(timeout=_INIT_SECONDS)
    assert "the control plane runs" in said, said
    assert not faults
    assert _uids(kubeconfig) == before


_AGE = """
import shutil, sys
from datetime import UTC, datetime, timedelta
sys.path[:0] = ["/opt/gardener/code", "/opt/gardener/packages"]
from activities.self_hosted import control_plane
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import InitTask, SelfHostedManifest
from workers.cli.shoot_init import STATE, this_machine
manifest = SelfHostedManifest.model_validate_json((STATE / "shoot.json").read_text())
task = InitTask(directory=STATE, shoot=manifest, machine=this_machine())
earlier = FileSecrets(STATE / "secrets", lambda: datetime.now(UTC) - timedelta(days=28))
for each in control_plane.certificates(task, earlier.get("ca")["ca.crt"]):
    if each.validity < timedelta(days=300):
        shutil.rmtree(STATE / "secrets" / each.name)
        earlier.ensure(each)
        print(each.name)
"""
_RENEWAL = "gardener-shoot-renew"


def test_certificates_that_end_soon_are_renewed_and_clients_notice_nothing(machine: Machine, kubeconfig: Path) -> None:
    """The service that a timer starts is killed when it has made the first new certificate, and started again."""
    assert "no certificate ends soon" in machine.sh("gardener shoot renew")
    assert machine.sh(f"systemctl is-active {_RENEWAL}.timer").strip() == "active"
    aged = machine.sh("python3 -I -", stdin=_AGE).split()
    assert "kubelet" in aged
    age = f"find {STATE}/secrets/*/tls.crt -newer {STATE}/aged | wc -l"
    machine.sh(f"sleep 1; touch {STATE}/aged")
    clients = {f"{each}-{MACHINE}" for each in _STATIC_PODS if each not in ("etcd-main", "kube-apiserver")}
    eventually(lambda: clients <= _uids(kubeconfig).keys(), "the kubelet has told of all static pods", 120)
    pods = _uids(kubeconfig)
    with _asking(kubeconfig) as faults:
        machine.sh(f"systemctl start --no-block {_RENEWAL}.service")
        eventually(lambda: int(machine.sh(age)) > 0, "a certificate is renewed", 60)
        machine.sh(f"systemctl kill --signal=KILL {_RENEWAL}.service; test -e {STATE}/renewing")
        eventually(lambda: not machine.sh("pgrep -f '[t]emporal server' || true").strip(), "Temporal has ended", 10)
        started = time.monotonic()
        machine.sh(f"systemctl reset-failed; systemctl start {_RENEWAL}.service")
        print(f"a renewal took {time.monotonic() - started:.0f} s, after one SIGKILL")
        assert int(machine.sh(age)) == len(aged)
        assert _changed(pods, _uids(kubeconfig)) == clients
        _kubectl(kubeconfig, "wait", "--for=condition=Ready", f"node/{MACHINE}", "--timeout=60s")
    assert not faults
    same = f"diff {STATE}/secrets/kubelet/kubeconfig /var/lib/kubelet/kubeconfig-real"
    machine.sh(f"{same} && diff {STATE}/secrets/kubelet-server/tls.crt /var/lib/kubelet/pki/server.crt")
    assert "no certificate ends soon" in machine.sh("gardener shoot renew")


def test_components_that_are_deleted_or_changed_are_put_back(machine: Machine, kubeconfig: Path) -> None:
    system = ("-n", "kube-system")
    proxy = json.loads(_kubectl(kubeconfig, *system, "get", "daemonsets", "-o", "json"))["items"]
    [name] = [each["metadata"]["name"] for each in proxy if each["metadata"]["name"].startswith("kube-proxy-control")]
    _kubectl(kubeconfig, *system, "delete", "deployment/coredns", "service/kube-dns")
    tolerates_nothing = [{"op": "remove", "path": "/spec/template/spec/tolerations"}]
    _kubectl(kubeconfig, *system, "patch", "daemonset", name, "--type=json", "-p", json.dumps(tolerates_nothing))
    assert machine.sh("systemctl is-active gardener-shoot-repair.timer").strip() == "active"

    machine.sh("systemctl start gardener-shoot-repair.service")
    _kubectl(kubeconfig, *system, "rollout", "status", "deployment/coredns", "--timeout=180s")
    _kubectl(kubeconfig, *system, "get", "service", "kube-dns")
    path = "jsonpath={.spec.template.spec.tolerations}"
    assert _kubectl(kubeconfig, *system, "get", "daemonset", name, "-o", path)


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name, uid in before.items() if after.get(name, uid) != uid}


def test_another_manifest_is_refused(machine: Machine, kubeconfig: Path) -> None:
    """Networks of a running cluster, for example, cannot change."""
    changed = json.loads(machine.sh("cat /root/shoot.yaml"))
    changed["spec"]["networking"] = {"pods": "10.96.0.0/12"}
    machine.write("shoot.yaml", json.dumps(changed))

    said, _ = machine.init().communicate(timeout=60)
    assert "another manifest" in said


def test_a_machine_that_lost_its_files_goes_on_with_the_backup(machine: Machine, kubeconfig: Path) -> None:
    """The local cloud keeps no disk of a machine. Data, keys, uid and address come back; one restore is killed."""
    _kubectl(kubeconfig, "-n", "default", "create", "configmap", "before", "--from-literal=key=of the first machine")
    _kubectl(kubeconfig, "-n", "default", "create", "secret", "generic", "before", "--from-literal=key=SENTINEL")
    before = _kubectl(kubeconfig, "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
    uid, key = machine.sh(f"cat {STATE}/uid"), machine.sh(f"sha256sum {STATE}/secrets/ca/ca.key")
    assert _asked(machine, "https://127.0.0.1:8080/snapshot/delta", *_OF_ETCD)[0] == 200
    lost = time.monotonic()
    machine.forget()
    machine.sh("gardener keys create /root/wrong.key")
    said, _ = machine.init("wrong.key").communicate(timeout=60)
    assert "cannot be read with this recovery key" in said
    command = machine.init()
    _killed_at(machine, command, "/etc/kubernetes/manifests/etcd-main.yaml")
    said, _ = machine.init().communicate(timeout=_INIT_SECONDS)
    assert "the control plane runs" in said, said
    print(f"from the end of the machine to the end of init: {time.monotonic() - lost:.0f} s")

    # The kubeconfig of the first machine: same address, same authority.
    get = ("-n", "default", "get", "-o", "jsonpath={.data.key}")
    assert _kubectl(kubeconfig, *get, "configmap", "before") == "of the first machine"
    assert _kubectl(kubeconfig, *get, "secret", "before") == base64.b64encode(b"SENTINEL").decode()
    assert _kubectl(kubeconfig, "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}") == before
    assert machine.sh(f"cat {STATE}/uid") == uid
    assert machine.sh(f"sha256sum {STATE}/secrets/ca/ca.key") == key
    _kubectl(kubeconfig, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s")


def _joins(machine: Machine, reached: str) -> str:
    """Let a machine join by its file; the first try is killed when a path exists. Returns what the second one said."""
    command = machine.join()
    _killed_at(machine, command, reached)
    said, _ = machine.join().communicate(timeout=_INIT_SECONDS)
    return said


_ASK = """
import json, ssl, sys, urllib.error, urllib.request
url, certificate, key, token, body, method = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if certificate:
    context.load_cert_chain(certificate, key)
headers = {"Authorization": f"Bearer {token}"} if token else {}
try:
    asked = urllib.request.Request(url, body.encode() or None, headers, method=method or None)
    with urllib.request.urlopen(asked, context=context) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, ""]))
"""
_ADMIN = ("/root/admin.pem", "/root/admin.pem")
_OF_ETCD = tuple(f"/var/lib/static-pods/etcd-main/tls/client-client/tls.{each}" for each in ("crt", "key"))


def _asked(
    machine: Machine,
    url: str,
    certificate: str = "",
    key: str = "",
    *,
    token: str = "",
    body: str = "",
    method: str = "",
) -> tuple[int, str]:
    """Status and content of the answer to a machine."""
    command = " ".join(shlex.quote(each) for each in (url, certificate, key, token, body, method))
    status, content = json.loads(machine.sh(f"python3 - {command}", stdin=_ASK))
    return status, content


def test_a_worker_joins_and_runs_pods(machine: Machine, kubeconfig: Path) -> None:
    worker = Machine(machine.landscape, f"{NAME}-worker-1")
    worker.boot()
    file = machine.token(worker.name, f"--worker-pool-name={_WORKERS}")
    worker.write("join.yaml", file)
    started = time.monotonic()
    said = _joins(worker, "/etc/systemd/system/kubelet.service")
    assert "has joined" in said, said
    print(f"a worker joined in {time.monotonic() - started:.0f} s, with one SIGKILL")
    found = json.loads(_kubectl(kubeconfig, "get", "node", worker.name, "-o", "json"))
    assert found["metadata"]["labels"][WORKER_POOL] == _WORKERS

    container = {
        "name": "main",
        "image": images.GARDENER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "until getent hosts kubernetes.default.svc.cluster.local; do sleep 1; done"],
    }
    selector = {WORKER_POOL: _WORKERS}
    spec = {"nodeSelector": selector, "restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks", "namespace": "default"}, "spec": spec}
    _kubectl(kubeconfig, "apply", "-f", "-", stdin=json.dumps(pod))
    _kubectl(
        kubeconfig, "-n", "default", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/asks", "--timeout=120s"
    )
    # The API server verifies the kubelet's certificate.
    eventually(lambda: "100.104.0.1" in _kubectl(kubeconfig, "-n", "default", "logs", "asks"), "there are logs", 30)

    secret = f"https://api.{NAME}.example.org/api/v1/namespaces/kube-system/secrets/cloudprovider"
    client = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    assert _asked(worker, secret, client, client)[0] == 403
    assert _asked(worker, secret, token=json.loads(file)["token"])[0] == 403
    assert _asked(worker, secret, token="abcdef.0123456789abcdef")[0] == 401
    # Its Node exists: the token gives its certificate to no other machine.
    with pytest.raises(pytest.fail.Exception, match="exists: delete it first"):
        machine.token(worker.name, f"--worker-pool-name={_WORKERS}")


def _members(machine: Machine) -> set[str]:
    _, content = _asked(machine, "https://127.0.0.1:2379/v3/cluster/member/list", *_OF_ETCD, body="{}")
    found = json.loads(content)
    return {each["name"] for each in found["members"] if not each.get("isLearner")}


def _endpoints(kubeconfig: Path) -> set[str]:
    path = "jsonpath={.spec.endpoints[*].nodeName}"
    return set(_kubectl(kubeconfig, "-n", "kube-system", "get", "exp", NAME, "-o", path).split())


@pytest.mark.timeout(1200, func_only=True)
def test_a_node_of_the_control_plane_is_replaced_while_clients_write(
    machine: Machine, kubeconfig: Path, tmp_path: Path
) -> None:
    second, third, fourth = (Machine(machine.landscape, f"{NAME}-{number}") for number in (2, 3, 4))
    shoot = Shoot(machine.landscape, NAME, tmp_path)
    shoot.kubeconfig = kubeconfig
    address = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"].removeprefix("https://")
    with Probe(shoot, address=address, reconnects=True).running() as probe:
        for each in (second, third):
            each.boot()
            each.write("join.yaml", machine.token(each.name, "--control-plane"))
            started = time.monotonic()
            assert "the control plane runs" in _joins(each, "/etc/kubernetes/manifests/etcd-main.yaml")
            print(f"{each.name} joined in {time.monotonic() - started:.0f} s, with one SIGKILL")
        assert _members(machine) == {MACHINE, second.name, third.name}
        eventually(lambda: _endpoints(kubeconfig) == {MACHINE, second.name, third.name}, "three endpoints", 60)
        assert "its maximum" in _refused(machine, fourth.name)
        _told(probe, "two machines joined")

        machine.end()
        eventually(lambda: probe.answered and probe.answered[-1] > time.monotonic() - 1, "clients are answered", 60)
        _kubectl(kubeconfig, "delete", "node", MACHINE, "--timeout=120s")
        eventually(lambda: _members(second) == {second.name, third.name}, "its member has left", 60)
        eventually(lambda: _endpoints(kubeconfig) == {second.name, third.name}, "its endpoint has left", 60)
        _told(probe, "the first machine ended for good")

        fourth.boot()
        fourth.write("join.yaml", second.token(fourth.name, "--control-plane"))
        assert "the control plane runs" in _joins(fourth, "/etc/kubernetes/manifests/etcd-main.yaml")
        assert _members(second) == {second.name, third.name, fourth.name}
        eventually(lambda: _endpoints(kubeconfig) == {second.name, third.name, fourth.name}, "three endpoints", 60)
    _told(probe, "another machine joined")
    assert not probe.lost
    assert probe.longest_silence < _SILENCE_SECONDS


def _refused(machine: Machine, node: str) -> str:
    with pytest.raises(pytest.fail.Exception) as refused:
        machine.token(node, "--control-plane")
    return str(refused.value)


def _told(probe: Probe, when: str) -> None:
    counted = f"{len(probe.answered)} writes and reads, {probe.failed} failed, {len(probe.broken)} repeated"
    print(f"{when}: {counted}, longest silence {probe.longest_silence:.1f} s; {probe.faults[-3:]}")


def _domain(landscape: Landscape) -> str:
    return f"{_NAMED}.{landscape.facts['dns']['zone']}"


def test_a_record_has_the_machines_of_the_control_plane_as_they_join_and_leave(machine: Machine) -> None:
    for name in (f"{NAME}-worker-1", *(f"{NAME}-{number}" for number in (2, 3, 4))):
        Machine(machine.landscape, name).end()
    first, second, worker = (Machine(machine.landscape, f"{_NAMED}-{name}") for name in ("1", "2", "worker-1"))
    host = f"api.{_domain(machine.landscape)}"
    first.start_named()
    _killed_at(first, first.init_named(), _DATA)
    said, _ = first.init_named().communicate(timeout=_INIT_SECONDS)
    assert "the control plane runs" in said, said
    config = yaml.safe_load(first.sh(f"cat {STATE}/kubeconfig.yaml"))
    assert config["clusters"][0]["cluster"]["server"] == f"https://{host}"
    user = config["users"][0]["user"]
    pair = (base64.b64decode(user[f"client-{part}-data"]).decode() for part in ("certificate", "key"))
    first.write("admin.pem", "".join(pair))
    assert first.values(host) == {first.address}

    # The worker knows the API server by its name alone, before and after the machines change.
    worker.boot()
    worker.write("join.yaml", first.token(worker.name, f"--worker-pool-name={_WORKERS}"))
    assert "has joined" in _joins(worker, "/etc/systemd/system/kubelet.service")
    second.boot()
    second.write("join.yaml", first.token(second.name, "--control-plane"))
    assert "the control plane runs" in _joins(second, "/etc/kubernetes/manifests/etcd-main.yaml")
    eventually(lambda: first.values(host) == {first.address, second.address}, "two addresses", 60)

    nodes = f"https://{host}/api/v1/nodes"
    started, addresses = time.monotonic(), {first.address}
    assert _asked(first, f"{nodes}/{second.name}", *_ADMIN, method="DELETE")[0] == 200
    eventually(lambda: first.values(host) == addresses, "one address", 60)
    print(f"the address of a deleted Node left after {time.monotonic() - started:.1f} s")
    eventually(lambda: _asked(first, f"{nodes}/{second.name}", *_ADMIN)[0] == 404, "its member has left", 60)
    second.end()
    client = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    status, content = _asked(worker, f"{nodes}/{worker.name}", client, client)
    assert status == 200
    assert find_condition(json.loads(content), "Ready")["status"] == "True"

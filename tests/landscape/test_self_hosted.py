"""``gardener shoot init`` on a machine of the cloud: a control plane, reached by an exposure, despite SIGKILLs.

The machine forgets its files, and the cluster lives on from its backup.
"""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.provider_local.computers import user_data_secret
from api import images
from api.local import MACHINE_LABEL, MachineProviderSpec, infrastructure_namespace
from tests.landscape.conftest import BIN, Landscape, run
from tests.landscape.shoots import eventually
from workers.provider_local.driver import machine_pod

pytestmark = [pytest.mark.landscape, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

NAME, MACHINE = "alone", "alone-1"
CLOUD_NAMESPACE = infrastructure_namespace(f"shoot--local--{NAME}")
STATE = "/var/lib/gardener-self-hosted"
_DATA = "/var/lib/etcd-main/new.etcd"
_STATIC_PODS = ("etcd-main", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_INIT_SECONDS = 240.0
_PERIOD = 0.1


def manifest(version: str) -> dict[str, Any]:
    backup = {
        "provider": "local",
        "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden", "name": "backup-local"},
    }
    exposure = {"extension": {"type": "local"}}
    pool = {"name": "control-plane", "controlPlane": {"backup": backup, "exposure": exposure}}
    return {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "Shoot",
        "metadata": {"name": NAME, "namespace": "garden-local"},
        "spec": {
            "kubernetes": {"version": version},
            "dns": {"domain": f"{NAME}.example.org"},
            "provider": {"type": "local", "workers": [pool]},
        },
    }


@dataclass
class Machine:
    """A machine that no Shoot of the garden has made."""

    landscape: Landscape
    name: str = MACHINE
    recovery_key: str = ""

    def start(self) -> None:
        profile = json.loads(self.landscape.kubectl("garden", "get", "cloudprofile", "local", "-o", "json"))
        directory = profile["spec"]["providerConfig"]["imagesDirectory"]
        spec = MachineProviderSpec(
            namespace=CLOUD_NAMESPACE,
            image=images.MACHINE,
            images_directory=directory,
            cpu_millis=100,
            memory_bytes=512 * 1024 * 1024,
        )
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLOUD_NAMESPACE, "labels": labels}}
        user_data = user_data_secret(self.name, CLOUD_NAMESPACE, b"#!/bin/bash\ntrue\n", {MACHINE_LABEL: self.name})
        made = {"apiVersion": "v1", "kind": "List", "items": [namespace, user_data, machine_pod(self.name, spec, NAME)]}
        self._cloud("apply", "-f", "-", stdin=json.dumps(made))
        self._cloud("wait", "--for=condition=Ready", f"pod/{self.name}", "--timeout=60s")
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
        self._cloud("delete", "pod", self.name, "--timeout=60s")
        self.start()

    def remove(self) -> None:
        self.landscape.kubectl("cloud", "delete", "namespace", CLOUD_NAMESPACE, "--timeout=120s", timeout=130)

    def write(self, name: str, text: str) -> None:
        self.sh(f"cat > /root/{name}", stdin=text)

    def sh(self, script: str, stdin: str = "") -> str:
        return run(*self._exec("sh", "-c", script), stdin=stdin)

    def init(self, recovery_key: str = "recovery.key") -> "subprocess.Popen[str]":
        files = (
            *("--config=/root/shoot.yaml", "--credentials=/root/cloud.yaml", "--cloud-profile=/root/profile.yaml"),
            *("--backup-credentials=/root/backup.yaml", f"--recovery-key=/root/{recovery_key}"),
        )
        return subprocess.Popen(
            self._exec("gardener", "shoot", "init", *files),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self) -> None:
        """End the running init by SIGKILL."""
        self.sh("kill -9 $(pgrep -f '[g]ardener shoot init')")
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
        eventually(partial(_exists, machine, reached), f"init has made {reached}", 90)
        machine.kill()
        assert command.wait(20) != 0
    uid, key = machine.sh(f"cat {STATE}/uid"), machine.sh(f"sha256sum {STATE}/secrets/ca/ca.key")
    started = time.monotonic()
    said, _ = machine.init().communicate(timeout=_INIT_SECONDS)
    assert "the control plane runs" in said
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


def _kubectl(kubeconfig: Path, *arguments: str) -> str:
    return run(str(BIN / "kubectl"), f"--kubeconfig={kubeconfig}", *arguments)


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


def test_a_second_init_changes_nothing_and_clients_notice_nothing(machine: Machine, kubeconfig: Path) -> None:
    faults: list[str] = []
    asked = 0
    ended = threading.Event()

    def probe() -> None:
        nonlocal asked
        while not ended.wait(_PERIOD):
            asked += 1
            answer = subprocess.run(
                [str(BIN / "kubectl"), f"--kubeconfig={kubeconfig}", "get", "--raw", "/readyz"],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.returncode:
                faults.append(answer.stderr)

    before = _kubectl(kubeconfig, "-n", "kube-system", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
    thread = threading.Thread(target=probe)
    thread.start()
    try:
        said, _ = machine.init().communicate(timeout=_INIT_SECONDS)
    finally:
        ended.set()
        thread.join()
    assert "the control plane runs" in said
    assert not faults
    print(f"{asked} requests during the second init, none failed")
    after = _kubectl(kubeconfig, "-n", "kube-system", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
    assert set(before.split()) == set(after.split())


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
    tls = "--cacert client-ca/bundle.crt --cert client-client/tls.crt --key client-client/tls.key"
    machine.sh(f"cd /var/lib/static-pods/etcd-main/tls && curl -sSf {tls} https://127.0.0.1:8080/snapshot/delta")
    lost = time.monotonic()
    machine.forget()
    machine.sh("gardener keys create /root/wrong.key")
    said, _ = machine.init("wrong.key").communicate(timeout=60)
    assert "cannot be read with this recovery key" in said
    command = machine.init()
    eventually(partial(_exists, machine, "/etc/kubernetes/manifests/etcd-main.yaml"), "etcd is being restored", 90)
    machine.kill()
    assert command.wait(20) != 0
    said, _ = machine.init().communicate(timeout=_INIT_SECONDS)
    assert "the control plane runs" in said
    print(f"from the end of the machine to the end of init: {time.monotonic() - lost:.0f} s")

    # The kubeconfig of the first machine: same address, same authority.
    get = ("-n", "default", "get", "-o", "jsonpath={.data.key}")
    assert _kubectl(kubeconfig, *get, "configmap", "before") == "of the first machine"
    assert _kubectl(kubeconfig, *get, "secret", "before") == base64.b64encode(b"SENTINEL").decode()
    assert _kubectl(kubeconfig, "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}") == before
    assert machine.sh(f"cat {STATE}/uid") == uid
    assert machine.sh(f"sha256sum {STATE}/secrets/ca/ca.key") == key
    _kubectl(kubeconfig, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s")

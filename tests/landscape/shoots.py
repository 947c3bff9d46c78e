"""A Shoot for tests, with the commands that a user has, and its objects in the landscape."""

import asyncio
import base64
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import dns.message
import dns.query
import pytest
import yaml
from temporalio.client import Client, RPCError

from api import constants
from landscape import plan as plans
from landscape.temporal import server as temporal_server
from tests.landscape.conftest import BIN, Landscape, run
from workers.cli.flow_view import read_flow
from workers.lib.codec import reading_converter
from workers.lib.temporal import connect_with

EXAMPLE = Path(__file__).parents[2] / "examples/shoot.yaml"
NAMESPACE = "garden-local"
CREATION = 240
"""Seconds; 30 where the machine has nothing else to do."""
DELETION = 240
MOVES = int(os.environ.get("GARDENER_TEST_MOVES", "1"))
"""How often a control plane moves in each test of moves."""

T = TypeVar("T")


@dataclass
class Shoot:
    """A Shoot of project `local`, whether it exists or not."""

    namespace: ClassVar[str] = NAMESPACE
    project: ClassVar[str] = "local"

    landscape: Landscape
    name: str
    directory: Path
    """For its kubeconfig."""

    def __post_init__(self) -> None:
        self.reference = f"{self.namespace}/{self.name}"
        self.technical_id = f"shoot--{self.project}--{self.name}"

    # In the garden

    def manifest(self, *, machines: int = 1, **spec: Any) -> dict[str, Any]:
        """The example, with another name, so many machines, and fields of the spec replaced."""
        manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        manifest["metadata"]["name"] = self.name
        # All nodes may apply a new configuration at once.
        manifest["metadata"]["annotations"] = {constants.SHOOT_NODE_JITTER: "0"}
        manifest["spec"]["provider"]["workers"][0].update(minimum=machines, maximum=machines)
        manifest["spec"].update(spec)
        return manifest

    def without_workers(self, **spec: Any) -> dict[str, Any]:
        """``manifest`` of a control plane alone."""
        manifest = self.manifest(**spec)
        del manifest["spec"]["provider"]["workers"], manifest["spec"]["networking"]
        del manifest["spec"]["credentialsBindingName"]
        return manifest

    def apply(self, manifest: dict[str, Any]) -> None:
        self.garden("apply", "-f", "-", stdin=json.dumps(manifest))

    @contextmanager
    def created(self, manifest: dict[str, Any] | None = None) -> Iterator[None]:
        """Create it, by this manifest or like the example; in the end it is removed, however far it came."""
        self.apply(manifest or self.manifest())
        try:
            self.wait_for_state("Succeeded", CREATION)
            yield
        finally:
            self.remove()

    def garden(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        return self.landscape.kubectl("garden", "-n", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def get(self) -> dict[str, Any]:
        live: dict[str, Any] = json.loads(self.garden("get", "shoot", self.name, "-o", "json"))
        return live

    def wait_for_state(self, state: str, seconds: float) -> None:
        """Wait for the state of the last operation; a test that waits in vain tells what the operation waits for."""
        path = f"jsonpath={{.status.lastOperation.state}}={state}"
        try:
            self.garden("wait", f"--for={path}", f"shoot/{self.name}", f"--timeout={seconds}s", timeout=seconds + 10)
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\n{self.gardener('flow', 'explain', self.reference)}")

    def wait_for_rotation(self, kind: str, phase: str, seconds: float) -> None:
        path = f"jsonpath={{.status.credentials.rotation.{kind}.phase}}={phase}"
        self.garden("wait", f"--for={path}", f"shoot/{self.name}", f"--timeout={seconds:.0f}s", timeout=seconds + 10)

    def change(self, spec: dict[str, Any]) -> None:
        """Merge something into its spec."""
        self.garden("patch", "shoot", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def reconcile(self, seconds: float) -> None:
        """Have it reconciled without a change of its spec, and wait for that."""
        before = self.get()["status"]["lastOperation"]
        self.garden("annotate", "shoot", self.name, "gardener.cloud/operation=reconcile")
        eventually(lambda: self.get()["status"]["lastOperation"] != before, "the operation begins", 60)
        self.wait_for_state("Succeeded", seconds)

    def wait_until_reconciled(self, seconds: float) -> None:
        """Wait until an operation has succeeded that knew the newest spec."""
        generation = self.get()["metadata"]["generation"]
        observed = f"--for=jsonpath={{.status.observedGeneration}}={generation}"
        self.garden("wait", observed, f"shoot/{self.name}", "--timeout=60s", timeout=70)
        self.wait_for_state("Succeeded", seconds)

    def delete(self, *, wait: bool = True) -> None:
        self.garden("annotate", "shoot", self.name, "--overwrite", "confirmation.gardener.cloud/deletion=true")
        self.garden("delete", "shoot", self.name, f"--wait={wait}", f"--timeout={DELETION}s", timeout=DELETION + 10)

    def remove(self) -> None:
        """Delete it if it is there."""
        if self.garden("get", "shoot", self.name, "--ignore-not-found", "-o", "name"):
            self.delete()

    # In the seed and in the cluster itself

    @cached_property
    def seed(self) -> str:
        seed: str = self.get()["spec"]["seedName"]
        return seed

    @property
    def other_seed(self) -> str:
        """Where its control plane could move to."""
        return {"seed-1": "seed-2", "seed-2": "seed-1"}[self.seed]

    def has_moved(self) -> None:
        """Forget seed and kubeconfig, so that they are read again."""
        for name in ("seed", "kubeconfig"):
            self.__dict__.pop(name, None)

    def is_in(self, seed: str) -> bool:
        """Whether the namespace of its control plane is."""
        namespaces = self.landscape.kubectl(seed, "get", "namespaces", "-o", "name").split()
        return f"namespace/{self.technical_id}" in namespaces

    @cached_property
    def uid(self) -> str:
        """Asked for once, so it is known after the Shoot is gone, too."""
        uid: str = self.get()["metadata"]["uid"]
        return uid

    def control_plane(self, *arguments: str) -> str:
        """kubectl in the control plane's namespace of the seed."""
        return self.landscape.kubectl(self.seed, "-n", self.technical_id, *arguments)

    @cached_property
    def kubeconfig(self) -> Path:
        path = self.directory / f"{self.name}.yaml"
        path.touch(mode=0o600)
        path.write_text(self.gardener("kubeconfig", "shoot", self.reference))
        return path

    def argv(self, *arguments: str) -> list[str]:
        """Command line of kubectl in the cluster."""
        return [str(BIN / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """kubectl in the cluster, as its administrator."""
        return run(*self.argv(*arguments), stdin=stdin, timeout=timeout)

    def nodes(self) -> dict[str, set[str]]:
        """Names of the nodes, by pool."""
        found: dict[str, set[str]] = {}
        for node in json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]:
            pool = node["metadata"]["labels"]["worker.gardener.cloud/pool"]
            found.setdefault(pool, set()).add(node["metadata"]["name"])
        return found

    # Its flows

    def gardener(self, *arguments: str, timeout: float = 60) -> str:
        environment = f"GARDENER_LANDSCAPE={self.landscape.name}"
        return run("env", environment, self.landscape.bin / "gardener", *arguments, timeout=timeout)

    def flow(self, workflow_id: str = "") -> dict[str, Any]:
        """The newest operation, or the operation with this id."""
        chosen = ["--id", workflow_id] if workflow_id else []
        flow: dict[str, Any] = json.loads(self.gardener("flow", "show", self.reference, *chosen, "-o", "json"))
        return flow

    def flows(self) -> list[dict[str, Any]]:
        """All operations of this Shoot, and of none before it with the same name; the newest first."""
        listed = json.loads(self.gardener("flow", "list", self.reference, "-o", "json"))
        return [each for each in listed if f"/{self.uid}/" in each["workflowId"]]

    # What of it is where

    def traces(self) -> dict[str, list[str]]:
        """Everything in garden, seed, cloud, DNS and bucket that belongs to it, but events, which are history."""
        return {
            "garden": self._objects("garden"),
            "seed": [*self._objects("seed-1"), *self._objects("seed-2")],
            "cloud": self._objects("cloud"),
            "dns": [name for name in self.host_names if self.address_of(name)],
            "bucket": self.backups(),
        }

    def _objects(self, cluster: str) -> list[str]:
        verbs = ("--verbs=list", "-o", "name")
        kinds = [kind for kind in self.landscape.kubectl(cluster, "api-resources", *verbs).split() if _kept(kind)]
        columns = "custom-columns=:.metadata.namespace,:.kind,:.metadata.name,:.spec.claimRef.namespace"
        listed = self.landscape.kubectl(cluster, "get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
        rows = [line.split() for line in listed.splitlines()]
        return [
            f"{kind} {namespace}/{name}"
            for namespace, kind, name, claimed in rows
            if self._owns(namespace, name, claimed)
        ]

    def _owns(self, namespace: str, name: str, claimed: str) -> bool:
        """By its name, or by the namespace it is in; a volume, by that of its claim. Shoots share their project's."""
        if namespace == self.namespace:
            return name == self.name or name.startswith(f"{self.name}.")
        own = {self.technical_id, f"infra-{self.technical_id}"}
        return bool({namespace, name, claimed} & own) or name.startswith(f"{self.technical_id}-")

    @property
    def host_names(self) -> tuple[str, str]:
        zone = self.landscape.facts["dns"]["zone"]
        name = f"{self.name}.{self.project}"
        return f"api.{name}.internal.{zone}", f"api.{name}.shoot.{zone}"

    def address_of(self, name: str) -> str:
        """Answer of the landscape's DNS; empty if there is no such name."""
        answer = dns.query.udp(dns.message.make_query(name, "A"), self.landscape.facts["dns"]["server"], timeout=5)
        return answer.answer[0][0].to_text() if answer.answer else ""

    def backups(self) -> list[str]:
        """Prefixes in the buckets, with the bucket's name."""
        buckets = self.landscape.directory / "object-store/buckets"
        found = [path for path in buckets.glob("*/*") if path.name.startswith(f"{self.technical_id}--")]
        return sorted(str(path.relative_to(buckets)) for path in found)

    def secrets(self) -> list[dict[str, Any]]:
        """All Secrets of its control plane."""
        secrets: list[dict[str, Any]] = json.loads(self.control_plane("get", "secrets", "-o", "json"))["items"]
        return secrets


@dataclass(frozen=True)
class CloudCredentials:
    """A Secret with access to the cloud, and the binding to it, that a test may spoil: others use the example's."""

    shoot: Shoot
    name: str

    @property
    def good(self) -> dict[str, Any]:
        """The kubeconfig that the cloud accepts."""
        secret = json.loads(self.shoot.garden("get", "secret", "local", "-o", "json"))
        config: dict[str, Any] = json.loads(decoded(secret)["kubeconfig"])
        return config

    def with_token(self, token: str) -> dict[str, Any]:
        """One that it does not accept."""
        config = self.good
        return config | {"users": [{"name": each["name"], "user": {"token": token}} for each in config["users"]]}

    def write(self, config: dict[str, Any]) -> None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "data": {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()},
        }
        self.shoot.garden("apply", "-f", "-", stdin=json.dumps(secret))

    def bind(self) -> None:
        binding = {
            "apiVersion": "security.gardener.cloud/v1alpha1",
            "kind": "CredentialsBinding",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "provider": {"type": "local"},
            "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": self.name, "namespace": NAMESPACE},
        }
        self.shoot.garden("apply", "-f", "-", stdin=json.dumps(binding))

    def remove(self) -> None:
        self.shoot.garden("annotate", "secret", self.name, "--overwrite", "confirmation.gardener.cloud/deletion=true")
        self.shoot.garden("delete", "credentialsbindings.security.gardener.cloud", self.name, "--timeout=30s")
        self.shoot.garden("delete", "secret", self.name, "--timeout=30s")


@dataclass(frozen=True)
class CloudAccount(CloudCredentials):
    """An account of the cloud with rights that come and go, while its credentials stay the same."""

    def open(self) -> None:
        """Make it, without any right, and a binding to it."""
        self._cloud("create", "serviceaccount", self.name)
        self.write(self.with_token(self._cloud("create", "token", self.name, "--duration=2h").strip()))
        self.bind()

    def permit(self) -> None:
        """Give it the rights that every tenant has."""
        account = f"--serviceaccount=default:{self.name}"
        self._cloud("create", "clusterrolebinding", self.name, "--clusterrole=tenants", account)
        eventually(self._may, f"{self.name} may do something in the cloud", 20)

    def forbid(self) -> None:
        """Take all its rights."""
        self._cloud("delete", "clusterrolebinding", self.name, "--ignore-not-found")
        eventually(lambda: not self._may(), f"{self.name} may do nothing in the cloud", 20)

    def remove(self) -> None:
        super().remove()
        self._cloud("delete", "clusterrolebinding", self.name, "--ignore-not-found")
        self._cloud("delete", "serviceaccount", self.name, "--ignore-not-found")

    def _may(self) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:default:{self.name}",
                "resourceAttributes": {"verb": "create", "resource": "pods"},
            },
        }
        answer = self._cloud("create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=json.dumps(review))
        return answer == "true"

    def _cloud(self, *arguments: str, stdin: str | None = None) -> str:
        return self.shoot.landscape.kubectl("cloud", *arguments, stdin=stdin)


_FLEETING = ("events", "leases.coordination.k8s.io", "endpoints", "componentstatuses", "metrics.k8s.io")


def _kept(kind: str) -> bool:
    return not kind.startswith(_FLEETING) and not kind.endswith(_FLEETING)


async def temporal(landscape: Landscape) -> Client:
    """An administrator's client that reads what is encrypted."""
    plan = plans.load(landscape.name)
    assert plan is not None
    return await connect_with(temporal_server(plan), reading_converter(plan.codec_key))


def temporal_command(landscape: Landscape, *arguments: str, **environment: str) -> str:
    """Output of the command line of Temporal for an administrator, with these variables in its environment."""
    facts = landscape.facts["temporal"]
    connection = ["--address", facts["address"], "--tls-ca-path", facts["tls"]["ca"]]
    connection += ["--tls-cert-path", facts["tls"]["certificate"], "--tls-key-path", facts["tls"]["key"]]
    variables = [f"{name}={value}" for name, value in environment.items()]
    return run("/usr/bin/env", *variables, BIN / "temporal", *arguments, *connection, "-o", "json")


async def started(
    client: Client, shoot: Shoot, task: str, operation: str = "Create", seconds: float = CREATION
) -> None:
    """Wait until a task of the running creation, or other operation, has started. Temporal may be on its way back."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                query = f'GardenerShoot = "{shoot.reference}" AND GardenerOperation = "{operation}"'
                async for each in client.list_workflows(f'{query} AND ExecutionStatus = "Running"'):
                    flow = await read_flow(client, shoot.reference, each.id, each.run_id)
                    if any(view.name == task and view.started for view in flow.tasks):
                        return
            except RPCError:
                pass
            await asyncio.sleep(0.1)  # the clock of a poll


def refused(*argv: str | Path, stdin: str | None = None) -> str:
    """Output of a command that must fail."""
    done = subprocess.run(
        [str(part) for part in argv], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode, f"{' '.join(map(str, argv))} succeeded: {done.stdout}"
    return done.stderr


def eventually(look: Callable[[], T | None], what: str, seconds: float) -> T:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s: {what}"
        time.sleep(0.5)  # the clock of a poll: most looks are a process of their own
    return answer


@contextmanager
def background(argv: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs as long as the test needs it; its output can be read."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def decoded(secret: dict[str, Any]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}

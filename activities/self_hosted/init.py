"""Steps of ``gardener shoot init``: the first machine of a self-hosted Shoot gets its control plane."""

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml
from temporalio import activity

from activities.components.static_pod import MANIFESTS, StaticPod
from activities.heartbeat import heartbeating
from activities.secrets.configs import EncryptionConfiguration, kubeconfig
from activities.seed.extension_kinds import EXTERNAL_DNS
from activities.seed.extension_objects import ExtensionObject, apply_extension, wait_extension_ready
from activities.self_hosted import control_plane
from activities.self_hosted.backup import ControlPlaneBackup, place
from activities.self_hosted.secrets import FileSecrets
from api import images
from api.constants import OPERATION, SELF_HOSTED_NAMESPACE
from api.contracts.self_hosted import (
    CREDENTIALS,
    DNS_CREDENTIALS,
    EXISTING,
    KUBECONFIG,
    PROFILE,
    SECRETS,
    UID,
    InitTask,
)
from api.crds import crds
from api.decisions.conditions import find_condition
from api.names import dns_record_type
from api.resources import CLUSTER, CONFIG_MAP, DNS_RECORD, NODE, POD, SELF_HOSTED_SHOOT_EXPOSURE
from api.times import timestamp
from kube.cache import Caches
from kube.client import KubeClient, Object
from kube.errors import ApiError

MANAGER = "gardener-shoot-init"
_KINDS = ("clusters", "dnsrecords", "selfhostedshootexposures")
_LOOK_SECONDS = 1.0


class MachineSystem(Protocol):
    """Operations on the machine that runs this process."""

    def write(self, path: str, content: bytes, mode: int) -> None: ...

    def holds(self, path: str, content: bytes, mode: int) -> bool: ...

    async def copy_from_image(self, image: str, path_in_image: str, path: str, mode: int) -> None: ...

    def name_host(self, host: str, address: str) -> None: ...

    async def systemctl(self, *arguments: str) -> None: ...


class SelfHostedActivities:
    """One instance in the process of ``gardener shoot init``. Every step finds what an earlier run of it has done.

    The steps have no inputs and no results: every process of the machine may connect to its Temporal, and none may say
    which files root writes.
    """

    def __init__(self, machine: MachineSystem, task: InitTask) -> None:
        self._machine = machine
        self._task = task

    @activity.defn
    async def restore_self_hosted_keys(self) -> None:
        """Take the keys of a control plane that was lost from its backup. A second run takes those that are missing."""
        if self._task.backed_up:
            backup = ControlPlaneBackup(self._task)
            await backup.open()
            await backup.restore()

    @activity.defn
    async def make_self_hosted_secrets(self) -> None:
        """Make authorities, certificates and keys as files.

        A second run makes those that are missing, and certificates that end soon.
        """
        secrets = _secrets(self._task)
        for each in control_plane.authorities():
            secrets.ensure(each)
        key = secrets.get(control_plane.ENCRYPTION_KEY)
        secrets.ensure(EncryptionConfiguration(control_plane.ENCRYPTION, keys=(key,)))
        for each in control_plane.certificates(self._task, secrets.get(control_plane.CA)["ca.crt"]):
            secrets.ensure(each)

    @activity.defn
    async def back_up_self_hosted_keys(self) -> None:
        """Copy the keys to the backup, before etcd has data that need them. A second run finds the same copy."""
        if self._task.backed_up:
            await ControlPlaneBackup(self._task).store()

    @activity.defn
    async def start_self_hosted_kubelet(self) -> None:
        """Install the kubelet and start it. A second run writes what differs, and restarts the kubelet for that."""
        self._machine.name_host(self._task.shoot.host, "127.0.0.1")
        await asyncio.to_thread(_make_directory, MANIFESTS)
        files = control_plane.kubelet_files(self._task, _secrets(self._task).all()) | control_plane.timers()
        await start_kubelet(self._machine, self._task.shoot.spec.kubernetes.version, files)
        names = (f"{each}.timer" for each in (control_plane.RENEWAL, control_plane.REPAIR))
        await self._machine.systemctl("enable", "--now", *names)

    @activity.defn
    async def deploy_self_hosted_control_plane(self) -> None:
        """Write the static pods, each after its files. A second run writes what differs."""
        for pod in self._static_pods():
            for path, content in pod.files.items():
                self._write(path, content, 0o600)
            self._write(pod.path, pod.text, 0o600)

    def _static_pods(self) -> list[StaticPod]:
        store = place(self._task) if self._task.backed_up else None
        there = self._task.directory / EXISTING
        existing = there.read_bytes() if there.exists() else None
        return control_plane.pods(self._task, _secrets(self._task).all(), store, existing)

    @activity.defn
    async def wait_self_hosted_apiserver(self) -> None:
        """Wait until the API server is ready."""

        async def ready() -> None:
            async with _cluster(self._task) as client:
                await _ready(client)

        await heartbeating(ready())

    @activity.defn
    async def wait_self_hosted_pods(self) -> None:
        """Wait until each static pod that starts again for its files runs with those of now."""
        wanted = {
            f"{each.name}-{self._task.machine.node}": each.manifest["metadata"]["annotations"]
            for each in self._static_pods()
            if "annotations" in each.manifest["metadata"]
        }

        async def running() -> None:
            async with _cluster(self._task) as client:
                for name, annotations in wanted.items():
                    await _running(client, name, annotations)

        await heartbeating(running())

    @activity.defn
    async def deploy_self_hosted_system(self) -> None:
        """Apply network, Services, DNS, and the kinds that an exposure needs. A second run changes nothing."""
        async with _cluster(self._task) as client:
            for each in self._system():
                await client.apply(each, manager=MANAGER)

    async def repair_self_hosted_system(self) -> bool:
        """Put back what was changed of the system, or deleted; returns False if another version has deployed it.

        Machines that are replaced have different versions for a while: the last one that was made decides.
        """
        *objects, digest = self._system()
        async with _cluster(self._task) as client:
            last = await client.find(CONFIG_MAP, control_plane.SYSTEM, SELF_HOSTED_NAMESPACE)
            if last is not None and last.get("data") != digest["data"]:
                return False
            for each in (*objects, digest):
                await client.apply(each, manager=MANAGER)
        return True

    def _system(self) -> list[Object]:
        """Objects of the system; the last one has the digest of all others."""
        ca = _secrets(self._task).get("ca-bundle")["bundle.crt"]
        kinds = [each for each in crds("seed") if each["spec"]["names"]["plural"] in _KINDS]
        objects = [*kinds, *control_plane.system_objects(self._task, ca)]
        digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
        metadata = {"name": control_plane.SYSTEM, "namespace": SELF_HOSTED_NAMESPACE}
        return [*objects, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"digest": digest}}]

    @activity.defn
    async def wait_self_hosted_node(self) -> None:
        """Wait until the machine's Node is Ready, and mark it as one of the control plane, with its finalizer."""

        async def ready() -> None:
            async with _cluster(self._task) as client:
                while True:
                    node = await client.find(NODE, self._task.machine.node)
                    # A Node of restored data is that of the lost machine until the kubelet has written to it.
                    there = ((node or {}).get("status") or {}).get("addresses") or ()
                    ours = self._task.machine.address in {each["address"] for each in there}
                    if ours and find_condition(node, "Ready").get("status") == "True":
                        break
                    await asyncio.sleep(_LOOK_SECONDS)
                await client.apply(control_plane.marked(self._task.machine.node), manager=MANAGER)

        await heartbeating(ready())

    @activity.defn
    async def deploy_self_hosted_exposure(self) -> None:
        """Apply the exposure of the API server, with what its controller reads, and have it reconciled."""
        credentials = (self._task.directory / CREDENTIALS).read_bytes()
        reference = {"kind": "Secret", "namespace": SELF_HOSTED_NAMESPACE, "name": control_plane.CREDENTIALS_SECRET}
        profile: Object = yaml.safe_load((self._task.directory / PROFILE).read_text())
        secret = _secret(control_plane.CREDENTIALS_SECRET, {"kubeconfig": credentials})
        async with _cluster(self._task) as client:
            node = await client.get(NODE, self._task.machine.node)
            live = await client.find(SELF_HOSTED_SHOOT_EXPOSURE, self._task.shoot.metadata.name, SELF_HOSTED_NAMESPACE)
            # The controller removes the endpoints of nodes that are gone.
            there = ((live or {}).get("spec") or {}).get("endpoints") or ()
            others = [each for each in there if each["nodeName"] != self._task.machine.node]
            shoot = self._task.shoot.model_dump(mode="json")
            shoot["metadata"]["uid"] = (self._task.directory / UID).read_text()
            cluster = {
                "apiVersion": CLUSTER.api_version,
                "kind": CLUSTER.kind,
                "metadata": {"name": self._task.shoot.technical_id},
                "spec": {"shoot": shoot, "cloudProfile": profile},
            }
            exposure: dict[str, Any] = {
                "apiVersion": SELF_HOSTED_SHOOT_EXPOSURE.api_version,
                "kind": SELF_HOSTED_SHOOT_EXPOSURE.kind,
                "metadata": {
                    "name": self._task.shoot.metadata.name,
                    "namespace": SELF_HOSTED_NAMESPACE,
                    "annotations": {OPERATION: "reconcile"},
                },
                "spec": {
                    "type": "local",
                    "port": 443,
                    "credentialsRef": reference,
                    "endpoints": [*others, control_plane.endpoint(node)],
                },
            }
            for each in (secret, cluster, exposure):
                await client.apply(each, manager=MANAGER)

    @activity.defn
    async def wait_self_hosted_exposure(self) -> None:
        """Wait until the API server answers at the address of its exposure, whose controller is a static pod."""

        async def exposed() -> None:
            async with _cluster(self._task) as client:
                while True:
                    if address := await self._exposed(client):
                        break
                    await asyncio.sleep(_LOOK_SECONDS)
            async with KubeClient.from_kubeconfig(self._administrator(address)) as client:
                await _ready(client)

        await heartbeating(exposed())

    @activity.defn
    async def name_self_hosted_apiserver(self) -> None:
        """Apply the DNSRecord of the API server's name, and wait until its controller, a static pod, has written it.

        A second run finds the record as it should be, and waits for it.
        """
        credentials: dict[str, str] = json.loads((self._task.directory / DNS_CREDENTIALS).read_text())
        data = {key: value.encode() for key, value in credentials.items()}
        name, trigger = control_plane.record_name(self._task), timestamp()
        async with _cluster(self._task) as client:
            await client.apply(_secret(control_plane.DNS_SECRET, data), manager=MANAGER)
            address = control_plane.public_address(await client.get(NODE, self._task.machine.node))
            live = await client.find(DNS_RECORD, name, SELF_HOSTED_NAMESPACE)
            # The controller removes the addresses of nodes that are gone.
            there = ((live or {}).get("spec") or {}).get("values") or ()
            spec = {
                "type": self._task.shoot.spec.dns.providers[0].type,
                "secretRef": {"name": control_plane.DNS_SECRET, "namespace": SELF_HOSTED_NAMESPACE},
                "name": self._task.shoot.host,
                "recordType": dns_record_type(address),
                "values": sorted({*there, address}),
                "ttl": 120,
            }
            wanted = ExtensionObject(DNS_RECORD, name, SELF_HOSTED_NAMESPACE, spec)
            await apply_extension(client, wanted, trigger)
            caches = Caches(client)
            try:
                await wait_extension_ready(
                    caches, DNS_RECORD, name, SELF_HOSTED_NAMESPACE, EXTERNAL_DNS.wait, trigger=trigger
                )
            finally:
                await caches.close()

    @activity.defn
    async def write_self_hosted_kubeconfig(self) -> None:
        """Write the administrator's kubeconfig, readable by root alone, and its address to the backup.

        A second run writes the same.
        """
        address = self._task.shoot.host if self._task.named else self._task.machine.address
        if self._task.exposed:
            async with _cluster(self._task) as client:
                address = await self._exposed(client)
        made = yaml.safe_dump(self._administrator(address)).encode()
        self._write(str(self._task.directory / KUBECONFIG), made, 0o600)
        if self._task.backed_up and (self._task.exposed or self._task.named):
            await ControlPlaneBackup(self._task).store(address)

    def _administrator(self, address: str) -> dict[str, Any]:
        """The administrator's kubeconfig for the API server at an address."""
        secrets = _secrets(self._task)
        user = yaml.safe_load(secrets.get(control_plane.ADMIN)["kubeconfig"])["users"][0]["user"]
        made: dict[str, Any] = yaml.safe_load(kubeconfig(f"https://{address}", secrets.get("ca")["ca.crt"], user))
        # The certificate has the Shoot's name, and not the address of the exposure, which did not exist before.
        made["clusters"][0]["cluster"]["tls-server-name"] = self._task.shoot.host
        return made

    async def _exposed(self, client: KubeClient) -> str:
        """Address of the exposure; empty if it has none yet."""
        found = await client.get(SELF_HOSTED_SHOOT_EXPOSURE, self._task.shoot.metadata.name, SELF_HOSTED_NAMESPACE)
        status, metadata = found.get("status") or {}, found["metadata"]
        asked = OPERATION in (metadata.get("annotations") or {})
        newest = not asked and status.get("observedGeneration") == metadata["generation"]
        succeeded = (status.get("lastOperation") or {}).get("state") == "Succeeded"
        if not newest or not succeeded or not status.get("ingress"):
            return ""
        return str(status["ingress"][0]["ip"])

    def _write(self, path: str, content: bytes, mode: int) -> None:
        write(self._machine, path, content, mode)


def ends_soon(task: InitTask) -> bool:
    """Whether a certificate of the machine's control plane is to be renewed."""
    secrets = _secrets(task)
    return any(map(secrets.ends_soon, control_plane.certificates(task, secrets.get(control_plane.CA)["ca.crt"])))


async def _ready(client: KubeClient) -> None:
    """Return once the API server is ready."""
    while True:
        try:
            await client.request("GET", "/readyz")
            return
        except ApiError:
            await asyncio.sleep(_LOOK_SECONDS)


async def _running(client: KubeClient, name: str, annotations: Mapping[str, str]) -> None:
    """Return once a static pod with these annotations is ready. The kubelet copies them to the API server."""
    while True:
        with contextlib.suppress(ApiError):
            found = await client.find(POD, name, SELF_HOSTED_NAMESPACE) or {"metadata": {}}
            copied = annotations.items() <= found["metadata"].get("annotations", {}).items()
            if copied and find_condition(found, "Ready").get("status") == "True":
                return
        await asyncio.sleep(_LOOK_SECONDS)


async def start_kubelet(machine: MachineSystem, version: str, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Install the kubelet with its files, and start it. A second run writes what differs, and starts it again."""
    path = f"/opt/kubernetes/{version}/kubelet"
    if not _exists(path):
        image = images.kubernetes("hyperkube", version)
        await machine.copy_from_image(image, "/usr/local/bin/kubelet", path, 0o755)
    for name, (content, mode) in files.items():
        write(machine, name, content, mode)
    await machine.systemctl("daemon-reload")
    await machine.systemctl("enable", control_plane.KUBELET_UNIT)
    await machine.systemctl("restart", control_plane.KUBELET_UNIT)


def write(machine: MachineSystem, path: str, content: bytes, mode: int) -> None:
    """Write a file of the machine, unless it is as it should be."""
    if not machine.holds(path, content, mode):
        machine.write(path, content, mode)


def _exists(path: str) -> bool:
    return Path(path).exists()


def _make_directory(path: str) -> None:
    Path(path).mkdir(parents=True, exist_ok=True)


def _secret(name: str, data: Mapping[str, bytes]) -> Object:
    """A Secret of the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SELF_HOSTED_NAMESPACE},
        "type": "Opaque",
        "data": {key: base64.b64encode(content).decode() for key, content in data.items()},
    }


def _secrets(task: InitTask) -> FileSecrets:
    return FileSecrets(task.directory / SECRETS)


@contextlib.asynccontextmanager
async def _cluster(task: InitTask) -> AsyncIterator[KubeClient]:
    """A client of the new cluster, as its administrator, at the machine's own API server."""
    text = _secrets(task).get(control_plane.ADMIN)["kubeconfig"].decode()
    async with KubeClient.from_kubeconfig(text) as client:
        yield client

"""Machines of the local cloud: one privileged pod for each machine, in the shoot's namespace of the cloud cluster.

All objects are named after the machine, so that a retry finds the objects that an earlier attempt created.
"""

import base64
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.provider import PROVIDER_TYPE, provider_section
from api.errors import ErrorCode
from api.local import MachineProviderSpec
from api.machine.codes import MachineCode
from api.resources import MACHINE_CLASS, POD, SECRET
from kube.cache import Cache
from kube.client import KubeClient, WatchEvent
from kube.errors import AlreadyExists
from workers.machine_controller_manager.driver import MachineError, ResolvedClass

_USER_DATA_FILE = "userdata"
_GRACE_SECONDS = 1
"""Short, because a machine that is deleted was drained before, or is deleted with its whole cluster."""
MACHINE_LABEL = "local.provider.extensions.gardener.cloud/machine"

_CODES: Mapping[str, MachineCode] = {
    ErrorCode.INFRA_UNAUTHENTICATED: MachineCode.UNAUTHENTICATED,
    ErrorCode.INFRA_UNAUTHORIZED: MachineCode.PERMISSION_DENIED,
    ErrorCode.CONFIGURATION_PROBLEM: MachineCode.INVALID_ARGUMENT,
    ErrorCode.RETRYABLE_INFRA_DEPENDENCIES: MachineCode.UNAVAILABLE,
}
"""Codes of provider-local's errors, as codes of machines."""


@dataclass(frozen=True)
class MachinePods:
    """The machines' pods in one cloud, from a watch cache. Equal if the cache is the same."""

    cache: Cache

    @property
    def is_complete(self) -> bool:
        return self.cache.is_synced

    def __contains__(self, name: object) -> bool:
        return self.cache.get(str(name)) is not None

    def subscribe(self, on_gone: Callable[[str], None]) -> Callable[[], None]:
        def report(event: WatchEvent) -> None:
            if event.type == "DELETED":
                on_gone(event.object["metadata"]["labels"][MACHINE_LABEL])

        return self.cache.subscribe(report)


class LocalDriver:
    """The ``Driver`` of machine classes with provider ``local``."""

    provider = PROVIDER_TYPE

    def __init__(self, clouds: Clouds | None = None) -> None:
        self._clouds = clouds or Clouds()

    async def create(self, machine: Mapping[str, Any], class_: ResolvedClass, user_data: bytes) -> str:
        """Create the Secret with the user data, then the pod. A second run finds both by the name of the machine."""
        name = _name(machine)
        with _machine_errors(f"creating machine {name}"):
            spec = _provider_spec(class_)
            cloud = await self._connect(class_)
            for each in (user_data_secret(name, spec.namespace, user_data), machine_pod(name, spec, class_.name)):
                with contextlib.suppress(AlreadyExists):
                    await cloud.create(each)
        return provider_id(name, spec)

    async def status(self, machine: Mapping[str, Any], class_: ResolvedClass) -> str:
        name = _name(machine)
        with _machine_errors(f"finding machine {name}"):
            spec = _provider_spec(class_)
            cloud = await self._connect(class_)
            if await cloud.find(POD, name, spec.namespace) is None:
                raise MachineError(MachineCode.NOT_FOUND, f"machine {name} has no pod {spec.namespace}/{name}")
        return provider_id(name, spec)

    async def delete(self, machine: Mapping[str, Any], class_: ResolvedClass) -> bool:
        name = _name(machine)
        with _machine_errors(f"deleting machine {name}"):
            namespace = _provider_spec(class_).namespace
            cloud = await self._connect(class_)
            pod = await cloud.find(POD, name, namespace)
            if pod is not None:
                if not pod["metadata"].get("deletionTimestamp"):
                    await cloud.delete(POD, name, namespace, uid=pod["metadata"]["uid"])
                return False
            await cloud.delete(SECRET, _secret_name(name), namespace)
        return True

    async def machines(self, class_: ResolvedClass) -> MachinePods:
        with _machine_errors(f"listing machines of {MACHINE_CLASS.kind} {class_.name}"):
            caches = await self._clouds.caches(class_.credentials, class_.credentials_secret)
            return MachinePods(caches.of(POD, _provider_spec(class_).namespace, labels=MACHINE_LABEL))

    async def close(self) -> None:
        await self._clouds.close()

    async def _connect(self, class_: ResolvedClass) -> KubeClient:
        return await self._clouds.connect(class_.credentials, class_.credentials_secret)


@contextlib.contextmanager
def _machine_errors(doing: str) -> Iterator[None]:
    """Turn errors of the cloud, and of the sections of a MachineClass, into errors of machines."""
    try:
        with cloud_errors(doing):
            yield
    except ApplicationError as error:
        raise MachineError(_CODES.get(error.type or "", MachineCode.INTERNAL), error.message) from None


def provider_id(name: str, spec: MachineProviderSpec) -> str:
    """``Machine.spec.providerID``."""
    return f"local:///{spec.namespace}/{name}"


def user_data_secret(name: str, namespace: str, script: bytes) -> dict[str, Any]:
    """Secret with the script that a machine boots with."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _secret_name(name), "namespace": namespace, "labels": {MACHINE_LABEL: name}},
        "type": "Opaque",
        "immutable": True,
        "data": {_USER_DATA_FILE: base64.b64encode(script).decode()},
    }


def machine_pod(name: str, spec: MachineProviderSpec, class_name: str) -> dict[str, Any]:
    """Pod that is the machine. Its first process is systemd. What the machine mounts and runs ends with the pod."""
    volumes: list[dict[str, Any]] = [
        {"name": "userdata", "secret": {"secretName": _secret_name(name), "defaultMode": 0o400}},
        {"name": "containerd", "emptyDir": {}},
        {"name": "kubelet", "emptyDir": {}},
        {"name": "run", "emptyDir": {"medium": "Memory"}},
        {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}},
    ]
    # No mount propagation: mounts of the kubelet in the pod must not stay behind on the cloud's host.
    mounts: list[dict[str, Any]] = [
        {"name": "userdata", "mountPath": "/etc/machine", "readOnly": True},
        {"name": "containerd", "mountPath": "/var/lib/containerd"},
        {"name": "kubelet", "mountPath": "/var/lib/kubelet"},
        {"name": "run", "mountPath": "/run"},
        {"name": "cgroup", "mountPath": "/sys/fs/cgroup"},
    ]
    if spec.images_directory:
        volumes.append({"name": "images", "hostPath": {"path": spec.images_directory, "type": "Directory"}})
        mounts.append({"name": "images", "mountPath": "/opt/images", "readOnly": True})
    requests = {"cpu": f"{spec.cpu_millis}m", "memory": str(spec.memory_bytes)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": {"app": "machine", MACHINE_LABEL: name},
            "annotations": {"machine.sapcloud.io/class": class_name},
        },
        "spec": {
            "hostname": name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "machine",
                    "image": spec.image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": "container", "value": "oci"}],
                    "securityContext": {"privileged": True},
                    "resources": {"requests": requests},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _name(machine: Mapping[str, Any]) -> str:
    return str(machine["metadata"]["name"])


def _provider_spec(class_: ResolvedClass) -> MachineProviderSpec:
    where = f"providerSpec of {MACHINE_CLASS.kind} {class_.name}"
    return provider_section(MachineProviderSpec, class_.object.get("providerSpec"), where)


def _secret_name(machine: str) -> str:
    return f"{machine}-user-data"

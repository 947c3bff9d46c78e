"""Machines of the local cloud: one privileged pod for each machine, in the shoot's namespace of the cloud cluster.

All objects are named after the machine, so that a retry finds the objects that an earlier attempt created.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.computers import computer_pod, user_data_name, user_data_secret
from activities.provider_local.provider import PROVIDER_TYPE, provider_section
from activities.provider_local.storage import DISKS_PATH
from api.errors import ErrorCode
from api.labels import ZONE
from api.local import DISKS_VOLUME, MACHINE_LABEL, MachineProviderSpec
from api.machine.codes import MachineCode
from api.resources import MACHINE_CLASS, POD, SECRET
from kube.cache import Cache
from kube.client import KubeClient, WatchEvent
from kube.errors import AlreadyExists
from workers.machine_controller_manager.driver import MachineError, ResolvedClass

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
        with _machine_errors(f"creating machine {name}", class_):
            spec = _provider_spec(class_)
            cloud = await self._connect(class_)
            secret = user_data_secret(name, spec.namespace, user_data, {MACHINE_LABEL: name})
            zone = (class_.object.get("nodeTemplate") or {}).get("zone", "")
            for each in (secret, machine_pod(name, spec, class_.name, zone)):
                with contextlib.suppress(AlreadyExists):
                    await cloud.create(each)
        return provider_id(name, spec)

    async def status(self, machine: Mapping[str, Any], class_: ResolvedClass) -> str:
        name = _name(machine)
        with _machine_errors(f"finding machine {name}", class_):
            spec = _provider_spec(class_)
            cloud = await self._connect(class_)
            if await cloud.find(POD, name, spec.namespace) is None:
                raise MachineError(MachineCode.NOT_FOUND, f"machine {name} has no pod {spec.namespace}/{name}")
        return provider_id(name, spec)

    async def delete(self, machine: Mapping[str, Any], class_: ResolvedClass) -> bool:
        name = _name(machine)
        with _machine_errors(f"deleting machine {name}", class_):
            namespace = _provider_spec(class_).namespace
            cloud = await self._connect(class_)
            pod = await cloud.find(POD, name, namespace)
            if pod is not None:
                if not pod["metadata"].get("deletionTimestamp"):
                    await cloud.delete(POD, name, namespace, uid=pod["metadata"]["uid"])
                return False
            await cloud.delete(SECRET, user_data_name(name), namespace)
        return True

    async def machines(self, class_: ResolvedClass) -> MachinePods:
        with _machine_errors(f"listing machines of {MACHINE_CLASS.kind} {class_.name}", class_):
            caches = await self._clouds.caches(class_.credentials, class_.credentials_secret)
            return MachinePods(caches.of(POD, _provider_spec(class_).namespace, labels=MACHINE_LABEL))

    async def close(self) -> None:
        await self._clouds.close()

    async def _connect(self, class_: ResolvedClass) -> KubeClient:
        return await self._clouds.connect(class_.credentials, class_.credentials_secret)


@contextlib.contextmanager
def _machine_errors(doing: str, class_: ResolvedClass) -> Iterator[None]:
    """Turn errors of the cloud, and of the sections of a MachineClass, into errors of machines."""
    try:
        with cloud_errors(doing, class_.credentials):
            yield
    except ApplicationError as error:
        raise MachineError(_CODES.get(error.type or "", MachineCode.INTERNAL), error.message) from None


def provider_id(name: str, spec: MachineProviderSpec) -> str:
    """``Machine.spec.providerID``."""
    return f"local:///{spec.namespace}/{name}"


def machine_pod(name: str, spec: MachineProviderSpec, class_name: str, zone: str = "") -> dict[str, Any]:
    """Pod that is the machine, in a zone of the cloud."""
    pod = computer_pod(
        name,
        spec.namespace,
        image=spec.image,
        labels={"app": "machine", MACHINE_LABEL: name, **({ZONE: zone} if zone else {})},
        cpu_millis=spec.cpu_millis,
        memory_bytes=spec.memory_bytes,
    )
    pod["metadata"]["annotations"] = {"machine.sapcloud.io/class": class_name}
    further = [("containerd", "/var/lib/containerd"), ("kubelet", "/var/lib/kubelet")]
    volumes: list[dict[str, Any]] = [{"name": each, "emptyDir": {}} for each, _ in further]
    mounts: list[dict[str, Any]] = [{"name": each, "mountPath": path} for each, path in further]
    if spec.images_directory:
        volumes.append({"name": "images", "hostPath": {"path": spec.images_directory, "type": "Directory"}})
        mounts.append({"name": "images", "mountPath": "/opt/images", "readOnly": True})
    if spec.disks_directory:
        attached = f"{spec.disks_directory}/{spec.namespace}/{name}"
        volumes.append({"name": DISKS_VOLUME, "hostPath": {"path": attached, "type": "DirectoryOrCreate"}})
        # The cloud attaches a disk to a machine that runs by a mount in this directory.
        mounts.append({"name": DISKS_VOLUME, "mountPath": DISKS_PATH, "mountPropagation": "HostToContainer"})
    pod["spec"]["volumes"] += volumes
    pod["spec"]["containers"][0]["volumeMounts"] += mounts
    return pod


def _name(machine: Mapping[str, Any]) -> str:
    return str(machine["metadata"]["name"])


def _provider_spec(class_: ResolvedClass) -> MachineProviderSpec:
    where = f"providerSpec of {MACHINE_CLASS.kind} {class_.name}"
    return provider_section(MachineProviderSpec, class_.object.get("providerSpec"), where)

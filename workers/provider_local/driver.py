"""Machines of the local cloud: one privileged pod for each machine, in the shoot's namespace of the cloud cluster.

This is the only module here that knows a provider. All objects are named after the machine, so that a retry finds the
objects that an earlier attempt created.
"""

import base64
from collections.abc import Mapping
from typing import Any

from activities.errors import permanent
from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.provider import provider_section
from api.errors import ErrorCode
from api.local import MachineProviderSpec
from api.machine.names import USER_DATA_KEY
from api.resources import MACHINE_CLASS, POD, SECRET
from kube.cache import Cache
from kube.client import KubeClient
from kube.errors import AlreadyExists

_USER_DATA_FILE = "userdata"
_GRACE_SECONDS = 1
"""Short, because a machine that is deleted was drained before, or is deleted with its whole cluster."""
MACHINE_LABEL = "local.provider.extensions.gardener.cloud/machine"


class Driver:
    """Creates, finds and deletes machines by their MachineClass.

    Errors are ``ApplicationError``, with a code if a person must fix something.
    """

    def __init__(self, seed: KubeClient, clouds: Clouds, namespace: str) -> None:
        self._seed = seed
        self._clouds = clouds
        self._namespace = namespace

    async def create(self, machine: Mapping[str, Any], class_: Mapping[str, Any], token: str) -> str:
        """Create a machine; returns its provider id. ``token``: the token with which it may join its cluster."""
        name = str(machine["metadata"]["name"])
        spec = _provider_spec(class_)
        user_data = await self._user_data(class_)
        script = fill_in(user_data, name, token)
        secret = user_data_secret(name, spec.namespace, script)
        pod = machine_pod(name, spec, str(class_["metadata"]["name"]))
        with cloud_errors(f"creating machine {name}"):
            cloud = await self._connect(class_)
            for each in (secret, pod):
                try:
                    await cloud.create(each)
                except AlreadyExists:
                    continue  # created by an earlier attempt: no other machine has this name
        return provider_id(name, spec)

    async def exists(self, machine: Mapping[str, Any], class_: Mapping[str, Any]) -> bool:
        """Whether the machine exists, running or not yet. Reads it from the cloud itself, not from a cache."""
        name = str(machine["metadata"]["name"])
        with cloud_errors(f"looking for machine {name}"):
            cloud = await self._connect(class_)
            return await cloud.find(POD, name, _provider_spec(class_).namespace) is not None

    async def delete(self, machine: Mapping[str, Any], class_: Mapping[str, Any]) -> bool:
        """Delete a machine and its Secret. Returns True once both are gone."""
        name = str(machine["metadata"]["name"])
        namespace = _provider_spec(class_).namespace
        with cloud_errors(f"deleting machine {name}"):
            cloud = await self._connect(class_)
            pod = await cloud.find(POD, name, namespace)
            if pod is not None:
                if not pod["metadata"].get("deletionTimestamp"):
                    await cloud.delete(POD, name, namespace, uid=pod["metadata"]["uid"])
                return False
            await cloud.delete(SECRET, _secret_name(name), namespace)
        return True

    async def pods(self, class_: Mapping[str, Any]) -> Cache:
        """A cache of the machines' pods, for events when a pod is added, changed or deleted."""
        caches = await self._clouds.caches(*await self._credentials(class_))
        return caches.of(POD, _provider_spec(class_).namespace, labels=MACHINE_LABEL)

    async def _connect(self, class_: Mapping[str, Any]) -> KubeClient:
        return await self._clouds.connect(*await self._credentials(class_))

    async def _credentials(self, class_: Mapping[str, Any]) -> tuple[Mapping[str, str], str]:
        reference = class_["credentialsSecretRef"]
        where = f"{self._namespace}/{reference['name']}"
        secret = await self._seed.find(SECRET, reference["name"], self._namespace)
        if secret is None:
            raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"Secret {where} with the cloud's credentials is gone")
        return secret.get("data") or {}, where

    async def _user_data(self, class_: Mapping[str, Any]) -> bytes:
        name = class_["secretRef"]["name"]
        secret = await self._seed.find(SECRET, name, self._namespace)
        encoded = ((secret or {}).get("data") or {}).get(USER_DATA_KEY)
        if encoded is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"Secret {self._namespace}/{name} has no key {USER_DATA_KEY}, which machines of"
                f" {MACHINE_CLASS.kind} {class_['metadata']['name']} boot with",
            )
        return base64.b64decode(encoded)


def fill_in(user_data: bytes, machine: str, token: str) -> bytes:
    """User data of one machine: its name and its token in place of the placeholders."""
    return user_data.replace(b"<<BOOTSTRAP_TOKEN>>", token.encode()).replace(b"<<MACHINE_NAME>>", machine.encode())


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


def _provider_spec(class_: Mapping[str, Any]) -> MachineProviderSpec:
    where = f"providerSpec of {MACHINE_CLASS.kind} {class_['metadata']['name']}"
    return provider_section(MachineProviderSpec, class_.get("providerSpec"), where)


def _secret_name(machine: str) -> str:
    return f"{machine}-user-data"

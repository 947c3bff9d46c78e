"""Further machines of a self-hosted Shoot: steps of ``gardener shoot join``, and the keys of its control plane.

A machine of the control plane gets authorities and keys from a Secret of the cluster. The Secret is encrypted with a
key that only the file of that one machine has, and the token in the file alone may read the Secret.
"""

import asyncio
import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temporalio import activity

from activities.components import static_etcd
from activities.components.etcd import CLIENT_PORT
from activities.heartbeat import heartbeating
from activities.secrets.sealing import Sealing
from activities.self_hosted import control_plane
from activities.self_hosted.init import MachineSystem, start_kubelet
from activities.self_hosted.secrets import FileSecrets
from api.contracts.operations import ShootRef
from api.contracts.self_hosted import (
    BACKUP_CREDENTIALS,
    CREDENTIALS,
    DNS_CREDENTIALS,
    EXISTING,
    MANIFEST,
    PROFILE,
    RECOVERY_KEY,
    SECRETS,
    UID,
    JoinTask,
    SelfHostedManifest,
)
from api.decisions.conditions import find_condition
from api.resources import NODE
from kube.client import KubeClient
from kube.errors import ApiError
from kube.kubeconfig import KubeconfigError

_FILES = (MANIFEST, UID, CREDENTIALS, PROFILE, BACKUP_CREDENTIALS, DNS_CREDENTIALS, RECOVERY_KEY)
"""Files that each machine of the control plane has."""
_ITEM = "join"
_LOOK_SECONDS = 1.0
KEY_BYTES = 32


class JoinActivities:
    """One instance in the process of ``gardener shoot join``, on a machine without a control plane.

    Like those of ``gardener shoot init``, the steps have no inputs and no results.
    """

    def __init__(self, machine: MachineSystem, task: JoinTask) -> None:
        self._machine = machine
        self._task = task

    @activity.defn
    async def start_joining_kubelet(self) -> None:
        """Install the kubelet with its bootstrap token, and start it. A second run writes what differs."""
        join = self._task.join
        if join.address != join.shoot.host:
            self._machine.name_host(join.shoot.host, join.address)
        files = control_plane.joining_kubelet_files(self._task)
        await start_kubelet(self._machine, join.shoot.spec.kubernetes.version, files)

    @activity.defn
    async def wait_joining_node(self) -> None:
        """Wait until the kubelet has its certificate, and its Node is Ready."""
        await heartbeating(self._ready())

    async def _ready(self) -> None:
        while True:
            try:
                async with KubeClient.from_kubeconfig(control_plane.KUBELET_KUBECONFIG) as client:
                    node = await client.find(NODE, self._task.join.node)
                if find_condition(node, "Ready").get("status") == "True":
                    return
            except (OSError, KubeconfigError, ApiError):
                pass  # the kubelet has no certificate yet
            await asyncio.sleep(_LOOK_SECONDS)


def seal(directory: Path, manifest: SelfHostedManifest, key: bytes, members: list[str]) -> str:
    """Files that a further machine of the control plane needs, encrypted. ``members``: addresses of members of etcd."""
    secrets = FileSecrets(directory / SECRETS)
    names = [each.name for each in control_plane.authorities()]
    if secrets.has(static_etcd.BACKUP):
        names.append(static_etcd.BACKUP)
    content = {
        "files": {name: _text((directory / name).read_bytes()) for name in _FILES if (directory / name).exists()},
        "secrets": {name: {entry: _text(value) for entry, value in secrets.get(name).items()} for name in names},
        "clients": [f"https://{address}:{CLIENT_PORT}" for address in members],
    }
    return json.dumps(_sealing(manifest, key).seal(content, _shoot(manifest), _ITEM))


def take(directory: Path, manifest: SelfHostedManifest, key: bytes, sealed: str) -> None:
    """Make the state directory of a further machine. A second run makes what is missing.

    Raises CannotOpen, ``api.compression.TooLarge`` or ValueError.
    """
    content: dict[str, Any] = _sealing(manifest, key).open(json.loads(sealed), _shoot(manifest), _ITEM)
    _write(directory / EXISTING, static_etcd.existing(content["clients"]))
    for name in _FILES:
        if name in content["files"]:
            _write(directory / name, _bytes(content["files"][name]))
    secrets = FileSecrets(directory / SECRETS)
    # The first authority comes last: the machine has everything when it has this one.
    found: Mapping[str, Mapping[str, str]] = content["secrets"]
    for name in sorted(found, key=lambda name: name == control_plane.CA):
        secrets.keep(name, {entry: _bytes(value) for entry, value in found[name].items()})


def _sealing(manifest: SelfHostedManifest, key: bytes) -> Sealing:
    return Sealing(manifest.technical_id, {"join": key})


def _shoot(manifest: SelfHostedManifest) -> ShootRef:
    return ShootRef(namespace=manifest.metadata.namespace, name=manifest.metadata.name, uid="")


def _write(path: Path, content: bytes) -> None:
    if not path.exists():
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        unfinished.rename(path)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)

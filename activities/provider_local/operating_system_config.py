"""OperatingSystemConfig of type ``local``: a shell script in a Secret for a machine's first boot.

Purpose ``reconcile`` needs no script: the node agent applies units and files itself. For in-place updates it gets the
command that updates the operating system.
"""

import base64
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from activities.errors import permanent
from activities.extension import Extension, delete_quietly
from activities.provider_local.provider import MANAGER, LocalActuator
from api.errors import ErrorCode
from api.resources import OPERATING_SYSTEM_CONFIG, SECRET
from kube.client import KubeClient

CLOUD_CONFIG_KEY = "cloud_config"
_MAX_BYTES = 16 * 1024
"""Maximum size of user data in bytes that clouds accept."""
_UNIT_DIRECTORY = "/etc/systemd/system"
_DEFAULT_PERMISSIONS = 0o644
_UPDATE = r"""
name='^\(PRETTY_NAME=".*\)"$'
release=$(sed -e '/^IMAGE_VERSION=/d' -e 's/^\(PRETTY_NAME=".*\) (image [^)]*)"$/\1"/' /etc/os-release |
    sed "s/$name/\1 (image $1)\"/")
printf '%s\nIMAGE_VERSION=%s\n' "$release" "$1" > /etc/os-release.new
mv -T /etc/os-release.new /etc/os-release
systemctl try-restart --no-block kubelet.service
"""
"""Script that updates a machine of the local cloud to the image version ``$1``.

All images of the local cloud hold the same files but for the version, so the version is all that changes. A kubelet
reports the name of the operating system that it has read at its start. A second run of the script does the same again.
"""


class OperatingSystemConfigActuator(LocalActuator):
    """Makes user data of an OperatingSystemConfig with purpose ``provision``."""

    resource = OPERATING_SYSTEM_CONFIG

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        if extension.spec["purpose"] != "provision":
            updates = extension.spec.get("inPlaceUpdates")
            return {"inPlaceUpdates": {"osUpdate": update_command(updates)}} if updates else {}
        script = user_data(extension.spec, await self._referenced_secrets(extension))
        if len(script.encode()) > _MAX_BYTES:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"user data of {extension} would have {len(script.encode())} bytes, at most {_MAX_BYTES} fit",
            )
        name = result_name(extension)
        await self._seed.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": name,
                    "namespace": extension.namespace,
                    "ownerReferences": [extension.owner_reference()],
                },
                "type": "Opaque",
                "data": {CLOUD_CONFIG_KEY: base64.b64encode(script.encode()).decode()},
            },
            manager=MANAGER,
        )
        return {"cloudConfig": {"secretRef": {"name": name, "namespace": extension.namespace}}}

    async def delete(self, extension: Extension) -> None:
        await delete_quietly(self._seed, SECRET, result_name(extension), extension.namespace)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        await self.delete(extension)
        return {}

    async def force_delete(self, extension: Extension) -> None:
        await self.delete(extension)

    async def _referenced_secrets(self, extension: Extension) -> dict[str, Mapping[str, str]]:
        names = {
            file["content"]["secretRef"]["name"]
            for file in extension.spec.get("files") or []
            if file["content"].get("secretRef")
        }
        return {name: await _data(self._seed, extension, name) for name in sorted(names)}


def update_command(updates: Mapping[str, Any]) -> dict[str, Any]:
    """Command by which a machine gets the wanted version of the operating system."""
    version = str(updates["operatingSystemVersion"])
    return {"command": "/bin/sh", "args": ["-euc", _UPDATE, "update-operating-system", version]}


def result_name(extension: Extension) -> str:
    """Name of the Secret that holds the user data."""
    return f"osc-result-{extension.name}"


def user_data(spec: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Shell script that writes the files, then the units, then starts them.

    The script runs as few programs and calls systemd as few times as possible, because a machine joins only after the
    script.

    ``secrets``: base64 data by name, for files that take their content from a Secret.
    Raises ApplicationError for content that is not possible at a first boot.
    """
    units = spec.get("units") or []
    writes: list[str] = []
    directories: set[str] = set()
    for file in spec.get("files") or []:
        directories.add(posixpath.dirname(file["path"]))
        writes += _write(file["path"], _content(file, secrets), file)
    for unit in units:
        for path, content in _unit_files(unit).items():
            directories.add(posixpath.dirname(path))
            writes += _write(path, content.encode())
    lines = ["#!/bin/bash", "set -euo pipefail", "umask 022"]
    if directories:
        lines.append("mkdir -p " + " ".join(map(shlex.quote, sorted(directories))))
    return "\n".join([*lines, *writes, *_unit_commands(units)]) + "\n"


def _content(file: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> bytes:
    content = file["content"]
    if inline := content.get("inline"):
        data: str = inline["data"]
        return base64.b64decode(data) if inline.get("encoding") == "b64" else data.encode()
    if reference := content.get("secretRef"):
        try:
            return base64.b64decode(secrets[reference["name"]][reference["dataKey"]])
        except KeyError:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"file {file['path']} refers to key {reference['dataKey']} of Secret {reference['name']},"
                " which does not exist",
            ) from None
    raise permanent(
        ErrorCode.CONFIGURATION_PROBLEM,
        f"file {file['path']} comes from an image, which is possible only with purpose reconcile",
    )


def _write(path: str, content: bytes, file: Mapping[str, Any] | None = None) -> list[str]:
    file = file or {}
    target = shlex.quote(path)
    permissions = file.get("permissions")
    mode = _DEFAULT_PERMISSIONS if permissions is None else permissions
    # Set the permissions before the content is written, so that no other user can ever read a secret.
    lines = [] if mode == _DEFAULT_PERMISSIONS else [f"(umask 077; : > {target}); chmod {mode:04o} {target}"]
    if (file.get("content") or {}).get("transmitUnencoded"):
        # Not encoded, so that placeholders can be replaced. printf adds no newline at the end.
        return [*lines, f"printf %s {shlex.quote(content.decode())} > {target}"]
    return [*lines, f"base64 -d > {target} <<< {base64.b64encode(content).decode()}"]


def _unit_files(unit: Mapping[str, Any]) -> dict[str, str]:
    """Content of a unit's files, by path."""
    path = f"{_UNIT_DIRECTORY}/{unit['name']}"
    files = {path: unit["content"]} if unit.get("content") else {}
    return files | {f"{path}.d/{drop_in['name']}": drop_in["content"] for drop_in in unit.get("dropIns") or []}


def _unit_commands(units: Sequence[Mapping[str, Any]]) -> list[str]:
    """Calls of systemctl: one call for each command, with all its units. systemd reads its files once."""
    if not units:
        return []
    by_command: dict[str, list[str]] = {}
    for unit in units:
        name = shlex.quote(unit["name"])
        if unit.get("enable") is False:
            by_command.setdefault("--no-reload disable", []).append(name)
            continue
        by_command.setdefault("--no-reload enable", []).append(name)
        # Do not wait: a unit may need another unit of this script.
        by_command.setdefault(f"--no-block {unit.get('command') or 'restart'}", []).append(name)
    switches = [command for command in by_command if command.startswith("--no-reload")]
    starts = [command for command in by_command if command not in switches]
    calls = [f"systemctl {command} {' '.join(by_command[command])}" for command in switches]
    calls.append("systemctl daemon-reload")
    return [*calls, *(f"systemctl {command} {' '.join(by_command[command])}" for command in starts)]


async def _data(seed: KubeClient, extension: Extension, name: str) -> Mapping[str, str]:
    secret = await seed.find(SECRET, name, extension.namespace)
    return {} if secret is None else secret.get("data") or {}

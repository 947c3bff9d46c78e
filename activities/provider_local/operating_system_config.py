"""OperatingSystemConfig of type ``local``: the first boot as a shell script in a Secret.

Purpose ``reconcile`` needs nothing from us: the node agent applies units and files itself.
"""

import base64
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from activities.errors import permanent
from activities.kube.client import KubeClient
from activities.provider_local.extension import MANAGER, Actuator, Extension, delete_quietly
from api.errors import ErrorCode
from api.resources import OPERATING_SYSTEM_CONFIG, SECRET

CLOUD_CONFIG_KEY = "cloud_config"
_MAX_BYTES = 16 * 1024
"""Clouds take no more user data than this."""
_UNIT_DIRECTORY = "/etc/systemd/system"
_DEFAULT_PERMISSIONS = 0o644


class OperatingSystemConfigActuator(Actuator):
    """Turns purpose ``provision`` into user data."""

    resource = OPERATING_SYSTEM_CONFIG

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        if extension.spec["purpose"] != "provision":
            return {}
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


def result_name(extension: Extension) -> str:
    """Secret that holds the user data."""
    return f"osc-result-{extension.name}"


def user_data(spec: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Shell script that writes the files, then the units, then starts them.

    ``secrets``: base64 data by name, for files that take their content from a Secret.
    Raises ApplicationError for content that a first boot cannot have.
    """
    lines = ["#!/bin/bash", "set -euo pipefail"]
    for file in spec.get("files") or []:
        lines += _write(file["path"], _content(file, secrets), file)
    units = spec.get("units") or []
    for unit in units:
        lines += _unit_files(unit)
    if units:
        lines.append("systemctl daemon-reload")
    for unit in units:
        lines += _unit_commands(unit)
    return "\n".join(lines) + "\n"


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
    lines = [f"mkdir -p {shlex.quote(posixpath.dirname(path))}"]
    if (file.get("content") or {}).get("transmitUnencoded"):
        # In the clear, so that placeholders can be replaced. printf adds no line end of its own.
        lines.append(f"printf %s {shlex.quote(content.decode())} > {target}")
    else:
        lines.append(f"base64 -d > {target} <<< {base64.b64encode(content).decode()}")
    return [*lines, f"chmod {mode:04o} {target}"]


def _unit_files(unit: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    path = f"{_UNIT_DIRECTORY}/{unit['name']}"
    if unit.get("content"):
        lines += _write(path, unit["content"].encode())
    for drop_in in unit.get("dropIns") or []:
        lines += _write(f"{path}.d/{drop_in['name']}", drop_in["content"].encode())
    return lines


def _unit_commands(unit: Mapping[str, Any]) -> Sequence[str]:
    name = shlex.quote(unit["name"])
    if unit.get("enable") is False:
        return [f"systemctl disable {name}"]
    command = unit.get("command") or "restart"
    # Without waiting: a unit may need another one of this script.
    return [f"systemctl enable {name}", f"systemctl --no-block {command} {name}"]


async def _data(seed: KubeClient, extension: Extension, name: str) -> Mapping[str, str]:
    secret = await seed.find(SECRET, name, extension.namespace)
    return {} if secret is None else secret.get("data") or {}

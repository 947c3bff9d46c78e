"""Applies an operating system config to the machine, in the order of spec/extensions.md 7, step 6.

It compares with the machine before it writes: what is already as wanted stays as it is. So a second run does nothing,
and the first run after the first boot restarts nothing.
"""

import base64
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.node_agent import containerd
from workers.node_agent.init import write_private
from workers.node_agent.system import System

log = logging.getLogger(__name__)

OWN_UNIT = "gardener-node-agent.service"
KUBELET_UNIT = "kubelet.service"
_CONTAINERD_UNIT = "containerd.service"
_UNITS = "/etc/systemd/system"
_DEFAULT_MODE = 0o644

Document = Mapping[str, Any]
"""An operating system config as its Secret has it, or ``{}``."""


def _read(file: Path) -> dict[str, Any] | None:
    """Content of a file of the agent's state; None if there is no such file, or if it was cut off."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        log.warning("%s is cut off, and is not used", file)
        return None
    return found


def _store(file: Path, content: Mapping[str, Any]) -> None:
    """Replace a file of the agent's state as a whole, readable by root alone: configurations hold credentials."""
    write_private(file, json.dumps(content, sort_keys=True).encode())


class Changes:
    """Changed files and units for which no unit was restarted yet.

    A change is stored before it is made, so that no restart is missed after a run that was killed.
    """

    def __init__(self, note: Path) -> None:
        self._note = note
        noted = _read(note) or {}
        self.files = set(noted.get("files", ()))
        self.units = set(noted.get("units", ()))
        """Names of units whose own definition has changed."""

    def file(self, path: str) -> None:
        self.files.add(path)
        self._save()

    def unit(self, name: str) -> None:
        self.units.add(name)
        self._save()

    def done(self) -> None:
        self._note.unlink(missing_ok=True)

    def _save(self) -> None:
        _store(self._note, {"files": sorted(self.files), "units": sorted(self.units)})


class Applier:
    """Brings a machine from the config that was applied last to the wanted one."""

    def __init__(self, system: System, state_directory: Path, node_name: str) -> None:
        self._system = system
        self._last_file = state_directory / "last-applied-osc.yaml"
        self._pending_file = state_directory / "pending-changes.json"
        self._before_file = state_directory / "previous-osc.yaml"
        self._refused_file = state_directory / "refused-osc.json"
        self._rotations_file = state_directory / "rotations.json"
        self._node_name = node_name
        self._kubelet_restarted = False

    @property
    def on_trial(self) -> Document | None:
        """The configuration before the last one, as long as the kubelet has not shown that it starts with the last."""
        return _read(self._before_file)

    def confirm(self) -> None:
        """The kubelet starts with the configuration that was applied last."""
        self._before_file.unlink(missing_ok=True)
        self._refused_file.unlink(missing_ok=True)

    @property
    def refused(self) -> tuple[str, str]:
        """Checksum of the configuration that was taken back, and why; both are empty if there is none."""
        noted = _read(self._refused_file) or {}
        return noted.get("checksum", ""), noted.get("reason", "")

    async def take_back(self, checksum: str, reason: str) -> bool:
        """Apply the configuration before the last one again. Returns what ``apply`` returns; False if there is none.

        The reason is stored first, so that an agent that was killed meanwhile does not try the configuration again.
        Call this again after such an end: some files may be those of the configuration before already.
        """
        before = self.on_trial
        if before is None:
            return False
        _store(self._refused_file, {"checksum": checksum, "reason": reason})
        restart_self = await self.apply(before)
        self._before_file.unlink(missing_ok=True)
        return restart_self

    def noted_rotations(self) -> dict[str, str]:
        """Starts of the rotations whose credentials the machine has, by kind."""
        return _read(self._rotations_file) or {}

    def note_rotations(self, rotations: Mapping[str, str], *, again: bool = False) -> None:
        """Store the rotations whose credentials the machine has; once, at its first boot, or ``again``."""
        if again or not self._rotations_file.exists():
            _store(self._rotations_file, rotations)

    def last_applied(self) -> Document:
        return _read(self._last_file) or {}

    async def apply(self, wanted: Document, *, on_trial: bool = False) -> bool:
        """Apply a config. Returns whether the agent's own unit or files have changed, so that it must be restarted.

        ``on_trial``: if the config restarts the kubelet, the one before is kept until ``confirm`` or ``take_back``.

        Raises CommandFailed or OSError; the next run goes on where this run stopped.
        """
        last, spec = self.last_applied(), wanted["spec"]
        files = [file for file in spec.get("files") or () if file.get("hostName") in (None, "", self._node_name)]
        units = list(spec.get("units") or ())
        starts_trial = on_trial and bool(last) and last != wanted and self.on_trial is None
        if starts_trial:
            _store(self._before_file, last)
        changes = Changes(self._pending_file)
        self._containerd(spec.get("criConfig") or {}, last.get("spec", {}).get("criConfig") or {}, changes)
        for file in files:
            if "imageRef" not in file["content"]:
                self._write(file, changes)
        for file in files:
            if "imageRef" in file["content"]:
                await self._write_from_image(file, last, changes)
        for unit in units:
            self._write_unit(unit, changes)
        gone = {unit["name"]: unit for unit in _of(last, "units")}
        for unit in units:
            gone.pop(unit["name"], None)
        await self._remove_units(gone.values(), changes)
        if changes.units:
            await self._system.systemctl("daemon-reload")
        restart_self = await self._command_units(units, changes)
        if starts_trial and not self._kubelet_restarted:
            self._before_file.unlink()
        for path in {file["path"] for file in _of(last, "files")} - {file["path"] for file in files}:
            self._system.remove(path)
        _store(self._last_file, wanted)
        changes.done()
        return restart_self

    def _containerd(self, cri: Mapping[str, Any], last: Mapping[str, Any], changes: Changes) -> None:
        if not cri:
            return
        # containerd reads these files again for each pull, so it needs no restart.
        wanted, before = (containerd.registry_files(each) for each in (cri, last))
        for path, content in wanted.items():
            if not self._system.holds(path, content.encode(), _DEFAULT_MODE):
                self._system.write(path, content.encode(), _DEFAULT_MODE)
        for path in before.keys() - wanted.keys():
            self._system.remove(path)
        present = self._system.path(containerd.CONFIG)
        text = present.read_text() if present.exists() else "version = 2\n"
        changed = containerd.changed_config(text, cri, last)
        if changed is not None:
            changes.file(containerd.CONFIG)
            self._system.write(containerd.CONFIG, changed.encode(), _DEFAULT_MODE)

    def _write(self, file: Mapping[str, Any], changes: Changes) -> None:
        inline = file["content"]["inline"]
        data: str = inline["data"]
        content = base64.b64decode(data) if inline.get("encoding") == "b64" else data.encode()
        mode = _mode(file)
        if not self._system.holds(file["path"], content, mode):
            changes.file(file["path"])
            self._system.write(file["path"], content, mode)

    async def _write_from_image(self, file: Mapping[str, Any], last: Document, changes: Changes) -> None:
        path, reference = file["path"], file["content"]["imageRef"]
        if self._system.path(path).exists():
            before = next((each for each in _of(last, "files") if each["path"] == path), None)
            # Without a record, the file came with the machine image, and its path names its version.
            if before is None or before["content"].get("imageRef") == reference:
                return
        changes.file(path)
        await self._system.copy_from_image(reference["image"], reference["filePathInImage"], path, _mode(file))

    def _write_unit(self, unit: Mapping[str, Any], changes: Changes) -> None:
        wanted: dict[str, str] = {}
        if unit.get("content"):
            wanted[f"{_UNITS}/{unit['name']}"] = unit["content"]
        drop_ins = f"{_UNITS}/{unit['name']}.d"
        for drop_in in unit.get("dropIns") or ():
            wanted[f"{drop_ins}/{drop_in['name']}"] = drop_in["content"]
        for path, content in wanted.items():
            if not self._system.holds(path, content.encode(), _DEFAULT_MODE):
                changes.unit(unit["name"])
                self._system.write(path, content.encode(), _DEFAULT_MODE)
        before = {f"{drop_ins}/{each['name']}" for each in self._last_drop_ins(unit["name"])}
        for path in before - wanted.keys():
            changes.unit(unit["name"])
            self._system.remove(path)

    def _last_drop_ins(self, name: str) -> Iterable[Mapping[str, Any]]:
        unit = next((each for each in _of(self.last_applied(), "units") if each["name"] == name), {})
        return unit.get("dropIns") or ()

    async def _remove_units(self, units: Iterable[Mapping[str, Any]], changes: Changes) -> None:
        for unit in units:
            name = unit["name"]
            log.info("unit %s is no longer wanted", name)
            changes.unit(name)
            if await self._system.unit_is("active", name):
                await self._system.systemctl("stop", name)
            if unit.get("content"):
                await self._system.systemctl("disable", name)
                self._system.remove(f"{_UNITS}/{name}")
            for drop_in in unit.get("dropIns") or ():
                self._system.remove(f"{_UNITS}/{name}.d/{drop_in['name']}")

    async def _command_units(self, units: Iterable[Mapping[str, Any]], changes: Changes) -> bool:
        """Enable, start, stop and restart units. Returns whether the agent's own unit is to be restarted."""
        restart_self = self._kubelet_restarted = False
        for unit in units:
            name = unit["name"]
            enable = unit.get("enable")
            if enable is not None and enable != await self._system.unit_is("enabled", name):
                await self._system.systemctl("enable" if enable else "disable", name)
            changed = name in changes.units or bool(changes.files.intersection(unit.get("filePaths") or ()))
            if name == _CONTAINERD_UNIT:
                changed = changed or containerd.CONFIG in changes.files
            if name == OWN_UNIT:
                restart_self = changed
                continue
            active = await self._system.unit_is("active", name)
            if unit.get("command") == "stop" or enable is False:
                if active:
                    await self._system.systemctl("stop", name)
            elif changed:
                log.info("restarting %s: it has changed", name)
                await self._system.systemctl("restart", "--no-block", name)
                self._kubelet_restarted |= name == KUBELET_UNIT
            elif not active and unit.get("command") == "start":
                await self._system.systemctl("start", "--no-block", name)
        return restart_self


def _of(document: Document, part: str) -> list[dict[str, Any]]:
    return list((document.get("spec") or {}).get(part) or ())


def _mode(file: Mapping[str, Any]) -> int:
    permissions = file.get("permissions")
    return _DEFAULT_MODE if permissions is None else int(permissions)

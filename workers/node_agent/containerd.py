"""containerd's configuration: that of the machine image, with the changes that the operating system config requires."""

import copy
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

CONFIG = "/etc/containerd/config.toml"
REGISTRIES = "/etc/containerd/certs.d"

_CRI = ("plugins", "io.containerd.grpc.v1.cri")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def changed_config(text: str, cri: Mapping[str, Any], last: Mapping[str, Any]) -> str | None:
    """The new configuration, or None if the current one already holds all that ``criConfig`` requires.

    ``last``: the ``criConfig`` that was applied last. Plugins that only it added are removed.
    """
    present = tomllib.loads(text)
    wanted = copy.deepcopy(present)
    containerd = cri.get("containerd") or {}
    if image := containerd.get("sandboxImage"):
        _set(wanted, (*_CRI, "sandbox_image"), image)
    if driver := cri.get("cgroupDriver"):
        runc = (*_CRI, "containerd", "runtimes", "runc", "options", "SystemdCgroup")
        _set(wanted, runc, driver == "systemd")
    if containerd.get("registries"):
        _set(wanted, (*_CRI, "registry", "config_path"), REGISTRIES)
    plugins = containerd.get("plugins") or ()
    kept = [plugin["path"] for plugin in plugins]
    for plugin in (last.get("containerd") or {}).get("plugins") or ():
        if plugin.get("op", "add") == "add" and plugin["path"] not in kept:
            _remove(wanted, ("plugins", *plugin["path"]))
    for plugin in plugins:
        path = ("plugins", *plugin["path"])
        if plugin.get("op", "add") == "remove":
            _remove(wanted, path)
        else:
            _merge(wanted, path, plugin.get("values") or {})
    return None if wanted == present else to_toml(wanted)


def registry_files(cri: Mapping[str, Any]) -> dict[str, str]:
    """Content, by path, of the files with the hosts from which images of registries are pulled."""
    registries = (cri.get("containerd") or {}).get("registries") or ()
    return {f"{REGISTRIES}/{each['upstream']}/hosts.toml": _registry_hosts(each) for each in registries}


def _registry_hosts(registry: Mapping[str, Any]) -> str:
    document: dict[str, Any] = {}
    if registry.get("server"):
        document["server"] = registry["server"]
    hosts = {}
    for host in registry.get("hosts") or ():
        entry: dict[str, Any] = {"capabilities": host.get("capabilities") or ["pull", "resolve"]}
        if host.get("caCerts"):
            entry["ca"] = host["caCerts"]
        if host.get("overridePath"):
            entry["override_path"] = True
        hosts[host["url"]] = entry
    if hosts:
        document["host"] = hosts
    return to_toml(document)


def to_toml(document: Mapping[str, Any]) -> str:
    """TOML of tables, strings, numbers, booleans and lists of these. containerd's configuration has no other values."""
    lines: list[str] = []
    _table(document, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (values or not table):
        lines += ["", "[" + ".".join(map(_key, path)) + "]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _table(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    # Strings, numbers and booleans are written in TOML as in JSON.
    return json.dumps(value)


def _set(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document.setdefault(key, {})
    document[path[-1]] = value


def _merge(document: dict[str, Any], path: tuple[str, ...], values: Mapping[str, Any]) -> None:
    for key in path:
        document = document.setdefault(key, {})
    for name, value in values.items():
        if isinstance(value, Mapping):
            _merge(document, (name,), value)
        else:
            document[name] = value


def _remove(document: dict[str, Any], path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        if key not in document:
            return
        document = document[key]
    document.pop(path[-1], None)

"""Validation of kubeconfigs that projects keep in Secrets: an API server reaches webhooks by them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from api.validation.certificates import check_bundle
from api.validation.field import Faults, Path
from api.validation.hosts import check_https
from api.validation.yaml_files import load_mapping

KUBECONFIG_KEY = "kubeconfig"
"""Key of a Secret with the kubeconfig of a webhook."""
_CLUSTER = frozenset({"server", "certificate-authority-data", "tls-server-name", "disable-compression", "extensions"})
_USER = frozenset({"token", "client-certificate-data", "client-key-data", "username", "password", "extensions"})
_DANGEROUS = frozenset(
    {
        *("exec", "auth-provider", "tokenFile", "client-certificate", "client-key", "certificate-authority"),
        "insecure-skip-tls-verify",
    }
)
_CONTEXT = frozenset({"cluster", "user", "namespace", "extensions"})


def parse_kubeconfig(text: str, *, connects: bool) -> tuple[dict[str, Any] | None, Faults]:
    """A tenant's kubeconfig with which an API server reaches a webhook, and its faults.

    It holds its credentials and CA certificates itself. Refused are programs, files, proxies and connections that are
    not verified: the API server would run, read or use them inside the control plane. ``connects``: the kubeconfig
    names the server, in its current context; admission plugins take only credentials from it.

    No fault quotes the kubeconfig.
    """
    faults = Faults()
    parsed = load_mapping(text, Path("file"), faults)
    if parsed is None:
        return None, faults
    kept: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    for group, inner, known in (
        ("clusters", "cluster", _CLUSTER),
        ("users", "user", _USER),
        ("contexts", "context", _CONTEXT),
    ):
        kept[group] = _entries(parsed.get(group), group, inner, known, faults)
    current = parsed.get("current-context")
    if isinstance(current, str):
        kept["current-context"] = current
    for index, each in enumerate(kept["clusters"]):
        _check_cluster(each["cluster"], Path("clusters") @ index / "cluster", faults)
    for index, each in enumerate(kept["users"]):
        _check_user(each["user"], Path("users") @ index / "user", faults)
    if connects:
        _check_context(kept, faults)
    return (None if faults else kept), faults


def check_kubeconfig(text: str) -> Faults:
    """Faults of any kubeconfig that a project keeps in a Secret: programs, files, and unverified connections.

    A process that reads such a Secret would run the program, read the file, or send credentials to a server that
    it has not verified.
    """
    faults = Faults()
    parsed = load_mapping(text, Path("file"), faults)
    for group, inner in (("clusters", "cluster"), ("users", "user")):
        entries = (parsed or {}).get(group)
        for index, each in enumerate(entries if isinstance(entries, list) else ()):
            found = each.get(inner) if isinstance(each, dict) else None
            content: dict[Any, Any] = found if isinstance(found, dict) else {}
            for name in sorted(_DANGEROUS & content.keys()):
                if content[name]:
                    faults.forbidden(Path(group) @ index / inner / name, _why_not(name))
    return faults


def _entries(found: Any, group: str, inner: str, known: frozenset[str], faults: Faults) -> list[dict[str, Any]]:
    path, kept = Path(group), []
    if found is None:
        return []
    if not isinstance(found, list):
        faults.forbidden(path, "is not a list")
        return []
    for index, each in enumerate(found):
        here = path @ index
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            faults.required(here / "name", "of the entry")
            continue
        content = each.get(inner) or {}
        if not isinstance(content, dict):
            faults.forbidden(here / inner, "is not a mapping")
            continue
        for name in sorted(map(str, content.keys() - known)):
            faults.forbidden(here / inner / name, _why_not(name))
        kept.append({"name": each["name"], inner: {k: v for k, v in content.items() if k in known - {"extensions"}}})
    faults.duplicates(path, [each["name"] for each in kept], "name")
    return kept


def _why_not(name: str) -> str:
    """Why a field of a kubeconfig is refused."""
    match name:
        case "exec" | "auth-provider":
            return "runs a program in the control plane: put a token or a client certificate into the kubeconfig"
        case "tokenFile" | "client-certificate" | "client-key" | "certificate-authority":
            field = "token" if name == "tokenFile" else f"{name}-data"
            return f"names a file of the control plane: use {field}"
        case "insecure-skip-tls-verify":
            return "the server must be verified: use certificate-authority-data"
        case "proxy-url":
            return "connections through a proxy are not supported"
        case _:
            return "is not supported"


def _check_cluster(cluster: Mapping[str, Any], path: Path, faults: Faults) -> None:
    server = cluster.get("server")
    if isinstance(server, str) and server:
        check_https(server, path / "server", faults)
    elif server is not None:
        faults.forbidden(path / "server", "is not a URL")
    if (bundle := _decoded(cluster, "certificate-authority-data", path, faults)) is not None:
        check_bundle(bundle, path / "certificate-authority-data", faults)


def _check_user(user: Mapping[str, Any], path: Path, faults: Faults) -> None:
    if "client-certificate-data" in user or "client-key-data" in user:
        certificate = _decoded(user, "client-certificate-data", path, faults)
        key = _decoded(user, "client-key-data", path, faults)
        if certificate is None or key is None:
            faults.required(path, "client-certificate-data and client-key-data go together")
        else:
            check_bundle(certificate, path / "client-certificate-data", faults)
    for name in ("token", "username", "password"):
        if not isinstance(user.get(name, ""), str):
            faults.forbidden(path / name, "is not a text")


def _decoded(section: Mapping[str, Any], name: str, path: Path, faults: Faults) -> bytes | None:
    if (encoded := section.get(name)) in (None, ""):
        return None
    try:
        return base64.b64decode(str(encoded), validate=True)
    except (binascii.Error, ValueError):
        faults.forbidden(path / name, "is not base64")
        return None


def _check_context(config: Mapping[str, Any], faults: Faults) -> None:
    """Faults of the current context: it must name a cluster with a server, and a user if any."""
    path = Path("current-context")
    context = _named(config["contexts"], "context", config.get("current-context"))
    if context is None:
        faults.required(path, "the name of a context of the kubeconfig")
        return
    cluster = _named(config["clusters"], "cluster", context.get("cluster"))
    if cluster is None or not cluster.get("server"):
        faults.required(path, "its context names no cluster with a server")
    if context.get("user") and _named(config["users"], "user", context["user"]) is None:
        faults.required(path, "its context names a user that the kubeconfig does not have")


def _named(entries: Iterable[Mapping[str, Any]], inner: str, name: Any) -> Mapping[str, Any] | None:
    return next((each[inner] for each in entries if each["name"] == name), None)

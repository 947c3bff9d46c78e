"""Validation of Plants, and of the kubeconfigs that they name."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from api.core.v1beta1.plant import Plant
from api.validation.field import Faults, Path
from api.validation.kubeconfigs import parse_kubeconfig


def check_plant(plant: Plant) -> Faults:
    """Faults of the spec alone."""
    faults = Faults()
    for index, each in enumerate(plant.spec.endpoints or ()):
        path = Path("spec.endpoints") @ index / "url"
        try:
            parts = urlsplit(each.url)
        except ValueError:
            faults.invalid(path, None, "is not a URL")
            continue
        if parts.scheme not in ("http", "https") or not parts.hostname:
            faults.invalid(path, each.url, "must be a URL with http or https and a host")
        elif parts.username is not None or parts.password is not None:
            faults.forbidden(path, "must not contain a user name or a password")
    return faults


def parse_plant_kubeconfig(text: str) -> tuple[dict[str, Any] | None, Faults]:
    """The kubeconfig of a foreign cluster, and its faults, which do not quote it.

    The controller-manager connects to the server that it names. So it names no program, no file and no proxy, and the
    connection is verified. Its user has a token or a client certificate: these are the credentials that a process can
    use.
    """
    parsed, faults = parse_kubeconfig(text, connects=True)
    if parsed is None:
        return None, faults
    user = _user(parsed)
    if user.get("username") or user.get("password"):
        faults.forbidden(Path("users"), "a user name and a password are not supported: use a token or a certificate")
    elif not user.get("token") and not user.get("client-certificate-data"):
        faults.required(Path("users"), "the user of the current context needs a token or client-certificate-data")
    if (key := user.get("client-key-data")) and not _is_key(base64.b64decode(key)):
        faults.forbidden(Path("users"), "client-key-data is no private key in PEM format, or needs a password")
    return (None if faults else parsed), faults


def _is_key(pem: bytes) -> bool:
    try:
        load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _user(config: Mapping[str, Any]) -> Mapping[str, Any]:
    named = {each["name"]: each["context"] for each in config["contexts"]}
    name = named[config["current-context"]].get("user")
    return next((each["user"] for each in config["users"] if each["name"] == name), {})

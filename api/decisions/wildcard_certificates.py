"""Certificates with which control planes of a seed are reached below its ingress domain. Source: spec/credentials.md 8.

An operator has them signed by an authority that clients know anyway, and puts them into Secrets of the garden with role
``controlplane-cert``. A certificate is for a whole seed, so each seed gets those for its own domain only: with the
private key, a gardenlet could pretend to be the control planes of another seed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from api.constants import ROLE
from api.names import plain

WILDCARD_ROLE = "controlplane-cert"
SELECTOR = f"{ROLE}={WILDCARD_ROLE}"
_CERTIFICATE, _KEY = "tls.crt", "tls.key"


@dataclass(frozen=True)
class WildcardCertificate:
    """A certificate, with its chain, and its private key; both PEM."""

    certificate: str
    key: str = field(repr=False)


def is_for(secret: Mapping[str, Any], domain: str) -> bool:
    """Whether the Secret has a certificate for all names with one label more than ``domain``."""
    try:
        return bool(domain) and f"*.{plain(domain)}" in _names(_leaf(secret))
    except ValueError:
        return False


def choose(
    secrets: Iterable[Mapping[str, Any]], domain: str, now: datetime
) -> tuple[WildcardCertificate | None, list[str]]:
    """The certificate for ``domain`` that is valid for the longest time, and what is wrong with the others.

    A fault names the Secret and never repeats its content.
    """
    found: list[tuple[datetime, str, WildcardCertificate]] = []
    faults = []
    for each in secrets:
        name = each["metadata"]["name"]
        try:
            leaf = _leaf(each)
            key = _decoded(each, _KEY)
            if load_pem_private_key(key, None).public_key() != leaf.public_key():
                raise ValueError("its key is not that of its certificate")
            if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
                raise ValueError(f"it is valid until {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ} only, or not yet")
            if f"*.{plain(domain)}" not in _names(leaf):
                raise ValueError(f"it is not for *.{domain}")
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            faults.append(f"Secret {name} is not used: {error}")
            continue
        pair = WildcardCertificate(_decoded(each, _CERTIFICATE).decode(), key.decode())
        found.append((leaf.not_valid_after_utc, name, pair))
    return (max(found, key=lambda one: one[:2])[2] if found else None), faults


def _leaf(secret: Mapping[str, Any]) -> x509.Certificate:
    """First certificate of the Secret. Raises ValueError if there is none."""
    return x509.load_pem_x509_certificates(_decoded(secret, _CERTIFICATE))[0]


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(f"its names cannot be read: {error}") from None
    return {each.lower().rstrip(".") for each in names.get_values_for_type(x509.DNSName)}


def _decoded(secret: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {})[key])
    except (KeyError, binascii.Error):
        raise ValueError(f"it has no {key}") from None

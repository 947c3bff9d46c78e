"""Validation of PEM bundles of certificates."""

from __future__ import annotations

from cryptography import x509

from api.validation.field import Faults, Path


def check_ca_bundle(text: str | None, path: Path, faults: Faults) -> None:
    """Report a bundle that no machine could read. The message does not repeat the text."""
    if text is None:
        return
    try:
        x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        faults.invalid(path, f"{len(text)} characters", "must be certificates in PEM format")


def check_bundle(pem: bytes, path: Path, faults: Faults) -> None:
    """Faults of a bundle of CA certificates."""
    try:
        if x509.load_pem_x509_certificates(pem):
            return
    except ValueError:
        pass
    faults.forbidden(path, "is not a bundle of certificates in PEM format")

"""DNSRecord: one name of a Shoot in a DNS zone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.extensions.v1alpha1.base import STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Column, Definition, KubeObject, SecretReference

_LABEL = "[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?"


class DNSRecordSpec(ExtensionSpec):
    secret_ref: SecretReference
    region: str | None = None
    zone: str | None = None
    name: Annotated[str, IMMUTABLE, Field(max_length=253, pattern=rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$")]
    """Fully qualified; a leading ``*.`` is allowed, and ``_`` for TXT."""
    record_type: Annotated[Literal["A", "AAAA", "CNAME", "TXT"], IMMUTABLE]
    values: list[str] = Field(min_length=1)
    ttl: int = Field(default=120, ge=0)
    """Time to live, in seconds."""


class DNSRecordStatus(ExtensionStatus):
    zone: str | None = None
    """Zone in which the record was written; later writes use the same one."""


class DNSRecord(KubeObject):
    definition: ClassVar[Definition] = extension_kind(
        "dnsrecords",
        "dns",
        columns=(TYPE, Column("Domain Name", ".spec.name"), Column("Record Type", ".spec.recordType"), STATUS),
    )

    spec: DNSRecordSpec
    status: DNSRecordStatus | None = None

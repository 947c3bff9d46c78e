"""DNSRecord: one name of a Shoot in a DNS zone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.extensions.v1alpha1.base import STATUS, TYPE, ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Column, Definition, KubeObject, SecretReference, rules

_LABEL = "[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = f"^({_BYTE}[.]){{3}}{_BYTE}$"
_IPV6 = "^[0-9a-fA-F:]*:[0-9a-fA-F:.]*$"
_HOST = f"^{_LABEL}([.]{_LABEL})*[.]?$"


def _values(record_type: str, pattern: str, what: str) -> tuple[str, str]:
    return (
        f"self.recordType != '{record_type}' || self.values.all(each, each.matches('{pattern}'))",
        f"values: each value of a record of type {record_type} must be {what}",
    )


class DNSRecordSpec(ExtensionSpec):
    model_config = rules(
        _values("A", _IPV4, "an IPv4 address"),
        _values("AAAA", _IPV6, "an IPv6 address"),
        _values("CNAME", _HOST, "a host name"),
        (
            "self.recordType != 'CNAME' || size(self.values) == 1",
            "values: a record of type CNAME has exactly one value",
        ),
    )

    secret_ref: SecretReference
    region: str | None = None
    zone: str | None = None
    name: Annotated[str, IMMUTABLE, Field(max_length=253, pattern=rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$")]
    """Fully qualified; a leading ``*.`` is allowed, and ``_`` for TXT."""
    record_type: Annotated[Literal["A", "AAAA", "CNAME", "TXT"], IMMUTABLE]
    values: list[Annotated[str, Field(max_length=4096)]] = Field(min_length=1, max_length=100)
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

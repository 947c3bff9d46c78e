"""WorkloadIdentity: identity of control planes at a cloud, which trusts the garden's tokens in place of a key."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.constants import SECURITY
from api.meta import AGE, IMMUTABLE, IMMUTABLE_ONCE_SET, SET, Column, Definition, DnsLabel, KubeModel, KubeObject, Raw


class TargetSystem(KubeModel):
    type: Annotated[DnsLabel, IMMUTABLE]
    """Provider type of the system that trusts the tokens."""
    provider_config: Raw | None = None
    """Settings with which the extension of this provider type uses the tokens, for example the address of a cloud."""


class WorkloadIdentitySpec(KubeModel):
    audiences: Annotated[list[Annotated[str, Field(min_length=1)]], SET, Field(min_length=1, max_length=32)]
    """Claim ``aud`` of the tokens: recipients that may accept them."""
    target_system: TargetSystem


class WorkloadIdentityStatus(KubeModel):
    sub: Annotated[str | None, IMMUTABLE_ONCE_SET, Field(max_length=255)] = None
    """Claim ``sub`` of the tokens: the name by which a cloud knows this identity."""


class WorkloadIdentity(KubeObject):
    definition: ClassVar[Definition] = Definition(
        SECURITY,
        "v1alpha1",
        "workloadidentities",
        ("wi",),
        columns=(
            Column("Sub", ".status.sub"),
            Column("Type", ".spec.targetSystem.type"),
            Column("Audiences", ".spec.audiences", wide=True),
            AGE,
        ),
    )

    spec: WorkloadIdentitySpec
    status: WorkloadIdentityStatus | None = None

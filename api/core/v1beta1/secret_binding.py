"""SecretBinding: Secret that Shoots may use for a provider. Deprecated: use CredentialsBinding."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.constants import CORE
from api.meta import (
    AGE,
    IMMUTABLE,
    Column,
    Definition,
    KubeModel,
    KubeObject,
    ObjectReference,
    SecretReference,
)


class SecretBindingProvider(KubeModel):
    type: str
    """One provider, or several separated by commas."""


class SecretBinding(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "secretbindings",
        ("sb",),
        columns=(Column("Secret", ".secretRef.name"), Column("Provider", ".provider.type"), AGE),
        status=False,
    )

    secret_ref: Annotated[SecretReference, IMMUTABLE]
    quotas: Annotated[list[ObjectReference] | None, IMMUTABLE] = None
    provider: Annotated[SecretBindingProvider | None, IMMUTABLE] = None

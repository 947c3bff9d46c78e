"""CredentialsBinding: credentials that Shoots may use for a provider."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.constants import SECURITY
from api.meta import AGE, IMMUTABLE, Column, Definition, KubeModel, KubeObject, ObjectReference


class CredentialsBindingProvider(KubeModel):
    type: str


class CredentialsReference(KubeModel):
    """A Secret, an InternalSecret or a WorkloadIdentity."""

    api_version: str
    kind: str
    namespace: str | None = None
    """Namespace of the credentials; default: the binding's namespace."""
    name: str


class CredentialsBinding(KubeObject):
    definition: ClassVar[Definition] = Definition(
        SECURITY,
        "v1alpha1",
        "credentialsbindings",
        ("cb",),
        columns=(
            Column("Provider", ".provider.type"),
            Column("APIVersion", ".credentialsRef.apiVersion"),
            Column("Kind", ".credentialsRef.kind"),
            Column("Name", ".credentialsRef.name"),
            AGE,
        ),
        status=False,
    )

    provider: Annotated[CredentialsBindingProvider, IMMUTABLE]
    credentials_ref: Annotated[CredentialsReference, IMMUTABLE]
    quotas: Annotated[list[ObjectReference] | None, IMMUTABLE] = None

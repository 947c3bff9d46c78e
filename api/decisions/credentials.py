"""Resolves the binding of a Shoot, and the cloud credentials of the binding. Source: spec/api-core.md 10.1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from api import resources
from api.constants import REFERENCE_CREDENTIALS_BINDING, REFERENCE_SECRET_BINDING
from api.resources import Resource


class Credentials(NamedTuple):
    """Reference to the object that holds the credentials."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Binding:
    """One of the two kinds of bindings: SecretBinding and CredentialsBinding."""

    resource: Resource
    shoot_field: str
    """Field in the spec of Shoots that names the binding."""
    credentials_field: str
    """Field of the binding that refers to the credentials."""
    label: str
    """Label of the credentials' object that marks it as referenced by such a binding."""

    def credentials(self, binding: Mapping[str, Any]) -> Credentials:
        """Credentials that a binding refers to; by default a Secret of the binding's namespace."""
        reference = binding[self.credentials_field]
        namespace = reference.get("namespace") or binding["metadata"]["namespace"]
        return Credentials(
            reference.get("apiVersion", "v1"), reference.get("kind", "Secret"), namespace, reference["name"]
        )


BINDINGS = {
    each.resource: each
    for each in (
        Binding(
            resources.CREDENTIALS_BINDING, "credentialsBindingName", "credentialsRef", REFERENCE_CREDENTIALS_BINDING
        ),
        Binding(resources.SECRET_BINDING, "secretBindingName", "secretRef", REFERENCE_SECRET_BINDING),
    )
}


def binding_of(shoot: Mapping[str, Any]) -> tuple[Binding, str] | None:
    """Kind and name of the binding that a Shoot uses; None if it needs none. Admission refuses two."""
    names = ((each, shoot["spec"].get(each.shoot_field)) for each in BINDINGS.values())
    return next(((each, name) for each, name in names if name), None)

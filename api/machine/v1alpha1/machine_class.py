"""MachineClass: template of machines. Its name contains a hash of the settings that need a new machine."""

from __future__ import annotations

from typing import ClassVar

from api.constants import MACHINE
from api.meta import Definition, KubeModel, KubeObject, Quantity, Raw, SecretReference


class MachineClassNodeTemplate(KubeModel):
    capacity: dict[str, Quantity] | None = None
    virtual_capacity: dict[str, Quantity] | None = None
    instance_type: str | None = None
    region: str | None = None
    zone: str | None = None
    architecture: str | None = None


class MachineClass(KubeObject):
    definition: ClassVar[Definition] = Definition(
        MACHINE, "v1alpha1", "machineclasses", ("mcc",), columns=(), status=False
    )

    provider: str | None = None
    provider_spec: Raw
    secret_ref: SecretReference | None = None
    """User data, and credentials unless ``credentialsSecretRef`` names them."""
    credentials_secret_ref: SecretReference | None = None
    node_template: MachineClassNodeTemplate | None = None

"""ControllerDeployment: manifests of an extension controller, to deploy it in seeds."""

from __future__ import annotations

from typing import ClassVar

from api.constants import CORE
from api.meta import AGE, Definition, KubeObject, NamedResourceReference, Raw


class ControllerDeployment(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE, "v1beta1", "controllerdeployments", ("ctrldeploy",), namespaced=False, columns=(AGE,), status=False
    )

    type: str
    """``helm`` or ``custom``."""
    provider_config: Raw | None = None
    inject_garden_kubeconfig: bool | None = None
    resources: list[NamedResourceReference] | None = None

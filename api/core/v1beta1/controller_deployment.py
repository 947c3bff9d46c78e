"""ControllerDeployment in its older shape. The API server converts it from and to v1, in which objects are stored."""

from __future__ import annotations

from typing import ClassVar

from api.constants import CORE
from api.meta import AGE, Definition, KubeObject, NamedResourceReference, Raw


class ControllerDeployment(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "controllerdeployments",
        ("ctrldeploy",),
        namespaced=False,
        columns=(AGE,),
        status=False,
        stored=False,
    )

    type: str
    """``helm`` or ``custom``."""
    provider_config: Raw | None = None
    """For type ``helm``: ``chart`` (a compressed archive, in base64), ``values``, ``ociRepository``."""
    inject_garden_kubeconfig: bool | None = None
    resources: list[NamedResourceReference] | None = None

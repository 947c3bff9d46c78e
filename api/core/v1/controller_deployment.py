"""ControllerDeployment: the Helm chart of an extension controller, to deploy it in seeds. Objects are stored in v1."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.constants import CORE
from api.meta import AGE, Bytes, Definition, KubeModel, KubeObject, LocalObjectReference, NamedResourceReference, Raw


class OCIRepository(KubeModel):
    """Place of a chart in a registry: either ``ref``, or ``repository`` with ``tag`` or ``digest``."""

    ref: str | None = None
    """Reference with a tag or a digest, like ``registry.example.org/charts/provider:v1.2.3``."""
    repository: str | None = None
    tag: str | None = None
    digest: Annotated[str | None, Field(pattern=r"^sha256:[0-9a-f]{64}$")] = None
    pull_secret_ref: LocalObjectReference | None = None
    """Secret of namespace ``garden`` with label ``gardener.cloud/role=helm-pull-secret``."""
    ca_bundle_secret_ref: LocalObjectReference | None = None
    """Secret of namespace ``garden`` with label ``gardener.cloud/role=oci-ca-bundle``."""


class HelmControllerDeployment(KubeModel):
    raw_chart: Bytes | None = None
    """The chart as a compressed archive, in base64. Excludes ``ociRepository``."""
    values: Raw | None = None
    oci_repository: OCIRepository | None = None


class ControllerDeployment(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE, "v1", "controllerdeployments", ("ctrldeploy",), namespaced=False, columns=(AGE,), status=False
    )

    helm: HelmControllerDeployment | None = None
    inject_garden_kubeconfig: bool | None = None
    resources: list[NamedResourceReference] | None = None

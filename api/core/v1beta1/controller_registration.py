"""ControllerRegistration: kinds and types of extension objects that a controller serves."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from api.constants import CORE
from api.meta import AGE, IMMUTABLE, Column, Definition, Duration, KubeModel, KubeObject, LabelSelector, map_list

Phase = Literal["AfterKubeAPIServer", "BeforeKubeAPIServer", "AfterWorker"]
ClusterType = Literal["shoot", "seed"]


class ControllerResourceLifecycle(KubeModel):
    reconcile: Phase = "AfterKubeAPIServer"
    delete: Phase = "BeforeKubeAPIServer"
    migrate: Phase = "BeforeKubeAPIServer"


class ControllerResource(KubeModel):
    """``reconcileTimeout``, ``lifecycle``, ``autoEnable`` and ``clusterCompatibility`` are for kind Extension only."""

    kind: str
    type: str
    primary: Annotated[bool, IMMUTABLE] = True
    """Exactly one registration of a kind and type is primary; only it writes the status."""
    reconcile_timeout: Duration | None = None
    lifecycle: ControllerResourceLifecycle | None = None
    workerless_supported: bool | None = None
    auto_enable: list[ClusterType] | None = None
    cluster_compatibility: list[ClusterType] | None = None
    continuous_endpoint_update: bool | None = None


class DeploymentRef(KubeModel):
    name: str


class ControllerRegistrationDeployment(KubeModel):
    policy: Literal["OnDemand", "Always", "AlwaysExceptNoShoots"] = "OnDemand"
    seed_selector: LabelSelector | None = None
    deployment_refs: list[DeploymentRef] | None = Field(default=None, max_length=1)


class ControllerRegistrationSpec(KubeModel):
    resources: Annotated[list[ControllerResource] | None, map_list("kind", "type")] = None
    deployment: ControllerRegistrationDeployment | None = None


class ControllerRegistration(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "controllerregistrations",
        ("ctrlreg",),
        namespaced=False,
        columns=(Column("Resources", ".spec.resources[*].kind"), AGE),
        status=False,
    )

    spec: ControllerRegistrationSpec

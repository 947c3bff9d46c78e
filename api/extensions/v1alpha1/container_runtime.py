"""ContainerRuntime: a further container runtime on the nodes of a pool."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.extensions.v1alpha1.base import ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import IMMUTABLE, Definition, KubeModel, KubeObject, LabelSelector


class ContainerRuntimeWorkerPool(KubeModel):
    name: Annotated[str, IMMUTABLE]
    selector: LabelSelector


class ContainerRuntimeSpec(ExtensionSpec):
    binary_path: str
    worker_pool: ContainerRuntimeWorkerPool


class ContainerRuntime(KubeObject):
    definition: ClassVar[Definition] = extension_kind("containerruntimes", "cr")

    spec: ContainerRuntimeSpec
    status: ExtensionStatus | None = None

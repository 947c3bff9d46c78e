"""ExposureClass: network in which a control plane's API is exposed."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.constants import CORE
from api.meta import AGE, IMMUTABLE, Column, Definition, KubeModel, KubeObject, SeedSelector, Toleration


class ExposureClassScheduling(KubeModel):
    seed_selector: SeedSelector | None = None
    tolerations: list[Toleration] | None = None


class ExposureClass(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "exposureclasses",
        ("expclass", "expcls"),
        namespaced=False,
        columns=(Column("Handler", ".handler"), AGE),
        status=False,
    )

    handler: Annotated[str, IMMUTABLE, Field(max_length=34, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    scheduling: Annotated[ExposureClassScheduling | None, IMMUTABLE] = None

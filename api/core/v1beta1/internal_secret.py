"""InternalSecret: a Secret that project members cannot see."""

from __future__ import annotations

from typing import Annotated, ClassVar

from api.constants import CORE
from api.meta import AGE, IMMUTABLE, Bytes, Column, Definition, KubeObject


class InternalSecret(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "internalsecrets",
        ("ins",),
        columns=(Column("Type", ".type"), AGE),
        status=False,
        selectable=(".type",),
    )

    type: Annotated[str, IMMUTABLE] = "Opaque"
    immutable: bool | None = None
    data: dict[str, Bytes] | None = None
    string_data: dict[str, str] | None = None
    """Write-only: merged into ``data`` at admission."""

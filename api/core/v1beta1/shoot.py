"""Shoot: a Kubernetes cluster as its owner wants it, and as it is."""

from __future__ import annotations

from typing import ClassVar

from api.constants import CORE
from api.meta import AGE, Definition, KubeObject, Raw


class Shoot(KubeObject):
    definition: ClassVar[Definition] = Definition(CORE, "v1beta1", "shoots", columns=(AGE,))

    spec: Raw
    status: Raw | None = None

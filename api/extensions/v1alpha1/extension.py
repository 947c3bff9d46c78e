"""Extension: anything a Shoot wants beyond the other kinds; its order comes from the registration."""

from __future__ import annotations

from typing import ClassVar

from api.extensions.v1alpha1.base import ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import Definition, KubeObject


class Extension(KubeObject):
    definition: ClassVar[Definition] = extension_kind("extensions", "ext")

    spec: ExtensionSpec
    status: ExtensionStatus | None = None

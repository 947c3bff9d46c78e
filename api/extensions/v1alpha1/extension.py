"""Extension: an extension of a Shoot that has no kind of its own; its registration defines when it is deployed."""

from __future__ import annotations

from typing import ClassVar

from api.extensions.v1alpha1.base import ExtensionSpec, ExtensionStatus, extension_kind
from api.meta import Definition, KubeObject


class Extension(KubeObject):
    definition: ClassVar[Definition] = extension_kind("extensions", "ext")

    spec: ExtensionSpec
    status: ExtensionStatus | None = None

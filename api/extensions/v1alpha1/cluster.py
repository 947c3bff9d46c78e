"""Cluster: copy of a Shoot, its CloudProfile and its Seed for extensions. Written before each flow, deleted last."""

from __future__ import annotations

from typing import ClassVar

from api.extensions.v1alpha1.base import extension_kind
from api.meta import Definition, KubeModel, KubeObject, Raw


class ClusterSpec(KubeModel):
    """Whole objects of core.gardener.cloud, as they were when the flow started."""

    cloud_profile: Raw
    shoot: Raw
    seed: Raw | None = None
    """The Seed; absent for a self-hosted Shoot."""


class Cluster(KubeObject):
    """Its name is the Shoot's technical ID."""

    definition: ClassVar[Definition] = extension_kind("clusters", columns=(), namespaced=False, status=False)

    spec: ClusterSpec

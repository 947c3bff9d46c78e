"""Plant: a cluster that another system manages, and that the garden watches. Source: the proposal of the kind Plant."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.constants import CORE
from api.meta import AGE, Column, Conditions, Definition, KubeModel, KubeObject, map_list


class PlantSecretReference(KubeModel):
    name: Annotated[str, Field(min_length=1)]
    """Secret in the namespace of the Plant; its key ``kubeconfig`` gives access to the cluster."""


class Endpoint(KubeModel):
    """A page about the cluster, for people: no component opens it."""

    name: Annotated[str, Field(min_length=1)]
    url: str
    purpose: Annotated[str, Field(min_length=1)]
    """Use of the page, for example ``management``."""


class PlantSpec(KubeModel):
    secret_ref: PlantSecretReference
    endpoints: Annotated[list[Endpoint] | None, map_list("name")] = None


class PlantProvider(KubeModel):
    type: str
    """Scheme of ``spec.providerID`` of a Node, for example ``aws``."""
    region: str
    """Label ``topology.kubernetes.io/region`` of a Node."""


class PlantKubernetes(KubeModel):
    version: str


class ClusterInfo(KubeModel):
    """Facts that the cluster tells. A fact that it does not tell is ``<unknown>``."""

    provider: PlantProvider
    kubernetes: PlantKubernetes


class PlantStatus(KubeModel):
    conditions: Conditions | None = None
    """Conditions APIServerAvailable and EveryNodeReady."""
    observed_generation: int | None = None
    cluster_info: ClusterInfo | None = None


class Plant(KubeObject):
    definition: ClassVar[Definition] = Definition(
        CORE,
        "v1beta1",
        "plants",
        columns=(
            Column("Provider", ".status.clusterInfo.provider.type"),
            Column("Region", ".status.clusterInfo.provider.region"),
            Column("Version", ".status.clusterInfo.kubernetes.version"),
            AGE,
        ),
    )

    spec: PlantSpec
    status: PlantStatus | None = None

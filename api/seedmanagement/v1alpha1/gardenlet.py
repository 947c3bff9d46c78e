"""Gardenlet: the deployment of a gardenlet in its own seed, which the gardenlet upgrades itself."""

from __future__ import annotations

from typing import ClassVar

from api.constants import SEED_MANAGEMENT
from api.core.v1.controller_deployment import OCIRepository
from api.meta import AGE, Column, Conditions, Definition, KubeModel, KubeObject, LocalObjectReference, Raw
from api.seedmanagement.v1alpha1.managed_seed import GardenletDeployment


class GardenletHelm(KubeModel):
    oci_repository: OCIRepository
    """The chart of the gardenlet."""


class GardenletSelfDeployment(GardenletDeployment):
    helm: GardenletHelm
    image_vector_overwrite: str | None = None
    """Images of components in place of the gardenlet's own ones, in YAML. Refused: this version has no image vector."""
    component_image_vector_overwrite: str | None = None
    """Images that components deploy themselves, in YAML. Refused, too."""


class GardenletSpec(KubeModel):
    deployment: GardenletSelfDeployment
    config: Raw
    """GardenletConfiguration without ``seedConfig``, merged over that of the installation by Helm."""
    kubeconfig_secret_ref: LocalObjectReference | None = None
    """Secret with a kubeconfig of the seed, for the first deployment. Refused: Helm installs the first gardenlet."""


class GardenletStatus(KubeModel):
    conditions: Conditions | None = None
    """Condition GardenletReconciled."""
    observed_generation: int | None = None


class Gardenlet(KubeObject):
    definition: ClassVar[Definition] = Definition(
        SEED_MANAGEMENT,
        "v1alpha1",
        "gardenlets",
        ("gl", "glet"),
        columns=(
            Column("OCI Repository", ".spec.deployment.helm.ociRepository.ref"),
            Column("Reconciled", '.status.conditions[?(@.type=="GardenletReconciled")].status'),
            AGE,
        ),
    )

    spec: GardenletSpec
    status: GardenletStatus | None = None

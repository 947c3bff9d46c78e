"""Activities that each process offers. A test checks that they include the activities of all flows."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from activities.clusters import Clusters
from activities.components.etcd import DELTA_SNAPSHOT_PERIOD
from activities.garden.flows import FlowActivities
from activities.garden.hibernation import SwitchActivities
from activities.garden.maintenance import MaintenanceActivities
from activities.garden.rotation import GardenRotationActivities
from activities.garden.seeds import GardenSeedActivities
from activities.garden.shoot_states import ShootStateSealingActivities
from activities.garden.shoots import ShootActivities
from activities.secrets.sealing import Sealing
from activities.seed.autoscaler import AutoscalerActivities
from activities.seed.bootstrap import SeedActivities
from activities.seed.control_plane import ControlPlaneActivities
from activities.seed.etcd import EtcdActivities
from activities.seed.etcd_between_seeds import EtcdBetweenSeedsActivities
from activities.seed.extensions import ExtensionActivities
from activities.seed.force_deletion import ForceDeletionActivities
from activities.seed.handlers import ExposureClassHandler
from activities.seed.hibernation import HibernationActivities
from activities.seed.issuer import IssuerActivities
from activities.seed.migration import MigrationActivities
from activities.seed.namespace import NamespaceActivities
from activities.seed.node_logs import NodeLogs
from activities.seed.observability import ObservabilityActivities
from activities.seed.operating_system_configs import OperatingSystemConfigActivities
from activities.seed.references import ReferenceActivities
from activities.seed.required_extensions import RequiredExtensionActivities
from activities.seed.retention import Retention
from activities.seed.secrets import SecretActivities
from activities.seed.seed_extensions import SeedExtensionActivities
from activities.seed.shoot_state import ShootStateActivities
from activities.seed.static_manifests import StaticManifestActivities
from activities.seed.survey import SurveyActivities
from activities.seed.system import SeedSystemActivities
from activities.seed.teardown import SeedTeardownActivities
from activities.seed.vpa import VpaActivities
from activities.shoot.cleanup import CleanupActivities
from activities.shoot.dual_stack import DualStackActivities
from activities.shoot.rotation import RotationActivities
from activities.shoot.system import ShootSystemActivities
from api.contracts.flows import ShootRules
from kube.cache import Caches
from kube.client import KubeClient


def seed_activities(
    clusters: Clusters,
    *,
    vpn_network: str,
    delta_snapshot_period: timedelta = DELTA_SNAPSHOT_PERIOD,
    image_digest: str = "",
    retention: Retention | None = None,
    identity: str = "gardenlet",
    handlers: Sequence[ExposureClassHandler] = (),
    network_policies: bool = False,
    node_logs: NodeLogs | None = None,
) -> list[Callable[..., Any]]:
    """Activities of queue ``seed-<name>``."""
    return _activities_of(
        SeedActivities(clusters, identity, handlers),
        SeedSystemActivities(clusters, network_policies=network_policies),
        SeedTeardownActivities(clusters),
        SeedExtensionActivities(clusters),
        NamespaceActivities(clusters),
        ExtensionActivities(clusters, retention, handlers),
        ReferenceActivities(clusters),
        StaticManifestActivities(clusters),
        IssuerActivities(clusters),
        RequiredExtensionActivities(clusters),
        SecretActivities(clusters),
        ObservabilityActivities(clusters, node_logs),
        VpaActivities(clusters),
        AutoscalerActivities(clusters),
        EtcdActivities(clusters, delta_snapshot_period=delta_snapshot_period, image_digest=image_digest),
        MigrationActivities(clusters),
        EtcdBetweenSeedsActivities(clusters),
        ShootStateActivities(clusters),
        ControlPlaneActivities(clusters, vpn_network=vpn_network, handlers=handlers),
        ShootSystemActivities(clusters),
        DualStackActivities(clusters),
        OperatingSystemConfigActivities(clusters, node_logs),
        HibernationActivities(clusters),
        CleanupActivities(clusters),
        RotationActivities(clusters),
        SurveyActivities(clusters),
        ForceDeletionActivities(clusters),
    )


def garden_activities(
    garden: KubeClient, caches: Caches, rules: ShootRules, sealing: Callable[[str], Sealing] = Sealing
) -> list[Callable[..., Any]]:
    """Activities of queue ``garden``.

    ``sealing``: returns the encryption of ShootStates for the name of a seed. By default (tests) ShootStates are not
    encrypted.
    """
    return _activities_of(
        ShootActivities(garden, caches, rules),
        FlowActivities(garden),
        GardenSeedActivities(garden, caches),
        GardenRotationActivities(garden, caches),
        ShootStateSealingActivities(garden, sealing),
        SwitchActivities(garden),
        MaintenanceActivities(garden),
    )


def _activities_of(*owners: object) -> list[Callable[..., Any]]:
    methods = [getattr(owner, name) for owner in owners for name in dir(owner) if not name.startswith("_")]
    return [method for method in methods if hasattr(method, "__temporal_activity_definition")]

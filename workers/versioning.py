"""Versions of our code beside each other: a flow ends on the version it began on, a lifecycle moves to the current one.

Temporal keeps, per deployment, which build is current: new flows go there. A worker says which build it is; the build
id is the version of the code.
"""

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from api import versioning
from workers.temporal import VersioningConfig

CONTROLLER_MANAGER = "gardener-controller-manager"


def deployment_config(config: VersioningConfig, deployment: str) -> WorkerDeploymentConfig | None:
    """For ``Worker(deployment_config=...)``; flows that do not say otherwise are pinned.

    For all of the process: workflows are told.
    """
    versioning.enabled = config.enabled
    if not config.enabled:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment, config.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )

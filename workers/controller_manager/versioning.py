"""Several versions of our code at a time: a flow ends on the version it began on, a lifecycle moves to the current one.

Temporal stores for each deployment which build is current, and starts new flows on that build. A worker reports its
build id, which is the version of the code.
"""

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from api import versioning
from workers.lib.temporal import VersioningConfig

CONTROLLER_MANAGER = "gardener-controller-manager"


def deployment_config(config: VersioningConfig, deployment: str) -> WorkerDeploymentConfig | None:
    """Value for ``Worker(deployment_config=...)``; None if versioning is off. Flows are pinned by default.

    It also sets ``api.versioning.enabled`` for the whole process, which the decorators of workflows read.
    """
    versioning.enabled = config.enabled
    if not config.enabled:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment, config.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )

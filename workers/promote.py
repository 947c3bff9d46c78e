"""Make a build the current one of its deployment.

New flows then start on workers of this build, lifecycles move to them, and running flows end on the build that they
began on. The process exits when it is done, and may run again. It waits for a worker of the build first: without one,
no new flow would run.
"""

import asyncio
import logging
import time

from temporalio.api.enums.v1 import VersionDrainageStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from api.images import OWN_VERSION
from workers.lib.runtime import load_config
from workers.lib.temporal import TemporalServer, connect_with

log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0
_PASSING = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.DEADLINE_EXCEEDED,
)
"""Statuses of temporary errors: no worker of the build has polled yet, or Temporal does not answer yet."""


class PromoteConfig(TemporalServer):
    deployment: str
    build_id: str = OWN_VERSION
    wait_seconds: float = 300
    """Seconds to wait for the first worker of the build."""


async def run(config_path: str) -> None:
    """Promote the build. Raises TimeoutError if no worker of the build polled in time."""
    await promote(load_config(PromoteConfig, config_path))


async def promote(config: PromoteConfig) -> None:
    deadline = time.monotonic() + config.wait_seconds
    while True:
        try:
            client = await connect_with(config)
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=config.namespace,
                    deployment_name=config.deployment,
                    build_id=config.build_id,
                    identity="gardener promote",
                )
            )
            break
        except (RPCError, RuntimeError) as error:  # RuntimeError: no connection yet
            if isinstance(error, RPCError) and error.status not in _PASSING:
                raise
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no worker of build {config.build_id} of {config.deployment} came "
                    f"within {config.wait_seconds:.0f} s: {error}"
                ) from None
            await asyncio.sleep(_LOOK_AGAIN)
    log.info("build %s of %s is current", config.build_id, config.deployment)
    found = await describe(client, config.deployment)
    for draining in draining_builds(found):
        log.info("build %s still has flows to end: keep its workers", draining)


async def describe(client: Client, deployment: str) -> DescribeWorkerDeploymentResponse:
    """The deployment with its versions. Raises RPCError if there is no deployment of that name."""
    return await client.workflow_service.describe_worker_deployment(
        DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=deployment)
    )


def draining_builds(found: DescribeWorkerDeploymentResponse) -> list[str]:
    """Builds that are no longer current and still have running flows."""
    return sorted(
        each.deployment_version.build_id
        for each in found.worker_deployment_info.version_summaries
        if each.drainage_status == VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINING
    )

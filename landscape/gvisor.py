"""gVisor as a container runtime of the landscape's Shoots: an operator's work elsewhere, and only on request.

Its programs are no part of a machine's image: node agents copy them from an image, which new machines have.
"""

import asyncio
import shutil
from base64 import b64encode
from typing import Any

from api.network_policies import TO_API_SERVER, TO_BLOCKED, TO_DNS, allowed
from kube.client import Object
from landscape import binaries, garden, images, machine_images
from landscape.code import ROOMS, code_digest
from landscape.errors import LandscapeError
from landscape.extensions import CHARTS, packaged
from landscape.kube import apply, connected
from landscape.plan import Plan
from landscape.progress import Progress

NAME = "runtime-gvisor"
TYPE = "gvisor"
_SHIM = "containerd-shim-runsc-v1"
_CORE = "core.gardener.cloud/v1beta1"


async def offer(plan: Plan, progress: Progress) -> None:
    """Give new machines the image with gVisor's programs, and register the extension; safe to repeat.

    An ``up`` takes the image and the CloudProfile back to what they are without gVisor: repeat this afterwards.
    """
    runsc = shutil.which("runsc")
    if runsc is None:
        raise LandscapeError("runsc is not installed: run `landscape/packages.sh gvisor`")
    shim = await binaries.ensure((binaries.gvisor_shim(),), progress)
    programs = {_SHIM: shim[_SHIM], "runsc": runsc}
    with progress.step("image with gVisor's programs, for new machines"):
        archive = await asyncio.to_thread(images.archive_of_gvisor, programs, progress.say)
        await machine_images.add(plan, archive, progress)
    async with connected(plan.kubeconfig("garden")) as client:
        await apply(client, controller_deployment(plan), controller_registration(), cloud_profile(plan))


def controller_registration() -> Object:
    return {
        "apiVersion": _CORE,
        "kind": "ControllerRegistration",
        "metadata": {"name": NAME},
        "spec": {
            "resources": [{"kind": "ContainerRuntime", "type": TYPE}],
            "deployment": {"deploymentRefs": [{"name": NAME}]},
        },
    }


def controller_deployment(plan: Plan) -> Object:
    values: dict[str, Any] = {
        "replicas": 1,
        # The image has the same tag in all versions.
        "podAnnotations": {"checksum/code": code_digest(*ROOMS)},
    }
    if plan.closed:
        values["podLabels"] = allowed(TO_API_SERVER, TO_BLOCKED, TO_DNS)
    return {
        "apiVersion": "core.gardener.cloud/v1",
        "kind": "ControllerDeployment",
        "metadata": {"name": NAME},
        "helm": {"rawChart": b64encode(packaged(CHARTS / NAME)).decode(), "values": values},
    }


def cloud_profile(plan: Plan) -> Object:
    """The landscape's CloudProfile, whose machine image also offers gVisor."""
    profile = garden.cloud_profile(plan)
    for image in profile["spec"]["machineImages"]:
        for version in image["versions"]:
            for cri in version["cri"]:
                cri["containerRuntimes"] = [{"type": TYPE}]
    return profile

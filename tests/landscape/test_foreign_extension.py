"""An extension of another project's making serves a Shoot: it is installed by the chart that its authors publish.

Its two Extension types are deployed before the API server of a Shoot, into the seed, and after it, into the Shoot.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator

import pytest

from landscape import containerd, images
from landscape.lifecycle import require
from tests import gardener_extension
from tests.gardener_extension import IMAGE, IN_SEED, IN_SHOOT, VALUES
from tests.landscape.conftest import Landscape
from tests.landscape.installations import GOOD, apply, conditions, deploy, installations, unregister
from tests.landscape.shoots import CREATION, Shoot, eventually

# The first run compiles the extension.
pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(900)]

NAME = "gardener-provider-local"
SEED = "seed-1"
REGISTRATION = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "ControllerRegistration",
    "metadata": {"name": NAME, "annotations": {"security.gardener.cloud/pod-security-enforce": "privileged"}},
    "spec": {
        "deployment": {"deploymentRefs": [{"name": NAME}]},
        "resources": [
            {
                "kind": "Extension",
                "type": IN_SEED,
                "clusterCompatibility": ["shoot", "seed"],
                "lifecycle": {
                    "reconcile": "BeforeKubeAPIServer",
                    "delete": "AfterKubeAPIServer",
                    "migrate": "AfterKubeAPIServer",
                },
                "workerlessSupported": True,
            },
            {"kind": "Extension", "type": IN_SHOOT, "workerlessSupported": True},
        ],
    },
}


async def _published(landscape: Landscape) -> bytes:
    """The chart. Its image is on each node of the seeds, as if the nodes had pulled it."""
    archive = await asyncio.to_thread(images.archive_of_program, IMAGE, await gardener_extension.built())
    nodes = [node for seed in require(landscape.name).seeds for node in seed.nodes]
    await asyncio.gather(*(containerd.add(node, archive) for node in nodes))
    return await gardener_extension.chart()


@pytest.fixture(scope="module")
def served(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A Shoot with both types."""
    chart = b64encode(asyncio.run(_published(landscape))).decode()
    # The pod mounts this directory of the node, and does not use it.
    directory = {"containerMountPath": str(landscape.directory / "foreign-extension")}
    values = {**VALUES, "controllers": {"backupbucket": directory}}
    deploy(landscape, NAME, {"rawChart": chart, "values": values})
    apply(landscape, REGISTRATION)
    shoot = Shoot(landscape, "foreign", tmp_path_factory.mktemp("kubeconfigs"))
    wanted = [{"type": each} for each in (IN_SEED, IN_SHOOT)]
    try:
        with shoot.created(shoot.manifest(seedName=SEED, extensions=wanted)):
            yield shoot
    finally:
        unregister(landscape, NAME)


def test_it_is_installed_where_a_shoot_needs_it(landscape: Landscape, served: Shoot) -> None:
    [installation] = installations(landscape, NAME)

    assert installation["spec"]["seedRef"]["name"] == SEED
    eventually(lambda: GOOD.items() <= conditions(installations(landscape, NAME)[0]).items(), "its conditions", 60)


def test_it_serves_the_shoot(served: Shoot) -> None:
    for type_ in (IN_SEED, IN_SHOOT):
        extension = json.loads(served.control_plane("get", "extensions.extensions.gardener.cloud", type_, "-o", "json"))
        assert extension["status"]["lastOperation"]["state"] == "Succeeded"
    served.control_plane("get", "serviceaccount", IN_SEED)
    served.kubectl("-n", "kube-system", "get", "serviceaccount", IN_SHOOT)


def test_it_uses_an_access_of_its_own_to_the_garden(landscape: Landscape, served: Shoot) -> None:
    """The program annotates its Seed once it has access. The operator gives it that right (decision 22)."""
    role = ("--verb=get,patch", "--resource=seeds.core.gardener.cloud", f"--resource-name={SEED}")
    landscape.kubectl("garden", "create", "clusterrole", NAME, *role)
    group = f"--group=system:serviceaccounts:seed-{SEED}"
    landscape.kubectl("garden", "create", "clusterrolebinding", NAME, f"--clusterrole={NAME}", group)
    inject = ("--type=merge", "-p", json.dumps({"injectGardenKubeconfig": True}))
    landscape.kubectl("garden", "patch", "controllerdeployments.v1.core.gardener.cloud", NAME, *inject)

    def annotated() -> bool:
        seed = json.loads(landscape.kubectl("garden", "get", "seed", SEED, "-o", "json"))
        return "provider-local-e2e-test-garden-access" in (seed["metadata"].get("annotations") or {})

    eventually(annotated, "its annotation of the Seed", 90)
    for kind in ("clusterrolebinding", "clusterrole"):
        landscape.kubectl("garden", "delete", kind, NAME)


@pytest.mark.timeout(2 * CREATION, func_only=True)
def test_it_cleans_up_what_it_does_not_serve_any_more(landscape: Landscape, served: Shoot) -> None:
    """Then no Shoot of the seed needs it, and it is uninstalled."""
    served.change({"extensions": None})
    served.wait_until_reconciled(CREATION)

    left = served.control_plane("get", "extensions.extensions.gardener.cloud,serviceaccounts", "-o", "name")
    assert IN_SEED not in left
    assert IN_SHOOT not in left
    assert IN_SHOOT not in served.kubectl("-n", "kube-system", "get", "serviceaccounts", "-o", "name")
    eventually(lambda: not installations(landscape, NAME), "the end of its installation", 60)

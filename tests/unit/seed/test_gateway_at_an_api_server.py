"""The pods of a seed's gateway are replaced by those of the next version, at a real API server.

The tests do the work of the Deployment's controller and of the kubelet: they create pods, and report them ready.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from activities.components import gateway
from activities.components.gateway import OWN, Place
from activities.seed import gateway as activity
from activities.seed.extension_objects import MANAGER
from activities.seed.gateway import deploy_gateway
from api import resources
from kube.cache import Caches
from kube.client import KubeClient, Object
from tests.gardens import ApiServer
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

EARLIER = {"app": "istio-ingressgateway"}
"""Selector of the Service, and label of the pods, in versions whose pods end at once."""
KEEPS_SERVING = {"networking.gardener.cloud/keeps-serving": "true"}
PLACES = [OWN, Place("istio-ingress-handler-internal", "internal", {"team": "a", **dict.fromkeys(KEEPS_SERVING, "no")})]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        asyncio.run(made.prepare_seed())
        yield made


class Seed:
    """A gateway at one place of the seed."""

    def __init__(self, client: KubeClient, caches: Caches, place: Place) -> None:
        self.client, self.place = client, place
        self._clusters: Any = SimpleNamespace(seed=client, seed_caches=caches)

    async def deploy(self) -> None:
        await deploy_gateway(self._clusters, self.wanted(), self.place)

    @asynccontextmanager
    async def deploying(self) -> AsyncIterator[asyncio.Task[None]]:
        """A run that is killed at the end of the block, unless it has ended."""
        running = asyncio.create_task(self.deploy())
        yield running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def wanted(self) -> list[Object]:
        return gateway.objects(internal_domain="internal.example.org", place=self.place)

    async def deploy_earlier(self) -> None:
        """Apply the gateway of an earlier version: its pods lack the label, and its Service selects all pods."""
        for each in self.wanted():
            if each["kind"] == "Service":
                each["spec"]["selector"] = EARLIER
            if each["kind"] == "Deployment":
                for label in KEEPS_SERVING:
                    del each["spec"]["template"]["metadata"]["labels"][label]
            await self.client.apply(each, manager=MANAGER)

    async def start_pod(self, name: str) -> None:
        """Create a pod as the Deployment says."""
        template = (await self.deployment())["spec"]["template"]
        del template["spec"]["priorityClassName"]  # the seed's classes are not there
        metadata = {**template["metadata"], "name": name, "namespace": self.place.namespace}
        await self.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

    async def report(self, name: str, ready: str) -> None:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        await self.client.patch(resources.POD, name, self.place.namespace, {"status": status}, subresource="status")

    async def end_pod(self, name: str) -> None:
        await self.client.delete(resources.POD, name, self.place.namespace, grace_seconds=0)

    async def deployment(self) -> Object:
        return await self.client.get(resources.DEPLOYMENT, gateway.NAME, self.place.namespace)

    async def delay(self) -> int:
        """Seconds for which a new pod must be ready before the Deployment's controller deletes another one."""
        return int((await self.deployment())["spec"].get("minReadySeconds", 0))

    async def selector(self) -> Mapping[str, str]:
        service = await self.client.get(resources.SERVICE, gateway.NAME, self.place.namespace)
        found: Mapping[str, str] = service["spec"]["selector"]
        return found

    async def rolls(self) -> bool:
        """Whether the Deployment has the template of this version."""
        labels = (await self.deployment())["spec"]["template"]["metadata"]["labels"]
        return bool(labels.items() >= KEEPS_SERVING.items())


@pytest.fixture(params=PLACES, ids=["own", "handler"])
async def seed(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[Seed]:
    async with server.client() as client:
        caches = Caches(client)
        yield Seed(client, caches, request.param)
        await caches.close()
        for kind in (resources.DEPLOYMENT, resources.SERVICE):
            await client.delete(kind, gateway.NAME, request.param.namespace)
        for pod in await client.list(resources.POD, request.param.namespace):
            await client.delete(resources.POD, pod["metadata"]["name"], request.param.namespace, grace_seconds=0)


async def test_a_new_gateway_waits_for_no_pod_and_is_available_at_once(seed: Seed) -> None:
    await seed.deploy()

    assert await seed.selector() == EARLIER | KEEPS_SERVING
    assert await seed.delay() == 0


async def test_pods_that_end_at_once_get_no_connections_before_they_are_deleted(seed: Seed) -> None:
    await seed.deploy_earlier()
    await seed.start_pod("earlier")
    await seed.report("earlier", "True")

    async with seed.deploying() as running:
        await until(seed.rolls)
        assert await seed.delay() == 30
        await seed.start_pod("new")
        await seed.report("new", "False")
        await asyncio.sleep(0.2)
        assert not running.done()
        assert await seed.selector() == EARLIER

        await seed.report("new", "True")
        await running

    assert await seed.selector() == EARLIER | KEEPS_SERVING
    assert await seed.delay() == 30


async def test_the_next_run_after_the_last_of_these_pods_ends_the_delay(seed: Seed) -> None:
    await seed.deploy_earlier()
    await seed.start_pod("earlier")
    async with seed.deploying() as running:
        await until(seed.rolls)
        await seed.start_pod("new")
        await seed.report("new", "True")
        await running
    await seed.end_pod("earlier")

    await seed.deploy()

    assert await seed.selector() == EARLIER | KEEPS_SERVING
    assert await seed.delay() == 0


async def test_a_run_that_is_killed_while_it_waits_is_continued(seed: Seed) -> None:
    await seed.deploy_earlier()
    await seed.start_pod("earlier")
    async with seed.deploying():
        await until(seed.rolls)
        await seed.start_pod("new")
    assert await seed.selector() == EARLIER

    await seed.report("new", "True")
    await seed.deploy()

    assert await seed.selector() == EARLIER | KEEPS_SERVING
    assert await seed.delay() == 30


async def test_a_second_run_sends_no_connections_to_the_earlier_pods_again(seed: Seed) -> None:
    """The first run has changed the selector, and lost its answer; the new pod is not ready just now."""
    await seed.deploy_earlier()
    await seed.start_pod("earlier")
    async with seed.deploying() as running:
        await until(seed.rolls)
        await seed.start_pod("new")
        await seed.report("new", "True")
        await running
    await seed.report("new", "False")

    async with seed.deploying() as running:
        await asyncio.sleep(0.2)
        assert not running.done()
        assert await seed.selector() == EARLIER | KEEPS_SERVING
        assert await seed.delay() == 30


async def test_a_rollback_and_the_upgrade_after_it_change_the_selector_back_and_forth(seed: Seed) -> None:
    await seed.deploy()
    await seed.start_pod("new")
    await seed.report("new", "True")

    await seed.deploy_earlier()

    assert await seed.selector() == EARLIER
    assert not await seed.rolls()

    await seed.start_pod("earlier")
    await seed.end_pod("new")
    async with seed.deploying() as running:
        await until(seed.rolls)
        assert await seed.selector() == EARLIER
        await seed.start_pod("newer")
        await seed.report("newer", "True")
        await running

    assert await seed.selector() == EARLIER | KEEPS_SERVING


async def test_the_error_says_why_no_new_pod_is_ready(seed: Seed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_READY_SECONDS", 0.2)
    await seed.deploy_earlier()
    await seed.start_pod("earlier")
    no_room = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}

    with pytest.raises(TimeoutError, match=f"no new pod of Deployment {seed.place.namespace}/istio-ingressgateway"):
        await seed.deploy()
    assert await seed.selector() == EARLIER

    await seed.start_pod("new")
    await seed.client.patch(
        resources.POD, "new", seed.place.namespace, {"status": {"conditions": [no_room]}}, subresource="status"
    )
    with pytest.raises(TimeoutError, match="pod new cannot be scheduled: 0/1 nodes are available"):
        await seed.deploy()

"""The controller of NetworkPolicies at a real API server: it follows Services, namespaces, pods, Ingresses."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from api import resources
from api.resources import Resource
from kube.cache import Caches
from kube.client import KubeClient
from tests.api_servers import ready
from tests.gardens import ApiServer
from tests.unit.kube.waiting import until
from workers.resource_manager.config import NetworkPolicyController
from workers.resource_manager.network_policies import NetworkPolicies

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

NET = "networking.resources.gardener.cloud/"
Object = dict[str, Any]
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    # Pods need no ServiceAccount: no controller makes one.
    made = ApiServer(tmp_path_factory.mktemp("seed"), {}, flags=("--disable-admission-plugins", "ServiceAccount"))
    with made.running():
        yield made


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with server.client() as client:
        await ready(client)
        yield client


class Seed:
    """Namespaces of one test, and the controller."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._prefix = f"t{next(_numbers)}"
        self._tasks: list[asyncio.Task[None]] = []
        self._caches: list[Caches] = []

    def start(self, **config: Any) -> None:
        """Start a controller for the namespaces of this test."""
        selector = {"namespaceSelectors": [{"matchLabels": {"test": self._prefix}}]}
        caches = Caches(self.client)
        controller = NetworkPolicies(
            self.client, caches, NetworkPolicyController.model_validate({**selector, **config})
        )
        self._caches.append(caches)
        self._tasks.append(asyncio.create_task(controller.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for caches in self._caches:
            await caches.close()
        self._tasks, self._caches = [], []

    def name(self, namespace: str) -> str:
        return f"{self._prefix}-{namespace}"

    async def namespace(self, name: str, *, handled: bool = True, **labels: str) -> None:
        labels = {**labels, **({"test": self._prefix} if handled else {})}
        metadata = {"name": self.name(name), "labels": labels}
        await self.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, manager="test")

    async def service(self, namespace: str, *, name: str = "etcd", select: str = "etcd", **annotations: str) -> None:
        found = {f"{NET}{key.replace('_', '-')}": value for key, value in annotations.items()}
        spec: Object = {"ports": [{"name": "client", "port": 443, "targetPort": 2379, "protocol": "TCP"}]}
        await self.client.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name, "namespace": self.name(namespace), "annotations": found},
                "spec": spec | ({"selector": {"app": select}} if select else {}),
            },
            manager="test",
        )

    async def pod(self, namespace: str, *labels: str, name: str = "client") -> None:
        made = {f"{NET}{label}": "allowed" for label in labels}
        container = {"name": "one", "image": "none"}
        await self.client.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.name(namespace), "labels": made},
                "spec": {"containers": [container]},
            },
            manager="test",
        )

    async def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        await self.client.delete(resource, name, self.name(namespace) if namespace else None)

    async def settled(self) -> None:
        """Wait until all earlier events are handled: until a Service that is written now has its policy."""
        name = f"later-{next(_numbers)}"
        await self.namespace("settled")
        await self.service("settled", name=name, from_world_to_ports="[]")
        policy, place = f"ingress-to-{name}-from-world", self.name("settled")
        await until(lambda: self.client.find(resources.NETWORK_POLICY, policy, place))

    async def policies(self) -> dict[str, Object]:
        """All policies of this test, by namespace and name, without those of ``settled``."""
        found = {}
        for each in await self.client.list(resources.NETWORK_POLICY):
            place = each["metadata"]["namespace"]
            if place.startswith(f"{self._prefix}-") and place != self.name("settled"):
                found[f"{place.removeprefix(f'{self._prefix}-')}/{each['metadata']['name']}"] = each
        return found

    async def has(self, *names: str) -> dict[str, Object]:
        """Wait until exactly these policies exist; returns them. ``<name>`` in ``names`` stands for a namespace."""
        wanted = {each.replace("<", f"{self._prefix}-").replace(">", "") for each in names}
        found: dict[str, Object] = {}

        async def there() -> bool:
            nonlocal found
            found = await self.policies()
            return set(found) == wanted

        try:
            await until(there)
        except TimeoutError:
            raise AssertionError(f"policies are {sorted(found)}, not {sorted(wanted)}") from None
        return found


@pytest.fixture
async def seed(client: KubeClient) -> AsyncIterator[Seed]:
    seed = Seed(client)
    yield seed
    await seed.stop()


OWN = ("a/egress-to-etcd-tcp-2379", "a/ingress-to-etcd-tcp-2379")
ACROSS = ("a/ingress-to-etcd-tcp-2379-from-<b>", "b/egress-to-<a>-etcd-tcp-2379")
WORLD = "a/ingress-to-etcd-from-world"
LABEL = "to-etcd-tcp-2379"


def selecting(**labels: str) -> str:
    return json.dumps([{"matchLabels": labels}])


@pytest.mark.row("network policies", "policies come and go with the label of pods")
async def test_policies_come_and_go_with_the_label_of_pods(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a", from_world_to_ports="[]")
    seed.start()
    await seed.has(WORLD)

    await seed.pod("a", LABEL)
    found = await seed.has(WORLD, *OWN)
    assert found[OWN[0]]["spec"]["podSelector"] == {"matchLabels": {NET + LABEL: "allowed"}}
    await seed.pod("a", LABEL, name="second")
    await seed.pod("a")
    await seed.remove(resources.POD, "second", "a")
    await seed.has(WORLD)


@pytest.mark.row("network policies", "the Service is gone: all its policies go")
async def test_policies_end_with_their_service_also_while_no_controller_ran(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a")
    await seed.pod("a", LABEL)
    seed.start()
    await seed.has(*OWN)
    await seed.stop()
    await seed.remove(resources.SERVICE, "etcd", "a")
    seed.start()
    await seed.has()


@pytest.mark.row("network policies", "the Service has no selector any more: all its policies go")
async def test_policies_end_when_the_service_loses_its_selector(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a")
    await seed.pod("a", LABEL)
    seed.start()
    await seed.has(*OWN)
    await seed.service("a", select="")
    await seed.has()


@pytest.mark.row("network policies", "the namespace is not handled any more: all its policies go")
async def test_policies_end_when_the_namespace_is_not_handled_any_more(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a")
    await seed.pod("a", LABEL)
    seed.start()
    await seed.has(*OWN)
    await seed.namespace("a", handled=False)
    await seed.has()


async def test_policies_follow_labels_of_namespaces(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a", namespace_selectors=selecting(role="client"))
    await seed.namespace("b", handled=False)
    await seed.pod("b", f"to-{seed.name('a')}-etcd-tcp-2379")
    seed.start()
    await seed.has()
    await seed.namespace("b", handled=False, role="client")
    found = await seed.has(*ACROSS)
    await seed.settled()
    peer = found[f"a/ingress-to-etcd-tcp-2379-from-{seed.name('b')}"]["spec"]["ingress"][0]["from"][0]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": seed.name("b")}}
    await seed.namespace("b", handled=False, role="other")
    await seed.has()


async def test_a_namespace_that_ends_gets_no_policies(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a", namespace_selectors=selecting(role="client"), pod_label_selector_namespace_alias="all")
    await seed.namespace("b", role="client")
    await seed.pod("b", "to-all-etcd-tcp-2379")
    seed.start()
    await seed.has(*ACROSS)
    await seed.settled()
    await seed.remove(resources.NAMESPACE, seed.name("b"))
    await seed.has()


async def test_policies_of_a_namespace_that_ends_stay_until_its_services_are_gone(seed: Seed) -> None:
    """Pods of the namespace need their connections while they shut down."""
    await seed.namespace("a")
    await seed.service("a", namespace_selectors=selecting(role="client"))
    await seed.namespace("b", role="client")
    await seed.pod("b", f"to-{seed.name('a')}-etcd-tcp-2379")
    await seed.pod("a", LABEL)
    seed.start()
    await seed.has(*OWN, *ACROSS)
    await seed.remove(resources.NAMESPACE, seed.name("a"))
    await seed.settled()
    await seed.has(*OWN, *ACROSS)
    await seed.remove(resources.SERVICE, "etcd", "a")
    await seed.has()


async def test_groups_of_ports_and_all_clients(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service(
        "a",
        from_all_scrape_targets_allowed_ports='[{"port":8080,"protocol":"TCP"}]',
        from_world_to_ports='[{"port":"2379"}]',
    )
    await seed.pod("a", "to-all-scrape-targets")
    seed.start()
    via = "etcd-tcp-8080-via-all-scrape-targets"
    found = await seed.has(f"a/egress-to-{via}", f"a/ingress-to-{via}", WORLD)
    assert found[WORLD]["spec"]["ingress"][0]["ports"] == [{"port": 2379, "protocol": "TCP"}]
    # Each annotation that goes takes its policies with it.
    await seed.service("a")
    await seed.has()


async def test_backends_of_ingresses_are_open_to_the_ingress_controller(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.namespace("b", handled=False)
    await seed.service("a")
    controller = {"namespace": seed.name("b"), "podSelector": {"matchLabels": {"app": "nginx"}}}
    seed.start(ingressControllerSelector=controller)
    backend = {"service": {"name": "etcd", "port": {"name": "client"}}}
    await seed.client.apply(
        {
            "apiVersion": resources.INGRESS.api_version,
            "kind": "Ingress",
            "metadata": {"name": "one", "namespace": seed.name("a")},
            "spec": {"defaultBackend": backend},
        },
        manager="test",
    )
    suffix = "etcd-tcp-2379-from-ingress-controller"
    await seed.has(f"a/ingress-to-{suffix}", f"b/egress-to-<a>-{suffix}")
    await seed.remove(resources.INGRESS, "one", "a")
    await seed.has()


def _narrowed(policy: Object) -> None:
    policy["spec"]["podSelector"]["matchLabels"]["more"] = "narrow"


def _opened(policy: Object) -> None:
    policy["spec"]["ingress"].append({})


def _disowned(policy: Object) -> None:
    del policy["metadata"]["labels"]


@pytest.mark.row("network policies", "changes that others make are undone")
@pytest.mark.parametrize("change", [_narrowed, _opened, _disowned])
async def test_changes_that_others_make_are_undone(seed: Seed, change: Callable[[Object], None]) -> None:
    await seed.namespace("a")
    await seed.service("a")
    await seed.pod("a", LABEL)
    seed.start()
    before = (await seed.has(*OWN))[OWN[1]]
    changed = json.loads(json.dumps(before))
    change(changed)
    changed = await seed.client.replace({**changed, "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"})

    async def undone() -> bool:
        live = (await seed.policies())[OWN[1]]
        return bool(live["spec"] == before["spec"] and live["metadata"].get("labels") == before["metadata"]["labels"])

    await until(undone)
    await seed.remove(resources.NETWORK_POLICY, OWN[1].removeprefix("a/"), "a")
    await seed.has(*OWN)


@pytest.mark.row("network policies", "nothing is written when nothing changes")
async def test_nothing_is_written_when_nothing_changed(seed: Seed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a second controller, nor after events that change no policy."""
    await seed.namespace("a")
    await seed.service("a", from_world_to_ports="[]")
    await seed.pod("a", LABEL)
    seed.start()
    await seed.has(*OWN, WORLD)
    await seed.settled()
    await seed.stop()
    written = []
    for verb in ("create", "replace", "delete"):
        real = getattr(seed.client, verb)

        def recording(*args: Any, real: Any = real, verb: str = verb, **rest: Any) -> Any:
            written.append((verb, *args))
            return real(*args, **rest)

        monkeypatch.setattr(seed.client, verb, recording)
    seed.start()
    await seed.pod("a", LABEL, name="second")
    await seed.namespace("a", more="labels")
    await seed.settled()
    [(verb, policy)] = written
    assert (verb, policy["metadata"]["namespace"]) == ("create", seed.name("settled"))


async def test_a_faulty_annotation_is_reported_and_deletes_nothing(seed: Seed) -> None:
    await seed.namespace("a")
    await seed.service("a", from_world_to_ports="[]")
    await seed.pod("a", LABEL)
    seed.start()
    await seed.has(*OWN, WORLD)
    await seed.service("a", from_world_to_ports="everything")

    async def events() -> list[Object]:
        """A busy API server reports a Service, too, before it has stored the Service's address."""
        found = await seed.client.list(resources.EVENT, seed.name("a"))
        return [each for each in found if each["reason"] != "ClusterIPNotAllocated"]

    [event] = await until(events)
    assert (event["type"], event["reason"], event["involvedObject"]["name"]) == ("Warning", "InvalidAnnotation", "etcd")
    assert "from-world-to-ports: Invalid JSON" in event["message"]
    await seed.has(*OWN, WORLD)
    # The report is written once.
    await seed.namespace("a", more="labels")
    await seed.settled()
    assert [each["count"] for each in await events()] == [1]

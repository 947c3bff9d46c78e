"""The machine controllers with the driver of another provider: a cloud that is a dictionary."""

import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.machine.codes import MachineCode
from api.resources import MACHINE, MACHINE_DEPLOYMENT, NODE
from kube.cache import Caches
from tests.unit.kube.fake_cluster import FakeCluster
from tests.unit.mcm.processes import running
from workers.autoscaler_provider import externalgrpc_pb2 as pb
from workers.autoscaler_provider.node_groups import instance
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.driver import Driver, MachineError, ResolvedClass
from workers.machine_controller_manager.machine import MachineController
from workers.machine_controller_manager.machine_deployment import MachineDeploymentController
from workers.machine_controller_manager.machine_set import MachineSetController

NAMESPACE = "shoot--dev--one"
USER_DATA = b"join <<MACHINE_NAME>> with <<BOOTSTRAP_TOKEN>>"
KEY = base64.b64encode(b"key of the account").decode()


class MemoryDriver:
    """A driver of provider ``memory``. It implements ``Driver`` and ``Machines`` without a base class."""

    provider = "memory"

    def __init__(self) -> None:
        self.scripts: dict[str, str] = {}
        """User data of the machines that exist, by name."""
        self.refusal: MachineError | None = None
        self.is_complete = True
        self._on_gone: list[Callable[[str], None]] = []

    async def create(self, machine: Mapping[str, Any], class_: ResolvedClass, user_data: bytes) -> str:
        if self.refusal:
            raise self.refusal
        assert class_.credentials == {"apiKey": KEY}
        name = machine["metadata"]["name"]
        self.scripts[name] = user_data.decode()
        return f"memory:///{class_.object['providerSpec']['zone']}/{name}"

    async def status(self, machine: Mapping[str, Any], class_: ResolvedClass) -> str:
        name = machine["metadata"]["name"]
        if name not in self.scripts:
            raise MachineError(MachineCode.NOT_FOUND, f"machine {name} does not exist")
        return f"memory:///{class_.object['providerSpec']['zone']}/{name}"

    async def delete(self, machine: Mapping[str, Any], class_: ResolvedClass) -> bool:
        self.lose(machine["metadata"]["name"])
        return True

    async def machines(self, class_: ResolvedClass) -> "MemoryDriver":
        return self

    async def close(self) -> None:
        return

    def __contains__(self, name: object) -> bool:
        return name in self.scripts

    def subscribe(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone.append(on_gone)

    def lose(self, name: str) -> None:
        if self.scripts.pop(name, None):
            for tell in self._on_gone:
                tell(name)


class World:
    def __init__(self) -> None:
        self.seed, self.shoot, self.cloud = FakeCluster(), FakeCluster(), MemoryDriver()

    async def prepare(self, provider: str = "memory", replicas: int = 2) -> None:
        secrets = {"account": {"apiKey": KEY}, "class-a": {"userData": base64.b64encode(USER_DATA).decode()}}
        for name, data in secrets.items():
            metadata = {"name": name, "namespace": NAMESPACE}
            await self.seed.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
        await self.seed.create(
            {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "MachineClass",
                "metadata": {"name": "class-a", "namespace": NAMESPACE},
                "provider": provider,
                "providerSpec": {"zone": "z1"},
                "secretRef": {"name": "class-a", "namespace": NAMESPACE},
                "credentialsSecretRef": {"name": "account", "namespace": NAMESPACE},
            }
        )
        labels = {"name": "pool"}
        await self.seed.create(
            {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "MachineDeployment",
                "metadata": {"name": "pool", "namespace": NAMESPACE},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"class": {"kind": "MachineClass", "name": "class-a"}},
                    },
                },
            }
        )

    @asynccontextmanager
    async def controllers(self) -> AsyncIterator[None]:
        seed, shoot = Caches(self.seed), Caches(self.shoot)
        drivers: list[Driver] = [self.cloud]
        config = MachineControllerManagerConfig(namespace=NAMESPACE)
        loops = (
            MachineDeploymentController(self.seed, seed, self.shoot, shoot, NAMESPACE).run(),
            MachineSetController(self.seed, seed, NAMESPACE).run(),
            MachineController(self.seed, seed, self.shoot, shoot, drivers, config).run(),
        )
        async with running(*loops, caches=(seed, shoot)):
            yield

    async def join(self) -> None:
        """Add the nodes of all machines that exist in the cloud."""
        for name in self.cloud.scripts.keys() - {each["metadata"]["name"] for each in self.shoot.of(NODE)}:
            await self.shoot.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
            ready = {"type": "Ready", "status": "True"}
            await self.shoot.patch(NODE, name, None, {"status": {"conditions": [ready]}}, subresource="status")

    def available(self) -> int:
        (deployment,) = self.seed.of(MACHINE_DEPLOYMENT)
        return int((deployment.get("status") or {}).get("availableReplicas") or 0)

    def last_operations(self) -> list[dict[str, Any]]:
        return [(each.get("status") or {}).get("lastOperation") or {} for each in self.seed.of(MACHINE)]


@pytest.fixture
def world() -> World:
    return World()


async def test_machines_of_another_provider_live_and_end_by_its_driver(world: World) -> None:
    await world.prepare()
    async with world.controllers():
        await world.seed.until(
            lambda: (
                [each["spec"].get("providerID") for each in world.seed.of(MACHINE)]
                and all(each["spec"].get("providerID") for each in world.seed.of(MACHINE))
                and len(world.seed.of(MACHINE)) == 2
            )
        )
        await world.join()
        await world.seed.until(lambda: world.available() == 2)
        for name, script in world.cloud.scripts.items():
            assert script.startswith(f"join {name} with ")
            assert "<<" not in script
            assert world.shoot.objects[NODE, "", name]["spec"]["providerID"] == f"memory:///z1/{name}"
        await world.seed.delete(MACHINE_DEPLOYMENT, "pool", NAMESPACE)
        await world.seed.until(lambda: not world.seed.of(MACHINE_DEPLOYMENT))

    assert not world.cloud.scripts
    assert not world.shoot.of(NODE)


async def test_a_machine_that_the_driver_reports_as_gone_is_replaced(world: World) -> None:
    await world.prepare(replicas=1)
    async with world.controllers():
        await world.seed.until(lambda: [each for each in world.seed.of(MACHINE) if each["spec"].get("providerID")])
        await world.join()
        await world.seed.until(lambda: world.available() == 1)
        (lost,) = list(world.cloud.scripts)
        world.cloud.lose(lost)
        await world.seed.until(lambda: world.cloud.scripts and lost not in world.cloud.scripts)


@pytest.mark.parametrize(
    ("code", "error_class"),
    [(MachineCode.RESOURCE_EXHAUSTED, 1), (MachineCode.INVALID_ARGUMENT, 99), (MachineCode.UNAVAILABLE, 99)],
)
async def test_a_code_of_the_driver_reaches_the_status_and_the_autoscaler(
    world: World, code: MachineCode, error_class: int
) -> None:
    """After ResourceExhausted (class 1), the cluster autoscaler tries another pool at once."""
    world.cloud.refusal = MachineError(code, "no such machine today")
    await world.prepare(replicas=1)
    async with world.controllers():
        await world.seed.until(lambda: [each for each in world.last_operations() if each.get("state") == "Failed"])
        (last,) = world.last_operations()
        assert (last["errorCode"], last["description"]) == (str(code), "no such machine today")
        (machine,) = world.seed.of(MACHINE)
        expected = pb.InstanceErrorInfo(
            errorCode=str(code), errorMessage="no such machine today", instanceErrorClass=error_class
        )
        assert instance(machine).status.errorInfo == expected
        world.cloud.refusal = None
        await world.seed.until(lambda: world.cloud.scripts)


async def test_a_class_of_a_provider_without_a_driver_is_reported(world: World) -> None:
    await world.prepare("martian", replicas=1)
    async with world.controllers():
        await world.seed.until(lambda: [each for each in world.last_operations() if each.get("state") == "Failed"])

    (last,) = world.last_operations()
    assert last["errorCode"] == "Unimplemented"
    assert "provider 'martian'" in last["description"]
    assert "drivers of providers memory" in last["description"]
    assert not world.cloud.scripts


def test_credentials_are_not_shown_with_their_class() -> None:
    assert KEY not in repr(ResolvedClass({"metadata": {"name": "a"}}, {"apiKey": KEY}))


def test_the_controllers_import_no_provider() -> None:
    """In a process of its own: this process has imported other tests."""
    script = (
        "import sys\n"
        "import tests.unit.mcm.test_drivers\n"
        "print([name for name in sys.modules if 'provider_local' in name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[3], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"

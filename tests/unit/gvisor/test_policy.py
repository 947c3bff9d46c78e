"""The chart's MutatingAdmissionPolicy at a real API server: what it adds to OperatingSystemConfigs."""

import asyncio
import copy
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from api.resources import OPERATING_SYSTEM_CONFIG
from kube.client import KubeClient, Object
from tests.charts.test_rendering import rendered
from tests.gardens import ApiServer, until_policy_acts
from workers.gvisor.actuator import HANDLER
from workers.node_agent.containerd import changed_config

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

NAMESPACE = "default"
DIRECTORY, CONFIG = "/var/bin/containerruntimes", "/etc/containerd/runsc.toml"
LABEL = {"containerruntime.worker.gardener.cloud/gvisor": "true"}
MACHINE = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    policy = [each for each in rendered("runtime-gvisor") if each["kind"].startswith("MutatingAdmissionPolicy")]
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        asyncio.run(made.prepare_seed(*policy))
        asyncio.run(until_policy_acts(made, _acts))
        yield made


async def _acts(client: KubeClient, name: str) -> bool:
    await apply(client, name)
    return len((await read(client, name))["files"]) > 1


def config(name: str, purpose: str = "reconcile", labels: dict[str, str] = LABEL) -> Object:
    plugins = {"criConfig": {"name": "containerd", "containerd": {"sandboxImage": "pause", "plugins": []}}}
    return {
        "apiVersion": OPERATING_SYSTEM_CONFIG.api_version,
        "kind": OPERATING_SYSTEM_CONFIG.kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "type": "local",
            "purpose": purpose,
            "files": [{"path": "/etc/motd", "permissions": 0o600, "content": {"inline": {"data": "hello"}}}],
            **(plugins if purpose == "reconcile" else {}),
        },
    }


async def apply(client: KubeClient, name: str, **kwargs: Any) -> None:
    await client.apply(config(name, **kwargs), manager="gardenlet")


async def read(client: KubeClient, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = (await client.get(OPERATING_SYSTEM_CONFIG, name, NAMESPACE))["spec"]
    return spec


async def test_nodes_of_a_pool_with_gvisor_get_its_programs(server: ApiServer) -> None:
    async with server.client() as client:
        await apply(client, "programs")
        files = {each["path"]: each for each in (await read(client, "programs"))["files"]}

    names = ("runsc", "containerd-shim-runsc-v1")
    assert files.keys() == {"/etc/motd", CONFIG, *(f"{DIRECTORY}/{name}" for name in names)}
    for name in names:
        assert files[f"{DIRECTORY}/{name}"] == {
            "path": f"{DIRECTORY}/{name}",
            "permissions": 0o755,
            "content": {
                "imageRef": {
                    "image": "ghcr.io/gardener-on-temporal/runtime-gvisor:v0.1.0",
                    "filePathInImage": f"/{name}",
                }
            },
        }
    settings = tomllib.loads(files[CONFIG]["content"]["inline"]["data"])
    assert settings["binary_name"] == f"{DIRECTORY}/runsc"
    assert settings["runsc_config"]["platform"] == "ptrace"


async def test_the_node_agent_makes_a_runtime_of_containerd_from_it_and_removes_it_again(server: ApiServer) -> None:
    async with server.client() as client:
        await apply(client, "runtime")
        cri = (await read(client, "runtime"))["criConfig"]
        await apply(client, "runtime", labels={})
        without = await read(client, "runtime")

    added = changed_config(MACHINE, cri, {})
    assert added is not None
    runtimes = tomllib.loads(added)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert runtimes[HANDLER] == {
        "runtime_type": "io.containerd.runsc.v1",
        "options": {"TypeUrl": "io.containerd.runsc.v1.options", "ConfigPath": CONFIG},
    }
    assert [each["path"] for each in without["files"]] == ["/etc/motd"]
    removed = changed_config(added, without["criConfig"], cri)
    assert removed is not None
    left = tomllib.loads(removed)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert left.keys() == {"runc"}


async def test_further_writes_add_nothing_twice(server: ApiServer) -> None:
    """A changed spec would mean a new generation, and the flow would wait for its reconciliation."""
    async with server.client() as client:
        await apply(client, "twice")
        first = await client.get(OPERATING_SYSTEM_CONFIG, "twice", NAMESPACE)
        await client.patch(OPERATING_SYSTEM_CONFIG, "twice", NAMESPACE, {"metadata": {"annotations": {"a": "b"}}})
        await apply(client, "twice")
        second = await client.get(OPERATING_SYSTEM_CONFIG, "twice", NAMESPACE)

    assert second["spec"] == first["spec"]
    assert second["metadata"]["generation"] == first["metadata"]["generation"] == 1


@pytest.mark.parametrize(("purpose", "labels"), [("provision", LABEL), ("reconcile", {})])
async def test_user_data_and_other_pools_stay_as_they_are(
    server: ApiServer, purpose: str, labels: dict[str, str]
) -> None:
    name = f"other-{purpose}"
    wanted = copy.deepcopy(config(name, purpose, labels)["spec"])
    async with server.client() as client:
        await apply(client, name, purpose=purpose, labels=labels)
        spec = await read(client, name)

    assert [each["path"] for each in spec["files"]] == [each["path"] for each in wanted["files"]]
    assert not (spec.get("criConfig") or {}).get("containerd", {}).get("plugins")

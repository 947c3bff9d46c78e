"""The chart's MutatingAdmissionPolicy at a real API server: how nodes get the mirror of all registries."""

import asyncio
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from api.resources import OPERATING_SYSTEM_CONFIG
from kube.client import KubeClient, Object
from tests.charts.test_rendering import rendered
from tests.gardens import ApiServer, until_policy_acts
from workers.node_agent.containerd import registry_files

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(180, func_only=True),
]

NAMESPACE = "default"
URL, AUTHORITY = "https://10.0.0.1:5000", "-----BEGIN CERTIFICATE-----\n'\"\\\n-----END CERTIFICATE-----\n"
MIRROR = {"upstream": "_default", "hosts": [{"url": URL, "capabilities": ["pull", "resolve"]}]}
OTHER = {"upstream": "docker.io", "hosts": [{"url": "https://10.0.0.2"}]}


def policy(mirror: dict[str, str]) -> list[Object]:
    objects = rendered("provider-local", {"registryMirror": mirror})
    return [each for each in objects if each["kind"].startswith("MutatingAdmissionPolicy")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        asyncio.run(made.prepare_seed(*policy({"url": URL, "caBundle": AUTHORITY})))
        asyncio.run(until_policy_acts(made, _acts))
        yield made


async def _acts(client: KubeClient, name: str) -> bool:
    return bool((await written(client, name))["criConfig"]["containerd"]["registries"])


async def written(
    client: KubeClient,
    name: str,
    registries: Sequence[Object] | None = (),
    type_: str = "local",
    purpose: str = "reconcile",
) -> dict[str, Any]:
    """The spec that an OperatingSystemConfig has after the gardenlet's write."""
    listed = {} if registries is None else {"registries": [*registries]}
    containerd = {"name": "containerd", "containerd": {"sandboxImage": "pause", "plugins": [], **listed}}
    wanted = {
        "apiVersion": OPERATING_SYSTEM_CONFIG.api_version,
        "kind": OPERATING_SYSTEM_CONFIG.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": type_,
            "purpose": purpose,
            "files": [{"path": "/etc/motd", "permissions": 0o600, "content": {"inline": {"data": "hello"}}}],
            "criConfig": containerd,
        },
    }
    await client.apply(wanted, manager="gardenlet")
    spec: dict[str, Any] = (await client.get(OPERATING_SYSTEM_CONFIG, name, NAMESPACE))["spec"]
    return spec


def test_without_a_mirror_the_chart_has_no_policy() -> None:
    assert policy({}) == policy({"url": "", "caBundle": AUTHORITY}) == []


async def test_nodes_ask_the_mirror_for_each_image_and_trust_its_authority(server: ApiServer) -> None:
    async with server.client() as client:
        spec = await written(client, "mirror")

    files = {each["path"]: each["content"]["inline"]["data"] for each in spec["files"]}
    [(path, content)] = registry_files(spec["criConfig"]).items()
    assert path == "/etc/containerd/certs.d/_default/hosts.toml"
    [(url, host)] = tomllib.loads(content)["host"].items()
    assert (url, host["capabilities"]) == (URL, ["pull", "resolve"])
    assert [files[each] for each in host["ca"]] == [AUTHORITY]
    assert "server" not in tomllib.loads(content), "the registry in the image's name is asked after the mirror"


@pytest.mark.parametrize("before", [None, [], [OTHER]], ids=["none", "empty", "another's"])
async def test_registries_of_others_stay(server: ApiServer, before: list[Object] | None) -> None:
    async with server.client() as client:
        spec = await written(client, f"with-{len(before or ())}-{before is None}".lower(), before)

    found = spec["criConfig"]["containerd"]["registries"]
    assert [each["upstream"] for each in found] == [*(each["upstream"] for each in before or ()), "_default"]


async def test_a_further_write_changes_nothing(server: ApiServer) -> None:
    """A changed spec would mean a new generation, and the flow would wait for its reconciliation."""
    async with server.client() as client:
        assert await written(client, "twice") == await written(client, "twice")
        live = await client.get(OPERATING_SYSTEM_CONFIG, "twice", NAMESPACE)
        await client.patch(OPERATING_SYSTEM_CONFIG, "twice", NAMESPACE, {"metadata": {"annotations": {"a": "b"}}})
        patched = await client.get(OPERATING_SYSTEM_CONFIG, "twice", NAMESPACE)

    assert live["metadata"]["generation"] == patched["metadata"]["generation"] == 1


@pytest.mark.parametrize(("type_", "purpose"), [("gardenlinux", "reconcile"), ("local", "provision")])
async def test_other_providers_and_user_data_stay_as_they_are(server: ApiServer, type_: str, purpose: str) -> None:
    async with server.client() as client:
        spec = await written(client, f"other-{type_}", type_=type_, purpose=purpose)

    assert [each["path"] for each in spec["files"]] == ["/etc/motd"]
    assert spec["criConfig"]["containerd"]["registries"] == []


async def test_another_mirror_replaces_the_one_before(server: ApiServer) -> None:
    """The gardenlet owns the empty list, so its next write removes what the policy has added."""
    async with server.client() as client:
        await written(client, "changed")
        other = {**MIRROR, "hosts": [{"url": "https://10.0.0.9:5000", "capabilities": ["pull"]}]}
        live = await client.get(OPERATING_SYSTEM_CONFIG, "changed", NAMESPACE)
        live["spec"]["criConfig"]["containerd"]["registries"] = [other]
        await client.replace(live)
        again = await written(client, "changed")

    assert again["criConfig"]["containerd"]["registries"][0]["hosts"][0]["url"] == URL

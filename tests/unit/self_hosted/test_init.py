"""Steps of ``gardener shoot init`` that write to the new cluster."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.self_hosted import init
from activities.self_hosted.init import SelfHostedActivities
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import InitTask, SelfHostedManifest
from kube.client import KubeClient, Object
from tests.unit.kube.api_server import ApiServer
from tests.unit.kube.waiting import until
from tests.unit.self_hosted.test_control_plane import NAMED, secrets, task
from workers.node_agent.system import System

__all__ = ["secrets", "task"]
PLACE = ("alone-external", "kube-system")
NODES, PODS, SECRETS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/secrets"
CONFIG_MAPS, DEPLOYMENTS, DAEMON_SETS = "/api/v1/configmaps", "/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets"
RECORDS = "/apis/extensions.gardener.cloud/v1alpha1/dnsrecords"


class Named:
    """A machine of a Shoot that is exposed by a DNS record, and the controller of the record."""

    def __init__(self, task: InitTask, api: ApiServer) -> None:
        self.api = api
        self.steps = SelfHostedActivities(
            System(task.directory), task.model_copy(update={"shoot": SelfHostedManifest.read(NAMED)})
        )

    async def named(self, error: str = "") -> None:
        """Run the step; the controller tells success, or an error that only the owner can mend."""
        running = asyncio.create_task(ActivityEnvironment().run(self.steps.name_self_hosted_apiserver))
        await until(lambda: running.done() or self._asks())
        if not running.done():
            last = {"state": "Error" if error else "Succeeded", "lastUpdateTime": "2126-01-01T00:00:00Z"}
            status = {"observedGeneration": self.record["metadata"]["generation"], "lastOperation": last}
            if error:
                status["lastError"] = {"description": error, "codes": ["ERR_CONFIGURATION_PROBLEM"]}
            done = {"metadata": {"annotations": {"gardener.cloud/operation": None}}, "status": status}
            self.api.change(RECORDS, *PLACE, done)
        await running

    @property
    def record(self) -> Object:
        found = self.api.find(RECORDS, *PLACE)
        assert found is not None
        return found

    def _asks(self) -> bool:
        found = self.api.find(RECORDS, *PLACE)
        return "gardener.cloud/operation" in ((found or {"metadata": {}})["metadata"].get("annotations") or {})


@pytest.fixture
async def machine(task: InitTask, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Named]:
    (task.directory / "dns.json").write_text(json.dumps({"server": "198.18.0.1", "tsigSecret": "SENTINEL"}))
    async with ApiServer().running() as api:
        addresses = [{"type": "InternalIP", "address": "198.18.8.7"}]
        api.put(NODES, {"metadata": {"name": "alone-1"}, "status": {"addresses": addresses}})

        @asynccontextmanager
        async def connected(_: InitTask) -> AsyncIterator[KubeClient]:
            async with api.client() as client:
                yield client

        monkeypatch.setattr(init, "_cluster", connected)
        times = (f"2026-11-21T10:00:{second:02d}Z" for second in count())
        monkeypatch.setattr(init, "timestamp", lambda: next(times))
        yield Named(task, api)


async def test_the_record_has_the_address_of_the_machine_and_those_that_were_there(machine: Named) -> None:
    await machine.named()
    assert machine.record["spec"] == {
        "type": "local",
        "secretRef": {"name": "dnsrecord-external", "namespace": "kube-system"},
        "name": "api.alone.example.org",
        "recordType": "A",
        "values": ["198.18.8.7"],
        "ttl": 120,
    }
    secret = machine.api.find(SECRETS, "dnsrecord-external", "kube-system")
    assert secret is not None
    assert secret["data"].keys() == {"server", "tsigSecret"}

    machine.api.change(RECORDS, *PLACE, {"spec": {"values": ["198.18.8.1", "198.18.8.7"]}})
    await machine.named()
    assert machine.record["spec"]["values"] == ["198.18.8.1", "198.18.8.7"]


async def test_an_error_of_the_record_is_told_without_the_key(machine: Named) -> None:
    with pytest.raises(ApplicationError, match="refused with NOTAUTH; check the TSIG key") as told:
        await machine.named("the server refused with NOTAUTH; check the TSIG key")
    assert told.value.non_retryable
    assert "SENTINEL" not in str(told.value)


def test_the_kubeconfig_of_a_named_shoot_has_its_name(machine: Named, secrets: FileSecrets) -> None:
    cluster = machine.steps._administrator("api.alone.example.org")["clusters"][0]["cluster"]
    assert cluster["server"] == "https://api.alone.example.org"


async def test_a_renewal_waits_until_each_pod_runs_with_its_new_files(machine: Named, secrets: FileSecrets) -> None:
    """The kubelet replaces a static pod once it has seen the file, and tells of it later."""
    waiting = asyncio.create_task(ActivityEnvironment().run(machine.steps.wait_self_hosted_pods))
    left = [each for each in machine.steps._static_pods() if "annotations" in each.manifest["metadata"]]
    assert len(left) == 3
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for each in left:
        metadata = {**each.manifest["metadata"], "name": f"{each.name}-alone-1"}
        old = {**metadata, "annotations": {"checksum/files": "old", "kubernetes.io/config.source": "file"}}
        machine.api.put(PODS, {"metadata": old, "status": ready})
    for each in left:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.3)
        name = f"{each.name}-alone-1"
        machine.api.change(PODS, name, "kube-system", {"metadata": {**each.manifest["metadata"], "name": name}})
    await asyncio.wait_for(waiting, 10)


async def test_a_component_that_is_deleted_or_changed_is_put_back(machine: Named, secrets: FileSecrets) -> None:
    await machine.steps.deploy_self_hosted_system()
    before = dict(machine.api.objects)
    machine.api.remove(DEPLOYMENTS, "coredns", "kube-system")
    machine.api.change(DAEMON_SETS, "kube-proxy-cp-v1.37.1", "kube-system", {"spec": {"template": None}})
    assert machine.api.objects.keys() != before.keys()

    assert await machine.steps.repair_self_hosted_system()
    assert {place: _content(found) for place, found in machine.api.objects.items()} == {
        place: _content(found) for place, found in before.items()
    }
    versions = {place: found["metadata"]["resourceVersion"] for place, found in machine.api.objects.items()}
    assert await machine.steps.repair_self_hosted_system()
    assert versions == {place: found["metadata"]["resourceVersion"] for place, found in machine.api.objects.items()}


async def test_a_machine_of_an_earlier_version_puts_nothing_back(machine: Named, secrets: FileSecrets) -> None:
    """Two machines of different versions would change the components every few minutes."""
    await machine.steps.deploy_self_hosted_system()
    machine.api.change(
        CONFIG_MAPS, "self-hosted-system", "kube-system", {"data": {"digest": "that of a later version"}}
    )
    machine.api.remove(DEPLOYMENTS, "coredns", "kube-system")
    assert not await machine.steps.repair_self_hosted_system()
    assert machine.api.find(DEPLOYMENTS, "coredns", "kube-system") is None

    machine.api.remove(CONFIG_MAPS, "self-hosted-system", "kube-system")
    assert await machine.steps.repair_self_hosted_system()
    assert machine.api.find(DEPLOYMENTS, "coredns", "kube-system")


async def test_a_repair_that_was_killed_is_done_by_the_next(
    machine: Named, secrets: FileSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await machine.steps.deploy_self_hosted_system()
    deleted = [place for place in machine.api.objects if place[0] == DAEMON_SETS]
    for each in deleted:
        machine.api.remove(*_place(each))
    with monkeypatch.context() as patched:
        patched.setattr(KubeClient, "apply", _dying(KubeClient.apply))
        with pytest.raises(KeyError):
            await machine.steps.repair_self_hosted_system()
    assert await machine.steps.repair_self_hosted_system()
    assert deleted == [each for each in machine.api.objects if each[0] == DAEMON_SETS]


def _dying(apply: Any) -> Any:
    """It dies before the second DaemonSet."""
    seen: list[str] = []

    async def run(self: KubeClient, obj: Object, **options: Any) -> Any:
        seen.append(obj["kind"])
        if seen.count("DaemonSet") == 2:
            raise KeyError
        return await apply(self, obj, **options)

    return run


def _content(found: Object) -> Object:
    metadata = {key: value for key, value in found["metadata"].items() if key in ("name", "namespace", "labels")}
    return {**{key: value for key, value in found.items() if key != "metadata"}, "metadata": metadata}


def _place(place: Any) -> tuple[str, str, str]:
    path, namespace, name = place
    return path, name, namespace

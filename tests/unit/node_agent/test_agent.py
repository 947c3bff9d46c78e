"""The agent follows its pool's Secret and shows on the Node what it applied."""

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm, Usage
from tests.unit.kube.api_server import ApiServer
from tests.unit.node_agent.fake_system import FakeSystem
from workers.node_agent import agent as agent_module
from workers.node_agent.agent import NodeAgent, _seconds
from workers.node_agent.config import NodeAgentConfig
from workers.node_agent.identity import Denied
from workers.node_agent.system import CommandFailed

NODES, SECRETS, LEASES = "/api/v1/nodes", "/api/v1/secrets", "/apis/coordination.k8s.io/v1/leases"
CHECKSUM = "checksum/cloud-config-data"


def content(text: str) -> dict[str, Any]:
    return {"spec": {"files": [{"path": "/etc/marker", "content": {"inline": {"data": text}}}], "units": []}}


def secret(text: str) -> dict[str, Any]:
    data = base64.b64encode(json.dumps(content(text)).encode()).decode()
    return {"metadata": {"name": "pool", "namespace": "kube-system"}, "data": {"osc.yaml": data}}


def checksum(text: str) -> str:
    return hashlib.sha256(json.dumps(content(text)).encode()).hexdigest()


def node(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "machine-1", "uid": "node-uid", "annotations": annotations}}


class Agent(NodeAgent):
    """An agent whose renewals of certificates are recorded, and fail if a test wants it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, renew=self.record_renewal, **options)
        self.renewals: list[str] = []
        self.fails_to_renew = False

    async def record_renewal(self) -> None:
        self.renewals.append("failed" if self.fails_to_renew else "renewed")
        if self.fails_to_renew:
            raise Denied("request csr-1 was denied")


@pytest.fixture
def system(tmp_path: Path) -> FakeSystem:
    return FakeSystem(tmp_path / "root")


@pytest.fixture
async def agent(api: ApiServer, state: Path, system: FakeSystem) -> AsyncIterator[Agent]:
    config = NodeAgentConfig(
        server="https://api.example.org",
        ca_file=Path("/ca.crt"),
        secret_name="pool",
        kubernetes_version="1.37.1",
        state_directory=state,
    )
    async with api.client() as client:
        machine = Agent(client, config, "machine-1", system, start_seconds=0.3, stable_seconds=0.05)
        tasks = [asyncio.create_task(machine.run()), asyncio.create_task(machine.keep_lease())]
        yield machine
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  a change of a file sends no event
            await asyncio.sleep(0.01)


def applied(api: ApiServer) -> str | None:
    found = api.find(NODES, "machine-1")
    return found["metadata"]["annotations"].get(CHECKSUM) if found else None


async def test_the_applied_configuration_is_shown_on_the_node(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    """The flow waits for exactly this checksum."""
    api.put(NODES, node())
    api.put(SECRETS, secret("one"))
    await until(lambda: applied(api) == checksum("one"))
    assert system.path("/etc/marker").read_text() == "one"
    labels = api.find(NODES, "machine-1")["metadata"]["labels"]  # type: ignore[index]
    assert labels == {"worker.gardener.cloud/kubernetes-version": "1.37.1"}


async def test_a_new_configuration_is_applied_at_once(api: ApiServer, agent: NodeAgent, system: FakeSystem) -> None:
    api.put(NODES, node())
    api.put(SECRETS, secret("one"))
    await until(lambda: applied(api) == checksum("one"))
    api.put(SECRETS, secret("two"))
    await until(lambda: applied(api) == checksum("two"))
    assert system.path("/etc/marker").read_text() == "two"


def updates(text: str, hash_: str, system: str = "1.0.0", command: list[str] | None = None) -> dict[str, Any]:
    """Document of a pool with in-place updates."""
    document = content(text)
    document["spec"]["inPlaceUpdates"] = {"operatingSystemVersion": system, "kubelet": "1.36.1", "hash": hash_}
    if command:
        document["spec"]["inPlaceUpdates"]["osUpdate"] = {"command": command[0], "args": command[1:]}
    return document


def put_document(api: ApiServer, document: dict[str, Any]) -> str:
    """Write the pool's Secret; returns the checksum."""
    data = json.dumps(document).encode()
    metadata = {"name": "pool", "namespace": "kube-system"}
    api.put(SECRETS, {"metadata": metadata, "data": {"osc.yaml": base64.b64encode(data).decode()}})
    return hashlib.sha256(data).hexdigest()


def set_reason(api: ApiServer, reason: str, **labels: Any) -> None:
    """Write into the Node as the machine-controller-manager does."""
    live = api.find(NODES, "machine-1") or {}
    condition = {"type": "InPlaceUpdate", "status": "True", "reason": reason}
    metadata = {**live["metadata"], "labels": {**live["metadata"].get("labels", {}), **labels}}
    api.put(NODES, {**live, "metadata": metadata, "status": {"conditions": [condition]}})


def result(api: ApiServer) -> tuple[str, str]:
    metadata = (api.find(NODES, "machine-1") or {})["metadata"]
    label = (metadata.get("labels") or {}).get("node.machine.sapcloud.io/update-result") or ""
    return label, metadata["annotations"].get("node.machine.sapcloud.io/update-failed-reason") or ""


async def start_with(api: ApiServer, document: dict[str, Any]) -> None:
    api.put(NODES, node())
    first = put_document(api, document)
    await until(lambda: applied(api) == first)


@pytest.mark.parametrize("reason", ["ReadyForUpdate", "UpdateFailed"])
async def test_an_in_place_update_starts_only_once_its_node_is_drained(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """Its pods would be interrupted while they run. Other changes of such a pool need no drain."""
    caplog.set_level("INFO")
    await start_with(api, updates("one", "a"))
    before = put_document(api, updates("two", "a"))
    await until(lambda: applied(api) == before)

    wanted = put_document(api, updates("three", "b"))
    await until(lambda: "waits for node condition InPlaceUpdate" in caplog.text)
    set_reason(api, "SelectedForUpdate")
    assert system.path("/etc/marker").read_text() == "two"
    assert applied(api) == before
    assert result(api) == ("", "")

    set_reason(api, reason)
    await until(lambda: applied(api) == wanted)
    assert system.path("/etc/marker").read_text() == "three"
    await until(lambda: result(api) == ("successful", ""))


async def test_an_update_with_nothing_to_do_is_successful(api: ApiServer, agent: NodeAgent) -> None:
    """A machine that was created after the change has the newest config from its first boot."""
    await start_with(api, updates("one", "a"))
    await asyncio.sleep(0.1)
    assert result(api) == ("", ""), "no update is awaited"
    set_reason(api, "ReadyForUpdate")
    await until(lambda: result(api) == ("successful", ""))


async def test_a_result_is_told_again_when_the_update_is_wanted_again(api: ApiServer, agent: NodeAgent) -> None:
    await start_with(api, updates("one", "a"))
    set_reason(api, "ReadyForUpdate")
    await until(lambda: result(api) == ("successful", ""))
    set_reason(api, "ReadyForUpdate", **{"node.machine.sapcloud.io/update-result": ""})
    await until(lambda: result(api) == ("successful", ""))


async def test_a_result_is_not_told_for_a_config_that_is_older_than_the_request(
    api: ApiServer, agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user changes the pool back while its machine is updated: the result of the former config must not count."""
    await start_with(api, updates("one", "a"))
    client = agent._client
    reads: list[str] = []
    original = client.get

    async def get(res: Any, name: str, namespace: str | None = None) -> Any:
        found = await original(res, name, namespace)
        if res.kind == "Secret" and not reads:  # the last read before the result is written
            reads.append(name)
            put_document(api, updates("two", "b"))
            set_reason(api, "ReadyForUpdate", again="true")
        return found

    written: list[Any] = []
    patch = client.patch

    async def record(res: Any, name: str, namespace: str | None, body: Any, **options: Any) -> Any:
        answer = await patch(res, name, namespace, body, **options)
        if "node.machine.sapcloud.io/update-result" in (body["metadata"].get("labels") or {}):
            written.append(applied(api))
        return answer

    monkeypatch.setattr(client, "get", get)
    monkeypatch.setattr(client, "patch", record)
    set_reason(api, "ReadyForUpdate")
    await until(lambda: written)
    assert written == [hashlib.sha256(json.dumps(updates("two", "b")).encode()).hexdigest()]


def rotated(text: str, hash_: str, **started: str) -> dict[str, Any]:
    """Document of a pool with in-place updates after the start of rotations."""
    document = updates(text, hash_)
    rotation = {kind: {"lastInitiationTime": time} for kind, time in started.items()}
    document["spec"]["inPlaceUpdates"]["credentialsRotation"] = rotation
    return document


RESTART = "systemctl restart kubelet.service"


async def test_a_rotation_renews_certificates_once_the_node_is_drained(
    api: ApiServer, agent: Agent, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only once: a run that ends in between repeats it."""
    monkeypatch.setattr(agent_module, "_RETRY_SECONDS", 0.01)
    await start_with(api, rotated("one", "a", certificateAuthorities="t0"))
    agent.fails_to_renew = True
    wanted = put_document(api, rotated("two", "b", certificateAuthorities="t1"))
    await asyncio.sleep(0.05)
    assert agent.renewals == [], "a machine has the credentials of its first boot"
    assert RESTART not in system.commands

    set_reason(api, "ReadyForUpdate")
    await until(lambda: len(agent.renewals) > 1)
    assert result(api) == ("", ""), "nothing is reported before"
    assert applied(api) != wanted
    agent.fails_to_renew = False
    await until(lambda: result(api) == ("successful", ""))
    assert applied(api) == wanted
    assert agent.renewals.count("renewed") == 1
    assert system.commands.count(RESTART) == 1

    again = put_document(api, rotated("three", "b", certificateAuthorities="t1"))
    await until(lambda: applied(api) == again)
    assert agent.renewals.count("renewed") == 1


async def test_a_rotation_of_the_service_account_key_gives_pods_other_tokens(
    api: ApiServer, agent: Agent, system: FakeSystem
) -> None:
    """A kubelet that starts requests them; certificates do not depend on this key."""
    await start_with(api, rotated("one", "a"))
    wanted = put_document(api, rotated("two", "b", serviceAccountKey="t1"))
    set_reason(api, "ReadyForUpdate")
    await until(lambda: applied(api) == wanted)
    assert system.commands.count(RESTART) == 1
    assert agent.renewals == []


async def test_a_kubelet_that_does_not_start_fails_the_update(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    def kubelet(text: str, hash_: str) -> dict[str, Any]:
        document = updates(text, hash_)
        document["spec"]["units"] = [
            {"name": "kubelet.service", "content": text, "enable": True, "command": "start", "filePaths": []}
        ]
        return document

    unit = system.path("/etc/systemd/system/kubelet.service")
    system.kubelet_starts = lambda: not unit.exists() or unit.read_text() != "bad"
    system.journal = ["E1126 10:00:00.000000       1 run.go:72] unknown flag"]
    await start_with(api, kubelet("good", "a"))
    set_reason(api, "ReadyForUpdate")
    put_document(api, kubelet("bad", "b"))
    await until(lambda: result(api)[0] == "failed")
    assert result(api)[1] == "the kubelet does not start: unknown flag"
    assert unit.read_text() == "good"

    set_reason(api, "UpdateFailed")
    mended = put_document(api, kubelet("better", "b"))
    await until(lambda: applied(api) == mended)
    await until(lambda: result(api) == ("successful", ""))


async def test_the_operating_system_is_updated_before_the_config_is_applied(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    command = ["/opt/update", "1.0.1"]
    await start_with(api, updates("one", "a"))
    set_reason(api, "ReadyForUpdate")
    wanted = put_document(api, updates("two", "b", "1.0.1", command))
    await until(lambda: applied(api) == wanted)
    await until(lambda: result(api) == ("successful", ""))
    assert system.commands.count("/opt/update 1.0.1") == 1


@pytest.mark.parametrize("command", [["/opt/update", "1.0.1"], None])
async def test_a_failed_update_of_the_operating_system_changes_nothing_else(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, command: list[str] | None
) -> None:
    system.fails.add("/opt/update 1.0.1")
    await start_with(api, updates("one", "a"))
    set_reason(api, "ReadyForUpdate")
    put_document(api, updates("two", "b", "1.0.1", command))
    await until(lambda: result(api)[0] == "failed")
    assert ("exit status 1" if command else "names no command") in result(api)[1]
    assert system.path("/etc/marker").read_text() == "one"
    set_reason(api, "UpdateFailed")
    await asyncio.sleep(0.1)
    assert system.commands.count("/opt/update 1.0.1") == (1 if command else 0), "the fault lasts"

    before = put_document(api, updates("one", "a"))
    await until(lambda: result(api) == ("successful", ""))
    assert applied(api) == before


async def test_a_network_fault_of_the_update_is_waited_for(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_OS_UPDATE_AGAIN", 0.01)
    original, failures = system.run, [1, 1]

    async def run(*command: str) -> None:
        await original(*command)
        if command[0] == "/opt/update" and failures:
            failures.pop()
            raise CommandFailed("/opt/update: exit status 1: network problems")

    monkeypatch.setattr(system, "run", run)
    await start_with(api, updates("one", "a"))
    set_reason(api, "ReadyForUpdate")
    put_document(api, updates("two", "b", "1.0.1", ["/opt/update"]))
    await until(lambda: result(api) == ("successful", ""))
    assert system.commands.count("/opt/update") == 3


async def test_an_update_waits_for_its_turn(api: ApiServer, agent: NodeAgent, system: FakeSystem) -> None:
    """Nodes of a pool must not restart their kubelets all at once."""
    api.put(NODES, node(**{CHECKSUM: "before", "node-agent.gardener.cloud/reconciliation-delay": "500ms"}))
    started = asyncio.get_running_loop().time()
    api.put(SECRETS, secret("one"))
    await until(lambda: applied(api) == checksum("one"))
    assert asyncio.get_running_loop().time() - started >= 0.5


async def test_the_bootstrap_token_is_deleted_once_node_and_kubelet_are_registered(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, state: Path
) -> None:
    """Without it a kubelet that has no certificate yet could never join."""
    token = state / "credentials/bootstrap-token"
    system.write("/var/lib/kubelet/kubeconfig-bootstrap", b"x", 0o600)
    api.put(NODES, node())
    api.put(SECRETS, secret("one"))
    await until(lambda: applied(api) == checksum("one"))
    assert token.exists()

    system.write("/var/lib/kubelet/kubeconfig-real", b"x", 0o600)
    api.put(SECRETS, secret("two"))
    await until(lambda: not token.exists())
    assert not system.path("/var/lib/kubelet/kubeconfig-bootstrap").exists()


async def test_files_are_there_before_the_node_is(api: ApiServer, agent: NodeAgent, system: FakeSystem) -> None:
    """A kubelet that cannot start without them would never register the Node."""
    api.put(SECRETS, secret("one"))
    await until(lambda: system.path("/etc/marker").exists())
    assert api.find(NODES, "machine-1") is None


async def test_units_named_on_the_node_restart_once(api: ApiServer, agent: NodeAgent, system: FakeSystem) -> None:
    api.put(SECRETS, secret("one"))
    api.put(NODES, node(**{"worker.gardener.cloud/restart-systemd-services": "kubelet.service, containerd.service"}))
    await until(lambda: applied(api) == checksum("one"))
    restarts = [command for command in system.commands if "restart" in command]
    assert restarts == [
        "systemctl restart --no-block kubelet.service",
        "systemctl restart --no-block containerd.service",
    ]
    annotations = api.find(NODES, "machine-1")["metadata"]["annotations"]  # type: ignore[index]
    assert "worker.gardener.cloud/restart-systemd-services" not in annotations


async def test_the_lease_belongs_to_the_node(api: ApiServer, agent: NodeAgent) -> None:
    """So it goes with the machine instead of looking stale forever."""
    api.put(SECRETS, secret("one"))
    api.put(NODES, node())
    await until(lambda: api.find(LEASES, "gardener-node-agent-machine-1", "kube-system"))
    lease = api.find(LEASES, "gardener-node-agent-machine-1", "kube-system")
    assert lease is not None
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "node-uid"


async def test_a_machine_without_node_says_why_in_its_lease(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that never starts registers no Node, so there is no other object for the kubelet's error."""
    monkeypatch.setattr(agent_module, "_LEASE_SECONDS", 0.05)
    name, error = "node-agent.gardener.cloud/kubelet-error", '"command failed" err="invalid reservation"'
    system.journal = [f"E1125 21:20:20.841091    1060 run.go:72] {error}"]
    api.put(SECRETS, secret("one"))
    await until(lambda: api.find(LEASES, "gardener-node-agent-machine-1", "kube-system"))

    lease = api.find(LEASES, "gardener-node-agent-machine-1", "kube-system")
    assert lease is not None
    assert lease["metadata"]["annotations"] == {name: error}
    assert "ownerReferences" not in lease["metadata"]


async def test_a_lease_says_nothing_of_a_kubelet_whose_node_is_there(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_LEASE_SECONDS", 0.05)
    system.journal = ["Error: too little memory"]
    api.put(SECRETS, secret("one"))
    lease = functools.partial(api.find, LEASES, "gardener-node-agent-machine-1", "kube-system")
    await until(lease)
    api.put(NODES, node())
    await until(lambda: lease()["metadata"].get("ownerReferences"))  # type: ignore[index]

    assert not lease()["metadata"].get("annotations")  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("1m30s", 90), ("1h", 3600), ("500ms", 0.5), ("12.5s", 12.5), ("0s", 0), ("", 0), ("soon", 0)],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


async def test_a_node_reports_the_issuers_of_its_certificates(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    now = datetime.now(UTC)
    for name, ca in (("client", "ca-client-1"), ("server", "ca-kubelet-1")):
        issuer = crypto.self_signed_ca(ca, algorithm=KeyAlgorithm.P256, now=now, validity=crypto.TEN_YEARS)
        pair = crypto.signed(
            "kubelet",
            ca=issuer,
            usage=Usage.SERVER,
            algorithm=KeyAlgorithm.P256,
            now=now,
            validity=crypto.TEN_YEARS,
        )
        path = system.path(f"/var/lib/kubelet/pki/kubelet-{name}-current.pem")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pair.certificate + pair.key)
    api.put(SECRETS, secret("a"))
    api.put(NODES, node())

    told = "credentials.gardener.cloud/certificate-issuers"

    def annotations() -> dict[str, str]:
        live = api.find(NODES, "machine-1")
        return dict(live["metadata"].get("annotations") or {}) if live else {}

    await until(lambda: told in annotations())
    assert json.loads(annotations()[told]) == {"kubelet-client": "ca-client-1", "kubelet-serving": "ca-kubelet-1"}


REFUSED = "node-agent.gardener.cloud/refused-configuration"
KUBELET = {"name": "kubelet.service", "command": "start", "content": "[Service]\n", "filePaths": ["/etc/marker"]}


def kubelet_content(text: str) -> dict[str, Any]:
    """A configuration whose file the kubelet reads, so that a change restarts it."""
    made = content(text)
    return {"spec": {**made["spec"], "units": [KUBELET]}}


def of_kubelet(text: str) -> dict[str, Any]:
    data = base64.b64encode(json.dumps(kubelet_content(text)).encode()).decode()
    return {"metadata": {"name": "pool", "namespace": "kube-system"}, "data": {"osc.yaml": data}}


def kubelet_checksum(text: str) -> str:
    return hashlib.sha256(json.dumps(kubelet_content(text)).encode()).hexdigest()


def refusal(api: ApiServer) -> str | None:
    found = api.find(NODES, "machine-1")
    return found["metadata"]["annotations"].get(REFUSED) if found else None


async def test_a_configuration_with_which_the_kubelet_does_not_start_is_taken_back(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    """A value that got past admission would otherwise take all nodes of the pool away."""
    marker = system.path("/etc/marker")
    api.put(NODES, node())
    api.put(SECRETS, of_kubelet("good"))
    await until(lambda: applied(api) == kubelet_checksum("good"))
    system.kubelet_starts = lambda: marker.read_text() != "bad"
    system.journal = [
        "I1125 21:20:20.841091    1060 server.go:10] starting",
        'E1125 21:20:20.841091    1060 run.go:72] "command failed" err="unknown label"',
        "Main process exited",
    ]
    api.put(SECRETS, of_kubelet("bad"))
    await until(lambda: refusal(api))
    assert marker.read_text() == "good"
    assert refusal(api) == f'{kubelet_checksum("bad")}: "command failed" err="unknown label"'
    assert applied(api) == kubelet_checksum("good")

    api.put(SECRETS, of_kubelet("better"))
    await until(lambda: applied(api) == kubelet_checksum("better"))
    assert marker.read_text() == "better"
    assert refusal(api) is None


async def test_the_report_of_a_refused_configuration_ends_when_its_owner_takes_it_back(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    api.put(NODES, node())
    api.put(SECRETS, of_kubelet("good"))
    await until(lambda: applied(api) == kubelet_checksum("good"))
    system.kubelet_starts = lambda: system.path("/etc/marker").read_text() != "bad"
    api.put(SECRETS, of_kubelet("bad"))
    await until(lambda: refusal(api))
    api.put(SECRETS, of_kubelet("good"))
    await until(lambda: refusal(api) is None)
    assert applied(api) == kubelet_checksum("good")


async def test_a_configuration_that_was_taken_back_is_not_tried_again_by_a_new_agent(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, state: Path
) -> None:
    api.put(NODES, node())
    api.put(SECRETS, of_kubelet("good"))
    await until(lambda: applied(api) == kubelet_checksum("good"))
    system.kubelet_starts = lambda: system.path("/etc/marker").read_text() != "bad"
    api.put(SECRETS, of_kubelet("bad"))
    await until(lambda: refusal(api))
    written: list[str] = []
    system.write = lambda path, content, mode: written.append(path)  # type: ignore[method-assign]
    config = NodeAgentConfig(
        server="https://api.example.org",
        ca_file=Path("/ca.crt"),
        secret_name="pool",
        kubernetes_version="1.37.1",
        state_directory=state,
    )
    api.change(NODES, "machine-1", None, {"metadata": {"annotations": {REFUSED: "lost"}}})
    async with api.client() as client:
        again = asyncio.create_task(NodeAgent(client, config, "machine-1", system).run())
        await until(lambda: (refusal(api) or "").startswith(kubelet_checksum("bad")))
        again.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await again
    assert not written


async def test_an_agent_that_was_killed_during_a_trial_ends_it(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, state: Path
) -> None:
    """The record of the configuration before is on the disk until the kubelet has shown that it starts."""
    (state / "last-applied-osc.yaml").write_text(json.dumps(kubelet_content("bad")))
    (state / "previous-osc.yaml").write_text(json.dumps(kubelet_content("good")))
    system.write("/etc/marker", b"bad", 0o644)
    system.kubelet_starts = lambda: system.path("/etc/marker").read_text() != "bad"
    api.put(NODES, node(**{CHECKSUM: kubelet_checksum("good")}))
    api.put(SECRETS, of_kubelet("bad"))
    await until(lambda: refusal(api))
    assert system.path("/etc/marker").read_text() == "good"


async def test_a_kubelet_that_does_not_run_anyway_gets_the_new_configuration(
    api: ApiServer, agent: NodeAgent, system: FakeSystem
) -> None:
    """The new configuration may be the repair."""
    api.put(NODES, node())
    api.put(SECRETS, of_kubelet("one"))
    await until(lambda: applied(api) == kubelet_checksum("one"))
    system.kubelet_starts = lambda: False
    api.put(SECRETS, of_kubelet("two"))
    await until(lambda: applied(api) == kubelet_checksum("two"))
    assert refusal(api) is None


async def test_a_change_that_does_not_restart_the_kubelet_is_on_no_trial(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, state: Path
) -> None:
    """A wait for a kubelet that goes on would delay each rotation by seconds."""
    api.put(NODES, node())
    api.put(SECRETS, secret("one"))
    await until(lambda: applied(api) == checksum("one"))
    asked: list[bool] = []
    system.kubelet_starts = lambda: not asked.append(True)  # type: ignore[func-returns-value]
    api.put(SECRETS, secret("two"))
    await until(lambda: applied(api) == checksum("two"))
    assert len(asked) == 1, "only before it is applied"
    assert not (state / "previous-osc.yaml").exists()


async def test_a_taking_back_that_was_interrupted_is_ended(
    api: ApiServer, agent: NodeAgent, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet starts with the files of the configuration before, which is no sign that the new one is good."""
    monkeypatch.setattr("workers.node_agent.agent._RETRY_SECONDS", 0.05)
    marker, restart = system.path("/etc/marker"), "systemctl restart --no-block kubelet.service"
    api.put(NODES, node())
    api.put(SECRETS, of_kubelet("good"))
    await until(lambda: applied(api) == kubelet_checksum("good"))

    def starts() -> bool:
        if bad := marker.read_text() == "bad":
            system.fails.add(restart)
        return not bad

    system.kubelet_starts = starts
    api.put(SECRETS, of_kubelet("bad"))
    await until(lambda: restart in system.fails and marker.read_text() == "good")
    system.kubelet_starts = lambda: True
    await until(lambda: system.commands.count(restart) >= 3)
    system.fails.clear()

    await until(lambda: refusal(api))
    assert applied(api) == kubelet_checksum("good")


@pytest.mark.parametrize(
    "name", ["previous-osc.yaml", "refused-osc.json", "last-applied-osc.yaml", "pending-changes.json"]
)
async def test_a_file_of_state_that_a_loss_of_power_has_cut_off_does_not_stop_the_agent(
    api: ApiServer, system: FakeSystem, state: Path, agent: NodeAgent, name: str
) -> None:
    (state / name).write_text("{")
    api.put(NODES, node())
    api.put(SECRETS, of_kubelet("good"))

    await until(lambda: applied(api) == kubelet_checksum("good"))

"""Effects of the node agent on its machine."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_agent.fake_system import FakeSystem
from workers.node_agent.apply import Applier
from workers.node_agent.system import CommandFailed

CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.k8s.io/pause:3.10.1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
KUBELET: dict[str, Any] = {
    "name": "kubelet.service",
    "enable": True,
    "command": "start",
    "content": "[Service]\nExecStart=/opt/kubelet\n",
    "filePaths": ["/var/lib/kubelet/config/kubelet"],
}


def document(files: list[dict[str, Any]] | None = None, units: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "spec": {
            "criConfig": {
                "name": "containerd",
                "cgroupDriver": "cgroupfs",
                "containerd": {"sandboxImage": "registry.k8s.io/pause:3.10.1"},
            },
            "files": files if files is not None else [inline("/var/lib/kubelet/config/kubelet", "one")],
            "units": units if units is not None else [KUBELET],
        }
    }


def inline(path: str, data: str, permissions: int = 0o644) -> dict[str, Any]:
    return {"path": path, "permissions": permissions, "content": {"inline": {"data": data}}}


@pytest.fixture
def system(tmp_path: Path) -> FakeSystem:
    system = FakeSystem(tmp_path / "root")
    system.write("/etc/containerd/config.toml", CONTAINERD.encode(), 0o644)
    return system


@pytest.fixture
def applier(system: FakeSystem, tmp_path: Path) -> Applier:
    (tmp_path / "state").mkdir()
    return Applier(system, tmp_path / "state", "node-1")


async def test_a_second_run_does_nothing(applier: Applier, system: FakeSystem) -> None:
    """The agent looks every ten minutes; a kubelet restarted each time would be noticed."""
    await applier.apply(document())
    system.commands.clear()
    await applier.apply(document())
    assert system.commands == []


async def test_files_of_the_first_boot_are_kept_and_the_kubelet_is_not_restarted(
    applier: Applier, system: FakeSystem
) -> None:
    """A restart would cost each new node seconds before it is Ready."""
    system.write("/var/lib/kubelet/config/kubelet", b"one", 0o644)
    system.write("/etc/systemd/system/kubelet.service", KUBELET["content"].encode(), 0o644)
    system.active.add("kubelet.service")
    system.enabled.add("kubelet.service")
    await applier.apply(document())
    assert system.commands == []


async def test_a_unit_restarts_when_a_file_it_reads_changes(applier: Applier, system: FakeSystem) -> None:
    await applier.apply(document())
    system.commands.clear()
    await applier.apply(document(files=[inline("/var/lib/kubelet/config/kubelet", "two")]))
    assert system.path("/var/lib/kubelet/config/kubelet").read_text() == "two"
    assert system.commands == ["systemctl restart --no-block kubelet.service"]


async def test_a_changed_unit_is_reloaded_before_it_restarts(applier: Applier, system: FakeSystem) -> None:
    await applier.apply(document())
    system.commands.clear()
    await applier.apply(document(units=[{**KUBELET, "content": "[Service]\nExecStart=/opt/kubelet --v=4\n"}]))
    assert system.commands == ["systemctl daemon-reload", "systemctl restart --no-block kubelet.service"]


async def test_manual_changes_of_files_are_reverted(applier: Applier, system: FakeSystem) -> None:
    await applier.apply(document())
    system.path("/var/lib/kubelet/config/kubelet").chmod(0o666)
    system.active.discard("kubelet.service")
    await applier.apply(document())
    assert system.path("/var/lib/kubelet/config/kubelet").stat().st_mode & 0o777 == 0o644
    assert "kubelet.service" in system.active


async def test_files_units_and_drop_ins_that_are_no_longer_wanted_go(applier: Applier, system: FakeSystem) -> None:
    extra = {
        "name": "extra.service",
        "content": "[Service]\n",
        "enable": True,
        "command": "start",
        "dropIns": [{"name": "10-a.conf", "content": "[Service]\n"}],
    }
    kubelet = {**KUBELET, "dropIns": [{"name": "20-b.conf", "content": "[Service]\n"}]}
    files = [inline("/var/lib/kubelet/config/kubelet", "one"), inline("/etc/extra", "x")]
    await applier.apply(document(files, [kubelet, extra]))
    await applier.apply(document())

    for path in (
        "/etc/extra",
        "/etc/systemd/system/extra.service",
        "/etc/systemd/system/extra.service.d/10-a.conf",
        "/etc/systemd/system/kubelet.service.d/20-b.conf",
    ):
        assert not system.path(path).exists(), path
    assert system.active == {"kubelet.service"}
    assert system.enabled == {"kubelet.service"}


async def test_a_file_of_another_node_is_not_written(applier: Applier, system: FakeSystem) -> None:
    mine = {**inline("/etc/mine", "x"), "hostName": "node-1"}
    other = {**inline("/etc/other", "x"), "hostName": "node-2"}
    await applier.apply(document([mine, other], []))
    assert system.path("/etc/mine").exists()
    assert not system.path("/etc/other").exists()


async def test_a_binary_comes_from_its_image_and_again_when_the_image_changes(
    applier: Applier, system: FakeSystem
) -> None:
    def kubelet(image: str) -> dict[str, Any]:
        reference = {"image": image, "filePathInImage": "/usr/local/bin/kubelet"}
        return {"path": "/opt/kubelet", "permissions": 0o755, "content": {"imageRef": reference}}

    await applier.apply(document([kubelet("hyperkube:v1")], []))
    assert system.path("/opt/kubelet").read_text() == "hyperkube:v1:/usr/local/bin/kubelet"
    await applier.apply(document([kubelet("hyperkube:v2")], []))
    assert system.path("/opt/kubelet").read_text() == "hyperkube:v2:/usr/local/bin/kubelet"
    assert system.path("/opt/kubelet").stat().st_mode & 0o111


async def test_the_binary_that_the_machine_came_with_is_used(applier: Applier, system: FakeSystem) -> None:
    """The running kubelet was started from it a second ago."""
    system.write("/opt/kubelet", b"preloaded", 0o755)
    reference = {"image": "hyperkube:v1", "filePathInImage": "/usr/local/bin/kubelet"}
    await applier.apply(document([{"path": "/opt/kubelet", "content": {"imageRef": reference}}], []))
    assert system.path("/opt/kubelet").read_bytes() == b"preloaded"


async def test_containerd_restarts_only_for_another_configuration(applier: Applier, system: FakeSystem) -> None:
    unit = {"name": "containerd.service", "enable": True, "command": "start"}
    system.active.add("containerd.service")
    system.enabled.add("containerd.service")
    await applier.apply(document([], [unit]))
    assert system.commands == []

    changed = document([], [unit])
    changed["spec"]["criConfig"]["containerd"]["sandboxImage"] = "registry.k8s.io/pause:3.11"
    await applier.apply(changed)
    assert system.commands == ["systemctl restart --no-block containerd.service"]
    assert 'sandbox_image = "registry.k8s.io/pause:3.11"' in system.path("/etc/containerd/config.toml").read_text()


async def test_a_changed_agent_asks_for_its_restart_after_all_else_is_done(
    applier: Applier, system: FakeSystem
) -> None:
    """Restarting itself in the middle would leave the rest undone."""
    agent = {"name": "gardener-node-agent.service", "content": "[Service]\n", "enable": True, "command": "start"}
    assert await applier.apply(document(units=[agent, KUBELET]))
    assert not any("restart" in command and "node-agent" in command for command in system.commands)
    assert "kubelet.service" in system.active
    assert not await applier.apply(document(units=[agent, KUBELET]))


async def test_a_failed_run_continues_where_it_stopped(applier: Applier, system: FakeSystem) -> None:
    system.fails.add("systemctl daemon-reload")
    with pytest.raises(CommandFailed):
        await applier.apply(document())
    assert applier.last_applied() == {}

    system.fails.clear()
    await applier.apply(document())
    assert system.path("/etc/systemd/system/kubelet.service").exists()
    assert system.commands.count("systemctl daemon-reload") == 2
    assert "systemctl restart --no-block kubelet.service" in system.commands
    assert applier.last_applied() == document()


async def test_registries_are_configured_without_a_restart(applier: Applier, system: FakeSystem) -> None:
    wanted = document([], [])
    wanted["spec"]["criConfig"]["containerd"]["registries"] = [
        {"upstream": "docker.io", "server": "https://registry-1.docker.io", "hosts": [{"url": "http://10.0.0.1:5000"}]}
    ]
    await applier.apply(wanted)
    hosts = system.path("/etc/containerd/certs.d/docker.io/hosts.toml").read_text()
    assert '[host."http://10.0.0.1:5000"]' in hosts
    assert 'capabilities = ["pull", "resolve"]' in hosts


async def test_a_registry_that_is_not_wanted_any_more_is_forgotten(applier: Applier, system: FakeSystem) -> None:
    """containerd would ask its hosts before the registry itself."""
    wanted = document([], [])
    wanted["spec"]["criConfig"]["containerd"]["registries"] = [
        {"upstream": name, "hosts": [{"url": "https://10.0.0.1:5000"}]} for name in ("_default", "docker.io")
    ]
    await applier.apply(wanted)
    kept = document([], [])
    kept["spec"]["criConfig"]["containerd"]["registries"] = wanted["spec"]["criConfig"]["containerd"]["registries"][1:]
    await applier.apply(kept)

    assert not system.path("/etc/containerd/certs.d/_default/hosts.toml").exists()
    assert system.path("/etc/containerd/certs.d/docker.io/hosts.toml").exists()

"""The keys of a self-hosted control plane in its bucket: a machine that has lost its files gets them back."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from activities.secrets.keyring import write_key_file
from activities.self_hosted import control_plane
from activities.self_hosted.backup import ControlPlaneBackup, place
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import InitTask, Machine, SelfHostedManifest
from tests.object_stores import ObjectStore, versitygw
from tests.unit.api.shoots import changed
from tests.unit.self_hosted.test_control_plane import BACKUP, MANIFEST

pytestmark = [pytest.mark.binaries, pytest.mark.usefixtures("object_store_is_built")]


@pytest.fixture
def server(object_store_is_built: None, tmp_path: Path) -> Iterator[ObjectStore]:
    with versitygw(tmp_path / "store") as made:
        yield made


def machine(directory: Path, server: ObjectStore, recovery_key: Path) -> InitTask:
    """A machine without any files but those that its owner gives."""
    directory.mkdir()
    shoot = SelfHostedManifest.read(changed(MANIFEST, "spec.provider.workers.0.controlPlane.backup", BACKUP))
    (directory / "backup.json").write_text(json.dumps(server.credentials))
    (directory / "recovery.key").write_text(recovery_key.read_text())
    (directory / "uid").write_text(directory.name)
    return InitTask(directory=directory, shoot=shoot, machine=Machine(node=directory.name, address="198.18.8.7"))


def secrets_of(task: InitTask) -> FileSecrets:
    return FileSecrets(task.directory / "secrets")


async def begin(task: InitTask) -> dict[str, dict[str, bytes]]:
    """The steps before etcd starts; returns the authorities and keys of the machine."""
    await ControlPlaneBackup(task).open()
    await ControlPlaneBackup(task).restore()
    for each in control_plane.authorities():
        secrets_of(task).ensure(each)
    await ControlPlaneBackup(task).store()
    return {each.name: secrets_of(task).get(each.name) for each in control_plane.authorities()}


@pytest.fixture
def recovery_key(tmp_path: Path) -> Path:
    write_key_file(tmp_path / "recovery.key")
    return tmp_path / "recovery.key"


async def test_a_machine_that_has_lost_its_files_has_the_same_keys_again(
    tmp_path: Path, server: ObjectStore, recovery_key: Path
) -> None:
    before = await begin(machine(tmp_path / "one", server, recovery_key))
    task = machine(tmp_path / "two", server, recovery_key)

    assert await begin(task) == before
    assert (task.directory / "uid").read_text() == "one"
    assert await begin(task) == before


async def test_a_restore_that_was_killed_goes_on(tmp_path: Path, server: ObjectStore, recovery_key: Path) -> None:
    before = await begin(machine(tmp_path / "one", server, recovery_key))
    task = machine(tmp_path / "two", server, recovery_key)
    name = "service-account-key"
    secrets_of(task).keep(name, before[name])

    assert await begin(task) == before


async def test_backups_of_etcd_without_keys_are_not_restored(
    tmp_path: Path, server: ObjectStore, recovery_key: Path
) -> None:
    """An API server could not decrypt the Secrets in these data."""
    one = machine(tmp_path / "one", server, recovery_key)
    await begin(one)
    files = server.buckets / place(one)["bucket"] / one.shoot.technical_id
    (files / "etcd-main/v2").mkdir(parents=True)
    (files / "etcd-main/v2/Full-00000000-00000009-1700000000.gz").write_bytes(b"data")
    (files / "control-plane").unlink()

    with pytest.raises(ApplicationError, match="no copy of the keys") as refused:
        await begin(machine(tmp_path / "two", server, recovery_key))
    assert refused.value.non_retryable


async def test_a_machine_with_another_control_plane_leaves_the_bucket_as_it_is(
    tmp_path: Path, server: ObjectStore, recovery_key: Path
) -> None:
    await begin(machine(tmp_path / "one", server, recovery_key))
    other = machine(tmp_path / "two", server, recovery_key)
    for each in control_plane.authorities():
        secrets_of(other).ensure(each)

    with pytest.raises(ApplicationError, match="another control plane"):
        await begin(other)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (["198.18.8.1", "198.18.8.2"], "still runs, its API server answers at api.alone.example.org"),
        (["198.18.8.1"], ""),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), ""),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), "cannot be seen: api.alone.example.org is not resolved"),
    ],
    ids=["one-answers", "none-answers", "no-record", "no-dns"],
)
async def test_a_restore_looks_at_each_machine_that_the_record_has(
    tmp_path: Path,
    server: ObjectStore,
    recovery_key: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: list[str] | OSError,
    told: str,
) -> None:
    """An API server answers at the address of the second machine only."""

    async def resolved(*_: object, **__: object) -> list[object]:
        if isinstance(found, OSError):
            raise found
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in found]

    async def answers(self: ControlPlaneBackup, address: str, tls: object) -> bool:
        return address == "198.18.8.2"

    one = machine(tmp_path / "one", server, recovery_key)
    await begin(one)
    await ControlPlaneBackup(one).store("api.alone.example.org")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    monkeypatch.setattr(ControlPlaneBackup, "_answers", answers)
    two = ControlPlaneBackup(machine(tmp_path / "two", server, recovery_key))
    await two.open()
    if told:
        with pytest.raises(ApplicationError, match=told):
            await two.restore()
    else:
        await two.restore()

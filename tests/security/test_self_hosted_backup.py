"""A reader of the bucket of a self-hosted Shoot, and a holder of its etcd's key, try to get further."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from activities.secrets.keyring import write_key_file
from activities.self_hosted.backup import place
from etcd.store import StoreError, open_store
from tests import object_stores
from tests.object_stores import ObjectStore, versitygw
from tests.unit.self_hosted.test_backup import begin, machine, secrets_of

pytestmark = pytest.mark.binaries


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    object_stores.build()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectStore]:
    with versitygw(tmp_path / "store") as made:
        yield made


@pytest.fixture
def recovery_key(tmp_path: Path) -> Path:
    write_key_file(tmp_path / "recovery.key")
    return tmp_path / "recovery.key"


@pytest.mark.attack(actor="T6", asset="A3", finding=28)
async def test_an_administrator_of_the_store_reads_the_keys_of_a_control_plane(
    tmp_path: Path, server: ObjectStore, recovery_key: Path
) -> None:
    """Without the recovery key the copy opens nothing, and a machine with another key gets no part of it."""
    task = machine(tmp_path / "one", server, recovery_key)
    made = await begin(task)
    stored = (server.buckets / place(task)["bucket"] / task.shoot.technical_id / "control-plane").read_bytes()
    assert b"PRIVATE KEY" not in stored
    assert made["kube-apiserver-etcd-encryption-key"]["secret"] not in stored
    write_key_file(tmp_path / "theirs.key")
    theirs = machine(tmp_path / "theirs", server, tmp_path / "theirs.key")

    with pytest.raises(ApplicationError, match="cannot be read with this recovery key") as refused:
        await begin(theirs)
    assert refused.value.non_retryable
    assert not secrets_of(theirs).has("ca")


@pytest.mark.attack(actor="T6", asset="A3", finding=28)
async def test_a_changed_copy_of_the_keys_is_restored(tmp_path: Path, server: ObjectStore, recovery_key: Path) -> None:
    """A writer of the bucket would choose the authorities that the next machine trusts."""
    task = machine(tmp_path / "one", server, recovery_key)
    await begin(task)
    copy = server.buckets / place(task)["bucket"] / task.shoot.technical_id / "control-plane"
    text = copy.read_text()
    at = text.index(":", text.index("sealed") + 10) + 20
    copy.write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])

    with pytest.raises(ApplicationError, match="cannot be read with this recovery key"):
        await begin(machine(tmp_path / "two", server, recovery_key))


@pytest.mark.attack(actor="T2", asset="A3", finding=28)
async def test_the_key_of_an_etcd_of_a_node_opens_the_backups_of_others(
    tmp_path: Path, server: ObjectStore, recovery_key: Path
) -> None:
    task = machine(tmp_path / "one", server, recovery_key)
    await begin(task)
    server.make_bucket("theirs")
    key = {name: value.decode() for name, value in secrets_of(task).get("etcd-backup").items()}

    assert "iamEndpoint" not in key
    with pytest.raises(StoreError, match="403"):
        await open_store("local", key, "theirs").list("any/")

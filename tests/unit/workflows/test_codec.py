"""The payload codec: each payload is for one destination, and open across a rotation."""

import base64
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    ActivitySerializationContext,
    NexusSerializationContext,
    SerializationContext,
    WorkflowSerializationContext,
    default,
)
from temporalio.exceptions import ApplicationError

from activities.secrets.keyring import (
    CodecError,
    Keyring,
    add_root_key,
    promote_root_key,
    read_keyring,
    write_key_file,
)
from activities.secrets.sealing import CannotOpen
from api.contracts.operations import ShootRef
from workers.lib.codec import (
    EncryptionCodec,
    OperatorCodec,
    ReadingCodec,
    TrimmedFailures,
    data_converter,
    derived_keys,
    sealings,
)

OLD, NEW = b"o" * 32, b"n" * 32
WORKFLOW = WorkflowSerializationContext(namespace="default", workflow_id="shoot/demo")


def payload(text: str = "SENTINEL") -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=f'"{text}"'.encode())


def of_activity(queue: str | None, kind: str | None = "sync_cluster") -> ActivitySerializationContext:
    return ActivitySerializationContext(
        namespace="default",
        activity_id="1",
        activity_type=kind,
        activity_task_queue=queue,
        workflow_id="shoot/demo",
        workflow_type="ReconcileShoot",
        is_local=False,
    )


def garden(**keys: bytes) -> EncryptionCodec:
    return EncryptionCodec(Keyring(keys or {"a": NEW}))


async def test_a_payload_comes_back_and_is_unreadable_between() -> None:
    codec = garden()
    [sealed] = await codec.encode([payload()])

    assert b"SENTINEL" not in sealed.SerializeToString()
    assert await codec.decode([sealed]) == [payload()]


async def test_two_encryptions_of_the_same_differ() -> None:
    first, second = await garden().encode([payload(), payload()])
    assert first.data != second.data


async def test_after_a_rotation_old_histories_are_read_and_new_ones_use_the_new_key() -> None:
    [old] = await garden(old=OLD).encode([payload()])
    rotated = garden(new=NEW, old=OLD)
    assert await rotated.decode([old]) == [payload()]
    [new] = await rotated.encode([payload()])
    assert await garden(new=NEW).decode([new]) == [payload()]


async def test_a_missing_key_is_named() -> None:
    [old] = await garden(old=OLD).encode([payload()])
    with pytest.raises(CodecError, match="no key 'old'"):
        await garden(new=NEW).decode([old])


@pytest.mark.parametrize("place", [0, 20, -1])
async def test_a_changed_payload_is_refused(place: int) -> None:
    codec = garden()
    [sealed] = await codec.encode([payload()])
    data = bytearray(sealed.data)
    data[place] ^= 1
    sealed.data = bytes(data)
    with pytest.raises(CodecError, match="was changed"):
        await codec.decode([sealed])


@pytest.mark.parametrize("field", ["encryption-key-id", "encryption-destination", "encryption-activity"])
async def test_no_field_that_says_how_to_open_a_payload_can_be_exchanged(field: str) -> None:
    """Each is authenticated with the payload."""
    codec = EncryptionCodec(Keyring({"a": NEW, "b": NEW})).with_context(of_activity("seed-a"))
    [sealed] = await codec.encode([payload()])
    changed = {"encryption-key-id": b"b", "encryption-destination": b"seed-b", "encryption-activity": b"another"}
    sealed.metadata[field] = changed[field]
    for context in (of_activity("seed-a"), of_activity("seed-b"), of_activity("seed-a", "another")):
        with pytest.raises(CodecError):
            await codec.with_context(context).decode([sealed])


PLACES: dict[str, SerializationContext] = {
    "a workflow": WORKFLOW,
    "an activity of the garden": of_activity("garden"),
    "an activity of seed a": of_activity("seed-a"),
    "another activity of seed a": of_activity("seed-a", "deploy_namespace"),
    "an activity of seed b": of_activity("seed-b"),
}


@pytest.mark.parametrize("there", PLACES)
@pytest.mark.parametrize("here", PLACES)
async def test_a_payload_opens_in_its_own_place_alone(here: str, there: str) -> None:
    """Even for the garden side, which has all keys: a seed's word must not count elsewhere."""
    codec = garden()
    [sealed] = await codec.with_context(PLACES[here]).encode([payload()])
    if here == there:
        assert await codec.with_context(PLACES[there]).decode([sealed]) == [payload()]
    else:
        with pytest.raises(CodecError, match="was refused: it is encrypted for"):
            await codec.with_context(PLACES[there]).decode([sealed])


@pytest.mark.parametrize(
    "context",
    [of_activity(None), of_activity("seed-a", None), NexusSerializationContext("endpoint", "service", "operation")],
)
async def test_without_a_known_place_nothing_is_written_or_read(context: SerializationContext) -> None:
    [sealed] = await garden().encode([payload()])
    with pytest.raises(CodecError):
        await garden().with_context(context).decode([sealed])
    with pytest.raises(CodecError, match="no destination"):
        await garden().with_context(context).encode([payload()])


def write_derived(tmp_path: Path, **purpose: str | bool) -> tuple[Path, Path]:
    root, derived = tmp_path / "root", tmp_path / "derived"
    write_key_file(root)
    derived.write_text(derived_keys(root, **purpose))  # type: ignore[arg-type]
    return root, derived


async def test_a_seed_and_the_garden_understand_each_other_and_no_one_else(tmp_path: Path) -> None:
    root, derived = write_derived(tmp_path, gardenlet="a")
    seed = EncryptionCodec(read_keyring(derived), "seed-a").with_context(of_activity("seed-a"))
    side = EncryptionCodec(read_keyring(root)).with_context(of_activity("seed-a"))
    assert await seed.decode(await side.encode([payload()])) == [payload()]
    assert await side.decode(await seed.encode([payload()])) == [payload()]

    for context in (WORKFLOW, of_activity("seed-b"), of_activity("garden"), of_activity("provider-local-a")):
        if context is not WORKFLOW:
            with pytest.raises(CodecError, match="no key for queue"):
                await seed.with_context(context).encode([payload()])
        for_another = await side.with_context(context).encode([payload()])
        with pytest.raises(CodecError):
            await seed.with_context(context).decode(for_another)
    assert root.read_text().split()[1] not in derived.read_text()


async def test_a_person_sends_to_workflows_of_the_garden_alone(tmp_path: Path) -> None:
    root, derived = write_derived(tmp_path, operators=True)
    person = OperatorCodec(read_keyring(derived), ReadingCodec(read_keyring(root)))
    sent = await person.encode([payload()])
    side = EncryptionCodec(read_keyring(root))
    assert await side.with_context(WORKFLOW).decode(sent) == [payload()]
    assert await person.decode(sent) == [payload()]
    for context in (of_activity("garden"), of_activity("seed-a")):
        with pytest.raises(CodecError):
            await side.with_context(context).decode(sent)
    extension = EncryptionCodec(read_keyring(root), "provider-local-a")
    with pytest.raises(CodecError):
        await extension.with_context(WORKFLOW).decode(sent)


async def test_what_is_not_encrypted_is_refused() -> None:
    with pytest.raises(CodecError, match="it is not encrypted"):
        await garden().decode([payload()])


async def test_what_the_server_says_of_a_canceled_activity_is_read() -> None:
    """It stands in the history; refused, it would stop a flow whose task was canceled between two attempts."""
    said = payload("ACTIVITY_ID_NOT_STARTED")
    assert await garden().with_context(of_activity("seed-a")).decode([said]) == [said]
    with pytest.raises(CodecError):
        await garden().with_context(WORKFLOW).decode([said])


class Before(EncryptionCodec):
    """Encrypts as all processes did when they had one key."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, metadata = b"0" * 12, {"encoding": b"binary/encrypted", "encryption-key-id": b"old"}
        return [
            Payload(metadata=metadata, data=nonce + AESGCM(OLD).encrypt(nonce, each.SerializeToString(), b"old"))
            for each in payloads
        ]


async def test_payloads_under_the_key_of_all_are_read_while_it_is_named() -> None:
    [before] = await Before(Keyring({"old": OLD})).encode([payload()])
    shared = EncryptionCodec(Keyring({"a": NEW}), shared={"old": OLD})
    for context in PLACES.values():
        assert await shared.with_context(context).decode([before]) == [payload()]
        with pytest.raises(CodecError, match="no key 'old' for no destination"):
            await garden(a=NEW, old=OLD).with_context(context).decode([before])
    with pytest.raises(CodecError, match="not encrypted"):
        await shared.decode([payload()])


async def test_an_order_under_the_key_of_all_is_answered_under_it() -> None:
    """A flow that began on an earlier version of the controller-manager ends there, and reads nothing else."""
    [before] = await Before(Keyring({"old": OLD})).encode([payload()])
    seed = EncryptionCodec(Keyring({"a": NEW}), "seed-a", shared={"old": OLD})
    attempt = seed.with_context(of_activity("seed-a"))
    await attempt.decode([before])
    [answer] = await attempt.encode([payload()])
    assert "encryption-destination" not in answer.metadata
    assert await EncryptionCodec(Keyring({"a": OLD}), shared={"old": OLD}).decode([answer]) == [payload()]

    [next_order] = await garden().with_context(of_activity("seed-a")).encode([payload()])
    attempt = seed.with_context(of_activity("seed-a"))
    await attempt.decode([next_order])
    [answer] = await attempt.encode([payload()])
    assert answer.metadata["encryption-destination"] == b"seed-a"


async def test_a_rotation_breaks_nothing_in_between(tmp_path: Path) -> None:
    """Each step of docs/operations/keys.md: whichever side has taken it, both read what the other writes."""
    root, derived = write_derived(tmp_path, gardenlet="a")

    def side() -> EncryptionCodec:
        return EncryptionCodec(read_keyring(root)).with_context(of_activity("seed-a"))

    def seed() -> EncryptionCodec:
        return EncryptionCodec(read_keyring(derived), "seed-a").with_context(of_activity("seed-a"))

    async def understand(one: EncryptionCodec, other: EncryptionCodec) -> None:
        assert await one.decode(await other.encode([payload()])) == [payload()]
        assert await other.decode(await one.encode([payload()])) == [payload()]

    first = next(iter(read_keyring(root).roots))
    old_side, old_seed = side(), seed()
    history = await old_side.encode([payload()])
    add_root_key(root)
    second = list(read_keyring(root).roots)[1]
    derived.write_text(derived_keys(root, gardenlet="a"))
    await understand(side(), old_seed)
    await understand(old_side, seed())

    knowing_side, knowing_seed = side(), seed()
    for _ in range(2):  # a repeated command changes nothing
        promote_root_key(root, second)
    derived.write_text(derived_keys(root, gardenlet="a"))
    await understand(side(), knowing_seed)
    await understand(knowing_side, seed())
    assert (await side().encode([payload()]))[0].metadata["encryption-key-id"] == second.encode()
    assert await side().decode(history) == [payload()]

    root.write_text("".join(line for line in root.read_text().splitlines(keepends=True) if not line.startswith(first)))
    derived.write_text(derived_keys(root, gardenlet="a"))
    await understand(side(), seed())
    with pytest.raises(CodecError, match=f"no key '{first}'"):
        await side().decode(history)


def test_a_process_without_a_key_of_its_own_does_not_start(tmp_path: Path) -> None:
    _, derived = write_derived(tmp_path, gardenlet="a")
    with pytest.raises(CodecError, match="has no key for queue seed-b: make one by `gardener keys derive`"):
        data_converter(derived, "seed-b")
    with pytest.raises(CodecError, match="no key for ShootStates of seed b"):
        sealings(derived)("b")
    with pytest.raises(CodecError, match="keys are derived of root keys only"):
        derived_keys(derived, operators=True)


def test_a_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key_file(path)
    first = path.read_text()
    write_key_file(path)
    assert path.read_text() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [len(key) for key in read_keyring(path).roots.values()] == [32]


@pytest.mark.parametrize(
    "content", ["", "only-one-word", "id not*base64", "id a b c", "id c2hvcnQ=", f"a {'A' * 43}= x\nb {'A' * 43}=\n"]
)
def test_a_broken_key_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(CodecError) as refused:
        read_keyring(path)
    assert not content or content not in str(refused.value)
    assert "A" * 43 not in str(refused.value)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"id {base64.b64encode(b'short').decode()}")
    with pytest.raises(CodecError, match="has 5 bytes"):
        data_converter(path)


def test_a_long_failure_keeps_its_beginning_and_fits() -> None:
    failure = Failure()
    TrimmedFailures().to_failure(ApplicationError("why " + "x" * 10_000), default().payload_converter, failure)
    assert failure.ByteSize() < 2048
    error = TrimmedFailures().from_failure(failure, default().payload_converter)
    assert str(error).startswith("why xxx")


class Mounted:
    """A key file that a kubelet mounts: a link to a file below ``..data``, which is a link to the newest version."""

    def __init__(self, directory: Path, content: str) -> None:
        self._directory, self._version = directory, 0
        directory.mkdir()
        self.show(content)
        self.path = directory / "key"
        self.path.symlink_to("..data/key")

    def show(self, content: str) -> None:
        """Replace the file as a kubelet does, in one step."""
        self._version += 1
        version = self._directory / f"..{self._version}"
        version.mkdir()
        (version / "key").write_text(content)
        new = self._directory / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self._directory / "..data")


async def test_a_process_reads_its_key_file_again_when_the_file_has_changed(tmp_path: Path) -> None:
    """Else each step of a rotation would need a restart of all processes."""
    root, _ = write_derived(tmp_path, gardenlet="a")
    file = Mounted(tmp_path / "mounted", derived_keys(root, gardenlet="a"))
    [first] = read_keyring(root).roots
    seed = data_converter(file.path, "seed-a").payload_codec
    assert isinstance(seed, EncryptionCodec)
    bound, sealing = seed.with_context(of_activity("seed-a")), sealings(file.path)("a")
    shoot = ShootRef(namespace="garden-local", name="demo", uid="uid")
    old = await bound.encode([payload()]), sealing.seal("value", shoot, "item")

    add_root_key(root)
    second = list(read_keyring(root).roots)[1]
    promote_root_key(root, second)
    file.show(derived_keys(root, gardenlet="a"))
    side = EncryptionCodec(read_keyring(root)).with_context(of_activity("seed-a"))

    assert await bound.decode(await side.encode([payload("new")])) == [payload("new")]
    assert (await bound.encode([payload()]))[0].metadata["encryption-key-id"] == second.encode()
    assert seed.key_id == second
    assert not sealing.is_current(old[1])
    assert sealing.seal("value", shoot, "item")["sealed"].startswith(f"{second}:")
    assert await bound.decode(old[0]) == [payload()]
    assert sealing.open(old[1], shoot, "item") == "value"

    root.write_text("".join(line for line in root.read_text().splitlines(keepends=True) if not line.startswith(first)))
    file.show(derived_keys(root, gardenlet="a"))
    with pytest.raises(CodecError, match=f"no key '{first}'"):
        await bound.decode(old[0])
    with pytest.raises(CannotOpen, match="not in the key file"):
        sealing.open(old[1], shoot, "item")


@pytest.mark.parametrize("content", ["", "no key", f"b {'A' * 43}= queue/seed-b\n"], ids=["empty", "broken", "foreign"])
async def test_a_key_file_that_became_unusable_changes_nothing_and_is_told_once(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that forgot its keys could not go on until it is started again."""
    root, _ = write_derived(tmp_path, gardenlet="a")
    good = derived_keys(root, gardenlet="a")
    file = Mounted(tmp_path / "mounted", good)
    codec = data_converter(file.path, "seed-a").payload_codec
    assert codec is not None

    file.show(content)
    for _ in range(2):
        assert await codec.decode(await codec.encode([payload()])) == [payload()]

    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == 1
    assert str(file.path) in told[0]
    assert "AAAA" not in told[0]

"""Makes a data directory from the snapshots of a store: the newest full one, then all deltas.

Or follows a store that another etcd still writes to, until the history there has ended. Works beside the data
directory and renames at the end: killed in between, the next start begins anew.

Who may read already while it follows is told by etcd itself: it is sealed, which means that its users have rights,
and its clients that of reading alone. Nobody is to be kept from what root's password, which is here, would allow.
Standard library only, as the wrapper that calls it.
"""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from activities.etcd import delta, snapshots
from activities.etcd.delta import Change, DamagedDelta
from activities.etcd.snapshots import Plan, Snapshot
from api import compression
from workers.etcd import SEALED
from workers.etcd.json_log import log
from workers.etcd.store_reader import StoreReader

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1
"""Between looks at a store that is followed: users wait for its end."""
_AGAIN_SECONDS = 1.0
"""Before following begins anew."""
_SNAPSHOT = ".snapshot"
"""Suffix of the file beside a data directory that it is made of."""
_READER = "etcd-client"
"""Common name of their certificates."""
_ROOT = {"name": "root", "password": "root"}
_TOKEN_SECONDS = 1 << 26
"""Longer than anybody follows."""
_LARGEST_BACKEND = 8 << 30
"""Bytes; what etcd recommends at most, for an etcd without a quota of its own."""
_LEAP = 1_000_000_000
"""Revisions to be ahead of all that a lost seed may have told its clients: more than it can have made since."""


class RestoreFailed(Exception):
    """No way through the snapshots leads to the newest revision; the text says what stood in the way."""


class _Blocked(Exception):
    """This way does not lead on: a snapshot is damaged, or missing."""


class _Refused(_Blocked):
    """Etcd does not do what it was asked for."""


def restore(config: dict[str, Any], name: str, found: list[str]) -> int:
    """Restore the newest revision that the snapshots hold; returns it.

    Raises:
        RestoreFailed: no plan worked. An older revision is never restored silently: whoever wants that
            removes the damaged snapshots.
        Unreadable: the store stopped answering; trying again may help.
    """
    reader = StoreReader(config["store"])
    plans = snapshots.plans(snapshots.parse_all(found))
    if not plans:
        raise RestoreFailed("there are delta snapshots, but no full one")
    newest = max(plans[0].revision, snapshots.last_revision(snapshots.parse_all(found)))
    data = Path(config["dataDir"])
    part = data.with_name(f"{data.name}.part")
    faults = []
    for plan in plans:
        if plan.revision < newest:
            faults.append(f"from {plan.full.name} only revision {plan.revision} of {newest} can be reached")
            continue
        shutil.rmtree(part, ignore_errors=True)
        try:
            _restore_full(config, name, reader, plan.full, part)
            revision = _apply_deltas(config, name, reader, plan, part)
        except _Blocked as error:
            log("warning", f"restoring from {plan.full.name}: {error}")
            faults.append(str(error))
            continue
        _keep(part, data)
        log("info", f"restored revision {revision} from {plan.full.name} and {len(plan.deltas)} deltas")
        return revision
    raise RestoreFailed("; ".join(faults))


def follow(
    config: dict[str, Any],
    name: str,
    tell: Callable[[int], None],
    await_silence: Callable[[], None],
    readers: contextlib.ExitStack,
) -> int:
    """Restore what the store of the seed that a control plane leaves holds, and go on with what is added to it.

    Returns the revision to go on from, once that history has ended: by a final snapshot, its last one, which clients'
    watches go on from; by the fence of our own seed, one that is far ahead. Until then clients may read, and change
    nothing: an API server starts that serves nobody. ``tell`` hears of each revision up to which we hold all that is
    there. ``await_silence`` returns once nobody is served by the old seed: before that there are no data that a next
    start would serve from. The etcd that is read from is left to ``readers``, which ends it: clients are not refused if
    the next one takes connections by then.

    Raises:
        Unreadable: the store stopped answering; trying again may help.
    """
    reader = StoreReader(config["source"])
    data = Path(config["dataDir"])
    part = data.with_name(f"{data.name}.part")
    while True:
        plan = next(iter(snapshots.plans(snapshots.counted(reader.names()))), None)
        if plan is not None:
            shutil.rmtree(part, ignore_errors=True)
            with contextlib.ExitStack() as stack:
                try:
                    _restore_full(config, name, reader, plan.full, part)
                    _catch_up_and_seal(config, name, reader, part)
                    connection = stack.enter_context(_etcd(config, name, part, read=True))
                    revision = _follow_deltas(connection, reader, tell)
                    if snapshots.taken_over(reader.names()) is not None:
                        connection.save(part.with_suffix(_SNAPSHOT))
                        stack.close()
                        _leap(config, name, part)
                        connection = stack.enter_context(_etcd(config, name, part, read=True))
                        revision = connection.revision()
                except _Blocked as error:
                    log("warning", f"following from {plan.full.name}: {error}; beginning anew")
                else:
                    await_silence()
                    _keep(part, data)
                    # Not before: what clients write from here on is found by a next start, too.
                    _unseal(connection, data)
                    log("info", f"followed to the end of the old seed's history; going on from revision {revision}")
                    readers.enter_context(stack.pop_all())
                    return revision
        time.sleep(_LOOK_SECONDS if plan is None else _AGAIN_SECONDS)


def _catch_up_and_seal(config: dict[str, Any], name: str, reader: StoreReader, part: Path) -> None:
    """Apply all deltas that are there, before anybody can read, and without waiting for the disk."""
    with _etcd(config, name, part) as connection:
        revision = connection.revision()
        for snapshot in snapshots.chain(revision, snapshots.counted(reader.names())):
            revision = _apply_delta(connection, reader, snapshot, revision)
        (part / SEALED).touch()
        connection.seal()
    _sync_tree(part)


def _follow_deltas(connection: "_Connection", reader: StoreReader, tell: Callable[[int], None]) -> int:
    told, revision = 0, connection.revision()
    while True:
        names = reader.names()
        end, there = snapshots.end_of(names), snapshots.counted(names)
        for snapshot in snapshots.chain(revision, there):
            revision = _apply_delta(connection, reader, snapshot, revision)
        if end is not None and revision >= end:
            return revision
        if revision < snapshots.last_revision(there):
            raise _Blocked(f"no delta leads on from revision {revision}")
        if revision > told:
            tell(told := revision)
        time.sleep(_LOOK_SECONDS)


def _leap(config: dict[str, Any], name: str, part: Path) -> None:
    """Go on from a revision far ahead, and have everybody read anew what there is.

    Clients have seen changes of the lost seed that nobody has any more. They would wait for what comes after those, and
    miss what happens here until its revisions have caught up: a kubelet holds for reported what was lost.
    """
    file = part.with_suffix(_SNAPSHOT)
    shutil.rmtree(part)
    try:
        if fault := _restore_file(config, name, file, part, f"--bump-revision={_LEAP}", "--mark-compacted"):
            raise _Blocked(f"what was followed cannot be put ahead: {fault}")
    finally:
        file.unlink()
    (part / SEALED).touch()


def unseal(config: dict[str, Any], name: str) -> None:
    """Have clients of a data directory write again, where who followed was killed before it did that itself."""
    data = Path(config["dataDir"])
    with _etcd(config, name, data) as connection:
        _unseal(connection, data)
    _sync_tree(data)


def _unseal(connection: "_Connection", data: Path) -> None:
    connection.unseal()
    (data / SEALED).unlink()


def _keep(part: Path, data: Path) -> None:
    _sync_tree(part)
    part.rename(data)
    _sync(data.parent)


def _restore_full(config: dict[str, Any], name: str, reader: StoreReader, full: Snapshot, part: Path) -> None:
    file = part.with_suffix(_SNAPSHOT)
    try:
        with file.open("wb") as target:
            quota = config["etcd"].get("quota-backend-bytes") or _LARGEST_BACKEND
            target.writelines(_unzipped(reader.read(full.name), full, limit=2 * quota))
        if fault := _restore_file(config, name, file, part):
            raise _Blocked(f"{full.name} is damaged: {fault}")
    finally:
        file.unlink(missing_ok=True)


def _restore_file(config: dict[str, Any], name: str, file: Path, part: Path, *options: str) -> str:
    """Make a data directory of a snapshot; what is wrong with that, empty if it is made."""
    member = config["members"][name]
    command = [
        os.environ.get("ETCDUTL_BINARY", "etcdutl"),
        "snapshot",
        "restore",
        str(file),
        f"--data-dir={part}",
        f"--name={name}",
        f"--initial-cluster={name}={member}",
        f"--initial-advertise-peer-urls={member}",
        f"--initial-cluster-token={config['etcd']['initial-cluster-token']}",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return _last_line(done.stderr) if done.returncode else ""


def _apply_deltas(config: dict[str, Any], name: str, reader: StoreReader, plan: Plan, part: Path) -> int:
    """Through an etcd of our own on loopback: only etcd can write its format."""
    with _etcd(config, name, part) as connection:
        revision = connection.revision()
        if revision < plan.full.last:
            raise _Blocked(f"{plan.full.name} holds only revision {revision}")
        for snapshot in plan.deltas:
            revision = _apply_delta(connection, reader, snapshot, revision)
        if revision < plan.revision:
            raise _Blocked(f"the deltas end at revision {revision}, not {plan.revision}")
        return revision


def _apply_delta(connection: "_Connection", reader: StoreReader, snapshot: Snapshot, revision: int) -> int:
    """Revision by revision; what etcd has already is left out. Returns the last one."""
    try:
        for number, changes in groupby(delta.read(reader.read(snapshot.name)), key=lambda item: item.revision):
            if number <= revision:
                # A full snapshot may hold more than its name says: what its etcd took before another one went on.
                if not connection.holds(changes):
                    raise _Blocked(f"{snapshot.name} tells of another revision {number} than there is")
                continue
            if number != revision + 1:
                raise _Blocked(f"revisions {revision + 1} to {number - 1} are missing in {snapshot.name}")
            revision = connection.apply(changes)
            if revision != number:
                raise _Blocked(f"applying revision {number} of {snapshot.name} led to {revision}")
    except DamagedDelta as error:
        raise _Blocked(f"{snapshot.name} is damaged: {error}") from None
    return revision


class _Connection:
    """Etcd's JSON API over one connection."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers: dict[str, str] = {}

    def revision(self) -> int:
        return int(self._ask("kv/range", {"key": "AA==", "count_only": True})["header"]["revision"])

    def apply(self, changes: Iterable[Change]) -> int:
        """Make one revision out of the changes; returns its number."""
        operations = [
            {"request_delete_range": {"key": change.key}}
            if change.value is None
            else {"request_put": {"key": change.key, "value": change.value}}
            for change in changes
        ]
        return int(self._ask("kv/txn", {"success": operations})["header"]["revision"])

    def seal(self) -> None:
        """Have clients read only, from the next start on; revisions and what is stored stay the same."""
        everything = {"permType": "READ", "key": "AA==", "range_end": "AA=="}
        for path, body in (
            ("role/add", {"name": "root"}),
            ("role/add", {"name": _READER}),
            ("role/grant", {"name": _READER, "perm": everything}),
            ("user/add", _ROOT),
            ("user/add", {"name": _READER, "options": {"no_password": True}}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/grant", {"user": _READER, "role": _READER}),
            ("enable", {}),
        ):
            self._ask(f"auth/{path}", body)

    def become_root(self) -> None:
        """Where it is sealed; else etcd does not ask who we are."""
        with contextlib.suppress(_Refused):
            self._headers = {"Authorization": self._ask("auth/authenticate", _ROOT)["token"]}

    def unseal(self) -> None:
        """Have everybody write at once, and leave no trace; an earlier attempt may have come to any step."""
        for path, body in (
            ("disable", {}),
            ("user/delete", {"name": _READER}),
            ("user/delete", {"name": "root"}),
            ("role/delete", {"role": _READER}),
            ("role/delete", {"role": "root"}),
        ):
            with contextlib.suppress(_Refused):
                self._ask(f"auth/{path}", body)
        self._headers = {}
        try:
            self.revision()
        except _Refused as error:
            raise RestoreFailed(f"etcd's clients may only read, and that cannot be changed: {error}") from None

    def save(self, file: Path) -> None:
        """Write all that is there into a snapshot, with its checksum."""
        with self._answer("maintenance/snapshot", {}) as response, file.open("wb") as target:
            for line in response:
                target.write(base64.b64decode(json.loads(line)["result"]["blob"]))

    def holds(self, changes: Iterable[Change]) -> bool:
        """Whether a revision that is there is made of these changes; if it is compacted, nobody can tell."""
        for change in {each.key: each for each in changes}.values():
            at = {"key": change.key, "revision": str(change.revision)}
            try:
                answer = self._ask("kv/range", at)
            except _Refused:
                continue
            found = next(iter(answer.get("kvs") or ()), None)
            there = found and int(found["mod_revision"]) == change.revision and found.get("value", "") == change.value
            if not (there if change.value is not None else found is None):
                return False
        return True

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._answer(path, body) as response:
            answer: dict[str, Any] = json.loads(response.read())
        return answer

    def _answer(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        self._http.request("POST", f"/v3/{path}", json.dumps(body), self._headers)
        response = self._http.getresponse()
        if response.status != 200:
            response.read()
            raise _Refused(f"etcd refused {path} with {response.status}")
        return response

    def close(self) -> None:
        self._http.close()


@contextlib.contextmanager
def _etcd(config: dict[str, Any], name: str, part: Path, *, read: bool = False) -> Iterator[_Connection]:
    """For us alone; or clients are to read from it, where they will find the next one."""
    client, peer = _free_ports(2)
    member = config["members"][name]
    settings = {
        "name": name,
        "data-dir": str(part),
        "listen-client-urls": f"http://127.0.0.1:{client}",
        "advertise-client-urls": f"http://127.0.0.1:{client}",
        "listen-peer-urls": f"http://127.0.0.1:{peer}",
        "initial-advertise-peer-urls": member,
        "initial-cluster": f"{name}={member}",
        "initial-cluster-token": config["etcd"]["initial-cluster-token"],
        "quota-backend-bytes": config["etcd"].get("quota-backend-bytes", 0),
        "enable-grpc-gateway": True,
        # Revisions of any size, and no waiting for the disk: all of it is synced once at the end.
        "max-txn-ops": 1_000_000,
        "max-request-bytes": 256 << 20,
        "unsafe-no-fsync": True,
        # Quick: it is no secret.
        "bcrypt-cost": 4,
        "log-level": "error",
    }
    if read:
        for shared in ("client-transport-security", "socket-options"):
            settings |= {shared: config["etcd"][shared]} if shared in config["etcd"] else {}
        settings |= {
            "listen-client-urls": f"{settings['listen-client-urls']},{config['etcd']['listen-client-urls']}",
            "auth-token-ttl": _TOKEN_SECONDS,
            "unsafe-no-fsync": False,
        }
    file = part.with_suffix(".etcd.json")
    file.write_text(json.dumps(settings))
    log_file = part.with_suffix(".etcd.log")  # it calls its own end an error, several times
    with log_file.open("wb") as output:
        process = subprocess.Popen([os.environ.get("ETCD_BINARY", "etcd"), "--config-file", str(file)], stderr=output)
    connection = _Connection(client)
    try:
        _wait_until_serving(connection, process, log_file)
        yield connection
    finally:
        connection.close()
        # Clients do not end their watches; what it has confirmed to them is on disk.
        (process.kill if read else process.terminate)()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            file.unlink(missing_ok=True)
            log_file.unlink(missing_ok=True)


def _wait_until_serving(connection: _Connection, process: "subprocess.Popen[bytes]", log_file: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            connection.become_root()
            connection.revision()
            return
        except (OSError, http.client.HTTPException, _Blocked):
            connection.close()
            if process.poll() is not None:
                reason = _last_line(log_file.read_text(errors="replace"))
                raise _Blocked(f"etcd ended with {process.returncode} on the restored data: {reason}") from None
            if time.monotonic() > deadline:
                raise _Blocked(f"etcd did not serve the restored data in {_START_SECONDS:.0f} s") from None
            time.sleep(0.05)


def _unzipped(content: Iterable[bytes], snapshot: Snapshot, limit: int) -> Iterator[bytes]:
    if not snapshot.compressed:
        yield from content
        return
    try:
        yield from compression.unzip_stream(content, limit)
    except compression.Damaged as error:
        raise _Blocked(f"{snapshot.name} is damaged: it {error}") from None
    except compression.TooLarge as error:
        raise _Blocked(f"{snapshot.name} {error}, twice what this etcd may hold") from None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1][:300]


def _sync_tree(directory: Path) -> None:
    for where, _, names in os.walk(directory):
        for name in names:
            _sync(Path(where, name))
        _sync(Path(where))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Entry point of the etcd container: restores an empty or broken data directory, then runs etcd and supervises it.

A single member must serve while its certificate authorities change, but etcd reads those only at its start. So the
wrapper starts the next etcd process beside the current one. The next etcd accepts connections at once, and answers them
when it gets the data directory, which the current etcd holds until it ends. Clients wait for that moment; no connection
is refused.

``python3 -m workers.etcd.wrapper CONFIG``. Every API server waits for this process when it starts. So the wrapper uses
the standard library only, and imports nothing before it is needed. Its configuration is JSON, made by
``workers.etcd.manifests``:

    etcd            etcd's own configuration, without the fields that differ between members
    dataDir         data directory
    runDirectory    directory for etcd's configuration and the result of the initialization
    tlsDirectory    mounted TLS files; a single member takes over changed files while it serves
    members         peer URL of every member, by name; the name of this member is $POD_NAME
    memberNamePrefix    what the names of members have before the names of their pods; may be left out
    membership      if there are several members: their client URLs and their wrappers' URLs, by name, and TLS files of
                    a client; null for a single member. ``existing`` is the path of a file that names members of
                    another seed, whose cluster to join; without this file there are none
    store           provider, bucket, prefix, credentialsDirectory; null without backups
    takeoverTolerance   seconds that etcd serves without an answer from the bucket that no other seed has taken over;
                    null if etcd serves without such an answer
    source          the same as ``store``, for the seed that a moving control plane comes from. A file beside the
                    credentials names the bucket; if there are no credentials, the control plane is not moving
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from workers.etcd import SEALED
from workers.etcd.data_directory import fault_of, has_log
from workers.etcd.json_log import log

if TYPE_CHECKING:
    from workers.etcd.membership import Membership

INITIALIZATION_FILE = "initialization.json"
_RETRY_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_END_SECONDS = 0.5
"""Time that an etcd gets to stop when no other etcd takes over from it."""
_HAND_OVER_SECONDS = 2.0
"""Time that an etcd gets to stop when new connections already go to the next one: it answers the requests that it
has."""
_BIND_SECONDS = 20.0
STOP_SECONDS = 2.0
"""Time within which the wrapper stops an etcd after its takeover tolerance has passed without an answer."""


def main(config_path: str) -> NoReturn:
    """Prepare the data directory, run etcd until it ends, and exit with its status. Never returns."""
    # Process 1 has no default action for SIGTERM. Etcd sets its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = json.loads(Path(config_path).read_text())
    name = config.get("memberNamePrefix", "") + os.environ["POD_NAME"]
    witness, membership = Witness.of(config), _membership(config, name)
    with contextlib.ExitStack() as readers:
        try:
            if membership:
                membership.serve()
            if witness:
                witness.wait()
                witness.watch()
            file = prepare(config, name, readers)
        except Exception as error:  # the last line of a container's log is what its status shows
            _report(config, "Failed", detail=type(error).__name__)
            log("error", f"{type(error).__name__}: {error}")
            raise SystemExit(1) from None
        raise SystemExit(Supervisor(config, file, witness, readers, membership).run())


def _membership(config: dict[str, Any], name: str) -> "Membership | None":
    if not config.get("membership"):
        return None
    from workers.etcd.membership import Membership

    return Membership(config, name)


def _binary() -> str:
    return os.environ.get("ETCD_BINARY", "etcd")


class Supervisor:
    """Runs etcd. If this is a single member, the next etcd takes over when the TLS files change."""

    def __init__(
        self,
        config: dict[str, Any],
        file: Path,
        witness: "Witness | None",
        readers: contextlib.ExitStack,
        membership: "Membership | None" = None,
    ) -> None:
        self._config = config
        self._membership = membership
        self._readers = readers
        self._file = file
        self._mounted = Path(config["tlsDirectory"])
        self._etcd = 0
        self._ending = False
        self._witness = witness

    def run(self) -> int:
        """Run etcd until it ends by itself or SIGTERM arrives. Returns the exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self._told_to_end())
        generation = _generation(self._mounted)
        if not self._started_by_right(generation):
            return 143
        if self._membership:
            import threading

            threading.Thread(target=self._membership.settle, daemon=True).start()
        while not self._ending:
            if self._doubtful:
                _end(self._etcd, 0)
                log("error", f"etcd is stopped: {self._witness and self._witness.doubt}")
                if not self._started_by_right(generation):
                    return 143
            ended, status = os.waitpid(self._etcd, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status) or 1
            mounted = generation if self._membership else _generation(self._mounted)
            if mounted != generation and self._hand_over(mounted):
                generation = mounted
            time.sleep(_LOOK_SECONDS)
        self._let_another_lead()
        _end(self._etcd)
        return 143

    def _let_another_lead(self) -> None:
        """Transfer leadership if there are other members, so that they need not detect that the leader is gone."""
        if self._membership is None:
            return
        import threading

        leaving = threading.Thread(target=self._membership.step_down, daemon=True)
        leaving.start()
        deadline = time.monotonic() + _HAND_OVER_SECONDS
        while leaving.is_alive() and not self._doubtful and time.monotonic() < deadline:
            time.sleep(0.02)

    def _started_by_right(self, generation: str) -> bool:
        """Start etcd as soon as it is certain that no other seed has taken over.

        Returns False if SIGTERM arrived before that.
        """
        while self._doubtful and not self._ending:
            self._readers.close()  # the etcd that replicated accepts writes by now, so it stops like any other
            time.sleep(_LOOK_SECONDS)
        if not self._ending:
            bound = self._bound()
            self._etcd = self._start(generation)
            self._take_over_readers(bound)
        return not self._ending

    def _take_over_readers(self, bound: int) -> None:
        """Stop the etcd that replicated, if there is one, once the first regular etcd accepts connections.

        Both have the same data directory. The regular etcd waits until the one that replicated releases it.
        """
        deadline = time.monotonic() + _BIND_SECONDS
        while bound and self._bound() <= bound and time.monotonic() < deadline and not (self._ending or self._doubtful):
            time.sleep(0.02)
        self._readers.close()

    def _bound(self) -> int:
        """Number of etcd processes that accept connections of clients."""
        url = self._config["etcd"].get("listen-client-urls")
        return _listeners(int(url.rpartition(":")[2])) if url else 0

    @property
    def _doubtful(self) -> bool:
        return self._witness is not None and self._witness.doubtful

    def _told_to_end(self) -> None:
        self._ending = True

    def _start(self, generation: str) -> int:
        """Start an etcd with its own copy of the TLS files; returns its process id.

        Etcd reads its certificate again for each connection, but its CAs only at its start, and both must fit.
        """
        import shutil

        run = Path(self._config["runDirectory"])
        own = run / f"tls-{generation}"
        if not own.exists():
            new = run / "tls.new"
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(self._mounted / generation, new)
            new.rename(own)
        file = run / f"etcd-{generation}.yaml"
        file.write_text(self._file.read_text().replace(f"{self._mounted}/", f"{own}/"))
        return os.posix_spawnp(_binary(), [_binary(), "--config-file", str(file)], os.environ)

    def _hand_over(self, generation: str) -> bool:
        """Start the next etcd, and stop the current one once the next accepts connections.

        Returns False if the next etcd did not start; then the current one goes on.
        """
        import shutil
        import ssl

        security = self._config["etcd"]["client-transport-security"]
        authorities, certificate, key = (
            security[name].replace(f"{self._mounted}/", f"{self._mounted / generation}/")
            for name in ("trusted-ca-file", "cert-file", "key-file")
        )
        try:
            ssl.create_default_context(cafile=authorities).load_cert_chain(certificate, key)
        except OSError as error:  # ssl.SSLError is an OSError
            log("error", f"the new TLS files cannot be used, etcd continues with the previous ones: {error.strerror}")
            return False
        bound = self._bound()
        following = self._start(generation)
        deadline = time.monotonic() + _BIND_SECONDS
        while self._bound() <= bound:
            ended, _ = os.waitpid(following, os.WNOHANG)
            if ended or time.monotonic() > deadline or self._ending or self._doubtful:
                log("error", "etcd does not start with the new TLS files; the running etcd continues, trying again")
                if not ended:
                    _end(following)
                return False
            time.sleep(0.02)
        log("info", "TLS files have changed; a new etcd process takes over")
        _end(self._etcd, _HAND_OVER_SECONDS, lambda: self._doubtful)
        self._etcd = following
        for older in Path(self._config["runDirectory"]).glob("tls-*"):
            if older.name != f"tls-{generation}":
                shutil.rmtree(older)
        return True


class Witness:
    """Reads this seed's bucket regularly to find whether another seed has taken over.

    Without an answer, another seed may have taken over. Time in which this process did not run counts, too, for example
    while its machine was paused.
    """

    def __init__(self, store: dict[str, Any], tolerance: float) -> None:
        self._store = store
        self._tolerance = tolerance
        self._told: float | None = None
        """Start of the last read that found no takeover by another seed; None if there is none, or one was found."""
        self.doubt = "the bucket has not been read yet"

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Witness | None":
        tolerance = config.get("takeoverTolerance")
        return cls(config["store"], tolerance) if tolerance and config.get("store") else None

    @property
    def doubtful(self) -> bool:
        """Whether another seed may have taken over by now."""
        return self._told is None or time.clock_gettime(time.CLOCK_BOOTTIME) - self._told > self._tolerance

    def watch(self) -> None:
        """Read the bucket from now on, in a thread."""
        import threading

        threading.Thread(target=self._watch, daemon=True).start()

    def wait(self) -> None:
        """Return once the bucket has shown that no other seed has taken over."""
        while not self.look():
            log("warning", f"etcd is not started: {self.doubt}")
            time.sleep(_RETRY_SECONDS)

    def look(self) -> bool:
        """Read the bucket once. Returns True if it shows that no other seed has taken over."""
        from etcd import snapshots
        from workers.etcd.store_reader import StoreReader, Unreadable

        begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            revision = snapshots.taken_over(StoreReader(self._store, self._tolerance / 3).names())
        except Unreadable as error:
            self.doubt = f"{error}; another seed may have taken over"
            return False
        if revision is not None:
            self._told, self.doubt = None, f"another seed has taken over at revision {revision}"
            return False
        self._told, self.doubt = begun, "the bucket could not be read for longer than the takeover tolerance"
        return True

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(self._tolerance / 5)


def _generation(directory: Path) -> str:
    """Name of the directory in which the kubelet has put all files of the current version of a Secret.

    A static pod mounts files of its node, which have no versions: then this is the mounted directory itself.
    """
    try:
        return os.readlink(directory / "..data")
    except FileNotFoundError:
        return "."


def _listeners(port: int) -> int:
    """Number of sockets that listen on a port."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            found += state == "0A" and int(local.rpartition(":")[2], 16) == port
    return found


def _end(etcd: int, seconds: float = _END_SECONDS, hurry: Callable[[], bool] = lambda: False) -> None:
    """Stop an etcd process: SIGTERM, and SIGKILL after ``seconds``, or earlier if ``hurry`` returns True.

    After SIGTERM etcd accepts no connections, answers the requests that it has, and waits 7 s for its watches, which do
    not end by themselves. SIGKILL cuts this wait short. What etcd has confirmed is on disk.
    """
    os.kill(etcd, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not hurry():
        if os.waitpid(etcd, os.WNOHANG)[0]:
            return
        time.sleep(0.02)
    os.kill(etcd, signal.SIGKILL)
    os.waitpid(etcd, 0)


def prepare(config: dict[str, Any], name: str, readers: contextlib.ExitStack | None = None) -> Path:
    """Prepare the data directory for etcd's start; returns etcd's configuration file.

    After a replication, clients read from the etcd that replicated. It runs until ``readers`` are closed. Without
    ``readers`` it ends before this function returns.
    """
    data = Path(config["dataDir"])
    fault = fault_of(data)
    cluster = None
    if fault is None:
        if (data / SEALED).exists():
            from workers.etcd.restore import unseal

            unseal(config, name)
        _report(config, "Successful", detail="data directory is sound")
    else:
        with contextlib.ExitStack() as own:
            cluster = _initialize(config, name, data, fault, readers or own)
    file = Path(config["runDirectory"], "etcd.conf.yaml")
    file.write_text(json.dumps({**config["etcd"], **member_config(config, name, cluster)}, indent=1))
    return file


def member_config(config: dict[str, Any], name: str, cluster: str | None) -> dict[str, Any]:
    """The part of etcd's configuration that differs between members.

    ``cluster`` is the initial cluster that the member has joined. Without it, a member that has no data starts a new
    cluster alone.
    """
    return {
        "name": name,
        "data-dir": config["dataDir"],
        "initial-advertise-peer-urls": config["members"][name],
        "initial-cluster": cluster or f"{name}={config['members'][name]}",
        "initial-cluster-state": "existing" if cluster else "new",
        "advertise-client-urls": config["advertiseClientUrls"].replace(
            "$NAME", name.removeprefix(config.get("memberNamePrefix", ""))
        ),
    }


def _initialize(config: dict[str, Any], name: str, data: Path, fault: str, readers: contextlib.ExitStack) -> str | None:
    """Make a data directory that etcd can start from.

    Returns the initial cluster that etcd has joined, in the form of its configuration; None if it has joined none.
    """
    _report(config, "Progress", detail=fault)
    store = config.get("store")
    found = _names(store) if store else []
    if found_elsewhere(config, found):
        if data.exists():
            _set_aside(data)
        _follow(config, name, readers)
        return None
    if membership := _membership(config, name):
        # Each of several members has all data, so a member that lost its data gets them from the others.
        if (cluster := membership.join(backed_up=bool(found))) is not None:
            if data.exists():
                _set_aside(data)
            _report(config, "Successful", detail="joined the other members")
            return cluster
        found = _names(store) if store else []
    elif has_log(data) and not found:
        # The broken data are the only copy, and an operator may still save a part of them.
        raise RuntimeError(f"data directory is unusable ({fault}) and there is no backup to restore")
    if data.exists():
        _set_aside(data)
    if found:
        from workers.etcd.restore import restore

        log("info", f"{fault}; restoring from {len(found)} snapshots")
        revision = restore(config, name, found)
        _report(config, "Successful", detail=f"restored revision {revision}")
    else:
        log("info", f"{fault}; starting empty")
        _report(config, "Successful", detail="new")
    return None


def found_elsewhere(config: dict[str, Any], found: list[str]) -> bool:
    """Whether to take the data from the source's bucket: a move is on, and our own bucket holds no newer revision."""
    source = config.get("source")
    if not source or len(config["members"]) > 1 or not Path(source["credentialsDirectory"], "bucketName").exists():
        return False
    from etcd import snapshots

    ours = snapshots.last_revision(snapshots.parse_all(found))
    return ours <= snapshots.last_revision(snapshots.counted(_names(source)))


def _follow(config: dict[str, Any], name: str, readers: contextlib.ExitStack) -> None:
    """Replicate until the source's history has ended. Until then only the source's etcd may accept writes."""
    from workers.etcd.restore import follow
    from workers.etcd.store_reader import Unreadable

    def tell(revision: int) -> None:
        _report(config, "Progress", detail="replicating the source's etcd", revision=revision)

    def await_silence() -> None:
        if (tolerance := config.get("takeoverTolerance")) and _may_serve(config):
            log("info", f"the source's etcd may still serve; it stops within {tolerance:.0f} s")
            time.sleep(tolerance + STOP_SECONDS)

    while True:
        try:
            revision = follow(config, name, tell, await_silence, readers)
        except Unreadable as error:
            log("warning", f"{error}; trying again")
            time.sleep(_RETRY_SECONDS)
        else:
            _report(config, "Successful", detail=f"took over revision {revision}", revision=revision)
            return


def _may_serve(config: dict[str, Any]) -> bool:
    """Whether the source's etcd may still serve.

    True if the source has not ended its history itself, and no process has waited until its etcd must have stopped.
    """
    from etcd import snapshots

    return snapshots.may_serve(_names(config["source"]))


def _set_aside(data: Path) -> None:
    """Rename a data directory that is about to be replaced, and delete the one that was renamed the last time."""
    import shutil

    for older in data.parent.glob(f"{data.name}.broken-*"):
        shutil.rmtree(older)
    data.rename(data.with_name(f"{data.name}.broken-{int(time.time())}"))


def _names(store: dict[str, Any]) -> list[str]:
    """Names of the objects in a store that can be restored from.

    Waits until the store has answered. Otherwise an etcd could start empty because its backups could not be read.
    Clients would then write to it, and it could not use these backups any more.
    """
    from workers.etcd.store_reader import StoreReader, Unreadable

    while True:
        try:
            return StoreReader(store).names()
        except Unreadable as error:
            log("warning", f"{error}; trying again, etcd starts only once its backups are known")
            time.sleep(_RETRY_SECONDS)


def _report(config: dict[str, Any], status: str, *, detail: str, revision: int = 0) -> None:
    file = Path(config["runDirectory"], INITIALIZATION_FILE)
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps({"status": status, "detail": detail, "revision": revision}))
    temporary.rename(file)


if __name__ == "__main__":
    main(sys.argv[1])

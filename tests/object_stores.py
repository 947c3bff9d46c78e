"""Real object stores for tests: the landscape's, and one of other authors, which shows that any S3 store will do."""

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from temporalio.exceptions import ApplicationError

from activities.provider_local.accounts import Account, User, path_of, rights_below
from landscape import binaries
from landscape.progress import Progress
from tests.api_servers import free_port

KEY, SECRET = "administrator", "SENTINEL-secret-of-the-administrator"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class ObjectStore:
    """A server that runs; ``buckets`` is the directory of its buckets, if it keeps objects as files."""

    endpoint: str
    iam_endpoint: str
    buckets: Path

    @property
    def credentials(self) -> dict[str, str]:
        """Those of an administrator, as the Secret of a Seed's backups holds them."""
        return {
            "accessKeyID": KEY,
            "secretAccessKey": SECRET,
            "region": "local",
            "endpoint": self.endpoint,
            "iamEndpoint": self.iam_endpoint,
        }

    @property
    def account(self) -> Account:
        return Account(self.credentials, "Secret garden/backup")

    def make_bucket(self, bucket: str) -> None:
        self.account.make_bucket(bucket)

    def key_below(self, bucket: str, directory: str) -> dict[str, str]:
        """Credentials of a user that has rights below a directory only."""
        user = User(f"of-{bucket}-{directory}", path_of(bucket), rights_below(bucket, directory))
        made = self.account.key_of(user, "", renew=True)
        assert made is not None
        return self.credentials | {"accessKeyID": made[0], "secretAccessKey": made[1]}


def encoded(values: Mapping[str, str]) -> dict[str, str]:
    """Data of a Secret."""
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}


def as_mounted(directory: Path, values: Mapping[str, str]) -> Path:
    """Write values as a pod has a Secret mounted."""
    directory.mkdir(parents=True, exist_ok=True)
    for key, value in values.items():
        (directory / key).write_text(value)
    return directory


@cache
def _versitygw() -> str:
    return asyncio.run(binaries.ensure((binaries.versitygw(),), Progress(quiet=True)))["versitygw"]


def build() -> None:
    """Find the landscape's store in the cache, or compile it: a minute, once."""
    _versitygw()


@contextmanager
def versitygw(directory: Path, *, key: str = KEY, secret: str = SECRET, ports: tuple[int, int] | None = None,
              tls: tuple[Path, Path] | None = None) -> Iterator[ObjectStore]:  # fmt: skip
    """The landscape's store. ``build`` must have run before, outside of an event loop."""
    program, (port, iam_port) = _versitygw(), ports or (free_port(), free_port())
    made = {name: directory / name for name in ("buckets", "metadata", "users")}
    for each in made.values():
        each.mkdir(parents=True, exist_ok=True)
    # The path of a socket has 107 characters at most, which pytest's directories may exceed.
    link = Path("/tmp", f"s3-{os.getpid()}-{iam_port}.sock")
    environment = os.environ | {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret, "VGW_REGION": "local"}
    common = (program, "--quiet", "--health", "/healthz", *(("--cert", tls[0], "--key", tls[1]) if tls else ()))
    users = (*common, "--port", f"127.0.0.1:{iam_port}", "iam", "--dir", made["users"], "--private-ports", link)
    objects = (*common, "--port", f"127.0.0.1:{port}", "--iam-standalone-endpoint", link)
    objects = (*objects, "posix", "--sidecar", made["metadata"], made["buckets"])
    with _running(directory / "users.log", users, environment), _running(directory / "s3.log", objects, environment):
        for listening in (iam_port, port):
            _until_listening(listening)
        scheme = "https" if tls else "http"
        yield ObjectStore(f"{scheme}://127.0.0.1:{port}", f"{scheme}://127.0.0.1:{iam_port}", made["buckets"])
    link.unlink(missing_ok=True)


@contextmanager
def seaweedfs(directory: Path, limited: Mapping[str, str]) -> Iterator[tuple[ObjectStore, dict[str, dict[str, str]]]]:
    """SeaweedFS with a user for each place in ``limited``; yields their credentials, too.

    ``limited``: directory by bucket.
    """
    identities = [_identity(KEY, SECRET, "Admin", "Read", "Write", "List")]
    for bucket, place in limited.items():
        rights = (f"{right}:{bucket}/{place}/*" for right in ("Read", "Write", "List"))
        identities.append(_identity(f"of-{bucket}", f"secret-of-{bucket}", *rights))
    (directory / "s3.json").write_text(json.dumps({"identities": identities}))
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer")}
    grpc = {f"{name}.grpc": free_port() for name in ports}
    options = [f"-{name.replace('.', '.port.', 1) if '.' in name else f'{name}.port'}={port}"
               for name, port in (ports | grpc).items()]  # fmt: skip
    weed = str(Path(sys.executable).parent / "weed")
    command = (weed, "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", *options)
    command += ("-s3.iam=false", f"-s3.config={directory / 's3.json'}", "-master.telemetry=false", "-volume.max=20")
    command += ("-s3.port.iceberg=0", "-s3.port.lance=0")
    with _running(directory / "weed.log", command, os.environ):
        store = ObjectStore(f"http://127.0.0.1:{ports['s3']}", f"http://127.0.0.1:{ports['s3']}", directory)
        credentials = {}
        for bucket in limited:
            _until_made(store, bucket)
            credentials[bucket] = store.credentials | {
                "accessKeyID": f"of-{bucket}", "secretAccessKey": f"secret-of-{bucket}"
            }  # fmt: skip
        yield store, credentials


def _identity(key: str, secret: str, *actions: str) -> dict[str, object]:
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": list(actions)}


@contextmanager
def _running(log: Path, command: tuple[object, ...], environment: Mapping[str, str]) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen([*map(str, command)], env=environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)  # nothing tells that a process listens
        else:
            return
    raise AssertionError(f"nothing listens on port {port} after {_START_SECONDS:.0f} s")


def _until_made(store: ObjectStore, bucket: str) -> None:
    """SeaweedFS listens before it can store anything."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return store.make_bucket(bucket)
        except ApplicationError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

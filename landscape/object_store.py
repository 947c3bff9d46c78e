"""The landscape's object store for backups: versitygw, an S3 server that keeps each object as a file.

It has two processes: one serves S3; the other has the users and their rights, and serves IAM.
"""

import asyncio
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from api.constants import SOURCE_BACKUP_SECRET
from api.resources import SECRET
from landscape import network, pki
from landscape.errors import LandscapeError
from landscape.kube import connected
from landscape.plan import ClusterPlan, Plan
from landscape.processes import Processes, ProcessSpec
from landscape.waiting import answers, until

REGION = "local"
SERVER = "object-store-s3"
USERS = "object-store-users"
EARLIER = "object-store"
"""Process of the store of earlier versions, which had tokens. It goes on at its own address, with the same files, while
etcds of these versions use it: they would stop without it."""

_HEALTH = "/healthz"
_ANSWER_SECONDS = 10.0
_WITH_KEY = '. "$0" && exec "$@"'
"""A shell that reads the administrator's key from a file: on a command line all processes could read it."""


@dataclass(frozen=True)
class Key:
    """An access key; its ``id`` is no secret."""

    id: str
    secret: str


def administrator(plan: Plan) -> Key:
    """The administrator's key, which may create buckets and users; made at the first call.

    A landscape gets another one if its file is removed before ``up``.
    """
    file = plan.object_store / "administrator.json"
    if not file.exists():
        made = Key(f"admin{secrets.token_hex(8)}", secrets.token_urlsafe(32))
        pki.write_secret(file, json.dumps(asdict(made)).encode())
    return Key(**json.loads(file.read_text()))


def processes(plan: Plan, versitygw: str) -> list[ProcessSpec]:
    """The processes of the store. Objects that an earlier version stored are files, too, and stay what they are."""
    key = administrator(plan)
    environment = plan.object_store / "administrator.env"
    variables = f"export ROOT_ACCESS_KEY={key.id}\nexport ROOT_SECRET_KEY={key.secret}\n"
    pki.write_secret(environment, variables.encode())
    directories = {name: plan.object_store / name for name in ("buckets", "metadata", "users")}
    for directory in directories.values():
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket = plan.run_directory / "object-store.sock"
    socket.parent.mkdir(parents=True, exist_ok=True)
    # Restarts the processes if the key has changed.
    digest = hashlib.sha256(variables.encode()).hexdigest()[:12]
    common = {"VGW_REGION": REGION, "GARDENER_VERSION": digest}

    def process(name: str, url: str, *rest: str | Path) -> ProcessSpec:
        address = url.removeprefix("http://")
        arguments = (versitygw, "--quiet", "--port", address, "--health", _HEALTH, *map(str, rest))
        return ProcessSpec(name, ("sh", "-c", _WITH_KEY, str(environment), *arguments), plan.garden.netns, common)

    return [
        process(USERS, plan.iam_endpoint, "iam", "--dir", directories["users"], "--private-ports", socket),
        process(
            SERVER,
            plan.object_store_endpoint,
            "--iam-standalone-endpoint",
            socket,
            "posix",
            "--sidecar",
            directories["metadata"],
            directories["buckets"],
        ),
    ]


async def ready(plan: Plan, hopeless: Callable[[str], str | None]) -> None:
    """Wait until both processes answer; ``hopeless`` says why one of them never will."""
    for name, url in ((USERS, plan.iam_endpoint), (SERVER, plan.object_store_endpoint)):
        await until(partial(answers, url + _HEALTH), name, 120, partial(hopeless, name))


async def end_earlier(plan: Plan, processes: Processes) -> None:
    """Stop the store of earlier versions, and remove its own files, once no etcd has a token for it.

    If it has ended, it cannot be started again: its program is gone.
    """
    earlier = processes.find(EARLIER)
    if earlier is not None:
        needed = await asyncio.gather(*(_may_have_tokens(plan, seed) for seed in plan.seeds))
        if earlier.alive and any(needed):
            return
        await asyncio.to_thread(processes.stop, [earlier])
    shutil.rmtree(plan.object_store / "buckets" / ".uploads", ignore_errors=True)
    (plan.object_store / "token").unlink(missing_ok=True)


async def _may_have_tokens(plan: Plan, seed: ClusterPlan) -> bool:
    """Whether an etcd of the seed has a token, or the seed does not answer."""
    kubeconfig = plan.kubeconfig(seed.name)
    if not kubeconfig.exists():
        return False
    if network.is_cut(plan, seed.name):
        return True
    try:
        async with asyncio.timeout(_ANSWER_SECONDS), connected(kubeconfig) as client:
            for name in ("etcd-backup", SOURCE_BACKUP_SECRET):
                found = await client.list(SECRET, fields=f"metadata.name={name}")
                if any("token" in (each.get("data") or {}) for each in found):
                    return True
            return False
    except (LandscapeError, TimeoutError):
        return True

"""Load on a pool of a Shoot: a web server behind a budget, and a client in another pool that counts its requests."""

import json
from typing import Any

from tests.landscape import pods
from tests.landscape.pods import PROBE
from tests.landscape.shoots import Shoot, eventually


def run_under_load(shoot: Shoot, pool: str, *, client: str) -> None:
    """Run two replicas of a web server, named after their pool, and a client in pool ``client``."""
    apply(shoot, web(pool, 2), pods.budget(pool, minAvailable=1), pods.service(pool, 80))
    shoot.kubectl("-n", PROBE, "rollout", "status", f"deployment/{pool}", "--timeout=90s")
    code = f"HOST = '{pool.upper()}_SERVICE_HOST'\n{_CLIENT}"
    apply(shoot, pods.python("client", 1, code, pool=client, ready=_HAS_COUNTED))
    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/client", "--timeout=90s")


def web(pool: str, replicas: int) -> dict[str, Any]:
    """A server named after its pool."""
    return pods.python(pool, replicas, pods.WEB, pool=pool, linger=pods.LINGER_SECONDS)


def counted(shoot: Shoot) -> dict[str, Any]:
    """The client's counts so far."""
    seen: dict[str, Any] = json.loads(shoot.kubectl("-n", PROBE, "exec", "deployment/client", "--", "cat", "/tmp/seen"))
    return seen


def check_all_answered(shoot: Shoot) -> dict[str, Any]:
    """The client's counts: no request has failed, nor does one of the next 50."""
    asked = counted(shoot)["answered"]

    def later() -> dict[str, Any] | None:
        seen = counted(shoot)
        return seen if seen["answered"] >= asked + 50 else None

    seen: dict[str, Any] = eventually(later, "50 more requests of the client", 60)
    print(f"{seen['answered']} answered, {len(seen['failed'])} failed")
    assert seen["failed"] == []
    return seen


def nodes_by_pod(shoot: Shoot, app: str) -> dict[str, str]:
    """Node by pod, without pods that are being deleted."""
    found = json.loads(shoot.kubectl("-n", PROBE, "get", "pods", "-l", f"app={app}", "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
    }


def apply(shoot: Shoot, *objects: dict[str, Any]) -> None:
    """Apply objects in the namespace of the tests."""
    items = {"apiVersion": "v1", "kind": "List", "items": [pods.namespace(), *objects]}
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(items))


_HAS_COUNTED = {"exec": {"command": ["test", "-e", "/tmp/seen"]}}
_CLIENT = """
import json, os, pathlib, signal, sys, time, urllib.request
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
url, seen = f"http://{os.environ[HOST]}/", {"answered": 0, "failed": [], "by": []}
while True:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            by = answer.read().decode()
        seen["answered"] += 1
        if by not in seen["by"]:
            seen["by"].append(by)
    except OSError as error:
        seen["failed"].append(f"{time.time():.1f}: {error}")
    pathlib.Path("/tmp/seen.new").write_text(json.dumps(seen))
    os.replace("/tmp/seen.new", "/tmp/seen")
    time.sleep(0.05)
"""
"""One request after the other, each on a connection of its own, and never the same one twice."""

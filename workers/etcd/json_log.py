"""Log lines of the etcd wrapper, which must start without the libraries that other processes log with."""

import json
import sys
import time


def log(level: str, message: str) -> None:
    """One JSON line, as all processes log."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    line = {"time": f"{now}+00:00", "level": level, "component": "etcd-wrapper", "message": message}
    print(json.dumps(line), file=sys.stderr, flush=True)

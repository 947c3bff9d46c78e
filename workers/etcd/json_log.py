"""Log lines of the etcd wrapper, which must start without the libraries that other processes log with."""

import json
import sys
import time


def log(level: str, message: str) -> None:
    """Write one JSON line in the format of all processes' logs."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    line = {"time": f"{now}+00:00", "level": level, "component": "etcd-wrapper", "message": message}
    print(json.dumps(line), file=sys.stderr, flush=True)

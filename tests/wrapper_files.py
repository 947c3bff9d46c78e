"""Files that a pod of etcd has mounted, for tests that run its wrapper alone."""

import json
from pathlib import Path
from typing import Any

NAME = "etcd-main-0"
"""Name of the pod, and of its member."""


def mount(directory: Path, **more: Any) -> Path:
    """Write them; returns the wrapper's configuration, which says ``more`` than what every one does."""
    (directory / "tls/..1").mkdir(parents=True)
    (directory / "tls/..data").symlink_to("..1")
    config = {
        "etcd": {},
        "dataDir": str(directory / "data"),
        "runDirectory": str(directory),
        "tlsDirectory": str(directory / "tls"),
        "members": {NAME: f"http://{NAME}:2380"},
        "advertiseClientUrls": "",
        "store": None,
        **more,
    }
    file = directory / "wrapper.json"
    file.write_text(json.dumps(config))
    return file

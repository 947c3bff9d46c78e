"""In front of runc, for an engine on a machine that keeps CAP_SYS_RESOURCE from root.

An older engine gives a privileged container every capability that the kernel knows, and runc then fails to. A newer one
gives those that it has itself; so does this.
"""

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

_KEPT_BACK = "CAP_SYS_RESOURCE"


def without(process: dict[str, Any]) -> None:
    for names in (process.get("capabilities") or {}).values():
        if _KEPT_BACK in names:
            names.remove(_KEPT_BACK)


def main(arguments: list[str]) -> None:
    for option, value in itertools.pairwise(arguments):
        if option == "--bundle":
            file = Path(value) / "config.json"
        elif option == "--process":
            file = Path(value)
        else:
            continue
        content = json.loads(file.read_text())
        without(content.get("process", content))
        file.write_text(json.dumps(content))
    os.execv("/usr/sbin/runc", ["runc", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])

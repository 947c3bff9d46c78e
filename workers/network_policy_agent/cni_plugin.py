"""A CNI plugin that announces a new pod to the agent of its node, after the plugins that gave it its address.

The pod starts when the agent has written its rules: it sends and receives nothing before. If the agent does not answer,
the pod does not start, and the kubelet tries again. This file is run as it is, with the standard library alone.
"""

import json
import os
import socket
import sys

NAME = "gardener-network-policies"
"""``type`` of the plugin in a CNI configuration, and name of its file."""
_SECONDS = 15.0
_VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0"]
_TRY_AGAIN = 11
"""CNI's code of an error that may pass."""


def main() -> int:
    command = os.environ.get("CNI_COMMAND")
    if command == "VERSION":
        print(json.dumps({"cniVersion": _VERSIONS[-1], "supportedVersions": _VERSIONS}))
        return 0
    config = json.load(sys.stdin)
    if command != "ADD":
        return 0  # the agent forgets a pod when its object is deleted
    arguments = dict(part.split("=", 1) for part in os.environ.get("CNI_ARGS", "").split(";") if "=" in part)
    result = config["prevResult"]
    addresses = [each["address"].split("/")[0] for each in result.get("ips", ())]
    names = {field: arguments.get(f"K8S_POD_{field.upper()}", "") for field in ("namespace", "name", "uid")}
    try:
        fault = _announce(config["socket"], {**names, "addresses": addresses})
    except (OSError, ValueError) as error:
        fault = f"the network policy agent does not answer at {config['socket']}: {error}"
    if fault:
        print(json.dumps({"cniVersion": config["cniVersion"], "code": _TRY_AGAIN, "msg": fault}))
        return 1
    print(json.dumps(result))
    return 0


def _announce(path: str, pod: dict[str, object]) -> str:
    """Returns why the agent refuses the pod; an empty text if its rules are written."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(pod).encode() + b"\n")
        return str(json.loads(connection.makefile().readline())["fault"])


if __name__ == "__main__":
    sys.exit(main())

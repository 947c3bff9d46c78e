"""``python -m landscape.container.outside NAME ADDRESS``: forward the container's published ports to its landscape.

Prints the first cluster's kubeconfig for those outside, if there is one: its API server by ADDRESS, where the engine
published port 443.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from landscape import lifecycle
from landscape.shell import run

_CHAIN = "GARDENER-OUTSIDE"
_UI_PORT = 8233
_API_PORT = 443


async def hand_on(targets: dict[int, str]) -> None:
    """Forward connections to ports of this container to these addresses (HOST:PORT), with this container as source."""
    known = await run("iptables-save", "--table", "nat")
    lines = ["*nat", f":{_CHAIN} - [0:0]"]  # made, or emptied
    lines += [
        f"-A {_CHAIN} -p tcp --dport {port} -j DNAT --to-destination {target}" for port, target in targets.items()
    ]
    if f"-j {_CHAIN}" not in known:
        # The landscape has routes to this namespace only. Forward only packets to this container's own addresses.
        lines += [f"-A PREROUTING -m addrtype --dst-type LOCAL -j {_CHAIN}"]
        lines += ["-A POSTROUTING -m conntrack --ctstate DNAT -j MASQUERADE"]
    await run("iptables-restore", "--noflush", stdin="\n".join([*lines, "COMMIT", ""]))


def from_outside(config: dict[str, Any], address: str) -> tuple[dict[str, Any], str]:
    """The kubeconfig with its current cluster at ``address``, and the address of that cluster inside, HOST:PORT."""
    [context] = [each["context"] for each in config["contexts"] if each["name"] == config["current-context"]]
    [current] = [each["cluster"] for each in config["clusters"] if each["name"] == context["cluster"]]
    server = urlsplit(current["server"])
    there = {"server": f"https://{address}", "tls-server-name": current.get("tls-server-name", server.hostname)}
    return (
        {
            **config,
            "clusters": [{"name": context["cluster"], "cluster": {**current, **there}}],
            "contexts": [each for each in config["contexts"] if each["name"] == config["current-context"]],
        },
        f"{server.hostname}:{server.port or 443}",
    )


def main(name: str, address: str) -> None:
    targets = {_UI_PORT: urlsplit(lifecycle.require(name).temporal_ui).netloc}
    found = Path(os.environ["KUBECONFIG"])
    if found.exists():
        config, targets[_API_PORT] = from_outside(yaml.safe_load(found.read_text()), address)
        print(yaml.safe_dump(config, sort_keys=False), end="")
    asyncio.run(hand_on(targets))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

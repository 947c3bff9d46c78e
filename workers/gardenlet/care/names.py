"""Checks whether the seed's gateway routes all host names of a control plane to it."""

from collections.abc import Iterable
from typing import Any

from api.decisions.conditions import Finding
from workers.lib.exposed_hosts import hosts

TYPE = "HostNamesUnique"


def unique(namespace: str, exposures: Iterable[dict[str, Any]], internal_domain: str) -> Finding:
    """HostNamesUnique, from the exposures of all control planes in the seed.

    The message does not say which control plane has the name: it may belong to another project.
    """
    refused = hosts(exposures, internal_domain).refused
    lost = sorted(host for name, those in refused.items() if name.split("/")[0] == namespace for host in those)
    if not lost:
        return Finding(TYPE, "True", "NamesUnique", "The seed's gateway leads all names of this control plane to it.")
    text = f"the seed's gateway does not lead these names here, they belong to another control plane: {', '.join(lost)}"
    return Finding(TYPE, "False", "NamesTaken", f"{text}; ask an operator")

"""Conditions and facts of a Plant, from the answers of its cluster. The answers are not trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from api import constants
from api.decisions.conditions import CHECK_ERROR, Finding

UNKNOWN = "<unknown>"
_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_PROVIDER = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62}):/")
_VERSION = re.compile(r"v?[0-9][A-Za-z0-9.+_-]{0,62}")
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_QUOTED = 300
"""Maximum number of characters of the cluster's texts in a message."""


class _Metadata(BaseModel):
    name: str
    labels: dict[str, str] = {}


class _Spec(BaseModel):
    providerID: str = ""


class _Condition(BaseModel):
    type: str
    status: str
    message: str = ""


class _Status(BaseModel):
    conditions: list[_Condition] = []


class _Node(BaseModel):
    """The fields of a Node that are read."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


@dataclass
class Nodes:
    """Summary of the nodes of a cluster, made page by page: a cluster may have, or invent, any number of nodes."""

    count: int = 0
    not_ready: int = 0
    fault: str = ""
    """Why the first node that is not ready is not."""
    provider: str = UNKNOWN
    region: str = UNKNOWN

    def add(self, obj: dict[str, Any]) -> None:
        """Count a node. Raises ValueError if the object is no Node."""
        node = _Node.model_validate(obj)
        self.count += 1
        ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
        if ready is None or ready.status != "True":
            self.not_ready += 1
            told = ready.message if ready else "it reports nothing"
            self.fault = self.fault or f"node {quoted(node.metadata.name)} is not ready: {quoted(told)}"
        if self.provider == UNKNOWN and (found := _PROVIDER.match(node.spec.providerID)):
            self.provider = found[1]
        if self.region == UNKNOWN:
            labels = (node.metadata.labels.get(each, "") for each in _REGION_LABELS)
            self.region = next((each for each in labels if _REGION.fullmatch(each)), UNKNOWN)

    def finding(self) -> Finding:
        """EveryNodeReady."""
        type_ = constants.CONDITION_EVERY_NODE_READY
        if self.not_ready:
            text = f"{self.fault}; {self.not_ready} of {self.count} nodes are not ready"
            return Finding(type_, "False", "NodeUnhealthy", text)
        return Finding(type_, "True", "EveryNodeReady", "Every node registered to the cluster is ready.")


def version_of(answer: Any) -> str:
    """Version of Kubernetes from the answer to ``/version``."""
    text = answer.get("gitVersion") if isinstance(answer, dict) else None
    return text if isinstance(text, str) and _VERSION.fullmatch(text) else UNKNOWN


def available() -> Finding:
    text = "API server /healthz endpoint responded with 200."
    return Finding(constants.CONDITION_API_SERVER_AVAILABLE, "True", "HealthzRequestSucceeded", text)


def unavailable(reason: str, why: str) -> Finding:
    return Finding(constants.CONDITION_API_SERVER_AVAILABLE, "False", reason, quoted(why))


def unchecked_nodes(why: str) -> Finding:
    return Finding(constants.CONDITION_EVERY_NODE_READY, "Unknown", CHECK_ERROR, quoted(why))


def quoted(text: str) -> str:
    """A text of another system, without control characters and not longer than a message should be."""
    printable = "".join(each if each.isprintable() else " " for each in text[: 2 * _QUOTED])
    return printable if len(printable) <= _QUOTED else f"{printable[:_QUOTED]}…"

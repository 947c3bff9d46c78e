"""Feature gates, admission plugins and API groups that each minor version of Kubernetes knows.

The tables are generated from Kubernetes' sources, see ``landscape.kubernetes_tables``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType

from api.kubernetes_versions import v1_33, v1_34, v1_35, v1_36, v1_37
from api.kubernetes_versions.gate import Gate


class Component(StrEnum):
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    PROXY = "kube-proxy"
    KUBELET = "kubelet"


@dataclass(frozen=True)
class Release:
    """Settings that one minor version of Kubernetes knows."""

    gates: Mapping[str, Gate]
    controller_manager_gates: Mapping[str, Gate]
    """Further feature gates of kube-controller-manager."""
    dependencies: Mapping[str, tuple[str, ...]]
    """Feature gates that must be enabled, too, by the gate that depends on them."""
    admission_plugins: frozenset[str]
    api_versions: Mapping[str, frozenset[str]]
    """Plural names of the resources of each group version, for example of ``apps/v1``."""

    def gates_of(self, component: Component) -> Mapping[str, Gate]:
        if component is Component.CONTROLLER_MANAGER:
            return {**self.gates, **self.controller_manager_gates}
        return self.gates


def _release(table: ModuleType) -> Release:
    return Release(
        table.FEATURE_GATES,
        table.CONTROLLER_MANAGER_FEATURE_GATES,
        table.DEPENDENCIES,
        table.ADMISSION_PLUGINS,
        table.API_VERSIONS,
    )


RELEASES: dict[str, Release] = {
    "1.33": _release(v1_33),
    "1.34": _release(v1_34),
    "1.35": _release(v1_35),
    "1.36": _release(v1_36),
    "1.37": _release(v1_37),
}


def release(version: str) -> Release | None:
    """The release of a version like ``1.37.1``; None if there is no table of its minor version."""
    return RELEASES.get(".".join(version.removeprefix("v").split(".")[:2]))

"""Names of the labels and annotations that NetworkPolicies of a seed are made of.

Source: spec/resource-manager.md 5 (NetworkPolicy controller).
"""

import hashlib

PREFIX = "networking.resources.gardener.cloud/"
"""Prefix of labels and annotations from which the resource manager makes NetworkPolicies."""

SERVICE_NAME = PREFIX + "service-name"
SERVICE_NAMESPACE = PREFIX + "service-namespace"
"""Labels of a NetworkPolicy with the Service that it was made for."""

NAMESPACE_SELECTORS = PREFIX + "namespace-selectors"
NAMESPACE_ALIAS = PREFIX + "pod-label-selector-namespace-alias"
FROM_WORLD = PREFIX + "from-world-to-ports"
_FROM, _PORTS = PREFIX + "from-", "-allowed-ports"

ALLOWED = "allowed"
"""Value of all labels that allow traffic."""

_LONGEST = 63
"""Most characters of a label's name, without its prefix."""
_KEPT, _HASH = 57, 5


def from_ports(alias: str) -> str:
    """Annotation of a Service: its pods' ports that pods with label ``to-<alias>`` may reach."""
    return f"{_FROM}{alias}{_PORTS}"


def alias_of(annotation: str) -> str | None:
    """Alias in the name of an annotation that ``from_ports`` returns; None for other annotations."""
    if annotation == FROM_WORLD or not (annotation.startswith(_FROM) and annotation.endswith(_PORTS)):
        return None
    return annotation[len(_FROM) : -len(_PORTS)] if len(annotation) >= len(_FROM) + len(_PORTS) else ""


def is_long(target: str) -> bool:
    """Whether ``to`` shortens the label of this target."""
    return len(f"to-{target}") > _LONGEST


def to(target: str) -> str:
    """Label of pods that may reach ``target``.

    The name of a label has 63 characters at most. Of a longer name, 57 characters and a hash remain.
    """
    name = f"to-{target}"
    if is_long(target):
        name = f"{name[:_KEPT]}-{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}"
    return PREFIX + name


def target(service: str, port: int | str, protocol: str = "TCP", *, namespace: str = "") -> str:
    """Target of the label for a port of a Service's pods; ``to`` makes the label of it.

    ``namespace``: that of the Service, or its alias; empty if the pods with the label are in the same one.
    """
    return f"{namespace}-{service}-{protocol}-{port}".lower() if namespace else f"{service}-{protocol}-{port}".lower()


_GENERAL = "networking.gardener.cloud/to-"
TO_DNS = _GENERAL + "dns"
TO_API_SERVER = _GENERAL + "runtime-apiserver"
TO_PUBLIC = _GENERAL + "public-networks"
TO_PRIVATE = _GENERAL + "private-networks"
TO_BLOCKED = _GENERAL + "blocked-cidrs"
TO_SHOOT = _GENERAL + "shoot-networks"
"""Labels of pods that may reach networks: the seed's DNS and API server, and addresses outside of the seed."""


def allowed(*labels: str) -> dict[str, str]:
    """The labels of a pod that allow this traffic."""
    return dict.fromkeys(labels, ALLOWED)

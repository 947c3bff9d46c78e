"""One feature gate in one version of Kubernetes."""

from typing import NamedTuple


class Gate(NamedTuple):
    stage: str
    """``Alpha``, ``Beta``, ``GA`` or ``Deprecated``."""
    default: bool
    locked: bool
    """Whether the component refuses another value than the default."""

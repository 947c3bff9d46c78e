"""Reads files of YAML that owners of Shoots write for an API server, as strictly as the API server does."""

from __future__ import annotations

from typing import Any

import yaml

from api.validation.field import Faults, Path

_LARGEST = 256 * 1024
"""Bytes of the largest file. A longer one would keep admission busy for seconds."""


def load_mapping(text: str, root: Path, faults: Faults) -> dict[str, Any] | None:
    """The mapping in a file of YAML, which messages call ``root``. Aliases and duplicate keys are refused."""
    if not text.strip():
        faults.required(root, "is empty")
        return None
    if len(text.encode()) > _LARGEST:
        faults.forbidden(root, f"is longer than {_LARGEST} bytes")
        return None
    try:
        # Without this check, a file of 300 bytes becomes one of gigabytes once it is written out.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, _Loader)):
            faults.forbidden(root, "YAML aliases are not supported")
            return None
        parsed = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        # The text of the error quotes the file, and a kubeconfig holds credentials.
        faults.forbidden(root, "is not YAML, or has a key twice")
        return None
    if not isinstance(parsed, dict) or not all(isinstance(key, str) for key in parsed):
        faults.forbidden(root, "is not a mapping")
        return None
    return parsed


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # mypy cannot know which of them
    """Refuses duplicate keys, as the API server does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if not isinstance(key, str) or key in keys[:index]:
                raise yaml.YAMLError("duplicate key")
        return dict(super().construct_mapping(node, deep))

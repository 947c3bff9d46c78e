"""Faults of an object, with messages in the form of Kubernetes' field errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FaultType(StrEnum):
    REQUIRED = "Required value"
    INVALID = "Invalid value"
    DUPLICATE = "Duplicate value"
    NOT_SUPPORTED = "Unsupported value"
    NOT_FOUND = "Not found"
    FORBIDDEN = "Forbidden"


@dataclass(frozen=True)
class Path:
    """A field's path: ``Path("spec") / "workers" @ 0 / "name"`` is ``spec.workers[0].name``."""

    text: str

    def __truediv__(self, name: str) -> Path:
        return Path(f"{self.text}.{name}" if self.text else name)

    def __matmul__(self, index: int | str) -> Path:
        return Path(f"{self.text}[{index}]")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Fault:
    type: FaultType
    path: Path
    value: Any
    detail: str

    def __str__(self) -> str:
        shown = "" if self.type in (FaultType.REQUIRED, FaultType.FORBIDDEN) else f": {_shown(self.value)}"
        return f"{self.path}: {self.type}{shown}" + (f": {self.detail}" if self.detail else "")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else f"{text[:200]}…"


@dataclass
class Faults:
    """Collects faults; false when there are none."""

    found: list[Fault] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        texts = list(dict.fromkeys(map(str, self.found)))
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

    def required(self, path: Path, detail: str) -> None:
        self._add(FaultType.REQUIRED, path, None, detail)

    def invalid(self, path: Path, value: Any, detail: str) -> None:
        self._add(FaultType.INVALID, path, value, detail)

    def duplicate(self, path: Path, value: Any) -> None:
        self._add(FaultType.DUPLICATE, path, value, "")

    def unsupported(self, path: Path, value: Any, supported: Iterable[str], detail: str = "") -> None:
        known = ", ".join(f'"{each}"' for each in supported)
        self._add(FaultType.NOT_SUPPORTED, path, value, detail or f"supported values: {known or 'none'}")

    def not_found(self, path: Path, value: Any, detail: str = "") -> None:
        self._add(FaultType.NOT_FOUND, path, value, detail)

    def forbidden(self, path: Path, detail: str) -> None:
        self._add(FaultType.FORBIDDEN, path, None, detail)

    def duplicates(self, path: Path, values: Sequence[Any], name: str = "") -> None:
        """Report each value that an earlier item of the list has, too."""
        for index, value in enumerate(values):
            if value in values[:index]:
                self.duplicate(path @ index / name if name else path @ index, value)

    def fixed(self, path: Path, old: Any, new: Any) -> None:
        """Report a change of an immutable field."""
        if old != new:
            self.invalid(path, new, "field is immutable")

    def _add(self, kind: FaultType, path: Path, value: Any, detail: str) -> None:
        self.found.append(Fault(kind, path, value, detail))

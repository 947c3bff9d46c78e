"""Go durations, as Kubernetes objects hold them."""

import re
from datetime import timedelta

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|\u03bcs|ms|s|m|h)")

_LONGEST = 2**63 / 1e9
"""Seconds of the longest duration of Go, whose unit is the nanosecond in 63 bits."""


def parse_duration(text: str) -> timedelta:
    """``1h30m`` as a timedelta. Raises ValueError."""
    sign, rest = -1 if text.startswith("-") else 1, text[text.startswith(("-", "+")) :]
    if rest == "0":
        return timedelta()
    parts = _PART.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        raise ValueError(f"{text!r} is not a duration like 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is longer than a duration can be, 290 years")
    return sign * timedelta(seconds=seconds)

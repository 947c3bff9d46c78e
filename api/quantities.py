"""Quantities of Kubernetes: numbers with an optional decimal suffix, binary suffix or exponent."""

import re
from decimal import Decimal

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")


def parse_quantity(text: str | int | float) -> Decimal:
    """``500m``, ``8Gi`` or ``1e3`` as a number. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity like 500m or 8Gi")
    number, suffix = Decimal(match[1]), match[2] or ""
    try:
        if suffix in _BINARY:
            amount = number * (1 << _BINARY[suffix])
        else:
            amount = number.scaleb(_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))
    except ArithmeticError:
        raise ValueError(f"{text!r} is larger than a quantity can be") from None
    return amount


def is_less(one: str | int | float, other: str | int | float) -> bool:
    """Whether a quantity is less than another one; False if one of them is no quantity, which another rule reports."""
    try:
        return parse_quantity(one) < parse_quantity(other)
    except ValueError:
        return False

"""Names of Kubernetes' conformance specs, and which of them a run chooses."""

import re
from collections.abc import Iterable, Sequence

_LISTED = re.compile(r"^\s+\S+:\d+: (?P<name>\[.*)$")
"""A line of ``e2e.test --list-tests``: a source file, a line in it, and the full name of a spec."""


class UsageError(Exception):
    """A choice that no run can obey."""


def conformance_specs(listing: str) -> list[str]:
    """Specs that a conformant cluster must pass and that can run beside others, from the output of ``--list-tests``.

    Serial specs are left out: they need the cluster for themselves, and some of them disturb its nodes.
    """
    names = {found["name"].strip() for line in listing.splitlines() if (found := _LISTED.match(line))}
    return sorted(name for name in names if "[Conformance]" in name and "[Serial]" not in name)


def shard(names: Sequence[str], which: str) -> list[str]:
    """Names of one shard, such as ``2/4``. Each n-th name belongs to it, so that shards take about equal time."""
    match = re.fullmatch(r"(\d+)/(\d+)", which)
    number, count = (int(part) for part in match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"shard {which!r} is no K/N with K from 1 to N, such as 1/4")
    return list(names[number - 1 :: count])


def focused(names: Sequence[str], pattern: str) -> list[str]:
    """Names in which the regular expression is found."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"focus {pattern!r} is no regular expression: {error}") from None
    return [name for name in names if expression.search(name)]


def exactly(names: Iterable[str]) -> str:
    """Regular expression for ginkgo that matches these specs and no others.

    Go's syntax: ginkgo puts the name of the suite before the name of a spec, so the expression has no begin.
    """
    quoted = (re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", name) for name in names)
    return f"e2e suite ({'|'.join(quoted)})$"

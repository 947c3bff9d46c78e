"""Pictures of a flow: one of its phases, and one of the tasks of each phase.

The phases are those of the code. A phase begins with a comment below an empty line of the function that builds the
flow; its heading is the first sentence of the comment. Where that function calls another of the same file for each
phase, the heading is the first sentence of the other's docstring. A function without comments builds one phase.
"""

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from workflows.flow import Flow

Phases = dict[str, list[str]]
"""Names of the tasks of each phase, by the phase's heading."""

_MANY = 12
"""A task with more predecessors than this waits for all tasks before it."""


def with_phases(build: Callable[[], Any]) -> tuple[Any, Phases]:
    """The flow that the function builds, and its phases."""
    phases: Phases = {}
    with _recorded(phases):
        flow = build()
    return flow, phases


def drawn(flow: Any, phases: Phases) -> list[str]:
    """Lines of a page: the overview, and a section with a picture for each phase."""
    lines = _fenced(_overview(flow, phases))
    for number, (heading, names) in enumerate(phases.items(), 1):
        lines += ["", f"## {number}. {heading}", "", *_fenced(_tasks(flow, names))]
    return lines


def predecessors(flow: Any, name: str) -> list[str]:
    """A task's predecessors, without those that another of them waits for."""
    after = flow.after(name)
    return [each for each in after if not any(flow.comes_after(other, each) for other in after if other != each)]


@contextmanager
def _recorded(phases: Phases) -> Iterator[None]:
    add = Flow.add

    def record(flow: Any, *arguments: Any, **options: Any) -> Any:
        result = add(flow, *arguments, **options)
        phases.setdefault(_heading(sys._getframe(1)), []).append(flow.names[-1])
        return result

    with patch.object(Flow, "add", record):
        yield


def _heading(caller: FrameType) -> str:
    """Heading of the phase to which the line that adds a task belongs."""
    frames = [each.frame for each in inspect.getouterframes(caller, 0)]
    position = max(index for index, each in enumerate(frames) if _builds_flow(each))
    builder = frames[position]
    file, first = builder.f_code.co_filename, builder.f_code.co_firstlineno
    for number in range(builder.f_lineno, first, -1):
        if linecache.getline(file, number).startswith("    # ") and not linecache.getline(file, number - 1).strip():
            return _first_sentence(_comment(file, number))
    called = frames[position - 1].f_code
    if called.co_filename == file and (heading := _docstring(called)):
        return _first_sentence(heading)
    for number in range(builder.f_lineno, first, -1):
        if linecache.getline(file, number).startswith("    # "):
            return _first_sentence(_comment(file, number))
    return _first_sentence(_docstring(builder.f_code))


def _builds_flow(frame: FrameType) -> bool:
    return frame.f_globals["__name__"].startswith("workflows.") and frame.f_code.co_name.endswith("_flow")


def _docstring(code: CodeType) -> str:
    first = code.co_consts[0]
    return first if isinstance(first, str) else ""


def _comment(file: str, number: int) -> str:
    lines = []
    while (line := linecache.getline(file, number).strip()).startswith("# "):
        lines.append(line.removeprefix("# "))
        number += 1
    return " ".join(lines)


def _first_sentence(text: str) -> str:
    return re.split(r"\.(?:\s|$)|; returns ", inspect.cleandoc(text).replace("\n", " "), maxsplit=1)[0]


def _overview(flow: Any, phases: Phases) -> list[str]:
    """A phase points to each phase with tasks that wait for its tasks, unless another phase lies between."""
    phase_of = {name: number for number, names in enumerate(phases.values(), 1) for name in names}
    before: dict[int, set[int]] = {number: set() for number in range(1, len(phases) + 1)}
    for name, number in phase_of.items():
        before[number] |= {phase_of[each] for each in predecessors(flow, name)} - {number}
    lines = ["flowchart TD"]
    lines += [f'    p{number}["{number}. {_short(heading)}"]' for number, heading in enumerate(phases, 1)]
    for number, earlier in before.items():
        reached = set().union(*(_reachable(before, each) for each in earlier))
        lines += [f"    p{each} --> p{number}" for each in sorted(earlier - reached)]
    return lines


def _short(heading: str) -> str:
    return re.split("[:;]", heading, maxsplit=1)[0]


def _reachable(before: dict[int, set[int]], number: int) -> set[int]:
    """All phases that a phase waits for, directly or not."""
    found: set[int] = set()
    pending = [number]
    while pending:
        for each in before[pending.pop()] - found:
            found.add(each)
            pending.append(each)
    return found


def _tasks(flow: Any, names: list[str]) -> list[str]:
    """Tasks of a phase; tasks of other phases that they wait for are round, skipped tasks are dashed."""
    lines = ["flowchart LR"]
    lines += [f'    {name}["{flow.title(name)}"]' + (":::skipped" if flow.skipped(name) else "") for name in names]
    others: dict[str, str] = {}
    arrows = []
    for name in names:
        earlier = predecessors(flow, name)
        if len(earlier) > _MANY:
            others["everything"], earlier = "all tasks before", ["everything"]
        for each in earlier:
            if each not in names and each != "everything":
                others[each] = flow.title(each)
            arrows.append(f"    {each} --> {name}")
    lines += [f'    {name}(["{title}"]):::other' for name, title in others.items()]
    lines += arrows
    if any(flow.skipped(name) for name in names):
        lines.append("    classDef skipped stroke-dasharray: 4 4,color:#888")
    if others:
        lines.append("    classDef other fill:none,color:#888")
    return lines


def _fenced(picture: list[str]) -> list[str]:
    return ["```mermaid", *picture, "```"]

"""``make chaos``: the whole kill matrix, and the planted faults; a table on the standard output, and JSON in a file.

``python -m tests.chaos [FILE [PART ...]]``: FILE gets the JSON, by default ``build/chaos.json``, after each part that
has ended. Parts are ``Create``, ``Delete`` and ``planted``. With named parts, the results of other parts stay in the
file: a run that was interrupted is continued by the parts that it lacks. The exit code is 1 if the ledger has found a
fault, if a point was not met, or if a planted fault was not found.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from landscape import binaries
from landscape.progress import Progress
from tests.chaos.matrix import BUDGET, OPERATIONS, Result, all_points, falls_of, matrix, percentile
from tests.chaos.plants import PLANTS, planted_points, shows
from tests.chaos.stage import SERVERS, Stage, stage

PLANTED = "planted"
PARTS = (*map(str, OPERATIONS), PLANTED)


async def run(directory: Path, parts: Sequence[str], keep: Callable[[str, Any], None]) -> None:
    """Run these parts. ``keep`` gets each part's name and result as soon as the part has ended."""
    await binaries.ensure(binaries.cluster_tools(), Progress(quiet=True))
    operations = [each for each in OPERATIONS if str(each) in parts]
    async with stage(directory) as made:
        if operations:
            async with made.workers():
                undisturbed = {each: await made.operate(each, seconds=BUDGET) for each in OPERATIONS}
                for each in OPERATIONS:
                    if each not in operations:
                        await made.operate(each, seconds=BUDGET)
                        continue
                    points = all_points(each, undisturbed[each])
                    result = await matrix(made, each, undisturbed[each], points, falls_of(each, SERVERS))
                    _tell(result)
                    keep(str(each), result.row())
        if PLANTED in parts:
            async with made.workers(planted=True):
                keep(PLANTED, await _find_planted(made))


async def _find_planted(made: Stage) -> dict[str, list[str]]:
    """Findings of the ledger for each planted fault."""
    create, delete = OPERATIONS
    undisturbed = await made.operate(create, seconds=BUDGET)
    await made.clean()
    await made.operate(delete, seconds=BUDGET)
    result = await matrix(made, create, undisturbed, planted_points(), {})
    found = {}
    for plant in PLANTS:
        found[plant.__name__] = [str(each) for each in result.findings if shows(plant, each)]
        print(f"planted fault {plant.__name__}: {'; '.join(found[plant.__name__]) or 'NOT FOUND'}", flush=True)
    return found


def summary(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result, from the results of the parts that have run."""
    rows = [parts[str(each)] for each in OPERATIONS if str(each) in parts]
    every = [seconds for row in rows for seconds in row["resumes"].values()]
    return {
        "parts": dict(parts),
        "missing": [each for each in PARTS if each not in parts],
        "kills": sum(row["kills"] + len(row["falls"]) for row in rows),
        "resumeP50Seconds": percentile(every, 50),
        "resumeP95Seconds": percentile(every, 95),
        "findings": sum(len(row["findings"]) for row in rows),
    }


def _tell(result: Result) -> None:
    row = result.row()
    print(f"{row['operation']}: {row['tasks']} tasks, {row['points']} points, {row['kills']} kills, "
          f"{row['effects']} effects; resume p50 {row['resumeP50Seconds']} s, p95 {row['resumeP95Seconds']} s; "
          f"{row['seconds']} s (undisturbed {row['undisturbedSeconds']} s)")  # fmt: skip
    for moment, (number, median, most) in result.by_moment().items():
        print(f"  killed {moment:<8} {number:>3} times; resume p50 {median} s, most {most} s")
    for fall in result.falls:
        text = f"answers after {fall.answers:.1f} s, progress {fall.resumed:.1f} s later"
        print(f"  {fall.server} killed at {fall.task}: {text}")
    for name, texts in (("not met", row["missed"]), ("found", row["findings"])):
        for text in texts:
            print(f"  {name}: {text}")
    sys.stdout.flush()


def main() -> None:
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "build/chaos.json")
    chosen = sys.argv[2:] or PARTS
    if unknown := set(chosen) - set(PARTS):
        sys.exit(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = json.loads(file.read_text())["parts"] if sys.argv[2:] and file.exists() else {}

    def keep(part: str, result: Any) -> None:
        parts[part] = result
        file.write_text(json.dumps(summary(parts), indent=2) + "\n")

    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        asyncio.run(run(Path(directory), chosen, keep))
    whole = summary(parts)
    print(f"{whole['kills']} kills; resume p50 {whole['resumeP50Seconds']} s, p95 {whole['resumeP95Seconds']} s; "
          f"{whole['findings']} findings")  # fmt: skip
    print(f"parts that have not run: {', '.join(whole['missing']) or 'none'}")
    print(f"written to {file}")
    missed = any(each.get("missed") for each in parts.values())
    sys.exit(1 if whole["findings"] or missed or not all(parts.get(PLANTED, {"": True}).values()) else 0)


if __name__ == "__main__":
    main()

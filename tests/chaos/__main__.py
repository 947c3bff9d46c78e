"""``make chaos``: the whole kill matrix, and the planted faults; a table on the standard output, and JSON in a file.

``python -m tests.chaos [FILE]``: FILE gets the JSON, by default ``build/chaos.json``. The exit code is 1 if the ledger
has found a fault, if a point was not met, or if a planted fault was not found.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from landscape import binaries
from landscape.progress import Progress
from tests.chaos.matrix import OPERATIONS, Result, all_points, falls_of, matrix, percentile
from tests.chaos.plants import PLANTS, planted_points, shows
from tests.chaos.stage import SERVERS, stage


async def run(directory: Path) -> dict[str, Any]:
    await binaries.ensure(binaries.cluster_tools(), Progress(quiet=True))
    results: list[Result] = []
    faults: dict[str, list[str]] = {}
    async with stage(directory) as made:
        async with made.workers():
            undisturbed = {each: await made.operate(each, seconds=600) for each in OPERATIONS}
            for each in OPERATIONS:
                points = all_points(each, undisturbed[each])
                results.append(await matrix(made, each, undisturbed[each], points, falls_of(each, SERVERS)))
                _tell(results[-1])
        async with made.workers(planted=True):
            undisturbed = {each: await made.operate(each, seconds=600) for each in OPERATIONS[:1]}
            await made.clean()
            await made.operate(OPERATIONS[1], seconds=600)
            with_faults = await matrix(made, OPERATIONS[0], undisturbed[OPERATIONS[0]], planted_points(), {})
            for plant in PLANTS:
                faults[plant.__name__] = [str(each) for each in with_faults.findings if shows(plant, each)]
                print(f"planted fault {plant.__name__}: {'; '.join(faults[plant.__name__]) or 'NOT FOUND'}", flush=True)
    every = sorted(each for result in results for each in result.resumes.values())
    whole = {
        "operations": [each.row() for each in results],
        "kills": sum(each.killed + len(each.falls) for each in results),
        "resumeP50Seconds": percentile(every, 50),
        "resumeP95Seconds": percentile(every, 95),
        "findings": sum(len(each.findings) for each in results),
        "planted": faults,
    }
    print(f"{whole['kills']} kills; resume p50 {whole['resumeP50Seconds']} s, p95 {whole['resumeP95Seconds']} s; "
          f"{whole['findings']} findings")  # fmt: skip
    return whole


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
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        whole = asyncio.run(run(Path(directory)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(whole, indent=2) + "\n")
    print(f"written to {file}")
    missed = any(each["missed"] for each in whole["operations"])
    sys.exit(1 if whole["findings"] or missed or not all(whole["planted"].values()) else 0)


if __name__ == "__main__":
    main()

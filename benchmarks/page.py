"""The page of all reports in ``docs/benchmarks``: a table of each, and a plot of the ratios to its baseline."""

from pathlib import Path

from benchmarks.report import ROOT, Figure, Report, cells, load

REPORTS = ROOT / "docs/benchmarks"
_HEAD = """\
# Results of the benchmarks

The newest report of each [benchmark](README.md). `make benchmark` runs all of them, and writes this page;
`make benchmark BENCHMARKS="shoot scale"` runs two. A figure is the median of all runs, with the smallest and the
largest value in brackets. Bold figures miss their limit, see [the reasons](README.md#missed-limits).

In a plot, the bar of a figure is as long as it is times as good as its baseline. The line is the baseline itself.
"""


def write(directory: Path) -> None:
    """Write the page of the reports in a directory. Raises InvalidReport."""
    (directory / "results.md").write_text(page(directory))


def page(directory: Path) -> str:
    """Text of the page. Raises InvalidReport."""
    return "\n".join([_HEAD, *(line for path in sorted(directory.glob("*.json")) for line in _section(path))])


def _section(path: Path) -> list[str]:
    report = load(path)
    machine = report.machine
    settings = "".join(f", {name} {value}" for name, value in report.settings.items())
    lines = [
        f"## {report.name}",
        "",
        f"{machine.cores} cores, {machine.memory_mib} MiB, {machine.cpu}; {report.date:%Y-%m-%d}, "
        f"commit {report.revision[:12]}; runs {report.runs}{settings}; [report]({path.name})",
        "",
        f"<!-- rows: {report.name} -->",
        "",
        "| figure | ours | baseline | ratio | limit |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, report.figures),
        "",
        "<!-- end of rows -->",
        "",
    ]
    return lines + _plot(report)


def _row(figure: Figure) -> str:
    name, ours, baseline, ratio, limit = cells(figure)
    if figure.exceeds_limit:
        ours = f"**{ours}**"
    if figure.limit is not None:
        limit += f" {figure.unit}"
    return f"| {name} | {ours} | {baseline} | {ratio} | {limit} |"


def _plot(report: Report) -> list[str]:
    ratios = {each.name: each.ratio for each in report.figures if each.ratio is not None}
    if len(ratios) < 2:
        return []  # the table shows one ratio as well
    names = ", ".join(f'"{name}"' for name in ratios)
    return [
        "```mermaid",
        "xychart-beta horizontal",
        f"    x-axis [{names}]",
        f'    y-axis "times as good as the baseline" 0 --> {max(1.2, *ratios.values()):.1f}',
        f"    bar [{', '.join(f'{each:.2f}' for each in ratios.values())}]",
        f"    line [{', '.join('1' for _ in ratios)}]",
        "```",
        "",
    ]

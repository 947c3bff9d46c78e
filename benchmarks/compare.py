"""Compare two reports of one benchmark: which ratios to the baseline became worse.

    python -m benchmarks.compare base.json head.json [--worse-by 20] [-o json]

Both files are written by ``--output json`` of a benchmark, for example at two revisions. Only ratios are compared: both
parts of a ratio are measured in the same runs, so it differs less between machines than a time does. Exit status: 1 if
a ratio fell by 20 % or more, 2 if the files cannot be compared.
"""

import json
from pathlib import Path

import click

from api.model import ApiModel
from benchmarks.report import InvalidReport, Report, columns, load

WORSE_BY = 20.0
"""Per cent."""


class Change(ApiModel):
    """Ratio of a figure in both reports."""

    name: str
    base: float
    head: float
    per_cent: float
    """Change of the ratio; below zero it became worse."""
    worse: bool


def changes(base: Report, head: Report, worse_by: float = WORSE_BY) -> list[Change]:
    """Changes of all ratios, in the order of the figures. ``worse_by`` is in per cent.

    Raises InvalidReport if the reports are not of the same benchmark with the same settings, or ``head`` lacks a ratio
    of ``base``: a figure that is no longer measured must not count as one that has not changed.
    """
    if base.name != head.name:
        raise InvalidReport(f"the reports are of different benchmarks: {base.name} and {head.name}")
    if base.settings != head.settings:
        names = sorted(base.settings.keys() | head.settings.keys())
        differ = ", ".join(
            f"{name} {base.settings.get(name, 'unset')} and {head.settings.get(name, 'unset')}"
            for name in names
            if base.settings.get(name) != head.settings.get(name)
        )
        raise InvalidReport(f"the reports of {base.name} have different settings: {differ}")
    before = {each.name: each for each in base.figures if each.ratio is not None}
    if not before:
        raise InvalidReport(f"the base report of {base.name} has no ratio: none of its figures has a baseline")
    after = {each.name: each for each in head.figures}
    found = []
    for name, figure in before.items():
        now = after.get(name)
        if now is None or now.ratio is None or figure.ratio is None:
            raise InvalidReport(f"the head report of {base.name} has no ratio for figure {name!r}, the base report has")
        if (now.unit, now.better) != (figure.unit, figure.better):
            raise InvalidReport(
                f"figure {name!r} of {base.name} changed its meaning: {figure.unit}, {figure.better} is better; "
                f"then {now.unit}, {now.better} is better"
            )
        per_cent = round((now.ratio / figure.ratio - 1) * 100, 4)
        found.append(
            Change(name=name, base=figure.ratio, head=now.ratio, per_cent=per_cent, worse=per_cent <= -worse_by)
        )
    return found


@click.command(help="Say which ratios of a benchmark became worse from report BASE to report HEAD.")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("head", type=click.Path(path_type=Path))
@click.option(
    "--worse-by",
    default=WORSE_BY,
    show_default=True,
    type=click.FloatRange(0, 100, min_open=True),
    help="Per cent by which a ratio has to fall to be reported.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(base: Path, head: Path, worse_by: float, output: str) -> None:
    reports = load(base), load(head)
    found = changes(*reports, worse_by)
    worse = [each for each in found if each.worse]
    if output == "json":
        click.echo(json.dumps({"worseBy": worse_by, "changes": [each.model_dump() for each in found]}, indent=2))
    else:
        revisions = " and ".join(each.revision[:12] for each in reports)
        click.echo(f"{reports[0].name}: ratio to the baseline at {revisions}")
        rows = [("figure", "base", "head", "change", "")]
        for each in found:
            sign = "worse" if each.worse else ""
            rows.append((each.name, f"{each.base:.3g}", f"{each.head:.3g}", f"{each.per_cent:+.1f} %", sign))
        click.echo("\n".join(line.rstrip() for line in columns(rows)))
    if reports[0].machine != reports[1].machine:
        click.echo("the machines of the two reports differ: repeat a bad result on one machine", err=True)
    if worse:
        names = ", ".join(each.name for each in worse)
        click.echo(f"{len(worse)} of {len(found)} ratios fell by {worse_by:g} % or more: {names}", err=True)
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Reports of benchmarks are kept in docs/benchmarks, with a page of their tables and plots."""

import os
import sys

import pytest
from click.testing import CliRunner

from benchmarks import page, record
from benchmarks.record import Needs, Recorded
from benchmarks.report import InvalidReport, figure, report_of

from .test_report import BENCHMARKS


def kept(directory, name, *figures, **settings):
    made = report_of(name, 2, figures, settings)
    (directory / f"{name}.json").write_text(made.model_dump_json())
    return made


def command(monkeypatch, *script):
    """Each benchmark is this script."""
    monkeypatch.setattr(Recorded, "command", property(lambda _: (sys.executable, "-c", *script)))


def test_each_benchmark_is_recorded():
    assert sorted(each.name for each in record.ALL) == BENCHMARKS


def test_page_is_that_of_the_reports():
    if os.environ.get("GARDENER_WRITE_DOCS"):
        page.write(page.REPORTS)
    assert (page.REPORTS / "results.md").read_text() == page.page(page.REPORTS)


def test_page_has_a_table_and_a_plot_of_ratios(tmp_path):
    times = figure("api server", "s", [8.0, 9.0], [6.0, 9.0], limit=8.0), figure("deletion", "s", [4.0], [8.0])
    kept(tmp_path, "shoot", *times, figure("cpu", "s", [1.0]))
    text = page.page(tmp_path)

    assert "| api server | **8.5 s (8 to 9)** | 7.5 s (6 to 9) | 0.88 | 8 s |" in text
    assert "| cpu | 1 s | - | - | - |" in text
    assert 'x-axis ["api server", "deletion"]' in text
    assert "bar [0.88, 2.00]" in text


@pytest.mark.parametrize("baseline", [None, [4.0]])
def test_one_ratio_or_none_is_not_plotted(tmp_path, baseline):
    kept(tmp_path, "signal", figure("latency", "ms", [8.0], baseline))

    assert "xychart" not in page.page(tmp_path)


def test_each_report_has_its_section(tmp_path):
    kept(tmp_path, "signal", figure("latency", "ms", [8.0]), events=200)
    kept(tmp_path, "admission", figure("latency", "ms", [8.0]))
    text = page.page(tmp_path)

    assert text.index("## admission") < text.index("## signal")
    assert "runs 2, events 200; [report](signal.json)" in text


def test_file_that_is_no_report_is_named(tmp_path):
    (tmp_path / "shoot.json").write_text("{}")

    with pytest.raises(InvalidReport, match=r"shoot\.json is no report"):
        page.page(tmp_path)


def test_benchmark_that_misses_a_limit_has_a_report(tmp_path, monkeypatch):
    command(monkeypatch, "print('report'); raise SystemExit(1)")

    assert record.run(Recorded("shoot"), tmp_path)
    assert (tmp_path / "shoot.json").read_text() == "report\n"


def test_report_of_a_benchmark_that_fails_stays(tmp_path, monkeypatch):
    command(monkeypatch, "raise SystemExit('no landscape')")
    (tmp_path / "shoot.json").write_text("earlier")

    assert not record.run(Recorded("shoot"), tmp_path)
    assert (tmp_path / "shoot.json").read_text() == "earlier"


def test_benchmark_uses_the_landscape_that_was_brought_up_for_it():
    assert Recorded("shoot", needs=Needs.LANDSCAPE).command[-4:] == ("--landscape", "benchmark", "--output", "json")
    assert "--landscape" not in Recorded("scale").command


def test_unknown_benchmark_is_refused():
    result = CliRunner().invoke(record.main, ["shot"])

    assert result.exit_code == 2
    assert "'shot' is not one of" in result.output

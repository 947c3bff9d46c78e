"""All benchmarks print reports of one format, and two reports of a benchmark can be compared."""

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import (
    admission,
    compare,
    flow_overhead,
    front_door,
    gardenlet,
    operations,
    report,
    resource_manager,
    scale,
    shoot,
    signal,
    temporal,
)
from benchmarks.report import Better, Figure, Report, figure, load, report_of

HELPERS = {"__init__", "api_server", "by_hand", "compare", "cpu", "page", "record", "report", "simulated_seeds"}
BENCHMARKS = sorted(path.stem for path in Path(report.__file__).parent.glob("*.py") if path.stem not in HELPERS)


def written(directory: Path, name: str, *figures: Figure, benchmark: str = "shoot", **settings: int) -> Path:
    path = directory / f"{name}.json"
    path.write_text(report_of(benchmark, 1, figures, settings).model_dump_json())
    return path


def compared(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(compare.main, [str(each) for each in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_prints_a_table_or_json(name):
    command = importlib.import_module(f"benchmarks.{name}").main
    options = {option for each in command.params for option in each.opts}
    assert {"-o", "--output"} <= options


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_names_itself_in_its_report(name):
    """Reports of different benchmarks are never compared."""
    assert f'report_of("{name}", ' in (report.ROOT / "benchmarks" / f"{name}.py").read_text()


def test_ratio_tells_how_many_times_as_good_as_the_baseline():
    assert figure("time", "s", [2.0], [4.0]).ratio == 2
    assert figure("rate", "1/s", [2.0], [4.0], better=Better.HIGHER).ratio == 0.5


def test_ratio_is_that_of_values_measured_beside_each_other():
    """A machine that slows down during the runs changes both values of a run, and not their ratio."""
    assert figure("time", "s", [1.0, 20.0, 3.0], [2.0, 40.0, 6.0]).ratio == 2
    with pytest.raises(ValueError, match="zip"):
        figure("time", "s", [1.0, 2.0], [1.0])


def test_figure_that_is_zero_has_no_ratio():
    assert figure("writes", "writes", [0.0], [4.0]).ratio is None
    assert figure("writes", "writes", [4.0], [0.0]).ratio is None


def test_tiny_ratio_is_not_rounded_to_zero():
    assert figure("time", "s", [1e6], [1e-3]).ratio == 1e-9


def test_figure_has_median_and_spread():
    made = figure("time", "s", [3.0, 1.0, 9.0])
    assert (made.ours.median, made.ours.min, made.ours.max) == (3, 1, 9)
    assert made.baseline is None


@pytest.mark.parametrize(
    ("better", "values"), [(Better.LOWER, {9: False, 10: False, 11: True}), (Better.HIGHER, {9: True, 10: False})]
)
def test_limit_is_the_worst_median_that_is_accepted(better, values):
    for value, exceeded in values.items():
        assert figure("any", "s", [value], better=better, limit=10).exceeds_limit is exceeded


def test_report_names_machine_revision_and_date():
    made = report_of("shoot", 3, [figure("time", "s", [1.0])], {})
    head = subprocess.run(("git", "-C", report.ROOT, "rev-parse", "HEAD"), capture_output=True, text=True)
    if head.returncode == 0:
        assert made.revision.removesuffix("-dirty") == head.stdout.strip()
    assert made.date.utcoffset() is not None
    assert made.machine.memory_mib > 100
    assert made.machine.cpu
    assert made.machine.kernel


def committed(directory, name):
    """Revision of a new repository with one file."""

    def git(*arguments):
        subprocess.run(
            ("git", "-C", directory, "-c", "user.name=a", "-c", "user.email=a@b.test", *arguments), check=True
        )

    git("init", "-q")
    (directory / name).write_text("one")
    git("add", name)
    git("commit", "-q", "-m", "One")
    return report.revision(directory)


def test_revision_tells_of_changed_files(tmp_path):
    assert report.revision(tmp_path / "missing") == "unknown"
    commit = committed(tmp_path, "file")
    assert len(commit) == 40
    (tmp_path / "file").write_text("two")
    assert report.revision(tmp_path) == f"{commit}-dirty"


def test_revision_does_not_tell_of_changed_documents(tmp_path):
    """A run of several benchmarks writes a report there after each of them."""
    (tmp_path / "docs").mkdir()
    commit = committed(tmp_path, "docs/report.json")
    (tmp_path / "docs/report.json").write_text("two")

    assert report.revision(tmp_path) == commit


def test_json_is_read_back(tmp_path, capsys):
    made = report_of("shoot", 2, [figure("time", "s", [1.0, 2.0], [2.0, 3.0])], {"objects": 5})
    report.emit(made, "json")
    path = tmp_path / "report.json"
    path.write_text(capsys.readouterr().out)
    assert load(path) == made
    [shown] = json.loads(path.read_text())["figures"]
    assert shown["ours"] == {"median": 1.5, "min": 1.0, "max": 2.0}
    assert shown["baseline"] == {"median": 2.5, "min": 2.0, "max": 3.0}


def test_table_has_a_line_for_each_figure():
    made = report_of("shoot", 2, [figure("time", "s", [1.0, 2.0], [2.0, 4.0], limit=8), figure("cpu", "s", [3.0])], {})
    lines = report.table(made).splitlines()
    assert lines[-2].split() == ["time", "1.5", "s", "(1", "to", "2)", "3", "s", "(2", "to", "4)", "2.00", "8"]
    assert lines[-1].split() == ["cpu", "3", "s", "-", "-", "-"]


def test_figure_beyond_its_limit_ends_with_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        report.emit(report_of("shoot", 1, [figure("time", "s", [9.0], limit=8)], {}), "json")
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "time: 9 s > limit 8" in printed.err
    assert json.loads(printed.out)["name"] == "shoot"


def test_output_of_other_programs_is_not_part_of_the_report():
    """A Temporal server, which a benchmark starts, writes to standard output when it starts."""
    program = (
        "import os, subprocess\n"
        "from benchmarks.report import other_output_on_stderr\n"
        "with other_output_on_stderr():\n"
        "    subprocess.run(['echo', 'of a child'], check=True)\n"
        "    print('of the process')\n"
        "print('report')\n"
    )
    done = subprocess.run((sys.executable, "-c", program), cwd=report.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "report\n"
    assert done.stderr == "of a child\nof the process\n"


def test_cpu_model_is_read_where_the_kernel_tells_it():
    assert report._cpu_model("processor\t: 0\nmodel name\t: Abacus 9\nmodel name\t: Other\n") == "Abacus 9"
    assert report._cpu_model("processor\t: 0\nCPU implementer\t: 0x41\n") is None


@pytest.mark.parametrize(("after", "status"), [(0.79, 1), (0.8, 1), (0.81, 0), (1.0, 0), (3.0, 0)])
def test_ratio_that_fell_by_a_fifth_is_reported(tmp_path, after, status):
    base = written(tmp_path, "base", figure("rate", "1/s", [1.0], [1.0], better=Better.HIGHER))
    head = written(tmp_path, "head", figure("rate", "1/s", [after], [1.0], better=Better.HIGHER))
    code, printed = compared(base, head)
    assert code == status
    assert ("1 of 1 ratios fell by 20 % or more: rate" in printed) == bool(status)


def test_slower_machine_is_not_worse_code(tmp_path):
    """Ours and the baseline take three times as long on the other machine."""
    base = written(tmp_path, "base", figure("time", "s", [1.0], [2.0]))
    head = written(tmp_path, "head", figure("time", "s", [3.0], [6.0]))
    assert compared(base, head)[0] == 0


def test_time_that_became_longer_is_worse(tmp_path):
    base = written(tmp_path, "base", figure("time", "s", [1.0], [2.0]), figure("other", "s", [1.0], [1.0]))
    head = written(tmp_path, "head", figure("time", "s", [1.5], [2.0]), figure("other", "s", [1.0], [1.0]))
    code, printed = compared(base, head)
    assert code == 1
    [line] = [line for line in printed.splitlines() if line.startswith("time")]
    assert line.split() == ["time", "2", "1.33", "-33.3", "%", "worse"]


def test_threshold_can_be_given(tmp_path):
    base = written(tmp_path, "base", figure("time", "s", [1.0], [1.0]))
    head = written(tmp_path, "head", figure("time", "s", [1.08], [1.0]))
    assert compared(base, head)[0] == 0
    assert compared(base, head, "--worse-by", "5")[0] == 1
    assert compared(base, head, "--worse-by", "0")[0] == 2


def test_comparison_as_json(tmp_path):
    base = written(tmp_path, "base", figure("time", "s", [1.0], [1.0]))
    head = written(tmp_path, "head", figure("time", "s", [2.0], [1.0]))
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.compare", base, head, "-o", "json"),
        cwd=report.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "worseBy": 20.0,
        "changes": [{"name": "time", "base": 1.0, "head": 0.5, "perCent": -50.0, "worse": True}],
    }


def test_other_machine_is_named(tmp_path):
    base = written(tmp_path, "base", figure("time", "s", [1.0], [1.0]))
    content = json.loads(base.read_text())
    content["machine"]["cores"] += 1
    head = tmp_path / "head.json"
    head.write_text(json.dumps(content))
    code, printed = compared(base, head)
    assert code == 0
    assert "machines of the two reports differ" in printed


def test_reports_that_do_not_belong_together_are_refused(tmp_path):
    """Such a comparison would find nothing, as if nothing had become worse."""
    timed = figure("time", "s", [1.0], [1.0])
    base = written(tmp_path, "base", timed, objects=5)
    for head, message in (
        (written(tmp_path, "a", timed, benchmark="signal", objects=5), "different benchmarks: shoot and signal"),
        (written(tmp_path, "b", timed, objects=6), "different settings: objects 5 and 6"),
        (written(tmp_path, "c", timed), "different settings: objects 5 and unset"),
        (written(tmp_path, "d", figure("other", "s", [1.0], [1.0]), objects=5), "no ratio for figure 'time'"),
        (written(tmp_path, "e", figure("time", "s", [1.0]), objects=5), "no ratio for figure 'time'"),
        (written(tmp_path, "f", figure("time", "ms", [1.0], [1.0]), objects=5), "changed its meaning"),
    ):
        code, printed = compared(base, head)
        assert (code, message in printed) == (2, True), printed


def test_benchmark_without_a_baseline_cannot_be_compared(tmp_path):
    path = written(tmp_path, "base", figure("p50", "ms", [1.0]), benchmark="signal")
    code, printed = compared(path, path)
    assert code == 2
    assert "none of its figures has a baseline" in printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("machine"), "machine: Field required"),
        (lambda content: content.update(figures=[]), "figures: "),
        (lambda content: content["figures"][0]["ours"].update(median="fast"), "figures.0.ours.median: "),
        (lambda content: content["figures"][0]["ours"].update(median=math.nan), "figures.0.ours.median: "),
        (lambda content: content["figures"][0].update(ratio=0), "figures.0.ratio: "),
        (lambda content: content["figures"].append(content["figures"][0]), "more than one figure has the name time"),
        (lambda content: content.update(color="red"), "color: "),
        (lambda content: content.update(version=2), "version 2 of the format, must be 1"),
    ],
)
def test_broken_report_is_refused_with_file_and_field(tmp_path, change, message):
    path = written(tmp_path, "base", figure("time", "s", [1.0], [1.0]))
    content = json.loads(path.read_text())
    change(content)
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(content))
    code, printed = compared(path, broken)
    assert code == 2
    assert str(broken) in printed
    assert message in printed


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"time 3 s", "Invalid JSON"), (b"\xff", "no report"), (b"[]", "")]
)
def test_file_that_is_no_report_is_refused(tmp_path, content, message):
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    code, printed = compared(path, path)
    assert code == 2
    assert str(path) in printed
    assert message in printed
    assert "Traceback" not in printed


def valid(figures: list[Figure]) -> dict[str, Figure]:
    """Figures by name. All of them fit into one report."""
    made = report_of("any", 1, figures, {})
    assert Report.model_validate_json(made.model_dump_json()) == made
    return {each.name: each for each in figures}


def test_figures_of_admission():
    found = valid(admission.figures([0.001] * 98 + [0.1] * 2, [0.002] * 100))
    assert found["p50"].ours.median == 1
    assert found["seed authorizer p50"].ours.median == 2
    assert found["p99"].exceeds_limit


def test_figures_of_signal():
    counts = {0.01: 90.0, 0.05: 98.0, 0.1: 100.0, math.inf: 100.0}
    assert {name: each.ours.median for name, each in valid(signal.figures(counts)).items()} == {
        "p50, at most": 10,
        "p90, at most": 10,
        "p99, at most": 100,
    }
    with pytest.raises(click.ClickException, match="largest bound"):
        signal.figures({0.1: 90.0, math.inf: 100.0})


def test_figures_of_many_shoots():
    counts = {0.01: 150.0, 0.05: 199.0, math.inf: 200.0}
    memory = {"Temporal": 1000.0, "controller-manager": 500.0}
    cpu, stored = {"etcd": 100.0}, {"etcd": 40.0}
    measured = scale.Measured(
        600.0, 500.0, cpu, 200, 102400, stored, counts, memory, alone=4.0, beside=5.0, scheduled=2.0
    )
    found = valid(scale.figures(measured, 1000))
    assert found["creation, for each Shoot"].ours.median == 600
    assert not found["reconciliation, for each Shoot"].exceeds_limit
    assert found["event to signal p99, at most"].ours.median == 50
    assert found["memory of both"].ours.median == 1500
    assert found["CPU time of etcd, for each reconciliation"].ours.median == 100
    assert found["history of a reconciliation"].ours.median == 100
    beside = found["reconciliation p99 beside a poisoned project"]
    assert beside.ratio == 0.8
    assert beside.exceeds_limit


def test_figures_of_a_flow():
    found = valid(flow_overhead.figures({"flow": [2.0, 2.0], "hand": [1.0, 1.0]}, {"flow": 500, "hand": 400}))
    assert found["flow of 90 tasks"].ratio == 0.5
    assert found["flow of 90 tasks"].exceeds_limit
    assert found["events in the history"].ratio == 0.8


def test_figures_of_the_front_door():
    found = valid(front_door.figures({"get": {"with": [[0.004] * 9], "without": [[0.003] * 9]}}))
    assert found.keys() == {"get p50", "get p99"}
    assert found["get p50"].ours.median == 4
    assert found["get p50"].ratio == 0.75


def test_figures_of_a_gardenlet():
    found = valid(gardenlet.figures(gardenlet.Cost(1.0, 100.0, 80.0), gardenlet.Cost(1.0, 200.0, 80.0)))
    assert found["requests per minute"].ratio == 0.5
    assert found["memory"].ratio == 1


def test_figures_of_a_resource_manager():
    one = resource_manager.Figures(
        apply_seconds=5.0, kubectl_seconds=6.0, memory_mib=130.0, idle_millicores=13.0, idle_writes=0.0
    )
    found = valid(resource_manager.figures([one]))
    assert found["apply"].ratio == 1.2
    assert [name for name, each in found.items() if each.exceeds_limit] == ["memory"]
    limits = {each.limit for each in found.values()}
    assert limits == set(resource_manager.LIMITS.values())


def test_figures_of_operations():
    """Each operation is compared with what its pods need for the same."""
    ours = dict.fromkeys(operations.BASELINES, 60.0)
    by_hand = {"start": 8.0, "stop": 12.0, "resume": 6.0, "remove": 20.0}
    found = valid(operations.figures([(ours, by_hand)]))
    assert {name: each.baseline.median for name, each in found.items() if each.baseline} == {
        "hibernation": 12,
        "wake-up": 6,
        "rotation, first phase": 18,
        "rotation, second phase": 18,
        "move": 28,
    }
    assert found["wake-up"].ratio == 0.1


def test_figures_of_a_creation():
    seconds = {"api server": 8.0, "deletion": 20.0, "by hand": 6.0, "removal by hand": 15.0}
    runs = [
        shoot.Creation(seconds, {"node ready": {"kubelet": 2.0, "sh": 0.01}}),
        shoot.Creation(seconds, {"node ready": {"etcd": 4.0, "kubelet": 2.0}}),
    ]
    found = valid(shoot.figures(runs))
    assert list(found) == [
        "api server",
        "deletion",
        "CPU until node ready",
        "CPU until node ready: etcd",
        "CPU until node ready: kubelet",
    ]
    assert found["api server"].ratio == 0.75
    assert found["deletion"].ratio == 0.75
    assert found["CPU until node ready: etcd"].ours.median == 2  # the other run did not see it


def test_figures_of_temporal_servers():
    servers = {"dev server": ([50.0], [4000.0]), "cluster": ([100.0], [2000.0])}
    found = valid(temporal.figures({name: temporal.Measured(*values) for name, values in servers.items()}))
    assert {name: each.ratio for name, each in found.items()} == {
        "cluster: activity": 0.5,
        "cluster: flows of 90 tasks": 0.5,
    }

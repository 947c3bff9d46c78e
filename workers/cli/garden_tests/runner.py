"""Run tests one after the other: outcome and time of each, and a dump of all clusters after each failure."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from api.model import ApiModel
from kube.errors import ApiError
from workers.cli.garden_tests.context import Context
from workers.cli.garden_tests.dump import Dump
from workers.cli.garden_tests.model import GardenTest, TestFailed, TestSkipped

_DUMP_SECONDS = 300.0
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Result(ApiModel):
    """Result of one test."""

    name: str
    labels: tuple[str, ...]
    outcome: Outcome
    seconds: float
    text: str = ""
    """Why it failed or was skipped."""
    dump: str | None = None
    """Directory with the state of the clusters after the failure."""


Tell = Callable[[Result], None]
Begin = Callable[[GardenTest], None]


class Runner:
    """Runs the tests of one run, and keeps their results, also those until an interruption."""

    def __init__(self, context: Context, dumps: Path, tell: Tell, begin: Begin = lambda _: None) -> None:
        self.context = context
        self.results: list[Result] = []
        self._dumps = dumps
        self._tell = tell
        self._begin = begin

    @property
    def failed(self) -> bool:
        return any(each.outcome is Outcome.FAILED for each in self.results)

    async def run(self, tests: Sequence[GardenTest]) -> None:
        for test in tests:
            await self.run_one(test)

    async def run_one(self, test: GardenTest) -> Outcome:
        """Run a test. Faults of the test's own code fail it, too."""
        self._begin(test)
        started = time.monotonic()
        outcome, text = Outcome.PASSED, ""
        timeout = asyncio.timeout(test.timeout)
        try:
            async with timeout:
                await test.body(self.context)
        except TestSkipped as reason:
            outcome, text = Outcome.SKIPPED, str(reason)
        except (TestFailed, ApiError) as error:
            outcome, text = Outcome.FAILED, str(error)
        except TimeoutError as error:
            outcome = Outcome.FAILED
            text = f"no end within {test.timeout:g} s" if timeout.expired() else f"TimeoutError: {error}"
        except Exception as error:
            outcome, text = Outcome.FAILED, f"{type(error).__name__}: {error}"
        took = round(time.monotonic() - started, 1)
        dump = await self._dump(test) if outcome is Outcome.FAILED else None
        self.note(test, outcome, text, took, dump)
        return outcome

    def note(self, test: GardenTest, outcome: Outcome, text: str, seconds: float = 0, dump: str | None = None) -> None:
        labels = tuple(str(each) for each in sorted(test.labels))
        result = Result(
            name=test.name,
            labels=labels,
            outcome=outcome,
            seconds=seconds,
            text=text,
            dump=dump,
        )
        self.results.append(result)
        self._tell(result)

    async def _dump(self, test: GardenTest) -> str:
        """Write what can be read of all clusters; what cannot is named in the dump. Returns its directory."""
        context = self.context
        slug = re.sub(r"[^a-z0-9]+", "-", test.name.lower()).strip("-")
        dump = Dump(self._dumps / f"{len(self.results) + 1:02}-{slug}")
        try:
            async with asyncio.timeout(_DUMP_SECONDS):
                await dump.read_garden(context.garden, context.namespace)
                try:
                    live = await context.live()
                    if context.seed is not None and (namespace := (live.get("status") or {}).get("technicalID")):
                        await dump.read_seed(context.seed, namespace)
                    await dump.read_cluster(await context.cluster())
                except Exception as error:  # a cluster that is down is often the reason for the failure
                    dump.fault("the Shoot", error)
        except TimeoutError as error:
            dump.fault(f"all within {_DUMP_SECONDS:g} s", error)
        try:
            dump.write()
        except OSError as error:
            return f"not written: {error}"
        return str(dump.directory)


def junit(results: Sequence[Result], name: str) -> str:
    """Results as the XML of JUnit, which CI systems read. ``name``: of the suite."""
    counts = {outcome: sum(each.outcome is outcome for each in results) for outcome in Outcome}
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(results)),
        failures=str(counts[Outcome.FAILED]),
        skipped=str(counts[Outcome.SKIPPED]),
        time=f"{sum(each.seconds for each in results):.1f}",
    )
    for each in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=".".join(each.labels), name=each.name, time=f"{each.seconds:.1f}"
        )
        text = _NOT_IN_XML.sub("?", each.text)
        if each.outcome is Outcome.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=text)
            failure.text = f"{text}\ndump: {each.dump}" if each.dump else text
        elif each.outcome is Outcome.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=text)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)

"""Interventions as annotations: read, or refused with what is missing."""

import pytest

from api.contracts.operations import TaskResult
from api.contracts.repair import Action, Repair, asked, faults, without

PREFIX = "repair.shoot.gardener.cloud/"


@pytest.mark.parametrize(
    ("name", "text", "repair", "said"),
    [
        ("skip", "wait_worker: no machines: full", Repair(action=Action.SKIP, task="wait_worker",
         reason="no machines: full", by="olga"), "olga skipped wait_worker: no machines: full"),
        ("reset", "wait_etcds:restored", Repair(action=Action.RESET, task="wait_etcds", reason="restored", by="olga"),
         "olga reset the operation to before wait_etcds: restored"),
        ("retry-from", "wait_etcds", Repair(action=Action.RETRY, task="wait_etcds", by="olga"),
         "olga retried from wait_etcds"),
        ("pause", "storm", Repair(action=Action.PAUSE, reason="storm", by="olga"), "olga paused: storm"),
        ("resume", "", Repair(action=Action.RESUME, by="olga"), "olga resumed"),
        ("cancel", "storm", Repair(action=Action.CANCEL, reason="storm", by="olga"), "olga canceled: storm"),
        ("provide", '{"task": "x", "reason": "by hand", "result": {"secrets": ["ca"]}}',
         Repair(action=Action.PROVIDE, task="x", reason="by hand", result=TaskResult(secrets=("ca",)), by="olga"),
         "olga provided the result of x: by hand"),
    ],
)  # fmt: skip
def test_an_annotation_is_read(name: str, text: str, repair: Repair, said: str) -> None:
    annotations = {PREFIX + name: text, PREFIX + "by": "olga"}
    assert asked(annotations) == (repair,)
    assert f"{repair}" == said
    assert faults(annotations) == {}


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"task": "x", "result": {"secret": "s3cr3t"}}', "null"])
def test_what_is_no_result_is_said_without_repeating_it(text: str) -> None:
    [fault] = faults({PREFIX + "provide": text}).values()
    assert fault.startswith("must have the form")
    assert "s3cr3t" not in fault


def test_the_author_goes_with_the_last_wish() -> None:
    annotations = {PREFIX + "skip": "a:b", PREFIX + "pause": "c", PREFIX + "by": "olga"}
    assert without(annotations, PREFIX + "skip") == {PREFIX + "skip": None}
    del annotations[PREFIX + "skip"]
    assert without(annotations, PREFIX + "pause") == {PREFIX + "pause": None, PREFIX + "by": None}

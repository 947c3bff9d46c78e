"""Tests of a garden are selected by their labels, as GEP-9 has it."""

import pytest

from workers.cli.garden_test import TESTS
from workers.cli.garden_tests.context import Context
from workers.cli.garden_tests.model import GardenTest, Label, garden_test, selected


async def _body(_: Context) -> None:
    """Nothing."""


def made(name: str, *labels: Label) -> GardenTest:
    return garden_test(name, *labels, timeout=1)(_body)


ALL = [
    made("breaks", Label.DEFAULT, Label.DISRUPTIVE),
    made("alone", Label.RELEASE, Label.SERIAL),
    made("both", Label.RELEASE, Label.SERIAL, Label.DISRUPTIVE),
    made("new", Label.BETA),
    made("quick", Label.DEFAULT),
    made("late", Label.RELEASE),
]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("default", ["quick"]),
        ("beta", ["new", "quick"]),
        ("release", ["new", "quick", "late"]),
        ("default beta", ["new", "quick"]),
        ("default disruptive", ["quick", "breaks"]),
        ("release serial", ["new", "quick", "late", "alone"]),
        ("release serial disruptive", ["new", "quick", "late", "alone", "breaks", "both"]),
        ("serial", ["alone"]),
        ("disruptive", ["breaks"]),
        ("serial disruptive", ["alone", "breaks", "both"]),
    ],
)
def test_levels_include_the_levels_before_and_traits_are_asked_for(labels, names):
    """A test that takes away machines never runs because of its level alone."""
    assert [each.name for each in selected(ALL, [Label(each) for each in labels.split()])] == names


@pytest.mark.parametrize("labels", [(), (Label.SERIAL,), (Label.DEFAULT, Label.BETA)])
def test_test_without_exactly_one_level_is_refused(labels):
    with pytest.raises(ValueError, match="exactly one of the labels"):
        made("any", *labels)


def test_default_tests_change_nothing_of_the_shoot():
    assert not any(each.traits for each in selected(TESTS, [Label.DEFAULT]))


def test_names_of_tests_are_unique():
    names = [each.name for each in TESTS]
    assert len(names) == len(set(names))


def test_labels_are_shown_in_their_order():
    assert str(made("any", Label.DISRUPTIVE, Label.SERIAL, Label.BETA)) == "[beta] [serial] [disruptive] any"

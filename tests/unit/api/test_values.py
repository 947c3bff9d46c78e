"""Quantities, durations and booleans mean for us what they mean for Kubernetes and for Go."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from api.core.v1beta1.shoot import Shoot
from api.durations import parse_duration
from api.labels import is_true
from api.quantities import parse_quantity
from tests.unit.api.shoots import changed, complete


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8Gi", 8 << 30),
        ("1.5Ki", 1536),
        ("5k", 5000),
        ("100M", 100_000_000),
        ("2Ei", 2 << 60),
        ("2E", 2 * 10**18),
        ("12E3", 12_000),
        ("1e3", 1000),
        ("500m", Decimal("0.5")),
        ("250u", Decimal("0.00025")),
        (".5", Decimal("0.5")),
        ("-1", -1),
        (7, 7),
        (0.5, Decimal("0.5")),
    ],
)
def test_quantity_is_the_number_that_kubernetes_reads(text, number):
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "5 Gi", "5K", "5kB", "five", "5e", "1.2.3"])
def test_text_that_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h30m", 5400),
        ("5m0.5s", 300.5),
        ("250ms", 0.25),
        (".5s", 0.5),
        ("1.h", 3600),
        ("-5m", -300),
        ("+5m", 300),
        ("0", 0),
    ],
)
def test_duration_is_the_time_that_go_reads(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "five", "5 m", "m", ".s", "1d", "--5m"])
def test_text_that_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_annotation_is_true_as_for_gos_parse_bool(text):
    assert is_true(text)


@pytest.mark.parametrize("text", [None, "", "0", "false", "yes", "tRUE", "tRuE", " true"])
def test_annotation_with_another_text_is_not_true(text):
    """A force-deletion that one component reads as confirmed and another one not would stop half way."""
    assert not is_true(text)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("spec.provider.workers.0.machineControllerManager", {"machineDrainTimeout": "9999999h"}, "290 years"),
        ("metadata.creationTimestamp", "2026-11-25T12:00:00", "has no time zone"),
        ("metadata.creationTimestamp", "::/0", "Invalid isoformat string"),
    ],
)
def test_a_model_is_as_strict_as_the_schema_about_times_and_durations(path: str, value: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        Shoot.of(changed(complete().to_wire(), path, value))

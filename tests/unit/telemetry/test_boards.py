"""Boards and alerts ask for what our processes measure: each query is parsed, its metrics and labels looked up."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from tests.front_door import METRICS as OF_FRONT_DOOR
from tests.unit.telemetry.test_metrics import PROJECT, SEED, SHOOT
from workers.admission import process as admission
from workers.controller_manager import metrics as garden
from workers.controller_manager.watchers import shoots
from workers.lib import codec, reviews, webhook_clients
from workers.lib.metrics import flows, requests
from workers.subresources import app as subresources
from workers.subresources import limits

CHARTS = Path(__file__).parents[3] / "charts"
BOARDS = sorted(CHARTS.glob("*/dashboards/*.json"))
RULES = sorted(CHARTS.glob("*/rules/*.yaml"))
_SUFFIXES = {Histogram: ("_bucket", "_count", "_sum"), Counter: ("_total",), Gauge: ("",)}
_MODULES = (flows, requests, shoots, reviews, admission, codec, webhook_clients, subresources, limits)
"""Where metrics are made; importing them registers them."""
FROM_SCRAPE = {"instance", "job", "namespace", "pod"}
"""Labels that Prometheus itself adds."""


def measured() -> dict[str, set[str]]:
    """Labels by name of all that our processes serve."""
    found: dict[str, set[str]] = {"up": set()} | OF_FRONT_DOOR
    assert all(_MODULES)
    for collector in list(REGISTRY._collector_to_names):
        for kind, suffixes in _SUFFIXES.items():
            if isinstance(collector, kind):
                labels = {*collector._labelnames, *({"le"} if kind is Histogram else ())}
                found |= {f"{collector._name}{suffix}": labels for suffix in suffixes}
    for family in garden.families([SHOOT], [SEED], [PROJECT]):
        found[family.name] = set(family._labelnames)  # type: ignore[attr-defined]
    return found


MEASURED = measured()


def queries() -> Iterator[tuple[str, str]]:
    for path in BOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
    for path in RULES:
        for group in yaml.safe_load(path.read_text()):
            for rule in group["rules"]:
                yield f"{path.parent.parent.name}: {rule['alert']}", rule["expr"]


QUERIES = dict(queries())


def selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Name and labels of each selector of a query, and labels of each grouping."""
    match node:
        case promql.VectorSelector():
            yield node.name or "", {each.name for each in node.matchers.matchers}
        case promql.MatrixSelector():
            yield from selectors(node.vector_selector)
        case promql.AggregateExpr():
            inner = list(selectors(node.expr))
            grouping = set(node.modifier.labels) if node.modifier else set()
            yield from [(name, labels | grouping) for name, labels in inner]
        case promql.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql.Call():
            for each in node.args:
                yield from selectors(each)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from selectors(node.expr)


@pytest.mark.parametrize("title", QUERIES)
def test_a_query_uses_existing_metrics(title: str) -> None:
    tree = promql.parse(QUERIES[title])
    found = list(selectors(tree))

    assert found, "it asks for nothing"
    for name, labels in found:
        assert name in MEASURED, f"no process measures {name}"
        unknown = labels - MEASURED[name] - FROM_SCRAPE
        assert not unknown, f"{name} has no labels {unknown}"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_board_fits_together(path: Path) -> None:
    """No panel over another, no legend of a label that the query drops, no variable that is not there."""
    board = json.loads(path.read_text())
    panels = board["panels"]
    places = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}
    variables = {each["name"] for each in board["templating"]["list"]}
    for each in board["templating"]["list"]:
        if each["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]).groups()  # type: ignore[union-attr]
            assert label in MEASURED[name]

    assert len(places) == len({each["id"] for each in panels}) == len(panels)
    for each in panels:
        for target in each["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            known = set().union(*(MEASURED[name] for name, _ in selectors(promql.parse(target["expr"]))))
            assert legend <= known, each["title"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables


def test_an_alert_names_a_remedy() -> None:
    for path in RULES:
        for group in yaml.safe_load(path.read_text()):
            for rule in group["rules"]:
                annotations = rule["annotations"]
                assert rule["labels"]["severity"] in ("warning", "critical")
                assert annotations["summary"]
                assert annotations["description"]
                known = set().union(*(MEASURED[name] for name, _ in selectors(promql.parse(rule["expr"]))))
                said = set(re.findall(r"\$labels\.(\w+)", str(annotations)))
                assert said <= known | FROM_SCRAPE, rule["alert"]


def test_the_documents_list_all_metrics() -> None:
    text = (CHARTS.parent / "docs/observability.md").read_text()
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in MEASURED if name != "up"}

    assert sorted(name for name in names if f"`{name}`" not in text) == []

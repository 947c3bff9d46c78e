"""docs/security.md lists each attack, and says for each actor and asset which attacks stand for their boundary."""

from itertools import product
from pathlib import Path

from tests.pages import check_table
from tests.security.attacks import ACTORS, ASSETS, Attack, attacks

_OPERATOR = "no path: the operator chooses images and modules"
_BY_TEMPORAL = "no path but Temporal's (A5): tasks name objects, and workers check whose they are"
NO_ATTACK = {
    ("T2", "A1"): "no path: a node has no credentials for the garden",
    ("T2", "A4"): "no path: a node has no credentials for the object store",
    ("T2", "A6"): "no path: a node reaches the gateway as each client does",
    ("T4", "A3"): "by right: an extension serves all Shoots of its seed",
    ("T4", "A4"): "by right: an extension serves the backups of its seed",
    ("T4", "A6"): "by right: an extension serves the DNSRecords of its seed",
    ("T5", "A1"): _BY_TEMPORAL,
    ("T5", "A2"): _BY_TEMPORAL,
    ("T5", "A3"): _BY_TEMPORAL,
    ("T5", "A4"): _BY_TEMPORAL,
    ("T5", "A6"): _BY_TEMPORAL,
    **{(actor, "A7"): _OPERATOR for actor in ACTORS if actor != "T2"},
}
"""Reason, for each actor and asset without an attack: there is no path, or the path is out of scope."""


def test_page_lists_each_attack() -> None:
    """A boundary that is described without a test would be a promise that nothing keeps."""
    rows = [[each.actor, each.asset, str(each.finding), each.sentence, _link(each)] for each in attacks()]

    check_table("security.md", "attacks", rows)


def test_page_says_for_each_actor_and_asset_what_stands_for_the_boundary() -> None:
    by_cell: dict[tuple[str, str], list[Attack]] = {}
    for attack in attacks():
        by_cell.setdefault((attack.actor, attack.asset), []).append(attack)

    rows = [[actor, *(_cell(by_cell, actor, asset) for asset in ASSETS)] for actor in ACTORS]
    check_table("security.md", "cells", rows)


def test_a_boundary_with_an_attack_has_no_reason() -> None:
    """A reason that says there is no path is wrong as soon as an attack tries the path."""
    attacked = {(each.actor, each.asset) for each in attacks()}

    assert attacked.isdisjoint(NO_ATTACK)
    assert attacked | set(NO_ATTACK) == set(product(ACTORS, ASSETS))


def _cell(by_cell: dict[tuple[str, str], list[Attack]], actor: str, asset: str) -> str:
    found = by_cell.get((actor, asset))
    if not found:
        return NO_ATTACK[actor, asset]
    files = sorted({each.file for each in found})
    links = (f"[{Path(file).stem.removeprefix('test_')}](../tests/{file})" for file in files)
    return f"{len(found)}: {', '.join(links)}"


def _link(attack: Attack) -> str:
    return f"[{Path(attack.file).name}](../tests/{attack.file})"

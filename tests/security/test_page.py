"""docs/security.md lists each attack, and says for each actor and asset which attacks stand for their boundary."""

from itertools import product

from tests.pages import check_table
from tests.security.attacks import ACTORS, ASSETS, Attack, attacks

NO_PATH = {
    ("T1", "A4"): "no access: members of a project cannot read BackupBuckets or their Secrets",
    ("T1", "A7"): "no access: images and modules are chosen by the operator",
    ("T2", "A1"): "no access: a node has no credentials for the garden",
    ("T2", "A4"): "no access: a node has no credentials for the object store",
    ("T2", "A7"): "no access: images and modules are chosen by the operator",
    ("T3", "A7"): "no access: images and modules are chosen by the operator",
    ("T4", "A7"): "no access: images and modules are chosen by the operator",
    ("T5", "A7"): "no access: images and modules are chosen by the operator",
}
"""Why an actor has no path to an asset, where no attack stands for the two."""


def test_page_lists_each_attack() -> None:
    """A boundary that is described without a test would be a promise that nothing keeps."""
    rows = [[each.actor, each.asset, str(each.finding), each.sentence, _link(each)] for each in attacks()]

    check_table("security.md", "attacks", rows)


def test_page_says_for_each_actor_and_asset_what_stands_for_the_boundary() -> None:
    by_cell: dict[tuple[str, str], list[Attack]] = {}
    for attack in attacks():
        by_cell.setdefault((attack.actor, attack.asset), []).append(attack)

    check_table("security.md", "cells", [[actor, *(_cell(by_cell, actor, asset) for asset in ASSETS)] for actor in ACTORS])


def test_no_reason_stands_where_an_attack_does() -> None:
    """A reason that says there is no path is wrong as soon as an attack tries the path."""
    attacked = {(each.actor, each.asset) for each in attacks()}

    assert attacked <= set(product(ACTORS, ASSETS))
    assert attacked.isdisjoint(NO_PATH)


def _cell(by_cell: dict[tuple[str, str], list[Attack]], actor: str, asset: str) -> str:
    found = by_cell.get((actor, asset))
    if not found:
        return NO_PATH.get((actor, asset), "out of scope")
    files = sorted({each.file for each in found})
    return f"{len(found)}: " + ", ".join(f"[{file.removeprefix('test_').removesuffix('.py')}](../tests/security/{file})" for file in files)


def _link(attack: Attack) -> str:
    return f"[{attack.file}](../tests/security/{attack.file})"

"""The attacks of this folder and of the compose cluster, as their source names them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_FOLDERS = ("security", "compose")

ACTORS = {
    "T1": "project member or owner of a Shoot",
    "T2": "node of a Shoot",
    "T3": "seed or gardenlet",
    "T4": "extension controller",
    "T5": "client of Temporal, of its UI, database or codec endpoint",
    "T6": "attacker on the network",
}
ASSETS = {
    "A1": "garden",
    "A2": "control planes in seeds",
    "A3": "shoots",
    "A4": "backups",
    "A5": "Temporal",
    "A6": "names and routes",
    "A7": "supply chain",
}


@dataclass(frozen=True)
class Attack:
    """One test that must fail to get in."""

    actor: str
    asset: str
    finding: int
    file: str
    """Below the folder of all tests."""
    test: str

    @property
    def sentence(self) -> str:
        """The test's name as a sentence."""
        return self.test.removeprefix("test_").replace("_", " ")


def attacks() -> list[Attack]:
    """All attacks, sorted by actor, asset and finding. Raises ValueError for a marker that is not complete."""
    files = [file for folder in _FOLDERS for file in sorted((_TESTS / folder).glob("test_*.py"))]
    found = [attack for file in files for attack in _attacks_of(file)]
    return sorted(found, key=lambda each: (each.actor, each.asset, each.finding, each.file))


def _attacks_of(file: Path) -> Iterator[Attack]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.attack":
                continue
            said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
            if said.keys() != {"actor", "asset", "finding"}:
                raise ValueError(f"{file.name}: {node.name}: an attack names actor, asset and finding")
            yield Attack(said["actor"], said["asset"], said["finding"], str(file.relative_to(_TESTS)), node.name)

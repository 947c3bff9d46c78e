"""The attacks of this folder and of the compose cluster, as their source names them."""

from dataclasses import dataclass

from tests.pages import TESTS, marked

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
    files = [file for folder in _FOLDERS for file in sorted((TESTS / folder).glob("test_*.py"))]
    found = [
        Attack(**each.said, file=each.file, test=each.test)
        for file in files
        for each in marked(file, "attack", {"actor", "asset", "finding"})
    ]
    return sorted(found, key=lambda each: (each.actor, each.asset, each.finding, each.file))

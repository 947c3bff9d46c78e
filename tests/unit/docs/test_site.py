"""`make docs` builds a site whose links work and whose search finds the documents."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(180, func_only=True)


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if name == "href" and tag == "a" and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the project, so that the checkout stays as it is."""
    copy = tmp_path_factory.mktemp("checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    binaries = Path(sys.executable).parent
    subprocess.run(["make", "site", f"BIN={binaries}"], cwd=copy, check=True, timeout=150)
    return copy / "build" / "site"


def links(site: Path) -> Iterator[tuple[Path, str]]:
    for page in site.rglob("*.html"):
        parser = Links()
        parser.feed(page.read_text())
        yield from ((page, target) for target in parser.targets)


def test_each_link_of_a_document_works_on_the_site(site: Path) -> None:
    broken = set()
    documents = 0
    for page, target in links(site):
        url = urlsplit(target)
        if url.scheme or not url.path or url.path.startswith("/"):
            continue
        documents += 1
        path = (page.parent / unquote(url.path)).resolve()
        if not path.exists():
            broken.add(f"{page.relative_to(site)}: {target}")

    assert documents > 300
    assert broken == set()


def test_the_search_knows_the_glossary(site: Path) -> None:
    entries = json.loads((site / "search.json").read_text())["items"]

    assert any("takeover marker" in each["text"] for each in entries)

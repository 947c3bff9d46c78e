"""Documents and clean rooms keep to the plain words of docs/style.md, rule by rule.

A failure names file, line, word and what to write instead. Code means comments, docstrings, messages and names of
functions.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]

ROOMS = (
    "activities",
    "api",
    "benchmarks",
    "docs/api",
    "docs/flows",
    "docs/packages",
    "examples",
    "etcd",
    "kube",
    "landscape",
    "tests",
    "workers",
    "workflows",
)
"""Folders of Python code whose texts are checked."""

ACTIVITIES = {"await_trouble"}
"""Names of activities in recorded histories: another name would not replay."""

_COMPONENT = "name the component, object or function that acts (rule 2)"
_TERM = "use the field's term"
BANNED = {
    "who|whom|whoever": _COMPONENT,
    "nobody|somebody|anybody|everybody": _COMPONENT,
    "anew": "write 'again' (rule 3)",
    "of what": "name the thing (rule 4)",
    "put right": f"{_TERM}: repair, remediate (rule 3)",
    "led to|lead to it": f"{_TERM}: route (rule 3)",
    "given up": f"{_TERM}: lost, aborted, timed out, removed (rule 3)",
    "second word": f"{_TERM}: confirmation (rule 3)",
    "trouble": f"{_TERM}: error, failure (rule 3)",
}
"""Words as regular expressions, and what to do about them."""

PEOPLE = "administrator|attacker|author|maintainer|member|operator|owner|people|person|reader|tenant|user"
"""After one of these words, also in plural, "who" is right."""


class Allowed(NamedTuple):
    phrase: str
    """The sentence's part with the word, as the file has it."""
    file: str
    reason: str


EXCEPTIONS = (
    Allowed("who is on the other side", "docs/security.md", "a row's name; clients are people, too"),
    Allowed("user['who']", "workers/cli/credentials.py", "a field of the command's JSON"),
    Allowed('"given up"', "activities/seed/facts.py", "in digests: with another key, finished tasks would run again"),
)
"""The only places in which a word is right all the same. Keep this list short: rather write the sentence again."""

_WORDS = {
    re.compile(r"\b(?:" + words.replace(" ", r"\s+") + r")\b", re.IGNORECASE): todo for words, todo in BANNED.items()
}
_PERSON = re.compile(rf"\b(?:{PEOPLE})s?\s+$", re.IGNORECASE)
_OPENING = re.compile(r"^[a-z]*(?:\"\"\"|''')\s*(Of|What|Who|Whom|Whose|Whoever)\b", re.IGNORECASE)
_GENERATED = re.compile(r"<!-- rows:.*?<!-- end of rows -->", re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_SPACE = re.compile(r"\s*\n[\s#]*")
_CONFIGURATION = {".yaml", ".tpl", ".txt", ".json", ".env"}


class Text(NamedTuple):
    line: int
    content: str


class Finding(NamedTuple):
    line: int
    word: str
    todo: str


def documents() -> list[Path]:
    """Documents, and the texts of charts, examples, compose file and Makefile.

    Not the specification, which quotes Gardener, nor the style guide, which quotes bad sentences.
    """
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    left_out = {ROOT / "docs" / "style.md", *(ROOT / "docs" / "spec").iterdir()}
    settings = [
        path
        for folder in ("charts", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in _CONFIGURATION
    ]
    return sorted({*pages, *settings, ROOT / "Makefile", ROOT / "docker-compose.yaml"} - left_out)


def texts_of_document(content: str) -> Iterator[Text]:
    """The whole document, with generated tables and inline code as blanks, so that lines keep their numbers."""
    for hidden in (_GENERATED, _CODE):
        content = hidden.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), content)
    yield Text(1, content)


def texts_of_code(content: str) -> Iterator[Text]:
    """Comments, strings and names of functions. Comments on lines in a row are one text."""
    comment, begin, end = "", 0, 0
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "COMMENT":
            if comment and token.start[0] != end + 1:
                yield Text(begin, comment)
                comment = ""
            comment, begin = (f"{comment}\n{token.string}", begin) if comment else (token.string, token.start[0])
            end = token.start[0]
        elif kind == "STRING" or kind.startswith("FSTRING"):
            yield Text(token.start[0], token.string)
        elif kind == "NAME":
            if previous == "def" and token.string not in ACTIVITIES:
                yield Text(token.start[0], token.string.replace("_", " "))
            previous = token.string
    if comment:
        yield Text(begin, comment)


def findings(text: Text) -> Iterator[Finding]:
    if opening := _OPENING.match(text.content):
        yield Finding(text.line, opening[1], "begin a docstring with the noun or verb (rule 4)")
    for word, todo in _WORDS.items():
        for match in word.finditer(text.content):
            before = text.content[: match.start()]
            if match[0].lower() == "who" and _PERSON.search(_SPACE.sub(" ", before)):
                continue
            yield Finding(text.line + before.count("\n"), " ".join(match[0].split()), todo)


def faults(path: Path) -> list[str]:
    """Findings of a file without its exceptions, each in a line that a person can act on."""
    content, name = path.read_text(), str(path.relative_to(ROOT))
    for each in EXCEPTIONS:
        if each.file == name:
            content = content.replace(each.phrase, " " * len(each.phrase))
    texts = texts_of_code(content) if path.suffix == ".py" else texts_of_document(content)
    found = sorted({finding for text in texts for finding in findings(text)})
    return [f"{name}:{each.line}: '{each.word}': {each.todo}; see docs/style.md, Plain words" for each in found]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_uses_plain_words(document: Path) -> None:
    assert faults(document) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_clean_room_uses_plain_words(room: str) -> None:
    files = [path for path in sorted((ROOT / room).rglob("*.py")) if path != Path(__file__)]

    assert files, "the room has no code"
    assert [fault for path in files for fault in faults(path)] == []


def test_the_documents_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in documents()}

    assert {"README.md", "docs/operations/install.md", "charts/gardener/values.yaml", "Makefile"} <= names
    assert "docs/style.md" not in names
    assert len(names) > 60


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda each: each.phrase)
def test_an_exception_is_needed_and_has_a_reason(exception: Allowed) -> None:
    content = (ROOT / exception.file).read_text()

    assert exception.reason
    assert exception.phrase in content, "remove this exception: the phrase is no longer there"
    assert list(findings(Text(1, exception.phrase))), "remove this exception: the phrase has no banned word"


def words(content: str, *, code: bool = False) -> list[tuple[int, str]]:
    texts = texts_of_code(content) if code else texts_of_document(content)
    return [(each.line, each.word) for text in texts for each in findings(text)]


def test_a_word_is_found_with_its_line() -> None:
    assert words("The gateway\nwaits, and nobody\nis served.") == [(2, "nobody")]


def test_a_phrase_is_found_across_lines() -> None:
    assert words("a copy of\nwhat is there") == [(1, "of what")]


def test_people_may_be_called_who() -> None:
    assert words("a user who may write, and operators\nwho repair") == []
    assert words("an etcd who serves") == [(1, "who")]


def test_generated_tables_and_code_of_documents_are_left_out() -> None:
    assert words("<!-- rows: a -->\n| who |\n<!-- end of rows -->\n`nobody` and\nanew") == [(5, "anew")]


def test_docstrings_comments_messages_and_names_are_read() -> None:
    code = '''
class Task:
    name: str
    """Of the task."""

    def test_who_acts(self) -> None:
        # Whoever
        # comes later.
        raise ValueError(f"{self.name}: nobody answers")
'''

    assert words(code, code=True) == [(4, "Of"), (6, "who"), (9, "nobody"), (7, "Whoever")]

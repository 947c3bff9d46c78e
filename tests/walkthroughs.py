"""Reads the commands that the documents show: the ``console`` blocks, and the code spans that begin with a program.

A line of a block that begins with ``$`` is a command, lines that begin with ``>`` continue it, and so does the next
line if a backslash or an open quote ends a line. All other lines are the output that the document shows.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]

_VOLATILE = (
    r"\d{4}-\d\d-\d\dT[\d:]{8}(?:Z|\+00:00)",
    r"\b[0-9a-f]{8}\b",
    r"\b(?:\d+[dhms])+\b",
    r"\bseed-\d\b",
)
"""Patterns of times, numbers and durations, which differ from run to run."""
_CUT = r"[0-9a-f]*-?\.\.\."
"""An ellipsis, with what stands before it of a number."""
_BLOCK = re.compile(r"^( *)```console\n(.*?)^\1```$", re.M | re.S)
_SPAN = re.compile(r"`((?:gardener|make) [^`\n]+)`")
_OPERATORS = frozenset(";|&()\n")
_RESERVED = frozenset({"do", "done", "then", "fi", "else", "{", "}", "if", "while"})
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.S)

ON_A_LANDSCAPE: dict[str, tuple[str, ...]] = {
    "README.md": ("kubectl --kubeconfig shoot.kubeconfig", ".venv/bin/gardener flow show"),
    "docs/credentials.md": (
        "gardener credentials status", "gardener kubeconfig shoot", "gardener credentials complete",
        "gardener credentials kubeconfigs", "gardener credentials discard",
    ),
    "docs/flows/README.md": ("gardener flow",),
    "docs/observability.md": ("secret() {", "kubectl -n garden-local get configmap"),
    "docs/operations/bastions.md": ("kubectl", "node=$(kubectl", "gardener shoot ssh"),
    "docs/operations/high-availability.md": ("kubectl -n shoot--local--demo get etcd",),
    "docs/operations/kept-backups.md": ("kubectl -n garden-local get backupentries",),
    "docs/operations/repair.md": ("gardener flow",),
    "docs/operations/schedules.md": ("kubectl",),
    "docs/operations/seed.md": ("kubectl",),
}  # fmt: skip
"""Beginnings of the commands that ``tests/landscape/test_walkthroughs.py`` runs, by document."""

ELSEWHERE: dict[str, dict[str, str]] = {
    "docs/operations/logins.md": {
        "kubectl --kubeconfig garden.yaml apply": "tests/landscape/test_logins.py",
        "kubectl --kubeconfig seed.yaml apply": "tests/landscape/test_logins.py",
    },
    "README.md": {"make demo": "tests/container/test_demo.py"},
    "docs/credentials.md": {
        "gardener credentials rotate": "tests/landscape/test_rotation.py",
        "kubectl annotate seed seed-1": "tests/landscape/test_own_credentials.py",
        "kubectl -n garden annotate secret gardener-admission": "tests/landscape/test_own_credentials.py",
    },
    "docs/conformance.md": {"": "tests/conformance/test_command.py"},
    "docs/extensions.md": {"": "tests/landscape/test_installations.py"},
    "docs/operations/garden-tests.md": {
        "gardener test --garden garden.yaml --project local --shoot": "tests/landscape/test_garden_tests.py",
        "gardener test --garden garden.yaml --project local --cleanup": (
            "tests/unit/garden_tests/test_runs_at_an_api_server.py"
        ),
    },
    "docs/operations/gvisor.md": {"": "tests/landscape/test_container_runtime.py"},
    "docs/observability.md": {
        "curl": "tests/landscape/test_components.py",
        "kubectl -n garden create secret generic mails": "tests/landscape/test_alerts.py",
        "kubectl -n garden label secret mails": "tests/landscape/test_alerts.py",
    },
    "docs/operations/backups.md": {"kubectl annotate": "tests/unit/provider_local/test_backup.py"},
    "docs/operations/compose.md": {"": "tests/compose/test_cluster.py"},
    "docs/operations/container.md": {"": "tests/container/test_demo.py"},
    "docs/operations/dual-stack.md": {"": "tests/landscape/test_dual_stack.py"},
    "docs/operations/high-availability.md": {
        "kubectl -n garden-local patch": "tests/landscape/test_high_availability.py",
    },
    "docs/operations/in-place-updates.md": {"": "tests/landscape/test_in_place_updates.py"},
    "docs/operations/live-migration.md": {"": "tests/landscape/test_live_migration.py"},
    "docs/operations/install.md": {"": "tests/charts/test_installed.py"},
    "docs/operations/issuer.md": {"": "tests/landscape/test_issuer.py"},
    "docs/operations/kept-backups.md": {"kubectl -n garden-local annotate": "tests/landscape/test_kept_backups.py"},
    "docs/operations/kubeconfigs.md": {"": "tests/unit/subresources/test_command.py"},
    "docs/operations/load-balancers.md": {"": "tests/landscape/test_load_balancers.py"},
    "docs/operations/lost-seed.md": {"gardener shoot move": "tests/landscape/test_dead_seed.py"},
    "docs/operations/managed-seeds.md": {"": "tests/landscape/test_managed_seed.py"},
    "docs/operations/network-policies.md": {"": "tests/landscape/test_network_policies.py"},
    "docs/operations/node-logs.md": {
        "gardener landscape node-logs": "tests/landscape/test_node_logs.py",
        "kubectl -n garden-local annotate": "tests/landscape/test_node_logs.py",
        "curl": "tests/landscape/test_node_logs.py",
        "kubectl -n garden-local get": "tests/landscape/test_node_logs.py",
        "secret() {": "tests/landscape/test_node_logs.py",
        "kubectl --kubeconfig": "tests/landscape/test_shoot.py",
        "gardener shoot ssh": "tests/landscape/test_ssh.py",
    },
    "docs/operations/plants.md": {"": "tests/security/test_plants_at_an_api_server.py"},
    "docs/operations/seed.md": {
        "gardener seed evacuate": "tests/landscape/test_evacuation.py",
        "gardener seed show": "tests/landscape/test_seed_deletion.py",
        "gardener seed skip": "tests/unit/cli/test_seed_flow.py",
    },
    "docs/operations/registry.md": {"": "tests/landscape/test_shoot.py"},
    "docs/operations/self-hosted.md": {"": "tests/landscape/test_self_hosted.py"},
    "docs/operations/seed-sets.md": {"": "tests/unit/garden_controllers/test_managed_seed_sets.py"},
    "docs/operations/volumes.md": {"": "tests/landscape/test_volumes.py"},
    "docs/operations/upgrade.md": {"": "tests/charts/test_rendering.py"},
    "docs/operations/workload-identity.md": {"kubectl create --raw": "tests/unit/subresources/test_tokens.py"},
    "docs/tutorial.md": {"": "tests/landscape/test_tutorial.py"},
    "examples/local_extension/README.md": {"": "tests/unit/examples/test_local_extension.py"},
}
"""Beginnings of the commands that no walkthrough runs, each with the test that runs its like, by document."""


@dataclass
class Command:
    """A command as a reader types it, and the output that the document shows for it."""

    document: str
    line: int
    text: str
    output: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def programs(self) -> list[list[str]]:
        """Arguments of each program that the command starts, without redirections and assignments."""
        lexer = shlex.shlex(self.text.replace("\\\n", " "), posix=True, punctuation_chars=";|&()<>\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, "#"
        return [each for each in map(_unwrapped, _split(lexer)) if each]


def documents() -> list[str]:
    """Paths of all documents of the repository."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def commands(document: str) -> list[Command]:
    """Commands of the console blocks of a document, from top to bottom."""
    text = (ROOT / document).read_text()
    found: list[Command] = []
    for block in _BLOCK.finditer(text):
        indent, line = len(block[1]), text.count("\n", 0, block.start()) + 2
        found += _commands(document, line, [each[indent:] for each in block[2].splitlines()])
    return found


def spans(document: str) -> Iterator[Command]:
    """Code spans of a document's prose that show a command of ours."""
    text = (ROOT / document).read_text()
    for span in _SPAN.finditer(text):
        yield Command(document, text.count("\n", 0, span.start()) + 1, span[1])


def pattern_of(shown: str) -> re.Pattern[str]:
    """Pattern of the lines that a reader may see where a document shows this line; white space is one blank."""
    parts = re.split(f"({'|'.join((_CUT, *_VOLATILE))})", " ".join(shown.split()))
    return re.compile("".join(_pattern_of_part(each) for each in parts))


def _commands(document: str, first: int, lines: Iterable[str]) -> Iterator[Command]:
    command: Command | None = None
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(document, number, line[2:])
        elif command is None:
            raise ValueError(f"{document}:{number}: the block begins with output")
        elif line.startswith("> "):
            command.text += f"\n{line[2:]}"
        elif _is_open(command.text):
            command.text += f"\n{line}"
        else:
            command.output.append(line)
    if command is not None:
        yield command


def _pattern_of_part(part: str) -> str:
    if re.fullmatch(_CUT, part):
        return ".*"
    return next((each for each in _VOLATILE if re.fullmatch(each, part)), re.escape(part))


def _is_open(text: str) -> bool:
    """Whether a shell would wait for another line: after a backslash, or within quotes."""
    if text.endswith("\\"):
        return True
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def _split(tokens: Iterable[str]) -> Iterator[list[str]]:
    """Programs with their arguments. The file of a redirection is no argument."""
    program: list[str] = []
    into_file = False
    for token in tokens:
        if set(token) <= _OPERATORS:
            yield program
            program = []
        elif set(token) <= set("<>&"):
            into_file = True
            if program and program[-1].isdigit():  # a file descriptor
                program.pop()
        elif into_file:
            into_file = False
        else:
            program.append(token)
    yield program


def _unwrapped(program: list[str]) -> list[str]:
    """The program without variables, reserved words, and the programs that only start it."""
    while program and (program[0] in _RESERVED or _VARIABLE.fullmatch(program[0])):
        program = program[1:]
    if program[:2] == ["docker", "exec"]:
        return _unwrapped(program[3:])
    if program[:1] == ["sudo"]:
        return _unwrapped(program[1:])
    if program[:1] == ["nsenter"]:
        return _unwrapped([each for each in program[1:] if not each.startswith("--net=")])
    if program[:1] and program[0].startswith(".venv/bin/"):
        return [program[0].removeprefix(".venv/bin/"), *program[1:]]
    return program

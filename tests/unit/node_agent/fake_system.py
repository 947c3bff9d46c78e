"""A machine in a directory: files are real, systemd and the container runtime only record their commands."""

from collections.abc import Callable
from pathlib import Path

from workers.node_agent.system import CommandFailed, System


class FakeSystem(System):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[str] = []
        self.active: set[str] = set()
        self.enabled: set[str] = set()
        self.fails: set[str] = set()
        """Commands that end with an error."""
        self.kubelet_starts: Callable[[], bool] = lambda: True
        """Whether the kubelet is healthy with the files of now."""
        self.journal: list[str] = []

    async def run(self, *command: str) -> None:
        text = " ".join(command)
        self.commands.append(text)
        if text in self.fails:
            raise CommandFailed(f"{text}: exit status 1")
        match command:
            case ("systemctl", "enable", unit):
                self.enabled.add(unit)
            case ("systemctl", "disable", unit):
                self.enabled.discard(unit)
            case ("systemctl", "stop", unit):
                self.active.discard(unit)
            case ("systemctl", "start" | "restart", "--no-block", unit):
                self.active.add(unit)

    async def unit_is(self, state: str, name: str) -> bool:
        return name in (self.active if state == "active" else self.enabled)

    async def kubelet_answers(self) -> bool:
        return self.kubelet_starts()

    async def last_lines(self, unit: str) -> list[str]:
        return self.journal

    async def copy_from_image(self, image: str, path_in_image: str, path: str, mode: int) -> None:
        self.write(path, f"{image}:{path_in_image}".encode(), mode)

"""For all tests."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were run again: pytest tells it only of those that failed in the end."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"{report.nodeid}, run again")
        terminalreporter.write_line(report.longreprtext)

"""A test that runs again is limited in each of its runs."""

import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import time

def test_that_hangs():
    time.sleep(60)
"""


@pytest.mark.timeout(50)
def test_each_run_of_a_test_that_hangs_has_its_limit(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    options = ["-p", "tests.reruns", "--reruns", "2", "--timeout", "1", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert "1 failed, 2 rerun" in done.stdout, done.stdout + done.stderr

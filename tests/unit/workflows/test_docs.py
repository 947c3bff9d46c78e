"""The pages about flows are drawn from the code; an old picture is worse than none."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_pictures_of_the_flows_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "docs/flows/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr

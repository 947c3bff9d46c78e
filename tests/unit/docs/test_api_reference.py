"""The API reference is written from the models; an old page would name fields that the API does not have."""

import subprocess
import sys
from pathlib import Path

from api.crds import kinds
from docs.api.generate import SIDES, pages

ROOT = Path(__file__).parents[3]


def test_the_api_reference_is_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "docs/api/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


def test_each_kind_has_a_section_with_its_fields() -> None:
    made = pages()
    for side in SIDES:
        for model in kinds(side):
            served = model.definition
            page = made[f"{served.group}-{served.version}.md"]
            assert f"\n## {model.__name__}\n" in page
    assert "| `spec.provider.workers[].machine.type` (required) | string |" in made["core.gardener.cloud-v1beta1.md"]

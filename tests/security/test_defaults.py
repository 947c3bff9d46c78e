"""As installed without any value of an operator's, a gardenlet gets no right that it does not need."""

import asyncio
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from api.access import access
from api.resources import SECRET, Resource
from tests.unit.kube.waiting import until
from workers.admission import process as admission
from workers.lib.access import User
from workers.setup import SetupConfig

CHART = Path(__file__).parents[2] / "charts/gardener"
SEEDS = "gardener.cloud:system:seeds"


def rendered(values: dict[str, Any]) -> dict[str, str]:
    with helm.Chart.load(CHART) as chart:
        files: dict[str, str] = chart.render(values, name="release", namespace="garden")
    return files


def setup_of(values: dict[str, Any]) -> SetupConfig:
    """Configuration of the Job that gives roles."""
    objects = [
        each for text in rendered(values).values() if "kind:" in text for each in yaml.safe_load_all(text) if each
    ]
    [job] = [each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "gardener-setup"]
    return SetupConfig.model_validate(yaml.safe_load(job["data"]["config.yaml"]))


def groups(config: SetupConfig) -> set[str]:
    """Groups that get a role in the garden."""
    granted = access(unrestricted_gardenlets=config.allow_unrestricted_gardenlets)
    return {subject["name"] for each in granted for subject in each.get("subjects", ())}


@pytest.mark.attack(actor="T3", asset="A1", finding=9)
def test_a_gardenlet_of_a_chart_with_default_values_has_no_role_in_the_garden() -> None:
    """With the role it reads the Secrets of all projects, and writes the Shoots of all seeds."""
    assert SEEDS not in groups(setup_of({}))
    assert SEEDS not in groups(setup_of({"admission": {"seedAuthorizer": {"tlsSecret": "mine"}}}))


def test_an_operator_who_allows_it_is_told_what_it_means() -> None:
    allowed = {"allowUnrestrictedGardenlets": True}

    assert SEEDS in groups(setup_of(allowed))
    [notes] = [text for path, text in rendered(allowed).items() if path.endswith("NOTES.txt")]
    assert "WARNING: allowUnrestrictedGardenlets is true" in notes
    [notes] = [text for path, text in rendered({}).items() if path.endswith("NOTES.txt")]
    assert "WARNING" not in notes
    assert "gardener garden admission-files" in notes


@pytest.mark.parametrize("unrestricted", [True, False])
async def test_a_garden_that_lets_gardenlets_read_everything_is_measured(
    unrestricted: bool,
) -> None:
    """Whatever gives them the right: the API server itself is asked, in the name of no seed."""
    asked: list[tuple[User, str, Resource]] = []

    class Garden:
        async def allowed(self, user: User, verb: str, resource: Resource, namespace: str | None, name: str) -> bool:
            asked.append((user, verb, resource))
            return unrestricted

    admission.UNRESTRICTED.set(0.5)
    watching = asyncio.create_task(admission.watch_gardenlets(Garden()))
    await until(lambda: admission.UNRESTRICTED._value.get() == float(unrestricted))
    watching.cancel()
    [(user, verb, resource)] = asked
    assert user.groups == (SEEDS,)
    assert not user.name.startswith("gardener.cloud:system:seed:")
    assert (verb, resource) == ("get", SECRET)

"""ExposureClasses at admission: a new Shoot gets the scheduling of its class, and keeps the class."""

from typing import Any

import pytest

from tests.unit.admission.test_profiles import message
from tests.unit.admission.webhooks import ask, patched
from tests.unit.api.shoots import PROJECT, changed, complete

CLASS: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "ExposureClass",
    "metadata": {"name": "company"},
    "handler": "internal",
    "scheduling": {
        "seedSelector": {
            "matchLabels": {"network": "internal"},
            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
            "providerTypes": ["local"],
        },
        "tolerations": [{"key": "company"}],
    },
}
OWN_SELECTOR = {"matchLabels": {"env": "prod"}, "providerTypes": ["b"]}


def shoot(**spec: Any) -> dict[str, Any]:
    wire = complete().to_wire()
    return wire | {"spec": wire["spec"] | {"exposureClassName": "company"} | spec}


@pytest.fixture(autouse=True)
def with_class(garden: Any) -> None:
    garden.objects.append(CLASS)
    garden.objects.remove(PROJECT)
    garden.objects.append(changed(PROJECT, "spec.tolerations", {"whitelist": [{"key": "company"}, {"key": "own"}]}))


async def stored(client: Any, obj: dict[str, Any]) -> dict[str, Any]:
    response = await ask(client, "/mutate", "CREATE", obj)
    assert response["allowed"], response
    return patched(changed(obj), response)


async def refusal(client: Any, obj: dict[str, Any]) -> str:
    response = await ask(client, "/mutate", "CREATE", obj)
    assert not response["allowed"]
    assert response["status"]["code"] == 403
    return str(response["status"]["message"])


async def test_selectors_and_tolerations_of_class_and_shoot_are_united(client: Any) -> None:
    made = await stored(client, shoot(seedSelector=OWN_SELECTOR, tolerations=[{"key": "own", "value": "x"}]))

    assert made["spec"]["seedSelector"] == {
        "matchLabels": {"env": "prod", "network": "internal"},
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
        "providerTypes": ["b", "local"],
    }
    assert made["spec"]["tolerations"] == [{"key": "own", "value": "x"}, {"key": "company"}]
    assert await message(client, "CREATE", made) == ""


async def test_a_shoot_without_scheduling_gets_that_of_its_class(client: Any) -> None:
    made = await stored(client, shoot())

    assert made["spec"]["seedSelector"] == CLASS["scheduling"]["seedSelector"]
    assert made["spec"]["tolerations"] == CLASS["scheduling"]["tolerations"]


async def test_admission_that_is_asked_again_changes_nothing(client: Any) -> None:
    """The API server asks again if another webhook has changed the Shoot."""
    made = await stored(client, shoot(seedSelector=OWN_SELECTOR))
    again = await ask(client, "/mutate", "CREATE", made)

    assert again["allowed"]
    assert "patch" not in again or patched(changed(made), again)["spec"] == made["spec"]


async def test_scheduling_is_merged_at_creation_alone(client: Any, garden: Any) -> None:
    made = shoot(seedSelector=OWN_SELECTOR)
    response = await ask(client, "/mutate", "UPDATE", changed(made, "spec.purpose", "testing"), made)

    assert response["allowed"]
    assert "patch" not in response or patched(changed(made), response)["spec"]["seedSelector"] == OWN_SELECTOR


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"seedSelector": {"matchLabels": {"network": "public"}}},
            "spec.seedSelector.matchLabels[network]: Forbidden: ExposureClass company needs internal",
        ),
        (
            {"tolerations": [{"key": "company", "value": "x"}]},
            "spec.tolerations: Forbidden: ExposureClass company has another toleration of key company",
        ),
    ],
)
async def test_scheduling_that_contradicts_the_class_is_refused(client: Any, spec: dict[str, Any], text: str) -> None:
    assert text in await refusal(client, shoot(**spec))


async def test_a_class_that_does_not_exist_is_refused(client: Any, garden: Any) -> None:
    garden.objects.remove(CLASS)
    assert 'spec.exposureClassName: Not found: "company": there is no such ExposureClass' in await message(
        client, "CREATE", shoot()
    )
    garden.objects.append(changed(CLASS, "metadata.deletionTimestamp", "2026-11-26T05:00:00Z"))
    assert "spec.exposureClassName: Forbidden: ExposureClass company is being deleted" in await message(
        client, "CREATE", shoot()
    )


@pytest.mark.parametrize(("before", "after"), [("company", "other"), ("company", None), (None, "company")])
async def test_a_shoot_keeps_its_class(client: Any, before: str | None, after: str | None) -> None:
    """Its users reach the API server by the address of the handler's gateway."""
    old, new = shoot(exposureClassName=before), shoot(exposureClassName=after)

    text = await message(client, "UPDATE", new, old)

    assert "spec.exposureClassName: Invalid value" in text
    assert "field is immutable" in text


async def test_a_class_whose_tolerations_the_project_may_not_have_is_refused(client: Any, garden: Any) -> None:
    """Taints reserve seeds for some projects; a class that each project may name must not open them."""
    garden.objects = [each for each in garden.objects if each["kind"] != "Project"] + [PROJECT]

    made = await stored(client, shoot())

    assert "spec.tolerations[0]: Forbidden: company is not in spec.tolerations.whitelist" in await message(
        client, "CREATE", made
    )


@pytest.mark.parametrize(
    ("scheduling", "text"),
    [
        (
            {"seedSelector": {"matchExpressions": [{"key": "a", "operator": "Equals", "values": ["b"]}]}},
            "scheduling.seedSelector.matchExpressions[0].operator: Unsupported value",
        ),
        ({"seedSelector": {"matchLabels": {"a": "b" * 64}}}, "scheduling.seedSelector.matchLabels"),
        ({"tolerations": [{"key": ""}]}, "scheduling.tolerations[0].key: Required value"),
        ({"tolerations": [{"key": "a"}, {"key": "a", "value": "b"}]}, "scheduling.tolerations[1].key: Duplicate value"),
    ],
)
async def test_a_class_that_no_shoot_could_use_is_refused(client: Any, scheduling: dict[str, Any], text: str) -> None:
    assert text in await message(client, "CREATE", CLASS | {"scheduling": scheduling})
    assert await message(client, "CREATE", CLASS) == ""
    assert await message(client, "DELETE", None, CLASS) == ""

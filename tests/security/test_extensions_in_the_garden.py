"""An extension asks the garden, with its token there, for more than the Shoots of its seed and its Leases."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from tests.unit.admission.test_seed_authorizer import CORE, LEASES, ask, authorizer, extension  # noqa: F401


@pytest.mark.attack(actor="T4", asset="A1", finding=14)
@pytest.mark.parametrize(
    "question",
    [
        f"get shoots.{CORE} garden-local/other",
        f"list shoots.{CORE}",
        f"patch shoots.{CORE}/status garden-local/demo",
        f"get controllerinstallations.{CORE} /notes-theirs",
        f"patch controllerinstallations.{CORE}/status /notes-mine",
        f"patch seeds.{CORE}/status /seed-1",
        f"get internalsecrets.{CORE} garden-local/demo.ca-client",
        f"get shootstates.{CORE} garden-local/demo",
        "get secrets garden/backup-seed-1",
        "get secrets garden/pull",
        "get secrets team/cloud-demo",
        "get secrets garden-local/demo.ssh-keypair",
        "create serviceaccounts/token seed-seed-1/extension-notes-mine",
        "get configmaps garden-local/demo.ca-cluster",
        f"create {LEASES} gardener-system-seed-lease/",
        f"patch {LEASES} gardener-system-seed-lease/seed-1",
        f"patch {LEASES} seed-seed-1/extension-other",
        f"patch {LEASES} seed-seed-2/extension-notes-mine",
    ],
)
async def test_an_extension_uses_the_gardenlets_rights_in_the_garden_and_is_refused(
    authorizer: TestClient[Any, Any],  # noqa: F811
    question: str,
) -> None:
    """The author of an extension is trusted with its kinds in the seed, not with the Secrets of Shoots."""
    assert not (await ask(authorizer, question, **extension()))["allowed"]


@pytest.mark.attack(actor="T4", asset="A1", finding=14)
@pytest.mark.parametrize(
    "spec",
    [
        extension("seed-2"),
        extension(installation="notes-theirs"),
        extension(installation="never-installed"),
        {**extension(), "groups": ["system:authenticated"]},
        {**extension(), "user": "system:serviceaccount:garden-local:extension-notes-mine"},
    ],
)
async def test_an_account_without_an_installation_in_its_seed_is_refused(
    authorizer: TestClient[Any, Any],  # noqa: F811
    spec: dict[str, Any],
) -> None:
    """A tenant chooses the names of ServiceAccounts. A removed extension may still have a valid token."""
    assert not (await ask(authorizer, f"get shoots.{CORE} garden-local/demo", **spec))["allowed"]


@pytest.mark.attack(actor="T3", asset="A1", finding=6)
@pytest.mark.parametrize(
    "account",
    [
        "seed-seed-2/extension-notes-theirs",
        "seed-seed-1/extension-notes-theirs",
        "seed-seed-1/default",
        "garden/extension-notes-mine",
    ],
)
async def test_a_gardenlet_requests_the_token_of_another_account_and_is_refused(
    authorizer: TestClient[Any, Any],  # noqa: F811
    account: str,
) -> None:
    """An operator may have bound roles to the ServiceAccount."""
    answer = await ask(authorizer, f"create serviceaccounts/token {account}")

    assert not answer["allowed"]
    assert answer["reason"].startswith("nothing of seed seed-1 needs that: ")

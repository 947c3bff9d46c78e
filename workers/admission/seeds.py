"""Finds the objects that hinder the deletion of a Seed, by the indexes of admission."""

from __future__ import annotations

from api import resources
from api.constants import GARDEN_NAMESPACE
from api.decisions.seeds import hindrances
from workers.admission.indexes import ENTRIES_BY_BUCKET, ENTRIES_BY_SEED, SHOOTS_BY_SEED
from workers.admission.review import Garden, full_name


async def hindrances_of(seed: str, garden: Garden, *, by_managed_seed: bool = False) -> list[str]:
    """Reasons for which a Seed cannot be deleted. ``by_managed_seed``: its ManagedSeed is deleted, too."""
    live = await garden.find(resources.SEED, seed)
    uid = live["metadata"]["uid"] if live else ""
    entries = [*await garden.by_index(ENTRIES_BY_SEED, seed), *await garden.by_index(ENTRIES_BY_BUCKET, uid)]
    managed = None if by_managed_seed else await garden.find(resources.MANAGED_SEED, seed, GARDEN_NAMESPACE)
    return hindrances(
        seed,
        uid,
        await garden.by_index(SHOOTS_BY_SEED, seed),
        {full_name(each): each for each in entries}.values(),
        [managed] if managed else [],
    )

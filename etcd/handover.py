"""The end of a handover between seeds: the members of both are in one etcd cluster, and one side's members leave it.

Each function looks at the cluster first and does what is left to do, so a second run goes on where the first one ended.
"""

import asyncio
import time
from collections.abc import Collection, Iterable

from etcd.client import EtcdClient, EtcdError, Member

_REFUSED_SECONDS = 20.0
_RETRY_SECONDS = 0.5
_CALM_SECONDS = 30.0
_QUICK_SECONDS, _QUICK_ANSWERS = 0.3, 3
"""A cluster is calm if it agrees on a read this quickly, this often in a row."""


class Unsafe(Exception):
    """The cluster could lose its quorum, or data."""


async def let_others_lead(clients: Iterable[EtcdClient], names: Collection[str]) -> str:
    """Transfer leadership to a member that is not one of ``names``. Returns the new leader, empty if nothing changes.

    Waits up to 30 s until the cluster is calm: while it elects the new leader, it may lose what clients write.

    ``clients``: one of each member of ``names``; a member that does not answer does not lead.

    Raises:
        Unsafe: no other member may lead.
        EtcdError: the leader refuses.
    """
    for client in clients:
        try:
            if not (await client.status()).is_leader:
                continue
        except EtcdError:
            continue
        others = [each for each in await client.members() if each.name not in names and _votes(each)]
        if not others:
            raise Unsafe("no member of the other seed has a vote")
        await _calm(client)
        await client.transfer_leadership(others[0])
        return others[0].name
    return ""


async def _calm(leader: EtcdClient) -> None:
    deadline, quick = time.monotonic() + _CALM_SECONDS, 0
    while quick < _QUICK_ANSWERS and time.monotonic() < deadline:
        asked = time.monotonic()
        await leader.members()
        quick = quick + 1 if time.monotonic() - asked < _QUICK_SECONDS else 0
        await asyncio.sleep(_RETRY_SECONDS / 10)


async def remove_all_but(clients: dict[str, EtcdClient]) -> list[str]:
    """Remove the members that are not in ``clients`` (by name), one after the other. Returns their names.

    Before each removal, all members in ``clients`` must answer and have a vote. So the members that stay have a quorum.

    Raises:
        Unsafe: one of them is missing, does not answer, or has no vote.
        EtcdError: the cluster refuses a removal.
    """
    removed: list[str] = []
    while True:
        there = await _members(clients)
        stays = {each.name: each for each in there if each.name in clients}
        # Learners first: they have no vote that a quorum would count on.
        goes = sorted((each for each in there if each.name not in clients), key=lambda each: (_votes(each), each.name))
        if not goes:
            return removed
        await _must_serve(clients, stays)
        await _remove(clients, goes[0])
        removed.append(goes[0].name or goes[0].id)


async def _remove(clients: dict[str, EtcdClient], member: Member) -> None:
    """Remove a member. For five seconds after a change of members or of the leader, etcd refuses that: try again."""
    deadline = time.monotonic() + _REFUSED_SECONDS
    while True:
        try:
            return await next(iter(clients.values())).remove_member(member)
        except EtcdError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)
        if member not in await _members(clients):
            return None


async def _members(clients: dict[str, EtcdClient]) -> list[Member]:
    """Members as one of ``clients`` lists them. Raises EtcdError if there is no quorum."""
    *others, last = clients.values()
    for client in others:
        try:
            return await client.members()
        except EtcdError:
            continue
    return await last.members()


async def _must_serve(clients: dict[str, EtcdClient], there: dict[str, Member]) -> None:
    for name, client in clients.items():
        if name not in there or not _votes(there[name]):
            raise Unsafe(f"member {name} has no vote yet")
        try:
            await client.status()
        except EtcdError as error:
            raise Unsafe(f"member {name} does not answer: {error}") from None


def _votes(member: Member) -> bool:
    return bool(member.name) and not member.is_learner

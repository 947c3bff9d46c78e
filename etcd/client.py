"""Client of etcd's JSON gateway: it needs no gRPC library, and uses TLS like all our other clients."""

import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from etcd.delta import Change

_ALL_KEYS = "AA=="  # one zero byte: as a key the first one, as the end of a range the end after the last key
_ANSWER = aiohttp.ClientTimeout(total=10, sock_connect=3)
_STREAM = aiohttp.ClientTimeout(total=None, sock_connect=3)
_SNAPSHOT = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=60)


class EtcdError(Exception):
    """Etcd did not answer, or refused a request; the text never holds keys or values."""


class Compacted(EtcdError):
    """The revision from which to watch is compacted."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"revisions before {revision} are compacted")
        self.revision = revision


@dataclass(frozen=True)
class MemberStatus:
    """Status that one member reports of itself."""

    id: str
    """Hexadecimal, as etcdctl prints it."""
    is_leader: bool
    revision: int
    database_bytes: int


@dataclass(frozen=True)
class Member:
    """A member as its cluster lists it."""

    id: str
    """Decimal, as the JSON gateway takes it."""
    name: str
    """Empty until the member has started for the first time."""
    is_learner: bool
    client_urls: tuple[str, ...]


class EtcdClient:
    """Client of one member, with mutual TLS."""

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None, *, server_name: str | None = None) -> None:
        """``server_name``: name that the member's certificate must have, if it is not the endpoint's host."""
        self._endpoint = endpoint
        self._tls = tls
        self._server_name = server_name
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def status(self) -> MemberStatus:
        """Status of this member, which answers without quorum, too."""
        answer = await self._ask("maintenance/status", {})
        member = int(answer["header"]["member_id"])
        return MemberStatus(
            f"{member:x}",
            int(answer.get("leader", 0)) == member,
            int(answer["header"].get("revision", 0)),
            int(answer.get("dbSize", 0)),
        )

    async def leader(self) -> str:
        """Client URL of the leader; empty if this member is the leader, or there is none."""
        status = await self._ask("maintenance/status", {})
        leader = status.get("leader", "0")
        if leader in ("0", status["header"]["member_id"]):
            return ""
        urls = [url for each in await self.members(agreed=False) if each.id == leader for url in each.client_urls]
        return urls[0] if urls else ""

    async def defragment_all(self) -> None:
        """Defragment one member after the other, this member last. Members that do not answer are skipped."""
        ours = (await self._ask("maintenance/status", {}))["header"]["member_id"]
        for member in await self.members(agreed=False):
            for url in member.client_urls if member.id != ours else ():
                async with EtcdClient(url, self._tls) as other:
                    with contextlib.suppress(EtcdError):
                        await other.defragment()
        await self.defragment()

    async def members(self, *, agreed: bool = True) -> list[Member]:
        """Members of the cluster, on which a quorum agrees; or else those that this member knows."""
        answer = await self._ask("cluster/member/list", {"linearizable": agreed})
        return [
            Member(each["ID"], each.get("name", ""), bool(each.get("isLearner")), tuple(each.get("clientURLs") or ()))
            for each in answer["members"]
        ]

    async def remove_member(self, member: Member) -> None:
        """Remove a member from the cluster, for good. Its etcd ends."""
        await self._ask("cluster/member/remove", {"ID": member.id})

    async def transfer_leadership(self, to: Member) -> None:
        """Make another member the leader; this member must be the leader."""
        await self._ask("maintenance/transfer-leadership", {"targetID": to.id})

    async def revision(self) -> int:
        """The newest revision of the cluster; a linearizable read."""
        answer = await self._ask("kv/range", {"key": _ALL_KEYS, "count_only": True})
        return int(answer["header"]["revision"])

    async def defragment(self) -> None:
        """Release unused pages of the database; the member does not answer meanwhile."""
        await self._ask("maintenance/defragment", {}, timeout=_SNAPSHOT)

    async def seal(self) -> None:
        """Raise the CORRUPT alarm: the whole etcd rejects all changes from now on, even after a restart.

        With this alarm, and no other, etcd accepts no change at all, not even deletions.
        """
        member = int((await self.status()).id, 16)
        await self._ask("maintenance/alarm", {"action": "ACTIVATE", "memberID": str(member), "alarm": "CORRUPT"})

    async def snapshot(self) -> AsyncIterator[bytes]:
        """Stream the database as a file, with etcd's checksum at its end.

        Raises EtcdError if the stream ends early.
        """
        remaining = -1
        async for message in self._stream("maintenance/snapshot", {}, _SNAPSHOT):
            remaining = int(message.get("remaining_bytes", 0))
            yield base64.b64decode(message.get("blob", ""))
        if remaining != 0:
            raise EtcdError("taking a snapshot: the stream ended early")

    async def watch(self, from_revision: int) -> AsyncIterator[list[Change]]:
        """Yield all changes from a revision on, whole revisions at a time, until the connection ends.

        The first item is an empty list, and shows that etcd has established the watch. Raises Compacted, EtcdError.
        """
        create = {
            "key": _ALL_KEYS,
            "range_end": _ALL_KEYS,
            "start_revision": str(from_revision),
            "fragment": True,
        }
        pending: list[Change] = []
        async for message in self._stream("watch", {"create_request": create}, _STREAM):
            if message.get("compact_revision"):
                raise Compacted(int(message["compact_revision"]))
            if message.get("canceled"):
                raise EtcdError(f"watching etcd: {message.get('cancel_reason') or 'canceled'}")
            pending += map(_change, message.get("events") or ())
            if not message.get("fragment"):
                yield pending
                pending = []
        raise EtcdError("watching etcd: the connection ended")

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True)
            self._opened = aiohttp.ClientSession(connector=connector, trust_env=False, timeout=_ANSWER)
        return self._opened

    async def _ask(
        self, path: str, body: Mapping[str, Any], *, timeout: aiohttp.ClientTimeout = _ANSWER
    ) -> dict[str, Any]:
        try:
            async with self._post(path, body, timeout) as response:
                _check(response, path)
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise EtcdError(f"asking etcd for {path}: {type(error).__name__}") from None

    async def _stream(
        self, path: str, body: Mapping[str, Any], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._post(path, body, timeout) as response:
                _check(response, path)
                pieces: list[bytes] = []
                # Do not read line by line: a message may be longer than the reader's limit for lines.
                async for chunk in response.content.iter_any():
                    *ends, rest = chunk.split(b"\n")
                    for end in ends:
                        yield _result(b"".join([*pieces, end]), path)
                        pieces = []
                    pieces.append(rest)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise EtcdError(f"asking etcd for {path}: {type(error).__name__}") from None

    def _post(
        self, path: str, body: Mapping[str, Any], timeout: aiohttp.ClientTimeout
    ) -> "aiohttp.client._RequestContextManager":
        return self._session.post(
            f"{self._endpoint}/v3/{path}", json=body, timeout=timeout, server_hostname=self._server_name
        )


def client_tls(ca: bytes, certificate_file: str, key_file: str) -> ssl.SSLContext:
    """TLS context that trusts only ``ca`` (PEM), with our own certificate and key from two files."""
    context = ssl.create_default_context(cadata=ca.decode())
    context.load_cert_chain(certificate_file, key_file)
    return context


def _check(response: aiohttp.ClientResponse, path: str) -> None:
    if response.status != 200:
        raise EtcdError(f"asking etcd for {path}: it answered {response.status} {response.reason}")


def _result(line: bytes, path: str) -> dict[str, Any]:
    message = json.loads(line)
    if "result" not in message:
        error = message.get("error") or {}
        raise EtcdError(f"asking etcd for {path}: it ended with code {error.get('grpc_code', error.get('code'))}")
    result: dict[str, Any] = message["result"]
    return result


def _change(event: Mapping[str, Any]) -> Change:
    entry = event["kv"]
    deleted = event.get("type") == "DELETE"
    return Change(int(entry["mod_revision"]), entry["key"], None if deleted else entry.get("value", ""))

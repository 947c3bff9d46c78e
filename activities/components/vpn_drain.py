"""Drains a pod at either end of the tunnel before its containers end. Needs nothing but Python.

The pod refuses new connections. Idle connections are ended: their clients might send a request that the pod's end
interrupts. Other connections have some seconds for their requests. Then they are ended, too, while the pod can still
tell the clients.
"""

import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

_ANSWER_SECONDS = 5
_ANSWER_ENDS = re.compile(r"^(END|SUCCESS:.*|ERROR:.*)\r?$", re.MULTILINE)
_LAST_SECONDS = 2
"""Length of the phase, before the end, in which idle connections are ended. Most requests have ended before it."""
_POLL_SECONDS = 0.1
_TOLD_SECONDS = 0.5
_ANSWERED_MS = 200
"""A connection on which an answer came last is idle after this time without data."""
_QUIET_MS = 2000
"""Any connection is idle after this time without data."""

# linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _SOCK_DESTROY = 4, 20, 21
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_DONE, _ERROR = 3, 2
_INFO, _ESTABLISHED = 2, 1
_HEADER, _ID_BYTES, _MESSAGE_BYTES = struct.Struct("=IHHII"), 48, 72
_LAST_SENT, _LAST_RECEIVED = 44, 52


def main(refused: str, port: int, seconds: float, management: str = "") -> None:
    """Refuse new connections that a rule of iptables matches, and end those to a port.

    ``management``: socket of OpenVPN's management interface, in the server. All clients but the one in use connect to
    the next server at once.
    """
    end = time.monotonic() + seconds
    rule = [*refused.split(), "--syn", "-j", "REJECT", "--reject-with", "tcp-reset"]
    subprocess.run(["iptables", "-w", "-I", "INPUT", *rule], check=True)
    for spare in clients(management)[1:] if management else ():
        ask(management, f"client-kill {spare}")
    time.sleep(max(0.0, end - time.monotonic() - _LAST_SECONDS))
    while time.monotonic() < end:
        end_connections(port)
        time.sleep(_POLL_SECONDS)
    end_connections(port, idle=False)
    time.sleep(_TOLD_SECONDS)


def clients(management: str) -> list[str]:
    """Numbers of the clients, in the order of their addresses: the proxy uses the first one that answers."""
    rows = [line.split("\t") for line in ask(management, "status 3").splitlines() if line.startswith("CLIENT_LIST\t")]
    found = [([int(part) for part in row[3].split(".")], row[10]) for row in rows if row[3]]
    return [number for _, number in sorted(found)]


def ask(management: str, command: str) -> str:
    """Answer of OpenVPN's management interface to a command."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        asking.connect(management)
        asking.sendall(f"{command}\n".encode())
        answer = ""
        while not _ANSWER_ENDS.search(answer) and (more := asking.recv(65536)):
            answer += more.decode()
        return answer


def end_connections(port: int, *, idle: bool = True) -> None:
    """End connections to a port of this pod: all, or only idle ones."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        for identity, info in list(_connections(kernel, port)):
            (sent,) = struct.unpack_from("=I", info, _LAST_SENT)
            (received,) = struct.unpack_from("=I", info, _LAST_RECEIVED)
            if not idle or min(sent, received) > (_ANSWERED_MS if sent <= received else _QUIET_MS):
                # It may have ended by itself.
                _ask_kernel(kernel, _SOCK_DESTROY, _REQUEST | _ACK, identity)
                kernel.recv(65536)


def _connections(kernel: socket.socket, port: int) -> Iterator[tuple[bytes, bytes]]:
    """The kernel's identity of each connection, and its ``tcp_info``."""
    _ask_kernel(kernel, _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, struct.pack("!H46x", port))
    while True:
        data = kernel.recv(65536)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind in (_DONE, _ERROR):
                return
            message, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
            attributes = message[_MESSAGE_BYTES:]
            while attributes:
                size, name = struct.unpack_from("=HH", attributes)
                if name == _INFO:
                    yield message[4 : 4 + _ID_BYTES], attributes[4:size]
                attributes = attributes[(size + 3) & ~3 :]


def _ask_kernel(kernel: socket.socket, kind: int, flags: int, identity: bytes) -> None:
    request = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INFO - 1), 1 << _ESTABLISHED) + identity
    kernel.send(_HEADER.pack(_HEADER.size + len(request), kind, flags, 0, 0) + request)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])

"""How one of several etcd members finds the others, joins their cluster, and reports its own state.

The first member starts a new cluster, but only if no member holds data. All other members join, one at a time, as
learners: a learner has no vote before it holds all data. A member that has lost its data joins in the same way. First
it removes its old entry from the cluster, because the vote of that entry relied on the lost data.

While a control plane moves from one seed to another, members of both are in one cluster. The file of the existing
cluster names the members of the other seed: as long as it does, no member here starts a new cluster.

A member that is killed while it joins begins again, and replaces its entry, to which no data directory belongs.
Standard library only, like the wrapper that imports this module.

A member asks the others for the state of their data over TLS, with certificates of etcd's CA on both sides. Otherwise a
process that answers in place of a member could make the first member start a new cluster although there are data. One
port answers members over TLS, and the kubelet's probes, which have no client certificate, in plain HTTP. It also
reports the state of data in plain HTTP, to members of earlier versions: in a rolling update the first member is
replaced last, and may have to start the cluster before that.
"""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workers.etcd.data_directory import fault_of, has_log
from workers.etcd.json_log import log

NONE, BROKEN, SOUND = "none", "broken", "sound"
"""States of a data directory, as members report them."""

_TIMEOUT = 2.0
_CHANGE_TIMEOUT = 10.0
_RETRY_SECONDS = 1.0
_SETTLE_SECONDS = 0.2
_TLS_HANDSHAKE = b"\x16"
"""First byte of a TLS connection; a request in plain HTTP begins with a letter."""
_CONNECTIONS = 32
"""Number of connections that are answered at one time. The kubelet and each other member open one, for a moment."""

Entry = dict[str, Any]
"""A member as etcd lists it."""


class Refused(Exception):
    """A member does not answer, or refuses the request."""


class Membership:
    """The part that one member takes in its cluster; ``config`` is the wrapper's configuration."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self._config = config
        self._name = name
        self._peer = config["members"][name]
        self._section = config["membership"]
        self._settled = False

    @classmethod
    def of(cls, config: dict[str, Any], name: str) -> "Membership | None":
        """The membership of member ``name``; None for a single member."""
        return cls(config, name) if config.get("membership") else None

    def join(self, *, backed_up: bool) -> str | None:
        """Join the cluster of the other members, or decide that this member starts a new one.

        Returns the initial cluster that etcd has joined, or None if it starts a new cluster. Waits until the answers of
        the other members decide that. A broken data directory counts as no data only if there is a backup
        (``backed_up``): without a backup an operator may still save a part of it.
        """
        nothing = {NONE, BROKEN} if backed_up else {NONE}
        said = ""
        while True:
            try:
                if (joined := self._join()) is not None:
                    return joined
                first = self._name == min(self._config["members"])
                if first and not self._existing() and set(self._data()) <= nothing:
                    return None
                waiting = "no other member serves with a quorum"
            except Refused as error:
                waiting = str(error)
            if waiting != said:
                log("warning", f"waiting for the other members: {waiting}")
                said = waiting
            time.sleep(_RETRY_SECONDS)

    def _join(self) -> str | None:
        """Add this member as a learner. Returns the initial cluster, None if no other member serves with a quorum.

        Raises Refused if this member cannot be added yet.
        """
        known = {**self._config["members"], **self._existing().get("members", {})}
        for url in self._clients_of_others():
            try:
                there = self._ask(url, "cluster/member/list", {"linearizable": True})["members"]
            except Refused:
                continue
            strangers = [
                entry["name"]
                for entry in there
                if entry.get("name", self._name) != self._name
                and entry["name"] in known
                and entry["peerURLs"] != [known[entry["name"]]]
            ]
            if strangers:
                raise Refused(f"members {', '.join(strangers)} do not use their final peer URLs yet")
            if any(entry.get("isLearner") and self._peer not in entry["peerURLs"] for entry in there):
                raise Refused("another member is joining")
            for entry in there:
                if entry.get("name") == self._name or self._peer in entry["peerURLs"]:
                    log("info", f"removing member {int(entry['ID']):x} from the cluster: its data are lost")
                    self._ask(url, "cluster/member/remove", {"ID": entry["ID"]}, _CHANGE_TIMEOUT)
            added = self._ask(url, "cluster/member/add", {"peerURLs": [self._peer], "isLearner": True}, _CHANGE_TIMEOUT)
            log("info", f"joining as member {int(added['member']['ID']):x}")
            return self._initial_cluster(added["members"])
        return None

    def _initial_cluster(self, there: Iterable[Entry]) -> str:
        # A member that has not started has no name yet: it is this one, as no other member is joining.
        named = (f"{entry.get('name') or self._name}={url}" for entry in there for url in entry["peerURLs"])
        return ",".join(sorted(named))

    def _data(self) -> list[str]:
        """States of the data of all members.

        Raises Refused if a member does not answer, or another process answers in its place.
        """
        found = [data_of(Path(self._config["dataDir"]))]
        for name, url in self._section["wrappers"].items():
            if name == self._name:
                continue
            answer = _get(f"{url}/data", self._tls)
            if (answer.get("name"), answer.get("cluster")) != (name, self._token):
                raise Refused(f"another process answers in place of member {name}")
            found.append(answer["data"])
        return found

    @property
    def _token(self) -> str:
        return str(self._config["etcd"]["initial-cluster-token"])

    def _clients_of_others(self) -> list[str]:
        ours = [url for name, url in self._section["clients"].items() if name != self._name]
        return [*ours, *self._existing().get("clients", ())]

    def _existing(self) -> dict[str, Any]:
        """Members and client URLs of the cluster in another seed; empty if there is none to join (any more)."""
        try:
            found: dict[str, Any] = json.loads(Path(self._section["existing"]).read_text())
        except (KeyError, FileNotFoundError):
            return {}
        return found

    @property
    def _own_client(self) -> str:
        url = urlsplit(self._config["etcd"]["listen-client-urls"].partition(",")[0])
        return f"{url.scheme}://127.0.0.1:{url.port}"

    def settle(self) -> None:
        """Return once this member's etcd has a vote, and the cluster lists the peer URL at which it listens."""
        while True:
            try:
                if self._has_settled():
                    self._settled = True
                    return
            except Refused:
                pass  # etcd is starting, or has no quorum yet
            time.sleep(_SETTLE_SECONDS)

    def _has_settled(self) -> bool:
        status = self._ask(self._own_client, "maintenance/status", {})
        ours = status["header"]["member_id"]
        if status.get("isLearner"):
            self._promote(ours)
            return False
        there = self._ask(self._own_client, "cluster/member/list", {"linearizable": True})["members"]
        entry = next((entry for entry in there if entry["ID"] == ours), None)
        if entry is None:
            return False
        if entry["peerURLs"] != [self._peer]:
            log("info", f"announcing peer URL {self._peer} to the other members")
            update = {"ID": ours, "peerURLs": [self._peer]}
            self._ask(self._own_client, "cluster/member/update", update, _CHANGE_TIMEOUT)
            return False
        return True

    def _promote(self, ours: str) -> None:
        """Ask the other members to give this member a vote. They refuse until it has caught up."""
        for url in self._clients_of_others():
            try:
                self._ask(url, "cluster/member/promote", {"ID": ours}, _CHANGE_TIMEOUT)
            except Refused:
                continue
            log("info", f"member {int(ours):x} has a vote")
            return

    def step_down(self) -> None:
        """Transfer leadership to another member before this etcd stops, so that clients do not wait for an election.

        Does nothing if this member is not the leader.
        """
        try:
            status = self._ask(self._own_client, "maintenance/status", {})
            ours = status["header"]["member_id"]
            if status.get("leader") != ours:
                return
            there = self._ask(self._own_client, "cluster/member/list", {})["members"]
            for entry in there:
                if entry["ID"] != ours and not entry.get("isLearner"):
                    try:
                        self._ask(self._own_client, "maintenance/transfer-leadership", {"targetID": entry["ID"]})
                    except Refused:
                        continue
                    return
        except Refused:
            return

    def _ask(self, url: str, path: str, body: dict[str, Any], timeout: float = _TIMEOUT) -> dict[str, Any]:
        """Call etcd's JSON API. Raises Refused."""
        target = urlsplit(url)
        doing = f"asking {target.netloc} for {path}"
        try:
            connection = http.client.HTTPSConnection(
                target.hostname or "", target.port, timeout=timeout, context=self._tls()
            )
            try:
                connection.request("POST", f"/v3/{path}", json.dumps(body))
                response = connection.getresponse()
                answer: dict[str, Any] = json.loads(response.read())
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Refused(f"{doing}: {type(error).__name__}") from None
        if response.status != 200:
            raise Refused(f"{doing}: {answer.get('message', response.status)}")
        return answer

    def _tls(self) -> ssl.SSLContext:
        """TLS context for a client, made from the certificate files as they are now."""
        files = self._section["tls"]
        context = ssl.create_default_context(cafile=files["ca"])
        context.load_cert_chain(files["certificate"], files["key"])
        return context

    # What this member reports

    def serve(self) -> int:
        """Start the HTTP server: it tells other members the state of the data, and the kubelet whether etcd is ready.

        Returns the port.
        """
        import threading

        member = self
        turns = threading.BoundedSemaphore(_CONNECTIONS)

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                status, answer = member.tell(self.path)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Log nothing: probes come all the time."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def verify_request(self, *_: object) -> bool:
                """Whether fewer than ``_CONNECTIONS`` are being answered; otherwise the new connection is closed."""
                return turns.acquire(blocking=False)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    turns.release()

            def finish_request(self, request: Any, client_address: Any) -> None:
                request.settimeout(_TIMEOUT)
                if request.recv(1, socket.MSG_PEEK) != _TLS_HANDSHAKE:
                    super().finish_request(request, client_address)
                    return
                with member._server_tls().wrap_socket(request, server_side=True) as tls:
                    super().finish_request(tls, client_address)

            def handle_error(self, *_: object) -> None:
                """Log nothing: the connection broke off, or the client showed no certificate."""

        port = urlsplit(self._section["wrappers"][self._name]).port or 0
        server = Server(("", port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])

    def _server_tls(self) -> ssl.SSLContext:
        """TLS context for the server, made from the certificate files as they are now.

        A client needs a certificate of etcd's CA.
        """
        security = self._config["etcd"]["client-transport-security"]
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=security["trusted-ca-file"])
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(security["cert-file"], security["key-file"])
        return context

    def tell(self, path: str) -> tuple[int, dict[str, Any]]:
        """HTTP status and JSON content of the answer to a request for ``path``."""
        if path == "/data":
            return 200, {"name": self._name, "cluster": self._token, "data": data_of(Path(self._config["dataDir"]))}
        if path == "/readyz":
            if not self._settled:
                return 503, {"reason": "the member has no vote yet"}
            try:
                _get(f"{self._config['etcd']['listen-metrics-urls'].replace('0.0.0.0', '127.0.0.1')}/readyz")
            except Refused as error:
                return 503, {"reason": str(error)}
            return 200, {}
        return 404, {}


def data_of(data: Path) -> str:
    if not has_log(data):
        return NONE
    return BROKEN if fault_of(data) else SOUND


def _get(url: str, tls: Callable[[], ssl.SSLContext] | None = None) -> dict[str, Any]:
    """JSON content of the answer to a GET request. Raises Refused unless the status is 200.

    The request uses TLS if ``tls`` is given, else plain HTTP; the scheme of the URL does not count.
    """
    target = urlsplit(url)
    host, port = target.hostname or "", target.port
    try:
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=tls())
            if tls
            else http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
        )
        try:
            connection.request("GET", target.path)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"asking {target.netloc}: {type(error).__name__}") from None
    if response.status != 200:
        raise Refused(f"{target.netloc} answered {response.status}")
    try:
        answer: dict[str, Any] = json.loads(content)
    except ValueError:
        return {}
    return answer

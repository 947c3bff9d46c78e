"""The search for keys and tokens finds them where they are planted: a search that looks nowhere finds nothing, too."""

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.landscape import leaks
from tests.landscape.conftest import Landscape

KEY = "c2VjcmV0LW9mLXRoaXMtdGVzdC1hbG9uZQ"
NEEDLES: leaks.Needles = {KEY.encode(): ["garden/x: token"]}
METRICS = "/metrics"


class Temporal:
    """Its metrics, and the directory of a landscape around it."""

    def __init__(self, directory: Path, server: http.server.HTTPServer) -> None:
        self.directory = directory
        self.metrics = "service_requests 1\n"
        for path in ("temporal/temporal.db", "temporal/temporal.db-wal", "logs/temporal.log", "logs/garden.log"):
            self.write(path, "nothing to see")
        facts = {"temporal": {"metrics": f"http://127.0.0.1:{server.server_address[1]}{METRICS}"}}
        self.write("landscape.json", json.dumps(facts))

    def write(self, path: str, text: str) -> None:
        file = self.directory / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"\0\x12" + text.encode() + b"\xff" if path.startswith("temporal") else text.encode())

    def leaks(self, landscape: Landscape) -> dict[str, list[str]]:
        told = leaks.temporal_itself(landscape)
        return {name: where for name, text in told.items() if (where := leaks.found(NEEDLES, text))}


@pytest.fixture
def landscape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Landscape:
    monkeypatch.setattr(Landscape, "directory", tmp_path)
    return Landscape("any")


@pytest.fixture
def temporal(tmp_path: Path, landscape: Landscape) -> Iterator[Temporal]:
    made: list[Temporal] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(made[0].metrics.encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        made.append(Temporal(tmp_path, server))
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        yield made[0]
        server.shutdown()
        serving.join()


def test_no_leak_is_found_without_a_secret(temporal: Temporal, landscape: Landscape) -> None:
    assert temporal.leaks(landscape) == {}


@pytest.mark.parametrize("path", ["temporal/temporal.db", "temporal/temporal.db-wal", "logs/temporal.log"])
def test_data_and_logs_of_temporal_are_searched(temporal: Temporal, landscape: Landscape, path: str) -> None:
    temporal.write(path, f'{{"input": "{KEY}"}}')
    assert temporal.leaks(landscape) == {path: ["garden/x: token"]}


def test_metrics_of_temporal_are_searched(temporal: Temporal, landscape: Landscape) -> None:
    temporal.metrics += f'workflow_failed{{reason="{KEY}"}} 1\n'
    assert temporal.leaks(landscape) == {"metrics of Temporal": ["garden/x: token"]}


def test_another_server_is_not_taken_for_temporal(temporal: Temporal, landscape: Landscape) -> None:
    temporal.metrics = "up 1\n"
    with pytest.raises(AssertionError, match="no metrics of Temporal"):
        temporal.leaks(landscape)


def test_token_and_key_of_a_kubeconfig_are_searched() -> None:
    """As they stand in the Secret of a gardenlet, whose values hide them in base64."""
    kubeconfig = f'{{"users": [{{"user": {{"token": "{KEY}"}}}}]}}'.encode()
    assert KEY.encode() in set(leaks._needles("kubeconfig", kubeconfig))
    assert base64.b64encode(KEY.encode()) in set(leaks._needles("token-secret", KEY.encode()))

"""Metrics of requests to API servers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Histogram

from kube.client import Request

REQUEST_SECONDS = Histogram(
    "gardener_kube_request_duration_seconds",
    "Time until an API server answered; of a watch, until it agreed.",
    ["verb", "resource", "code"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30),
)


@contextmanager
def measured(request: Request) -> Iterator[None]:
    """Measure the duration of one request. The code is 0 if there was no answer."""
    started = time.monotonic()
    try:
        yield
    finally:
        labels = request.method, request.resource, str(request.status)
        REQUEST_SECONDS.labels(*labels).observe(time.monotonic() - started)

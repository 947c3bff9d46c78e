"""Measure and trace a process's requests to API servers."""

from collections.abc import Iterator
from contextlib import contextmanager

from kube import client
from kube.client import Request
from workers.lib.metrics.requests import measured
from workers.lib.tracing import Tracing, TracingConfig


def observe_requests(component: str, config: TracingConfig | None) -> Tracing | None:
    """Set up metrics and traces of requests; call it once per process, before the first request.

    Returns the process's tracing, which the caller must close at the end; None if tracing is not configured.
    """
    tracing = Tracing.exporting(component, config) if config is not None else None

    @contextmanager
    def measured_and_traced(request: Request) -> Iterator[None]:
        if tracing is None:
            with measured(request):
                yield
        else:
            with measured(request), tracing.request(request):
                yield

    client.observe = measured_and_traced
    return tracing

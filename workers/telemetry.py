"""Have a process measure and trace what it asks of API servers, and trace its tasks."""

from collections.abc import Iterator
from contextlib import contextmanager

from kube import client
from kube.client import Request
from workers.metrics.requests import measured
from workers.tracing import Tracing, TracingConfig


def observe_requests(component: str, config: TracingConfig | None) -> Tracing | None:
    """Once per process, before its first request. Returns its tracing, to be closed at its end; None if it has none."""
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

"""OpenTelemetry traces: from the change of a Shoot, over its operations and their tasks, to each API call.

A trace holds all that one generation of one Shoot has caused. The ids of the trace and of parent spans are computed
from values that every process knows: the Shoot's uid, the generation, the workflow's id. So no ids have to be passed
through signals, histories and restarts. A lifecycle that runs for months gets one trace per change. Temporal's own
interceptor is not used, because its traces begin at the start of a workflow: a lifecycle would have one trace without
end.

    Shoot changed (watcher)
      Reconcile garden-local/demo, attempt 1 (written when it has ended)
        deploy_etcds, attempt 1 (gardenlet)
          PATCH etcds
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from temporalio import activity

from api.contracts.flows import FinishOperation
from api.contracts.operations import ShootRef, ShootTask
from api.model import ApiModel
from kube.client import Request

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

_next_id: ContextVar[tuple[int, int] | None] = ContextVar("next_id", default=None)
"""Trace id and span id for the next span; None: the SDK generates them."""


class TracingConfig(ApiModel):
    """Destination of traces; without this configuration, nothing is traced."""

    endpoint: str
    """URL of an OTLP receiver over HTTP, such as ``http://collector:4318/v1/traces``."""
    sample_ratio: float = 1.0
    """Share of changes that are traced, 0 to 1. All processes trace the same changes, each completely."""


class Tracing:
    """The spans of one process."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gardener-on-temporal")

    @classmethod
    def of(cls, component: str, processor: "SpanProcessor", sample_ratio: float = 1.0) -> "Tracing":
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

        class Ids(RandomIdGenerator):
            def generate_trace_id(self) -> int:
                given = _next_id.get()
                return given[0] if given else super().generate_trace_id()

            def generate_span_id(self) -> int:
                given = _next_id.get()
                return given[1] if given else super().generate_span_id()

        provider = TracerProvider(
            resource=Resource.create({"service.name": f"gardener-{component}"}),
            # The sampler uses nothing but the trace's id, so all processes sample the same traces.
            sampler=TraceIdRatioBased(sample_ratio),
            id_generator=Ids(),
        )
        provider.add_span_processor(processor)
        return cls(provider)

    @classmethod
    def exporting(cls, component: str, config: TracingConfig) -> "Tracing":
        """Tracing with an OTLP receiver. Spans that it does not accept in time are dropped, with a log line."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter: SpanExporter = OTLPSpanExporter(endpoint=config.endpoint)
        return cls.of(component, BatchSpanProcessor(exporter, schedule_delay_millis=2000), config.sample_ratio)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def changed(self, shoot: ShootRef, generation: int, since: datetime, **attributes: str) -> None:
        """Record that a Shoot was changed and that its lifecycle was notified."""
        trace = _trace_id(shoot, generation)
        given = _next_id.set((trace, _span_id("change", trace)))
        try:
            described = {**_described(shoot, generation), **attributes}
            span = self._tracer.start_span("Shoot changed", attributes=described, start_time=_nanoseconds(since))
            span.end()
        finally:
            _next_id.reset(given)

    def operation_ended(self, request: FinishOperation) -> None:
        """Record the end of an attempt of an operation."""
        from opentelemetry.trace import Status, StatusCode

        task = request.task
        if not task.trigger or not request.workflow_id:
            return
        trace = _trace_id(task.shoot, task.generation)
        given = _next_id.set((trace, _span_id("operation", request.workflow_id)))
        try:
            span = self._tracer.start_span(
                f"{task.operation} {task.shoot}, attempt {request.attempt}",
                context=_below(trace, _span_id("change", trace)),
                attributes=_described(task.shoot, task.generation)
                | {
                    "gardener.operation": str(task.operation),
                    "gardener.state": request.state,
                    "gardener.seed": task.seed,
                },
                start_time=_nanoseconds(datetime.fromisoformat(task.trigger)),
            )
        finally:
            _next_id.reset(given)
        if request.state != "Succeeded":
            span.set_status(Status(StatusCode.ERROR, request.description))
        span.end()

    @contextmanager
    def task(self, info: activity.Info, subject: object) -> Iterator[None]:
        """Span of one attempt of a task: below its operation, or in a trace of its workflow if it has no operation."""
        workflow = info.workflow_id or ""
        task = subject if isinstance(subject, ShootTask) else getattr(subject, "task", None)
        attributes: dict[str, str | int] = {
            "gardener.task": info.activity_type,
            "gardener.attempt": info.attempt,
            "gardener.queue": info.task_queue,
            "temporal.workflow_id": workflow,
        }
        if isinstance(task, ShootTask):
            attributes |= _described(task.shoot, task.generation)
            trace = _trace_id(task.shoot, task.generation)
        else:
            trace = _number(16, "workflow", workflow)
        name = f"{info.activity_type}, attempt {info.attempt}"
        parent = _below(trace, _span_id("operation", workflow))
        with self._tracer.start_as_current_span(name, context=parent, attributes=attributes):
            yield

    @contextmanager
    def request(self, request: Request) -> Iterator[None]:
        """Span of one request to an API server, if a task makes it."""
        from opentelemetry import trace

        if not trace.get_current_span().get_span_context().is_valid:
            yield
            return
        attributes = {"http.request.method": request.method, "url.path": request.path, "server.address": request.server}
        with self._tracer.start_as_current_span(
            f"{request.method} {request.resource}", attributes=attributes, record_exception=False
        ) as span:
            try:
                yield
            finally:
                span.set_attribute("http.response.status_code", request.status)


def _described(shoot: ShootRef, generation: int) -> dict[str, str | int]:
    return {"gardener.shoot": str(shoot), "gardener.shoot_uid": shoot.uid, "gardener.generation": generation}


def _below(trace_id: int, span_id: int) -> "Context":
    from opentelemetry import trace

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    parent = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


def _trace_id(shoot: ShootRef, generation: int) -> int:
    return _number(16, shoot.uid, str(generation))


def _span_id(kind: str, name: object) -> int:
    return _number(8, kind, str(name))


def _number(size: int, *parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:size], "big") or 1


def _nanoseconds(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp() * 1_000_000_000)


def change_of(shoot: Mapping[str, Any]) -> dict[str, str]:
    """Attributes of the change of a Shoot that no operation has handled yet; empty if there is none."""
    from api import constants

    metadata, status = shoot["metadata"], shoot.get("status") or {}
    annotations, asked = metadata.get("annotations") or {}, {}
    if operation := annotations.get(constants.OPERATION):
        asked["gardener.change"] = f"annotation {constants.OPERATION}={operation}"
    if metadata.get("generation") != status.get("observedGeneration"):
        asked["gardener.change"] = "specification"
    if "deletionTimestamp" in metadata and (status.get("lastOperation") or {}).get("type") != "Delete":
        asked["gardener.change"] = "deletion"
    if asked and (by := annotations.get(constants.CHANGED_BY)):
        asked["gardener.user"] = by
    return asked

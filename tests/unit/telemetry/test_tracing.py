"""Traces from the change of a Shoot to the API call, as an OTLP receiver gets them."""

import asyncio
import dataclasses
import gzip
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio import activity
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from api.contracts.flows import FinishOperation
from api.contracts.operations import OperationType, ShootRef, ShootTask
from api.resources import SECRET
from kube import client as kube
from kube.client import Request
from tests.unit.kube.api_server import ApiServer
from workers.lib.interceptors import ActivityInterceptor
from workers.lib.telemetry import observe_requests
from workers.lib.tracing import Tracing, TracingConfig, change_of

SHOOT = ShootRef(namespace="garden-local", name="demo", uid="c0ffee")
FLOW = "shoot/garden-local/demo/c0ffee/reconcile/3-1"
TASK = ShootTask(
    shoot=SHOOT,
    technical_id="shoot--local--demo",
    seed="seed-1",
    generation=3,
    operation=OperationType.RECONCILE,
    trigger="2026-11-21T10:00:00.000000Z",
)


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[str, list[Any]]]:
    """An OTLP receiver: its address, and the spans it got."""
    spans: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        export = ExportTraceServiceRequest.FromString(body)
        for resource in export.resource_spans:
            spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/v1/traces")), spans
    await server.close()


async def work(tracing: Tracing | None, api: ApiServer, task: object = TASK) -> None:
    """One attempt of a task that reads a Secret, as a worker runs it."""

    async def deploy_something(_: object) -> None:
        async with api.client() as client:
            await client.find(SECRET, "a", "b")

    class Last(ActivityInboundInterceptor):
        def __init__(self) -> None:
            pass

        async def execute_activity(self, input: ExecuteActivityInput) -> Any:
            return await input.fn(*input.args)

    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id=FLOW, activity_type="deploy_something")
    worker = ActivityInterceptor(tracing).intercept_activity(Last())

    async def run() -> None:
        assert activity.info().workflow_id == FLOW
        await worker.execute_activity(ExecuteActivityInput(fn=deploy_something, args=[task], executor=None, headers={}))

    await environment.run(run)


async def test_one_trace_leads_from_the_change_to_the_request(
    receiver: tuple[str, list[Any]], api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watcher, gardenlet and controller-manager are processes of their own, and carry nothing to each other."""
    endpoint, spans = receiver
    monkeypatch.setattr(kube, "observe", kube.observe)
    config = TracingConfig(endpoint=endpoint)
    watcher = Tracing.exporting("controller-manager", config)
    gardenlet = observe_requests("gardenlet", config)
    assert gardenlet is not None

    watcher.changed(SHOOT, 3, datetime.now(UTC), **{"gardener.change": "specification"})
    await work(gardenlet, api)
    watcher.operation_ended(
        FinishOperation(task=TASK, attempt=1, state="Error", description="x failed", workflow_id=FLOW)
    )
    await asyncio.gather(*(asyncio.to_thread(each.close) for each in (watcher, gardenlet)))

    named = {span.name: span for span in spans}
    change, operation = named["Shoot changed"], named["Reconcile garden-local/demo, attempt 1"]
    task, request = named["deploy_something, attempt 1"], named["GET secrets"]
    assert len({span.trace_id for span in spans}) == 1
    assert not change.parent_span_id
    assert operation.parent_span_id == change.span_id
    assert task.parent_span_id == operation.span_id
    assert request.parent_span_id == task.span_id
    assert operation.status.message == "x failed"
    attributes = {each.key: each.value for each in request.attributes}
    assert attributes["http.response.status_code"].int_value == 404
    assert attributes["url.path"].string_value == "/api/v1/namespaces/b/secrets/a"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        yield server


async def test_the_next_generation_is_another_trace(api: ApiServer) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing.of("test", SimpleSpanProcessor(exporter))
    for generation in (3, 4):
        await work(tracing, api, TASK.model_copy(update={"generation": generation}))

    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 2


async def test_a_change_is_sampled_by_all_processes_or_by_none(api: ApiServer) -> None:
    kept, dropped = InMemorySpanExporter(), InMemorySpanExporter()
    await work(Tracing.of("a", SimpleSpanProcessor(kept), 1.0), api)
    await work(Tracing.of("b", SimpleSpanProcessor(dropped), 0.0), api)

    assert kept.get_finished_spans()
    assert not dropped.get_finished_spans()


async def test_without_configuration_nothing_is_traced(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "observe", kube.observe)

    assert observe_requests("gardenlet", None) is None
    await work(None, api)


@pytest.mark.parametrize(
    ("metadata", "status", "change"),
    [
        ({"generation": 2}, {"observedGeneration": 2}, None),
        ({"generation": 2}, {"observedGeneration": 1}, "specification"),
        (
            {"generation": 2, "annotations": {"gardener.cloud/operation": "retry"}},
            {"observedGeneration": 2},
            "annotation gardener.cloud/operation=retry",
        ),
        ({"generation": 2, "deletionTimestamp": "x"}, {"observedGeneration": 2}, "deletion"),
        (
            {"generation": 2, "deletionTimestamp": "x"},
            {"observedGeneration": 2, "lastOperation": {"type": "Delete"}},
            None,
        ),
    ],
)
def test_a_change_is_what_no_operation_has_answered(metadata: Any, status: Any, change: str | None) -> None:
    """A restarted watcher sees all Shoots again; that is no change of theirs."""
    assert change_of({"metadata": metadata, "status": status}).get("gardener.change") == change


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/namespaces/a/secrets/b", "secrets"),
        ("/api/v1/namespaces/a/secrets", "secrets"),
        ("/api/v1/namespaces/a", "namespaces"),
        ("/api/v1/namespaces/a/finalize", "namespaces/finalize"),
        ("/apis/apps/v1/namespaces/a/deployments/b/status", "deployments/status"),
        ("/apis/core.gardener.cloud/v1beta1/seeds/a", "seeds"),
        ("/healthz", ""),
        ("/apis/apps/v1", ""),
    ],
)
def test_requests_are_counted_by_resource_and_not_by_name(path: str, resource: str) -> None:
    """A label per object would be as many time series as objects."""
    assert Request("GET", "https://x", path).resource == resource

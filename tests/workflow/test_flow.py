"""The engine on graphs of every shape: order, failures, resumption, cancellation, lost queues."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from api.contracts.flows import Attempt, FlowOutcome, FlowProgress, TaskState
    from api.contracts.operations import TaskResult
    from api.model import ApiModel
    from workflows.flow import OUTCOME_MEMO, Call, Flow, failed_outcome

QUEUE = "engine"
ONE_MINUTE = workflow.ActivityConfig(start_to_close_timeout=timedelta(minutes=1))


class Node(ApiModel):
    after: tuple[str, ...] = ()
    unless: str = ""
    completes: str = ""


class Graph(ApiModel):
    nodes: dict[str, Node]
    attempt: Attempt = Attempt()
    elsewhere: str = QUEUE
    patience: timedelta = timedelta(seconds=30)


class Subject(ApiModel):
    trigger: str = ""


@workflow.defn
class RunGraph:
    @workflow.init
    def __init__(self, graph: Graph) -> None:
        self.flow = Flow(
            "Test",
            Subject(),
            queue=graph.elsewhere,
            attempt=graph.attempt,
            options=workflow.ActivityConfig(
                start_to_close_timeout=timedelta(minutes=5),
                schedule_to_start_timeout=graph.patience,
                heartbeat_timeout=timedelta(seconds=10),
                retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1)),
            ),
        )
        for name, node in graph.nodes.items():
            self.flow.add(Tasks.work, name=name, after=node.after, unless=node.unless, completes=node.completes)

    @workflow.query
    def progress(self) -> FlowProgress:
        return self.flow.progress()

    @workflow.run
    async def run(self, graph: Graph) -> FlowOutcome:
        return await self.flow.run()


@workflow.defn
class FaultyArgument:
    """A flow whose own code fails as its second task starts."""

    @workflow.run
    async def run(self) -> FlowOutcome:
        flow = Flow("Test", Subject(), queue=QUEUE, options=ONE_MINUTE)
        first = flow.add(Tasks.work, name="first")
        flow.add(Call(Tasks.work, self._argument), name="second", after=[first])
        return await flow.run()

    def _argument(self) -> Subject:
        raise LookupError("no such subject")


class Tasks:
    """One activity for all tasks; what it shall do depends on the task's name."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.triggers: dict[str, str] = {}
        self.failing: set[str] = set()
        self.flaky: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}

    @activity.defn
    async def work(self, subject: Subject) -> TaskResult:
        name = activity.info().activity_id
        self.started.append(name)
        self.triggers[name] = subject.trigger
        if gate := self.held.get(name):
            while not gate.is_set():
                activity.heartbeat()
                await asyncio.wait({asyncio.create_task(gate.wait())}, timeout=0.1)
        await asyncio.sleep(0)
        if name in self.failing:
            raise ApplicationError(f"{name} is broken", type="ERR_CONFIGURATION_PROBLEM", non_retryable=True)
        if name in self.flaky:
            raise ApplicationError("not yet", type="NotReady")
        self.ended.append(name)
        return TaskResult(note=f"{name} done")


@asynccontextmanager
async def worker(env: WorkflowEnvironment) -> AsyncIterator[Tasks]:
    tasks = Tasks()
    async with Worker(env.client, task_queue=QUEUE, workflows=[RunGraph, FaultyArgument], activities=[tasks.work]):
        yield tasks


async def run(env: WorkflowEnvironment, graph: Graph, name: str = "flow") -> FlowOutcome:
    return await env.client.execute_workflow(RunGraph.run, graph, id=name, task_queue=QUEUE)


async def failed(env: WorkflowEnvironment, graph: Graph, name: str = "flow") -> FlowOutcome:
    with pytest.raises(WorkflowFailureError) as failure:
        await run(env, graph, name)
    outcome = failed_outcome(failure.value.cause)
    assert outcome is not None
    return outcome


def nodes(**after: Any) -> dict[str, Node]:
    return {name: each if isinstance(each, Node) else Node(after=tuple(each.split())) for name, each in after.items()}


def random_graph(chance: random.Random) -> dict[str, Node]:
    graph: dict[str, Node] = {}
    for number in range(chance.randint(1, 14)):
        after = tuple(chance.sample(sorted(graph), chance.randint(0, min(3, len(graph)))))
        graph[f"t{number}"] = Node(after=after, unless="unneeded" if chance.random() < 0.2 else "")
    return graph


def ancestors(graph: dict[str, Node], name: str) -> set[str]:
    found = set(graph[name].after)
    for each in graph[name].after:
        found |= ancestors(graph, each)
    return found


async def test_order_holds_on_random_graphs_with_skipped_and_failing_tasks(env: WorkflowEnvironment) -> None:
    async with worker(env) as tasks:
        for seed in range(12):
            chance = random.Random(seed)
            graph = random_graph(chance)
            tasks.started.clear()
            tasks.ended.clear()
            tasks.failing = {name for name in graph if chance.random() < 0.1 and not graph[name].unless}
            request = Graph(nodes=graph)
            if any(not ancestors(graph, name) & tasks.failing for name in tasks.failing):
                outcome = await failed(env, request, f"flow-{seed}")
            else:
                outcome = await run(env, request, f"flow-{seed}")

            expected = {
                name
                for name, node in graph.items()
                if not node.unless and name not in tasks.failing and not ancestors(graph, name) & tasks.failing
            }
            assert set(tasks.ended) == expected, f"seed {seed}"
            assert {each.name for each in outcome.finished} == expected
            for place, name in enumerate(tasks.started):
                before = {each for each in ancestors(graph, name) if not graph[each].unless}
                assert before <= set(tasks.started[:place]), f"seed {seed}: {name} too early"


async def test_independent_tasks_run_side_by_side(env: WorkflowEnvironment) -> None:
    async with worker(env) as tasks:
        tasks.held = {"a": asyncio.Event(), "b": asyncio.Event()}
        handle = await env.client.start_workflow(
            RunGraph.run, Graph(nodes=nodes(a="", b="", c="a b")), id="flow", task_queue=QUEUE
        )
        async with asyncio.timeout(10):
            while len(tasks.started) < 2:  # noqa: ASYNC110 -- activities of a worker are no event
                await asyncio.sleep(0.02)
        progress = await handle.query(RunGraph.progress)
        assert [task.state for task in progress.tasks] == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
        for gate in tasks.held.values():
            gate.set()
        await handle.result()
        assert (await handle.query(RunGraph.progress)).percent == 100


async def test_a_failed_branch_stops_no_other_and_all_errors_are_reported(env: WorkflowEnvironment) -> None:
    graph = nodes(a="", b="a", c="a", d="c", e="b d")
    async with worker(env) as tasks:
        tasks.failing = {"b"}
        outcome = await failed(env, Graph(nodes=graph))
        assert {each.name for each in outcome.finished} == {"a", "c", "d"}
        assert [(each.name, each.codes) for each in outcome.failed] == [("b", ("ERR_CONFIGURATION_PROBLEM",))]

        tasks.failing = {"b", "c"}
        outcome = await failed(env, Graph(nodes=graph), "both")
        assert {each.name for each in outcome.failed} == {"b", "c"}


async def test_the_next_attempt_runs_only_what_is_not_finished(env: WorkflowEnvironment) -> None:
    graph = nodes(a="", b="a", c="a", d="b c")
    async with worker(env) as tasks:
        tasks.failing = {"b"}
        outcome = await failed(env, Graph(nodes=graph))
        tasks.failing = set()
        tasks.started.clear()
        again = await run(env, Graph(nodes=graph, attempt=Attempt(number=2, kept=outcome)), "second")

    assert tasks.started == ["b", "d"]
    assert {each.name: each.attempt for each in again.finished} == {"a": 1, "c": 1, "b": 2, "d": 2}
    assert {each.name: each.result.note for each in again.finished}["a"] == "a done"


async def test_a_wait_and_what_it_completes_are_one_step_with_one_trigger(env: WorkflowEnvironment) -> None:
    graph = nodes(a="", b=Node(after=("a",), completes="a"), c=Node(after=("a",), completes="a"))
    async with worker(env) as tasks:
        tasks.failing = {"b"}
        outcome = await failed(env, Graph(nodes=graph, attempt=Attempt(trigger="first")))
        assert [each.name for each in outcome.finished] == ["c"]
        tasks.failing = set()
        tasks.started.clear()
        await run(env, Graph(nodes=graph, attempt=Attempt(number=2, trigger="second", kept=outcome)), "second")

    assert tasks.started == ["a", "b"]
    assert tasks.triggers["b"] == "second"


async def test_a_wait_uses_the_trigger_of_a_kept_task(env: WorkflowEnvironment) -> None:
    graph = nodes(a="", x="", b=Node(after=("a", "x"), completes="a"))
    async with worker(env) as tasks:
        tasks.failing = {"x"}
        outcome = await failed(env, Graph(nodes=graph, attempt=Attempt(trigger="first")))
        tasks.failing = set()
        await run(env, Graph(nodes=graph, attempt=Attempt(number=2, trigger="second", kept=outcome)), "second")

    assert tasks.triggers["b"] == "first"


async def test_a_canceled_flow_ends_at_a_task_border_with_its_outcome_recorded(env: WorkflowEnvironment) -> None:
    async with worker(env) as tasks:
        tasks.held = {"b": asyncio.Event()}
        handle = await env.client.start_workflow(
            RunGraph.run, Graph(nodes=nodes(a="", b="a", c="b")), id="flow", task_queue=QUEUE
        )
        async with asyncio.timeout(10):
            while "b" not in tasks.started:  # noqa: ASYNC110 -- activities of a worker are no event
                await asyncio.sleep(0.02)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        history = [event async for event in handle.fetch_history_events()]

    assert "c" not in tasks.started
    [memo] = [
        event.workflow_properties_modified_event_attributes.upserted_memo
        for event in history
        if event.HasField("workflow_properties_modified_event_attributes")
    ]
    [outcome] = await env.client.data_converter.decode([memo.fields[OUTCOME_MEMO]], [FlowOutcome])
    assert [each.name for each in outcome.finished] == ["a"]
    assert outcome.canceled


async def test_another_branch_that_retries_for_ever_does_not_hide_a_failure(env: WorkflowEnvironment) -> None:
    """The user has fixed the error and wants to retry; a flow that never ends would prevent that."""
    async with worker(env) as tasks:
        tasks.failing = {"a"}
        tasks.flaky = {"b"}
        outcome = await failed(env, Graph(nodes=nodes(a="", b="")))

    assert [each.name for each in outcome.failed] == ["a"]
    assert outcome.finished == ()


async def test_a_queue_without_a_worker_is_reported_and_awaited(dev_server: WorkflowEnvironment) -> None:
    graph = Graph(nodes=nodes(a=""), elsewhere="unserved", patience=timedelta(seconds=1))
    async with worker(dev_server):
        handle = await dev_server.client.start_workflow(RunGraph.run, graph, id="flow", task_queue=QUEUE)
        async with asyncio.timeout(20):
            while not (task := (await handle.query(RunGraph.progress)).tasks[0]).unanswered_since:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert task.state is TaskState.RUNNING
        assert task.note == "no worker polls queue unserved"
        assert task.unanswered_since == task.started

        late = Tasks()
        async with Worker(dev_server.client, task_queue="unserved", activities=[late.work]):
            await handle.result()
    assert late.ended == ["a"]


async def test_an_error_that_outlasts_the_deadline_ends_the_task_with_its_text(env: WorkflowEnvironment) -> None:
    @activity.defn(name="work")
    async def broken(subject: Subject) -> TaskResult:
        raise ApplicationError("the cloud is full", type="ERR_INFRA_RESOURCES_DEPLETED")

    async with Worker(env.client, task_queue=QUEUE, workflows=[RunGraph, FaultyArgument], activities=[broken]):
        deadline = await env.get_current_time() + timedelta(hours=12)
        outcome = await failed(env, Graph(nodes=nodes(a=""), attempt=Attempt(deadline=deadline)))

    [error] = outcome.failed
    assert "the cloud is full" in error.message
    assert error.codes == ("ERR_INFRA_RESOURCES_DEPLETED",)


async def test_an_error_in_the_code_of_a_flow_fails_its_workflow_task(dev_server: WorkflowEnvironment) -> None:
    """Such an error is in the history, and a corrected worker goes on. A flow that ignored it would wait for ever."""
    async with worker(dev_server):
        handle = await dev_server.client.start_workflow(FaultyArgument.run, id="faulty", task_queue=QUEUE)
        async with asyncio.timeout(20):
            events = handle.fetch_history_events(wait_new_event=True)
            failure = await anext(
                event.workflow_task_failed_event_attributes.failure
                async for event in events
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
            )
        await handle.terminate()

    assert failure.message == "no such subject"

"""What a client may do in a Temporal cluster, by its certificate: a real server, and each method of its API.

The server is built from ``temporal-server`` the first time, in minutes; it then answers within seconds.
"""

import asyncio
import socket
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from google.protobuf.message import Message
from temporalio import activity, workflow
from temporalio.api.enums.v1 import IndexedValueType, TaskQueueKind
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    RemoveSearchAttributesRequest,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
    RecordActivityTaskHeartbeatRequest,
    RegisterNamespaceRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
    StartBatchOperationRequest,
)
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.common import (
    VersioningBehavior,
    WorkerDeploymentVersion,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from api import constants
from api.contracts.operations import GARDEN_QUEUE
from api.contracts.repair import Action, Repair
from landscape.pki import KeyPair
from tests.temporal_methods import OPEN, not_refused, refused, status_of
from tests.temporal_server import Cluster, cluster, start_refused
from tests.unit.kube.waiting import until
from workers.lib.callers import Callers
from workers.promote import PromoteConfig, promote

pytestmark = [pytest.mark.binaries, pytest.mark.timeout(120, func_only=True)]

CODE_BYTES = 36
"""What the server adds to a token."""


@pytest.fixture(scope="module")
def temporal() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@activity.defn
async def work(name: str) -> str:
    activity.heartbeat(name)
    return f"{name} is done"


@workflow.defn
class Flow:
    """Runs one activity on the queue that its input names; waits first if told to."""

    def __init__(self) -> None:
        self._by = ""

    @workflow.run
    async def run(self, queue: str) -> str:
        if not queue:
            await workflow.wait_condition(lambda: bool(self._by))
            return self._by
        return await workflow.execute_activity(
            work, queue, task_queue=queue, start_to_close_timeout=timedelta(minutes=1)
        )

    @workflow.update
    def repair(self, request: Repair) -> str:
        self._by = request.by
        return request.by

    @repair.validator
    def _check(self, request: Repair) -> None:
        """Any repair is accepted."""


def worker(client: Client, queue: str, *, flows: bool = False, **options: Any) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        activities=[work],
        workflows=[Flow] if flows else [],
        interceptors=[Callers(required=True)],
        workflow_runner=UnsandboxedWorkflowRunner(),
        graceful_shutdown_timeout=timedelta(seconds=1),
        **options,
    )


async def waiting_task(temporal: Cluster, seed: str) -> tuple[WorkflowHandle[Any, str], bytes]:
    """A flow of the garden with an activity in a seed, polled by that seed's gardenlet; and the task's token."""
    garden, gardenlet = await temporal.process(), await temporal.gardenlet(seed)
    flow: WorkflowHandle[Any, str] = await garden.start_workflow(
        Flow.run, f"seed-{seed}", id=f"shoot/project/{uuid.uuid4()}", task_queue=GARDEN_QUEUE
    )
    async with worker(garden, GARDEN_QUEUE, flows=True):
        polled = await gardenlet.workflow_service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(namespace="default", task_queue=TaskQueue(name=f"seed-{seed}"), identity="b")
        )
    assert polled.workflow_execution.workflow_id == flow.id
    return flow, polled.task_token


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_gardenlet_calls_each_method_of_temporal_on_another_seed_and_all_are_refused(temporal: Cluster) -> None:
    """The gardenlet of seed A aims each method at queue, flow and task of seed B; A's own work goes on."""
    flow, token = await waiting_task(temporal, "b")
    attacker = await temporal.gardenlet("a")
    for forged in (token, token[:-CODE_BYTES]):
        assert (await not_refused(attacker, flow, "seed-b", forged)).keys() == OPEN

    assert (await flow.describe()).status is WorkflowExecutionStatus.RUNNING
    async with worker(attacker, "seed-a"), worker(await temporal.process(), GARDEN_QUEUE, flows=True):
        garden = await temporal.process()
        own = await garden.execute_workflow(Flow.run, "seed-a", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        assert own == "seed-a is done"
        victim = await temporal.gardenlet("b")
        await victim.workflow_service.respond_activity_task_completed(
            RespondActivityTaskCompletedRequest(namespace="default", task_token=token)
        )
        await flow.result()


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_task_token_that_a_gardenlet_makes_up_is_refused(temporal: Cluster) -> None:
    """Upstream's tokens name any task in plain text; one that this client did not poll does not count."""
    flow, token = await waiting_task(temporal, "b")
    attacker, victim = await temporal.gardenlet("a"), await temporal.gardenlet("b")
    plain = token[:-CODE_BYTES]
    for client, forged in (
        (attacker, token),
        (attacker, plain),
        (victim, plain),
        (victim, token[:-32] + bytes(32)),
        (await temporal.process(), token),
        (await temporal.person("carol", constants.TEMPORAL_ADMINS), token),
    ):
        service = client.workflow_service
        for call, kind in (
            (service.respond_activity_task_completed, RespondActivityTaskCompletedRequest),
            (service.respond_activity_task_failed, RespondActivityTaskFailedRequest),
            (service.record_activity_task_heartbeat, RecordActivityTaskHeartbeatRequest),
        ):
            assert await refused(call, kind(namespace="default", task_token=forged))
    heartbeat = RecordActivityTaskHeartbeatRequest(namespace="default", task_token=token)
    assert await status_of(victim.workflow_service.record_activity_task_heartbeat, heartbeat) is None
    await flow.terminate()


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_the_log_says_which_client_was_refused_what(temporal: Cluster) -> None:
    attacker = await temporal.gardenlet("loud")
    poll = PollActivityTaskQueueRequest(namespace="default", task_queue=TaskQueue(name="seed-b"))
    await until(lambda: logged(temporal, attacker.workflow_service.poll_activity_task_queue, poll, "seed:loud"))
    line = next(each for each in temporal.refusals() if "gardener.cloud:system:seed:loud" in each)
    assert "PollActivityTaskQueue" in line
    assert r"task queue \"seed-b\" is not the client's" in line

    _, token = await waiting_task(temporal, "b")
    heartbeat = RecordActivityTaskHeartbeatRequest(namespace="default", task_token=token)
    call, reason = attacker.workflow_service.record_activity_task_heartbeat, "The token was not given to this client"
    await until(lambda: logged(temporal, call, heartbeat, reason))


async def logged(temporal: Cluster, call: Callable[..., Any], request: Message, text: str) -> bool:
    """Refused again, since the log leaves refusals out where there are many at once."""
    assert await refused(call, request)
    return any(text in line for line in temporal.refusals())


@pytest.mark.attack(actor="T3", asset="A5", finding=4)
async def test_a_gardenlet_starts_nothing_by_the_http_api(temporal: Cluster) -> None:
    """Temporal's HTTP API asks the same authorizer."""
    gardenlet, admin = (
        temporal.authority.for_gardenlet("a"),
        temporal.authority.for_person("d", constants.TEMPORAL_ADMINS),
    )
    assert await asyncio.to_thread(http_status, temporal, gardenlet) == 403
    assert await asyncio.to_thread(http_status, temporal, admin) == 200


def http_status(temporal: Cluster, pair: KeyPair) -> int:
    context = ssl.create_default_context(cafile=str(temporal.authority.of_servers))
    context.load_cert_chain(pair.certificate, pair.key)
    url = f"https://{temporal.http_address}/api/v1/namespaces/default/workflows"
    try:
        with urllib.request.urlopen(url, context=context, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
@pytest.mark.parametrize("service", ["history", "matching", "internal-frontend"])
async def test_a_client_is_cut_off_by_the_services_that_do_not_ask_who_calls(temporal: Cluster, service: str) -> None:
    """An operator's certificate, though its authority signs for the services' clients here, too."""
    operator = temporal.authority.for_process("controller-manager")
    assert not await asyncio.to_thread(stays_connected, temporal, service, operator)
    server = temporal.authority.for_server("server", [])
    assert await asyncio.to_thread(stays_connected, temporal, service, server)


def stays_connected(temporal: Cluster, service: str, pair: KeyPair) -> bool:
    """Whether the service answers HTTP/2 after the handshake: a refused certificate is told of only then."""
    context = ssl.create_default_context(cafile=str(temporal.authority.of_servers))
    context.load_cert_chain(pair.certificate, pair.key)
    context.set_alpn_protocols(["h2"])
    host, port = temporal.inner_addresses[service].split(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return bool(connection.recv(9))
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
@pytest.mark.parametrize(
    "subject",
    [
        [(NameOID.ORGANIZATION_NAME, "system:masters"), (NameOID.COMMON_NAME, "admin")],
        [(NameOID.ORGANIZATION_NAME, constants.TEMPORAL_SERVERS), (NameOID.COMMON_NAME, "temporal")],
        [
            (NameOID.ORGANIZATION_NAME, constants.TEMPORAL_GARDENLETS),
            (NameOID.COMMON_NAME, f"{constants.TEMPORAL_GARDENLET_PREFIX}a"),
            (NameOID.COMMON_NAME, f"{constants.TEMPORAL_GARDENLET_PREFIX}b"),
        ],
        [
            (NameOID.ORGANIZATION_NAME, constants.TEMPORAL_ADMINS),
            (NameOID.ORGANIZATION_NAME, constants.TEMPORAL_GARDENLETS),
            (NameOID.COMMON_NAME, f"{constants.TEMPORAL_GARDENLET_PREFIX}a"),
        ],
        [(NameOID.COMMON_NAME, f"{constants.TEMPORAL_GARDENLET_PREFIX}a")],
    ],
    ids=["unknown organization", "of a server", "two common names", "two organizations", "no organization"],
)
async def test_a_certificate_that_names_no_client_of_ours_is_worth_nothing(
    temporal: Cluster, tmp_path: Path, subject: list[tuple[x509.ObjectIdentifier, str]]
) -> None:
    """Each is signed by the authority for clients, and refused for its subject."""
    with pytest.raises(RuntimeError, match="PermissionDenied"):
        await temporal.client(certificate(temporal, tmp_path, subject))


def certificate(temporal: Cluster, directory: Path, subject: list[tuple[x509.ObjectIdentifier, str]]) -> KeyPair:
    authority = temporal.authority.of_clients
    signer = serialization.load_pem_private_key(authority.with_suffix(".key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.read_bytes()).subject
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer, x509.Name([x509.NameAttribute(*each) for each in subject]), key.public_key()
    )
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(minutes=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    pair = KeyPair(directory / "tls.crt", directory / "tls.key")
    pair.certificate.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pair.key.write_bytes(key.private_bytes(*private))
    return pair


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["global"]["tls"]["frontend"]["server"].update(requireClientAuth=False),
            "global.tls.frontend.server",
        ),
        (lambda c: c["global"]["tls"].pop("internode"), "global.tls.internode.server"),
        (lambda c: c["services"].pop("internal-frontend"), "must have an internal-frontend"),
        (lambda c: c["services"]["internal-frontend"]["rpc"].update(httpPort=1), "must have no httpPort"),
        (lambda c: None, "reading keys for task tokens"),
    ],
    ids=["no client certificates", "plain text inside", "no inner frontend", "inner HTTP", "no keys"],
)
def test_a_server_that_could_not_tell_its_clients_apart_does_not_start(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    """A configuration that leaves a way past the authorizer is refused, and named."""
    assert said in start_refused(tmp_path, change)


EXTENSION_QUEUE = "provider-local-a"


def own_id() -> str:
    return f"provider-local/a/worker/{uuid.uuid4()}"


async def test_an_extension_runs_its_own_workflows(temporal: Cluster) -> None:
    """As provider-local does: it starts them, waits for their results, cancels and describes them."""
    extension = await temporal.extension("provider-local", "a")
    async with worker(extension, EXTENSION_QUEUE, flows=True, identity=f"{EXTENSION_QUEUE}@host"):
        done = await extension.execute_workflow(Flow.run, EXTENSION_QUEUE, id=own_id(), task_queue=EXTENSION_QUEUE)
        assert done == f"{EXTENSION_QUEUE} is done"
        handle = await extension.start_workflow(
            Flow.run,
            "",
            id=own_id(),
            task_queue=EXTENSION_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary="reconcile a worker",
        )
        await handle.cancel()
        await until(lambda: ended(handle))
    assert not [line for line in temporal.refusals() if "extension:provider-local:a" in line]


async def ended(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING


@pytest.mark.attack(actor="T4", asset="A5", finding=4)
@pytest.mark.parametrize(
    ("workflow_id", "queue"),
    [
        ("shoot/project/name/uid", EXTENSION_QUEUE),
        ("provider-local/b/worker/x", EXTENSION_QUEUE),
        ("provider-local/a/worker/x", GARDEN_QUEUE),
        ("provider-local/a/worker/x", "seed-a"),
        ("provider-local/a/worker/x", "provider-local-b"),
    ],
)
async def test_an_extension_starts_nothing_under_anothers_name_or_on_anothers_queue(
    temporal: Cluster, workflow_id: str, queue: str
) -> None:
    """Neither a flow of the garden nor one of the same extension in another seed."""
    extension = await temporal.extension("provider-local", "a")
    with pytest.raises(RPCError) as error:
        await extension.start_workflow("DeleteShoot", "x", id=workflow_id, task_queue=queue)
    assert error.value.status is RPCStatusCode.PERMISSION_DENIED


@pytest.mark.attack(actor="T4", asset="A5", finding=4)
async def test_a_workflow_of_an_extension_gives_no_task_to_a_seed(temporal: Cluster) -> None:
    """The command to run an activity on the gardenlet's queue is refused, and the gardenlet gets no task."""
    extension = await temporal.extension("provider-local", "c")
    queue = "provider-local-c"
    async with worker(extension, queue, flows=True, identity=f"{queue}@host"):
        handle = await extension.start_workflow(
            Flow.run, "seed-c", id=f"provider-local/c/{uuid.uuid4()}", task_queue=queue
        )
        await until(lambda: told(temporal, "extension:provider-local:c"))
        assert not (await handle.describe()).raw_description.pending_activities
        await handle.terminate()
    assert [line for line in temporal.refusals() if "RespondWorkflowTaskCompleted" in line and "seed-c" in line]


async def told(temporal: Cluster, client: str) -> bool:
    return any(client in line for line in temporal.refusals())


@pytest.mark.attack(actor="T4", asset="A5", finding=4)
async def test_an_extension_gets_no_workflow_task_of_the_garden_by_calling_its_queue_sticky(temporal: Cluster) -> None:
    """Temporal tells queues apart by name, whatever kind and normal name a poll gives."""
    extension = await temporal.extension("provider-local", "a")
    poll = PollWorkflowTaskQueueRequest(
        namespace="default",
        task_queue=TaskQueue(name=GARDEN_QUEUE, kind=TaskQueueKind.TASK_QUEUE_KIND_STICKY, normal_name=EXTENSION_QUEUE),
    )
    assert await refused(extension.workflow_service.poll_workflow_task_queue, poll)


@pytest.mark.attack(actor="T4", asset="A5", finding=4)
async def test_an_extension_reads_ends_and_changes_no_flow_of_the_garden(temporal: Cluster) -> None:
    """Each method again, aimed at a flow of the garden and a gardenlet's queue."""
    flow, token = await waiting_task(temporal, "b")
    attacker = await temporal.extension("provider-local", "b")
    assert (await not_refused(attacker, flow, "seed-b", token)).keys() == OPEN
    assert (await flow.describe()).status is WorkflowExecutionStatus.RUNNING
    await flow.terminate()


@pytest.mark.attack(actor="T5", asset="A5", finding=20)
async def test_people_look_repair_or_administer_by_their_role_and_repair_under_their_own_name(
    temporal: Cluster,
) -> None:
    """A viewer changes nothing; a repairer repairs under the name in the certificate, and ends nothing."""
    viewer = await temporal.person("alice", constants.TEMPORAL_VIEWERS)
    repairer = await temporal.person("bob", constants.TEMPORAL_REPAIRERS)
    admin = await temporal.person("carol", constants.TEMPORAL_ADMINS)
    garden = await temporal.process()
    spoken = Repair(action=Action.PAUSE, reason="a flood", by="mallory")
    async with worker(garden, GARDEN_QUEUE, flows=True):
        flow = await garden.start_workflow(Flow.run, "", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        seen = viewer.get_workflow_handle_for(Flow.run, flow.id)
        assert (await seen.describe()).status is WorkflowExecutionStatus.RUNNING
        for attempt in (
            seen.execute_update(Flow.repair, spoken),
            seen.signal("wake"),
            seen.terminate(),
            repairer.get_workflow_handle(flow.id).signal("wake"),
            repairer.get_workflow_handle(flow.id).terminate(),
            repairer.start_workflow("Flow", "", id="shoot/y", task_queue=GARDEN_QUEUE),
        ):
            with pytest.raises(RPCError) as error:
                await attempt
            assert error.value.status is RPCStatusCode.PERMISSION_DENIED
        assert await repairer.get_workflow_handle_for(Flow.run, flow.id).execute_update(Flow.repair, spoken) == "bob"
        assert await flow.result() == "bob"

        other = await garden.start_workflow(Flow.run, "", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        assert await garden.get_workflow_handle_for(Flow.run, other.id).execute_update(Flow.repair, spoken) == "mallory"
        third = await garden.start_workflow(Flow.run, "", id=f"shoot/{uuid.uuid4()}", task_queue=GARDEN_QUEUE)
        await admin.get_workflow_handle(third.id).terminate()


@pytest.mark.attack(actor="T5", asset="A5", finding=4)
async def test_no_client_leaves_the_namespaces_that_are_open_to_clients(temporal: Cluster) -> None:
    """Temporal's own workflows are in another namespace, and no client reads or changes them."""
    for client in (await temporal.process(), await temporal.person("carol", constants.TEMPORAL_ADMINS)):
        with pytest.raises(RPCError) as error:
            await client.workflow_service.register_namespace(RegisterNamespaceRequest(namespace="other"))
        assert error.value.status is RPCStatusCode.PERMISSION_DENIED
        poll = PollWorkflowTaskQueueRequest(namespace="temporal-system", task_queue=TaskQueue(name="default-worker-tq"))
        assert await refused(client.workflow_service.poll_workflow_task_queue, poll)


async def test_a_process_of_the_garden_sets_up_search_attributes_and_removes_none(temporal: Cluster) -> None:
    operator = (await temporal.process("setup")).operator_service
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    wanted = AddSearchAttributesRequest(namespace="default", search_attributes={"Another": keyword})
    assert await status_of(operator.add_search_attributes, wanted) is None
    unwanted = RemoveSearchAttributesRequest(namespace="default", search_attributes=["GardenerShoot"])
    assert await refused(operator.remove_search_attributes, unwanted)


async def test_schedules_batches_and_deployments_still_work(temporal: Cluster) -> None:
    """Temporal's own workers do these, by its internal frontend."""
    garden, admin = await temporal.process(), await temporal.person("carol", constants.TEMPORAL_ADMINS)
    deployment, build = f"deployment-{uuid.uuid4()}", "v1"
    queue = f"queue-{uuid.uuid4()}"
    version = WorkerDeploymentVersion(deployment, build)
    versioned = WorkerDeploymentConfig(
        version=version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )
    async with worker(garden, queue, flows=True, deployment_config=versioned):
        server = temporal.server(temporal.authority.for_process("setup"))
        await promote(PromoteConfig(address=server.address, tls=server.tls, deployment=deployment, build_id=build))
        name = f"schedule-{uuid.uuid4()}"
        action = ScheduleActionStartWorkflow(Flow.run, "", id=name, task_queue=queue)
        schedule = await garden.create_schedule(
            name, Schedule(action=action, spec=ScheduleSpec()), trigger_immediately=True
        )

        async def started() -> Any:
            recent = (await schedule.describe()).info.recent_actions
            return recent[0].action if recent else None

        await until(started, 60)
        execution = await started()
        flow = garden.get_workflow_handle(execution.workflow_id)
        assert (await flow.describe()).status is WorkflowExecutionStatus.RUNNING
        batch = StartBatchOperationRequest(
            namespace="default", visibility_query=f'WorkflowId = "{flow.id}"', job_id=str(uuid.uuid4()), reason="a test"
        )
        batch.termination_operation.identity = "test"
        await until(lambda: counted(garden, flow.id), 60)
        await admin.workflow_service.start_batch_operation(batch)
        await until(lambda: ended(flow), 60)
        await schedule.delete()


async def counted(client: Client, workflow_id: str) -> bool:
    return (await client.count_workflows(f'WorkflowId = "{workflow_id}"')).count > 0

"""Setup job: installs the kinds, policies, roles and webhooks of the garden, and Temporal's namespace.

The job exits when it is done. A second run changes nothing, except after an upgrade. Helm installs its own ``crds/``
only once and never upgrades them, and it cannot install them in a garden other than the cluster that runs the
processes.
"""

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration as ProtoDuration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from api import resources
from api.access import access, seeds_access
from api.crds import crds
from api.decisions.conditions import find_condition
from api.labels import pod_security
from api.model import ApiModel
from api.policies import deletion_protection
from kube.cache import Caches
from kube.client import KubeClient
from workers.admission.limits import ResourceAdmissionConfiguration
from workers.admission.webhooks import converted_kinds, webhook_configurations
from workers.lib.runtime import ClientConnection, ConfigError, kube_client, load_config
from workers.lib.temporal import TemporalServer, connect_with
from workflows import visibility

Result = TypeVar("Result")

log = logging.getLogger(__name__)

_MANAGER = "gardener-setup"
_ESTABLISHED_SECONDS = 60
_TEMPORAL_SECONDS = 180
"""Time to wait for Temporal: a cluster that has just been started needs a while to acquire its first shard."""
_TEMPORAL_POLL_SECONDS = 0.5
_NAMESPACE_SECONDS = 60
"""Time to wait for search attributes: Temporal refreshes its caches of namespaces every 2 to 10 s."""


class Webhooks(ApiModel):
    url: str
    """URL at which the garden's API server reaches admission, like ``https://198.18.0.1:9443``."""
    ca_file: Path
    """PEM file of the authority that signed admission's certificate."""
    resource_admission_configuration: ResourceAdmissionConfiguration = ResourceAdmissionConfiguration()
    """Limits for the size and the number of objects, as in the configuration of admission."""


class TemporalSetup(TemporalServer):
    retention_days: int = 30
    """Days for which Temporal keeps the history of an ended workflow."""


class SetupConfig(ApiModel):
    garden_client_connection: ClientConnection | None = None
    """None: the job does not touch the garden."""
    webhooks: Webhooks | None = None
    allow_unrestricted_gardenlets: bool = False
    """Gives gardenlets a role with which each reads and writes objects of all seeds, and every Secret of the garden.

    Off: gardenlets have no role, and the garden's API server must ask the seed authorizer what they may do.
    """
    temporal: TemporalSetup | None = None
    """None: the job does not touch Temporal."""


async def run(config_path: str) -> None:
    """Set up what the configuration names. Raises ConfigError if it names neither a garden nor a Temporal."""
    config = load_config(SetupConfig, config_path)
    if config.garden_client_connection is None and config.temporal is None:
        raise ConfigError(f"configuration {config_path} names neither a garden nor a Temporal to set up")
    if config.temporal is not None:
        await set_up_temporal(config.temporal)
    if config.garden_client_connection is not None:
        garden = kube_client(config.garden_client_connection)
        try:
            unrestricted = config.allow_unrestricted_gardenlets
            await set_up_garden(garden, config.webhooks, unrestricted_gardenlets=unrestricted)
        finally:
            await garden.close()


async def set_up_garden(
    garden: KubeClient, webhooks: Webhooks | None, *, unrestricted_gardenlets: bool = False
) -> None:
    """Apply the CRDs, wait until the API server serves them, then apply policies, roles and webhooks.

    Without ``webhooks``, admission applies its webhooks itself, and the CRDs of the kinds that it converts.
    """
    definitions, configurations = crds("garden"), []
    if webhooks is not None:
        at = webhooks.url, b64encode(webhooks.ca_file.read_bytes()).decode()
        definitions += converted_kinds(*at)
        configurations = webhook_configurations(*at, webhooks.resource_admission_configuration)
    await _apply(garden, definitions)
    caches = Caches(garden)
    try:
        cache = caches.of(resources.CUSTOM_RESOURCE_DEFINITION)
        names = [each["metadata"]["name"] for each in definitions]
        await asyncio.gather(*(cache.wait_for(each, None, _established, _ESTABLISHED_SECONDS) for each in names))
    finally:
        await caches.close()
    namespace = {"name": "garden", "labels": {"gardener.cloud/role": "garden", **pod_security("baseline")}}
    objects = [
        *deletion_protection("garden"),
        *access(unrestricted_gardenlets=unrestricted_gardenlets),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace},
        *configurations,
    ]
    # The API server refuses objects in a namespace that does not exist, and the binding of a role that does not exist.
    namespaces = [each for each in objects if each["kind"] == "Namespace"]
    bindings = [each for each in objects if each["kind"].endswith("Binding")]
    await _apply(garden, namespaces)
    await _apply(garden, [each for each in objects if each not in namespaces and each not in bindings])
    await _apply(garden, bindings)
    if unrestricted_gardenlets:
        log.warning("gardenlets may read every Secret of the garden: see docs/operations/install.md")
    for item in () if unrestricted_gardenlets else seeds_access():
        await garden.delete(resources.resource_of(item), item["metadata"]["name"])
    log.info("the garden serves %d kinds; %d objects applied", len(definitions), len(objects))


async def _apply(garden: KubeClient, objects: Sequence[dict[str, Any]]) -> None:
    """Apply objects at the same time; the client limits the number of requests."""
    await asyncio.gather(*(garden.apply(each, manager=_MANAGER) for each in objects))


def _established(live: dict[str, Any] | None) -> bool | None:
    return find_condition(live, "Established").get("status") == "True" or None


async def set_up_temporal(wanted: TemporalSetup) -> None:
    """Register the namespace and the search attributes that are missing; wait until the server knows both."""

    client = await _until(lambda: connect_with(wanted), f"Temporal at {wanted.address}", _TEMPORAL_SECONDS)
    await _until(lambda: _register_namespace(client, wanted), f"namespace {wanted.namespace}", _TEMPORAL_SECONDS)
    await _until(lambda: _register_attributes(client, wanted), "search attributes", _NAMESPACE_SECONDS)
    await _until(
        lambda: client.count_workflows(f"{visibility.ALL[0].name} = 'none'"), "search attributes", _NAMESPACE_SECONDS
    )
    log.info("Temporal's namespace %s has all search attributes", wanted.namespace)


async def _register_namespace(client: Client, wanted: TemporalSetup) -> None:
    service = client.workflow_service
    try:
        await service.describe_namespace(DescribeNamespaceRequest(namespace=wanted.namespace))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        retention = ProtoDuration()
        retention.FromTimedelta(timedelta(days=wanted.retention_days))
        await service.register_namespace(
            RegisterNamespaceRequest(namespace=wanted.namespace, workflow_execution_retention_period=retention)
        )


async def _register_attributes(client: Client, wanted: TemporalSetup) -> None:
    service = client.operator_service
    known = await service.list_search_attributes(ListSearchAttributesRequest(namespace=wanted.namespace))
    missing = [key.name for key in visibility.ALL if key.name not in known.custom_attributes]
    if missing:
        keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        await service.add_search_attributes(
            AddSearchAttributesRequest(namespace=wanted.namespace, search_attributes=dict.fromkeys(missing, keyword))
        )


async def _until(attempt: Callable[[], Awaitable[Result]], what: str, seconds: float) -> Result:
    """Retry ``attempt`` until it succeeds; returns its result. Raises TimeoutError with ``what`` and the last error."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except (RPCError, RuntimeError) as error:  # RuntimeError: no connection yet
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} is not available after {seconds:.0f} s: {error}") from None
            await asyncio.sleep(_TEMPORAL_POLL_SECONDS)

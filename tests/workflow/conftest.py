"""Temporal servers, and a garden and a seed to act in.

Most tests share one real server. The one that skips time is for what waits for hours: while it skips, what happens
outside of workflows (other activities, queries, a busy machine) has no time at all, and runs into time limits.
"""

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests import temporal_dev_server
from tests.workflow.world import World
from workflows import visibility

TEST_SERVER = Path(sys.executable).parent / "temporal-test-server"


@pytest.fixture
async def env() -> AsyncIterator[WorkflowEnvironment]:
    """The server that skips time."""
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(TEST_SERVER), data_converter=pydantic_data_converter
    ) as environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=environment.client.namespace,
                search_attributes={key.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in visibility.ALL},
            )
        )
        yield environment


@pytest.fixture
async def dev_server() -> AsyncIterator[WorkflowEnvironment]:
    """A real server for one test alone."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(temporal_dev_server.TEMPORAL),
        data_converter=pydantic_data_converter,
        search_attributes=visibility.ALL,
        dev_server_log_level="error",
    ) as environment:
        yield environment


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    """A real server for all tests of a session."""
    with temporal_dev_server.dev_server() as address:
        yield address


@pytest.fixture
async def temporal(temporal_address: str) -> Client:
    return await Client.connect(temporal_address, data_converter=pydantic_data_converter)


@pytest.fixture
async def world(temporal: Client) -> AsyncIterator[World]:
    async with World(temporal, uid=uuid.uuid4().hex[:12]) as world:
        yield world

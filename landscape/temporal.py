"""Temporal's dev server with UI, on a SQLite file, tuned; or a relay to a Temporal of somebody else."""

import sys
from pathlib import Path

from landscape import relay
from landscape.errors import LandscapeError
from landscape.plan import Plan
from landscape.processes import ProcessSpec
from landscape.waiting import until

SEARCH_ATTRIBUTES = ("GardenerProject", "GardenerShoot", "GardenerSeed", "GardenerOperation")

# 8 to 12 ms per sequential activity in place of 50.
_DYNAMIC_CONFIG = (
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    "history.visibilityProcessorMaxPollRPS=2000",
    # A timer of less than this takes this: it is 1 s where many servers' clocks are to agree.
    'history.timerProcessorMaxTimeShift="50ms"',
)
# Three times the throughput.
_SQLITE = ("journal_mode=wal", "synchronous=1")


def process(plan: Plan) -> ProcessSpec:
    if plan.external_temporal:
        return relay.process("temporal", plan.garden.netns, plan.temporal_address, plan.external_temporal)
    port = plan.temporal_address.split(":")[1]
    directory = plan.directory / "temporal"
    directory.mkdir(parents=True, exist_ok=True)
    argv = [str(Path(sys.executable).parent / "temporal"), "server", "start-dev"]
    # All addresses, but of its network namespace only. On a single one the server does not find itself: its parts
    # listen there, and call each other at 127.0.0.1.
    argv += ["--ip", "0.0.0.0", "--port", port, "--ui-port", plan.temporal_ui.rsplit(":", 1)[1]]
    argv += ["--http-port", "7243", "--metrics-port", plan.temporal_metrics.rsplit(":", 1)[1].split("/")[0]]
    argv += ["--ui-codec-endpoint", plan.codec_endpoint, "--ui-disable-news-fetch"]
    argv += ["--db-filename", str(directory / "temporal.db"), "--log-level", "warn", "--log-format", "json"]
    for value in _DYNAMIC_CONFIG:
        argv += ["--dynamic-config-value", value]
    for pragma in _SQLITE:
        argv += ["--sqlite-pragma", pragma]
    for attribute in SEARCH_ATTRIBUTES:
        argv += ["--search-attribute", f"{attribute}=Keyword"]
    return ProcessSpec("temporal", tuple(argv), plan.garden.netns, {"GOGC": "50"})


async def ready(plan: Plan) -> None:
    """Until the server takes requests, namespace and search attributes included.

    Raises LandscapeError if somebody else's does not.
    """
    from temporalio.client import Client
    from temporalio.service import RPCError

    if plan.external_temporal:
        from workers.setup import TemporalSetup, set_up_temporal

        try:
            await set_up_temporal(TemporalSetup(address=plan.temporal_address))
        except TimeoutError as error:
            raise LandscapeError(f"Temporal at {plan.external_temporal} is of no use: {error}") from None
        return

    async def serves() -> bool:
        try:
            client = await Client.connect(plan.temporal_address, namespace="default")
            await client.count_workflows(f"{SEARCH_ATTRIBUTES[0]} = 'none'")
        except (TimeoutError, RPCError, RuntimeError):
            return False
        return True

    await until(serves, "Temporal", timeout=120)

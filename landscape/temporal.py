"""Temporal's dev server with UI, on a SQLite file, tuned, behind mutual TLS; or a relay to an external Temporal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from api import constants
from landscape import mutual_tls, relay
from landscape.errors import LandscapeError
from landscape.pki import TemporalAuthority
from landscape.plan import Plan
from landscape.processes import ProcessSpec, go_environment
from landscape.waiting import until

if TYPE_CHECKING:
    from workers.lib.temporal import TemporalServer

GATEWAY = "temporal-gateway"
"""Name of the process that requires client certificates, and forwards calls to Temporal."""

SEARCH_ATTRIBUTES = ("GardenerProject", "GardenerShoot", "GardenerSeed", "GardenerOperation")

_LOOPBACK = "127.0.0.1"
TUNING = tuple(
    f"--dynamic-config-value={each}"
    for each in (
        # 8 to 12 ms per sequential activity in place of 50.
        "history.transferProcessorMaxPollRPS=2000",
        "history.timerProcessorMaxPollRPS=2000",
        "history.visibilityProcessorMaxPollRPS=2000",
        # Shortest duration of a timer. Default: 1 s, for clusters of servers with different clocks.
        'history.timerProcessorMaxTimeShift="50ms"',
        # As in a cluster. The dev server would read the names of all search attributes again for each request.
        "system.forceSearchAttributesCacheRefreshOnRead=false",
        "matching.enableFairness=true",  # see workflows/fairness.py
    )
)
"""Flags of the dev server."""
SQLITE = tuple(f"--sqlite-pragma={each}" for each in ("journal_mode=wal", "synchronous=1"))
"""Flags of a dev server whose data are in a file, for three times the throughput."""


def processes(plan: Plan) -> list[ProcessSpec]:
    """The dev server on the loopback address, and an Envoy for its clients; or a relay to an external Temporal."""
    authority = TemporalAuthority(plan.temporal_authority)
    authority.for_person("admin", constants.TEMPORAL_ADMINS)
    if plan.external_temporal:
        return [relay.process("temporal", plan.garden.netns, plan.temporal_address, plan.external_temporal)]
    return [_dev_server(plan), _gateway(plan, authority)]


def _dev_server(plan: Plan) -> ProcessSpec:
    port = plan.temporal_address.split(":")[1]
    directory = plan.directory / "temporal"
    directory.mkdir(parents=True, exist_ok=True)
    argv = [str(Path(sys.executable).parent / "temporal"), "server", "start-dev"]
    # The dev server has no TLS. Its UI is reachable from this machine only, see network.py.
    argv += ["--ip", _LOOPBACK, "--port", port, "--http-port", "7243", "--metrics-port", str(_metrics_port(plan))]
    argv += ["--ui-ip", plan.central_address, "--ui-port", plan.temporal_ui.rsplit(":", 1)[1]]
    argv += ["--ui-codec-endpoint", plan.codec_endpoint, "--ui-disable-news-fetch"]
    argv += ["--db-filename", str(directory / "temporal.db"), "--log-level", "warn", "--log-format", "json"]
    argv += [*TUNING, *SQLITE]
    for attribute in SEARCH_ATTRIBUTES:
        argv += ["--search-attribute", f"{attribute}=Keyword"]
    return ProcessSpec("temporal", tuple(argv), plan.garden.netns, go_environment(50))


def _gateway(plan: Plan, authority: TemporalAuthority) -> ProcessSpec:
    host, port = plan.temporal_address.split(":")
    temporal, metrics = f"{_LOOPBACK}:{port}", _metrics_port(plan)
    argv = mutual_tls.write(
        plan.directory / "temporal" / "gateway",
        plan.temporal_address,
        temporal,
        authority.for_server("server", [host]),
        authority.of_clients,
        metrics=(f"{host}:{metrics}", f"{_LOOPBACK}:{metrics}"),
    )
    return ProcessSpec(GATEWAY, argv, plan.garden.netns)


def _metrics_port(plan: Plan) -> int:
    return int(plan.temporal_metrics.rsplit(":", 1)[1].split("/")[0])


def server(plan: Plan) -> "TemporalServer":
    """Connection to the landscape's Temporal as an administrator."""
    from workers.lib.temporal import TemporalServer, TemporalTLS

    files = plan.facts["temporal"]["tls"]
    tls = TemporalTLS(ca_file=files["ca"], certificate_file=files["certificate"], private_key_file=files["key"])
    return TemporalServer(address=plan.temporal_address, tls=tls)


async def ready(plan: Plan) -> None:
    """Wait until the server accepts requests, and has namespace and search attributes.

    Raises LandscapeError if an external server does not.
    """
    from temporalio.service import RPCError

    from workers.lib.temporal import connect_with

    if plan.external_temporal:
        from workers.setup import TemporalSetup, set_up_temporal

        try:
            await set_up_temporal(TemporalSetup(address=plan.temporal_address, tls=server(plan).tls))
        except TimeoutError as error:
            raise LandscapeError(f"Temporal at {plan.external_temporal} cannot be used: {error}") from None
        return

    async def serves() -> bool:
        try:
            client = await connect_with(server(plan))
            await client.count_workflows(f"{SEARCH_ATTRIBUTES[0]} = 'none'")
        except (TimeoutError, RPCError, RuntimeError):
            return False
        return True

    await until(serves, "Temporal", timeout=120)

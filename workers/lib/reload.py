"""Reload of a process's configuration file: the process stops gracefully and starts again in its place.

A mounted ConfigMap changes while the process runs. All parts of the process were made of the old configuration, so the
process begins again with the new one. Its parts end as they do at SIGTERM, and a leader releases its Lease. Then the
same process id executes the program again: the supervisor notices nothing, and the Seed's lease is renewed in time.
"""

import asyncio
import logging
from pathlib import Path

from prometheus_client import Gauge

from api.model import ApiModel
from workers.lib.runtime import ConfigError, ConfigurationChanged, load_config

log = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
"""Seconds between two reads of the file. Kubelets renew mounted ConfigMaps about once a minute."""
REFUSED = Gauge(
    "gardener_configuration_refused",
    "1 while the configuration file has a content that the process cannot use: it goes on with the former one.",
)


async def follow_configuration(path: str | Path, current: ApiModel, poll_seconds: float = _POLL_SECONDS) -> None:
    """Raise ConfigurationChanged once the file holds another configuration.

    A content that is not valid changes nothing: the process goes on, logs the fault once, and sets a metric. A change
    of comments or of the order of fields is none.
    """
    refused = ""
    while True:
        await asyncio.sleep(poll_seconds)
        try:
            found = load_config(type(current), path)
        except ConfigError as error:
            if str(error) != refused:
                refused = str(error)
                log.error("the changed configuration is refused, the former one stays in use: %s", refused)
            REFUSED.set(1)
            continue
        refused = ""
        REFUSED.set(0)
        if found != current:
            raise ConfigurationChanged(f"configuration {path} has changed")

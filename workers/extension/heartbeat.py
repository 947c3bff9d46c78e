"""The Lease that shows the gardenlet that this extension is alive. Source: spec/extensions.md 1.7."""

import asyncio
import logging

from api.resources import LEASE
from api.times import micro_timestamp
from kube.client import KubeClient
from kube.errors import ApiError

_log = logging.getLogger(__name__)

_NAME = "gardener-extension-heartbeat"
_PERIOD_SECONDS = 30
_RETRY_SECONDS = 1
"""Delay after a failure. It is short: a new seed lacks the namespace at first, and Shoots wait for the Lease."""


async def run_heartbeat(
    seed: KubeClient, namespace: str, *, holder: str, retry_seconds: float = _RETRY_SECONDS
) -> None:
    """Renew the Lease every 30 s until cancelled; after a failure try again soon.

    ``holder``: name of the extension's ControllerRegistration.
    """
    while True:
        renewed = micro_timestamp()
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": _NAME, "namespace": namespace},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": _PERIOD_SECONDS, "renewTime": renewed},
        }
        pause: float = _PERIOD_SECONDS
        try:
            await seed.apply_blindly(lease, manager=holder)
        except ApiError as error:
            _log.warning("heartbeat not written: %s", error)
            pause = retry_seconds
        await asyncio.sleep(pause)

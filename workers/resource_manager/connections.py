"""Clients of the source and the target cluster."""

import asyncio
import logging
from pathlib import Path

from kube.client import KubeClient, Pace
from kube.kubeconfig import KubeconfigError, endpoint_of, parse_kubeconfig
from workers.resource_manager.config import ClientConnection

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0
"""Seconds between two reads of files that the kubelet fills: it sends no event when it does."""


def source_client(connection: ClientConnection) -> KubeClient:
    return _client(connection)


async def target_client(connection: ClientConnection) -> KubeClient:
    """A client of the target cluster; waits until its kubeconfig and token exist."""
    said = ""
    while connection.kubeconfig is not None and (why := _missing(connection.kubeconfig)) is not None:
        if why != said:
            _log.info("waiting for credentials of the target cluster: %s", why)
            said = why
        await asyncio.sleep(_LOOK_AGAIN)
    return _client(connection)


def _client(connection: ClientConnection) -> KubeClient:
    path = connection.kubeconfig
    client = KubeClient.in_cluster() if path is None else KubeClient.from_kubeconfig(path)
    client.pace = Pace(connection.qps, connection.burst)
    return client


def _missing(path: Path) -> str | None:
    """Why a kubeconfig cannot be used yet; None if it can."""
    try:
        endpoint = endpoint_of(parse_kubeconfig(path.read_bytes()), path.parent)
        if endpoint.token_file is not None and not endpoint.token_file.read_text().strip():
            return f"{endpoint.token_file} is empty"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except KubeconfigError as error:
        return f"{path}: {error}"
    if endpoint.token_file is None and not endpoint.token and not endpoint.certificate:
        return f"{path} holds no credentials"
    return None

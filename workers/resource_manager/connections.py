"""Clients of the source and the target cluster."""

import asyncio
import logging
from pathlib import Path

from activities.kube.client import KubeClient
from activities.kube.errors import ApiError
from activities.kube.kubeconfig import Endpoint, KubeconfigError, endpoint_of, parse_kubeconfig
from workers.resource_manager.config import ClientConnection

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0
"""Seconds between looks at files that the kubelet fills: it gives no sign when it does."""

_ALL_RIGHTS = {
    "apiVersion": "authorization.k8s.io/v1",
    "kind": "SelfSubjectAccessReview",
    "spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}},
}


def source_client(connection: ClientConnection) -> KubeClient:
    if connection.kubeconfig is None:
        return KubeClient.in_cluster()
    return KubeClient.from_kubeconfig(connection.kubeconfig)


async def target_client(connection: ClientConnection) -> KubeClient:
    """A client of the target; waits until there are credentials, those to bootstrap with or our own."""
    if connection.kubeconfig is None:
        return KubeClient.in_cluster()
    said = ""
    while True:
        for path in (connection.bootstrap_kubeconfig, connection.kubeconfig):
            endpoint, why = _read(path) if path is not None else (None, "")
            if endpoint is None:
                why = why or "no credentials"
                continue
            client = KubeClient(endpoint)
            if path == connection.kubeconfig:
                client.follow(path)
            return client
        if why != said:
            _log.info("waiting for credentials of the target cluster: %s", why)
            said = why
        await asyncio.sleep(_LOOK_AGAIN)


async def leave_bootstrap(client: KubeClient, connection: ClientConnection) -> None:
    """Change over to our own token, once it is there and may do everything we need.

    The token is requested, and its rights are granted, by ourselves: until then we live on the
    bootstrap certificate.
    """
    own = connection.kubeconfig
    if own is None or connection.bootstrap_kubeconfig is None:
        return
    # Polled: the kubelet fills files and gives no sign.
    while not await _works(own):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_AGAIN)
    client.follow(own)
    _log.info("using our own token for the target cluster")


async def _works(kubeconfig: Path) -> bool:
    endpoint, _ = _read(kubeconfig)
    if endpoint is None:
        return False
    client = KubeClient(endpoint)
    try:
        review = await client.create(_ALL_RIGHTS)
        return bool(review["status"].get("allowed"))
    except ApiError as error:
        _log.debug("own token does not work yet: %s", error)
        return False
    finally:
        await client.close()


def _read(path: Path) -> tuple[Endpoint | None, str]:
    """The endpoint of a kubeconfig with usable credentials, or why there is none."""
    try:
        endpoint = endpoint_of(parse_kubeconfig(path.read_bytes()), path.parent)
        if endpoint.token_file is not None and not endpoint.token_file.read_text().strip():
            return None, f"{endpoint.token_file} is empty"
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"
    except KubeconfigError as error:
        return None, f"{path}: {error}"
    if endpoint.token_file is None and not endpoint.token and not endpoint.certificate:
        return None, f"{path} holds no credentials"
    return endpoint, ""

"""Requests to the sidecar of a control plane's etcd-main, which writes its backups."""

import ssl
from typing import Any

import aiohttp

from activities.components import etcd as etcd_component
from activities.errors import transient
from api import resources
from api.errors import ErrorCode
from etcd.access import tls_of
from kube.client import KubeClient

_ETCD = etcd_component.name_of(etcd_component.MAIN)
_SNAPSHOT = aiohttp.ClientTimeout(total=9 * 60, sock_connect=5)
"""A little less than the timeout of the longest task that requests a snapshot. Source: spec/flows.md 2."""


async def ask_sidecar(seed: KubeClient, namespace: str, path: str, doing: str) -> dict[str, Any]:
    """Send a request to the sidecar and return the answer, which is empty if the answer has no content.

    Raises:
        ApplicationError: ``ERR_RETRYABLE_INFRA_DEPENDENCIES`` if the sidecar does not answer, or its store fails.
    """
    live = await seed.get(resources.ETCD, _ETCD, namespace)
    service = await seed.get(resources.SERVICE, f"{_ETCD}-client", namespace)
    port = live["spec"]["backup"].get("port", etcd_component.BACKUP_PORT)
    tls = await tls_of(seed, live)
    return await _get(f"https://{service['spec']['clusterIP']}:{port}/{path}", tls, f"{_ETCD}-local", doing)


async def _get(url: str, tls: ssl.SSLContext, server_name: str, doing: str) -> dict[str, Any]:
    try:
        async with (
            aiohttp.ClientSession(timeout=_SNAPSHOT, trust_env=False) as session,
            session.get(url, ssl=tls, server_hostname=server_name) as answer,
        ):
            if answer.status in (200, 204):
                info: dict[str, Any] = await answer.json() if answer.status == 200 else {}
                return info
            reason = f"the sidecar answered {answer.status}: {(await answer.text())[:300]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = f"the sidecar does not answer ({type(error).__name__})"
    raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: {reason}")

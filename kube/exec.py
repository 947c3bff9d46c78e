"""Run a program in a pod, as ``kubectl exec`` does, through an API server and its connection to the nodes.

The protocol is ``v4.channel.k8s.io`` over WebSocket: the first byte of each message names its channel. Source:
kubernetes/design-proposals-archive, api-machinery; k8s.io/apimachinery pkg/util/remotecommand.
"""

import asyncio
import json
from dataclasses import dataclass

import aiohttp

from kube.client import KubeClient, tls_of
from kube.errors import Unreachable

_PROTOCOL = "v4.channel.k8s.io"
_OUTPUT, _ERROR_OUTPUT, _STATUS = 1, 2, 3
_HEARTBEAT = 15.0


@dataclass(frozen=True)
class Ran:
    """A program that has ended."""

    status: int
    """Exit status; 0 is success."""
    output: str
    """Standard output and standard error, in the order of their arrival."""


async def run_in_pod(
    client: KubeClient, namespace: str, pod: str, command: list[str], *, container: str = "", seconds: float = 30
) -> Ran:
    """Run a program without input. The credentials of ``client`` must be a certificate or a token.

    Raises:
        Unreachable: the API server, or it the node, does not answer within ``seconds``, or refuses.
    """
    endpoint, doing = client.endpoint, f"running {command[0]} in pod {namespace}/{pod}"
    query = [("stdout", "true"), ("stderr", "true"), *(("command", each) for each in command)]
    if container:
        query.append(("container", container))
    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    url = f"{endpoint.server.rstrip('/')}/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    output: list[bytes] = []
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession(trust_env=False) as session,
            session.ws_connect(
                url,
                params=query,
                headers=headers,
                protocols=(_PROTOCOL,),
                ssl=tls_of(endpoint),
                server_hostname=endpoint.tls_server_name or None,
                proxy=endpoint.proxy or None,
                heartbeat=_HEARTBEAT,
            ) as socket,
        ):
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, content = message.data[0], message.data[1:]
                if channel in (_OUTPUT, _ERROR_OUTPUT):
                    output.append(content)
                elif channel == _STATUS:
                    return Ran(_exit_status(json.loads(content)), b"".join(output).decode(errors="replace"))
    except aiohttp.WSServerHandshakeError as error:
        raise Unreachable(error.status, error.message, doing, "the API server opened no stream") from None
    except TimeoutError:
        raise Unreachable(0, "Timeout", doing, f"no end within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(0, type(error).__name__, doing) from None
    raise Unreachable(0, "Closed", doing, "the stream ended without a status")


def _exit_status(status: dict[str, object]) -> int:
    """Exit status of a program. A program that could not be started has 126."""
    if status.get("status") == "Success":
        return 0
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    return 126

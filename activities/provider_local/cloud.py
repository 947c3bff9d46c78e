"""The cloud of the landscape: a cluster that is accessed with the kubeconfig in Secret ``cloudprovider``."""

import base64
import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from activities.errors import permanent, transient
from api.errors import ErrorCode
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, Conflict, Forbidden, Unauthorized, Unreachable
from kube.kubeconfig import Endpoint, KubeconfigError, endpoint_of, parse_kubeconfig

KUBECONFIG_KEY = "kubeconfig"
_MOST_CLIENTS = 64


class Clouds:
    """Connections to clouds, by credentials. The least recently used connection is closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[KubeClient, Caches]] = OrderedDict()

    async def connect(self, secret: Mapping[str, str], where: str) -> KubeClient:
        """A client for the base64 data of a credentials Secret; ``where`` names the Secret in errors."""
        return (await self._connection(secret, where))[0]

    async def caches(self, secret: Mapping[str, str], where: str) -> Caches:
        """The watch caches that use the client of ``connect``."""
        return (await self._connection(secret, where))[1]

    async def _connection(self, secret: Mapping[str, str], where: str) -> tuple[KubeClient, Caches]:
        encoded = secret.get(KUBECONFIG_KEY, "")
        if encoded not in self._open:
            client = KubeClient(read_kubeconfig(secret, where))
            self._open[encoded] = (client, Caches(client))
        self._open.move_to_end(encoded)
        if len(self._open) > _MOST_CLIENTS:
            _, (oldest, caches) = self._open.popitem(last=False)
            await caches.close()
            await oldest.close()
        return self._open[encoded]

    async def close(self) -> None:
        """Close all connections."""
        while self._open:
            _, (client, caches) = self._open.popitem()
            await caches.close()
            await client.close()


@contextlib.contextmanager
def cloud_errors(doing: str) -> Iterator[None]:
    """Turn errors of the cloud into error codes: wrong credentials, missing rights, or a cloud that does not answer."""
    try:
        yield
    except Unauthorized:
        raise permanent(
            ErrorCode.INFRA_UNAUTHENTICATED,
            f"{doing}: the cloud does not accept the credentials; check the Secret behind the Shoot's binding",
        ) from None
    except Forbidden as error:
        if "is being terminated" in error.message:
            raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: {error}") from None
        raise permanent(
            ErrorCode.INFRA_UNAUTHORIZED,
            f"{doing}: the credentials may not do this in the cloud ({error.doing})",
        ) from None
    except (Unreachable, Conflict) as error:
        raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: {error}") from None
    except ApiError as error:
        code = ErrorCode.RETRYABLE_INFRA_DEPENDENCIES
        raise transient(code, f"{doing}: {error}") from None


def read_kubeconfig(secret: Mapping[str, str], where: str) -> Endpoint:
    """Endpoint of a user's kubeconfig, which must name no files, programs or proxies of this process.

    Raises ApplicationError, which names the Secret and quotes no part of its content.
    """
    try:
        encoded = secret.get(KUBECONFIG_KEY, "")
        if not encoded:
            raise KubeconfigError(f"has no key {KUBECONFIG_KEY}")
        parsed = parse_kubeconfig(base64.b64decode(encoded))
        for part, forbidden in _FORBIDDEN.items():
            for entry in parsed.get(part) or ():
                for key in (entry.get(part.removesuffix("s")) or {}) if isinstance(entry, Mapping) else ():
                    if key in forbidden:
                        raise KubeconfigError(f"uses {key}, only inline data is possible")
        return endpoint_of(parsed)
    except (ValueError, AttributeError, TypeError) as error:
        fault = str(error) if isinstance(error, KubeconfigError) else "is not a kubeconfig"
        raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"kubeconfig of Secret {where}: {fault}") from None


_FORBIDDEN = {
    "clusters": {"certificate-authority", "proxy-url"},
    "users": {"client-certificate", "client-key", "tokenFile", "exec", "auth-provider"},
}

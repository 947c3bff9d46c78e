"""The cloud of the landscape: a cluster that is accessed with the credentials in Secret ``cloudprovider``.

These are a kubeconfig, or the address of the cloud and a token of a WorkloadIdentity, which the cloud verifies by the
documents of the token's issuer.
"""

import base64
import contextlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import jwt

from activities.errors import permanent, transient
from activities.provider_local.provider import provider_section
from api.decisions.workload_identity import CONFIG, TOKEN
from api.errors import ErrorCode
from api.local import WorkloadIdentityConfig
from kube.cache import Caches
from kube.client import KubeClient
from kube.errors import ApiError, Conflict, Forbidden, Unauthorized, Unreachable
from kube.kubeconfig import Endpoint, KubeconfigError, endpoint_of, parse_kubeconfig

KUBECONFIG_KEY = "kubeconfig"
_MOST_CLIENTS = 64


class Clouds:
    """Connections to clouds, by credentials. The least recently used connection is closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], tuple[KubeClient, Caches]] = OrderedDict()

    async def connect(self, secret: Mapping[str, str], where: str) -> KubeClient:
        """A client for the base64 data of a credentials Secret; ``where`` names the Secret in errors."""
        return (await self._connection(secret, where))[0]

    async def caches(self, secret: Mapping[str, str], where: str) -> Caches:
        """The watch caches that use the client of ``connect``."""
        return (await self._connection(secret, where))[1]

    async def _connection(self, secret: Mapping[str, str], where: str) -> tuple[KubeClient, Caches]:
        endpoint = endpoint_in(secret, where)
        # A token is renewed: the connection stays, and sends the new token. It belongs to one Secret, because two
        # identities may have the same cloud.
        key = (where, secret[CONFIG]) if uses_token(secret) else ("", secret.get(KUBECONFIG_KEY, ""))
        if key not in self._open:
            client = KubeClient(endpoint)
            self._open[key] = (client, Caches(client))
        elif self._open[key][0].endpoint.token != endpoint.token:
            self._open[key][0].reconfigure(endpoint)
        self._open.move_to_end(key)
        if len(self._open) > _MOST_CLIENTS:
            _, (oldest, caches) = self._open.popitem(last=False)
            await caches.close()
            await oldest.close()
        return self._open[key]

    async def close(self) -> None:
        """Close all connections."""
        while self._open:
            _, (client, caches) = self._open.popitem()
            await caches.close()
            await client.close()


@contextlib.contextmanager
def cloud_errors(doing: str, secret: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn errors of the cloud into error codes: wrong credentials, missing rights, or a cloud that does not answer.

    ``secret``: data of the credentials Secret, from which the error says what a refused token claims.
    """
    try:
        yield
    except Unauthorized:
        raise permanent(ErrorCode.INFRA_UNAUTHENTICATED, f"{doing}: {_refused(secret or {})}") from None
    except Forbidden as error:
        if "is being terminated" in error.message:
            raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: {error}") from None
        raise permanent(
            ErrorCode.INFRA_UNAUTHORIZED,
            f"{doing}: the credentials may not do this in the cloud: {error}",
        ) from None
    except (Unreachable, Conflict) as error:
        raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, f"{doing}: {error}") from None
    except ApiError as error:
        code = ErrorCode.RETRYABLE_INFRA_DEPENDENCIES
        raise transient(code, f"{doing}: {error}") from None


def uses_token(secret: Mapping[str, str]) -> bool:
    """Whether a credentials Secret is for a WorkloadIdentity."""
    return bool(secret.get(CONFIG))


def endpoint_in(secret: Mapping[str, str], where: str) -> Endpoint:
    """Address and credentials of the cloud in a credentials Secret; ``where`` names the Secret in errors.

    Raises ApplicationError, which quotes no credentials.
    """
    if not uses_token(secret):
        return read_kubeconfig(secret, where)
    try:
        found = json.loads(base64.b64decode(secret[CONFIG]))
        token = base64.b64decode(secret.get(TOKEN, "")).decode("ascii")
    except ValueError:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM, f"Secret {where}: {CONFIG} is not JSON, or {TOKEN} is no text"
        ) from None
    config = provider_section(WorkloadIdentityConfig, found, f"spec.targetSystem.providerConfig behind Secret {where}")
    if not token:
        raise permanent(ErrorCode.INFRA_UNAUTHENTICATED, f"Secret {where} has no token of its WorkloadIdentity yet")
    try:
        authority = base64.b64decode(config.certificate_authority_data, validate=True).decode("ascii")
    except ValueError:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"spec.targetSystem.providerConfig behind Secret {where}: certificateAuthorityData is not base64 of PEM",
        ) from None
    return Endpoint(server=config.server.rstrip("/"), ca=authority, token=token)


def _refused(secret: Mapping[str, str]) -> str:
    """Why the cloud does not accept credentials, as far as provider-local can know. It names no part of a signature."""
    if not uses_token(secret):
        return "the cloud does not accept the credentials; check the Secret behind the Shoot's binding"
    try:
        token = base64.b64decode(secret.get(TOKEN, "")).decode("ascii")
        claims = jwt.decode(token, options={"verify_signature": False})
        expires = datetime.fromtimestamp(float(claims["exp"]), UTC)
    except (jwt.PyJWTError, KeyError, TypeError, ValueError, OverflowError):
        return "the cloud does not accept the token, which is no token of a WorkloadIdentity"
    if expires <= datetime.now(UTC):
        return (
            f"the token has expired at {expires:%Y-%m-%d %H:%M:%S} UTC: the gardenlet has not renewed it, see its log"
        )
    return (
        f"the cloud does not accept the token: it must trust issuer {claims.get('iss')}, audience {claims.get('aud')} "
        f"and subject {claims.get('sub')}, and reach the documents of the issuer"
    )


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

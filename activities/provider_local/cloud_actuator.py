"""Base class of actuators that make objects in the cloud with the credentials of a Secret beside their object."""

import contextlib
from collections.abc import AsyncIterator, Mapping

from activities.errors import permanent
from activities.extension import Extension
from activities.provider_local.cloud import Clouds, cloud_errors
from activities.provider_local.provider import LocalActuator
from api.errors import ErrorCode
from api.resources import SECRET
from kube.client import KubeClient, Object


class CloudActuator(LocalActuator):
    """A subclass says which Secret in the namespace of the object has the credentials."""

    def __init__(self, seed: KubeClient, clouds: Clouds) -> None:
        super().__init__(seed)
        self._clouds = clouds

    def _secret(self, extension: Extension) -> str:
        """Name of the Secret with the credentials."""
        raise NotImplementedError

    async def _credentials(self, extension: Extension) -> Mapping[str, str] | None:
        """Data of the Secret, None if the Secret is gone."""
        secret = await self._seed.find(SECRET, self._secret(extension), extension.namespace)
        return None if secret is None else secret.get("data") or {}

    async def _required_credentials(self, extension: Extension) -> Mapping[str, str]:
        """Data of the Secret. Raises a final error if the Secret is gone."""
        credentials = await self._credentials(extension)
        if credentials is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"Secret {self._where(extension)}, with which {extension} is made in the cloud, does not exist",
            )
        return credentials

    @contextlib.asynccontextmanager
    async def _cloud(
        self, extension: Extension, credentials: Mapping[str, str], doing: str
    ) -> AsyncIterator[KubeClient]:
        """A client of the cloud. Errors of the cloud become error codes."""
        cloud = await self._clouds.connect(credentials, self._where(extension))
        with cloud_errors(doing, credentials):
            yield cloud

    def _where(self, extension: Extension) -> str:
        return f"{extension.namespace}/{self._secret(extension)}"


def address_of(service: Object | None) -> str | None:
    """Address of a Service of type LoadBalancer, None if it has none yet."""
    ingress = (((service or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return str(ingress[0]["ip"]) if ingress else None

"""Names of provider-local, and its sections in the objects of the extension API."""

from collections.abc import Mapping
from typing import Any

from activities.errors import permanent
from activities.extension import Actuator
from api.errors import ErrorCode
from api.local import InvalidProviderConfig, M, read_provider_section

MANAGER = "provider-local"
"""Field manager of everything that provider-local applies, and holder of its heartbeat."""
PROVIDER_TYPE = "local"


class LocalActuator(Actuator):
    """An actuator of objects with type ``local``."""

    type = PROVIDER_TYPE


def provider_section(model: type[M], section: Mapping[str, Any] | None, where: str) -> M:
    """A raw provider section as ``model``. Raises a final error for an invalid section, which only the user can fix."""
    try:
        return read_provider_section(model, section, where)
    except InvalidProviderConfig as error:
        raise permanent(ErrorCode.CONFIGURATION_PROBLEM, str(error)) from None

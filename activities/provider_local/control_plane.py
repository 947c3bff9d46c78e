"""ControlPlane: the cloud has neither load balancers nor volumes of its own, so shoots need no controllers for them."""

from typing import Any

from activities.extension import Extension
from activities.provider_local.provider import LocalActuator
from api.resources import CONTROL_PLANE


class ControlPlaneActuator(LocalActuator):
    """Reports success: provider-local needs no component in a control plane."""

    resource = CONTROL_PLANE

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        return {}

    async def delete(self, extension: Extension) -> None:
        return

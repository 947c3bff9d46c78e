"""Parts of the actuators of extensions. ``workers.extension`` offers them to the extensions of others."""

from activities.extension.actuator import (
    Actuator,
    Extension,
    control_plane_namespace,
    delete_quietly,
    load_extension,
    missing_secret,
    namespace_lives,
    required_secret_data,
    secret_data,
)
from activities.extension.managed_resource import apply_managed_resource, delete_managed_resource

__all__ = [
    "Actuator",
    "Extension",
    "apply_managed_resource",
    "control_plane_namespace",
    "delete_managed_resource",
    "delete_quietly",
    "load_extension",
    "missing_secret",
    "namespace_lives",
    "required_secret_data",
    "secret_data",
]

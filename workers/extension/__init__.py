"""SDK of extensions: everything that an extension needs, of this project or of others. See docs/extensions.md.

An extension writes an ``Actuator`` for each kind and type of objects that it serves, and passes them to ``serve``.
Its other imports are ``api`` (kinds, error codes) and ``kube`` (client and caches).
"""

from activities.errors import permanent, transient
from activities.extension import (
    Actuator,
    Extension,
    apply_managed_resource,
    delete_managed_resource,
    delete_quietly,
    required_secret_data,
    secret_data,
)
from workers.extension.controller import ExtensionController
from workers.extension.heartbeat import run_heartbeat
from workers.extension.serving import serve

__all__ = [
    "Actuator",
    "Extension",
    "ExtensionController",
    "apply_managed_resource",
    "delete_managed_resource",
    "delete_quietly",
    "permanent",
    "required_secret_data",
    "run_heartbeat",
    "secret_data",
    "serve",
    "transient",
]

"""The interface between the machine controllers and a cloud.

A provider implements ``Driver`` once; ``process`` passes the implementations to the controllers. The controllers choose
the driver by ``MachineClass.provider``, read the Secrets that the MachineClass refers to, and report errors in the
Machine's status.

Errors: each method raises ``MachineError`` with a ``MachineCode`` and a message. The message names the machine or the
Secret and says what to change; it quotes no Secret. The controllers react to the code:

- InvalidArgument, Unauthenticated, PermissionDenied and Unimplemented (``needs_change``): the Machine shows the error,
  and the request is repeated every 5 s, because a user may be waiting for the result of a correction;
- ResourceExhausted: repeated with increasing delays. The cluster autoscaler sees the code, removes the machine and
  tries another pool;
- Unavailable and Internal: repeated with increasing delays;
- NotFound: only ``status`` raises it. The Machine is set to Failed, and its MachineSet replaces it.

Any other exception is a bug of the driver: it is logged, and the request is repeated with increasing delays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from api.machine.codes import MachineCode


class MachineError(Exception):
    """The cloud has not executed a request. The text becomes the description of the Machine's last operation."""

    def __init__(self, code: MachineCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ResolvedClass:
    """A MachineClass with the credentials that it refers to."""

    object: Mapping[str, Any]
    """The raw MachineClass."""
    credentials: Mapping[str, str] = field(repr=False)
    """The base64 data of the Secret in ``credentialsSecretRef``, or without one in ``secretRef``."""

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def credentials_secret(self) -> str:
        """Namespace and name of the Secret with the credentials, for messages."""
        return f"{self.object['metadata']['namespace']}/{self.object[credentials_field(self.object)]['name']}"


def credentials_field(class_: Mapping[str, Any]) -> str:
    """Field of a MachineClass that names the Secret with the credentials."""
    return "credentialsSecretRef" if class_.get("credentialsSecretRef") else "secretRef"


class Machines(Protocol):
    """The machines of one account in a cloud, as the driver has seen them last. They may lag behind the cloud."""

    @property
    def is_complete(self) -> bool:
        """Whether the driver has seen all machines of the account. Before, a machine that is missing may exist."""

    def __contains__(self, name: object, /) -> bool:
        """Whether the driver has seen a machine of this name."""

    def subscribe(self, on_gone: Callable[[str], None], /) -> object:
        """Call ``on_gone`` with the name of each machine that the driver sees disappear from now on."""


class Driver(Protocol):
    """Creates, finds and deletes machines in one kind of cloud. Every method may run twice for the same machine."""

    provider: str
    """Value of ``MachineClass.provider`` that chooses this driver."""

    async def create(self, machine: Mapping[str, Any], class_: ResolvedClass, user_data: bytes) -> str:
        """Create the machine unless an earlier attempt has created it; returns its provider id.

        ``user_data`` is the script that the machine boots with. It holds the machine's bootstrap token: a driver does
        not log it. The name of the Machine must find the machine again, and be the name of its node.
        """

    async def status(self, machine: Mapping[str, Any], class_: ResolvedClass) -> str:
        """Provider id of the machine, running or not yet, read from the cloud and not from a cache.

        Raises MachineError with code NotFound if the machine does not exist.
        """

    async def delete(self, machine: Mapping[str, Any], class_: ResolvedClass) -> bool:
        """Delete the machine and everything that belongs to it. Returns whether all of it is gone.

        The controller repeats the call until it returns True.
        """

    async def machines(self, class_: ResolvedClass) -> Machines:
        """The machines of the account that the class belongs to: the same object for the same account.

        A driver of a cloud without events polls the cloud.
        """

    async def close(self) -> None:
        """Close all connections."""

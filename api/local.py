"""Kinds of ``local.provider.extensions.gardener.cloud/v1alpha1``, which only provider-local reads.

They travel inside ``providerConfig``, ``providerStatus`` and ``providerSpec`` of other kinds.
"""

import hashlib
from collections.abc import Mapping
from ipaddress import IPv6Network
from typing import Any, Final, Literal, TypeVar

from pydantic import Field, ValidationError

from api.model import ApiModel

API_VERSION: Final = "local.provider.extensions.gardener.cloud/v1alpha1"

M = TypeVar("M", bound=ApiModel)

_ApiVersion = Literal["local.provider.extensions.gardener.cloud/v1alpha1"]


class InvalidProviderConfig(ValueError):
    """A provider section that does not fit its kind; the text names field and fault, no values."""


class CloudProfileConfig(ApiModel):
    """``CloudProfile.spec.providerConfig``: settings of the cloud that all its shoots share."""

    api_version: _ApiVersion = API_VERSION
    kind: Literal["CloudProfileConfig"] = "CloudProfileConfig"
    machine_network: str
    """CIDR from which machines get their addresses."""
    machine_network_ipv6: str = Field(default="", alias="machineNetworkIPv6")
    """CIDR from which each machine gets a second address, of IPv6. Empty: the machines of this cloud have IPv4 only,
    and it refuses Shoots with IPv6."""
    images_directory: str = ""
    """Directory on the cloud's host with image archives, mounted read-only into each machine."""
    disks_directory: str = ""
    """Directory on the cloud's host in which the cloud attaches disks; a machine gets its own part of it."""


class WorkloadIdentityConfig(ApiModel):
    """``WorkloadIdentity.spec.targetSystem.providerConfig``: the cloud that accepts the tokens."""

    api_version: _ApiVersion = API_VERSION
    kind: Literal["WorkloadIdentityConfig"] = "WorkloadIdentityConfig"
    server: str = Field(pattern=r"^https://[^\s/?#@]+/?$")
    """URL of the cloud's API server."""
    certificate_authority_data: str = ""
    """PEM bundle in base64 of the authorities of its certificate; empty: the public authorities."""


class InfrastructureStatus(ApiModel):
    """``Infrastructure.status.providerStatus``: place of the machines of this shoot."""

    api_version: _ApiVersion = API_VERSION
    kind: Literal["InfrastructureStatus"] = "InfrastructureStatus"
    namespace: str
    """Namespace of the cloud cluster."""


class MachineProviderSpec(ApiModel):
    """``MachineClass.providerSpec``: properties of a machine of this class."""

    api_version: _ApiVersion = API_VERSION
    kind: Literal["MachineProviderSpec"] = "MachineProviderSpec"
    namespace: str
    image: str
    images_directory: str = ""
    disks_directory: str = ""
    cpu_millis: int
    memory_bytes: int
    """Memory request of the machine's pod in the cloud."""


def infrastructure_namespace(technical_id: str) -> str:
    """Namespace of the cloud cluster that holds the machines of a shoot."""
    return f"infra-{technical_id}"


def ipv6_networks(uid: str) -> tuple[str, str]:
    """IPv6 networks of the pods (/56) and the Services (/112) of a Shoot with this uid; the same at each call.

    They are in a /48 of unique local addresses (RFC 4193), whose 40 bits are a digest of the uid. Two Shoots have the
    same /48 with probability 2^-40.
    """
    prefix = bytes([0xFD]) + hashlib.sha256(f"ipv6-networks/{uid}".encode()).digest()[:5]
    pods, services = (IPv6Network((prefix + part.to_bytes(2, "big") + bytes(8), 128)) for part in (0, 0x100))
    return str(pods.supernet(new_prefix=56)), str(services.supernet(new_prefix=112))


MACHINE_LABEL = "local.provider.extensions.gardener.cloud/machine"
"""Label of a machine's pod and Secret in the cloud; its value is the name of the machine."""
DISKS_VOLUME = "disks"
"""Name of the volume of a machine's pod in which the cloud attaches disks."""
NETWORK_POLICIES_LABEL = "local.provider.extensions.gardener.cloud/network-policies"
"""Label of a Node, with value ``true``: its machine has what the agent for NetworkPolicies needs. A machine of an
earlier version does not have it."""
LOAD_BALANCER_LABEL = "local.provider.extensions.gardener.cloud/load-balancer"
"""Label of a Service of the cloud that is the load balancer of a shoot's Service; its value is the uid of that one."""
HEALTH_CHECK_PORT = "local.provider.extensions.gardener.cloud/health-check-port"
"""Annotation of a Service of the cloud without a selector: its backends are the machines of the namespace that answer
``GET /healthz`` at this port."""
EXCLUDED_MACHINES = "local.provider.extensions.gardener.cloud/excluded-machines"
"""Annotation of such a Service: names of machines that get no connections, separated by commas."""

OBJECT_STORE_LABEL = "local.provider.extensions.gardener.cloud/object-store"
"""Label of a namespace of the cloud, ``true``: its machines reach the object store. The cloud's operator sets it."""
CHOSEN_MACHINES = "local.provider.extensions.gardener.cloud/chosen-machines"
"""Annotation of a Service of the cloud without a selector: its backends are the machines of the namespace that have one
of these addresses, separated by commas, and accept TCP connections at its target ports."""


def read_provider_section(model: type[M], section: Mapping[str, Any] | None, where: str) -> M:
    """Read a raw provider section; ``where`` names its object and path in the error.

    Raises:
        InvalidProviderConfig: it is missing, or does not fit.
    """
    if section is None:
        raise InvalidProviderConfig(f"{where} is missing, must be a {model.__name__} of {API_VERSION}")
    try:
        return model.model_validate(section)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)
        )
        raise InvalidProviderConfig(f"{where} is not a valid {model.__name__}: {faults}") from None

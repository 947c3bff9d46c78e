"""Inputs of ``gardener shoot init`` and ``join``: the manifest of a self-hosted Shoot, and the facts of a machine.

The models have the fields that have an effect there. Every other field of a Shoot is refused, with its path.
"""

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from api.model import ApiModel
from api.names import technical_id

PROJECT_PREFIX: Final = "garden-"
CREDENTIALS: Final = "cloud.yaml"
PROFILE: Final = "cloudprofile.yaml"
BACKUP_CREDENTIALS: Final = "backup.json"
DNS_CREDENTIALS: Final = "dns.json"
RECOVERY_KEY: Final = "recovery.key"
KUBECONFIG: Final = "kubeconfig.yaml"
SECRETS: Final = "secrets"
UID: Final = "uid"
MANIFEST: Final = "shoot.json"
EXISTING: Final = "existing.json"
RENEWING: Final = "renewing"
"""Files and directories of the state directory of a machine."""


class InvalidManifest(ValueError):
    """The manifest cannot be used; the text names each field and what is wrong, and quotes no values."""


def _network(text: str) -> str:
    IPv4Network(text)
    return text


_Cidr = Annotated[str, AfterValidator(_network)]


class _Metadata(ApiModel):
    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=21)
    namespace: str = Field(pattern=r"^garden-[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


class _Kubernetes(ApiModel):
    version: str = Field(pattern=r"^1\.\d+\.\d+$")


class _Networking(ApiModel):
    type: Literal["flannel"] = "flannel"
    pods: _Cidr = "100.64.0.0/12"
    services: _Cidr = "100.104.0.0/13"

    @model_validator(mode="after")
    def _disjoint(self) -> "_Networking":
        if IPv4Network(self.pods).overlaps(IPv4Network(self.services)):
            raise ValueError("pods and services must not overlap")
        return self


class _Extension(ApiModel):
    type: Literal["local"] = "local"


class _DirectExposure(ApiModel):
    """The record of the API server's name has the addresses of the control plane's machines. It has no fields."""


class _Exposure(ApiModel):
    extension: _Extension | None = None
    dns: _DirectExposure | None = None

    @model_validator(mode="after")
    def _one(self) -> "_Exposure":
        if (self.extension is None) == (self.dns is None):
            raise ValueError("exactly one of extension and dns must be set")
        return self


class SecretReference(ApiModel):
    """The Secret of the file that ``--backup-credentials`` names."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Secret"]
    namespace: str
    name: str


class _Backup(ApiModel):
    provider: Literal["local"]
    region: str | None = None
    credentials_ref: SecretReference


class _ControlPlane(ApiModel):
    backup: _Backup | None = None
    exposure: _Exposure | None = None


class _Pool(ApiModel):
    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=15)
    minimum: Literal[1] = 1
    maximum: int = Field(default=1, ge=1, le=100)
    """Number of machines that may be in the pool."""
    control_plane: _ControlPlane | None = None

    @property
    def exposes_by_dns(self) -> bool:
        exposure = self.control_plane and self.control_plane.exposure
        return bool(exposure and exposure.dns is not None)


class _Provider(ApiModel):
    type: Literal["local"]
    workers: tuple[_Pool, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_control_plane(self) -> "_Provider":
        if len([each for each in self.workers if each.control_plane is not None]) != 1:
            raise ValueError("exactly one pool must have controlPlane")
        if len({each.name for each in self.workers}) != len(self.workers):
            raise ValueError("pools must have different names")
        return self


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


class _DNSCredentials(ApiModel):
    """The Secret of the file that ``--dns-credentials`` names. It has the namespace of the Shoot."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Secret"]
    name: str


class _DNSProvider(ApiModel):
    type: Literal["local"]
    primary: Literal[True] = True
    credentials_ref: _DNSCredentials


class _DNS(ApiModel):
    domain: str = Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=240)
    providers: tuple[_DNSProvider, ...] = Field(default=(), max_length=1)


class _Spec(ApiModel):
    kubernetes: _Kubernetes
    networking: _Networking = _Networking()
    dns: _DNS
    provider: _Provider

    @model_validator(mode="after")
    def _record_has_provider(self) -> "_Spec":
        direct = any(each.exposes_by_dns for each in self.provider.workers)
        if direct and not self.dns.providers:
            raise ValueError("exposure.dns needs an entry of dns.providers, by which the record is written")
        if self.dns.providers and not direct:
            raise ValueError("dns.providers has an effect with exposure.dns alone: leave it out")
        return self


class SelfHostedManifest(ApiModel):
    """A Shoot whose machines run its control plane and its pods."""

    api_version: Literal["core.gardener.cloud/v1beta1"]
    kind: Literal["Shoot"]
    metadata: _Metadata
    spec: _Spec

    @property
    def pool(self) -> _Pool:
        """The pool of the control plane."""
        return next(each for each in self.spec.provider.workers if each.control_plane is not None)

    @property
    def control_plane(self) -> _ControlPlane:
        assert self.pool.control_plane is not None
        return self.pool.control_plane

    @property
    def technical_id(self) -> str:
        return technical_id(self.metadata.namespace.removeprefix(PROJECT_PREFIX), self.metadata.name)

    @property
    def host(self) -> str:
        """Name of the API server in its certificate."""
        return f"api.{self.spec.dns.domain}"

    @classmethod
    def read(cls, document: Any) -> "SelfHostedManifest":
        """Raises InvalidManifest."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc']))}: {_told(fault['type'], fault['msg'])}"
                for fault in error.errors(include_input=False)
            )
            raise InvalidManifest(f"the manifest is not one of a self-hosted Shoot: {faults}") from None


def _told(kind: str, message: str) -> str:
    return "gardener shoot init does not offer this field: leave it out" if kind == "extra_forbidden" else message


class Machine(ApiModel):
    """The machine that runs the control plane."""

    node: str
    address: str


class InitTask(ApiModel):
    """A control plane that ``gardener shoot init`` makes."""

    directory: Path
    """State directory of the machine."""
    shoot: SelfHostedManifest
    machine: Machine

    @property
    def backed_up(self) -> bool:
        return self.shoot.control_plane.backup is not None

    @property
    def exposed(self) -> bool:
        """Whether an extension exposes the API servers."""
        exposure = self.shoot.control_plane.exposure
        return bool(exposure and exposure.extension)

    @property
    def named(self) -> bool:
        """Whether the record of the API server's name has the addresses of the machines."""
        return self.shoot.pool.exposes_by_dns


class Keys(ApiModel):
    """Secret of the cluster with the keys of its control plane, and the key that opens it."""

    secret: str
    key: str = Field(repr=False)


class JoinFile(ApiModel):
    """File of ``gardener shoot token create``, by which one machine joins. It holds a token."""

    shoot: SelfHostedManifest
    node: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)
    """Name of the only node that may join with it."""
    pool: str
    address: str
    """Address of the API server; its name if that has a DNS record."""
    ca: str
    """Certificate with which the machine verifies the API server."""
    kubelet_ca: str
    """Certificate with which the kubelet verifies requests of the API server."""
    token: str = Field(repr=False)
    keys: Keys | None = None
    """Set for a machine of the control plane."""


class JoinTask(ApiModel):
    """A machine without a control plane that joins."""

    join: JoinFile
    address: str
    """Address of the machine."""

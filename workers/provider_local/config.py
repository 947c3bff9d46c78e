"""Configuration of provider-local. Each seed has one such process, in the seed's network."""

from ipaddress import ip_address
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from api.model import ApiModel
from workers.lib.leader import LeaderElectionConfig
from workers.lib.runtime import HealthConfig
from workers.lib.temporal import TemporalConnection
from workers.lib.tracing import TracingConfig


class ProviderLocalConfig(ApiModel):
    """Content of ``config.yaml``."""

    seed_name: str
    seed_kubeconfig: Path | None = None
    """Kubeconfig of the seed; unset: in-cluster."""
    temporal: TemporalConnection
    """Connection to Temporal: long operations run as workflows on the task queue ``provider-local-<seed name>``."""
    load_balancer_ip: str = ""
    """Address for the Service of the seed's own gateway, of type LoadBalancer: that of the seed's node. Empty:
    provider-local leaves the Services of gateways to the cloud of the seed, for example if the seed is a Shoot."""
    further_load_balancer_ips: tuple[str, ...] = ()
    """Addresses for the Services of further gateways, those of handlers of ExposureClasses. The network must route them
    to the seed's node."""
    ipv6_load_balancer_ips: dict[str, str] = Field(default_factory=dict)
    """Addresses of IPv6 that lead to the same gateways, by the address of IPv4 above. A Service with such an address of
    IPv4 gets both. Shoots with IPv6 alone need it."""
    heartbeat_namespace: str = "garden"
    """Namespace of the Lease ``gardener-extension-heartbeat``."""
    tracing: TracingConfig | None = None
    health: HealthConfig = Field(default=HealthConfig())
    leader_election: LeaderElectionConfig = Field(default=LeaderElectionConfig())

    @model_validator(mode="after")
    def _further_need_the_first(self) -> Self:
        if self.further_load_balancer_ips and not self.load_balancer_ip:
            raise ValueError("furtherLoadBalancerIps needs loadBalancerIp, the address of the seed's node")
        return self

    @model_validator(mode="after")
    def _ipv6_addresses_belong_to_others(self) -> Self:
        found = self.ipv6_load_balancer_ips
        if unknown := sorted(found.keys() - {self.load_balancer_ip, *self.further_load_balancer_ips}):
            raise ValueError(
                f"ipv6LoadBalancerIps names {', '.join(unknown)}: "
                "its keys must be addresses of loadBalancerIp and furtherLoadBalancerIps"
            )
        for version, addresses in ((4, found.keys()), (6, found.values())):
            if wrong := sorted(each for each in addresses if not _is_address(each, version)):
                raise ValueError(f"ipv6LoadBalancerIps: {', '.join(wrong)} is no address of IPv{version}")
        if len(set(map(ip_address, found.values()))) < len(found):
            raise ValueError("ipv6LoadBalancerIps names an address of IPv6 twice: each leads to one gateway")
        return self


def _is_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version
    except ValueError:
        return False

"""CoreDNS: the shoot's cluster DNS."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import images

NAME = "coredns"
NAMESPACE = "kube-system"
SERVICE = "kube-dns"
SELECT = {"k8s-app": SERVICE}
SERVER_PORT = 8053
"""Port of CoreDNS's pods; the port of the Service is 53."""
_METRICS_PORT = 9153
_HEALTH_PORT = 8080
_READY_PORT = 8181
_REPLICAS = 2
RESTARTED_AT = "gardener.cloud/restarted-at"
"""Annotation of the pods of the Deployment: a new value replaces them all."""


@dataclass(frozen=True)
class CoreDns:
    service_cidr: str
    api_server: str
    """Name of the API server. CoreDNS connects to it directly, so that DNS does not wait for apiserver-proxy."""
    domain: str = "cluster.local"
    families: Sequence[str] = ("IPv4",)
    """IP families of the Service."""
    restarted_at: str = ""
    """Time at which all pods were last replaced to get further addresses; empty if they never were."""
    common_suffixes: Sequence[str] = ()
    """Suffixes of names outside of the cluster, for which clients need not try the cluster's search domains first."""


def cluster_dns_address(service_cidr: str) -> str:
    """The tenth address of the services' network. Kubelets configure it as name server of pods."""
    return str(ipaddress.ip_network(service_cidr)[10])


def objects(dns: CoreDns) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(NAME, NAMESPACE),
        "data": {"Corefile": _corefile(dns)},
    }
    # The owner's ConfigMap: it is created without settings, and never overwritten.
    custom = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(f"{NAME}-custom", NAMESPACE, annotations={"resources.gardener.cloud/ignore": "true"}),
        "data": {"changeme.server": "# Files *.server add servers.\n", "changeme.override": "# Files *.override.\n"},
    }
    rules = [
        base.rule("core", "endpoints services pods namespaces", "list watch"),
        base.rule("discovery.k8s.io", "endpointslices", "list watch"),
    ]
    address = cluster_dns_address(dns.service_cidr)
    # The address of the second family is any free one: kubelets configure the first address alone in pods.
    service = dns_service(SERVICE, {"metrics": _METRICS_PORT}, clusterIP=address)
    if len(dns.families) > 1:
        service["spec"]["ipFamilyPolicy"] = "PreferDualStack"
    service["metadata"]["labels"] |= {"kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}
    return [
        base.service_account(NAME, NAMESPACE),
        base.cluster_role(f"system:{NAME}", rules),
        base.binding(f"system:{NAME}", [base.account(NAME)], cluster_role=f"system:{NAME}"),
        config_map,
        custom,
        service,
        base.pod_disruption_budget(NAME, NAMESPACE, SELECT),
        _autoscaler(),
        _deployment(dns, base.checksum(config_map["data"])),
    ]


def dns_service(
    name: str, more_ports: Mapping[str, int], *, labels: base.Labels | None = None, **spec: Any
) -> Manifest:
    """A Service for CoreDNS's pods."""
    ports: dict[str, int | tuple[int, int | str]] = {"dns-tcp": (53, SERVER_PORT), **more_ports}
    made = base.service(name, NAMESPACE, select=SELECT, ports=ports, labels=labels, **spec)
    made["spec"]["ports"].insert(0, {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": SERVER_PORT})
    return made


def custom_volume() -> Manifest:
    """Volume with the owner's additions to CoreDNS's configuration."""
    config_map = {"name": f"{NAME}-custom", "defaultMode": 0o644, "optional": True}
    return {"name": "custom", "configMap": config_map}


def _rewriting(suffix: str, domain: str) -> str:
    """Answer a name that a client tried with the search domain of its namespace as if it had tried the name alone.

    A client with Kubernetes' search domains asks for ``www.example.org.default.svc.cluster.local`` first. With suffix
    ``.example.org``, it gets the answer of ``www.example.org`` at once.
    """
    name = suffix.strip(".")
    searched = rf"[^.]+\.svc\.{re.escape(domain)}"
    return f"""\
  rewrite stop {{
    name regex ^(.+)\\.{re.escape(name)}\\.{searched}\\.?$ {{1}}.{name}
    answer auto
  }}
"""


def _autoscaler() -> Manifest:
    """Two to five replicas, as many as their CPU usage needs. Source: Gardener's pkg/component/networking/coredns."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": base.metadata(NAME, NAMESPACE),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
            "minReplicas": _REPLICAS,
            "maxReplicas": 5,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
                }
            ],
        },
    }


def _corefile(dns: CoreDns) -> str:
    domain = dns.domain
    rewriting = "".join(_rewriting(each, domain) for each in dns.common_suffixes)
    return f"""\
.:{SERVER_PORT} {{
  health :{_HEALTH_PORT} {{
    lameduck 5s
  }}
  ready :{_READY_PORT}
  errors
  log . {{
    class error
  }}
{rewriting}  kubernetes {domain} in-addr.arpa ip6.arpa {{
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
    ttl 30
  }}
  prometheus :{_METRICS_PORT}
  import custom/*.override
  forward . /etc/resolv.conf
  cache 30
  loop
  reload
  loadbalance round_robin
}}
import custom/*.server
"""


def _deployment(dns: CoreDns, checksum: str) -> Manifest:
    main = base.container(
        NAME,
        images.COREDNS,
        ["/coredns", "-conf", "/etc/coredns/Corefile"],
        cpu="50m",
        memory="32Mi",
        mounts={"config": "/etc/coredns", "custom": "/etc/coredns/custom"},
        ports={"metrics": _METRICS_PORT},
        env=[
            {"name": "KUBERNETES_SERVICE_HOST", "value": dns.api_server},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
        ],
        # The upstream binary has this file capability, and does not start in a container that forbids it.
        security={
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "readOnlyRootFilesystem": True,
        },
        readinessProbe=base.http_probe("/ready", _READY_PORT, scheme="HTTP", period=2, timeout=2),
        livenessProbe=base.http_probe("/health", _HEALTH_PORT, scheme="HTTP", delay=30, failures=5),
    )
    main["ports"] += [
        {"name": "dns-udp", "containerPort": SERVER_PORT, "protocol": "UDP"},
        {"name": "dns-tcp", "containerPort": SERVER_PORT, "protocol": "TCP"},
    ]
    restarted = {RESTARTED_AT: dns.restarted_at} if dns.restarted_at else {}
    made = base.deployment(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels={"gardener.cloud/role": "system-component"},
        replicas=_REPLICAS,
        annotations={"checksum/configuration": checksum, **restarted},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "priorityClassName": "system-cluster-critical",
            "dnsPolicy": "Default",
            "securityContext": base.non_root_pod(),
            "nodeSelector": {"worker.gardener.cloud/system-components": "true"},
            "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
            "topologySpreadConstraints": base.spread_over_hosts(SELECT),
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", NAME),
                custom_volume(),
            ],
        },
    )
    # The resource manager leaves the number of replicas to the autoscaler.
    made["metadata"]["annotations"]["resources.gardener.cloud/preserve-replicas"] = "true"
    return made

"""Labels and annotations by which pods of a seed may connect, where its namespaces are closed.

A pod that opens connections has labels; a Service says which pods may reach its own. See ``api.network_policies``.
"""

import json
from collections.abc import Mapping
from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api.constants import GARDEN_NAMESPACE, ROLE, ROLE_EXPOSURE_CLASS_HANDLER, ROLE_EXTENSION, ROLE_SHOOT
from api.network_policies import (
    FROM_WORLD,
    NAMESPACE_ALIAS,
    NAMESPACE_SELECTORS,
    TO_API_SERVER,
    TO_DNS,
    TO_PRIVATE,
    TO_PUBLIC,
    allowed,
    from_ports,
    target,
    to,
)

_SHOOTS = "all-shoots"
"""Alias of all control-plane namespaces."""
_GATEWAYS = "all-istio-ingresses"
"""Alias of all namespaces with a gateway."""
_EXTENSIONS = "extensions"
_SCRAPED, _WEBHOOKS = "all-scrape-targets", "all-webhook-targets"
_BEHIND_GATEWAYS, _ETCDS = "gateway-targets", "etcd-controller"

API_SERVER = "kube-apiserver"
_PORT = 443

SHOOT_API = allowed(TO_DNS, to(target(API_SERVER, _PORT)))
"""Labels of pods in a control plane that use the API server of their Shoot."""
SEED_API = allowed(TO_DNS, TO_API_SERVER)
"""Labels of pods that use the API server of the seed."""
NAMES = allowed(TO_DNS)
"""Labels of pods that resolve names."""
OUTSIDE = allowed(TO_DNS, TO_PUBLIC, TO_PRIVATE)
"""Labels of pods that use services outside of the seed, for example an object store."""
METRICS = allowed(to(_SCRAPED))
"""Labels of the Prometheus of a Shoot."""
OWNERS_TARGETS = allowed(TO_DNS, TO_PUBLIC, to(_WEBHOOKS), to(f"{_EXTENSIONS}-{_WEBHOOKS}"))
"""Labels of an API server of a Shoot. Its owner chooses the addresses of webhooks: public ones."""
BEHIND_GATEWAYS = allowed(to(f"{_SHOOTS}-{_BEHIND_GATEWAYS}"))
"""Labels of a gateway."""


def within(service: str, *ports: int) -> dict[str, str]:
    """Labels of pods that may reach ports of a Service's pods in their own namespace."""
    return allowed(*(to(target(service, port)) for port in ports))


def to_gateway(service: str, port: int) -> dict[str, str]:
    """Labels of pods of a control plane that may reach a port of the gateways' pods."""
    return allowed(to(target(service, port, namespace=_GATEWAYS)))


def scraped(*ports: int) -> dict[str, str]:
    """Annotations of a Service whose pods the Prometheus of the Shoot scrapes."""
    return {from_ports(_SCRAPED): _ports(ports)}


def called_as_webhook(port: int) -> dict[str, str]:
    """Annotations of a Service whose pods the API server of the Shoot in the same namespace calls."""
    return {from_ports(_WEBHOOKS): _ports([port])}


def called_from_outside(port: int) -> dict[str, str]:
    """Annotations of a Service whose pods the API server of the seed calls: it does not run in a pod of the seed."""
    return {FROM_WORLD: _ports([port])}


def of_api_server() -> dict[str, str]:
    """Annotations of the Service of a Shoot's API server."""
    clients = [{"matchLabels": {ROLE: role}} for role in (GARDEN_NAMESPACE, ROLE_EXTENSION, *_ROLES_OF_GATEWAYS)]
    others = {"matchLabels": {"networking.gardener.cloud/access-target-apiserver": "allowed"}}
    return {**_from([*clients, others], _SHOOTS), from_ports(_BEHIND_GATEWAYS): _ports([_PORT]), **scraped(_PORT)}


def behind_gateways(*ports: int) -> dict[str, str]:
    """Annotations of a Service in a control plane whose pods the gateways reach."""
    selectors = [{"matchLabels": {ROLE: role}} for role in _ROLES_OF_GATEWAYS]
    return {**_from(selectors, _SHOOTS), from_ports(_BEHIND_GATEWAYS): _ports(ports)}


def of_gateway(*ports: int) -> dict[str, str]:
    """Annotations of the Service of a gateway: all clients, also those in control planes, reach these ports."""
    return {**_from([{"matchLabels": {ROLE: ROLE_SHOOT}}], _GATEWAYS), FROM_WORLD: _ports(ports)}


def of_etcd(metrics: int, *ports: int) -> dict[str, str]:
    """Annotations of the Service of an etcd, with the ports that the gardenlet's controller of etcds connects to."""
    selectors = [{"matchLabels": {ROLE: GARDEN_NAMESPACE}}]
    return {**_from(selectors, _SHOOTS), from_ports(_ETCDS): _ports([metrics, *ports]), **scraped(metrics)}


def metrics_service(name: str, namespace: str, select: base.Labels, port: int) -> Manifest:
    """A Service without an address, by which the Prometheus of a Shoot may scrape the pods of a component."""
    made = base.service(metrics_name(name), namespace, select=select, ports={"metrics": port}, clusterIP="None")
    return annotated(made, scraped(port))


def metrics_name(component: str) -> str:
    """Name of the ``metrics_service`` of a component."""
    return f"{component}-metrics"


def annotated(service: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """A Service with more annotations."""
    metadata: dict[str, Any] = service["metadata"]
    return {**service, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}}


_ROLES_OF_GATEWAYS = ("istio-ingress", ROLE_EXPOSURE_CLASS_HANDLER)


def _from(selectors: list[Manifest], alias: str) -> dict[str, str]:
    return {NAMESPACE_SELECTORS: json.dumps(selectors, sort_keys=True), NAMESPACE_ALIAS: alias}


def _ports(ports: Any) -> str:
    return json.dumps([{"port": port, "protocol": "TCP"} for port in ports], sort_keys=True)

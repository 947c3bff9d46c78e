"""Which exposure gets which host name of a seed's gateway."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from activities.components import gateway
from activities.components.gateway import ApiServerExposure, ServiceExposure
from api.names import owner_of
from kube.client import Object


@dataclass(frozen=True)
class Hosts:
    """Hosts that exposures get and do not get, by ``namespace/name`` of their ConfigMap."""

    served: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, tuple[str, ...]]


def hosts(exposures: Iterable[Object], internal_domain: str) -> Hosts:
    """Give each host to one exposure.

    Only an exposure in a control plane's namespace gets the internal name of that control plane, and the names of its
    Services. Of several exposures with the same other host, the oldest gets it. No exposure gets a host with a
    wildcard, because it would cover names of other control planes.
    """
    taken: dict[str, str] = {}
    served: dict[str, tuple[str, ...]] = {}
    refused: dict[str, tuple[str, ...]] = {}
    for item in oldest_first(exposures):
        name, namespace = named(item), item["metadata"]["namespace"]
        got, wanted = [], _wanted_hosts(item)
        for host in wanted:
            only = owner_of(host, internal_domain) or _namespace_of(host)
            if "*" not in host and only in ("", namespace) and taken.setdefault(host, name) == name:
                got.append(host)
        served[name] = tuple(got)
        refused[name] = tuple(host for host in wanted if host not in got)
    return Hosts(served, refused)


def oldest_first(exposures: Iterable[Object]) -> list[Object]:
    """Sorted by creationTimestamp; those of the same second by namespace and name."""

    def age(item: Object) -> tuple[str, str, str]:
        metadata = item["metadata"]
        return metadata.get("creationTimestamp") or "", metadata["namespace"], metadata["name"]

    return sorted(exposures, key=age)


def _wanted_hosts(item: Object) -> list[str]:
    """Hosts of an exposure, normalized as DNS compares them, without duplicates; empty if it is not an exposure."""
    for key, model in ((gateway.SERVICE_EXPOSURE_KEY, ServiceExposure), (gateway.EXPOSURE_KEY, ApiServerExposure)):
        if text := (item.get("data") or {}).get(key):
            with contextlib.suppress(ValidationError):
                # A wildcard is kept here, so that ``hosts`` refuses it.
                return list(dict.fromkeys(each.lower().rstrip(".") for each in model.model_validate_json(text).hosts))
            return []
    return []


def _namespace_of(host: str) -> str:
    """Namespace of a Service with this name in the seed's DNS; empty if the host is not such a name."""
    *_, namespace, last = ["", "", *host.split(".")]
    return namespace if last == "svc" else ""


def named(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"

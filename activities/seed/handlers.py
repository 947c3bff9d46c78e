"""Handlers of ExposureClasses: each has a gateway of its own in the seed, with its own namespace and load balancer.

A Shoot that names an ExposureClass is served by the gateway of the class's handler alone, so that its API server can be
reached from the network of that load balancer and from no other one. The gardenlet's configuration says which handlers
the seed has. Source: spec/extensions.md 6.3.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import Field, field_validator, model_validator

from activities.clusters import Clusters
from activities.components import gateway
from activities.components.gateway import Place
from activities.errors import permanent
from activities.seed.gateway import deploy_gateway
from api import resources
from api.constants import EXPOSURE_CLASS_HANDLER, GARDEN_NAMESPACE, ROLE, ROLE_EXPOSURE_CLASS_HANDLER
from api.contracts.operations import LEAVING, ShootTask
from api.errors import ErrorCode
from api.model import ApiModel
from kube.client import KubeClient, Object

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class LoadBalancerService(ApiModel):
    annotations: Mapping[str, str] = Field(default_factory=dict)
    """Annotations of the Service; they override those of ``spec.settings.loadBalancerServices`` of the Seed."""
    load_balancer_class: str | None = Field(default=None, alias="class", min_length=1)
    """``spec.loadBalancerClass`` of the Service. Kubernetes does not let it change as long as the Service exists."""


class Ingress(ApiModel):
    namespace: str | None = Field(default=None, max_length=63, pattern=_LABEL)
    """Namespace of the gateway; by default ``istio-ingress-handler-<name>``."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Additional labels of the gateway's Deployment, pods and Service."""

    @field_validator("namespace")
    @classmethod
    def _of_its_own(cls, namespace: str | None) -> str | None:
        taken = (gateway.NAMESPACE, GARDEN_NAMESPACE, "default")
        if namespace in taken or (namespace or "").startswith(("kube-", "shoot--", "extension-")):
            raise ValueError(f"{namespace} has another purpose: a handler needs a namespace of its own")
        return namespace


class Sni(ApiModel):
    ingress: Ingress = Ingress()


class ExposureClassHandler(ApiModel):
    """One of ``exposureClassHandlers`` in the configuration of a gardenlet."""

    name: str = Field(max_length=34, pattern=_LABEL)
    """``handler`` of ExposureClasses."""
    load_balancer_service: LoadBalancerService = LoadBalancerService()
    sni: Sni = Sni()

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        if {ROLE, EXPOSURE_CLASS_HANDLER, "app"} & set(self.sni.ingress.labels):
            raise ValueError(f"sni.ingress.labels must not have {ROLE}, {EXPOSURE_CLASS_HANDLER} or app")
        return self

    @property
    def place(self) -> Place:
        ingress = self.sni.ingress
        return Place(ingress.namespace or f"istio-ingress-handler-{self.name}", self.name, ingress.labels)


def check_distinct(handlers: Iterable[ExposureClassHandler]) -> None:
    """Raises ValueError if two handlers have the same name or the same namespace."""
    names: set[str] = set()
    namespaces: set[str] = set()
    for each in handlers:
        if each.name in names or each.place.namespace in namespaces:
            raise ValueError(f"exposureClassHandlers: handler {each.name} or its namespace is there twice")
        names.add(each.name)
        namespaces.add(each.place.namespace)


class Handlers:
    """The handlers that this gardenlet serves."""

    def __init__(self, clusters: Clusters, configured: Iterable[ExposureClassHandler] = ()) -> None:
        self._clusters = clusters
        self._configured = {each.name: each for each in configured}

    async def place(self, task: ShootTask) -> Place | None:
        """The gateway that serves a Shoot.

        A control plane that leaves the seed is served by the gateway of a handler that left the configuration, as long
        as this gateway exists; None if it does not: then nothing exposes the control plane.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if this seed does not have the handler, or the
                ExposureClass does not exist.
        """
        view = await self._clusters.cluster(task.technical_id)
        name = view.shoot["spec"].get("exposureClassName")
        if not name:
            return gateway.OWN
        handler = await self._handler(name)
        if handler in self._configured:
            return self._configured[handler].place
        if task.operation in LEAVING:  # it must end although the seed has lost the handler
            return await self._remains(handler) if handler else None
        if handler is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"ExposureClass {name} of Shoot {task.shoot} does not exist: an operator must create it again",
            )
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"seed {task.seed} does not serve handler {handler} of ExposureClass {name} of Shoot {task.shoot}: "
            "an operator must add the handler to exposureClassHandlers of the seed's gardenlet, or move the Shoot to a "
            "seed that serves it",
        )

    async def _handler(self, exposure_class: str) -> str | None:
        """Handler of an ExposureClass; it never changes. None if the ExposureClass does not exist."""
        found = await self._clusters.garden.find(resources.EXPOSURE_CLASS, exposure_class)
        return str(found["handler"]) if found else None

    async def _remains(self, handler: str) -> Place | None:
        for each in await namespaces(self._clusters.seed, handler):
            if "deletionTimestamp" not in each["metadata"]:
                return Place(each["metadata"]["name"], handler)
        return None

    async def deploy(self, seed: Object, replicas: int = 1) -> str:
        """Apply the gateways of all handlers, and delete those of former handlers that no Shoot uses.

        ``replicas``: number of pods of each gateway, as of the seed's own one.
        All objects are applied by name, so a second run changes nothing. Returns a note.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if a handler's namespace has another purpose.
        """
        settings = (seed["spec"].get("settings") or {}).get("loadBalancerServices") or {}
        domain = seed["spec"]["dns"]["internal"]["domain"]
        for each in self._configured.values():
            await self._refuse_taken(each.place)
            service = each.load_balancer_service
            annotations = {**(settings.get("annotations") or {}), **service.annotations}
            balancer = {**settings, "annotations": annotations, "class": service.load_balancer_class}
            wanted = gateway.objects(
                internal_domain=domain, load_balancer=balancer, replicas=replicas, place=each.place
            )
            await deploy_gateway(self._clusters, wanted, each.place)
        kept = await self._delete_former()
        notes = [f"handlers {', '.join(self._configured)}"] if self._configured else []
        notes += [f"kept {', '.join(kept)}, which Shoots use"] if kept else []
        return "; ".join(notes)

    async def _refuse_taken(self, place: Place) -> None:
        live = await self._clusters.seed.find(resources.NAMESPACE, place.namespace)
        if live is not None and gateway.handler_of(live) != place.handler:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"namespace {place.namespace} of handler {place.handler} exists in seed {self._clusters.seed_name} and "
                "has another purpose: an operator must name another one in exposureClassHandlers of the gardenlet",
            )

    async def _delete_former(self) -> list[str]:
        """Delete gateways that left the configuration; returns the namespaces of those that are still in use."""
        wanted = {each.place.namespace for each in self._configured.values()}
        kept = []
        for each in await namespaces(self._clusters.seed):
            name, handler = each["metadata"]["name"], gateway.handler_of(each)
            if name in wanted or "deletionTimestamp" in each["metadata"]:
                continue
            if await self._in_use(name, handler):
                kept.append(name)
                continue
            if handler not in self._configured:
                role = Place(name, handler).role
                await self._clusters.seed.delete(resources.CLUSTER_ROLE_BINDING, role)
                await self._clusters.seed.delete(resources.CLUSTER_ROLE, role)
            await self._clusters.seed.delete(resources.NAMESPACE, name, uid=each["metadata"]["uid"])
        return sorted(kept)

    async def _in_use(self, namespace: str, handler: str) -> bool:
        """Whether clients may still connect to a former gateway: by a DNS record, a forwarding, or a hibernated Shoot.

        A handler that got another namespace keeps its former gateway until all DNS records point to the new one.
        """
        seed = self._clusters.seed
        service = await seed.find(resources.SERVICE, gateway.NAME, namespace)
        addresses = {
            each.get("ip") or each.get("hostname")
            for each in (((service or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        }
        records = await seed.list(resources.DNS_RECORD)
        if any(addresses & set(each["spec"].get("values") or ()) for each in records):
            return True
        if await seed.list(resources.CONFIG_MAP, namespace, labels=gateway.SELECTOR):
            return True
        if handler in self._configured:
            return False
        clusters = await seed.list(resources.CLUSTER)
        shoots = [(each["spec"].get("shoot") or {}).get("spec") or {} for each in clusters]
        classes = {name for each in shoots if (name := each.get("exposureClassName"))}
        return handler in await asyncio.gather(*(self._handler(name) for name in classes))


async def namespaces(seed: KubeClient, handler: str = "") -> list[Object]:
    """Namespaces of gateways of handlers, or of one handler, whether the configuration still has the handler or not."""
    labels = f"{ROLE}={ROLE_EXPOSURE_CLASS_HANDLER}" + (f",{EXPOSURE_CLASS_HANDLER}={handler}" if handler else "")
    return list(await seed.list(resources.NAMESPACE, labels=labels))


async def places(seed: KubeClient) -> list[Place]:
    """All gateways that exist in a seed, without the seed's own one."""
    return [Place(each["metadata"]["name"], gateway.handler_of(each)) for each in await namespaces(seed)]


def note_of_none(task: ShootTask) -> str:
    """Note of a task that has nothing to do, because no gateway of the seed exposes the control plane."""
    return f"not exposed: seed {task.seed} does not serve the handler of the Shoot's ExposureClass"

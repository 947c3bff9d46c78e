"""Load balancers of one shoot: public addresses of the cloud for each Service of type LoadBalancer.

A Service gets one address of each of its IP families. The load balancer is a Service of the cloud, in the namespace of
the shoot's machines. The cloud checks the machines and forwards connections to the node ports of the shoot's Service.
"""

import asyncio
from typing import Any

from api.constants import EXCLUDED_FROM_LOAD_BALANCERS, TAINT_CRITICAL_COMPONENTS_NOT_READY
from api.local import EXCLUDED_MACHINES, HEALTH_CHECK_PORT, LOAD_BALANCER_LABEL
from api.resources import NODE, SERVICE
from kube.cache import Cache, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller
from kube.edit import patch_as_read
from kube.errors import Invalid
from kube.events import emit
from kube.objects import ip_families, ip_family

COMPONENT = "provider-local"
FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
_KUBE_PROXY_HEALTH = 10256
"""Port of kube-proxy's health check, which fails on a node that goes. Source: KEP-3836."""
_PROTOCOLS = frozenset({"TCP", "UDP"})
_NOT_READY = TAINT_CRITICAL_COMPONENTS_NOT_READY
"""Taint of a new node: its kube-proxy may answer before its pods reach those of other nodes."""
_NOBODY = {"IPv4": "127.0.0.1/32", "IPv6": "::1/128"}
"""Source ranges from which no packet comes. kube-proxy opens a family without a range to all."""
_SWEEP = Key(None, "")
"""Key for the deletion of load balancers whose Service is gone."""
_WORKERS = 5


def kept(obj: Object) -> Object:
    """The part of a Service or Node that the controller reads: owners of shoots decide how large the rest is."""
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "finalizers")
    small = {name: metadata[name] for name in names if name in metadata}
    for part, wanted in (("annotations", SOURCE_RANGES), ("labels", EXCLUDED_FROM_LOAD_BALANCERS)):
        small[part] = {key: value for key, value in (metadata.get(part) or {}).items() if key == wanted}
    if obj.get("kind") == NODE.kind:
        taints = [
            {"key": key} for each in (obj.get("spec") or {}).get("taints") or () if (key := each["key"]) == _NOT_READY
        ]
        return {"apiVersion": obj["apiVersion"], "kind": NODE.kind, "metadata": small, "spec": {"taints": taints}}
    return {**{part: obj[part] for part in ("apiVersion", "kind", "spec", "status") if part in obj}, "metadata": small}


class ShootServices:
    """Controller of Services in one shoot. ``namespace``: that of its machines in the cloud."""

    def __init__(self, shoot: KubeClient, cloud: KubeClient, namespace: str) -> None:
        self._shoot = shoot
        self._cloud = cloud
        self._namespace = namespace
        self._services = Cache(shoot, SERVICE, keep=kept)
        self._nodes = Cache(shoot, NODE, keep=kept)
        self._balancers = Cache(cloud, SERVICE, namespace, labels=LOAD_BALANCER_LABEL)
        self._controller = Controller("load balancers", self._reconcile, workers=_WORKERS)

    async def run(self) -> None:
        """Run until cancelled."""
        async with self._services, self._nodes, self._balancers:
            for each in (self._services, self._nodes, self._balancers):
                await each.synced()
            self._controller.watch(self._services)
            self._controller.watch(self._nodes, keys=self._of_nodes, when=_exclusion_changes)
            self._controller.watch(self._balancers, keys=self._of_balancer)
            self._controller.enqueue(_SWEEP)
            await self._controller.run()

    def _of_nodes(self, _: WatchEvent) -> list[Key]:
        return [key_of(each) for each in self._services.list() if _is_wanted(each)]

    def _of_balancer(self, event: WatchEvent) -> list[Key]:
        uid = event.object["metadata"]["labels"][LOAD_BALANCER_LABEL]
        return [key_of(each) for each in self._services.list() if each["metadata"]["uid"] == uid]

    async def _reconcile(self, key: Key) -> None:
        service = self._services.get(key.name, key.namespace) if key != _SWEEP else None
        if service is None:
            await self._sweep()
        elif _is_wanted(service):
            await self._ensure(service)
        else:
            await self._remove(service)

    async def _ensure(self, service: Object) -> None:
        """Make the load balancer, or change it, and write its address. A second run finds it by its name."""
        if reason := refusal(service):
            await emit(self._shoot, service, COMPONENT, "SyncLoadBalancerFailed", reason, "Warning")
            return
        finalizers = service["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            # Before the load balancer exists: nothing may be left of it when the Service is deleted.
            patch = {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            service = kept(await patch_as_read(self._shoot, SERVICE, service, patch))
        name, families = _name(service["metadata"]["uid"]), ip_families(service)
        live = self._balancers.get(name)
        if live is not None and ip_families(live)[0] != families[0]:
            # The first family of a Service cannot change. An event of the cloud tells when the old one is gone.
            await self._cloud.delete(SERVICE, name, self._namespace)
            return
        excluded = [each["metadata"]["name"] for each in self._nodes.list() if _is_excluded(each)]
        try:
            made = await self._cloud.apply(balancer(service, self._namespace, sorted(excluded)), manager=COMPONENT)
        except Invalid as error:
            await emit(self._shoot, service, COMPONENT, "SyncLoadBalancerFailed", str(error), "Warning")
            return
        given = {ip_family(each["ip"]): each for each in _ingress(made) if each["ip"]}
        ingress = [given[each] for each in families if each in given]
        if ingress and ingress != _ingress(service):
            await self._write(service, ingress)
            told = f"Ensured load balancer at {', '.join(each['ip'] for each in ingress)}"
            await emit(self._shoot, service, COMPONENT, "EnsuredLoadBalancer", told)

    async def _remove(self, service: Object) -> None:
        """Delete the load balancer of a Service that needs none any more, then release the Service."""
        metadata = service["metadata"]
        if FINALIZER not in (metadata.get("finalizers") or ()) or service["spec"].get("loadBalancerClass"):
            return
        name = _name(metadata["uid"])
        if await self._cloud.delete(SERVICE, name, self._namespace) and self._balancers.get(name) is not None:
            return  # an event of the cloud tells when it is gone
        if _ingress(service) and not metadata.get("deletionTimestamp"):
            await self._write(service, [])
        live = await self._shoot.find(SERVICE, metadata["name"], metadata["namespace"])
        if live is not None and live["metadata"]["uid"] == metadata["uid"]:
            left = [each for each in live["metadata"].get("finalizers") or () if each != FINALIZER]
            await patch_as_read(self._shoot, SERVICE, live, {"metadata": {"finalizers": left}})

    async def _sweep(self) -> None:
        """Delete load balancers whose Service is gone, because its owner removed the finalizer."""
        live = {_name(each["metadata"]["uid"]) for each in self._services.list()}
        gone = [each["metadata"]["name"] for each in self._balancers.list() if each["metadata"]["name"] not in live]
        await asyncio.gather(*(self._cloud.delete(SERVICE, name, self._namespace) for name in gone))

    async def _write(self, service: Object, ingress: list[dict[str, Any]]) -> None:
        metadata = service["metadata"]
        status = {"status": {"loadBalancer": {"ingress": ingress or None}}}
        await self._shoot.patch(SERVICE, metadata["name"], metadata["namespace"], status, subresource="status")


def _is_wanted(service: Object) -> bool:
    """Whether a Service has, or should get, a load balancer of this cloud."""
    spec = service["spec"]
    deleting = service["metadata"].get("deletionTimestamp")
    return spec.get("type") == "LoadBalancer" and not spec.get("loadBalancerClass") and not deleting


def _exclusion_changes(event: WatchEvent) -> bool:
    return _is_excluded(event.object) or (event.old is not None and _is_excluded(event.old))


def _is_excluded(node: Object) -> bool:
    """Whether a node gets no connections: it has the label for that, or has only just joined."""
    return bool(node["metadata"]["labels"] or node["spec"]["taints"])


def refusal(service: Object) -> str:
    """Why a Service cannot get a load balancer of this cloud; empty if it can."""
    spec = service["spec"]
    families = ip_families(service)
    for each in _source_ranges(service):
        if ip_family(each) not in families:
            return (
                f"source range {each} is not possible: the Service has no address of {ip_family(each)}; remove the "
                "range, or add the family to ipFamilies"
            )
    if spec.get("loadBalancerIP"):
        return "loadBalancerIP is not possible: the cloud chooses the address"
    for port in spec.get("ports") or ():
        if port.get("protocol", "TCP") not in _PROTOCOLS:
            return f"port {port['port']}: protocol {port['protocol']} is not possible, only TCP and UDP are"
        if not port.get("nodePort"):
            return f"port {port['port']} has no node port: set allocateLoadBalancerNodePorts to true"
    return ""


def balancer(service: Object, namespace: str, excluded: list[str]) -> Object:
    """The Service of the cloud that is the load balancer of a shoot's Service."""
    metadata, spec = service["metadata"], service["spec"]
    local = spec.get("externalTrafficPolicy") == "Local"
    port = spec.get("healthCheckNodePort") if local else None
    families, ranges = ip_families(service), _source_ranges(service)
    if ranges and "IPv6" in families:
        ranges = [*ranges, *(_NOBODY[each] for each in families)]
    sessions = {key: spec[key] for key in ("sessionAffinity", "sessionAffinityConfig") if key in spec}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": _name(metadata["uid"]),
            "namespace": namespace,
            "labels": {LOAD_BALANCER_LABEL: metadata["uid"]},
            "annotations": {
                HEALTH_CHECK_PORT: str(port or _KUBE_PROXY_HEALTH),
                EXCLUDED_MACHINES: ",".join(excluded),
            },
        },
        "spec": {
            "type": "LoadBalancer",
            "allocateLoadBalancerNodePorts": False,
            # The machines see the addresses of clients.
            "externalTrafficPolicy": "Local",
            "ipFamilies": families,
            "ipFamilyPolicy": "RequireDualStack" if len(families) > 1 else "SingleStack",
            **({"loadBalancerSourceRanges": ranges} if ranges else {}),
            **sessions,
            "ports": [
                {
                    "name": f"{each.get('protocol', 'TCP').lower()}-{each['port']}",
                    "protocol": each.get("protocol", "TCP"),
                    "port": each["port"],
                    "targetPort": each["nodePort"],
                }
                for each in spec["ports"]
            ],
        },
    }


def _source_ranges(service: Object) -> list[str]:
    """Networks from which clients may connect; empty: all."""
    annotated = service["metadata"]["annotations"].get(SOURCE_RANGES) or ""
    return service["spec"].get("loadBalancerSourceRanges") or [
        each.strip() for each in annotated.split(",") if each.strip()
    ]


def _name(uid: str) -> str:
    return f"lb-{uid}"


def _ingress(service: Object) -> list[dict[str, Any]]:
    live = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [{"ip": each.get("ip"), "ipMode": each.get("ipMode", "VIP")} for each in live]

"""Load balancers of the cloud: which machines get the connections to a public address.

kube-proxy of the cloud forwards an address, and drops packets of other sources than the Service allows. A Service with
a selector names its pods itself. A Service without one, whose annotation names a port, gets as backends the machines of
its namespace that answer ``GET /healthz`` at that port. If its annotation names addresses instead, it gets the machines
of its namespace that have these addresses and accept TCP connections at its target ports. A Service with both IP
families has backends of each: a machine is checked at its address of that family.
"""

import asyncio
import contextlib
import logging

import aiohttp

from api.local import CHOSEN_MACHINES, EXCLUDED_MACHINES, HEALTH_CHECK_PORT, MACHINE_LABEL
from api.names import in_url
from api.resources import ENDPOINT_SLICE, POD, SERVICE
from kube.cache import Cache, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue
from kube.objects import ip_families, ip_family, owner_reference

log = logging.getLogger("landscape.load_balancers")

MANAGER = "load-balancers"
_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_PERIOD = 2.0
"""Seconds between two checks of a machine."""
_SECONDS = 1.0
"""Time in which a machine must answer a check."""
_TIMEOUT = aiohttp.ClientTimeout(total=_SECONDS)
_FAMILIES = {"IPv4", "IPv6"}
_FAILURES = 2
"""A machine gets no new connections after so many failed checks in a row. After one good check it gets some again."""


class Backends:
    """Checks machines, and writes the EndpointSlices of load balancers. One such process runs in a cloud."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._services = Cache(client, SERVICE)
        self._machines = Cache(client, POD, labels=MACHINE_LABEL)
        self._slices = Cache(client, ENDPOINT_SLICE, labels=f"{_MANAGED_BY}={MANAGER}")
        self._failures: dict[tuple[Key, str, str], int] = {}
        """Failed checks in a row, by Service, family and uid of the machine."""

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("load balancers", self._reconcile)
        async with self._services, self._machines, self._slices:
            await self._machines.synced()
            await self._slices.synced()
            controller.watch(self._services)
            controller.watch(self._machines, keys=self._of_machine)
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
                self._session = session
                await controller.run()

    def _of_machine(self, event: WatchEvent) -> list[Key]:
        services = self._services.list(event.object["metadata"]["namespace"])
        return [key_of(each) for each in services if is_checked(each)]

    async def _reconcile(self, key: Key) -> Requeue | None:
        service = self._services.get(key.name, key.namespace)
        if service is None or not is_checked(service) or service["metadata"].get("deletionTimestamp"):
            self._failures = {each: count for each, count in self._failures.items() if each[0] != key}
            return None
        wanted = ip_families(service)
        await asyncio.gather(*(self._serve(key, service, family) for family in wanted))
        for family in _FAMILIES - set(wanted):
            # The address of a machine may become that of another Shoot's before the Service gets this family again.
            if self._slices.get(name := slice_name(key.name, family), key.namespace) is not None:
                await self._client.delete(ENDPOINT_SLICE, name, key.namespace)
        return Requeue(_PERIOD)

    async def _serve(self, key: Key, service: Object, family: str) -> None:
        """Write the backends of one family: the machines that answer at their address of this family."""
        chosen = chosen_machines(service)
        machines = [each for each in self._machines.list(key.namespace) if _address(each, family)]
        if chosen is not None:
            machines = [each for each in machines if _address(each, family) in chosen]
        healthy = await asyncio.gather(*(self._check(key, each, service, family) for each in machines))
        serving = [machine for machine, good in zip(machines, healthy, strict=True) if good]
        await self._client.apply(endpoint_slice(service, serving, family), manager=MANAGER)

    async def _check(self, key: Key, machine: Object, service: Object, family: str) -> bool:
        """Whether a machine gets connections."""
        known = (key, family, machine["metadata"]["uid"])
        address = _address(machine, family)
        if port := health_check_port(service):
            good = await self._is_healthy(address, port)
        else:
            good = all([await _is_open(address, each) for each in target_ports(service)])
        # A new machine has failed until it answers.
        self._failures[known] = 0 if good else self._failures.get(known, _FAILURES) + 1
        return self._failures[known] < _FAILURES

    async def _is_healthy(self, address: str, port: int) -> bool:
        try:
            async with self._session.get(f"http://{in_url(address)}:{port}/healthz", allow_redirects=False) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


async def _is_open(address: str, port: int) -> bool:
    """Whether a port accepts TCP connections."""
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def is_checked(service: Object) -> bool:
    """Whether this process chooses the backends of a Service."""
    return health_check_port(service) is not None or chosen_machines(service) is not None


def chosen_machines(service: Object) -> set[str] | None:
    """Addresses of the machines that a load balancer is for; None if it is for all, or if it is no such Service."""
    named = CHOSEN_MACHINES in (service["metadata"].get("annotations") or {})
    return set(_annotation(service, CHOSEN_MACHINES).split(",")) if named and _has_no_pods(service) else None


def target_ports(service: Object) -> list[int]:
    return [each["targetPort"] for each in service["spec"]["ports"] if isinstance(each["targetPort"], int)]


def _has_no_pods(service: Object) -> bool:
    return service["spec"].get("type") == "LoadBalancer" and not service["spec"].get("selector")


def _annotation(service: Object, name: str) -> str:
    return str((service["metadata"].get("annotations") or {}).get(name, ""))


def health_check_port(service: Object) -> int | None:
    """Port by which the cloud checks the machines of a load balancer; None if it is no such Service."""
    text = _annotation(service, HEALTH_CHECK_PORT)
    ours = _has_no_pods(service) and text.isdecimal()
    return int(text) if ours and 0 < int(text) < 65536 else None


def slice_name(service: str, family: str) -> str:
    return f"{service}-machines" if family == "IPv4" else f"{service}-machines-{family.lower()}"


def endpoint_slice(service: Object, machines: list[Object], family: str) -> Object:
    """Machines that get the connections of a Service to its address of a family, at its target ports."""
    metadata = service["metadata"]
    excluded = _annotation(service, EXCLUDED_MACHINES).split(",")
    endpoints = [
        {"addresses": [_address(each, family)], "conditions": {"ready": True}, "nodeName": each["spec"]["nodeName"]}
        for each in sorted(machines, key=lambda each: str(each["metadata"]["name"]))
        if each["metadata"]["name"] not in excluded
    ]
    ports = [
        {"name": each.get("name", ""), "protocol": each["protocol"], "port": each["targetPort"]}
        for each in service["spec"]["ports"]
        if isinstance(each["targetPort"], int)
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": slice_name(metadata["name"], family),
            "namespace": metadata["namespace"],
            "labels": {
                "kubernetes.io/service-name": metadata["name"],
                _MANAGED_BY: MANAGER,
            },
            "ownerReferences": [owner_reference(SERVICE, metadata["name"], metadata["uid"])],
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": ports,
    }


def _address(machine: Object, family: str) -> str:
    """Address of a machine that runs; empty for others."""
    if machine["metadata"].get("deletionTimestamp"):
        return ""
    addresses = [str(each["ip"]) for each in (machine.get("status") or {}).get("podIPs") or ()]
    return next((each for each in addresses if ip_family(each) == family), "")

"""Makes the NetworkPolicies by which pods reach the pods of Services.

A Service says which of its ports pods may reach, and from which namespaces. A pod that opens connections has a label
for each port, or for a group of ports. ``policies`` computes from these objects all NetworkPolicies of one Service. The
controller creates, replaces and deletes until the cluster has exactly these.

Source: spec/resource-manager.md 5 (NetworkPolicy controller).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from api import network_policies as names
from api.labels import matches
from api.meta import LabelSelector
from api.model import ApiModel
from api.resources import INGRESS, NAMESPACE, NETWORK_POLICY, POD, SERVICE
from kube.cache import Cache, Caches, Key, key_of
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller
from kube.errors import AlreadyExists
from kube.events import emit
from workers.resource_manager.config import IngressControllerSelector, NetworkPolicyController

_COMPONENT = "gardener-resource-manager"
_DESCRIPTION = "gardener.cloud/description"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_ALIAS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist"}

_BY_SERVICE, _BY_LABEL, _SELECTING, _BY_BACKEND = "service", "label", "selecting", "backend"
"""Names of indexes."""

HasLabel = Callable[[str, str], bool]
"""Whether a pod of a namespace has a label with value ``allowed``."""


class _Port(ApiModel):
    """A port of pods, as annotations of Services name it."""

    port: int | str | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    end_port: int | None = Field(default=None, ge=1, le=65535)


_PORTS = TypeAdapter(tuple[_Port, ...])
_SELECTORS = TypeAdapter(tuple[LabelSelector, ...])


@dataclass
class Made:
    """The NetworkPolicies of a Service, and why some of them could not be made."""

    policies: dict[Key, Object] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Annotations that cannot be read, with the reason."""
    shortened: list[str] = field(default_factory=list)
    """Labels whose names were too long, with the names that are used."""


def policies(
    service: Object,
    namespaces: Iterable[Object],
    has_label: HasLabel,
    ingresses: Collection[Object] = (),
    controller: IngressControllerSelector | None = None,
) -> Made:
    """All NetworkPolicies of a Service that has a selector, and whose namespace is handled.

    A policy for pods with a label is made only in namespaces where a pod has the label. ``ingresses``: those with a
    backend of this Service; ``controller``: the pods that serve them.
    """
    made = Made()
    reading = _Reading(service, made.faults)
    place = service["metadata"]["namespace"]
    live = [each for each in namespaces if not _is_ending(each)]
    allowed = {each["metadata"]["name"] for each in live if reading.selects(each["metadata"].get("labels") or {})}
    if any(each["metadata"]["name"] == place for each in live):
        allowed.add(place)
    for rule in reading.rules():
        for peer in sorted(allowed):
            label = names.to(rule.target(peer))
            if names.is_long(rule.target(peer)):
                made.shortened.append(f"to-{rule.target(peer)} is {label.removeprefix(names.PREFIX)}")
            if has_label(peer, label):
                _put_for_pods(made, service, rule, peer, label)
    if reading.world is not None:
        _put(made, service, f"ingress-to-{service['metadata']['name']}-from-world", place, _from_world(reading.world))
    if controller is not None and any(each["metadata"]["name"] == controller.namespace for each in live):
        for port in _exposed(service, ingresses):
            _put_for_controller(made, service, port, controller)
    return made


def labels_of(service: Object) -> Iterator[str]:
    """Labels of pods that may reach a Service: ``<namespace>/<label>``, without namespace for pods of other ones."""
    if not _has_selector(service):
        return
    reading, place = _Reading(service, []), service["metadata"]["namespace"]
    for rule in reading.rules():
        yield f"{place}/{names.to(rule.target(place))}"
        if names.NAMESPACE_SELECTORS in reading.annotations:
            yield f"/{names.to(rule.target(''))}"


@dataclass(frozen=True)
class _Rule:
    """One port that pods with a label may reach."""

    identity: str
    """Part of the policies' names."""
    port: Object
    within: str
    across: str
    """Target of the label of pods in the Service's namespace ``place``, and in other namespaces."""
    place: str

    def target(self, peer: str) -> str:
        return self.within if peer == self.place else self.across


class _Reading:
    """Annotations of one Service. An annotation that cannot be read is left out, and its fault is noted."""

    def __init__(self, service: Object, faults: list[str]) -> None:
        self._service = service
        self._faults = faults
        self.annotations: Mapping[str, str] = service["metadata"].get("annotations") or {}
        self._selectors = self._read_selectors()
        self._alias = self._read_alias()
        self.world = self._read_ports(names.FROM_WORLD, named=False)
        """Ports that all clients may reach; none: all ports. None: no port."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether pods of a namespace with these labels may reach the Service."""
        return any(matches(each, labels) for each in self._selectors)

    def rules(self) -> Iterator[_Rule]:
        name, place = self._service["metadata"]["name"], self._service["metadata"]["namespace"]
        across = self._alias or place
        seen = set()
        for each in self._service["spec"].get("ports") or ():
            port = _target_port(each)
            identity = names.target(name, port["port"], port["protocol"])
            if identity not in seen:
                seen.add(identity)
                yield _Rule(identity, port, identity, f"{across}-{identity}", place)
        for annotation in sorted(self.annotations):
            if (alias := names.alias_of(annotation)) is None:
                continue
            if not _ALIAS.fullmatch(alias):
                self._faults.append(f"{annotation}: {alias!r} is no alias: use lower-case letters, digits and dashes")
                continue
            for port in self._read_ports(annotation) or ():
                identity = f"{names.target(name, port['port'], port['protocol'])}-via-{alias}"
                if identity not in seen:
                    seen.add(identity)
                    yield _Rule(identity, port, alias, f"{across}-{alias}", place)

    def _read_selectors(self) -> tuple[LabelSelector, ...]:
        found = self._read(names.NAMESPACE_SELECTORS, _SELECTORS) or ()
        for each in found:
            if each.model_extra:  # a selector with a misspelt field would select all namespaces
                self._faults.append(f"{names.NAMESPACE_SELECTORS}: unknown fields {sorted(each.model_extra)}")
                return ()
            for expression in each.match_expressions or ():
                wanted = expression.operator in ("In", "NotIn")
                if expression.operator not in _OPERATORS or wanted != bool(expression.values):
                    self._faults.append(f"{names.NAMESPACE_SELECTORS}: {expression.operator} {expression.values}")
                    return ()
        return tuple(found)

    def _read_alias(self) -> str:
        alias = self.annotations.get(names.NAMESPACE_ALIAS, "")
        if alias and not _ALIAS.fullmatch(alias):
            self._faults.append(f"{names.NAMESPACE_ALIAS}: {alias!r} is no alias")
            return ""
        return alias

    def _read_ports(self, annotation: str, *, named: bool = True) -> list[Object] | None:
        found = self._read(annotation, _PORTS)
        if found is None:
            return None
        ports = []
        for each in found:
            port = int(each.port) if isinstance(each.port, str) and each.port.isdecimal() else each.port
            if port is None and named:
                self._faults.append(f"{annotation}: a port is missing")
                return None
            if isinstance(port, int) and not 1 <= port <= 65535:
                self._faults.append(f"{annotation}: {port} is no port")
                return None
            if isinstance(port, str) and not _PORT_NAME.fullmatch(port):
                self._faults.append(f"{annotation}: {port!r} is no name of a port")
                return None
            if each.end_port is not None and not (isinstance(port, int) and each.end_port >= port):
                self._faults.append(f"{annotation}: endPort {each.end_port} needs a lower port")
                return None
            ports.append(
                {"protocol": each.protocol}
                | ({} if port is None else {"port": port})
                | ({} if each.end_port is None else {"endPort": each.end_port})
            )
        return ports

    def _read(self, annotation: str, kind: TypeAdapter[Any]) -> Any:
        """Value of an annotation; None if there is none, or if it cannot be read."""
        if (text := self.annotations.get(annotation)) is None:
            return None
        try:
            return kind.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            self._faults.append(f"{annotation}: {where + ': ' if where else ''}{first['msg']}")
            return None


def _put_for_pods(made: Made, service: Object, rule: _Rule, peer: str, label: str) -> None:
    """Let pods of namespace ``peer`` with a label reach a port."""
    place, name, port = rule.place, service["metadata"]["name"], rule.port
    inside = place == peer
    ingress = f"ingress-to-{rule.identity}{'' if inside else f'-from-{peer}'}"
    egress = f"egress-to-{'' if inside else f'{place}-'}{rule.identity}"
    what = f"{port['protocol']} traffic to port {port['port']}"
    target = f"pods selected by the {place}/{name} service selector"
    source = f"pods running in namespace {peer} labeled with {_shown({label: names.ALLOWED})}"
    clients = {"matchLabels": {label: names.ALLOWED}}
    texts = (f"Allows ingress {what} for {target} from {source}.", f"Allows egress {what} from {source} to {target}.")
    _put_both(made, service, port, (ingress, egress), peer, clients, texts)


def _put_for_controller(made: Made, service: Object, port: Object, controller: IngressControllerSelector) -> None:
    place, name = service["metadata"]["namespace"], service["metadata"]["name"]
    identity = names.target(name, port["port"], port["protocol"])
    clients = controller.pod_selector.model_dump(by_alias=True, exclude_none=True)
    shown = _shown(clients.get("matchLabels") or {})
    what = f"{port['protocol']} traffic to port {port['port']}"
    target = f"pods selected by the {place}/{name} service selector"
    suffix = "-from-ingress-controller"
    prefix = "" if place == controller.namespace else f"{place}-"
    policies = (f"ingress-to-{identity}{suffix}", f"egress-to-{prefix}{identity}{suffix}")
    source = f"pods running in the {controller.namespace} namespace labeled with {shown}"
    texts = (
        f"Allows ingress {what} for {target} from ingress controller {source}.",
        f"Allows egress {what} from {source} to {target}.",
    )
    _put_both(made, service, port, policies, controller.namespace, clients, texts)


def _put_both(
    made: Made,
    service: Object,
    port: Object,
    policies: tuple[str, str],
    peer: str,
    clients: Object,
    texts: tuple[str, str],
) -> None:
    """Put the policy for ingress into the Service's namespace, and the policy for egress into the clients' one."""
    place = service["metadata"]["namespace"]
    selector = {"matchLabels": dict(service["spec"]["selector"])}
    source = {"podSelector": clients, **_in(peer, place)}
    target = {"podSelector": selector, **_in(place, peer)}
    _put(
        made,
        service,
        policies[0],
        place,
        {"podSelector": selector, "ingress": [{"from": [source], "ports": [port]}], "policyTypes": ["Ingress"]},
        texts[0],
    )
    _put(
        made,
        service,
        policies[1],
        peer,
        {"podSelector": clients, "egress": [{"to": [target], "ports": [port]}], "policyTypes": ["Egress"]},
        texts[1],
    )


def _in(namespace: str, seen_from: str) -> Object:
    """Part of a peer that names its namespace, if that is not the policy's own."""
    return {} if namespace == seen_from else {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}}}


def _from_world(ports: list[Object]) -> Object:
    everywhere: Object = {
        "from": [
            {"namespaceSelector": {}, "podSelector": {}},
            {"ipBlock": {"cidr": "0.0.0.0/0"}},
            {"ipBlock": {"cidr": "::/0"}},
        ]
    }
    return {"ingress": [everywhere | ({"ports": ports} if ports else {})], "policyTypes": ["Ingress"]}


def _put(made: Made, service: Object, name: str, namespace: str, spec: Object, description: str = "") -> None:
    metadata = service["metadata"]
    text = description or (
        f"Allows ingress traffic from everywhere for pods selected by the {metadata['namespace']}/{metadata['name']} "
        "service selector."
    )
    made.policies[Key(namespace, name)] = {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.SERVICE_NAME: metadata["name"], names.SERVICE_NAMESPACE: metadata["namespace"]},
            "annotations": {_DESCRIPTION: text},
        },
        "spec": {"podSelector": {"matchLabels": dict(service["spec"]["selector"])}, **spec},
    }


def _target_port(port: Object) -> Object:
    """Port of the pods behind a port of a Service."""
    return {"protocol": port.get("protocol") or "TCP", "port": port.get("targetPort") or port["port"]}


def _exposed(service: Object, ingresses: Iterable[Object]) -> list[Object]:
    """Ports of a Service's pods that Ingresses have as backends."""
    wanted = [port for each in ingresses for name, port in _backends(each) if name == service["metadata"]["name"]]
    found = []
    for each in service["spec"].get("ports") or ():
        if any(port.get("number") == each["port"] or (port.get("name") or "") == each.get("name") for port in wanted):
            port = _target_port(each)
            if port not in found:
                found.append(port)
    return found


def _backends(ingress: Object) -> Iterator[tuple[str, Object]]:
    """Names of the Services behind an Ingress, with their ports."""
    spec = ingress.get("spec") or {}
    backends = [spec.get("defaultBackend")]
    for rule in spec.get("rules") or ():
        backends += [path.get("backend") for path in (rule.get("http") or {}).get("paths") or ()]
    for backend in backends:
        if service := (backend or {}).get("service"):
            yield service["name"], service.get("port") or {}


def _shown(labels: Mapping[str, str]) -> str:
    return f"map[{' '.join(f'{key}:{value}' for key, value in sorted(labels.items()))}]"


def _has_selector(service: Object) -> bool:
    return bool(service["spec"].get("selector"))


def _is_ending(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


class NetworkPolicies:
    """Keeps the NetworkPolicies of all Services in one cluster."""

    def __init__(self, client: KubeClient, caches: Caches, config: NetworkPolicyController) -> None:
        self._client = client
        self._config = config
        self._services = caches.of(SERVICE)
        self._namespaces = caches.of(NAMESPACE)
        self._policies = caches.of(NETWORK_POLICY)
        self._ingresses = caches.of(INGRESS) if config.ingress_controller_selector else None
        # Of all pods, only the labels of those that open connections.
        self._pods = Cache(client, POD, keep=_opening_connections)
        self._controller = Controller("network-policies", self._reconcile, workers=config.concurrent_syncs)
        self._reported: dict[Key, list[str]] = {}
        """Warnings about each Service that were written as Events."""
        self._services.index(_BY_LABEL, labels_of)
        self._services.index(_SELECTING, _selecting)
        self._policies.index(_BY_SERVICE, _service_of)
        self._pods.index(_BY_LABEL, _labels_in_namespace)
        if self._ingresses is not None:
            self._ingresses.index(_BY_BACKEND, _services_behind)

    async def run(self) -> None:
        """Run until cancelled."""
        async with self._pods:
            caches = [self._namespaces, self._pods, self._policies, self._services]
            for each in (*caches, *([self._ingresses] if self._ingresses is not None else [])):
                await each.synced()
            self._controller.watch(self._services)
            self._controller.watch(self._policies, keys=_owners)
            self._controller.watch(self._namespaces, keys=self._near, when=_changes_labels)
            self._controller.watch(self._pods, keys=self._reachable, when=_changes_labels)
            if self._ingresses is not None:
                self._controller.watch(self._ingresses, keys=_behind)
            await self._controller.run()

    async def _reconcile(self, key: Key) -> None:
        place = str(key.namespace)
        service, namespace = self._services.get(key.name, place), self._namespaces.get(place)
        if service is not None and (namespace is None or _is_ending(namespace)):
            return  # nothing can be created in a namespace that ends
        made = Made()
        if service is not None and namespace is not None and self._is_handled(service, namespace):
            ingresses = self._ingresses.by_index(_BY_BACKEND, str(key)) if self._ingresses is not None else ()
            controller = self._config.ingress_controller_selector
            made = policies(service, self._namespaces.list(), self._has_label, ingresses, controller)
        live = {key_of(each): each for each in self._policies.by_index(_BY_SERVICE, str(key))}
        for name, wanted in made.policies.items():
            await self._write(wanted, live.pop(name, None))
        if not made.faults:  # a fault may be what makes a policy look unwanted
            for name, left in live.items():
                await self._client.delete(NETWORK_POLICY, name.name, name.namespace, uid=left["metadata"]["uid"])
        await self._report(key, service, made)

    def _is_handled(self, service: Object, namespace: Object) -> bool:
        labels = namespace["metadata"].get("labels") or {}
        chosen = self._config.namespace_selectors
        return (
            _has_selector(service)
            and not _is_ending(service)
            and (not chosen or any(matches(each, labels) for each in chosen))
        )

    def _has_label(self, namespace: str, label: str) -> bool:
        return bool(self._pods.by_index(_BY_LABEL, f"{namespace}/{label}"))

    async def _write(self, wanted: Object, live: Object | None) -> None:
        """Create a NetworkPolicy, or replace it if it differs: nothing that others add to it may stay."""
        if live is None:
            try:
                await self._client.create(wanted)
                return
            except AlreadyExists:
                place = wanted["metadata"]
                live = await self._client.get(NETWORK_POLICY, place["name"], place["namespace"])
        metadata, ours = live["metadata"], wanted["metadata"]
        merged = {field: {**(metadata.get(field) or {}), **ours[field]} for field in ("labels", "annotations")}
        if live["spec"] != wanted["spec"] or any(metadata.get(field) != value for field, value in merged.items()):
            await self._client.replace({**wanted, "metadata": {**metadata, **merged}})

    async def _report(self, key: Key, service: Object | None, made: Made) -> None:
        """Write warnings about a Service as Events, once each as long as this process runs."""
        said = [*dict.fromkeys(made.faults), *dict.fromkeys(made.shortened)]
        if service is not None:
            for text in dict.fromkeys(made.faults):
                if text not in self._reported.get(key, ()):
                    message = f"{text}: its NetworkPolicies are not made, and none is deleted"
                    await emit(self._client, service, _COMPONENT, "InvalidAnnotation", message, "Warning")
            for text in dict.fromkeys(made.shortened):
                if text not in self._reported.get(key, ()):
                    message = f"a label has 63 characters at most, so pods need another one: {text}"
                    await emit(self._client, service, _COMPONENT, "LabelTooLong", message, "Warning")
        if said and service is not None:
            self._reported[key] = said
        else:
            self._reported.pop(key, None)

    def _near(self, event: WatchEvent) -> Iterator[Key]:
        """Services in a namespace, and those whose selectors match it, or matched it before."""
        name = event.object["metadata"]["name"]
        yield from map(key_of, self._services.list(name))
        states = [each["metadata"].get("labels") or {} for each in (event.object, event.old) if each is not None]
        for service in self._services.by_index(_SELECTING, "yes"):
            reading = _Reading(service, [])
            if any(reading.selects(labels) for labels in states):
                yield key_of(service)
        if (controller := self._config.ingress_controller_selector) and controller.namespace == name:
            yield from map(key_of, self._services.list())

    def _reachable(self, event: WatchEvent) -> Iterator[Key]:
        """Services that pods may reach by a label which a pod got or lost."""
        namespace = event.object["metadata"]["namespace"]
        before, after = (set((each or _NOTHING)["metadata"].get("labels") or ()) for each in (event.old, event.object))
        for label in before ^ after if event.type == "MODIFIED" else before | after:
            for place in (namespace, ""):
                yield from map(key_of, self._services.by_index(_BY_LABEL, f"{place}/{label}"))


_NOTHING: Object = {"metadata": {}}


def _opening_connections(pod: Object) -> Object | None:
    """A pod's labels that let it open connections; None for a pod without one."""
    metadata = pod["metadata"]
    prefix = f"{names.PREFIX}to-"
    labels = {
        label: value
        for label, value in (metadata.get("labels") or {}).items()
        if value == names.ALLOWED and label.startswith(prefix)
    }
    if not labels:
        return None
    kept = {each: metadata[each] for each in ("name", "namespace", "resourceVersion")}
    return {"metadata": {**kept, "labels": labels}}


def _labels_in_namespace(pod: Object) -> list[str]:
    return [f"{pod['metadata']['namespace']}/{label}" for label in pod["metadata"]["labels"]]


def _selecting(service: Object) -> Collection[str]:
    return ("yes",) if names.NAMESPACE_SELECTORS in (service["metadata"].get("annotations") or {}) else ()


def _service_of(policy: Object) -> Collection[str]:
    labels = policy["metadata"].get("labels") or {}
    if names.SERVICE_NAME not in labels or names.SERVICE_NAMESPACE not in labels:
        return ()
    return (f"{labels[names.SERVICE_NAMESPACE]}/{labels[names.SERVICE_NAME]}",)


def _services_behind(ingress: Object) -> set[str]:
    return {f"{ingress['metadata']['namespace']}/{name}" for name, _ in _backends(ingress)}


def _owners(event: WatchEvent) -> Iterator[Key]:
    """Services that a NetworkPolicy was made for, also before its labels changed."""
    for each in (event.object, event.old):
        for service in _service_of(each) if each is not None else ():
            yield Key(*service.split("/", 1))


def _behind(event: WatchEvent) -> Iterator[Key]:
    for each in (event.object, event.old):
        for service in _services_behind(each) if each is not None else ():
            yield Key(*service.split("/", 1))


def _changes_labels(event: WatchEvent) -> bool:
    """Whether labels differ, or whether the deletion of the object has begun."""
    if event.type != "MODIFIED" or event.old is None:
        return True
    parts = [
        (each["metadata"].get("labels"), each["metadata"].get("deletionTimestamp"))
        for each in (event.old, event.object)
    ]
    return parts[0] != parts[1]

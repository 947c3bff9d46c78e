"""Ledger of effects, from the audit logs of API servers, and what is doubled or left out in comparison with another.

An effect is a request by a worker that an API server accepted and that changed something: the creation, the change or
the deletion of one object. Events, leases and statuses are no effects: how often progress is reported is chance.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api.constants import INPUTS_DIGEST, OPERATION, TIMESTAMP
from kube.client import KubeClient
from kube.errors import ApiError

Object = dict[str, Any]
LOG = "audit.log"
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}, {"group": "events.k8s.io"}]},
        {"level": "None", "resources": [{"group": "", "resources": ["events"]}]},
        {"level": "None", "resources": [{"group": "authentication.k8s.io"}, {"group": "authorization.k8s.io"}]},
        {"level": "RequestResponse"},
    ],
}
_OF_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
                  "deletionTimestamp", "deletionGracePeriodSeconds")  # fmt: skip
_PASSING = {"events", "leases", "endpoints", "endpointslices", "ipaddresses", "componentstatuses", "flowschemas",
            "prioritylevelconfigurations", "apiservices", "localsubjectaccessreviews"}  # fmt: skip
"""Kinds that API servers write at their own time, or that do not last."""
_REQUESTS = (OPERATION, TIMESTAMP)
"""Annotations that ask a controller to reconcile: one more request changes nothing."""
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"), "<time>"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
)


def audit_flags(directory: Path) -> list[str]:
    """Flags of an API server that writes ``LOG``. Writes the policy that they name."""
    (directory / "audit.json").write_text(json.dumps(_POLICY))
    return ["--audit-policy-file", "audit.json", "--audit-log-path", LOG, "--audit-log-maxsize", "4000"]


@dataclass(frozen=True, order=True)
class Place:
    """An object, by names that are the same in each run."""

    cluster: str
    resource: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {self.name} in the {self.cluster}"


@dataclass
class Ledger:
    """Effects of one run, and the objects that were there at its end."""

    created: dict[Place, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Uids of created objects."""
    changed: Counter[Place] = field(default_factory=Counter)
    """How often the content of an object became another one."""
    deleted: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Uids of deleted objects."""
    objects: dict[Place, Object] = field(default_factory=dict)

    @property
    def effects(self) -> int:
        created, deleted = self.created.values(), self.deleted.values()
        return sum(map(len, created)) + sum(map(len, deleted)) + self.changed.total()


@dataclass(frozen=True, order=True)
class Finding:
    """A difference to the undisturbed run."""

    kind: str
    """``doubled``, ``left out``, ``left over`` or ``differs``."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def compare(undisturbed: Ledger, disturbed: Ledger) -> list[Finding]:
    """Find effects that a disturbed run has doubled or left out, and objects that differ at its end."""
    found = []
    for act in ("created", "changed", "deleted"):
        before, after = _counts(getattr(undisturbed, act)), _counts(getattr(disturbed, act))
        for place in sorted(before.keys() | after.keys()):
            if after[place] > before[place]:
                found.append(Finding("doubled", f"{place}: {act} {after[place]} times, undisturbed {before[place]}"))
            elif after[place] < before[place] and act != "changed":
                found.append(Finding("left out", f"{place}: {act} {after[place]} times, undisturbed {before[place]}"))
    for place in sorted(undisturbed.objects.keys() - disturbed.objects.keys()):
        found.append(Finding("left out", f"{place} does not exist"))
    for place in sorted(disturbed.objects.keys() - undisturbed.objects.keys()):
        found.append(Finding("left over", f"{place} exists"))
    for place in sorted(undisturbed.objects.keys() & disturbed.objects.keys()):
        for path in sorted(_differences(undisturbed.objects[place], disturbed.objects[place])):
            found.append(Finding("differs", f"{place}: {path}"))
    return found


def _counts(acts: Mapping[Place, Any]) -> Counter[Place]:
    return Counter({place: each if isinstance(each, int) else len(each) for place, each in acts.items()})


def _differences(left: Any, right: Any, path: str = "") -> Iterable[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left.keys() | right.keys():
            yield from _differences(left.get(key), right.get(key), f"{path}.{key}")
    elif left != right:
        yield f"{path} is {str(right)[:80]}, undisturbed {str(left)[:80]}"


class Auditor:
    """Reads the audit logs of clusters. ``names``: texts that differ from run to run, and what stands for them."""

    def __init__(self, logs: Mapping[str, Path], workers: frozenset[str]) -> None:
        self._logs = dict(logs)
        self._workers = workers
        self._read = dict.fromkeys(logs, 0)
        self._contents: dict[str, str] = {}
        """By uid: the content of the object as the log has it last."""

    def skip(self) -> None:
        """Begin at the present end of the logs."""
        for cluster in self._logs:
            for _ in self._events(cluster, {}):
                pass

    def ledger(self, names: Mapping[str, str]) -> Ledger:
        """Effects since the last call."""
        made = Ledger()
        for cluster in self._logs:
            for place, verb, uid, changed in self._events(cluster, names):
                if verb == "created":
                    made.created[place].append(uid)
                elif verb == "deleted":
                    made.deleted[place].add(uid)
                elif changed:
                    made.changed[place] += 1
        return made

    def _events(self, cluster: str, names: Mapping[str, str]) -> Iterable[tuple[Place, str, str, bool]]:
        with self._logs[cluster].open("rb") as log:
            log.seek(self._read[cluster])
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read[cluster] += len(line)
                yield from self._effect(cluster, json.loads(line), names)

    def _effect(self, cluster: str, said: Object, names: Mapping[str, str]) -> Iterable[tuple[Place, str, str, bool]]:
        of, code = said.get("objectRef") or {}, (said.get("responseStatus") or {}).get("code", 0)
        if said["stage"] != "ResponseComplete" or not 200 <= code < 300 or "dryRun=" in said["requestURI"]:
            return
        if of.get("subresource") or not of.get("resource"):
            return
        answer = said.get("responseObject") or {}
        metadata = answer.get("metadata") or {}
        uid = str(metadata.get("uid") or (answer.get("details") or {}).get("uid") or "")
        content = _content(answer)
        known, deletes = self._contents.get(uid), said["verb"] == "delete"
        if not deletes:
            self._contents[uid] = content
        if said["user"]["username"] not in self._workers:
            return
        name = str(metadata.get("name") or of.get("name") or "")
        if prefix := metadata.get("generateName"):
            name = f"{prefix}*"
        if said["verb"] == "deletecollection":
            name = "*"
        resource = ".".join(filter(None, (of["resource"], of.get("apiGroup"))))
        place = Place(cluster, resource, masked("/".join(filter(None, (of.get("namespace"), name))), names))
        verb = "deleted" if deletes else "created" if code == 201 else "changed"
        yield place, verb, uid, known is not None and known != content


def _content(answer: Object) -> str:
    """Content of an object without what API servers and controllers write, and without requests to reconcile."""
    metadata = {key: value for key, value in (answer.get("metadata") or {}).items() if key not in _OF_THE_SERVER}
    metadata.pop("finalizers", None)
    annotations = {key: each for key, each in (metadata.pop("annotations", None) or {}).items() if key not in _REQUESTS}
    content = {key: value for key, value in answer.items() if key not in ("metadata", "status")}
    return json.dumps([metadata, annotations, content], sort_keys=True)


def masked(text: str, names: Mapping[str, str]) -> str:
    for found, stands in names.items():
        text = text.replace(found, stands)
    for pattern, stands in _MASKS:
        text = pattern.sub(stands, text)
    return text


async def snapshot(cluster: str, admin: KubeClient, names: Mapping[str, str]) -> dict[Place, Object]:
    """All objects of a cluster that last, without what differs from run to run."""
    found: dict[Place, Object] = {}
    groups = [each["preferredVersion"]["groupVersion"] for each in (await admin.request("GET", "/apis"))["groups"]]
    for version in ("v1", *groups):
        path = "/api/v1" if version == "v1" else f"/apis/{version}"
        for resource in (await admin.request("GET", path))["resources"]:
            plural, group = resource["name"], version.rpartition("/")[0]
            if "list" not in resource["verbs"] or plural in _PASSING or "/" in plural:
                continue
            try:
                answer = await admin.request("GET", f"{path}/{plural}")
            except ApiError as error:
                if error.status not in (404, 405):
                    raise
                continue
            for obj in answer["items"]:
                metadata = obj["metadata"]
                name = f"{metadata['generateName']}*" if metadata.get("generateName") else metadata["name"]
                where = masked("/".join(filter(None, (metadata.get("namespace"), name))), names)
                place = Place(cluster, ".".join(filter(None, (plural, group))), where)
                while place in found:  # several objects with generated names
                    place = Place(place.cluster, place.resource, f"{place.name}+")
                found[place] = json.loads(masked(json.dumps(_lasting(obj)), names))
    return found


def _lasting(obj: Object) -> Object:
    """An object without fields that the API server chooses; of a Secret, the names of its fields."""
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("uid", "resourceVersion", "creationTimestamp", "managedFields")
    }
    if INPUTS_DIGEST in (metadata.get("annotations") or {}):  # it has versions of Secrets in it
        metadata["annotations"] = {**metadata["annotations"], INPUTS_DIGEST: "<digest>"}
    rest = {key: value for key, value in obj.items() if key != "metadata"}
    if isinstance(rest.get("data"), dict):
        rest["data"] = sorted(rest["data"])
    spec = rest.get("spec")
    if isinstance(spec, dict) and "clusterIP" in spec:
        chosen = ("clusterIP", "clusterIPs", "healthCheckNodePort")
        ports = [{key: each for key, each in port.items() if key != "nodePort"} for port in spec.get("ports") or ()]
        rest["spec"] = {**{key: each for key, each in spec.items() if key not in chosen}, "ports": ports}
    return {"metadata": metadata, **rest}

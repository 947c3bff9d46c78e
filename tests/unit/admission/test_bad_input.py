"""Objects made from the schemas and then broken: admission answers each of them, and flows can read those it admits.

Each example is a good object in which up to four places hold other values: values that the schema allows, and values
that it does not. An answer is never a crash, and never tells of objects of another project.
"""

import asyncio
import base64
import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.components import apiserver
from activities.components.operating_system_config import (
    _KERNEL_SETTINGS,
    NodeConfig,
    kubelet_configuration,
    node_labels,
    reconcile,
)
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.shoot import Shoot
from api.crds import crds
from api.decisions.maintenance import plan_maintenance
from api.decisions.rotation import RotationFacts
from api.decisions.schedules import wanted_schedules
from api.resources import resource_of
from tests.unit.admission.test_bastion import BASTION, PROVIDER
from tests.unit.admission.webhooks import BINDING, FakeGarden, ask, patched
from tests.unit.api.profiles import CHILD
from tests.unit.api.shoots import NOW, PROFILE, PROJECT, SEED, changed, complete
from workers.admission.app import application
from workers.admission.kinds import MUTATORS, VALIDATORS

FOREIGN = "another-tenants-object"
"""Part of all names of objects of the other project."""
CORE = "core.gardener.cloud/v1beta1"
OWN = {"name": "a", "namespace": "garden-local"}
SHOOT = complete("spec.dns", {"domain": "demo.example.org"}, bound=True).to_wire()
WORKERLESS = complete("spec.provider.workers", []).to_wire()

_OTHERS: list[dict[str, Any]] = [
    {
        **changed(SHOOT, "spec.dns.domain", f"{FOREIGN}.example.org"),
        "metadata": {"name": "demo", "namespace": f"garden-{FOREIGN}", "uid": "u-2"},
    },
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": FOREIGN, "namespace": f"garden-{FOREIGN}"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": FOREIGN, "namespace": f"garden-{FOREIGN}"}},
    changed(changed(PROJECT, "metadata.name", FOREIGN), "spec.namespace", f"garden-{FOREIGN}"),
    changed(BINDING, "metadata.namespace", f"garden-{FOREIGN}"),
]

_OF_OPERATORS = ("CloudProfile", "Seed")
"""Kinds that only operators write. Messages name the Shoots of all projects that keep such an object from changing."""

OBJECTS: dict[str, dict[str, Any]] = {
    "Shoot": SHOOT,
    "Shoot without workers": WORKERLESS,
    "CloudProfile": PROFILE,
    "NamespacedCloudProfile": CHILD,
    "Seed": SEED,
    "Project": PROJECT,
    "CredentialsBinding": BINDING,
    "SecretBinding": {
        "apiVersion": CORE,
        "kind": "SecretBinding",
        "metadata": OWN,
        "provider": {"type": "local"},
        "secretRef": {"name": "local", "namespace": "garden-local"},
    },
    "Bastion": BASTION,
    "InternalSecret": {"apiVersion": CORE, "kind": "InternalSecret", "metadata": OWN, "stringData": {"a": "b"}},
}

_WORDS = st.sampled_from(
    [
        *(
            "",
            " ",
            "a",
            "a b",
            "x" * 64,
            "a,b",
            "a\nb",
            "../..",
            "-1",
            "-1m",
            "1e99",
            "100%",
            "9999999999h",
            "1.37.1",
            "1.37",
        ),
        *("true", "10.0.0.0/8", "10.0.0.0/33", "::/0", "https://[x", "kube-system", "garden-local", "local", "\u0000"),
        *(
            "ü",
            "ConfigMaps",
            "demo.example.org",
            f"x.{FOREIGN}.example.org",
            "example.org",
            "*",
            "2026-13-01T00:00:00Z",
        ),
    ]
)
_NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 24, 100, 2**31, 2**63 - 1])
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | _WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=2),
    max_leaves=4,
)
Schema = Mapping[str, Any]
Place = tuple[tuple[str | int, ...], Schema]


def values(schema: Schema, depth: int = 3) -> st.SearchStrategy[Any]:
    """Values that a schema allows."""
    if schema.get("x-kubernetes-int-or-string"):
        return _NUMBERS | _WORDS
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31)
            return st.integers(low, high) | _NUMBERS.filter(lambda each: low <= each <= high)
        case "number":
            return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False)
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True, alphabet=st.characters(max_codepoint=127))
        case "string" if schema.get("format") == "byte":
            return st.binary(max_size=8).map(lambda each: base64.b64encode(each).decode())
        case "string":
            return _WORDS | st.text(max_size=70)
        case "array":
            return st.lists(values(schema["items"], depth - 1), max_size=2) if depth else st.just([])
        case "object" if "properties" in schema and depth:
            parts = {name: values(each, depth - 1) for name, each in schema["properties"].items()}
            needed = set(schema.get("required") or ())
            return st.fixed_dictionaries(
                {name: part for name, part in parts.items() if name in needed},
                optional={name: part for name, part in parts.items() if name not in needed},
            )
        case "object" if "additionalProperties" in schema and depth:
            return st.dictionaries(_WORDS, values(schema["additionalProperties"], depth - 1), max_size=2)
    return st.dictionaries(_WORDS, _JSON, max_size=2)


def places(schema: Schema, obj: Any, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Places of an object that the schema describes, also those that the object leaves out."""
    if isinstance(obj, list):
        for index, each in enumerate(obj[:2]):
            yield from places(schema["items"], each, (*path, index))
        return
    for name, part in (schema.get("properties") or {}).items():
        if path or name == "spec" or name not in ("apiVersion", "kind", "metadata", "status"):
            yield (*path, name), part
            if isinstance(obj, Mapping) and isinstance(obj.get(name), Mapping | list):
                yield from places(part, obj[name], (*path, name))


def replaced(obj: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy of an object with another value at a place; unchanged if an earlier change has removed the place."""
    if not path:
        return value
    head, *rest = path
    if isinstance(obj, Mapping) and isinstance(head, str):
        return {**obj, head: replaced(obj.get(head, {}), tuple(rest), value)}
    if isinstance(obj, list) and isinstance(head, int) and head < len(obj):
        return [replaced(each, tuple(rest), value) if i == head else each for i, each in enumerate(obj)]
    return obj


def schema_of(kind: str) -> Schema:
    found = next(each for each in crds("garden") if each["spec"]["names"]["kind"] == kind)
    schema: Schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@st.composite
def mutants(draw: st.DrawFn, base: Mapping[str, Any], found: list[Place]) -> dict[str, Any]:
    obj: Any = copy.deepcopy(dict(base))
    for path, schema in draw(st.lists(st.sampled_from(found), min_size=1, max_size=4)):
        obj = replaced(obj, path, draw(values(schema) | _JSON))
    if draw(st.integers(0, 4)) == 0:
        obj = replaced(obj, ("metadata", "annotations"), draw(st.dictionaries(_ANNOTATIONS, _WORDS, max_size=2)))
    return dict(obj)


_ANNOTATIONS = st.sampled_from(
    [
        *(
            "gardener.cloud/operation",
            "maintenance.gardener.cloud/operation",
            "shoot.gardener.cloud/expiration-timestamp",
        ),
        *("confirmation.gardener.cloud/force-deletion", "authentication.gardener.cloud/issuer"),
        *("shoot.gardener.cloud/control-plane-migration", "gardener.cloud/created-by"),
    ]
)


class Admission:
    """Admission of a garden of two projects, in an event loop of its own: an example is a plain function."""

    def __init__(self) -> None:
        self.garden = FakeGarden()
        self.garden.objects += [SHOOT, PROVIDER, *_OTHERS]
        self._runner = asyncio.Runner()
        self._client: TestClient[Any, Any] = self._runner.run(self._start())

    async def _start(self) -> TestClient[Any, Any]:
        client = TestClient(TestServer(application(self.garden)))
        await client.start_server()
        return client

    def ask(self, path: str, operation: str, obj: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._runner.run(ask(self._client, path, operation, obj, old))
        return answer

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(scope="module")
def admission() -> Iterator[Admission]:
    made = Admission()
    yield made
    made.close()


def written(admission: Admission, obj: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any] | None:
    """The object as the API server would store it; None if it is refused."""
    operation = "UPDATE" if old else "CREATE"
    resource = resource_of(obj)
    stored = obj
    if resource in MUTATORS:
        answer = admission.ask("/mutate", operation, obj, old)
        if not answer["allowed"]:
            assert FOREIGN not in answer["status"]["message"]
            return None
        stored = patched(obj, answer) if "patch" in answer else obj
    if resource not in VALIDATORS:
        return stored
    answer = admission.ask("/validate", operation, stored, old)
    if answer["allowed"]:
        return stored
    message = answer["status"]["message"]
    assert message
    # Words that the author of the object has written are no news to the author.
    assert FOREIGN not in message or FOREIGN in json.dumps(obj) or obj["kind"] in _OF_OPERATORS
    return None


def read(obj: Mapping[str, Any]) -> None:
    """Read an admitted Shoot as flows, schedules and components read it."""
    shoot = Shoot.of(dict(obj)).to_wire()
    wanted_schedules(shoot)
    plan_maintenance(shoot, CloudProfile.of(PROFILE), NOW)
    RotationFacts.of_shoot(shoot)
    server = shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}
    for flag in apiserver._flags(_api_server(shoot["spec"]["kubernetes"]["version"], server)):
        assert flag.isprintable()
    for pool in shoot["spec"]["provider"].get("workers") or ():
        node = NodeConfig(shoot, pool, "https://api.example.org", "ca", "ca")
        for label in node_labels(node).items():
            assert all(each.isprintable() and not set(each) & set(" ,=") for each in label)
        kubelet_configuration(node)
        sysctls = next(each for each in reconcile(node)["files"] if each["path"].startswith("/etc/sysctl.d"))
        lines = sysctls["content"]["inline"]["data"].splitlines()
        assert len(lines) == len({**_KERNEL_SETTINGS, **(pool.get("sysctls") or {})})


def _api_server(version: str, settings: Mapping[str, Any]) -> apiserver.ApiServer:
    names = dict.fromkeys(field.name for field in dataclasses.fields(apiserver.Secrets))
    return apiserver.ApiServer(
        namespace="shoot--local--demo",
        version=version,
        replicas=1,
        external_hostname="api.example.org",
        issuer="https://api.example.org",
        service_cidrs=["10.0.0.0/16"],
        secrets=apiserver.Secrets(**{name: name for name in names}),
        settings=settings,
    )


def check(kind: str, admission: Admission, examples: int) -> int:
    """Send that many mutants of a kind; returns how many were admitted."""
    base = OBJECTS[kind]
    found = list(places(schema_of(base["kind"]), base))
    admitted = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(mutants(base, found), st.booleans())
    def each(obj: dict[str, Any], update: bool) -> None:
        nonlocal admitted
        stored = written(admission, obj, base if update else None)
        if stored is not None:
            admitted += 1
            if base["kind"] == "Shoot":
                read(stored)

    each()
    return admitted


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_that_are_good_are_admitted(kind: str, admission: Admission) -> None:
    """Otherwise all mutants would be refused for another reason than their fault."""
    assert written(admission, OBJECTS[kind], OBJECTS[kind]) is not None


@pytest.mark.parametrize("kind", OBJECTS)
def test_fifty_broken_objects_are_answered(kind: str, admission: Admission) -> None:
    check(kind, admission, 50)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", OBJECTS)
def test_two_thousand_broken_objects_are_answered(kind: str, admission: Admission) -> None:
    assert check(kind, admission, 2000), "some mutants are good"


def test_a_domain_of_another_project_is_refused_without_its_name(admission: Admission) -> None:
    taken = changed(SHOOT, "spec.dns.domain", f"{FOREIGN}.example.org")
    message = admission.ask("/validate", "CREATE", taken)["status"]["message"]
    assert "is the same as, above or below a domain of another Project's Shoot" in message
    above = changed(SHOOT, "spec.dns.domain", "example.org")
    assert FOREIGN not in admission.ask("/validate", "CREATE", above)["status"]["message"]

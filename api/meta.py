"""What every kind of the Kubernetes API is built from: base models, metadata, conditions, field types.

Models are the one source of the CustomResourceDefinitions (``api.crds``): a field's type gives its
schema, its default the API server's default, its markers the list type and immutability rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

_WORDS = "API CA CFS CIDR CIDRs CPU CRI DNS FS GC GRPC ID IDs IP IPv6 OCI OOM PD QPS SSH TCP TLS TTL UID URL URLs"
_ACRONYMS = {word.lower(): word for word in _WORDS.split()}


def camel(name: str) -> str:
    """Wire name of a field, with Gardener's habit of upper-case acronyms: ``kube_api_server`` -> ``kubeAPIServer``."""
    first, *rest = name.split("_")
    return first + "".join(_ACRONYMS.get(word, word[:1].upper() + word[1:]) for word in rest)


class KubeModel(BaseModel):
    """Part of a Kubernetes object. Keeps unknown fields, so a newer writer's words survive our reading."""

    model_config = ConfigDict(
        alias_generator=camel,
        populate_by_name=True,
        serialize_by_alias=True,
        extra="allow",
        strict=True,
        defer_build=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The object as JSON: what was read or set. Unset defaults are left to the API server, nulls mean unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


# Field types whose schema Python's types cannot say.

Raw = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""Any object, kept as it is: provider configuration, embedded Kubernetes types."""
RawValue = Annotated[Any, WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True})]
IntOrString = Annotated[int | str, WithJsonSchema({"x-kubernetes-int-or-string": True})]
Quantity = Annotated[
    str | int | float,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
            r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        }
    ),
]
Duration = Annotated[str, Field(pattern=r"^-?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$")]
"""Go duration, for example ``30m`` or ``1h30m``."""
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339; a string, so that reading and writing an object does not reformat it."""
Bytes = Annotated[str, Field(json_schema_extra={"format": "byte"})]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]

# Markers, used as ``Annotated[type, MARKER]``.

IMMUTABLE = Field(json_schema_extra={"x-immutable": "always"})
"""Fixed at creation."""
IMMUTABLE_ONCE_SET = Field(json_schema_extra={"x-immutable": "once"})
"""May be set later, then fixed."""


def map_list(*keys: str) -> Any:
    """Marks a list whose items are told apart by ``keys``: merged by server-side apply, no duplicates."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


SET = Field(json_schema_extra={"x-kubernetes-list-type": "set"})
"""Marks a list of scalars without duplicates."""


# Metadata.


class OwnerReference(KubeModel):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(KubeModel):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []

    def annotate(self, key: str, value: str) -> None:
        self.annotations = {**self.annotations, key: value}

    def label(self, key: str, value: str) -> None:
        self.labels = {**self.labels, key: value}


@dataclass(frozen=True)
class Column:
    """A column of ``kubectl get``; ``wide`` ones show with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class Definition:
    """How a kind is served: everything of its CustomResourceDefinition but the schema."""

    group: str
    version: str
    plural: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    columns: tuple[Column, ...] = (AGE,)
    status: bool = True
    scale: tuple[str, str, str] | None = None
    """JSON paths of spec replicas, status replicas and, where there is one, the label selector."""
    selectable: tuple[str, ...] = ()
    """JSON paths usable as field selectors."""
    protected: bool = True
    """Whether it goes only with a second word."""
    annotations: Mapping[str, str] = field(default_factory=dict)


class KubeObject(KubeModel):
    """A whole object. A subclass is a kind; its ``definition`` says how it is served."""

    definition: ClassVar[Definition]

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    @classmethod
    def of(cls, obj: dict[str, Any]) -> Self:
        return cls.model_validate(obj)


# Shared blocks.


class Condition(KubeModel):
    """A failing check first turns ``Progressing`` for its threshold, then ``False``."""

    type: str
    status: str
    last_transition_time: Timestamp | None = None
    last_update_time: Timestamp | None = None
    reason: str = ""
    message: str = ""
    codes: list[str] | None = None
    """Of ``api.errors.ErrorCode``; a newer writer may know more."""


Conditions = Annotated[list[Condition], map_list("type")]


class LastOperation(KubeModel):
    """``Error`` is retried; ``Failed`` is given up until a spec change, a new version or ``retry``."""

    description: str = ""
    last_update_time: Timestamp | None = None
    progress: int = Field(default=0, ge=0, le=100)
    state: str
    type: str


class LastError(KubeModel):
    description: str
    task_id: str | None = None
    codes: list[str] | None = None
    """Of ``api.errors.ErrorCode``; a newer writer may know more."""
    last_update_time: Timestamp | None = None


class GardenerInfo(KubeModel):
    """Which Gardener last acted on an object."""

    id: str
    name: str
    version: str


class LocalObjectReference(KubeModel):
    name: str


class SecretReference(KubeModel):
    name: str
    namespace: str | None = None


class CrossVersionObjectReference(KubeModel):
    api_version: str
    kind: str
    name: str


class ObjectReference(KubeModel):
    """Names an object of any namespace, for example credentials."""

    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    field_path: str | None = None


class NamedResourceReference(KubeModel):
    name: str
    resource_ref: CrossVersionObjectReference


class LabelSelectorRequirement(KubeModel):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(KubeModel):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None


class SeedSelector(LabelSelector):
    provider_types: list[str] | None = None


class Toleration(KubeModel):
    key: str
    value: str | None = None


class Taint(KubeModel):
    """Taint of a node."""

    key: str
    value: str | None = None
    effect: str
    time_added: Timestamp | None = None


class Extension(KubeModel):
    """An extension of a Shoot or Seed."""

    type: str
    provider_config: Raw | None = None
    disabled: bool | None = None


class AccessRestriction(KubeModel):
    name: str


class AccessRestrictionWithOptions(AccessRestriction):
    options: dict[str, str] | None = None

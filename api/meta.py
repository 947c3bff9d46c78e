"""Building blocks of all kinds of the Kubernetes API: base models, metadata, conditions, field types.

CustomResourceDefinitions are generated from the models alone (``api.crds``): the type of a field becomes its schema,
its default the API server's default, its markers the list type and immutability rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from api.durations import parse_duration
from api.times import parse_time

_WORDS = "API CA CFS CIDR CIDRs CPU CRI DNS FS GC GRPC ID IDs IP IPv6 OCI OOM PD QPS SSH TCP TLS TTL UID URL URLs"
_ACRONYMS = {word.lower(): word for word in _WORDS.split()}


def camel(name: str) -> str:
    """Wire name of a field, with upper-case acronyms as in Gardener: ``kube_api_server`` -> ``kubeAPIServer``."""
    first, *rest = name.split("_")
    return first + "".join(_ACRONYMS.get(word, word[:1].upper() + word[1:]) for word in rest)


class KubeModel(BaseModel):
    """Part of a Kubernetes object. It keeps unknown fields, so that a write loses no field of a newer API."""

    model_config = ConfigDict(
        alias_generator=camel,
        populate_by_name=True,
        serialize_by_alias=True,
        extra="allow",
        strict=True,
        defer_build=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The object as JSON, with the fields that were read or set. The API server sets defaults; null means unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


# Field types whose schema cannot be derived from a Python type.

Raw = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""Any object, kept unchanged: provider configuration, embedded Kubernetes types."""
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


def _of(parse: Callable[[str], object]) -> Callable[[str], str]:
    """A validator that keeps the text, if it can be parsed."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


Duration = Annotated[
    str, Field(pattern=r"^-?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$"), AfterValidator(_of(parse_duration))
]
"""Go duration, for example ``30m`` or ``1h30m``; at most 290 years."""
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"}), AfterValidator(_of(parse_time))]
"""RFC 3339, as the API server checks it; a string, so that reading and writing an object does not reformat it."""
Bytes = Annotated[str, Field(json_schema_extra={"format": "byte"})]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]

# Markers, used as ``Annotated[type, MARKER]``.

IMMUTABLE = Field(json_schema_extra={"x-immutable": "always"})
"""Marks a field that cannot change after the creation of the object."""
IMMUTABLE_ONCE_SET = Field(json_schema_extra={"x-immutable": "once"})
"""Marks a field that cannot change once it is set; it may be set after the creation."""


def map_list(*keys: str) -> Any:
    """Marks a list whose items are identified by ``keys``: merged by server-side apply, no duplicates."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


def rules(*conditions: tuple[str, str]) -> ConfigDict:
    """Configuration of a model whose objects fulfil CEL expressions; each comes with the message of a refusal."""
    found: list[Any] = [{"rule": rule, "message": message} for rule, message in conditions]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": found})


def not_offered(reason: str, unless: str = "false") -> Any:
    """Marks a field that this version does not implement: the API server refuses it, unless a CEL expression holds."""
    found: list[Any] = [{"rule": unless, "message": f"not supported: {reason}"}]
    return Field(json_schema_extra={"x-kubernetes-validations": found})


EMPTY = "size(self) == 0"
"""Condition for ``not_offered``: an empty text, list or map means the same as none."""

LABELS_ALONE = not_offered(
    "use matchLabels alone", unless="!has(self.matchExpressions) || size(self.matchExpressions) == 0"
)
"""Marks a label selector whose ``matchExpressions`` no code reads."""

CIDR = Field(json_schema_extra={"format": "cidr"})
"""Marks an address range that the API server checks."""

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
    """How a kind is served: its CustomResourceDefinition without the schema."""

    group: str
    version: str
    plural: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    columns: tuple[Column, ...] = (AGE,)
    status: bool = True
    scale: tuple[str, str, str] | None = None
    """JSON paths of spec replicas, status replicas and label selector; the last may be empty."""
    selectable: tuple[str, ...] = ()
    """JSON paths that field selectors may use."""
    protected: bool = True
    """Whether a deletion needs the annotation ``confirmation.gardener.cloud/deletion``."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    stored: bool = True
    """Whether the API server stores objects in this version. False: it converts them from and to another version."""


class KubeObject(KubeModel):
    """A whole object. Each kind is a subclass; its ``definition`` tells how the kind is served."""

    definition: ClassVar[Definition]

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    @classmethod
    def of(cls, obj: dict[str, Any]) -> Self:
        return cls.model_validate(obj)


# Shared blocks.


class Condition(KubeModel):
    """A condition. A failed check first makes it ``Progressing``, and ``False`` after the threshold of its type."""

    type: str
    status: str
    last_transition_time: Timestamp | None = None
    last_update_time: Timestamp | None = None
    reason: str = ""
    message: str = ""
    codes: list[str] | None = None
    """Values of ``api.errors.ErrorCode``; newer versions may write others."""


Conditions = Annotated[list[Condition], map_list("type")]


class LastOperation(KubeModel):
    """An operation in state ``Error`` is retried; in ``Failed`` only after a change of the spec, a new version or
    ``retry``."""

    description: str = ""
    last_update_time: Timestamp | None = None
    progress: int = Field(default=0, ge=0, le=100)
    state: str
    type: str


class LastError(KubeModel):
    description: str
    task_id: str | None = None
    codes: list[str] | None = None
    """Values of ``api.errors.ErrorCode``; newer versions may write others."""
    last_update_time: Timestamp | None = None


class GardenerInfo(KubeModel):
    """Component and version of Gardener that last acted on an object."""

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
    """Reference to an object in any namespace, for example to credentials."""

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

"""Base of our own models: frozen, camelCase on the wire, snake_case in Python."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A value that is serialized: an API object, or the input or result of an activity.

    Unknown fields are refused. Kinds of the Kubernetes API, which must keep what a newer
    writer put there, build on ``api.meta.KubeModel`` instead.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True, frozen=True, extra="forbid"
    )

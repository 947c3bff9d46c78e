"""The connection of our processes to Temporal: its configuration, and the client made of it."""

from pathlib import Path

from temporalio.client import Client

from api.images import OWN_VERSION
from api.model import ApiModel
from workers.codec import data_converter


class VersioningConfig(ApiModel):
    """See ``workers.versioning``."""

    enabled: bool = False
    """Off: whoever polls takes every flow, as where one process is replaced by the next. On: nothing is taken until
    the build was made current, see ``gardener worker promote``."""
    build_id: str = OWN_VERSION


class TemporalConnection(ApiModel):
    """Where Temporal is, and the key of the payload codec."""

    address: str
    namespace: str = "default"
    codec_key_file: Path
    versioning: VersioningConfig = VersioningConfig()
    """Of those that run workflows."""


async def connect(connection: TemporalConnection) -> Client:
    """A client whose payloads are encrypted."""
    return await Client.connect(
        connection.address,
        namespace=connection.namespace,
        data_converter=data_converter(connection.codec_key_file),
    )

"""VerticalPodAutoscalerCheckpoint: usage of a container, which the recommender reads again after its restart."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from api.autoscaling.v1.vertical_pod_autoscaler import APPROVED
from api.constants import AUTOSCALING
from api.meta import Definition, KubeModel, KubeObject, Raw, Timestamp

NullableTime = Annotated[Timestamp | None, Field(json_schema_extra={"nullable": True})]
"""A time; the recommender writes null if there is none."""


class HistogramCheckpoint(KubeModel):
    reference_timestamp: NullableTime = None
    bucket_weights: Raw | None = None
    """Weights by number of the bucket."""
    total_weight: float | None = None


class VerticalPodAutoscalerCheckpointSpec(KubeModel):
    vpa_object_name: str | None = None
    container_name: str | None = None


class VerticalPodAutoscalerCheckpointStatus(KubeModel):
    last_update_time: NullableTime = None
    version: str | None = None
    """Version of the format."""
    cpu_histogram: HistogramCheckpoint | None = None
    memory_histogram: HistogramCheckpoint | None = None
    first_sample_start: NullableTime = None
    last_sample_start: NullableTime = None
    total_samples_count: int | None = None


class VerticalPodAutoscalerCheckpoint(KubeObject):
    definition: ClassVar[Definition] = Definition(
        AUTOSCALING,
        "v1",
        "verticalpodautoscalercheckpoints",
        ("vpacheckpoint",),
        status=False,
        protected=False,
        annotations=APPROVED,
    )

    spec: VerticalPodAutoscalerCheckpointSpec | None = None
    status: VerticalPodAutoscalerCheckpointStatus | None = None

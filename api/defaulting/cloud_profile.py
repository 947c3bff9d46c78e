"""Changes of a cloud profile before it is stored. Source: spec/api-core.md 2, 10.3."""

from __future__ import annotations

from datetime import datetime

from api.constants import EXTENSION_LABEL_SUFFIX
from api.core.v1beta1.cloud_profile import CloudProfile, ExpirableVersion
from api.decisions.versions import stage
from api.meta import KubeObject


def drop_expired(profile: CloudProfile, now: datetime) -> None:
    """Remove expired versions. The last version of an image stays: validation reports an image without versions."""
    kubernetes = profile.spec.kubernetes
    if any(_is_expired(each, now) for each in kubernetes.versions):
        kubernetes.versions = [each for each in kubernetes.versions if not _is_expired(each, now)]
    for image in profile.spec.machine_images:
        usable = [each for each in image.versions if not _is_expired(each, now)]
        if len(usable) < len(image.versions):
            image.versions = usable or image.versions[-1:]


def _is_expired(version: ExpirableVersion, now: datetime) -> bool:
    """Whether a version has expired. The API server refuses times that cannot be read, after this change."""
    try:
        return stage(version, now) == "expired"
    except (ValueError, TypeError):  # no time, or a time without a zone
        return False


def label_for_extensions(profile: KubeObject, provider: str) -> None:
    """Set the label by which webhooks of a provider's extension select its profiles. The provider never changes."""
    name = f"provider.{EXTENSION_LABEL_SUFFIX}/{provider}"
    if profile.metadata.labels.get(name) != "true":
        profile.metadata.label(name, "true")

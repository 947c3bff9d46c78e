"""AdminKubeconfigRequest and ViewerKubeconfigRequest: bodies of the subresources of Shoots that issue kubeconfigs."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from api.constants import AUTHENTICATION
from api.meta import Bytes, Definition, KubeModel, KubeObject, Timestamp

DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 2**32 - 1
"""Bounds of a requested validity. The server's own maximum is lower. Source: spec/credentials.md 8."""


class KubeconfigRequestSpec(KubeModel):
    expiration_seconds: int | None = None
    """Validity of the kubeconfig in seconds; default 3600. The server lowers it to the server's own maximum."""


class KubeconfigRequestStatus(KubeModel):
    kubeconfig: Bytes | None = None
    expiration_timestamp: Timestamp | None = None
    """End of the validity of the client certificate."""


class KubeconfigRequest(KubeObject):
    """Common fields of both requests."""

    spec: KubeconfigRequestSpec = Field(default_factory=KubeconfigRequestSpec)
    status: KubeconfigRequestStatus | None = None


class AdminKubeconfigRequest(KubeconfigRequest):
    definition: ClassVar[Definition] = Definition(AUTHENTICATION, "v1alpha1", "adminkubeconfigrequests")


class ViewerKubeconfigRequest(KubeconfigRequest):
    definition: ClassVar[Definition] = Definition(AUTHENTICATION, "v1alpha1", "viewerkubeconfigrequests")

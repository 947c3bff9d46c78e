"""Check by a SubjectAccessReview what a user of an API server may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.resources import SUBJECT_ACCESS_REVIEW, Resource
from kube.client import KubeClient

MASTERS = "system:masters"
"""Group of administrators, which every API server lets do everything."""


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, list[str]] | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> User:
        """User from the UserInfo in a review."""
        return cls(info.get("username", ""), tuple(info.get("groups") or ()), info.get("uid", ""), info.get("extra"))


async def may(
    client: KubeClient, user: User, verb: str, resource: Resource, namespace: str = "", name: str = ""
) -> bool:
    """Whether the cluster's authorizers allow the request; an empty namespace stands for all namespaces.

    ``resource.plural`` may name a subresource, as in ``shoots/status``.
    """
    plural, _, subresource = resource.plural.partition("/")
    review = {
        "apiVersion": SUBJECT_ACCESS_REVIEW.api_version,
        "kind": SUBJECT_ACCESS_REVIEW.kind,
        "metadata": {},
        "spec": {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": dict(user.extra or {}),
            "resourceAttributes": {
                "namespace": namespace,
                "name": name,
                "verb": verb,
                "group": resource.group,
                "version": resource.version,
                "resource": plural,
                "subresource": subresource,
            },
        },
    }
    answer = await client.create(review)
    return bool((answer.get("status") or {}).get("allowed"))

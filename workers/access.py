"""Check by a SubjectAccessReview what a user of an API server may do."""

from api.resources import SUBJECT_ACCESS_REVIEW, Resource
from api.server.review import User
from kube.client import KubeClient


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

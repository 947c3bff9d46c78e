"""Issuer of a shoot's service account tokens, and the public keys by which third parties verify the tokens.

Source: spec/flows.md 2 to 4, spec/credentials.md 2.
"""

import base64
import json
from dataclasses import dataclass

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.errors import transient
from activities.seed import rollout
from activities.seed.facts import ApiNames
from api import constants, resources
from api.contracts.operations import ShootTask, TaskResult
from api.decisions import issuer
from api.errors import ErrorCode
from api.names import project_and_shoot

_KEY_SET = "application/jwk-set+json"
"""Media type. Source: RFC 7517."""


@dataclass(frozen=True)
class Issuer:
    url: str
    key_set: str = ""
    """URL of the public keys; empty if it is the API server's own URL."""


async def issuer_of(clusters: Clusters, view: ClusterView) -> Issuer:
    """Issuer of the Shoot's tokens: at the garden's host, the one that the owner has chosen, or the API server.

    Raises:
        ApplicationError: ``ERR_RETRYABLE_CONFIGURATION_PROBLEM`` if the garden names no host, or several.
    """
    if not issuer.is_managed(view.annotations):
        return Issuer(ApiNames.of(view).issuer)
    found = await clusters.garden.list(resources.SECRET, constants.GARDEN_NAMESPACE, labels=issuer.SELECTOR)
    data = [each.get("data") or {} for each in found]
    hosts = {str(each[issuer.HOSTNAME]) for each in data if each.get(issuer.HOSTNAME)}
    if len(hosts) != 1:
        raise transient(
            ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
            f"namespace {constants.GARDEN_NAMESPACE} of the garden has {len(hosts)} Secrets with label "
            f"{issuer.SELECTOR} and key {issuer.HOSTNAME}, there must be one: an operator can mend that",
        )
    hostname = base64.b64decode(hosts.pop()).decode()
    project, _ = project_and_shoot(view.technical_id)
    url = issuer.issuer_url(hostname, project, view.shoot["metadata"]["uid"])
    return Issuer(url, issuer.key_set_url(url))


class IssuerActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def sync_public_sa_keys(self, task: ShootTask) -> TaskResult:
        """Publish the issuer's configuration and public keys in the garden; a second run writes nothing.

        The API server provides both. By now all its replicas run with the newest keys: during their rollout a key
        could be missing.
        """
        shoot = await self._clusters.shoot(task.technical_id)
        configuration = await shoot.request("GET", "/.well-known/openid-configuration")
        key_set = await shoot.request("GET", "/openid/v1/jwks", accept=_KEY_SET)
        project, _ = project_and_shoot(task.technical_id)
        published = {issuer.OPENID_CONFIGURATION: configuration, issuer.KEY_SET: key_set}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": issuer.secret_name(project, task.shoot.uid),
                "namespace": constants.SHOOT_ISSUER_NAMESPACE,
                "labels": {
                    **issuer.PUBLIC_KEYS,
                    constants.PROJECT_NAME: project,
                    constants.SHOOT_NAME: task.shoot.name,
                    constants.SHOOT_NAMESPACE: task.shoot.namespace,
                },
            },
            "type": "Opaque",
            "data": {key: base64.b64encode(_text(value)).decode() for key, value in published.items()},
        }
        await self._clusters.garden.apply(secret, manager=rollout.MANAGER)
        return TaskResult(note=str(configuration["issuer"]))

    @activity.defn
    async def delete_public_sa_keys(self, task: ShootTask) -> TaskResult:
        """Delete the published documents: no API server signs with these keys any more. A second run finds none."""
        project, _ = project_and_shoot(task.technical_id)
        published = (resources.SECRET, issuer.secret_name(project, task.shoot.uid))
        await rollout.delete(self._clusters.garden, [published], constants.SHOOT_ISSUER_NAMESPACE)
        return TaskResult()


def _text(document: object) -> bytes:
    # The API server may return the keys of the JSON object in any order.
    return json.dumps(document, sort_keys=True).encode()

"""A garden's WorkloadIdentity, the keys of its issuer, and a Shoot in a seed that uses it."""

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from api import resources
from api.contracts.issuer_keys import IssuerKey, IssuerKeys, data_of
from kube.client import KubeClient
from kube.errors import NotFound
from tests.unit.api.shoots import SEED
from workers.controller_manager.workload_identities import new_key

Object = dict[str, Any]

NAMESPACE = "garden-local"
PATH = f"/apis/security.gardener.cloud/v1alpha1/namespaces/{NAMESPACE}/workloadidentities/cloud/token"
ISSUER = "https://discovery.example.org/garden/workload-identity/issuer"
AUDIENCE = "cloud.example.org"
GARDENLET = "gardener.cloud:system:seed:seed-1"
SEEDS = ("X-Remote-Group", "gardener.cloud:system:seeds")
SECURITY = "security.gardener.cloud/v1alpha1"


@cache
def a_key(number: int = 0) -> IssuerKey:
    """The same key for each call with the same number: making one takes time."""
    return new_key()


def rotate(starts: datetime) -> IssuerKeys:
    """Two keys, of which the second signs from a time on."""
    now = datetime.now(UTC)
    first = a_key().model_copy(update={"signs_from": now - timedelta(days=1)})
    return IssuerKeys(issuer=ISSUER, keys=(first, a_key(1).model_copy(update={"signs_from": starts})))


async def with_keys(admin: KubeClient, keys: IssuerKeys | None = None) -> None:
    """Write the keys of the issuer, as the controller-manager does."""
    keys = keys or rotate(datetime.now(UTC) + timedelta(days=1))
    metadata = {"name": "workload-identity-issuer", "namespace": "garden"}
    await admin.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data_of(keys)},
        manager="test",
    )


def identity(name: str = "cloud", namespace: str = NAMESPACE, type_: str = "local") -> Object:
    return {
        "apiVersion": SECURITY,
        "kind": "WorkloadIdentity",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"audiences": [AUDIENCE], "targetSystem": {"type": type_}},
    }


async def identity_in(admin: KubeClient, name: str = "cloud", namespace: str = NAMESPACE) -> Object:
    return await admin.apply(identity(name, namespace), manager="test")


def binding(name: str = "by-token", namespace: str = NAMESPACE, credentials: str = "cloud") -> Object:
    return {
        "apiVersion": SECURITY,
        "kind": "CredentialsBinding",
        "metadata": {"name": name, "namespace": namespace},
        "provider": {"type": "local"},
        "credentialsRef": {
            "apiVersion": SECURITY,
            "kind": "WorkloadIdentity",
            "namespace": namespace,
            "name": credentials,
        },
    }


@dataclass
class Objects:
    """Objects around a token."""

    seed: Object
    project: Object
    shoot: Object

    @property
    def context(self) -> Object:
        metadata = self.shoot["metadata"]
        return {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "kind": "Shoot",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }


async def shoot_in_seed(admin: KubeClient, seed: str = "seed-1", bound: str = "by-token") -> Objects:
    """Let Shoot garden-local/demo be in a seed and use the WorkloadIdentity, by a binding."""
    await replace(admin, binding(bound))
    made = await admin.apply({**SEED, "metadata": {"name": seed}}, manager="test")
    labels = {"project.gardener.cloud/name": "local", "gardener.cloud/role": "project"}
    await admin.patch(resources.NAMESPACE, NAMESPACE, None, {"metadata": {"labels": labels}})
    project = await admin.apply(
        {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "kind": "Project",
            "metadata": {"name": "local"},
            "spec": {"namespace": NAMESPACE},
        },
        manager="test",
    )
    patch = {"spec": {"credentialsBindingName": bound, "secretBindingName": None, "seedName": seed}}
    await admin.patch(resources.SHOOT, "demo", NAMESPACE, patch)
    status = {"status": {"seedName": seed, "technicalID": "shoot--local--demo"}}
    shoot = await admin.patch(resources.SHOOT, "demo", NAMESPACE, status, subresource="status")
    return Objects(made, project, shoot)


async def replace(admin: KubeClient, wanted: Object) -> Object:
    """Create an object whose fields are immutable in place of an earlier one."""
    metadata = wanted["metadata"]
    resource = resources.resource_of(wanted["apiVersion"], wanted["kind"])
    with contextlib.suppress(NotFound):
        await admin.delete(resource, metadata["name"], metadata["namespace"])
    return await admin.create(wanted)

"""The namespace of a Seed in the garden, with copies of the Secrets that every seed needs.

Source: spec/api-core.md 12, "Seed main". Not as in Gardener: Secrets with the credentials of domains are not copied.
A seed gets those of the domains that its Seed names, if an operator has labelled them for it.
"""

from collections.abc import Iterable

from temporalio.exceptions import ApplicationError

from api import resources
from api.constants import GARDEN_NAMESPACE, ROLE, ROLE_SEED
from api.decisions.seeds import ingress_domain_of, is_copied
from api.names import seed_namespace
from kube.client import KubeClient, Object
from kube.objects import owner_reference

MANAGER = "gardener-controller-manager"


async def deploy_namespace(garden: KubeClient, seed: Object) -> None:
    """Create or update the namespace of a Seed.

    Raises:
        ApplicationError: ``ForeignNamespace`` if a namespace of that name exists that does not belong to this Seed.
    """
    name, uid = seed["metadata"]["name"], seed["metadata"]["uid"]
    live = await garden.find(resources.NAMESPACE, seed_namespace(name))
    if live is not None and not belongs_to(live, uid):
        raise ApplicationError(
            f"namespace {seed_namespace(name)} of the garden exists, and does not belong to Seed {name}: delete it, "
            "or give the Seed another name",
            type="ForeignNamespace",
        )
    if live is not None and "deletionTimestamp" in live["metadata"]:
        raise ApplicationError(f"namespace {seed_namespace(name)} of the garden is being deleted", type="NotReady")
    metadata = {
        "name": seed_namespace(name),
        "labels": {ROLE: ROLE_SEED},
        "ownerReferences": [owner_reference(resources.SEED, name, uid)],
    }
    await garden.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, manager=MANAGER, live=live)


async def copy_secrets(garden: KubeClient, seed: Object, sources: Iterable[Object]) -> None:
    """Copy Secrets of namespace ``garden`` into the namespace of a Seed, and delete copies whose source is gone."""
    namespace, domain = seed_namespace(seed["metadata"]["name"]), ingress_domain_of(seed)
    copies = {each["metadata"]["name"]: each for each in await garden.list(resources.SECRET, namespace, labels=ROLE)}
    for source in (each for each in sources if is_copied(each, domain)):
        name = source["metadata"]["name"]
        wanted = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace, "labels": {ROLE: source["metadata"]["labels"][ROLE]}},
            "type": source.get("type", "Opaque"),
            "data": source.get("data") or {},
        }
        await garden.apply(wanted, manager=MANAGER, live=copies.pop(name, None))
    for name, copy in copies.items():
        await garden.delete(resources.SECRET, name, namespace, uid=copy["metadata"]["uid"])


async def secrets_of_garden(garden: KubeClient) -> list[Object]:
    """Secrets of namespace ``garden`` that have a role."""
    return await garden.list(resources.SECRET, GARDEN_NAMESPACE, labels=ROLE)


def belongs_to(namespace: Object, uid: str) -> bool:
    """Whether a namespace was created for the Seed with this uid."""
    owners = namespace["metadata"].get("ownerReferences") or ()
    return any(each["kind"] == resources.SEED.kind and each["uid"] == uid for each in owners)

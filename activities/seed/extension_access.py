"""Rights of extensions in a seed: a role of their own in each control plane, and single Secrets of namespace garden.

An extension brings a ClusterRole with label ``constants.EXTENSION_ROLE`` and annotation
``constants.EXTENSION_SERVICE_ACCOUNT``. The gardenlet binds the ClusterRole in each namespace of a control plane, and
the RoleBinding ends with the namespace. The label gives no identity more rights than it has: RBAC lets an identity
write a ClusterRole only if it holds the rights of that ClusterRole in the whole cluster. An extension without such a
ClusterRole has the rights of its own bindings.

Names of shared Secrets are computed from the garden's objects. ``spec.secretRef`` of an extension object does not
count: the extension may change it, and could name any Secret of namespace garden.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from activities.clusters import Clusters
from activities.components import base
from activities.components.base import Manifest
from activities.garden.credentials import seed_credentials
from activities.seed.extension_objects import MANAGER
from api import resources
from api.constants import EXTENSION_ROLE, EXTENSION_SERVICE_ACCOUNT, GARDEN_NAMESPACE
from api.decisions.registrations import responsible
from api.resources import Object
from kube.cache import Cache

log = logging.getLogger(__name__)

BACKUP_SECRET = "backup-bucket"
INGRESS_DNS_SECRET = "dnsrecord-seed-ingress"
_GENERATED_BUCKET_SECRET = "generated-bucket-{}"
"""The provider's Secret for a bucket, by the bucket's name, which is the uid of the Seed."""
_BINDING = "extension:{}"
_SHARED = "extension-secret:{}"
_SYNC_SECONDS = 30.0
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_ACCOUNT = re.compile(rf"(?P<namespace>{_NAME})/(?P<name>{_NAME})")


@dataclass(frozen=True)
class ControlPlaneRole:
    """A ClusterRole that an extension has in control planes."""

    name: str
    extension: str
    """Name of the extension's ControllerRegistration."""
    account: tuple[str, str]
    """Name and namespace of the extension's ServiceAccount."""

    def binding(self, namespace: str) -> Manifest:
        """RoleBinding in a control plane. Its name contains the role's name: a RoleBinding cannot change its role."""
        subjects, name = [base.account(*self.account)], _BINDING.format(self.name)
        made = base.binding(name, subjects, cluster_role=self.name, namespace=namespace)
        made["metadata"]["labels"] = {EXTENSION_ROLE: self.extension}
        return made


def control_plane_roles(cluster_roles: Iterable[Mapping[str, Any]]) -> list[ControlPlaneRole]:
    """The roles of extensions, sorted by name; a ClusterRole that names no ServiceAccount is logged and left out."""
    roles = []
    for each in sorted(cluster_roles, key=lambda each: str(each["metadata"]["name"])):
        metadata = each["metadata"]
        account = (metadata.get("annotations") or {}).get(EXTENSION_SERVICE_ACCOUNT, "")
        if found := _ACCOUNT.fullmatch(account):
            extension = metadata["labels"][EXTENSION_ROLE]
            roles.append(ControlPlaneRole(metadata["name"], extension, (found["name"], found["namespace"])))
        else:
            log.warning(
                "ClusterRole %s is not bound in control planes: its annotation %s must be <namespace>/<name> of a "
                "ServiceAccount, and is %r",
                metadata["name"],
                EXTENSION_SERVICE_ACCOUNT,
                account,
            )
    return roles


@dataclass(frozen=True)
class SharedSecret:
    """A Secret of namespace garden that extension objects name."""

    name: str
    pairs: frozenset[tuple[str, str]]
    """Kinds and types of these objects: the extensions that serve them may read the Secret."""
    generated: str = ""
    """Secret that the extension writes for such an object, in the same namespace."""

    @property
    def rules(self) -> list[Manifest]:
        rules = [base.rule("core", "secrets", "get", [self.name])]
        if self.generated:
            rules.append(base.rule("core", "secrets", "get create patch update delete", [self.generated]))
        return rules


def shared_by_seed(seed: Mapping[str, Any]) -> list[SharedSecret]:
    """The Secrets that the extension objects of a Seed itself name, whether these objects exist yet or not."""
    shared = []
    if seed["spec"].get("ingress"):
        type_ = seed["spec"]["dns"]["provider"]["type"]
        shared.append(SharedSecret(INGRESS_DNS_SECRET, frozenset({("DNSRecord", type_)})))
    if backup := seed["spec"].get("backup"):
        pairs = frozenset((kind, backup["provider"]) for kind in ("BackupBucket", "BackupEntry"))
        generated = _GENERATED_BUCKET_SECRET.format(seed["metadata"]["uid"])
        shared.append(SharedSecret(BACKUP_SECRET, pairs, generated))
    return shared


def shared_by_source(entry_name: str, bucket: Mapping[str, Any]) -> SharedSecret:
    """The Secret of a BackupEntry for the bucket that a control plane has left.

    ``bucket``: the garden's BackupBucket.
    """
    return SharedSecret(entry_name, frozenset({("BackupEntry", bucket["spec"]["provider"]["type"])}))


class ExtensionAccess:
    """Gives extensions their rights. Each method may run twice: the second run finds the objects of the first one."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @property
    def roles(self) -> Cache:
        """ClusterRoles that extensions have in control planes."""
        return self._clusters.seed_caches.of(resources.CLUSTER_ROLE, labels=EXTENSION_ROLE)

    @property
    def bindings(self) -> Cache:
        """RoleBindings of these roles in all control planes."""
        return self._clusters.seed_caches.of(resources.ROLE_BINDING, labels=EXTENSION_ROLE)

    async def bind(self, namespace: str) -> None:
        """Bind all roles of extensions in a control plane, and delete the bindings of roles that are gone."""
        bindings, seed = self.bindings, self._clusters.seed
        wanted = [each.binding(namespace) for each in await self._control_plane_roles()]
        await bindings.synced(_SYNC_SECONDS)
        for each in wanted:
            await seed.apply(each, manager=MANAGER, live=bindings.get(each["metadata"]["name"], namespace))
        names = {each["metadata"]["name"] for each in wanted}
        for found in bindings.list(namespace):
            name, uid = found["metadata"]["name"], found["metadata"]["uid"]
            if name not in names and name.startswith(_BINDING.format("")):
                await seed.delete(resources.ROLE_BINDING, name, namespace, uid=uid)

    async def share(self, secret: SharedSecret) -> None:
        """Let the extensions that serve ``secret.pairs`` use the Secret, and no other extension."""
        offered = responsible(await self._clusters.garden.list(resources.CONTROLLER_REGISTRATION))
        extensions = {offered[pair] for pair in secret.pairs if pair in offered}
        roles = await self._control_plane_roles()
        accounts = sorted({each.account for each in roles if each.extension in extensions})
        if not accounts:
            await self.unshare(secret.name)
            return
        name, seed = _SHARED.format(secret.name), self._clusters.seed
        subjects = [base.account(*each) for each in accounts]
        await seed.apply(base.role(name, GARDEN_NAMESPACE, secret.rules), manager=MANAGER)
        await seed.apply(base.binding(name, subjects, role=name, namespace=GARDEN_NAMESPACE), manager=MANAGER)

    async def hand_over(self, seed: Mapping[str, Any], name: str, reference: Mapping[str, Any]) -> Object:
        """Copy a Secret of the garden into the seed's namespace ``garden``, and let the responsible extensions read it.

        ``seed``: the Seed, whose extension objects name the copy. A second run writes the same. Raises NotFound if the
        garden has no such Secret.
        """
        source = await seed_credentials(self._clusters.garden, self._clusters.seed_name, reference)
        metadata = {"name": name, "namespace": GARDEN_NAMESPACE}
        copy = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
        made = await self._clusters.seed.apply({**copy, "data": source.get("data") or {}}, manager=MANAGER)
        for each in shared_by_seed(seed):
            if each.name == name:
                await self.share(each)
        return made

    async def unshare(self, secret_name: str) -> None:
        """Revoke the rights of all extensions on a Secret."""
        for kind in (resources.ROLE_BINDING, resources.ROLE):
            await self._clusters.seed.delete(kind, _SHARED.format(secret_name), GARDEN_NAMESPACE)

    async def _control_plane_roles(self) -> list[ControlPlaneRole]:
        roles = self.roles
        await roles.synced(_SYNC_SECONDS)
        return control_plane_roles(roles.list())

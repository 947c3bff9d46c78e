"""Creates the Bastions of this seed's Shoots in the cloud, and writes their addresses into the garden.

For each Bastion of the garden, the gardenlet creates an extension object Bastion in the namespace of the Shoot's
control plane. An extension creates the host for that object. The gardenlet stores nothing, and no step waits: each
reconciliation compares the two objects (docs/decisions/0011). The garden decides when a Bastion is to be deleted
(``workers.controller_manager.bastions``). Source: spec/extensions.md 3, "Bastion".
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from activities.clusters import Clusters
from activities.seed import extension_objects as extension
from activities.seed.extension_objects import ExtensionObject
from activities.seed.namespace import is_foreign
from api import constants, resources
from api.decisions import ssh
from api.decisions.conditions import Finding, Operation, merge
from api.labels import is_true
from api.times import micro_timestamp
from kube.cache import Key, key_of
from kube.client import WatchEvent
from kube.controller import Controller, TryAgain
from kube.errors import Conflict, Forbidden, NotFound

Object = dict[str, Any]

_IN_THE_WAY_SECONDS = 5.0
_ADDRESSES = ("ip", "hostname")
_SETTLED = Operation("Reconcile", "Succeeded")
"""No operation is in progress, so failed checks are not shown as Progressing."""


class BastionController:
    """Reconciles the garden's Bastions for Shoots of this seed. One per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        ours = f"spec.seedName={clusters.seed_name}"
        self._bastions = clusters.garden_caches.of(resources.OPERATIONS_BASTION, fields=ours)
        self._hosts = clusters.seed_caches.of(resources.BASTION)
        self._namespaces = clusters.seed_caches.of(resources.NAMESPACE)

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(self._bastions.synced(), self._hosts.synced(), self._namespaces.synced())
        controller = Controller("bastions", self._reconcile, workers=2)
        controller.watch(self._bastions)
        controller.watch(self._hosts, keys=self._ordered_by)
        await controller.run()

    def _ordered_by(self, event: WatchEvent) -> Iterable[Key]:
        uid = _made_for(event.object)
        return [key_of(each) for each in self._bastions.list() if each["metadata"]["uid"] == uid]

    async def _reconcile(self, key: Key) -> None:
        bastion = self._bastions.get(key.name, key.namespace)
        if bastion is None:
            return
        if "deletionTimestamp" in bastion["metadata"]:
            await self._take_down(bastion)
            return
        # From the API server: a cache may not show the Bastion's Shoot yet, and nothing would requeue the Bastion.
        shoot = await self._clusters.garden.find(resources.SHOOT, bastion["spec"]["shootRef"]["name"], key.namespace)
        if shoot is None or "deletionTimestamp" in shoot["metadata"] or not ssh.has_access(shoot):
            return  # the garden is about to delete this Bastion
        status = shoot.get("status") or {}
        if status.get("seedName") != self._clusters.seed_name:
            raise TryAgain("its Shoot has no control plane here yet", after=_IN_THE_WAY_SECONDS)
        if is_foreign(self._namespaces, shoot):
            raise TryAgain("the namespace that its Shoot names belongs to another Shoot", after=_IN_THE_WAY_SECONDS)
        await self._put_up(bastion, status["technicalID"])

    async def _put_up(self, bastion: Object, namespace: str) -> None:
        await self._hold(bastion)
        name, spec = bastion["metadata"]["name"], bastion["spec"]
        # From the API server: a cache may not show yet the object that was just created, and it would be created again.
        live = await self._clusters.seed.find(resources.BASTION, name, namespace)
        if live is not None and _made_for(live) != bastion["metadata"]["uid"]:
            # It belongs to a deleted Bastion of the same name. It has another SSH key, and its label does not hold this
            # Bastion's uid, so it would not be deleted with this Bastion.
            await self._delete(live, given_up=False)
            raise TryAgain("one of the same name, made for another, has to go first", after=_IN_THE_WAY_SECONDS)
        if live is not None and "deletionTimestamp" in live["metadata"]:
            return  # the end of that object requeues this Bastion
        if live is not None and live["spec"]["ingress"] == spec["ingress"]:
            await self._tell(bastion, _found(live), live)
            return
        # A host keeps the user data that it was created with, also if this version would create it with others.
        user_data = live["spec"]["userData"] if live is not None else ssh.user_data(spec["sshPublicKey"])
        ordered = {"type": spec["providerType"], "userData": user_data, "ingress": spec["ingress"]}
        labels = {constants.BASTION_UID: bastion["metadata"]["uid"]}
        wanted = ExtensionObject(resources.BASTION, name, namespace, ordered, labels)
        await extension.apply_extension(self._clusters.seed, wanted, micro_timestamp())

    async def _take_down(self, bastion: Object) -> None:
        metadata, seed = bastion["metadata"], self._clusters.seed
        if constants.FINALIZER not in (metadata.get("finalizers") or ()):
            return
        # From the API server, and by the uid, which is known although the Shoot is gone: a host that is missed here
        # would never be deleted.
        hosts = await seed.list(resources.BASTION, labels=f"{constants.BASTION_UID}={metadata['uid']}")
        if not hosts:
            left = [each for each in metadata["finalizers"] if each != constants.FINALIZER]
            await self._change(bastion, finalizers=left)
            return
        given_up = is_true((metadata.get("annotations") or {}).get(constants.CONFIRMATION_FORCE_DELETION))
        for host in hosts:
            await self._delete(host, given_up=given_up)
            await self._tell(bastion, _going(host))

    async def _delete(self, host: Object, *, given_up: bool) -> None:
        """Annotate and delete a host, each once.

        A new annotation in each reconciliation would make the host's controller write, and its write would requeue the
        Bastion.
        """
        metadata, seed = host["metadata"], self._clusters.seed
        annotation = constants.CONFIRMATION_FORCE_DELETION
        if given_up and (metadata.get("annotations") or {}).get(annotation) != "true":
            change = {"metadata": {"annotations": {annotation: "true"}}}
            try:
                await seed.patch(resources.BASTION, metadata["name"], metadata["namespace"], change)
            except NotFound:
                return
        if "deletionTimestamp" not in metadata:
            place = metadata["name"], metadata["namespace"]
            await extension.delete_extension(seed, resources.BASTION, *place, micro_timestamp())

    async def _hold(self, bastion: Object) -> None:
        """Add our finalizer, before anything is created that a deleted Bastion would leave behind."""
        finalizers = bastion["metadata"].get("finalizers") or []
        if constants.FINALIZER not in finalizers:
            await self._change(bastion, finalizers=[*finalizers, constants.FINALIZER])

    async def _change(self, bastion: Object, **metadata: Any) -> None:
        known = bastion["metadata"]
        patch = {"metadata": {**metadata, "resourceVersion": known["resourceVersion"]}}
        try:
            await self._clusters.garden.patch(resources.OPERATIONS_BASTION, known["name"], known["namespace"], patch)
        except (Conflict, Forbidden, NotFound):
            raise TryAgain("it has changed meanwhile", after=0.2) from None

    async def _tell(self, bastion: Object, finding: Finding, ready: Object | None = None) -> None:
        """Write the finding into the Bastion's status, if it is new.

        The garden writes other fields of the same status; these stay as they are.
        """
        metadata, status = bastion["metadata"], bastion.get("status") or {}
        known = status.get("conditions") or []
        told: dict[str, Any] = {"conditions": merge(known, [finding], _SETTLED, {}, datetime.now(UTC))}
        if ready is not None and finding.status == "True":
            ingress = (ready.get("status") or {}).get("ingress") or {}
            told["ingress"] = {each: ingress[each] for each in _ADDRESSES if ingress.get(each)}
            told["observedGeneration"] = metadata["generation"]
        if all(status.get(field) == value for field, value in told.items()):
            return
        if "ingress" in told:  # a field that the patch does not name would stay
            told["ingress"] = dict.fromkeys(_ADDRESSES) | told["ingress"]
        place = resources.OPERATIONS_BASTION, metadata["name"], metadata["namespace"]
        try:
            await self._clusters.garden.patch(*place, {"status": told}, subresource="status")
        except (Forbidden, NotFound):  # the Bastion is gone, so the gardenlet may not write to it any more
            return


def _made_for(host: Mapping[str, Any]) -> str | None:
    """uid of the garden's Bastion that a host was created for."""
    return (host["metadata"].get("labels") or {}).get(constants.BASTION_UID)


def _found(host: Mapping[str, Any]) -> Finding:
    fault = extension.fault_of(host)
    if fault is None:
        return Finding(
            constants.CONDITION_BASTION_READY,
            "True",
            "SuccessfullyReconciled",
            "The bastion has been reconciled successfully.",
        )
    if error := (host.get("status") or {}).get("lastError"):
        codes = tuple(error.get("codes") or ())
        return Finding(constants.CONDITION_BASTION_READY, "False", "FailedReconciling", fault, codes)
    return Finding(constants.CONDITION_BASTION_READY, "Progressing", "Reconciling", fault)


def _going(host: Mapping[str, Any]) -> Finding:
    text, codes = "The bastion is being deleted", ()
    error = (host.get("status") or {}).get("lastError")
    if error and "deletionTimestamp" in host["metadata"]:
        text = f"{text}: its controller reports: {error['description']}"
        codes = tuple(error.get("codes") or ())
    return Finding(constants.CONDITION_BASTION_READY, "False", "DeletionInProgress", text, codes)

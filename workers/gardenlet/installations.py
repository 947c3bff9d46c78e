"""Installs extensions into the seed: the charts of the ControllerInstallations that name it.

Helm's own engine renders the chart of a ControllerInstallation's ControllerDeployment, and the seed's resource manager
applies the objects: they are one ManagedResource of class ``seed`` in namespace ``garden``, which has the name of the
ControllerInstallation. The extension's own namespace is ``extension-<name>``. The garden decides which
ControllerInstallations there are. Source: spec/extensions.md 1.8.
"""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import brotli

from activities.clusters import Clusters
from activities.components.managed_resource import managed_resource, managed_resource_parts
from activities.managed_resources import secrets_checksum
from api import resources
from api.constants import GARDEN_NAMESPACE
from api.decisions import extension_charts as charts
from api.decisions.conditions import Finding, Operation, find_condition, merge
from api.decisions.controller_deployments import REFERABLE
from api.images import OWN_VERSION
from api.names import seed_namespace
from api.resources import UnknownKind
from kube.cache import Key
from kube.client import Object, WatchEvent
from kube.controller import Controller, TryAgain
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from kube.finalizers import ensure_finalizer, has_finalizer, remove_finalizer
from workers.gardenlet import feature_gates
from workers.gardenlet.charts import Chart, ChartError, Rendered, reference_of, rendered, secret_text
from workers.gardenlet.garden_caches import own_seed
from workers.lib import resource_names as names

log = logging.getLogger(__name__)

GARDEN_TOKENS = f"{names.PURPOSE}={names.PURPOSE_TOKEN_REQUESTOR},{names.CLASS}={GARDEN_NAMESPACE}"
"""Selector of the Secrets of a seed with tokens for the garden."""
_MANAGER = "gardenlet"
_SEED_CLASS = "seed"
_SETTLED = Operation("Reconcile", "Succeeded")
"""No operation is in progress, so failed checks are not shown as Progressing."""
_PLAIN_BYTES = 700_000
"""Manifests beyond this size are compressed: a Secret holds 1 MiB at most."""
_WORKERS = 2
"""Number of charts that are rendered at the same time; each takes a processor and 70 MB for a second."""
_GOING_SECONDS = 1.0


@dataclass(frozen=True)
class _Made:
    """Objects of a rendered chart, and a digest of all that they were rendered from."""

    of: str
    objects: tuple[Object, ...]
    hooks: tuple[str, ...]


class InstallationController:
    """Reconciles the ControllerInstallations of this seed. One per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        ours = f"spec.seedRef.name={clusters.seed_name}"
        self._installations = clusters.garden_caches.of(resources.CONTROLLER_INSTALLATION, fields=ours)
        self._seeds = own_seed(clusters)
        self._managed = clusters.seed_caches.of(resources.MANAGED_RESOURCE)
        self._made: dict[str, _Made] = {}
        """By uid of the ControllerInstallation."""

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(self._installations.synced(), self._seeds.synced(), self._managed.synced())
        controller = Controller("installations of extensions", self._reconcile, workers=_WORKERS, longest_delay=60.0)
        controller.watch(self._installations)
        controller.watch(self._managed, keys=self._installed_by)
        await controller.run()

    def _installed_by(self, event: WatchEvent) -> Iterable[Key]:
        name = (event.object["metadata"].get("labels") or {}).get(charts.INSTALLATION_LABEL)
        return (Key(None, name),) if name else ()

    async def _reconcile(self, key: Key) -> None:
        installation, seed = self._installations.get(key.name), self._seeds.get(self._clusters.seed_name)
        if installation is None:
            return
        if "deletionTimestamp" in installation["metadata"]:
            await self._remove(installation)
            return
        if seed is None:
            raise TryAgain("its Seed is not registered yet")
        try:
            made = await self._render(installation, seed)
        except ChartError as error:
            await self._tell(installation, [Finding(charts.VALID, "False", error.reason, str(error))])
            raise TryAgain(f"{error.reason}: {error}") from None
        if made is None:
            return
        installation = await ensure_finalizer(
            self._clusters.garden, resources.CONTROLLER_INSTALLATION, installation, charts.FINALIZER
        )
        text = "The chart could be rendered successfully."
        if made.hooks:
            text += f" Hooks of Helm are not run: {', '.join(made.hooks)}."
        valid = Finding(charts.VALID, "True", "RegistrationValid", text)
        try:
            checksum = await self._apply(installation, made.objects)
        except ApiError as error:
            if not find_condition(installation, charts.INSTALLED):
                await self._tell(installation, [valid, *charts.not_installed("InstallationPending", str(error))])
            raise
        live = await self._clusters.seed.get(resources.MANAGED_RESOURCE, key.name, GARDEN_NAMESPACE)
        await self._tell(installation, [valid, *charts.state_of(live, checksum)])

    # What is installed

    async def _render(self, installation: Object, seed: Object) -> _Made | None:
        """The objects of the chart as it is now; None if it is not for this gardenlet. Raises ChartError, ApiError.

        A chart is rendered again only if something has changed that it depends on. So the tag of a chart in a registry
        is read once, and a new version needs a new tag or digest.
        """
        garden, name = self._clusters.garden, installation["metadata"]["name"]
        reference = installation["spec"].get("deploymentRef")
        if not reference:
            raise ChartError("ChartInformationInvalid", "spec.deploymentRef names no ControllerDeployment")
        deployment = await garden.find(resources.CONTROLLER_DEPLOYMENT, reference["name"])
        if deployment is None:
            raise ChartError("ChartInformationInvalid", f"ControllerDeployment {reference['name']} does not exist")
        helm = deployment.get("helm")
        if helm is None:
            return None  # a ControllerDeployment of another type is for another controller
        access = self._access(name)
        values = charts.values(
            helm.get("values") or {},
            seed,
            version=OWN_VERSION,
            garden_identity=await self._garden_identity(),
            generic_kubeconfig=access["metadata"]["name"],
            feature_gates=feature_gates.values(),
        )
        repository = helm.get("ociRepository") or {}
        chart = Chart(
            release=installation["spec"]["registrationRef"]["name"],
            namespace=charts.namespace_of(name),
            values=values,
            raw=helm.get("rawChart") or "",
            reference=reference_of(repository),
            credentials=await secret_text(garden, repository.get("pullSecretRef"), ".dockerconfigjson"),
            authorities=await secret_text(garden, repository.get("caBundleSecretRef"), "bundle.crt"),
            resources=await self._named(deployment),
        )
        inject = bool(deployment.get("injectGardenKubeconfig"))
        uid, digest = installation["metadata"]["uid"], _digest([chart.request, inject, access])
        made = self._made.get(uid)
        if made is None or made.of != digest:
            found = await rendered(chart)
            made = await self._completed(found, name, digest, access if inject else None)
            self._made[uid] = made
        return made

    async def _completed(self, found: Rendered, name: str, digest: str, access: Object | None) -> _Made:
        """The objects of a rendered chart as they are applied."""
        hooks = list(charts.hooks(found.objects))
        specs = [each["spec"] for each in found.definitions]
        definitions = {each["names"]["kind"]: each["scope"] == "Namespaced" for each in specs}
        objects = [_kept(each) for each in found.definitions]
        for each in found.objects:
            if each in hooks:
                continue
            placed = await self._placed(each, charts.namespace_of(name), definitions)
            if access is not None:
                placed = charts.with_garden_access(placed, access["metadata"]["name"], self._clusters.seed_name)
            objects.append(placed)
        without = charts.accounts_without_token(objects)
        objects = [charts.with_api_access(each, without) for each in objects]
        if access is not None:
            objects.append(access)
        named = (
            f"{each['kind']} {each['metadata']['name']}"
            for each in hooks
            if not each["metadata"]["annotations"][charts.HOOK].startswith("test")
        )
        return _Made(digest, tuple(objects), tuple(sorted(named)))

    async def _placed(self, obj: Object, namespace: str, definitions: dict[str, bool]) -> Object:
        """The object with a namespace, if it must have one and the chart gives it none, as Helm does."""
        if obj["metadata"].get("namespace"):
            return obj
        namespaced = definitions.get(obj["kind"])
        if namespaced is None:
            try:
                namespaced = (await self._clusters.seed.resource_for(obj["apiVersion"], obj["kind"])).namespaced
            except (NotFound, UnknownKind):
                # The resource manager tells in its condition that the seed does not know the kind.
                namespaced = False
        return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}} if namespaced else obj

    def _access(self, name: str) -> Object:
        endpoint = self._clusters.garden.endpoint
        return charts.generic_kubeconfig(name, endpoint.server, endpoint.ca or "")

    async def _garden_identity(self) -> str:
        found = await self._clusters.garden.find(resources.CONFIG_MAP, "cluster-identity", "kube-system")
        return str(((found or {}).get("data") or {}).get("cluster-identity") or "")

    async def _named(self, deployment: Object) -> dict[str, Any]:
        """Data of the objects that templates in the values may name. Raises ChartError."""
        found: dict[str, Any] = {}
        for each in deployment.get("resources") or ():
            reference = each["resourceRef"]
            kind = REFERABLE[reference["kind"]]
            obj = await self._clusters.garden.find(kind, reference["name"], GARDEN_NAMESPACE)
            if obj is None:
                raise ChartError("ChartInformationInvalid", f"{kind.kind} garden/{reference['name']} does not exist")
            found[each["name"]] = {"data": obj.get("data") or {}}
        return found

    async def _apply(self, installation: Object, objects: Iterable[Object]) -> str:
        """Apply namespace, access and ManagedResource; returns the checksum of the manifests' Secret."""
        seed, name = self._clusters.seed, installation["metadata"]["name"]
        await seed.apply(charts.namespace(installation), manager=_MANAGER)
        await seed.apply(charts.access_secret(name, self._clusters.seed_name), manager=_MANAGER)
        labels = {charts.INSTALLATION_LABEL: name}
        secret, managed = managed_resource(name, GARDEN_NAMESPACE, objects, clazz=_SEED_CLASS, labels=labels)
        if sum(map(len, secret["data"].values())) > _PLAIN_BYTES:
            manifests = b"\n---\n".join(base64.b64decode(each) for each in secret["data"].values())
            secret["data"] = {"manifests.yaml.br": base64.b64encode(brotli.compress(manifests)).decode()}
        for each in (secret, managed):
            await seed.apply(each, manager=_MANAGER)
        return secrets_checksum([secret])

    # The end

    async def _remove(self, installation: Object) -> None:
        """Delete the extension: first its objects, by the resource manager, then its namespace."""
        self._made.pop(installation["metadata"]["uid"], None)
        if not has_finalizer(installation, charts.FINALIZER):
            return
        name, seed = installation["metadata"]["name"], self._clusters.seed
        for kind, part in managed_resource_parts(name):
            await seed.delete(kind, part, GARDEN_NAMESPACE)
        namespace = charts.namespace_of(name)
        left = ""
        if await seed.find(resources.MANAGED_RESOURCE, name, GARDEN_NAMESPACE) is not None:
            left = f"ManagedResource {name} is being deleted"
        elif await seed.delete(resources.NAMESPACE, namespace) and await seed.find(resources.NAMESPACE, namespace):
            left = f"namespace {namespace} is being deleted"
        if left:
            await self._tell(installation, charts.not_installed("DeletionPending", f"{left}."))
            raise TryAgain(left, after=_GOING_SECONDS)
        place = seed_namespace(self._clusters.seed_name)
        await self._clusters.garden.delete(resources.SERVICE_ACCOUNT, charts.account_of(name), place)
        await remove_finalizer(self._clusters.garden, resources.CONTROLLER_INSTALLATION, installation, charts.FINALIZER)

    async def _tell(self, installation: Object, findings: Iterable[Finding]) -> None:
        """Write conditions that have changed. Others write further conditions of the same object."""
        known = (installation.get("status") or {}).get("conditions") or []
        conditions = merge(known, findings, _SETTLED, {}, datetime.now(UTC))
        if conditions == known:
            return
        change = {"status": {"conditions": conditions}}
        await patch_as_read(
            self._clusters.garden, resources.CONTROLLER_INSTALLATION, installation, change, subresource="status"
        )


def _kept(definition: Object) -> Object:
    """A CustomResourceDefinition that stays when the extension is removed: its end would delete all its objects."""
    metadata = definition["metadata"]
    annotations = {**(metadata.get("annotations") or {}), names.KEEP_OBJECT: "true"}
    return {**definition, "metadata": {**metadata, "annotations": annotations}}


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

"""Upgrades the gardenlet itself: deploys the chart that the Gardenlet of its seed names.

The values of the chart are those of the installation by Helm, which the chart keeps in ConfigMap ``gardenlet-values``,
with the Gardenlet's ``deployment`` and ``config`` merged over them. So the Secrets with the access to the garden, to
Temporal and to the keys stay the ones of the installation. Nothing is applied unless the whole chart can be rendered,
and the Deployment keeps its present pods until new ones are ready. The deletion of a Gardenlet ends the upgrades and
changes nothing else. Source: Gardener docs/concepts/gardenlet.md, "Gardenlet controller"; spec/api-core.md 8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from activities.clusters import Clusters
from activities.seed.rollout import pod_failures, rollout_fault
from api import images, resources
from api.constants import (
    GARDEN_NAMESPACE,
    OPERATION,
    OPERATION_FORCE_REDEPLOY,
    OPERATION_RECONCILE,
    OPERATION_RENEW_KUBECONFIG,
)
from api.decisions.conditions import find_condition, set_conditions
from api.decisions.extension_charts import hooks
from api.decisions.managed_seeds import changes
from api.resources import UnknownKind
from api.times import timestamp
from kube.cache import Key
from kube.client import Object
from kube.controller import Controller, Requeue, TryAgain
from kube.edit import patch_as_read
from kube.errors import ApiError, NotFound
from workers.gardenlet import child_gardenlet
from workers.gardenlet.charts import Chart, ChartError, Rendered, reference_of, rendered, secret_text
from workers.gardenlet.config import GardenletConfig

log = logging.getLogger(__name__)

RECONCILED = "GardenletReconciled"
"""Condition of a Gardenlet."""
VALUES = "gardenlet-values"
"""ConfigMap with the values of the installation by Helm, and the defaults of its chart."""
_MANAGER = "gardenlet"
_SYNC_SECONDS = 600.0
"""Period in which the deployed objects are compared again, so that an object that a user deleted comes back."""
_RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""Annotation of pods: another value replaces all of them, one after the other."""
_INSTANCE = "app.kubernetes.io/instance"
"""Label with the name of the release, which is part of the Deployment's immutable selector."""


class _Refused(Exception):
    """The Gardenlet cannot be deployed: reason and message of its condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SelfUpgrade:
    """Reconciles the Gardenlet of this seed. One replica of the gardenlet runs it."""

    def __init__(self, clusters: Clusters, config: GardenletConfig) -> None:
        self._clusters = clusters
        self._config = config
        self._namespace = config.leader_election.resource_namespace
        own = f"metadata.name={clusters.seed_name}"
        self._gardenlets = clusters.garden_caches.of(resources.GARDENLET, GARDEN_NAMESPACE, fields=own)
        self._deployment = clusters.seed_caches.of(
            resources.DEPLOYMENT, self._namespace, fields=f"metadata.name={child_gardenlet.NAME}"
        )
        self._rendered: tuple[Object, Rendered] | None = None
        """The last chart, as it was requested, and its objects."""

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.gather(self._gardenlets.synced(), self._deployment.synced())
        ours = Key(GARDEN_NAMESPACE, self._clusters.seed_name)
        controller = Controller("self-upgrade", self._reconcile, workers=1, longest_delay=60.0)
        controller.watch(self._gardenlets)
        controller.watch(self._deployment, keys=lambda _: (ours,))
        await controller.run()

    async def _reconcile(self, key: Key) -> Requeue | None:
        gardenlet = self._gardenlets.get(key.name, key.namespace)
        if gardenlet is not None and _operation(gardenlet):
            # The cache may still hold a request that has been answered.
            gardenlet = await self._clusters.garden.find(resources.GARDENLET, key.name, key.namespace)
        if gardenlet is None or "deletionTimestamp" in gardenlet["metadata"]:
            return None
        asked = _operation(gardenlet)
        if asked == OPERATION_RENEW_KUBECONFIG:
            request = {"metadata": {"annotations": {OPERATION: OPERATION_RENEW_KUBECONFIG}}}
            await self._clusters.garden.patch(resources.SEED, key.name, None, request)
            await self._answer(gardenlet)
            return None  # the answer is an event
        redeploy = asked == OPERATION_FORCE_REDEPLOY
        try:
            objects = await self._objects(gardenlet, again=redeploy)
            await self._apply(objects, restart=redeploy)
        except _Refused as error:
            await self._tell(gardenlet, "False", error.reason, str(error))
            raise TryAgain(f"{error.reason}: {error}") from None
        except ApiError as error:
            await self._tell(gardenlet, "False", "DeploymentFailed", str(error))
            raise
        if asked in (OPERATION_RECONCILE, OPERATION_FORCE_REDEPLOY):
            await self._answer(gardenlet)
            return None  # the answer is an event
        await self._tell(gardenlet, *await self._rollout(reference_of(_repository(gardenlet))))
        return Requeue(_SYNC_SECONDS)

    async def _rollout(self, reference: str) -> tuple[str, str, str]:
        """Status, reason and message of the condition while the applied Deployment replaces its pods."""
        live = await self._clusters.seed.get(resources.DEPLOYMENT, child_gardenlet.NAME, self._namespace)
        fault = rollout_fault(live)
        if fault is None:
            return "True", "GardenletDeployed", f"the gardenlet of chart {reference} is deployed"
        text = f"Deployment {self._namespace}/{child_gardenlet.NAME} {fault}"
        if failures := await pod_failures(self._clusters.seed, live):
            text += f": {failures}"
        if find_condition(live, "Progressing").get("status") == "False":
            text += "; the present pods go on: correct the Gardenlet"
            return "False", "RolloutFailed", text
        return "Progressing", "RolloutInProgress", text

    # What is deployed

    async def _objects(self, gardenlet: Object, *, again: bool) -> list[Object]:
        """The objects of the chart. Raises _Refused, ApiError.

        The chart is pulled and rendered again if something has changed that it depends on, or if ``again``. So the tag
        of a chart in a registry is read once, unless an operator requests force-redeploy.
        """
        base, release = await self._installation()
        garden, repository = self._clusters.garden, _repository(gardenlet)
        try:
            chart = Chart(
                release=release,
                namespace=self._namespace,
                values=values(gardenlet, base),
                reference=reference_of(repository),
                credentials=await secret_text(garden, repository.get("pullSecretRef"), ".dockerconfigjson"),
                authorities=await secret_text(garden, repository.get("caBundleSecretRef"), "bundle.crt"),
            )
            wanted = {**chart.request, "authorities": chart.authorities}
            if again or self._rendered is None or self._rendered[0] != wanted:
                self._rendered = wanted, await rendered(chart)
        except (ChartError, child_gardenlet.BadConfiguration) as error:
            raise _Refused(getattr(error, "reason", "GardenletInvalid"), str(error)) from None
        found = self._rendered[1]
        skipped = [*hooks(found.objects), *(each for each in found.objects if _is(each, "ConfigMap", VALUES))]
        objects = [*found.definitions, *[await self._placed(each) for each in found.objects if each not in skipped]]
        self._check(objects, base, gardenlet)
        return objects

    async def _installation(self) -> tuple[Object, str]:
        """Values that an operator gave to Helm, and the name of the release. Raises _Refused."""
        found = await self._clusters.seed.find(resources.CONFIG_MAP, VALUES, self._namespace)
        if found is None:
            text = (
                f"there is no ConfigMap {self._namespace}/{VALUES} in the seed: this gardenlet was not installed by "
                "its Helm chart, or by one of an earlier version; run helm upgrade once"
            )
            raise _Refused("NotInstalledByHelm", text)
        given, defaults = (yaml.safe_load(found["data"][f"{name}.yaml"]) or {} for name in ("values", "defaults"))
        # A later chart may have other defaults.
        return changes(given, defaults), str((found["metadata"].get("labels") or {}).get(_INSTANCE) or "gardenlet")

    async def _placed(self, obj: Object) -> Object:
        """The object, in the gardenlet's namespace if it needs one and the chart gives it none. Raises _Refused."""
        if obj["metadata"].get("namespace"):
            return obj
        try:
            kind = await self._clusters.seed.resource_for(obj["apiVersion"], obj["kind"])
        except (NotFound, UnknownKind):
            text = f"the chart has a {obj['kind']} of {obj['apiVersion']}, a kind that the seed does not know"
            raise _Refused("GardenletInvalid", text) from None
        if not kind.namespaced:
            return obj
        return {**obj, "metadata": {**obj["metadata"], "namespace": self._namespace}}

    def _check(self, objects: Iterable[Object], base: Object, gardenlet: Object) -> None:
        """Refuse a chart that is none of a gardenlet, and a configuration that this version would refuse.

        The gardenlet of another version reads its configuration itself: its pods do not get ready if they refuse it.
        """
        deployment = next((each for each in objects if _is(each, "Deployment", child_gardenlet.NAME)), None)
        if deployment is None:
            raise _Refused("GardenletInvalid", f"the chart has no Deployment {child_gardenlet.NAME}")
        [container, *_] = deployment["spec"]["template"]["spec"]["containers"]
        if container.get("image", "").endswith(f":{images.OWN_VERSION}"):
            template = self._config.seed_config.model_dump(by_alias=True)
            try:
                child_gardenlet.check(values(gardenlet, base)["config"], template, "spec.config")
            except child_gardenlet.BadConfiguration as error:
                raise _Refused("GardenletInvalid", str(error)) from None

    # How it is deployed

    async def _apply(self, objects: Iterable[Object], *, restart: bool) -> None:
        """Apply the objects, the Deployment at the end: its new pods need the others. A second run changes nothing,
        except that ``restart`` replaces the pods once more."""
        later = []
        for each in objects:
            if each["kind"] == "Deployment":
                later.append(each)
            else:
                await self._clusters.seed.apply(each, manager=_MANAGER)
        for each in later:
            await self._replace(each, restart=restart)

    async def _replace(self, deployment: Object, *, restart: bool) -> None:
        """Write the whole spec: with server-side apply, volumes and variables of the former chart would stay."""
        metadata, seed = deployment["metadata"], self._clusters.seed
        live = await seed.find(resources.DEPLOYMENT, metadata["name"], metadata["namespace"])
        if live is None:
            await seed.apply(deployment, manager=_MANAGER)
            return
        template = deployment["spec"]["template"]
        annotations = dict(template["metadata"].get("annotations") or {})
        known = (live["spec"]["template"]["metadata"].get("annotations") or {}).get(_RESTARTED)
        if restarted := timestamp(datetime.now(UTC)) if restart else known:
            annotations[_RESTARTED] = restarted
        template = {**template, "metadata": {**template["metadata"], "annotations": annotations}}
        kept: Object = live["metadata"]
        both = {name: {**(kept.get(name) or {}), **(metadata.get(name) or {})} for name in ("labels", "annotations")}
        spec = {**deployment["spec"], "template": template}
        await seed.replace({**live, "metadata": {**kept, **both}, "spec": spec})

    async def _answer(self, gardenlet: Object) -> None:
        """Remove the request that has been carried out."""
        done = {"metadata": {"annotations": {OPERATION: None}}}
        await patch_as_read(self._clusters.garden, resources.GARDENLET, gardenlet, done)

    async def _tell(self, gardenlet: Object, status: str, reason: str, message: str) -> None:
        """Write the condition and the generation that it is about, if they have changed."""
        metadata, known = gardenlet["metadata"], gardenlet.get("status") or {}
        condition = {"type": RECONCILED, "status": status, "reason": reason, "message": message}
        told: Object = {
            "conditions": set_conditions(known.get("conditions") or [], [condition], timestamp(datetime.now(UTC))),
            "observedGeneration": metadata.get("generation"),
        }
        if any(known.get(field) != value for field, value in told.items()):
            place = resources.GARDENLET, metadata["name"], metadata["namespace"]
            await self._clusters.garden.patch(*place, {"status": told}, subresource="status")


def values(gardenlet: Mapping[str, Any], base: Mapping[str, Any]) -> Object:
    """Values of the chart: those of the installation, with the Gardenlet's over them. Raises BadConfiguration.

    The image belongs to the chart: its tag is the version of the chart, unless the Gardenlet names another image.
    """
    spec = gardenlet["spec"]
    deployment = spec["deployment"]
    known = base.get("image") or {}
    wanted = {key: value for key, value in (deployment.get("image") or {}).items() if value}
    if known.get("ref") and not (wanted.get("ref") or wanted.get("repository")):
        raise child_gardenlet.BadConfiguration(
            "the installation by Helm sets image.ref, which has one version: set spec.deployment.image"
        )
    image = {key: known[key] for key in ("repository", "pullPolicy") if known.get(key)}
    if wanted.get("repository") or wanted.get("ref"):
        image.pop("repository", None)
    config = {key: value for key, value in (spec.get("config") or {}).items() if key not in ("apiVersion", "kind")}
    own = {**child_gardenlet.deployment_values(deployment), "image": {**image, **wanted}}
    below = {key: value for key, value in base.items() if key != "image"}
    return {**below, **own, "config": child_gardenlet.merged(base.get("config") or {}, config)}


def _operation(gardenlet: Mapping[str, Any]) -> str:
    """The operation that an operator requests."""
    return str((gardenlet["metadata"].get("annotations") or {}).get(OPERATION) or "")


def _repository(gardenlet: Mapping[str, Any]) -> Object:
    repository: Object = gardenlet["spec"]["deployment"]["helm"]["ociRepository"]
    return repository


def _is(obj: Mapping[str, Any], kind: str, name: str) -> bool:
    return (obj["kind"], obj["metadata"]["name"]) == (kind, name)

"""The vertical pod autoscaler, for Shoots that enable it."""

import asyncio

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.components import base, vpa
from activities.components.managed_resource import managed_resource, managed_resource_parts
from activities.secrets.configs import Certificate, SignedBy, Usage
from activities.secrets.manager import SecretsManager, Which
from activities.seed import rollout
from activities.seed.facts import failure_tolerance, replicas_awake
from activities.seed.hibernation import wanted_asleep
from api import resources
from api.contracts.operations import ShootTask, TaskResult
from api.core.v1beta1.shoot import VerticalPodAutoscaler

_IN_SHOOT = "shoot-core-vpa"
_READY_SECONDS = 120.0
_UNWANTED = TaskResult(note="not wanted")


class VpaActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_vpa(self, task: ShootTask) -> TaskResult:
        """Apply recommender, updater and admission controller, and in the shoot their CRDs, rights and webhook.

        Delete all of it if the Shoot does not enable it. A second run applies the same objects again, and finds the
        certificate of the first one.
        """
        view = await self._clusters.cluster(task.technical_id)
        settings = _settings(view)
        if not settings.enabled:
            await self._delete(task.technical_id)
            return _UNWANTED
        namespace = task.technical_id
        secrets = await SecretsManager.of_shoot(self._clusters.seed, namespace, view.shoot)
        server = await secrets.generate(certificate(namespace))
        wanted = vpa.Autoscaler(
            namespace=namespace,
            generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
            server=server.name,
            settings=settings,
            # A hibernated cluster has no pods to scale.
            replicas=0 if wanted_asleep(view, task) else replicas_awake(view),
            failure_tolerance=failure_tolerance(view),
        )
        seed = self._clusters.seed
        in_shoot = vpa.shoot_objects(namespace, secrets.get("ca").data["bundle.crt"])
        await asyncio.gather(
            rollout.apply(seed, managed_resource(_IN_SHOOT, namespace, in_shoot)),
            *(rollout.deploy(seed, program) for program in vpa.programs(wanted)),
        )
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def wait_vpa(self, task: ShootTask) -> TaskResult:
        """Wait until the newest revision runs and the CRDs are applied. A second run continues to wait."""
        view = await self._clusters.cluster(task.technical_id)
        if not _settings(view).enabled:
            return _UNWANTED
        caches = self._clusters.seed_caches
        await asyncio.gather(
            rollout.wait_managed_resource(caches, _IN_SHOOT, task.technical_id, _READY_SECONDS),
            *(rollout.wait_deployment(caches, name, task.technical_id, _READY_SECONDS) for name in vpa.NAMES),
        )
        return TaskResult()

    async def _delete(self, namespace: str) -> None:
        kinds = (resources.DEPLOYMENT, resources.POD_DISRUPTION_BUDGET)
        doomed = [
            *managed_resource_parts(_IN_SHOOT),
            (resources.SERVICE, vpa.SERVICE),
            *((kind, name) for kind in kinds for name in vpa.NAMES),
            *((resources.SECRET, base.shoot_access_name(name)) for name in vpa.NAMES),
        ]
        await rollout.delete(self._clusters.seed, doomed, namespace)


def certificate(namespace: str) -> Certificate:
    """Server certificate of the webhook."""
    name, service = vpa.ADMISSION_CONTROLLER, vpa.host(namespace)
    return Certificate(
        name=f"{name}-server",
        common_name=name,
        usage=Usage.SERVER,
        signer="ca",
        # The API server, the webhook's only client, gets the new CA bundle by the same activity.
        signed_by=SignedBy.CURRENT,
        dns_names=(name, vpa.SERVICE, service, f"{service}.svc", f"{service}.svc.cluster.local"),
    )


def _settings(view: ClusterView) -> VerticalPodAutoscaler:
    wire = view.shoot["spec"]["kubernetes"].get("verticalPodAutoscaler")
    return VerticalPodAutoscaler.model_validate(wire or {"enabled": False})

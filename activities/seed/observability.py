"""What users see of their control plane: its Prometheus, and in the garden how they reach it."""

import asyncio
import base64

from temporalio import activity

from activities.components import base, prometheus
from activities.components.managed_resource import managed_resource, managed_resource_parts
from activities.kube.clusters import Clusters, ClusterView
from activities.secrets.configs import BasicAuth, Certificate, Usage
from activities.secrets.manager import SecretsManager, Which
from activities.seed import rollout
from activities.seed.hibernation import wanted_asleep
from activities.seed.secrets import garden_object
from api import resources
from api.constants import PURPOSE_TESTING
from api.names import ingress_host, project_and_shoot
from api.operations import ShootTask, TaskResult

USERS = "observability-ingress-users"
"""Stable name of the Secret with their password."""
_SUFFIX = "monitoring"
_RIGHTS = f"shoot-core-{prometheus.NAME}"
_READY_SECONDS = 120.0
"""Source: spec/flows.md 2, observability."""

_UNWANTED = TaskResult(note="not wanted")


class ObservabilityActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def deploy_observability(self, task: ShootTask) -> TaskResult:
        """Apply the Shoot's Prometheus, and tell its owner address and password; delete all of it where unwanted.

        A second run finds the first one's password in its Secret, and applies the same again.
        """
        view = await self._clusters.cluster(task.technical_id)
        domain = _ingress_domain(view)
        if not _wanted(view) or not domain:
            await self._delete(task)
            return _UNWANTED
        secrets = await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot)
        host = ingress_host("p", *project_and_shoot(task.technical_id), domain)
        server = Certificate(
            name=f"{prometheus.NAME}-tls",
            common_name=prometheus.NAME,
            usage=Usage.SERVER,
            signer="ca",
            dns_names=(host, prometheus.NAME),
        )
        users, made = await asyncio.gather(secrets.generate(BasicAuth(USERS)), secrets.generate(server))
        user, _, hashed = users.data["auth"].decode().partition(":")
        wanted = prometheus.Prometheus(
            namespace=task.technical_id,
            generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
            ca_bundle=secrets.get("ca").name,
            server=made.name,
            users={user: hashed},
            hosts=(host,),
            replicas=0 if wanted_asleep(view, task) else 1,
            workers=not view.workerless,
        )
        seed = self._clusters.seed
        rights = managed_resource(_RIGHTS, task.technical_id, prometheus.shoot_objects())
        await asyncio.gather(rollout.apply(seed, rights), rollout.deploy(seed, prometheus.objects(wanted)))
        published = garden_object(task.shoot, "v1", "Secret", _SUFFIX)
        published["metadata"]["annotations"] = {"prometheus-url": f"https://{host}"}
        data = {key: base64.b64encode(users.data[key]).decode() for key in ("username", "password")}
        await self._clusters.garden.apply({**published, "type": "Opaque", "data": data}, manager=rollout.MANAGER)
        return TaskResult(secrets=secrets.generated, note=host)

    @activity.defn
    async def wait_observability(self, task: ShootTask) -> TaskResult:
        """Wait until it runs as it was deployed last: with its newest password."""
        view = await self._clusters.cluster(task.technical_id)
        if not _wanted(view) or not _ingress_domain(view):
            return _UNWANTED
        await rollout.wait_deployment(self._clusters.seed_caches, prometheus.NAME, task.technical_id, _READY_SECONDS)
        return TaskResult()

    async def _delete(self, task: ShootTask) -> None:
        name = prometheus.NAME
        doomed = [
            (resources.DEPLOYMENT, name),
            *managed_resource_parts(_RIGHTS),
            (resources.SERVICE, name),
            (resources.CONFIG_MAP, prometheus.EXPOSURE),
            (resources.SECRET, name),
            (resources.SECRET, base.shoot_access_name(name)),
            (resources.PERSISTENT_VOLUME_CLAIM, name),
            (resources.SERVICE_ACCOUNT, name),
            (resources.ROLE, name),
            (resources.ROLE_BINDING, name),
        ]
        await rollout.delete(self._clusters.seed, doomed, task.technical_id)
        await rollout.delete_versioned(self._clusters.seed, prometheus.SELECT, task.technical_id)
        published = f"{task.shoot.name}.{_SUFFIX}"
        if await self._clusters.garden.find(resources.SECRET, published, task.shoot.namespace) is not None:
            await self._clusters.garden.delete(resources.SECRET, published, task.shoot.namespace)


def _wanted(view: ClusterView) -> bool:
    return bool(view.shoot["spec"].get("purpose") != PURPOSE_TESTING)


def _ingress_domain(view: ClusterView) -> str:
    return str((view.seed["spec"].get("ingress") or {}).get("domain") or "")

"""Monitoring of a control plane for its users: Prometheus, the components around it, and their URLs in the garden.

Also the store of the logs of nodes, where the gardenlet's configuration wants one.
"""

import asyncio
import base64
from dataclasses import dataclass, field

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.components import alertmanager, base, exporters, gateway, kube_state_metrics, prometheus, victoria_logs
from activities.components.managed_resource import managed_resource, managed_resource_parts
from activities.components.monitoring import Served
from activities.errors import transient
from activities.secrets.configs import BasicAuth, Certificate, Usage
from activities.secrets.manager import SecretsManager, Which
from activities.seed import rollout
from activities.seed.facts import ApiNames, is_observed, vpn_servers
from activities.seed.hibernation import wanted_asleep
from activities.seed.node_logs import PREFIX, NodeLogs
from activities.seed.secrets import CLIENT_CA, garden_object
from api import resources
from api.constants import GARDEN_NAMESPACE
from api.contracts.operations import ShootTask, TaskResult
from api.decisions import alerting, dual_stack
from api.decisions.alerting import Smarthost
from api.decisions.seeds import ingress_domain_of
from api.errors import ErrorCode
from api.names import ingress_host, project_and_shoot
from api.resources import Resource

USERS = "observability-ingress-users"
"""Stable name of the Secret with the password for users."""
_SUFFIX = "monitoring"
_RIGHTS = f"shoot-core-{prometheus.NAME}"
_STATE_RIGHTS = f"shoot-core-{kube_state_metrics.NAME}"
_READY_SECONDS = 120.0
"""Source: spec/flows.md 2, observability."""

_UNWANTED = TaskResult(note="not wanted")


class ObservabilityActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters, node_logs: NodeLogs | None = None) -> None:
        """``node_logs``: Shoots whose nodes send their logs; None: no Shoot's."""
        self._clusters = clusters
        self._node_logs = node_logs or NodeLogs()

    @activity.defn
    async def deploy_observability(self, task: ShootTask) -> TaskResult:
        """Apply the Shoot's Prometheus, and publish its URL and password in the garden; delete all of it if unwanted.

        Also apply an Alertmanager if the Shoot names receivers of mails and the garden has a mail server, and a store
        of logs if the nodes of the Shoot are to send theirs. A second run finds the password of the first one in its
        Secret, and applies the same objects again.

        Raises:
            ApplicationError: ``ERR_RETRYABLE_CONFIGURATION_PROBLEM`` if the garden's Secret for mails is incomplete.
        """
        view = await self._clusters.cluster(task.technical_id)
        if not is_observed(view):
            await self._delete_alertmanager(task)
            await self._delete_store_of_logs(task)
            await self._delete_state_metrics(task)
            await self._delete_blackbox_exporter(task)
            await self._delete(task)
            return _UNWANTED
        smarthost = await self._smarthost(view)
        secrets = await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot)
        users = await secrets.generate(BasicAuth(USERS))
        kubeconfig = secrets.get("generic-token-kubeconfig", Which.CURRENT).name
        way_in = _WayIn(view, task, secrets, users.data["auth"].decode())
        project, shoot = project_and_shoot(task.technical_id)
        authority = secrets.get("ca").name
        wanted = prometheus.Prometheus(
            await way_in.to(prometheus.NAME, prometheus.PORT, "p"),
            generic_kubeconfig=kubeconfig,
            ca_bundle=authority,
            api_server=ApiNames.of(view).shown if _reaches_api_server(view) else "",
            workers=not view.workerless,
            vpn_servers=() if view.workerless else gateway.VPN_SERVERS[: vpn_servers(view)],
            alerted=users.name if smarthost else "",
            labels={"cluster": task.technical_id, "project": project, "shoot_name": shoot, "seed": task.seed},
        )
        replicas, urls = wanted.served.replicas, {"prometheus-url": f"https://{wanted.served.host}"}
        components = [prometheus.objects(wanted)]
        if _reaches_api_server(view):
            components.append(exporters.control_plane_blackbox_exporter(task.technical_id, authority, replicas))
        if smarthost:
            served = await way_in.to(alertmanager.NAME, alertmanager.PORT, "au")
            mails = alertmanager.Alertmanager(served, alerting.receivers(view.shoot), smarthost)
            components.append(alertmanager.objects(mails))
            urls["alertmanager-url"] = f"https://{served.host}"
        else:
            await self._delete_alertmanager(task)
        if self._node_logs.wanted(view):
            served = await way_in.to(victoria_logs.NAME, victoria_logs.PORT, PREFIX)
            user, password, clients = users.data["username"].decode(), users.data["password"], secrets.get(CLIENT_CA)
            store = victoria_logs.VictoriaLogs(served, user, password, clients.name)
            components.append(victoria_logs.objects(store))
            urls["logs-url"] = f"https://{served.host}"
        else:
            await self._delete_store_of_logs(task)
        rights = managed_resource(_RIGHTS, task.technical_id, prometheus.shoot_objects())
        if view.workerless:
            await self._delete_state_metrics(task)
        else:
            metrics = kube_state_metrics.KubeStateMetrics(task.technical_id, kubeconfig, replicas)
            components.append(kube_state_metrics.objects(metrics))
            rights += managed_resource(_STATE_RIGHTS, task.technical_id, kube_state_metrics.shoot_objects())
        seed = self._clusters.seed
        await asyncio.gather(rollout.apply(seed, rights), *(rollout.deploy(seed, each) for each in components))
        published = garden_object(task.shoot, "v1", "Secret", _SUFFIX)
        published["metadata"]["annotations"] = urls
        data = {key: base64.b64encode(users.data[key]).decode() for key in ("username", "password")}
        await self._clusters.garden.apply({**published, "type": "Opaque", "data": data}, manager=rollout.MANAGER)
        return TaskResult(secrets=secrets.generated, note=wanted.served.host)

    @activity.defn
    async def wait_observability(self, task: ShootTask) -> TaskResult:
        """Wait until the newest revision of each component runs, with the newest password."""
        view = await self._clusters.cluster(task.technical_id)
        if not is_observed(view):
            return _UNWANTED
        names = [prometheus.NAME, *([exporters.BLACKBOX_EXPORTER] if _reaches_api_server(view) else [])]
        if await self._smarthost(view):
            names.append(alertmanager.NAME)
        if self._node_logs.wanted(view):
            names.append(victoria_logs.NAME)
        if not view.workerless:
            names.append(kube_state_metrics.NAME)
        caches, namespace = self._clusters.seed_caches, task.technical_id
        await asyncio.gather(*(rollout.wait_deployment(caches, each, namespace, _READY_SECONDS) for each in names))
        return TaskResult()

    async def _smarthost(self, view: ClusterView) -> Smarthost | None:
        """Mail server for the Shoot's alerts; None if the Shoot names no receivers or the garden has no mail server."""
        if not alerting.receivers(view.shoot):
            return None
        found = await self._clusters.garden.list(resources.SECRET, GARDEN_NAMESPACE, labels=alerting.SELECTOR)
        try:
            return alerting.smarthost(found)
        except ValueError as error:
            raise transient(
                ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
                f"namespace {GARDEN_NAMESPACE} of the garden: {error}: an operator must correct that",
            ) from None

    async def _delete_alertmanager(self, task: ShootTask) -> None:
        await rollout.delete(self._clusters.seed, _parts(alertmanager.NAME), task.technical_id)

    async def _delete_store_of_logs(self, task: ShootTask) -> None:
        seed, namespace = self._clusters.seed, task.technical_id
        await rollout.delete(seed, _parts(victoria_logs.NAME), namespace)
        await rollout.delete_versioned(seed, victoria_logs.SELECT, namespace)

    async def _delete_state_metrics(self, task: ShootTask) -> None:
        seed, name, namespace = self._clusters.seed, kube_state_metrics.NAME, task.technical_id
        await rollout.delete_component(seed, name, namespace, kube_state_metrics.SELECT, own=True)
        await rollout.delete(seed, managed_resource_parts(_STATE_RIGHTS), namespace)

    async def _delete_blackbox_exporter(self, task: ShootTask) -> None:
        seed, name, namespace = self._clusters.seed, exporters.BLACKBOX_EXPORTER, task.technical_id
        await rollout.delete_component(seed, name, namespace, exporters.BLACKBOX_SELECT, own=True)
        await rollout.delete(seed, [(resources.SERVICE, name)], namespace)

    async def _delete(self, task: ShootTask) -> None:
        name = prometheus.NAME
        doomed = [
            *_parts(name),
            *managed_resource_parts(_RIGHTS),
            (resources.SECRET, base.shoot_access_name(name)),
            (resources.ROLE, name),
            (resources.ROLE_BINDING, name),
        ]
        await rollout.delete(self._clusters.seed, doomed, task.technical_id)
        await rollout.delete_versioned(self._clusters.seed, prometheus.SELECT, task.technical_id)
        published = f"{task.shoot.name}.{_SUFFIX}"
        if await self._clusters.garden.find(resources.SECRET, published, task.shoot.namespace) is not None:
            await self._clusters.garden.delete(resources.SECRET, published, task.shoot.namespace)


@dataclass(frozen=True)
class _WayIn:
    """Access of users to the components: a host name for each component, and one password for all."""

    view: ClusterView
    task: ShootTask
    secrets: SecretsManager
    auth: str = field(repr=False)
    """User name and hash of the password: ``<user>:<hash>``."""

    async def to(self, name: str, port: int, prefix: str) -> Served:
        """Host name, certificate and password of a component; ``prefix`` of its name in the seed's ingress domain."""
        namespace = self.task.technical_id
        host = ingress_host(prefix, *project_and_shoot(namespace), ingress_domain_of(self.view.seed))
        server = Certificate(
            name=f"{name}-tls", common_name=name, usage=Usage.SERVER, signer="ca", dns_names=(host, name)
        )
        made = await self.secrets.generate(server)
        user, _, hashed = self.auth.partition(":")
        replicas = 0 if wanted_asleep(self.view, self.task) else 1
        return Served(name, namespace, port, host, made.name, {user: hashed}, replicas)


def _parts(name: str) -> list[tuple[Resource, str]]:
    """Objects that Prometheus, Alertmanager and the store of logs have, by the component's name."""
    kinds = (
        resources.DEPLOYMENT,
        resources.SERVICE,
        resources.CONFIG_MAP,
        resources.SECRET,
        resources.PERSISTENT_VOLUME_CLAIM,
        resources.SERVICE_ACCOUNT,
    )
    return [(kind, name) for kind in kinds]


def _reaches_api_server(view: ClusterView) -> bool:
    """Whether pods of the seed, which have addresses of IPv4 alone, reach the API server by its name."""
    return not dual_stack.is_ipv6_alone(view.shoot)

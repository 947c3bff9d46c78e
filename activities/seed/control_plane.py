"""The control plane of a shoot in its seed: the API server and the components beside it."""

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity

from activities.clusters import Clusters, ClusterView
from activities.components import (
    apiserver,
    base,
    controller_manager,
    gardener_access,
    gateway,
    machine_controller_manager,
    resource_manager,
    scheduler,
    shoot_system,
    vpn_seed_server,
)
from activities.components.managed_resource import managed_resource, managed_resource_parts
from activities.errors import permanent
from activities.heartbeat import heartbeating
from activities.secrets.configs import Certificate, SignedBy, Usage
from activities.secrets.manager import SecretsManager, Which
from activities.seed import rollout
from activities.seed.facts import (
    ApiNames,
    Networks,
    failure_tolerance,
    replicas_awake,
    taints_of_system_pools,
    vpn_servers,
)
from activities.seed.first_token import FirstToken, is_fresh
from activities.seed.gateway import gateway_address
from activities.seed.handlers import ExposureClassHandler, Handlers, note_of_none
from activities.seed.hibernation import apiserver_replicas, is_asleep, wanted_asleep
from activities.seed.issuer import issuer_of
from activities.seed.logins import read_logins, read_token_webhook
from activities.seed.namespace import write_shoot_status
from activities.seed.secrets import generate_encryption_configuration
from activities.seed.wildcard import wildcard_of
from api import resources
from api.constants import KEY_POPULATED
from api.contracts.operations import ForwardTask, OperationType, ShootTask, TaskResult
from api.errors import ErrorCode
from api.labels import overlapping
from kube.client import KubeClient, Object
from kube.errors import Forbidden, NotFound, Unauthorized, Unreachable
from kube.objects import label_selector

MANAGER = rollout.MANAGER

MINUTE = 60.0
# Source: spec/flows.md 2, column T.
_APISERVER_SECONDS = 5 * MINUTE
_RESOURCE_MANAGER_SECONDS = 5 * MINUTE
_REGISTRATION_SECONDS = 0.5 * MINUTE
_CONTROLLER_MANAGER_SECONDS = 3 * MINUTE
_RESTARTED = (controller_manager.SELECT, base.control_plane_labels(machine_controller_manager.NAME))
"""Labels of controllers that maintenance may restart. The API server is not among them: users would notice that."""
_CLIENT_SECONDS = 2 * MINUTE
_VPN_SECONDS = 3 * MINUTE
_DELETION_SECONDS = 5 * MINUTE
_READING_SECONDS = 20.0
_FORWARDED = timedelta(minutes=5)
"""Time for which the gateway forwards connections: resolvers keep our DNS records for 2 minutes, some for longer."""

_NOT_IN_DELETION = frozenset(
    {
        "admissionPlugins",
        "auditConfig",
        "featureGates",
        "runtimeConfig",
        "watchCacheSizes",
    }
)
"""Settings that a component may refuse, and that neither its stored objects nor its clients need."""

_ASLEEP = TaskResult(note="asleep")


class ControlPlaneActivities:
    """One instance per gardenlet."""

    def __init__(
        self,
        clusters: Clusters,
        *,
        vpn_network: str = "192.168.123.0/24",
        handlers: Iterable[ExposureClassHandler] = (),
    ) -> None:
        self._clusters = clusters
        self._handlers = Handlers(clusters, handlers)
        self._vpn_network = vpn_network

    # The API server's address

    @activity.defn
    async def deploy_api_service(self, task: ShootTask) -> TaskResult:
        """Apply the Service of the API server."""
        if task.operation is OperationType.RESTORE and (place := await self._handlers.place(task)):
            # The control plane is back in this seed, maybe while its gateway still forwards. Stop that: two seeds
            # would forward to each other for ever.
            await rollout.delete(self._clusters.seed, [(resources.CONFIG_MAP, task.technical_id)], place.namespace)
        live = await self._clusters.seed.apply(apiserver.service(task.technical_id), manager=MANAGER)
        return TaskResult(note=live["spec"]["clusterIP"])

    @activity.defn
    async def wait_api_service(self, task: ShootTask) -> TaskResult:
        """Wait until the shoot's gateway has an address, to which the DNS names of the shoot will point."""
        if (place := await self._handlers.place(task)) is None:
            return TaskResult(note=note_of_none(task))
        return TaskResult(note=await gateway_address(self._clusters.seed_caches, place.namespace))

    @activity.defn
    async def update_advertised_addresses(self, task: ShootTask) -> TaskResult:
        """Write to the Shoot's status at which addresses its API server will answer."""
        view = await self._clusters.cluster(task.technical_id)
        names, wildcard = ApiNames.of(view), await wildcard_of(self._clusters, view)
        found = {"external": names.external, "wildcard-tls-seed-bound": wildcard.host, "internal": names.internal}
        addresses = [{"name": name, "url": f"https://{host}"} for name, host in found.items() if host]
        issuer = await issuer_of(self._clusters, view)
        addresses.append({"name": "service-account-issuer", "url": issuer.url})
        if (view.shoot.get("status") or {}).get("advertisedAddresses") != addresses:
            await write_shoot_status(self._clusters, task, {"advertisedAddresses": addresses})
        return TaskResult(note="; ".join(filter(None, (addresses[0]["url"], wildcard.note))))

    @activity.defn
    async def deploy_apiserver_sni(self, task: ShootTask) -> TaskResult:
        """Make the gateway route the API server's host names, and the VPN, to this control plane."""
        view = await self._clusters.cluster(task.technical_id)
        if await is_asleep(self._clusters.seed, view, task):
            return _ASLEEP
        if (place := await self._handlers.place(task)) is None:
            return TaskResult(note=note_of_none(task))
        names, wildcard = ApiNames.of(view), await wildcard_of(self._clusters, view)
        exposure = gateway.ApiServerExposure(
            hosts=tuple(host for host in (names.external, names.internal, wildcard.host) if host),
            api_server=gateway.Upstream(service=apiserver.NAME, port=apiserver.PORT),
            vpn=None
            if view.workerless
            else gateway.Upstream(service=vpn_seed_server.NAME, port=vpn_seed_server.OPENVPN_PORT),
        )
        await self._clusters.seed.apply(
            gateway.exposure(gateway.EXPOSURE, task.technical_id, exposure, place.handler), manager=MANAGER
        )
        return TaskResult(note=", ".join(exposure.hosts))

    @activity.defn
    async def forward_apiserver_sni(self, request: ForwardTask) -> TaskResult:
        """Make the gateway forward clients with an old DNS answer to the other seed, once the route here is deleted.

        The gateway forwards for 5 minutes, longer than such answers are kept. A second run restarts this time.
        """
        task = request.task
        if not request.address:
            return TaskResult(
                note="no client is forwarded: the task that finds the other gateway's address was skipped"
            )
        if (place := await self._handlers.place(task)) is None:
            return TaskResult(note=note_of_none(task))
        names = ApiNames.of(await self._clusters.cluster(task.technical_id))
        hosts = tuple(host for host in (names.external, names.internal) if host)
        what = gateway.Forwarding(hosts=hosts, address=request.address, until=datetime.now(UTC) + _FORWARDED)
        await self._clusters.seed.apply(gateway.forwarding(task.technical_id, what, place), manager=MANAGER)
        return TaskResult(note=f"to {request.address}")

    @activity.defn
    async def delete_apiserver_sni(self, task: ShootTask) -> TaskResult:
        """Delete the gateway's route to the control plane."""
        await rollout.delete(self._clusters.seed, [(resources.CONFIG_MAP, gateway.EXPOSURE)], task.technical_id)
        return TaskResult()

    @activity.defn
    async def delete_api_service(self, task: ShootTask) -> TaskResult:
        """Delete the Service of the API server."""
        await rollout.delete(self._clusters.seed, [(resources.SERVICE, apiserver.NAME)], task.technical_id)
        return TaskResult()

    # The API server

    @activity.defn
    async def deploy_apiserver(self, task: ShootTask) -> TaskResult:
        """Make the API server's certificates and apply its Deployment and configuration.

        Raises:
            UnknownSecret: a Secret that the API server needs does not exist: an error in the order of the flow.
        """
        return await self._deploy_apiserver(task)

    @activity.defn
    async def encrypt_with_new_key(self, task: ShootTask) -> TaskResult:
        """Wait until all replicas can decrypt with the new key, then make all of them encrypt with it.

        No replica encrypts with the old key afterwards.

        A second run finds the annotation that the first one wrote to the Deployment, and the encryption configuration.
        """
        await self._wait_apiserver(task)
        mark = {"metadata": {"annotations": {KEY_POPULATED: "true"}}}
        await self._clusters.seed.patch(resources.DEPLOYMENT, apiserver.NAME, task.technical_id, mark)
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        await generate_encryption_configuration(self._clusters.seed, view, secrets)
        deployed = await self._deploy_apiserver(task)
        await self._wait_apiserver(task)
        return TaskResult(secrets=tuple(sorted({*secrets.generated, *deployed.secrets})))

    async def _deploy_apiserver(self, task: ShootTask) -> TaskResult:
        view = await self._clusters.cluster(task.technical_id)
        secrets, policy, issuer, wildcard = await asyncio.gather(
            self._secrets(task, view),
            self._audit_policy(task, view),
            issuer_of(self._clusters, view),
            wildcard_of(self._clusters, view),
        )
        names = ApiNames.of(view)
        networks = Networks.of(view)
        settings = _settings(task, view, "kubeAPIServer")
        accepted = (settings.get("serviceAccountConfig") or {}).get("acceptedIssuers") or []
        own_issuers = [issuer.url, names.default_issuer, *accepted]
        wanted = await read_logins(self._clusters, task, view, own_issuers)
        if wanted.left_out:
            plugins = [each for each in settings.get("admissionPlugins") or () if each["name"] not in wanted.left_out]
            settings = {**settings, "admissionPlugins": plugins}
        server = apiserver.ApiServer(
            namespace=task.technical_id,
            version=view.kubernetes_version,
            replicas=await apiserver_replicas(self._clusters.seed, view, task, replicas_awake(view)),
            external_hostname=names.shown,
            issuer=issuer.url,
            default_issuer=names.default_issuer,
            key_set=issuer.key_set,
            service_cidrs=networks.services,
            secrets=await _apiserver_secrets(secrets, view, names, networks),
            settings=settings,
            audit_policy=policy,
            authentication=wanted.authentication,
            node_agent_authorizer=None
            if view.workerless
            else resource_manager.node_agent_authorizer(task.technical_id, secrets.get("ca").data["bundle.crt"]),
            webhooks=wanted.webhooks,
            plugin_kubeconfigs=wanted.plugin_kubeconfigs,
            token_webhook=await read_token_webhook(self._clusters, task, view),
            wildcard_host=wildcard.host,
            wildcard=wildcard.certificate,
            workers=not view.workerless,
            vpn_servers=vpn_seed_server.NAMES[: vpn_servers(view)],
            failure_tolerance=failure_tolerance(view),
        )
        seed, namespace = self._clusters.seed, task.technical_id
        await rollout.deploy(seed, apiserver.objects(server))
        if not wildcard.host and await seed.find(resources.SECRET, apiserver.WILDCARD, namespace) is not None:
            await rollout.delete(seed, [(resources.SECRET, apiserver.WILDCARD)], namespace)
        return TaskResult(secrets=secrets.generated, note=f"kube-apiserver {server.version}")

    @activity.defn
    async def wait_apiserver(self, task: ShootTask) -> TaskResult:
        """Wait until all replicas of the newest revision are ready, and the pods of older revisions have ended.

        A pod that is ending still encrypts with its own key what it stores, and rejects tokens signed with a newer key.
        """
        await self._wait_apiserver(task)
        return TaskResult()

    @activity.defn
    async def wait_apiserver_reading(self, task: ShootTask) -> TaskResult:
        """Wait up to 20 s until the API server is ready, while its etcd replicates from the source and is read-only.

        The wait is short: an API server that must write to become ready exits half a minute after its start, unless
        its etcd accepts writes by then. The API server continues to start while the one in the source stops.
        """
        seed_caches = self._clusters.seed_caches
        try:
            await rollout.wait_deployment(seed_caches, apiserver.NAME, task.technical_id, _READING_SECONDS)
        except TimeoutError as error:
            return TaskResult(note=f"not waiting any longer: {error}")
        return TaskResult()

    async def _wait_apiserver(self, task: ShootTask) -> None:
        seed, caches = self._clusters.seed, self._clusters.seed_caches
        await rollout.wait_replaced(seed, caches, apiserver.NAME, task.technical_id, _APISERVER_SECONDS)

    @activity.defn
    async def delete_apiserver(self, task: ShootTask) -> TaskResult:
        """Close the gardenlet's own connections, then delete the API server and give its pods a second to end.

        The cluster is being deleted, or it continues in another seed as soon as this API server writes no more.
        """
        await self._clusters.forget_shoot(task.technical_id)
        seed, caches = self._clusters.seed, self._clusters.seed_caches
        await rollout.end(seed, caches, task.technical_id, apiserver.SELECT, _DELETION_SECONDS)
        await rollout.delete_component(self._clusters.seed, apiserver.NAME, task.technical_id, apiserver.SELECT)
        files = [
            (resources.CONFIG_MAP, apiserver.AUTHENTICATION),
            (resources.SECRET, apiserver.AUTHORIZATION),
            (resources.SECRET, apiserver.WILDCARD),
        ]
        await rollout.delete(self._clusters.seed, files, task.technical_id)
        return TaskResult()

    @activity.defn
    async def drain_apiserver(self, task: ShootTask) -> TaskResult:
        """Delete the API server while another seed's serves: its pods first answer the requests that they have begun.

        A second run finds no Deployment.
        """
        await self._clusters.forget_shoot(task.technical_id)
        await rollout.delete(self._clusters.seed, [(resources.DEPLOYMENT, apiserver.NAME)], task.technical_id)
        return TaskResult()

    @activity.defn
    async def wait_apiserver_deleted(self, task: ShootTask) -> TaskResult:
        """Wait until the last pod of the API server has ended."""
        await rollout.wait_pods_gone(self._clusters.seed_caches, task.technical_id, apiserver.SELECT, _DELETION_SECONDS)
        return TaskResult()

    # The resource manager

    @activity.defn
    async def deploy_resource_manager(self, task: ShootTask) -> TaskResult:
        """Apply the resource manager; if its token does not work in the shoot, obtain a new one first.

        A second run finds the token, the certificate of the webhooks and the registration that the first one applied.
        """
        view = await self._clusters.cluster(task.technical_id)
        asleep = await is_asleep(self._clusters.seed, view, task)
        secrets = await self._secrets(task, view)
        kubernetes = view.shoot["spec"]["kubernetes"]
        manager = resource_manager.ResourceManager(
            namespace=task.technical_id,
            generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
            workers=not view.workerless,
            replicas=0 if asleep else replicas_awake(view),
            longest_update_delay=view.longest_update_delay,
            server="" if view.workerless else (await secrets.generate(_webhooks_certificate(task.technical_id))).name,
            api_server=ApiNames.of(view).internal,
            authorize_with_selectors=_sends_selectors(view),
            taints=taints_of_system_pools(view.pools),
            scheduler_name=scheduler.name_for_pods(kubernetes.get("kubeScheduler") or {}),
            tolerations=_tolerations(kubernetes.get("kubeAPIServer") or {}),
            vertical_autoscaling=bool((kubernetes.get("verticalPodAutoscaler") or {}).get("enabled")),
        )
        objects = resource_manager.objects(manager)
        access = await self._access(resource_manager.NAME, objects)
        # Also give owners their rights: they may use the cluster from now on, before all system components run.
        rights = [shoot_system.owners(), *resource_manager.shoot_objects()]
        token = FirstToken(self._clusters.seed, task.technical_id, secrets, resource_manager.NAME, rights)
        note = "asleep" if asleep else "its token works"
        if not asleep and not await token.works(access):
            await token.obtain()
            note = "got its first token"
        if view.workerless:
            await rollout.deploy(self._clusters.seed, objects)
            gone = [*managed_resource_parts(resource_manager.WEBHOOKS), (resources.SERVICE, resource_manager.NAME)]
            await rollout.delete(self._clusters.seed, gone, task.technical_id)
        else:
            registration = resource_manager.webhook_objects(manager, secrets.get("ca").data["bundle.crt"])
            await self._deploy_with_webhooks(task, objects, registration)
        return TaskResult(secrets=secrets.generated, note=note)

    async def _deploy_with_webhooks(
        self, task: ShootTask, objects: list[dict[str, Any]], wanted: list[dict[str, Any]]
    ) -> None:
        """Apply the resource manager, and the registration of its webhooks in the shoot.

        While the webhooks do not answer, the API server refuses new pods of system components. So a certificate of a
        new CA follows the bundle that contains this CA, and the first registration follows the pods that answer.
        """
        seed, caches, namespace = self._clusters.seed, self._clusters.seed_caches, task.technical_id
        live = await seed.find(resources.DEPLOYMENT, resource_manager.NAME, namespace)
        runs = live is not None and (live.get("status") or {}).get("availableReplicas", 0) > 0
        registration = managed_resource(resource_manager.WEBHOOKS, namespace, wanted)
        if await seed.find(resources.MANAGED_RESOURCE, resource_manager.WEBHOOKS, namespace) is not None:
            await rollout.apply(seed, registration)
            # A resource manager that does not work cannot register webhooks: only the new revision helps.
            with contextlib.suppress(TimeoutError):
                if runs:
                    await rollout.wait_managed_resource(
                        caches, resource_manager.WEBHOOKS, namespace, _REGISTRATION_SECONDS
                    )
            await rollout.deploy(seed, objects)
            return
        await rollout.deploy(seed, objects)
        if runs:
            await rollout.wait_deployment(caches, resource_manager.NAME, namespace, _REGISTRATION_SECONDS)
        await rollout.apply(seed, registration)

    @activity.defn
    async def wait_resource_manager(self, task: ShootTask) -> TaskResult:
        """Wait until the resource manager is ready."""
        await self._wait(resource_manager.NAME, task, _RESOURCE_MANAGER_SECONDS)
        return TaskResult()

    @activity.defn
    async def delete_resource_manager(self, task: ShootTask) -> TaskResult:
        """Delete the resource manager, with its rights in the seed and its token."""
        select = base.control_plane_labels(resource_manager.NAME)
        await rollout.delete_component(self._clusters.seed, resource_manager.NAME, task.technical_id, select, own=True)
        service = [(resources.SERVICE, resource_manager.NAME)]
        await rollout.delete(self._clusters.seed, service, task.technical_id)
        return TaskResult()

    # Scheduler and controllers

    @activity.defn
    async def deploy_scheduler(self, task: ShootTask) -> TaskResult:
        """Apply kube-scheduler, and its rights in the shoot."""
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        server = await secrets.generate(_component_certificate(scheduler.NAME, task.technical_id))
        wanted = scheduler.Scheduler(
            namespace=task.technical_id,
            version=view.kubernetes_version,
            # A hibernated cluster has no nodes to schedule pods to.
            replicas=0 if wanted_asleep(view, task) else replicas_awake(view),
            generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
            client_ca_bundle=secrets.get("ca-client").name,
            server=server.name,
            settings=view.shoot["spec"]["kubernetes"].get("kubeScheduler") or {},
            failure_tolerance=failure_tolerance(view),
        )
        objects, rights = scheduler.objects(wanted), scheduler.shoot_objects()
        await self._deploy_with_rights(task, secrets, scheduler.NAME, objects, rights)
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def deploy_kube_controller_manager(self, task: ShootTask) -> TaskResult:
        """Apply kube-controller-manager, and its rights in the shoot."""
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        networks = Networks.of(view)
        server = await secrets.generate(_component_certificate(controller_manager.NAME, task.technical_id))
        wanted = controller_manager.ControllerManager(
            namespace=task.technical_id,
            version=view.kubernetes_version,
            replicas=await self._replicas(task, view, replicas_awake(view)),
            pod_cidrs=networks.pods_of_new_nodes,
            service_cidrs=networks.services,
            secrets=controller_manager.Secrets(
                generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
                ca_bundle=secrets.get("ca").name,
                client_ca=secrets.get("ca-client", Which.CURRENT).name,
                server=server.name,
                service_account_key=secrets.get("service-account-key", Which.CURRENT).name,
                kubelet_ca="" if view.workerless else secrets.get("ca-kubelet", Which.CURRENT).name,
            ),
            settings=_settings(task, view, "kubeControllerManager"),
            failure_tolerance=failure_tolerance(view),
            workers=not view.workerless,
        )
        objects, rights = controller_manager.objects(wanted), controller_manager.shoot_objects()
        await self._deploy_with_rights(task, secrets, controller_manager.NAME, objects, rights)
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def wait_kube_controller_manager(self, task: ShootTask) -> TaskResult:
        """Wait until kube-controller-manager is ready."""
        await self._wait(controller_manager.NAME, task, _CONTROLLER_MANAGER_SECONDS)
        return TaskResult()

    @activity.defn
    async def restart_control_plane_pods(self, task: ShootTask) -> TaskResult:
        """Restart the controllers of the control plane, as maintenance may request.

        A second run does not delete pods that were created after the operation began.
        """
        begun = datetime.fromisoformat(task.trigger)
        restarted = 0
        for select in _RESTARTED:
            labels = label_selector(select)
            for pod in await self._clusters.seed.list(resources.POD, task.technical_id, labels=labels):
                metadata = pod["metadata"]
                if datetime.fromisoformat(metadata["creationTimestamp"]) < begun.replace(microsecond=0):
                    await self._clusters.seed.delete(
                        resources.POD, metadata["name"], task.technical_id, uid=metadata["uid"]
                    )
                    restarted += 1
        return TaskResult(note=f"{restarted} pods")

    @activity.defn
    async def deploy_machine_controller_manager(self, task: ShootTask) -> TaskResult:
        """Apply the machine-controller-manager, and its rights in the shoot."""
        name, rights = machine_controller_manager.NAME, machine_controller_manager.shoot_objects()
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        wanted = machine_controller_manager.MachineControllerManager(
            namespace=task.technical_id,
            generic_kubeconfig=secrets.get("generic-token-kubeconfig", Which.CURRENT).name,
            replicas=await self._replicas(task, view, 1),
        )
        await self._deploy_with_rights(task, secrets, name, machine_controller_manager.objects(wanted), rights)
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def delete_machine_controller_manager(self, task: ShootTask) -> TaskResult:
        """Delete the machine-controller-manager, with its rights in the seed and its token."""
        select = base.control_plane_labels(machine_controller_manager.NAME)
        await rollout.delete_component(
            self._clusters.seed, machine_controller_manager.NAME, task.technical_id, select, own=True
        )
        return TaskResult()

    # The seed's end of the tunnel

    @activity.defn
    async def deploy_vpn_server(self, task: ShootTask) -> TaskResult:
        """Apply the VPN server to which the shoot will connect, and the proxy through which the API server uses it."""
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        networks = Networks.of(view)
        nodes = networks.nodes or await self._infrastructure_nodes(task)
        _refuse_overlap(self._vpn_network, [*networks.pods, *networks.services, *nodes])
        server = await secrets.generate(
            Certificate(
                name=vpn_seed_server.NAME,
                common_name=vpn_seed_server.NAME,
                usage=Usage.SERVER,
                signer="ca-vpn",
                # Both servers have one certificate, with the name of the first server: that is how they are verified.
                dns_names=_service_names(vpn_seed_server.NAME, task.technical_id),
            )
        )
        servers = vpn_servers(view)
        wanted = vpn_seed_server.VpnSeedServer(
            namespace=task.technical_id,
            network=self._vpn_network,
            server=server.name,
            ca_bundle=secrets.get("ca-vpn").name,
            tls_auth=secrets.get("vpn-seed-server-tlsauth", Which.CURRENT).name,
            replicas=await self._replicas(task, view, 1),
            servers=servers,
            failure_tolerance=failure_tolerance(view),
        )
        seed = self._clusters.seed
        for index in range(servers):
            await rollout.deploy(seed, vpn_seed_server.objects(replace(wanted, index=index)))
        for name in vpn_seed_server.NAMES[servers:]:
            # The Service is deleted last, so a second run finds it as long as another object may be left.
            if await seed.find(resources.SERVICE, name, task.technical_id) is not None:
                await rollout.delete_component(seed, name, task.technical_id, base.control_plane_labels(name))
                await rollout.delete(seed, [(resources.SERVICE, name)], task.technical_id)
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def wait_vpn_server(self, task: ShootTask) -> TaskResult:
        """Wait until the newest revision of each VPN server runs."""
        view = await self._clusters.cluster(task.technical_id)
        names = vpn_seed_server.NAMES[: vpn_servers(view)]
        await asyncio.gather(*(self._wait(name, task, _VPN_SECONDS) for name in names))
        return TaskResult()

    # The gardenlet's own access

    @activity.defn
    async def deploy_gardener_access(self, task: ShootTask) -> TaskResult:
        """Request the gardenlet's own tokens for the shoot, in Secrets ``gardener`` and ``gardener-internal``.

        Raises:
            Conflict: the resource manager renewed a token meanwhile; the next attempt reads it.
        """
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        names = ApiNames.of(view)
        seed = self._clusters.seed
        rights = _rights("shoot-core-gardeneraccess", task, gardener_access.shoot_objects())
        wanted = gardener_access.objects(
            task.technical_id,
            servers={
                gardener_access.EXTERNAL: names.shown,
                gardener_access.INTERNAL: names.internal,
            },
            ca_bundle=secrets.get("ca").data["bundle.crt"],
        )
        await asyncio.gather(rollout.apply(seed, rights), *(_apply_access(seed, secret) for secret in wanted))
        return TaskResult(secrets=secrets.generated)

    @activity.defn
    async def init_shoot_client(self, task: ShootTask) -> TaskResult:
        """Wait until the gardenlet's token exists and the API server grants its rights; skip this during hibernation.

        Raises TimeoutError after 2 minutes.
        """
        if await is_asleep(self._clusters.seed, await self._clusters.cluster(task.technical_id), task):
            return _ASLEEP
        state = "no token yet"

        async def answer() -> str:
            nonlocal state
            while True:
                try:
                    shoot = await self._clusters.shoot(task.technical_id)
                    await shoot.get(resources.NAMESPACE, "kube-system")
                    return str((await shoot.request("GET", "/version"))["gitVersion"])
                except (NotFound, Unauthorized, Forbidden, Unreachable) as error:
                    state = str(error)
                await asyncio.sleep(0.2)

        try:
            async with asyncio.timeout(_CLIENT_SECONDS):
                return TaskResult(note=await heartbeating(answer(), details=lambda: state))
        except TimeoutError:
            raise TimeoutError(f"access to shoot {task.technical_id}: {state}") from None

    # Shared by these activities

    async def _secrets(self, task: ShootTask, view: ClusterView) -> SecretsManager:
        return await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot)

    async def _replicas(self, task: ShootTask, view: ClusterView, awake: int) -> int:
        """Replicas of a component that needs the API server: 0 while the API server is hibernated."""
        return 0 if await is_asleep(self._clusters.seed, view, task) else awake

    async def _wait(self, name: str, task: ShootTask, timeout: float) -> None:
        await rollout.wait_deployment(self._clusters.seed_caches, name, task.technical_id, timeout)

    async def _access(self, name: str, objects: list[dict[str, Any]]) -> Object:
        """Apply the Secret for a component's token in the shoot, and return it as it is stored."""
        access = base.shoot_access_name(name)
        wanted = next(item for item in objects if item["metadata"]["name"] == access)
        return await self._clusters.seed.apply(wanted, manager=MANAGER)

    async def _deploy_with_rights(
        self,
        task: ShootTask,
        secrets: SecretsManager,
        name: str,
        objects: list[dict[str, Any]],
        shoot_objects: list[dict[str, Any]],
    ) -> None:
        """Apply a component and its rights in the shoot; obtain a token first if its Secret holds no fresh one.

        A second run finds the token in the Secret.
        """
        runs = any(each["spec"]["replicas"] for each in objects if each["kind"] == resources.DEPLOYMENT.kind)
        if runs and not is_fresh(await self._access(name, objects), datetime.now(UTC)):
            account = base.service_account(name, "kube-system")
            rights = [account, *shoot_objects]
            await FirstToken(self._clusters.seed, task.technical_id, secrets, name, rights).obtain()
        await rollout.apply(self._clusters.seed, _rights(f"shoot-core-{name}", task, shoot_objects))
        await rollout.deploy(self._clusters.seed, objects)

    async def _audit_policy(self, task: ShootTask, view: ClusterView) -> str:
        """Read the owner's own audit policy from a ConfigMap of the project; empty if the Shoot names none.

        Empty during a deletion, too: the policy may be deleted already, and must not hold the deletion.

        Raises:
            ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if the policy does not exist.
        """
        settings = _settings(task, view, "kubeAPIServer")
        audit = (settings.get("auditConfig") or {}).get("auditPolicy") or {}
        name = (audit.get("configMapRef") or {}).get("name")
        if not name:
            return ""
        config_map = await self._clusters.garden.find(resources.CONFIG_MAP, name, task.shoot.namespace)
        policy: str = ((config_map or {}).get("data") or {}).get("policy", "")
        if not policy:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"audit policy of shoot {task.shoot}: ConfigMap {task.shoot.namespace}/{name} with key policy "
                "does not exist; create it, or take auditPolicy out of spec.kubernetes.kubeAPIServer.auditConfig",
            )
        return policy

    async def _infrastructure_nodes(self, task: ShootTask) -> tuple[str, ...]:
        live = await self._clusters.seed.find(resources.INFRASTRUCTURE, task.shoot.name, task.technical_id)
        status = (live or {}).get("status") or {}
        if cidr := status.get("nodesCIDR"):
            return (cidr,)
        return tuple((status.get("networking") or {}).get("nodes") or ())


def _settings(task: ShootTask, view: ClusterView, component: str) -> dict[str, Any]:
    """The owner's settings of a component of the control plane.

    During a deletion, without those that may keep it from starting: it only has to delete the cluster's objects, and
    its owner cannot correct the spec any more.
    """
    settings: dict[str, Any] = view.shoot["spec"]["kubernetes"].get(component) or {}
    if task.operation is not OperationType.DELETE:
        return settings
    return {name: value for name, value in settings.items() if name not in _NOT_IN_DELETION}


async def _apiserver_secrets(
    secrets: SecretsManager, view: ClusterView, names: ApiNames, networks: Networks
) -> apiserver.Secrets:
    namespace = view.technical_id
    first_addresses = tuple(str(ipaddress.ip_network(cidr)[1]) for cidr in networks.services)
    hosts = [*_service_names(apiserver.NAME, namespace), namespace, names.internal, names.external, names.domain]
    if not view.workerless:
        hosts += _service_names("kubernetes", "default")
    server = await secrets.generate(
        Certificate(
            name=apiserver.NAME,
            common_name=apiserver.NAME,
            usage=Usage.SERVER,
            signer="ca",
            chain=True,
            dns_names=tuple(host for host in (*hosts, "localhost") if host),
            ip_addresses=(*first_addresses, "127.0.0.1", "::1"),
        )
    )
    aggregator = await secrets.generate(
        Certificate(
            name="kube-aggregator",
            common_name="system:kube-aggregator",
            usage=Usage.CLIENT,
            signer="ca-front-proxy",
        )
    )
    made = {
        "ca_bundle": secrets.get("ca").name,
        "client_ca_bundle": secrets.get("ca-client").name,
        "etcd_ca_bundle": secrets.get("ca-etcd").name,
        "front_proxy_ca_bundle": secrets.get("ca-front-proxy").name,
        "server": server.name,
        "etcd_client": secrets.get("etcd-client", Which.CURRENT).name,
        "aggregator": aggregator.name,
        "service_account_key": secrets.get("service-account-key", Which.CURRENT).name,
        "service_account_key_bundle": secrets.get("service-account-key", Which.BUNDLE).name,
        "static_token": secrets.get("kube-apiserver-static-token", Which.CURRENT).name,
        "encryption_configuration": secrets.get("kube-apiserver-etcd-encryption-configuration", Which.CURRENT).name,
    }
    if not view.workerless:
        kubelet_client = await secrets.generate(
            Certificate(
                name="kube-apiserver-kubelet",
                common_name="system:kube-apiserver:kubelet",
                usage=Usage.CLIENT,
                signer="ca-kubelet",
                # Kubelets trust the new CA only after their nodes have been rolled.
                signed_by=SignedBy.OLD_WHILE_KEPT,
            )
        )
        vpn_client = await secrets.generate(
            Certificate(
                name="kube-apiserver-http-proxy-client",
                common_name="kube-apiserver-http-proxy-client",
                usage=Usage.CLIENT,
                signer="ca-vpn",
            )
        )
        made |= {
            "kubelet_ca_bundle": secrets.get("ca-kubelet").name,
            "kubelet_client": kubelet_client.name,
            "vpn_ca_bundle": secrets.get("ca-vpn").name,
            "vpn_client": vpn_client.name,
        }
    return apiserver.Secrets(**made)


def _sends_selectors(view: ClusterView) -> bool:
    """Whether the API server tells its authorizers the selectors of lists and watches. From 1.34 on it always does."""
    settings = view.shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}
    return bool((settings.get("featureGates") or {}).get("AuthorizeWithSelectors", True))


def _webhooks_certificate(namespace: str) -> Certificate:
    """Server certificate of the resource manager's webhooks."""
    return Certificate(
        name=f"{resource_manager.NAME}-server",
        common_name=resource_manager.NAME,
        usage=Usage.SERVER,
        signer="ca",
        # The API server, the webhooks' only client, gets the new CA bundle first, by the same activity.
        signed_by=SignedBy.CURRENT,
        dns_names=_service_names(resource_manager.NAME, namespace),
    )


def _tolerations(settings: Mapping[str, Any]) -> dict[str, int]:
    """Times that the Shoot sets for its API server, after which pods leave a node that does not answer."""
    names = ("defaultNotReadyTolerationSeconds", "defaultUnreachableTolerationSeconds")
    return {name: settings[name] for name in names if settings.get(name) is not None}


def _component_certificate(name: str, namespace: str) -> Certificate:
    return Certificate(
        name=f"{name}-server",
        common_name=name,
        usage=Usage.SERVER,
        signer="ca",
        dns_names=_service_names(name, namespace),
    )


def _service_names(name: str, namespace: str) -> tuple[str, ...]:
    return (
        name,
        f"{name}.{namespace}",
        f"{name}.{namespace}.svc",
        f"{name}.{namespace}.svc.cluster.local",
    )


async def _apply_access(seed: KubeClient, wanted: dict[str, Any]) -> None:
    """Apply an access Secret of the gardenlet, and keep the token in its kubeconfig."""
    live = await seed.find(resources.SECRET, wanted["metadata"]["name"], wanted["metadata"]["namespace"])
    if live is None:
        await seed.apply(wanted, manager=MANAGER)
        return
    merged = gardener_access.with_user(wanted, live)
    if merged is None:
        return
    version = live["metadata"]["resourceVersion"]
    await seed.apply({**merged, "metadata": {**merged["metadata"], "resourceVersion": version}}, manager=MANAGER)


def _refuse_overlap(tunnel: str, shoot_networks: list[str]) -> None:
    for cidr in shoot_networks:
        if overlapping({"tunnel": tunnel, "shoot": cidr}):
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"network {cidr} of the shoot overlaps with the VPN's network {tunnel}: choose another one",
            )


def _rights(name: str, task: ShootTask, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """ManagedResource with the rights of a component in the shoot.

    Its objects stay when the ManagedResource is deleted. Otherwise the resource manager would delete its own rights,
    which it needs to delete the other objects. All rights end with the cluster.
    """
    return managed_resource(name, task.technical_id, objects, keep=True)

"""The server of the webhooks: its certificate, its registration, and the webhooks that the configuration enables."""

import asyncio
import contextlib
import logging
from typing import Any

from aiohttp import web

from activities.components import resource_manager_webhooks as registration
from kube.cache import Caches
from kube.client import KubeClient, Object
from kube.errors import ApiError
from workers.lib.reviews import Review, handler
from workers.lib.serving import ServingCertificate, ShownCertificate
from workers.lib.webhook_certificates import Server, WebhookCertificates
from workers.lib.webhook_clients import at_once
from workers.resource_manager.config import ResourceManagerConfig, Service
from workers.resource_manager.webhooks import autoscalers, endpoint_slices, high_availability, pods, static_tokens
from workers.resource_manager.webhooks.pods import Answer

_log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Maximum number of concurrent reviews; an API server retries those that get status 429."""
_IDLE_SECONDS = 300


class Webhooks:
    """Serves the webhooks that the configuration enables, in each replica: a replica need not lead for that."""

    def __init__(
        self, config: ResourceManagerConfig, *, source: KubeClient, target: KubeClient, target_caches: Caches
    ) -> None:
        self._config = config.server.webhooks
        self._client = source
        self._answers = _answers(config, target, target_caches)
        self.ready = asyncio.Event()
        """Set once the API server can call the webhooks; at once if none is enabled."""

    async def run(self) -> None:
        """Serve until cancelled; returns at once if no webhook is enabled.

        Raises OSError or ssl.SSLError if the configuration names files that cannot be used.
        """
        if not self._answers:
            self.ready.set()
            return
        async with contextlib.AsyncExitStack() as stack:
            if self._config.tls is not None:
                directory = self._config.tls.server_cert_dir
                files = ServingCertificate(directory / "tls.crt", directory / "tls.key")
                await self._listen(stack, files)
                self.ready.set()
                await files.follow()
            elif (service := self._config.service) is not None:
                shown = ShownCertificate()
                await self._listen(stack, shown)
                own = WebhookCertificates(self._client, _server(service), shown, self._registered)
                await asyncio.gather(own.run(), self._await(own))

    async def _await(self, own: WebhookCertificates) -> None:
        await own.ready.wait()
        self.ready.set()

    async def _listen(self, stack: contextlib.AsyncExitStack, shown: ShownCertificate) -> None:
        app = web.Application(client_max_size=8 * 1024 * 1024, middlewares=[at_once(_AT_ONCE)])
        for name, answer in self._answers.items():
            path = registration.WEBHOOKS[name].path
            app.router.add_post(path, handler(_failing(answer), path))
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=_IDLE_SECONDS)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, self._config.bind_address, self._config.port, ssl_context=shown.context).start()
        _log.info("serving webhooks at port %d: %s", self._config.port, ", ".join(self._answers))

    def _registered(self, bundle: str) -> list[Object]:
        service = self._config.service
        assert service is not None
        client = registration.by_service(service.name, service.namespace, bundle, port=service.port)
        return [registration.configuration(registration.Registered(tuple(self._answers), client))]


def _answers(config: ResourceManagerConfig, target: KubeClient, target_caches: Caches) -> dict[str, Answer]:
    """The webhooks that the configuration enables, by name."""
    wanted = config.webhooks
    answers: dict[str, Answer] = {}
    if wanted.projected_token_mount.enabled:
        answers[registration.PROJECTED_TOKEN_MOUNT] = pods.mount_token(target, wanted.projected_token_mount)
    if wanted.kubernetes_service_host.enabled:
        answers[registration.KUBERNETES_SERVICE_HOST] = pods.service_host(wanted.kubernetes_service_host)
    if wanted.pod_topology_spread_constraints.enabled:
        answers[registration.POD_TOPOLOGY_SPREAD_CONSTRAINTS] = pods.spread_each_revision
    if wanted.system_components_config.enabled:
        place = pods.place_system_components(target_caches, wanted.system_components_config)
        answers[registration.SYSTEM_COMPONENTS_CONFIG] = place
    if wanted.seccomp_profile.enabled:
        answers[registration.SECCOMP_PROFILE] = pods.default_seccomp_profile
    if wanted.endpoint_slice_hints.enabled:
        answers[registration.ENDPOINT_SLICE_HINTS] = endpoint_slices.hint_own_zone
    if wanted.high_availability_config.enabled:
        keep = high_availability.keep_available(target, target_caches, wanted.high_availability_config)
        answers[registration.HIGH_AVAILABILITY_CONFIG] = keep
    if wanted.token_invalidator.enabled:
        answers[registration.TOKEN_INVALIDATOR] = static_tokens.invalidate
    if wanted.pod_scheduler_name.enabled:
        answers[registration.POD_SCHEDULER_NAME] = pods.default_scheduler(wanted.pod_scheduler_name)
    if wanted.vpa_in_place_updates.enabled:
        answers[registration.VPA_IN_PLACE_UPDATES] = autoscalers.update_in_place
    return answers


def _server(service: Service) -> Server:
    host = f"{service.name}.{service.namespace}.svc"
    return Server("gardener-resource-manager", host, service.namespace, service.name)


def _failing(answer: Answer) -> Answer:
    """Answer with status 503 if the target cluster does not answer. The failure policy then decides about the write."""

    async def tried(review: Review) -> dict[str, Any]:
        try:
            return await answer(review)
        except (ApiError, TimeoutError) as error:
            _log.warning("review of %s in %s: %s", review.kind, review.namespace, error)
            raise web.HTTPServiceUnavailable(text="the target cluster does not answer") from None

    return tried

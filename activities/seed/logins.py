"""Logins of a shoot, as ConfigMaps and Secrets of its owner describe them: issuers of tokens, webhooks, kubeconfigs."""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, ClusterView
from activities.components.apiserver import AuthorizationWebhook
from activities.errors import permanent
from api import resources
from api.constants import EXTENSION_TOKEN_WEBHOOK
from api.contracts.operations import OperationType, ShootTask
from api.decisions.registrations import wanted_extensions
from api.decisions.versions import Version
from api.errors import ErrorCode
from api.resources import Resource
from api.validation import kubeconfigs, logins
from api.validation.field import Faults

_FIELD = "spec.kubernetes.kubeAPIServer"


@dataclass(frozen=True, repr=False)  # no repr, because kubeconfigs hold credentials
class Logins:
    """Content of all files, without faults."""

    authentication: Mapping[str, Any] = field(default_factory=dict)
    webhooks: tuple[AuthorizationWebhook, ...] = ()
    plugin_kubeconfigs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name of the admission plugin."""
    left_out: frozenset[str] = frozenset()
    """Admission plugins that the API server must do without, because it would not start with them."""


async def read_logins(clusters: Clusters, task: ShootTask, view: ClusterView, own_issuers: list[str]) -> Logins:
    """Read the ConfigMaps and Secrets of the project that the Shoot names.

    Admission has checked them, but an owner may have deleted them since, or they are older than a rule. A deletion
    leaves out what has faults: it needs an API server, but no logins of users.

    Raises:
        ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if an object does not exist or has faults.
    """
    settings = view.shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}
    reader = _Reader(clusters, task, Version(view.kubernetes_version).minor)
    named = {each["name"] for each in _with_kubeconfig(settings)}
    found = await asyncio.gather(
        reader.authentication(settings, own_issuers, tunnel=not view.workerless),
        reader.webhooks(settings),
        reader.plugin_kubeconfigs(settings),
        return_exceptions=task.operation is OperationType.DELETE,
    )
    for fault in found:
        if isinstance(fault, BaseException) and not isinstance(fault, ApplicationError):
            raise fault
    authentication, webhooks, plugins = found
    return Logins(
        {} if isinstance(authentication, BaseException) else authentication,
        () if isinstance(webhooks, BaseException) else webhooks,
        {} if isinstance(plugins, BaseException) else plugins,
        frozenset(named) if isinstance(plugins, BaseException) else frozenset(),
    )


def _with_kubeconfig(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Admission plugins that are on and have a kubeconfig."""
    plugins = settings.get("admissionPlugins") or ()
    return [each for each in plugins if each.get("kubeconfigSecretName") and not each.get("disabled")]


async def read_token_webhook(clusters: Clusters, task: ShootTask, view: ClusterView) -> str:
    """Kubeconfig of the webhook that an extension of the Shoot has put beside the API server; empty if there is none.

    The Secret of an extension that the Shoot no longer has does not count: the flow deletes it later.

    Raises:
        ApplicationError: ``ERR_CONFIGURATION_PROBLEM`` (final) if several extensions of the Shoot have a webhook.
    """
    found = await clusters.seed.list(resources.SECRET, task.technical_id, labels=EXTENSION_TOKEN_WEBHOOK)
    if not found:
        return ""
    registrations = await clusters.garden.list(resources.CONTROLLER_REGISTRATION)
    types = {each.type for each in wanted_extensions(view.shoot, registrations)}
    used = {each["metadata"]["labels"][EXTENSION_TOKEN_WEBHOOK]: each for each in found}
    used = {type_: secret for type_, secret in used.items() if type_ in types}
    if len(used) > 1:
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"extensions {', '.join(sorted(used))} of Shoot {task.shoot} each have a webhook for tokens, and the API "
            "server can ask one: disable all of them but one in spec.extensions",
        )
    return next((secret_text(each, kubeconfigs.KUBECONFIG_KEY) for each in used.values()), "")


class _Reader:
    def __init__(self, clusters: Clusters, task: ShootTask, minor: int) -> None:
        self._clusters = clusters
        self._task = task
        self._minor = minor

    async def authentication(
        self, settings: Mapping[str, Any], own_issuers: list[str], *, tunnel: bool
    ) -> Mapping[str, Any]:
        name = (settings.get("structuredAuthentication") or {}).get("configMapName")
        if not name:
            return {}
        text = await self._config(name, "structuredAuthentication")
        config, faults = logins.parse_authentication(text, self._minor)
        if config is not None:
            faults = logins.check_authentication(
                config,
                minor=self._minor,
                own_issuers=own_issuers,
                tunnel=tunnel,
                anonymous=settings.get("enableAnonymousAuthentication") is not None,
            )
        if config is None or faults:
            raise self._fault("ConfigMap", name, logins.CONFIG_KEY, "structuredAuthentication", faults)
        return logins.wire(config)

    async def webhooks(self, settings: Mapping[str, Any]) -> tuple[AuthorizationWebhook, ...]:
        wanted = settings.get("structuredAuthorization") or {}
        name = wanted.get("configMapName")
        if not name:
            return ()
        secrets = {each["authorizerName"]: each["secretName"] for each in wanted.get("kubeconfigs") or ()}
        text = await self._config(name, "structuredAuthorization")
        config, faults = logins.parse_authorization(text, self._minor)
        if config is not None:
            faults = logins.check_authorization(config, minor=self._minor, kubeconfigs=secrets)
        if config is None or faults:
            raise self._fault("ConfigMap", name, logins.CONFIG_KEY, "structuredAuthorization", faults)
        kubeconfigs = await asyncio.gather(
            *(
                self._kubeconfig(secrets[each.name], "structuredAuthorization.kubeconfigs", connects=True)
                for each in config.authorizers
            )
        )
        return tuple(
            AuthorizationWebhook(logins.wire(each), kubeconfig)
            for each, kubeconfig in zip(config.authorizers, kubeconfigs, strict=True)
        )

    async def plugin_kubeconfigs(self, settings: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        secrets = {each["name"]: each["kubeconfigSecretName"] for each in _with_kubeconfig(settings)}
        found = await asyncio.gather(
            *(
                self._kubeconfig(secret, f"admissionPlugins[{name}]", connects=logins.plugin_connects(name))
                for name, secret in secrets.items()
            )
        )
        return dict(zip(secrets, found, strict=True))

    async def _config(self, name: str, part: str) -> str:
        found = await self._find(resources.CONFIG_MAP, name, part)
        return str((found.get("data") or {}).get(logins.CONFIG_KEY) or "")

    async def _kubeconfig(self, name: str, part: str, *, connects: bool) -> Mapping[str, Any]:
        found = await self._find(resources.SECRET, name, part)
        config, faults = kubeconfigs.parse_kubeconfig(secret_text(found, kubeconfigs.KUBECONFIG_KEY), connects=connects)
        if config is None:
            raise self._fault("Secret", name, kubeconfigs.KUBECONFIG_KEY, part, faults)
        return config

    async def _find(self, kind: Resource, name: str, part: str) -> Mapping[str, Any]:
        namespace = self._task.shoot.namespace
        found = await self._clusters.garden.find(kind, name, namespace)
        if found is None:
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"{kind.kind} {namespace}/{name}, which {_FIELD}.{part} of Shoot {self._task.shoot} names, does not "
                "exist: create it, or take it out of the Shoot",
            )
        return found

    def _fault(self, kind: str, name: str, key: str, part: str, faults: Faults) -> Exception:
        return permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"{kind} {self._task.shoot.namespace}/{name}, which {_FIELD}.{part} of Shoot {self._task.shoot} names, has "
            f"faults in key {key}: {faults}",
        )


def secret_text(secret: Mapping[str, Any], key: str) -> str:
    """Text of one key of a Secret; empty if there is none, or if it is no text."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "").decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
